package addressing

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/atomicfile"
	"github.com/hawser-net/hawser/internal/ipam"
	"github.com/hawser-net/hawser/internal/k8s/ippools"
	"github.com/hawser-net/hawser/internal/node"
	"github.com/hawser-net/hawser/internal/testenv"
)

// testConfig is that of a node whose state is in dir.
func testConfig(dir string) Config {
	ahead, _ := ParsePreAllocation(nil, ipam.DefaultPool)
	return Config{
		Self: node.Key{Cluster: "default", Name: "n1"}, Mode: MultiPool, Families: ipam.IPv4, DefaultPool: ipam.DefaultPool, Ahead: ahead,
		Dir: dir, Log: slog.New(slog.DiscardHandler),
		Save: func(path string, data []byte) error {
			if err := os.WriteFile(path+".tmp", data, 0o600); err != nil {
				return err
			}
			return os.Rename(path+".tmp", path)
		},
	}
}

// counter is an agent that counts what it is called with.
type counter struct{ writes, moves int }

func (c *counter) Refresh()        { c.writes++ }
func (c *counter) AddressesMoved() { c.moves++ }
func (c *counter) Report(error)    {}

// one is a catalog of one pool.
type one struct {
	noCatalog
	known *ippools.Pool
}

func (c one) Get(string) (ippools.Pool, bool, bool) { return *c.known, true, true }

// nodePoolsAt makes the pools of a node whose state is in dir, as an agent does that begins.
func nodePoolsAt(t *testing.T, dir string) (*Pools, *ipam.IPAM) {
	t.Helper()
	n, err := newPools(testConfig(dir))
	if err != nil {
		t.Fatal(err)
	}
	pool, err := ipam.New(ipam.Config{Assigned: ipam.IPv4})
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Attach(pool); err != nil {
		t.Fatal(err)
	}
	pool.Open()
	return n, pool
}

// ciliumNode is the node's object in its so many-th version.
func ciliumNode(generation int64, cidrs ...string) *v2.CiliumNode {
	o := &v2.CiliumNode{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "u1", Generation: generation}}
	if len(cidrs) > 0 {
		o.Spec.IPAM.Pools.Allocated = []v2.IPAMPoolAllocation{{Pool: "default", CIDRs: cidrs}}
	}
	return o
}

func TestInAdvance(t *testing.T) {
	t.Parallel()
	if got, err := ParsePreAllocation([]string{"default=3"}, "blue"); err != nil || got["blue"] != v2.DefaultPreAllocate || got["default"] != 3 {
		t.Errorf("in advance: %v, %v", got, err)
	}
	for used, want := range map[int]int{0: 8, 1: 16, 8: 16, 9: 24, 16: 24, 17: 32} {
		if got := inAdvance(used, 8); got != want {
			t.Errorf("with %d addresses in use %d are asked for, want %d", used, got, want)
		}
	}
	if got := inAdvance(3, 0); got != 3 {
		t.Errorf("without any in advance %d are asked for, want 3", got)
	}
}

// TestNodePoolsCrash has the agent end at every step of handing a CIDR back, and old versions of
// the object come late: no address of the CIDR is given after it was handed back.
func TestNodePoolsCrash(t *testing.T) {
	t.Parallel()
	const kept, spare = "10.0.0.0/28", "10.0.0.16/28"
	for _, at := range []string{"stored", "written", "observed"} {
		t.Run(at, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			n, pool := nodePoolsAt(t, dir)
			n.Observe(ciliumNode(5, kept, spare))
			if _, err := pool.AllocateNext(ipam.IPv4, "a/b", "", false); err != nil {
				t.Fatal(err)
			}
			now := time.Now()
			n.tend(now)
			if len(n.state.Releasing) > 0 {
				t.Fatal("a CIDR was handed back at once")
			}
			n.asked = map[string]ipam.Count{} // as if few were needed
			n.cfg.Ahead = map[string]int{"default": 1}
			n.tend(now)
			n.tend(now.Add(releaseDelay))
			if got := fmt.Sprint(n.state.Releasing); got != "["+spare+"]" {
				t.Fatalf("handed back: %s", got)
			}
			o := ciliumNode(5, kept, spare)
			n.Fill(o, false)
			if got := fmt.Sprint(o.Spec.IPAM.Pools.Allocated[0].CIDRs); got != "["+kept+"]" {
				t.Errorf("the object is to have %s", got)
			}
			if at == "observed" {
				n.Observe(ciliumNode(6, kept))
			}
			n, pool = nodePoolsAt(t, dir) // after the crash
			n.Observe(ciliumNode(5, kept, spare))
			if got := fmt.Sprint(pool.CIDRs(ipam.IPv4)); got != "["+kept+"]" {
				t.Errorf("an old version of the object has the node have %s", got)
			}
			if at != "stored" {
				n.Observe(ciliumNode(6, kept))
			} else {
				o := ciliumNode(5, kept, spare)
				n.Fill(o, false)
				n.Observe(ciliumNode(6, o.Spec.IPAM.Pools.Allocated[0].CIDRs...))
			}
			if len(n.state.Releasing) > 0 {
				t.Errorf("%v are still handed back", n.state.Releasing)
			}
			n.Observe(ciliumNode(5, kept, spare))
			if got := fmt.Sprint(pool.CIDRs(ipam.IPv4)); got != "["+kept+"]" {
				t.Errorf("an old version has the node have %s", got)
			}
			n.Observe(ciliumNode(7, kept, spare)) // assigned anew
			if got := fmt.Sprint(pool.CIDRs(ipam.IPv4)); got != "["+kept+" "+spare+"]" {
				t.Errorf("what is assigned anew is not used: %s", got)
			}
		})
	}
}

// TestNodePools: what the node uses and is not assigned stays, and is said; an object that was
// deleted is made with what the node has.
func TestNodePools(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	n, pool := nodePoolsAt(t, dir)
	fault := func() error { return n.notify.due.fault }
	if err := n.missing(); err == nil || !strings.Contains(err.Error(), `a CIDR (ipv4) of pool "default"`) {
		t.Errorf("missing: %v", err)
	}
	n.Observe(ciliumNode(1, "10.0.0.0/28"))
	if n.missing() != nil || fault() != nil {
		t.Errorf("missing: %v, fault %v", n.missing(), fault())
	}
	if _, err := pool.AllocateNext(ipam.IPv4, "a/b", "", false); err != nil {
		t.Fatal(err)
	}
	made := &v2.CiliumNode{}
	n.Fill(made, true)
	if got := made.Spec.IPAM.Pools; len(got.Allocated) != 1 || got.Allocated[0].CIDRs[0] != "10.0.0.0/28" || len(got.Requested) != 1 || got.Requested[0].Needed.IPv4Addrs != 8 {
		t.Errorf("the object is made with %+v", got)
	}
	n.tend(time.Now())
	o := ciliumNode(1, "10.0.0.0/28")
	n.Fill(o, false)
	if got := o.Spec.IPAM.Pools.Requested[0].Needed.IPv4Addrs; got != 16 {
		t.Errorf("with an address in use %d are asked for, want 16", got)
	}
	n.Observe(ciliumNode(2, "none", "10.0.1.0/28"))
	if fault() == nil || !strings.Contains(fault().Error(), "pods of this node use 10.0.0.0/28, which is not assigned to it any more") {
		t.Errorf("fault: %v", fault())
	}
	o = ciliumNode(2, "none", "10.0.1.0/28")
	n.Fill(o, false)
	if got := fmt.Sprint(o.Spec.IPAM.Pools.Allocated[0].CIDRs); got != "[none 10.0.1.0/28 10.0.0.0/28]" {
		t.Errorf("the object is to have %s", got)
	}
	if r, err := pool.AllocateNext(ipam.IPv4, "a/c", "", false); err != nil || !netip.MustParsePrefix("10.0.1.0/28").Contains(r.IPv4.IP) {
		t.Errorf("%+v, %v", r, err)
	}
	// The state directory cannot be written: what is assigned is not used.
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	n.Observe(ciliumNode(3, "10.0.1.0/28", "10.0.2.0/28"))
	if got := fmt.Sprint(pool.CIDRs(ipam.IPv4)); strings.Contains(got, "10.0.2.0") || fault() == nil {
		t.Errorf("what is not stored is used: %s, %v", got, fault())
	}
}

// TestNodePoolsDiskFull: what is assigned is not used while it cannot be stored, which is said once
// and names the file, and is used when there is room, without an event of the object.
func TestNodePoolsDiskFull(t *testing.T) {
	t.Parallel()
	const first, second = "10.0.0.0/28", "10.0.1.0/28"
	for _, tt := range []struct {
		name        string
		spoil, mend func(*testenv.SmallDisk)
	}{
		{"full", (*testenv.SmallDisk).Fill, (*testenv.SmallDisk).Free},
		{"read-only", (*testenv.SmallDisk).ReadOnly, (*testenv.SmallDisk).Writable},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			disk := testenv.NewSmallDisk(t)
			var log bytes.Buffer
			n, pool := nodePoolsAt(t, disk.Path)
			n.log = slog.New(slog.NewTextHandler(&log, nil))
			n.cfg.Save = func(path string, data []byte) error {
				return atomicfile.Write(path, data, 0o600, atomicfile.Process)
			}
			now := ciliumNode(1, first)
			n.live = func(context.Context) (*v2.CiliumNode, error) { return now, nil }
			has := func(when, want string) {
				t.Helper()
				if got := fmt.Sprint(pool.CIDRs(ipam.IPv4)); got != want {
					t.Errorf("%s: the node has %s, want %s", when, got, want)
				}
			}
			n.Observe(now)
			tt.spoil(disk)
			now = ciliumNode(2, first, second)
			n.Observe(now)
			for range 3 {
				n.confirm(t.Context())
			}
			has("not stored", "["+first+"]")
			if fault := n.notify.due.fault; fault == nil || !strings.Contains(fault.Error(), filepath.Join(disk.Path, "pools.json")) {
				t.Errorf("fault: %v", fault)
			}
			if said := strings.Count(log.String(), "level=ERROR"); said != 1 {
				t.Errorf("it was said %d times: %s", said, &log)
			}
			_, another := nodePoolsAt(t, disk.Path)
			if got := fmt.Sprint(another.CIDRs(ipam.IPv4)); got != "["+first+"]" {
				t.Errorf("another agent has %s", got)
			}
			tt.mend(disk)
			n.confirm(t.Context())
			has("stored", "["+first+" "+second+"]")
			if fault := n.notify.due.fault; fault != nil {
				t.Errorf("fault: %v", fault)
			}
			_, pool = nodePoolsAt(t, disk.Path)
			has("another agent, afterwards", "["+first+" "+second+"]")
		})
	}
}

// TestNodePoolsTaken: a CIDR that is in use is written into the object again after a client has
// taken it out, also by an agent that starts anew; one that is not in use is gone.
func TestNodePoolsTaken(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	n, pool := nodePoolsAt(t, dir)
	n.Observe(ciliumNode(1, "10.0.0.0/28", "10.0.0.16/28"))
	got, err := pool.AllocateNext(ipam.IPv4, "a/b", "", false)
	if err != nil {
		t.Fatal(err)
	}
	n.notify.pass(&counter{})
	n.Observe(ciliumNode(2))
	count := counter{}
	if n.notify.pass(&count); count.writes == 0 {
		t.Error("nothing is written")
	}
	if _, err := pool.AllocateNext(ipam.IPv4, "a/c", "", false); err == nil {
		t.Error("an address was given of what is not assigned")
	}
	o := ciliumNode(2)
	n.Fill(o, false)
	if got := fmt.Sprint(o.Spec.IPAM.Pools.Allocated); got != "[{false false [10.0.0.0/28] default}]" {
		t.Errorf("the object is to have %s", got)
	}
	// The agent starts anew before it has written.
	if n, err = newPools(testConfig(dir)); err != nil {
		t.Fatal(err)
	}
	if pool, err = ipam.New(ipam.Config{Assigned: ipam.IPv4}); err != nil {
		t.Fatal(err)
	}
	if err := n.Attach(pool); err != nil {
		t.Fatal(err)
	}
	if err := pool.Restore(got.IPv4.IP, "a/b"); err != nil {
		t.Fatalf("the pod's address is lost: %v", err)
	}
	pool.Open()
	o = ciliumNode(2)
	n.Fill(o, false)
	n.Observe(ciliumNode(3, o.Spec.IPAM.Pools.Allocated[0].CIDRs...))
	if _, err := pool.AllocateNext(ipam.IPv4, "a/c", "", false); err != nil {
		t.Errorf("what is assigned again is not used: %v", err)
	}
}

// TestNodePoolsDisputed: a CIDR that is another node's gives no new addresses, and goes back when
// it is unused.
func TestNodePoolsDisputed(t *testing.T) {
	t.Parallel()
	n, pool := nodePoolsAt(t, t.TempDir())
	fault := func() error { return n.notify.due.fault }
	n.Observe(ciliumNode(1, "10.0.0.0/28"))
	got, err := pool.AllocateNext(ipam.IPv4, "a/b", "", false)
	if err != nil {
		t.Fatal(err)
	}
	o := ciliumNode(1, "10.0.0.0/28")
	o.Annotations = map[string]string{ippools.DisputedAnnotation: "10.0.0.0/28"}
	n.Observe(o)
	if _, err := pool.AllocateNext(ipam.IPv4, "a/c", "", false); err == nil {
		t.Error("an address was given that another node may give")
	}
	if fault() == nil || !strings.Contains(fault().Error(), "this node has 10.0.0.0/28, of which another node had something first") {
		t.Errorf("fault: %v", fault())
	}
	if err := pool.Free(got.IPv4.IP); err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	n.tend(now)
	n.tend(now.Add(releaseDelay))
	n.Fill(o, false)
	if got := o.Spec.IPAM.Pools.Allocated; len(got) > 0 {
		t.Errorf("it does not go back: %v", got)
	}
}

// TestNodePoolsDisputedRouter: of a disputed CIDR in which only the node itself has an address the
// status says what is to be done.
func TestNodePoolsDisputedRouter(t *testing.T) {
	t.Parallel()
	n, pool := nodePoolsAt(t, t.TempDir())
	n.Observe(ciliumNode(1, "10.0.0.0/28", "10.0.0.16/28"))
	router, err := pool.AllocateRouter()
	if err != nil {
		t.Fatal(err)
	}
	pod, err := pool.AllocateNext(ipam.IPv4, "a/b", "", false)
	if err != nil {
		t.Fatal(err)
	}
	o := ciliumNode(1, "10.0.0.0/28", "10.0.0.16/28")
	o.Annotations = map[string]string{ippools.DisputedAnnotation: "10.0.0.0/28"}
	n.Observe(o)
	const pods, own = "no new pod gets an address of it; delete the pods", "only this node's own addresses are left there: drain the node and restart its agent"
	check := func(want, not string) {
		t.Helper()
		text := fmt.Sprint(n.notify.due.fault)
		if !strings.Contains(text, want) || strings.Contains(text, not) || !strings.Contains(text, "this node has 10.0.0.0/28, of which another node had something first") {
			t.Errorf("fault: %s", text)
		}
	}
	n.tend(time.Now())
	check(pods, own)
	if err := pool.Free(pod.IPv4.IP); err != nil {
		t.Fatal(err)
	}
	n.tend(time.Now())
	check(own, pods)
	if pool.Assignable(router.IPv4.IP) || !pool.Assignable(netip.MustParseAddr("10.0.0.17")) {
		t.Error("the next agent would take the router's address again")
	}
}

// TestNodePoolsPutBack: an earlier version of the object counts once the server itself has it. What
// this node does not know is handed back, what its pods use is asked for again.
func TestNodePoolsPutBack(t *testing.T) {
	t.Parallel()
	n, pool := nodePoolsAt(t, t.TempDir())
	now := ciliumNode(9, "10.0.0.0/28")
	n.live = func(context.Context) (*v2.CiliumNode, error) { return now, nil }
	n.Observe(now)
	if _, err := pool.AllocateNext(ipam.IPv4, "a/b", "", false); err != nil {
		t.Fatal(err)
	}
	cidrs := func(want string) {
		t.Helper()
		if got := fmt.Sprint(pool.CIDRs(ipam.IPv4)); got != want {
			t.Errorf("the node has %s, want %s", got, want)
		}
	}
	old := ciliumNode(4, "10.0.0.16/28")
	n.Observe(old)
	n.confirm(t.Context())
	cidrs("[10.0.0.0/28]") // it was late, no more
	now = old
	n.Observe(old)
	cidrs("[10.0.0.0/28]")
	n.confirm(t.Context())
	cidrs("[10.0.0.0/28]")
	if _, err := pool.AllocateNext(ipam.IPv4, "a/c", "", false); err == nil {
		t.Error("an address was given of a CIDR that may be another's")
	}
	o := old.DeepCopy()
	n.Fill(o, false)
	if got := fmt.Sprint(o.Spec.IPAM.Pools.Allocated); got != "[{false false [10.0.0.0/28] default}]" {
		t.Errorf("the object is to have %s", got)
	}
	n.Observe(ciliumNode(5, "10.0.0.0/28", "10.0.0.32/28"))
	cidrs("[10.0.0.0/28 10.0.0.32/28]")
}

// TestNodePoolsFaultyPool: CIDRs of a pool of which nothing is known are used as before.
func TestNodePoolsFaultyPool(t *testing.T) {
	t.Parallel()
	n, pool := nodePoolsAt(t, t.TempDir())
	known := ippools.Pool{Name: "default", Fault: errors.New("is invalid")}
	n.catalog = one{known: &known}
	n.Observe(ciliumNode(1, "10.0.0.0/28"))
	if _, err := pool.AllocateNext(ipam.IPv4, "a/b", "", false); err != nil {
		t.Error(err)
	}
	if got := n.wanted()["default"].IPv4; got != 16 {
		t.Errorf("%d addresses are asked for, want 16", got)
	}
	known.Fault = nil
	n.look()
	if _, err := pool.AllocateNext(ipam.IPv4, "a/c", "", false); err == nil {
		t.Error("an address was given of a CIDR that its pool does not have")
	}
}

// TestNodePoolsAsk: pods that come and go cost no write as long as the node has enough; what it
// lacks is asked for at once, what it does not need any more in a while.
func TestNodePoolsAsk(t *testing.T) {
	t.Parallel()
	n, pool := nodePoolsAt(t, t.TempDir())
	n.cfg.Ahead = map[string]int{} // each pod changes what is needed
	count := counter{}
	n.Observe(ciliumNode(1, "10.0.0.0/27")) // 30 addresses
	now, step := time.Now(), func(want int, when string) {
		t.Helper()
		if n.notify.pass(&count); count.writes != want {
			t.Errorf("%s: %d writes, want %d", when, count.writes, want)
		}
		count.writes = 0
	}
	n.notify.pass(&count)
	n.asked, n.since, count.writes = n.wanted(), time.Time{}, 0
	var given []netip.Addr
	for range 30 {
		r, err := pool.AllocateNext(ipam.IPv4, "a/b", "", false)
		if err != nil {
			t.Fatal(err)
		}
		given = append(given, r.IPv4.IP)
		n.tend(now)
	}
	step(0, "as many as there are")
	if _, err := pool.AllocateNext(ipam.IPv4, "a/c", "", false); err == nil {
		t.Fatal("there is one more")
	}
	n.tend(now)
	step(1, "one more")
	if got := n.asked["default"].IPv4; got != 31 {
		t.Errorf("%d are asked for, want 31", got)
	}
	for _, ip := range given[1:] {
		if err := pool.Free(ip); err != nil {
			t.Fatal(err)
		}
		n.tend(now.Add(time.Second))
	}
	step(0, "fewer")
	n.tend(now.Add(2 * askDelay))
	step(1, "fewer for long")
	if got := n.asked["default"].IPv4; got != 2 { // and one that waits
		t.Errorf("%d are asked for, want 2", got)
	}
}
