package endpointslices

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/api/v2alpha1"
)

// server is a naive API server: it keeps slices, gives versions, and remembers all events.
type server struct {
	version int
	slices  map[string]v2alpha1.CiliumEndpointSlice
	events  []events
}

// events is an event of the watch.
type events struct {
	gone  bool
	slice v2alpha1.CiliumEndpointSlice
}

func newServer() *server { return &server{slices: map[string]v2alpha1.CiliumEndpointSlice{}} }

func (s *server) all() []v2alpha1.CiliumEndpointSlice {
	var out []v2alpha1.CiliumEndpointSlice
	for _, n := range slices.Sorted(maps.Keys(s.slices)) {
		out = append(out, s.slices[n])
	}
	return out
}

func (s *server) put(o v2alpha1.CiliumEndpointSlice) *v2alpha1.CiliumEndpointSlice {
	s.version++
	if old, ok := s.slices[o.Name]; ok {
		o.UID, o.CreationTimestamp = old.UID, old.CreationTimestamp
	} else {
		o.UID, o.CreationTimestamp = types.UID(fmt.Sprint("uid-", s.version)), metav1.Unix(int64(s.version/5), 0)
	}
	o.ResourceVersion = strconv.Itoa(s.version)
	o = *o.DeepCopy()
	s.slices[o.Name] = o
	s.events = append(s.events, events{slice: o})
	return &o
}

func (s *server) drop(name string) {
	if o, ok := s.slices[name]; ok {
		s.version++
		delete(s.slices, name)
		s.events = append(s.events, events{gone: true, slice: o})
	}
}

// actor is an operator as far as these tests need one: an index, and how far its watch has come.
type actor struct {
	index     *index
	server    *server
	delivered int
	queue     map[string]bool
	writes    int
	// alone means that no other client writes.
	alone bool
}

func (w *world) newActor() *actor {
	a := &actor{index: newIndex(w.max, w.name), server: w.server, delivered: len(w.server.events), queue: map[string]bool{}, alone: w.alone}
	for _, o := range w.server.all() {
		a.index.observe(&o)
	}
	for k, e := range w.want {
		a.index.set(k, e)
	}
	a.index.begin()
	a.collect()
	return a
}

func (a *actor) collect() {
	for _, n := range a.index.takeDirty() {
		a.queue[n] = true
	}
}

// deliver hands the index one event.
func (a *actor) deliver() bool {
	if a.delivered == len(a.server.events) {
		return false
	}
	n := a.server.events[a.delivered]
	a.delivered++
	if n.gone {
		a.index.gone(n.slice.Name, n.slice.UID)
	} else {
		a.index.observe(n.slice.DeepCopy())
	}
	a.collect()
	return true
}

// sync writes one slice. lost means that the answer does not arrive.
func (a *actor) sync(t *testing.T, name string, lost bool) {
	delete(a.queue, name)
	if a.index.doubtful(name) {
		if there, ok := a.server.slices[name]; ok {
			a.index.observe(there.DeepCopy())
		} else {
			a.index.lacks(name, a.index.uidOf(name))
		}
		a.collect()
	}
	w := a.index.plan(name)
	if w.action == leave {
		return
	}
	a.writes++
	there, exists := a.server.slices[name]
	before, ignorant := a.server.all(), !a.alone && a.delivered < len(a.server.events)
	fresh := exists && there.UID == w.slice.UID && there.ResourceVersion == w.slice.ResourceVersion
	if w.action == create && exists || w.action != create && !fresh { // read it again
		if exists {
			a.index.observe(there.DeepCopy())
		} else {
			a.index.lacks(name, a.index.uidOf(name))
		}
		a.queue[name] = true
		a.collect()
		return
	}
	if n := len(w.slice.Endpoints); n > a.index.max && n > len(there.Endpoints) {
		t.Fatalf("slice %s is to be written with %d endpoints; it has %d, and %d are allowed", name, n, len(there.Endpoints), a.index.max)
	}
	switch w.action {
	case create, update:
		o := a.server.put(*w.slice)
		if !lost {
			a.index.observe(o.DeepCopy())
		}
	case remove:
		a.server.drop(name)
		if !lost {
			a.index.gone(name, w.slice.UID)
		}
	}
	if lost {
		a.index.doubt(name)
	}
	a.collect()
	if ignorant { // of what another writer did to the other slice that had the endpoint
		return
	}
	want := func(k key) bool { return a.index.want[k] != nil }
	if v := vanished(before, a.server.all(), want); len(v) > 0 {
		t.Fatalf("a write of slice %s made %v vanish", name, v)
	}
}

// world is a server, the operators on it, and what should be.
type world struct {
	*rand.Rand
	max    int
	server *server
	want   map[key]*entry
	actors []*actor
	names  int

	foreign, alone bool
}

func (w *world) name() string {
	b := []byte("ces-bbbbbbbbb-bbbbb")
	w.names++
	for i, n := len(b)-1, w.names; n > 0 && b[i] != '-'; i, n = i-1, n/len(alphabet) {
		b[i] = alphabet[n%len(alphabet)]
	}
	return string(b)
}

func testEntry(name string, id int64) *entry {
	return &entry{Name: name, IdentityID: id, Networking: &v2.EndpointNetworking{NodeIP: "192.0.2.1", Addressing: []*v2.AddressPair{{IPv4: "10.0.0.1"}}}}
}

func (w *world) set(k key, e *entry) {
	if e == nil {
		delete(w.want, k)
	} else {
		w.want[k] = e
	}
	for _, a := range w.actors {
		a.index.set(k, e)
		a.collect()
	}
}

func (w *world) randomKey() key {
	return key{Namespace: string(rune('a' + w.IntN(3))), Name: fmt.Sprint("p", w.IntN(30))}
}

// byHand changes a slice as a user may and no operator does.
func (w *world) byHand() {
	all := w.server.all()
	if len(all) == 0 {
		return
	}
	s := *all[w.IntN(len(all))].DeepCopy()
	other := all[w.IntN(len(all))].DeepCopy()
	switch w.IntN(7) {
	case 0:
		w.server.drop(s.Name)
		return
	case 1:
		s.Endpoints = s.Endpoints[:w.IntN(len(s.Endpoints)+1)]
	case 2:
		s.Endpoints = append(s.Endpoints, other.Endpoints...)
	case 3:
		s.Name = fmt.Sprint("hand", w.IntN(3))
	case 4:
		s.Namespace = "x"
	case 5:
		for i := range s.Endpoints {
			s.Endpoints[i].IdentityID = 1
		}
	case 6:
		s.Endpoints = append(s.Endpoints, entry{}, *testEntry("never-was", 5))
	}
	w.server.put(s)
}

// converge lets all actors do their work, in random order, until none has any left.
func (w *world) converge(t *testing.T) {
	for n := 0; ; n++ {
		idle := true
		for _, a := range w.actors {
			for a.deliver() {
				idle = false
			}
			for _, name := range slices.Sorted(maps.Keys(a.queue)) {
				idle = false
				a.sync(t, name, false)
			}
		}
		if idle {
			return
		}
		if n > 1000 {
			t.Fatal("operators that write for ever")
		}
	}
}

func (w *world) check(t *testing.T) {
	t.Helper()
	if problem := wrong(w.want, w.server.all(), w.max); problem != "" {
		t.Fatal(problem)
	}
}

// TestIndexProperties has operators, one or two at once, live through random days, and compares
// what comes of it with the oracle. No write of theirs may make an endpoint vanish, however late
// events come; afterwards an operator that starts has nothing to write.
func TestIndexProperties(t *testing.T) {
	t.Parallel()
	rounds := 200
	if testing.Short() {
		rounds = 50
	}
	for seed := range rounds {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			w := &world{Rand: rand.New(rand.NewPCG(uint64(seed), 7)), server: newServer(), want: map[key]*entry{}}
			w.max = 1 + w.IntN(6)
			w.foreign = seed%3 == 1
			w.alone = !w.foreign && seed%5 != 1
			w.actors = []*actor{w.newActor()}
			if seed%5 == 1 {
				w.actors = append(w.actors, w.newActor())
			}
			for range 250 {
				a := w.actors[w.IntN(len(w.actors))]
				switch r := w.IntN(100); {
				case r < 35:
					w.set(w.randomKey(), nil)
					k := w.randomKey()
					w.set(k, testEntry(k.Name, 256+w.Int64N(5)))
				case r < 40:
					w.set(w.randomKey(), nil)
				case r < 60:
					a.deliver()
				case r < 92:
					if names := slices.Sorted(maps.Keys(a.queue)); len(names) > 0 {
						a.sync(t, names[w.IntN(len(names))], w.IntN(8) == 0)
					}
				case r < 96 && w.foreign:
					w.byHand()
				case r < 97: // restarted, perhaps with another limit
					if w.IntN(3) == 0 {
						w.max = 1 + w.IntN(6)
						for i := range w.actors {
							w.actors[i] = w.newActor()
						}
					}
					w.actors[w.IntN(len(w.actors))] = w.newActor()
				}
			}
			w.converge(t)
			w.check(t)
			for range 2 {
				again := w.newActor()
				for name := range again.queue {
					if p := again.index.plan(name); p.action != leave {
						t.Fatalf("an operator that starts would write slice %s, though nothing has changed: %+v", name, p)
					}
				}
			}
		})
	}
}

// TestFill checks that endpoints come one after the other into as few slices as there can be, and
// that bulk costs as few writes.
func TestFill(t *testing.T) {
	t.Parallel()
	w := &world{Rand: rand.New(rand.NewPCG(1, 2)), server: newServer(), want: map[key]*entry{}, max: 100}
	a := w.newActor()
	w.actors = []*actor{a}
	for n := range 2050 {
		k := key{Namespace: string(rune('a' + n%2)), Name: fmt.Sprint("p", n)}
		w.set(k, testEntry(k.Name, 300))
	}
	w.converge(t)
	w.check(t)
	if n := len(w.server.all()); n != 22 || a.writes != n {
		t.Errorf("%d slices in %d writes, want 22 in as many", n, a.writes)
	}
	sizes := func() []int {
		var out []int
		for _, s := range w.server.all() {
			if s.Namespace == "a" {
				out = append(out, len(s.Endpoints))
			}
		}
		slices.Sort(out)
		return out
	}
	if diff := cmp.Diff([]int{25, 100, 100, 100, 100, 100, 100, 100, 100, 100, 100}, sizes()); diff != "" {
		t.Error(diff)
	}
	// Who comes goes where most are, among those with room.
	for n := range 80 { // the first hundred of a are in the first slice
		w.set(key{Namespace: "a", Name: fmt.Sprint("p", 2*n)}, nil)
	}
	w.set(key{Namespace: "a", Name: "new"}, testEntry("new", 300))
	w.converge(t)
	w.check(t)
	if diff := cmp.Diff([]int{20, 26, 100, 100, 100, 100, 100, 100, 100, 100, 100}, sizes()); diff != "" {
		t.Error(diff)
	}
}

// TestOldEvents: what is observed late does not count.
func TestOldEvents(t *testing.T) {
	t.Parallel()
	b := newIndex(10, func() string { return "ces-new" })
	slice := func(uid, version string, names ...string) *v2alpha1.CiliumEndpointSlice {
		s := &v2alpha1.CiliumEndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: "ces-1", UID: types.UID(uid), ResourceVersion: version}, Namespace: "a"}
		for _, n := range names {
			s.Endpoints = append(s.Endpoints, *testEntry(n, 300))
		}
		return s
	}
	b.set(key{Namespace: "a", Name: "p"}, testEntry("p", 300))
	b.observe(slice("u1", "10", "p"))
	b.begin()
	b.observe(slice("u1", "9"))
	if p := b.plan("ces-1"); p.action != leave {
		t.Errorf("an older update counted: %+v", p)
	}
	b.gone("ces-1", "u1")
	b.observe(slice("u1", "11", "p"))
	if p := b.plan("ces-1"); p.action != create {
		t.Errorf("an update of a deleted slice counted: %+v", p)
	}
	b.observe(slice("u2", "20", "p"))
	b.gone("ces-1", "u1")
	if p := b.plan("ces-1"); p.action != leave {
		t.Errorf("the deletion of another slice of the name counted: %+v", p)
	}
}

func TestName(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for range 1000 {
		n := randomName()
		if !sliceName.MatchString(n) || seen[n] {
			t.Fatalf("name %q", n)
		}
		seen[n] = true
	}
}

// TestSame changes every field of an entry there is.
func TestSame(t *testing.T) {
	t.Parallel()
	full := func() *entry {
		return &entry{
			Name: "p", IdentityID: 5, PodUID: "u", ServiceAccount: "s", Encryption: v2.EncryptionSpec{Key: 3},
			NamedPorts: []v2.NamedPort{{Name: "web", Port: 80, Protocol: "TCP"}},
			Networking: &v2.EndpointNetworking{NodeIP: "192.0.2.1", Addressing: []*v2.AddressPair{{IPv4: "10.0.0.1", IPv6: "fd00::1"}}},
		}
	}
	if !same(full(), full()) || same(full(), nil) || !same(nil, nil) {
		t.Error("same is wrong about itself")
	}
	changes := 0
	var change func(path string, v reflect.Value, of *entry)
	change = func(path string, v reflect.Value, of *entry) {
		old := reflect.New(v.Type()).Elem()
		old.Set(v)
		switch v.Kind() {
		case reflect.Struct:
			for i := range v.NumField() {
				change(path+"."+v.Type().Field(i).Name, v.Field(i), of)
			}
			return
		case reflect.Pointer:
			change(path, v.Elem(), of)
			v.SetZero()
		case reflect.Slice:
			change(path, v.Index(0), of)
			v.SetZero()
		case reflect.String:
			v.SetString("other")
		case reflect.Int, reflect.Int64:
			v.SetInt(99)
		default:
			t.Fatalf("%s is of a kind that this test does not know", path)
		}
		changes++
		if same(of, full()) || same(full(), of) {
			t.Errorf("a change of %s is not seen", path)
		}
		v.Set(old)
	}
	e := full()
	change("entry", reflect.ValueOf(e).Elem(), e)
	if changes < 12 || !same(e, full()) {
		t.Errorf("%d changes, %+v", changes, e)
	}
}

// TestOfEndpoint checks which CiliumEndpoints are in slices: none without an identity, "Operator
// changes 6" of CFP-27752.
func TestOfEndpoint(t *testing.T) {
	t.Parallel()
	o := &v2.CiliumEndpoint{ObjectMeta: metav1.ObjectMeta{
		Name: "p", Namespace: "a", OwnerReferences: []metav1.OwnerReference{{Kind: "Machine", UID: "m"}, {Kind: "Pod", UID: "u"}},
	}}
	if ofEndpoint(o) != nil {
		t.Error("an endpoint without anything is to be in a slice")
	}
	o.Status.Networking = &v2.EndpointNetworking{NodeIP: "192.0.2.1", Addressing: []*v2.AddressPair{{IPv4: "10.0.0.1"}}}
	if ofEndpoint(o) != nil {
		t.Error("an endpoint without an identity is to be in a slice")
	}
	o.Status.Identity = &v2.EndpointIdentity{ID: 300, Labels: []string{"k8s:a=b"}}
	o.Status.ServiceAccount, o.Status.Encryption.Key = "robot", 4
	o.Status.NamedPorts = []v2.NamedPort{{Name: "web", Port: 80, Protocol: "TCP"}}
	want := &entry{
		Name: "p", IdentityID: 300, PodUID: "u", ServiceAccount: "robot", Encryption: v2.EncryptionSpec{Key: 4}, NamedPorts: o.Status.NamedPorts,
		Networking: o.Status.Networking,
	}
	if diff := cmp.Diff(want, ofEndpoint(o)); diff != "" {
		t.Error(diff)
	}
	o.Status.Networking = nil
	if ofEndpoint(o) != nil {
		t.Error("an endpoint without an address is to be in a slice")
	}
}

// TestQueue: slices come in the order of their first change, each when its delay is over, those
// with priority first; one that failed comes after pauses that grow, or sooner if it changes.
func TestQueue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newQueue()
		defer q.ShutDown()
		start := time.Now()
		add := func(name string, priority int) {
			q.AddWithOpts(priorityqueue.AddOpts{After: 500 * time.Millisecond, Priority: &priority}, name)
			synctest.Wait()
		}
		take := func(want string, at time.Duration) {
			t.Helper()
			got, _, _ := q.GetWithPriority()
			if now := time.Since(start); got != want || now != at {
				t.Errorf("%q after %s; want %q after %s", got, now, want, at)
			}
		}
		add("b", 0)
		time.Sleep(100 * time.Millisecond)
		add("a", 0)
		time.Sleep(100 * time.Millisecond)
		add("b", 0) // no later than it was
		time.Sleep(100 * time.Millisecond)
		add("fast", urgent)
		take("b", 500*time.Millisecond)
		time.Sleep(310 * time.Millisecond)
		take("fast", 810*time.Millisecond)
		take("a", 810*time.Millisecond)
		for _, name := range []string{"b", "fast", "a"} {
			q.Done(name)
		}
		var pauses []time.Duration
		for range 20 {
			failed := time.Now()
			q.AddRateLimited("a")
			take("a", time.Since(start)+min(firstRetry<<len(pauses), lastRetry))
			pauses = append(pauses, time.Since(failed))
			q.Done("a")
		}
		if pauses[0] != firstRetry || pauses[19] != lastRetry || !slices.IsSorted(pauses) {
			t.Errorf("pauses %v", pauses)
		}
		q.AddRateLimited("a")
		add("a", 0)
		take("a", time.Since(start)+500*time.Millisecond)
		q.Done("a")
	})
}
