package endpoints

import (
	"log/slog"
	"net/netip"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/api/v2alpha1"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/ipcache"
	"github.com/hawser-net/hawser/internal/k8s"
	"github.com/hawser-net/hawser/internal/k8s/pods"
)

// learner returns Endpoints that follow nothing, and what they report of ages.
func learner() (e *Endpoints, reported *[]time.Duration) {
	reported = &[]time.Duration{}
	return &Endpoints{
		cfg: Config{Hosts: []netip.Addr{netip.MustParseAddr("192.0.2.1")}, Accept: func(identity.ID) error { return nil },
			OnIdentity: func(age time.Duration) { *reported = append(*reported, age) }, Log: slog.New(slog.DiscardHandler)},
		index: newIndex(ipcache.New(), slog.New(slog.DiscardHandler)), began: time.Now().Add(-time.Minute),
		want: map[k8s.Key]Local{}, counted: map[k8s.Key]string{}, made: map[k8s.Key]creation{}, lost: map[k8s.Key]string{},
		sliced: map[string][]pods.Address{},
	}, reported
}

// TestLearned: how long ago a pod of another node was created is reported once, when its object
// names an identity of its own for the first time, and not of what was there before, or says
// nothing, or what cannot be.
func TestLearned(t *testing.T) {
	t.Parallel()
	e, reported := learner()
	learn := func(name string, id int64, age time.Duration, created string, want int) {
		t.Helper()
		o := &v2.CiliumEndpoint{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, ResourceVersion: "1", CreationTimestamp: metav1.NewTime(time.Now().Add(-age))}}
		o.Annotations = map[string]string{"other": "one"}
		if created != "" {
			o.Annotations[CreatedAnnotation] = created
		}
		o.Status.Identity = &v2.EndpointIdentity{ID: id}
		o.Status.Networking = &v2.EndpointNetworking{NodeIP: "192.0.2.2", Addressing: []*v2.AddressPair{{IPv4: "10.0.0.1"}}}
		e.observe(slim(o))
		if len(*reported) != want {
			t.Errorf("%s with identity %d: reported %v, want %d", name, id, *reported, want)
		}
	}
	ago := func(d time.Duration) string { return time.Now().Add(-d).UTC().Format(time.RFC3339) }
	learn("new", int64(identity.Init), 3*time.Second, ago(40*time.Second), 0)
	learn("new", 1000, 5*time.Second, ago(42*time.Second), 1)
	learn("new", 1001, 6*time.Second, ago(43*time.Second), 1)
	learn("old", 1000, time.Hour, ago(2*time.Hour), 1)
	learn("silent", 1000, time.Second, "", 1)
	learn("liar", 1000, 3*time.Second, ago(-time.Hour), 1)
	learn("unreadable", 1000, 3*time.Second, "yesterday", 1)
	learn("ahead", 1000, -time.Minute, ago(-30*time.Second), 2) // by a clock that is ahead
	if ages := *reported; len(ages) == 2 && (ages[0] < 42*time.Second || ages[0] > 5*time.Minute || ages[1] != 0) {
		t.Errorf("ages: %v", ages)
	}
}

// TestLearnedFromSlices: slices do not say when a pod was created; its own node reports it when it
// observes its own slice.
func TestLearnedFromSlices(t *testing.T) {
	t.Parallel()
	e, reported := learner()
	e.cfg.Slices = true
	h := e.slices(func() {})
	learn := func(name string, id int64, want int) {
		t.Helper()
		h.Upsert(&v2alpha1.CiliumEndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: "one"}, Namespace: "default", Endpoints: []v2alpha1.CoreCiliumEndpoint{{
			Name: name, IdentityID: id, Networking: &v2.EndpointNetworking{NodeIP: "192.0.2.1", Addressing: []*v2.AddressPair{{IPv4: "10.0.0.1"}}},
		}}})
		if len(*reported) != want {
			t.Errorf("%s with identity %d: reported %v, want %d", name, id, *reported, want)
		}
	}
	pod := func(name, uid string, created time.Time) {
		e.want[k8s.Key{Namespace: "default", Name: name}] = Local{Namespace: "default", Pod: name, UID: uid, PodCreated: created}
	}
	created := time.Now().Add(-42 * time.Second)
	pod("new", "1", created)
	pod("restored", "2", time.Time{})
	learn("gone", 1000, 0)
	learn("restored", 1000, 0)
	learn("new", 0, 0)
	learn("new", int64(identity.Init), 0)
	learn("new", 1000, 1)
	learn("new", 1001, 1)
	pod("new", "3", created) // another of its name
	learn("new", 1001, 2)
	for _, age := range *reported {
		if age < 42*time.Second || age > 5*time.Minute {
			t.Errorf("ages: %v", *reported)
		}
	}
}

// TestFirstTime: an object that is made anew says nothing of when its pod was created.
func TestFirstTime(t *testing.T) {
	t.Parallel()
	e, _ := learner()
	l := Local{Namespace: "default", Pod: "one", UID: "1", PodCreated: time.Now()}
	if !e.firstTime(l) {
		t.Error("a new pod")
	}
	e.made[l.Key()] = creation{uid: "1"}
	if e.firstTime(l) {
		t.Error("a pod whose object was made before")
	}
	delete(e.made, l.Key())
	e.lost[l.Key()] = "1"
	if e.firstTime(l) {
		t.Error("a pod whose object was deleted")
	}
	l.UID = "2"
	if !e.firstTime(l) {
		t.Error("another pod of the name")
	}
	l.PodCreated = time.Time{}
	if e.firstTime(l) {
		t.Error("when it was created is unknown")
	}
}
