package endpoint

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func TestRegistryRefusesDuplicates(t *testing.T) {
	t.Parallel()
	r := NewRegistry()
	first, err := r.insert(RowOf(1))
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*Endpoint){
		"number":     func(e *Endpoint) { e.ID = first.ID },
		"attachment": func(e *Endpoint) { e.ContainerID = first.ContainerID },
		"ipv4":       func(e *Endpoint) { e.IPv4 = first.IPv4 },
		"ipv6":       func(e *Endpoint) { e.IPv6 = first.IPv6 },
		"interface":  func(e *Endpoint) { e.IfName = first.IfName },
	} {
		row := RowOf(2)
		change(&row)
		if _, err := r.insert(row); !errors.Is(err, ErrExists) {
			t.Errorf("same %s: error %v, want ErrExists", name, err)
		}
		if r.Len() != 1 {
			t.Fatalf("same %s: a refused row left a trace", name)
		}
	}
	if _, err := r.insert(RowOf(2)); err != nil {
		t.Errorf("a row without a conflict was refused: %v", err)
	}
}

func TestRegistryFind(t *testing.T) {
	t.Parallel()
	r := NewRegistry()
	row := RowOf(1)
	row.ContainerName = "web"
	row, err := r.insert(row)
	if err != nil {
		t.Fatal(err)
	}
	second := RowOf(2)
	second.ContainerID, second.ContainerIfName, second.PodName = row.ContainerID, "eth1", row.PodName
	if _, err := r.insert(second); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{
		fmt.Sprint(row.ID), "cni-attachment-id:container-1:eth0", "cni-attachment-id:container-1", "cep-name:ns/pod-1",
		"pod-name:ns/pod-1", "ipv4:10.0.0.1", "ipv6:fd00::1", "container-id:container-1", "container-name:web",
	} {
		ref, err := ParseRef(id)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := r.Find(ref); err != nil || got.ID != row.ID {
			t.Errorf("Find(%s) = %d, %v; want %d", id, got.ID, err, row.ID)
		}
	}
	for _, id := range []string{"999", "cep-name:ns/none", "ipv4:10.9.9.9", "container-id:none", "cni-attachment-id:none:eth0", "docker-endpoint:x"} {
		ref, _ := ParseRef(id)
		if _, err := r.Find(ref); !errors.Is(err, ErrNotFound) {
			t.Errorf("Find(%s): error %v, want ErrNotFound", id, err)
		}
	}
}

// TestAttachmentID: an attachment whose interface name is not known has the name of its container.
func TestAttachmentID(t *testing.T) {
	t.Parallel()
	for want, a := range map[string]Attachment{
		"c:eth0": {ContainerID: "c", ContainerIfName: "eth0"},
		"c":      {ContainerID: "c"},
		"":       {ContainerIfName: "eth0"},
	} {
		if got := a.AttachmentID(); got != want {
			t.Errorf("the attachment of %+v is %q, want %q", a, got, want)
		}
	}
}

// TestRegistryIndexesFollowRows inserts and removes at random and compares every index with the
// rows, which are the truth.
func TestRegistryIndexesFollowRows(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 1))
	r := NewRegistry()
	live := map[uint16]int{}
	for range 2000 {
		if rnd.IntN(3) > 0 {
			n := rnd.IntN(40)
			row, err := r.insert(RowOf(n))
			conflict := false
			for _, m := range live {
				conflict = conflict || m == n
			}
			if conflict != errors.Is(err, ErrExists) {
				t.Fatalf("insert of %d: %v, conflict %v", n, err, conflict)
			}
			if err == nil {
				live[row.ID] = n
			}
		} else {
			for id := range live {
				r.remove(id)
				delete(live, id)
				break
			}
		}
		if r.Len() != len(live) || len(r.byAddr) != 2*len(live) || len(r.byAttachment) != len(live) ||
			len(r.byIfName) != len(live) || len(r.byPod) != len(live) || len(r.byContainer) != len(live) {
			t.Fatalf("indexes of %d rows have %d, %d, %d, %d, %d entries", len(live), len(r.byAddr), len(r.byAttachment), len(r.byIfName), len(r.byPod), len(r.byContainer))
		}
	}
}

func TestRegistryQuarantinesIDs(t *testing.T) {
	t.Parallel()
	r := NewRegistry()
	a, _ := r.insert(RowOf(1))
	r.remove(a.ID)
	b, _ := r.insert(RowOf(1))
	if a.ID == b.ID {
		t.Errorf("ID %d was given out again at once", a.ID)
	}
}

func TestStore(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s, err := NewStore(dir)
	if err != nil {
		t.Fatal(err)
	}
	var want []Endpoint
	for n := 1; n <= 3; n++ {
		row := RowOf(n)
		row.ID, row.State, row.Identity = uint16(n), StateReady, 300
		row.IdentityLabels = row.Labels
		if err := s.Put(row); err != nil {
			t.Fatal(err)
		}
		want = append(want, row)
	}
	got, damaged, err := s.Load()
	if err != nil || damaged != nil {
		t.Fatal(damaged, err)
	}
	opts := cmp.Options{cmpopts.EquateComparable(netip.Addr{}), cmpopts.EquateEmpty()}
	for i := range got {
		if age := time.Since(got[i].Stored); age < 0 || age > time.Minute {
			t.Errorf("endpoint %d was written %s ago", got[i].ID, age)
		}
		got[i].Stored = time.Time{}
	}
	if diff := cmp.Diff(want, got, opts); diff != "" {
		t.Errorf("rows changed on their way through the disk (-put +loaded):\n%s", diff)
	}
	// A crash between mkdir and rename leaves an empty directory, a torn record is reported,
	// and neither hides the others.
	if err := os.Mkdir(filepath.Join(dir, "9"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "2", recordName), []byte(`{"id": 2, "inter`), 0o600); err != nil {
		t.Fatal(err)
	}
	got, damaged, err = s.Load()
	if len(got) != 2 || damaged == nil || err != nil {
		t.Errorf("loaded %d rows, %v, %v; want 2 and an error about the third", len(got), damaged, err)
	}
	if _, err := os.Stat(filepath.Join(dir, "9")); !os.IsNotExist(err) {
		t.Error("the empty directory is still there")
	}
	if err := s.Delete(2); err != nil {
		t.Error(err)
	}
	if err := s.Delete(2); err != nil {
		t.Errorf("deleting what is gone: %v", err)
	}
	if got, damaged, err := s.Load(); len(got) != 2 || damaged != nil || err != nil {
		t.Errorf("loaded %d rows, %v, %v; want 2", len(got), damaged, err)
	}
}

// TestPastIsBounded: of endpoints that are gone the latest are remembered.
func TestPastIsBounded(t *testing.T) {
	t.Parallel()
	r := NewRegistry()
	for n := 1; n <= maxPast+10; n++ {
		row, err := r.insert(RowOf(n % 200))
		if err != nil {
			t.Fatal(err)
		}
		r.remove(row.ID)
	}
	if _, err := r.Past(Ref{Kind: RefLocalID, Local: 10}); !errors.Is(err, ErrNotFound) {
		t.Errorf("the tenth is still remembered: %v", err)
	}
	for _, id := range []uint16{11, maxPast + 10} {
		if row, err := r.Past(Ref{Kind: RefLocalID, Local: id}); err != nil || row.ID != id {
			t.Errorf("endpoint %d: %+v, %v", id, row, err)
		}
	}
	if len(r.past) != maxPast {
		t.Errorf("%d are remembered, want %d", len(r.past), maxPast)
	}
}
