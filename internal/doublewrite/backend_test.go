package doublewrite_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/doublewrite"
	"github.com/hawser-net/hawser/internal/k8s"
	"github.com/hawser-net/hawser/internal/k8s/identities"
	"github.com/hawser-net/hawser/internal/storekeys"
	"github.com/hawser-net/hawser/internal/testenv"
	"github.com/hawser-net/hawser/internal/testenv/kubeapi"
	"github.com/hawser-net/hawser/pkg/allocator"
	"github.com/hawser-net/hawser/pkg/allocator/conformance"
	"github.com/hawser-net/hawser/pkg/kvstore"
	"github.com/hawser-net/hawser/pkg/kvstore/etcd"
	"github.com/hawser-net/hawser/pkg/kvstore/kvstoretest"
)

const first, last = 256, 65535

// places are a real etcd and a real API server.
type places struct {
	*testing.T
	etcd   *kvstoretest.Etcd
	server *kubeapi.Server
	store  kvstore.Backend
	client *k8s.Client
	last   allocator.ID
}

func newPlaces(t *testing.T) *places {
	t.Helper()
	p := &places{T: t, etcd: kvstoretest.StartEtcd(t), server: kubeapi.Start(t), last: last}
	p.server.DefineResources()
	p.store = p.open()
	var err error
	if p.client, err = k8s.New(p.server.Config); err != nil {
		t.Fatal(err)
	}
	return p
}

func (p *places) open() kvstore.Backend {
	p.Helper()
	cfg := etcd.Defaults()
	cfg.Endpoints, cfg.QPS, cfg.CheckInterval = []string{p.etcd.Endpoint()}, 0, time.Second
	cfg.LeaseTTL = 25 * time.Second // it asks for its leases every third of that
	store, err := etcd.New(context.Background(), cfg, nil)
	if err != nil {
		p.Fatal(err)
	}
	p.Cleanup(func() { store.Close() })
	return store
}

// Ways to keep identities.
const (
	keysOnly    = "kvstore"
	objectsOnly = "crd"
	readKeys    = "doublewrite-readkvstore"
	readObjects = "doublewrite-readcrd"
)

// backend is the allocator backend of one node, with connections of its own.
func (p *places) backend(name, mode string) allocator.Backend {
	p.Helper()
	keys, objects := p.parts(name)
	switch mode {
	case keysOnly:
		return keys
	case objectsOnly:
		return objects
	}
	return p.both(objects, keys, mode)
}

func (p *places) both(objects doublewrite.Objects, keys doublewrite.Place, mode string) allocator.Backend {
	p.Helper()
	both, err := doublewrite.New(doublewrite.Config{Objects: objects, Keys: keys, ReadObjects: mode == readObjects})
	if err != nil {
		p.Fatal(err)
	}
	return both
}

// parts are the two places as one node writes them.
func (p *places) parts(name string) (*allocator.KVStoreBackend, *identities.Backend) {
	p.Helper()
	keys, err := allocator.NewKVStoreBackend(allocator.KVStoreConfig{
		Store: p.open(), BasePath: storekeys.IdentitiesPrefix, Suffix: name, KeyType: allocator.StringKey(""),
	})
	if err != nil {
		p.Fatal(err)
	}
	client, err := k8s.New(p.server.Config)
	if err != nil {
		p.Fatal(err)
	}
	objects, err := identities.New(identities.Config{Client: client, First: first, Last: p.last, KeyType: allocator.StringKey(""), Node: name, Namespace: "default"})
	if err != nil {
		p.Fatal(err)
	}
	return keys, objects
}

// agent is an allocator as one node runs it.
func (p *places) agent(name, mode string) *allocator.Allocator {
	p.Helper()
	a, err := allocator.NewAllocator(allocator.StringKey(""), p.backend(name, mode), allocator.WithMin(first), allocator.WithMax(p.last),
		allocator.WithMasterKeyProtection(), allocator.WithSyncInterval(time.Second))
	if err != nil {
		p.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	p.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			p.Errorf("%s: %v", name, err)
		}
	})
	if err := a.WaitForInitialSync(p.Context()); err != nil {
		p.Fatal(err)
	}
	return a
}

// ids returns what both places say: the IDs of each set of labels.
func (p *places) ids() (keys, objects map[string][]string) {
	p.Helper()
	keys, objects = map[string][]string{}, map[string][]string{}
	all, err := p.store.List(context.Background(), storekeys.IdentitiesPrefix+"/id/")
	if err != nil {
		p.Fatal(err)
	}
	for _, kv := range all.Pairs {
		keys[string(kv.Value)] = append(keys[string(kv.Value)], strings.TrimPrefix(kv.Key, storekeys.IdentitiesPrefix+"/id/"))
	}
	var list v2.CiliumIdentityList
	if err := p.client.UrgentV2.Get().Resource(v2.ResourceIdentities).Do(context.Background()).Into(&list); err != nil {
		p.Fatal(err)
	}
	for _, o := range list.Items {
		if _, _, quarantined := identities.Quarantined(&o); quarantined {
			continue
		}
		objects[o.SecurityLabels["key"]] = append(objects[o.SecurityLabels["key"]], o.Name)
	}
	return keys, objects
}

// agree waits until both places say the same, one ID for each set: the invariant of every
// scenario.
func (p *places) agree(sets ...string) {
	p.Helper()
	var problem string
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		keys, objects := p.ids()
		problem = cmp.Diff(keys, objects)
		for _, s := range sets {
			if len(keys[s]) != 1 {
				problem += fmt.Sprintf("%s has the IDs %v\n", s, keys[s])
			}
		}
		if problem == "" {
			return
		}
		if time.Now().After(end) {
			p.Fatalf("keys and objects differ (-keys +objects):\n%s", problem)
		}
	}
}

func (p *places) allocate(a *allocator.Allocator, set string) allocator.ID {
	p.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	id, _, err := a.Allocate(ctx, allocator.StringKey(set))
	if err != nil {
		p.Fatalf("%s: %v", set, err)
	}
	return id
}

// TestConformance runs the suite of all allocator backends on a real etcd and a real API server,
// reading the one and the other.
func TestConformance(t *testing.T) {
	p := newPlaces(t)
	for _, mode := range []string{readKeys, readObjects} {
		t.Run(mode, func(t *testing.T) {
			h := conformance.Harness{
				IDs:      allocator.Range{Min: first, Max: last},
				OwnOrder: true,
				Open: func(t *testing.T, node string) allocator.Backend {
					t.Helper()
					of := *p
					of.T = t
					return of.backend(node, mode)
				},
			}
			if mode == readKeys {
				h.LoseReferences = func(t *testing.T) { p.etcd.ExpireLeases(t) }
			}
			conformance.Run(t, h)
		})
	}
}

func TestDoubleWrite(t *testing.T) {
	testenv.CheckLeaks(t)
	p := newPlaces(t)
	for _, s := range []struct {
		name  string
		modes []string
	}{
		{"from keys to both", []string{keysOnly, readKeys, keysOnly, readKeys}},
		{"reading either", []string{readKeys, readObjects, readKeys, readObjects}},
		{"from both to objects", []string{readObjects, objectsOnly, readObjects, objectsOnly}},
	} {
		t.Run(s.name, func(t *testing.T) { race(&places{t, p.etcd, p.server, p.store, p.client, last}, s.modes) })
	}
	t.Run("other labels have the ID", func(t *testing.T) { taken(&places{t, p.etcd, p.server, p.store, p.client, last}) })
	t.Run("one place has it", func(t *testing.T) { oneHasIt(&places{t, p.etcd, p.server, p.store, p.client, last}) })
	t.Run("one place is away", func(t *testing.T) { away(&places{t, p.etcd, p.server, p.store, p.client, last}) })
}

// race has agents of all modes that meet during a rolling restart go for the same labels at once.
func race(p *places, modes []string) {
	var agents []*allocator.Allocator
	for i, m := range modes {
		agents = append(agents, p.agent(fmt.Sprint("192.0.2.", i+1), m))
	}
	const sets = 40
	got := make([][]allocator.ID, len(agents))
	var names []string
	for i := range sets {
		names = append(names, fmt.Sprintf("%s-%d", strings.ReplaceAll(p.Name(), "/", "-"), i))
	}
	var wg sync.WaitGroup
	for i, a := range agents {
		got[i] = make([]allocator.ID, sets)
		for _, n := range rand.Perm(sets) {
			wg.Go(func() { got[i][n] = p.allocate(a, names[n]) })
		}
	}
	wg.Wait()
	p.agree(names...)
	keys, _ := p.ids()
	for n, name := range names {
		for i, mode := range modes {
			// One that writes to one place only, and observed another ID, follows.
			if id := got[i][n]; id.String() != keys[name][0] && (mode == readKeys || mode == readObjects) {
				p.Errorf("%s is %s for agent %d (%s), and %s in the store", name, id, i, mode, keys[name][0])
			}
		}
	}
}

// firstOf returns the ID that all writers of objects try first for a set.
func (p *places) firstOf(set string) allocator.ID {
	p.Helper()
	ns, err := p.client.Urgent.CoreV1().Namespaces().Get(p.Context(), identities.SaltNamespace, metav1.GetOptions{})
	if err != nil {
		p.Fatal(err)
	}
	for id := range identities.Sequence(string(ns.UID), set, first, last) {
		return id
	}
	return 0
}

// putKeys writes an identity into the store as a node does that knows nothing of objects.
func (p *places) putKeys(id allocator.ID, set string) {
	p.Helper()
	for key, value := range map[string]string{"/id/" + id.String(): set, "/value/" + set + "/198.51.100.1": id.String()} {
		if err := kvstore.Put(context.Background(), p.store, storekeys.IdentitiesPrefix+key, []byte(value), kvstore.Permanent); err != nil {
			p.Fatal(err)
		}
	}
}

func (p *places) putObject(id allocator.ID, set string) {
	p.Helper()
	o := &v2.CiliumIdentity{ObjectMeta: metav1.ObjectMeta{Name: id.String()}, SecurityLabels: map[string]string{"key": set}}
	if err := p.client.UrgentV2.Post().Resource(v2.ResourceIdentities).Body(o).Do(context.Background()).Error(); err != nil {
		p.Fatal(err)
	}
}

func taken(p *places) {
	for i, mode := range []string{readKeys, readObjects} {
		set, other := "wants-"+strconv.Itoa(i), "has-"+strconv.Itoa(i)
		p.putKeys(p.firstOf(set), other)
		if id := p.allocate(p.agent(fmt.Sprint("192.0.2.1", i), mode), set); id == p.firstOf(set) {
			p.Errorf("%s: %s is the ID of other labels", mode, id)
		}
		p.agree(set, other)
	}
}

func oneHasIt(p *places) {
	for i, mode := range []string{readKeys, readObjects} {
		a := p.agent(fmt.Sprint("192.0.2.2", i), mode)
		inKeys, inObjects := fmt.Sprint("in-keys-", i), fmt.Sprint("in-objects-", i)
		p.putKeys(allocator.ID(5000+i), inKeys)
		p.putObject(allocator.ID(6000+i), inObjects)
		time.Sleep(200 * time.Millisecond)
		if id := p.allocate(a, inKeys); id != allocator.ID(5000+i) {
			p.Errorf("%s: %s has %s", mode, inKeys, id)
		}
		if id := p.allocate(a, inObjects); id != allocator.ID(6000+i) {
			p.Errorf("%s: %s has %s", mode, inObjects, id)
		}
		p.agree(inKeys, inObjects)
	}
}

// away stops the place that is not read: labels that have an ID go on, new ones wait, and
// nothing is in one place only afterwards.
func away(p *places) {
	for _, tt := range []struct {
		mode        string
		stop, start func()
	}{{readKeys, p.server.Stop, p.server.Start}, {readObjects, p.etcd.Stop, p.etcd.Start}} {
		a, b := p.agent("192.0.2.31", tt.mode), p.agent("192.0.2.32", tt.mode)
		known, fresh := "known-"+tt.mode, "fresh-"+tt.mode
		id := p.allocate(a, known)
		for end := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) { // until the other one has observed it
			if got, err := b.Get(p.Context(), allocator.StringKey(known)); err == nil && got == id {
				break
			}
			if time.Now().After(end) {
				p.Fatal("the other agent does not observe an ID")
			}
		}
		tt.stop()
		if got := p.allocate(b, known); got != id {
			p.Errorf("%s: %s is %s, and was %s", tt.mode, known, got, id)
		}
		ctx, cancel := context.WithTimeout(p.Context(), 2*time.Second)
		if got, _, err := a.Allocate(ctx, allocator.StringKey(fresh)); err == nil {
			p.Errorf("%s: an ID was made that is in one place only: %s", tt.mode, got)
		}
		cancel()
		// Nor does a use that ends wait for it: that place is told when it is back.
		ctx, cancel = context.WithTimeout(p.Context(), 20*time.Second)
		began := time.Now()
		_, _ = b.Release(ctx, allocator.StringKey(known))
		if took := time.Since(began); took > 8*time.Second {
			p.Errorf("%s: the end of a use took %s", tt.mode, took)
		}
		cancel()
		tt.start()
		p.allocate(b, known)
		p.allocate(b, fresh)
		p.agree(known, fresh)
	}
}

// collect has an unreferenced key of the store collected: its ID is in quarantine then.
func (p *places) collect(id allocator.ID) {
	p.Helper()
	gc, err := allocator.NewKVStoreBackend(allocator.KVStoreConfig{
		Store: p.store, BasePath: storekeys.IdentitiesPrefix, KeyType: allocator.StringKey(""), Quarantine: time.Hour,
	})
	if err != nil {
		p.Fatal(err)
	}
	var seen map[allocator.ID]int64
	for range 2 {
		if seen, _, err = gc.RunGC(p.Context(), nil, allocator.Range{Min: id, Max: id}, seen); err != nil {
			p.Fatal(err)
		}
	}
	if !p.restsInStore(id) {
		p.Fatalf("%s was not collected", id)
	}
}

func (p *places) restsInStore(id allocator.ID) bool {
	p.Helper()
	l, err := p.store.List(context.Background(), storekeys.IdentitiesPrefix+"/quarantine/"+id.String())
	if err != nil {
		p.Fatal(err)
	}
	return len(l.Pairs) > 0
}

// putKey writes an unreferenced ID into the store.
func (p *places) putKey(id allocator.ID, set string) {
	p.Helper()
	if err := kvstore.Put(context.Background(), p.store, storekeys.IdentitiesPrefix+"/id/"+id.String(), []byte(set), kvstore.Permanent); err != nil {
		p.Fatal(err)
	}
}

// putQuarantined writes the object of an ID in quarantine.
func (p *places) putQuarantined(id allocator.ID, set string) {
	p.Helper()
	o := &v2.CiliumIdentity{ObjectMeta: metav1.ObjectMeta{Name: id.String()}, SecurityLabels: map[string]string{"key": set}}
	identities.Quarantine(o, set, time.Now())
	if err := p.client.UrgentV2.Post().Resource(v2.ResourceIdentities).Body(o).Do(context.Background()).Error(); err != nil {
		p.Fatal(err)
	}
}

func (p *places) restsAsObject(id allocator.ID) bool {
	p.Helper()
	o := &v2.CiliumIdentity{}
	if err := p.client.UrgentV2.Get().Resource(v2.ResourceIdentities).Name(id.String()).Do(context.Background()).Into(o); err != nil {
		p.Fatal(err)
	}
	_, _, ok := identities.Quarantined(o)
	return ok
}

// source is an allocator whose cache is behind, and that would pick these IDs.
type source struct {
	known allocator.ID
	picks []allocator.ID
}

func (s *source) Known(string) allocator.ID           { return s.known }
func (s *source) Taken(allocator.ID)                  {}
func (s *source) Quarantined(allocator.ID, time.Time) {}
func (s *source) Pick() (allocator.ID, error) {
	if len(s.picks) == 0 {
		return allocator.NoID, allocator.ErrExhausted
	}
	id := s.picks[0]
	s.picks = s.picks[1:]
	return id, nil
}

// discard observes a backend.
type discard struct{ listed chan struct{} }

func (d discard) OnListDone(int64)           { close(d.listed) }
func (discard) OnUpsert(allocator.Mapping)   {}
func (discard) OnDelete(allocator.ID, int64) {}
func (discard) OnReferencesLost([]string)    {}

// follow has a backend know both places.
func (p *places) follow(b allocator.Backend) {
	p.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	d, done := discard{make(chan struct{})}, make(chan struct{})
	go func() {
		defer close(done)
		_ = b.ListAndWatch(ctx, d)
	}()
	p.Cleanup(func() {
		cancel()
		<-done
	})
	<-d.listed
}

// TestQuarantineOfEitherPlace: an ID that is in quarantine in one place is given to no other labels
// in both, and its record stays; its own labels get it back.
func TestQuarantineOfEitherPlace(t *testing.T) {
	testenv.CheckLeaks(t)
	shared := newPlaces(t)
	for i, mode := range []string{readKeys, readObjects} {
		scenario := func(name string, f func(p *places, set, other string)) {
			t.Run(mode+"/"+name, func(t *testing.T) {
				text := strings.ReplaceAll(name, " ", "-") + strconv.Itoa(i)
				f(&places{t, shared.etcd, shared.server, shared.store, shared.client, last}, "new-"+text, "old-"+text)
			})
		}
		node := fmt.Sprint("192.0.2.4", i)
		scenario("collected in the store", func(p *places, set, other string) {
			id := p.firstOf(set)
			p.putKey(id, other)
			p.collect(id)
			if got := p.allocate(p.agent(node, mode), set); got == id || !p.restsInStore(id) {
				p.Errorf("%s has %s; %s is in quarantine: %t", set, got, id, p.restsInStore(id))
			}
			p.agreeOn(set)
		})
		scenario("its own labels", func(p *places, set, _ string) {
			id := p.firstOf(set)
			p.putKey(id, set)
			p.collect(id)
			if got := p.allocate(p.agent(node, mode), set); got != id || p.restsInStore(id) {
				p.Errorf("%s has %s; %s is in quarantine: %t", set, got, id, p.restsInStore(id))
			}
			p.agreeOn(set)
		})
		// As an agent leaves it that was frozen, and crashed between the two writes.
		scenario("collected in the store and an object", func(p *places, set, other string) {
			id := p.firstOf(set)
			p.putKey(id, other)
			p.collect(id)
			p.putObject(id, set)
			got := p.allocate(p.agent(node, mode), set)
			if (got == id) != (mode == readObjects) || !p.restsInStore(id) {
				p.Errorf("%s has %s; %s is in quarantine: %t", set, got, id, p.restsInStore(id))
			}
		})
		scenario("an object in quarantine", func(p *places, set, other string) {
			id := p.firstOf(set)
			p.putQuarantined(id, other)
			b := p.backend(node, mode)
			p.follow(b)
			// The cache is behind: what it knows has been collected.
			a, err := b.Acquire(p.Context(), allocator.StringKey(set), &source{known: 65000, picks: []allocator.ID{id, id, id, id}})
			if err != nil || a.ID == id || a.ID == allocator.NoID || !p.restsAsObject(id) {
				p.Errorf("%s has %+v, %v", set, a, err)
			}
			p.agreeOn(set)
		})
		scenario("a key of other labels that has no object", func(p *places, set, other string) {
			p.putObject(allocator.ID(7000+i), other) // in the other place they have another one
			p.putKeys(p.firstOf(set), other)
			if got := p.allocate(p.agent(node, mode), set); got == p.firstOf(set) {
				p.Errorf("%s has %s", set, got)
			}
			p.agreeOn(set)
		})
		scenario("a reference is restored", func(p *places, set, other string) {
			id := p.firstOf(set)
			if mode == readKeys {
				p.putQuarantined(id, other)
			} else {
				p.putKey(id, other)
				p.collect(id)
			}
			b := p.backend(node, mode)
			p.follow(b)
			var c *allocator.ConflictError
			if err := b.Restore(p.Context(), allocator.Reference{ID: id, Key: allocator.StringKey(set)}); !errors.As(err, &c) {
				p.Errorf("restored: %v", err)
			}
			if keys, objects := p.ids(); len(keys[set])+len(objects[set]) > 0 {
				p.Errorf("%s has %v, %v", set, keys[set], objects[set])
			}
		})
	}
}

// agreeOn checks that a set has one ID, the same in both places.
func (p *places) agreeOn(set string) {
	p.Helper()
	keys, objects := p.ids()
	if diff := cmp.Diff(keys[set], objects[set]); diff != "" || len(keys[set]) != 1 {
		p.Errorf("%s (-keys +objects): %s", set, diff)
	}
}

// frozenKeys are the keys of a node that stands still before it writes an ID to the store, and
// frozenObjects the objects of one that does after it has asked the store: once, and others go on
// meanwhile.
type frozenKeys struct {
	doublewrite.Place
	meanwhile func()
}

func (f *frozenKeys) Acquire(ctx context.Context, key allocator.AllocatorKey, ids allocator.IDSource) (allocator.Acquired, error) {
	return f.Place.Acquire(ctx, key, picking{ids, f.meanwhile})
}

// picking calls then after each pick.
type picking struct {
	allocator.IDSource
	then func()
}

func (p picking) Pick() (allocator.ID, error) {
	id, err := p.IDSource.Pick()
	if err == nil {
		p.then()
	}
	return id, err
}

type frozenObjects struct {
	doublewrite.Objects
	meanwhile func()
}

func (f *frozenObjects) AcquireExcept(ctx context.Context, key allocator.AllocatorKey, ids allocator.IDSource,
	elsewhere func(context.Context, allocator.ID) (allocator.Occupant, bool, error),
) (allocator.Acquired, error) {
	return f.Objects.AcquireExcept(ctx, key, ids, func(ctx context.Context, id allocator.ID) (allocator.Occupant, bool, error) {
		o, ok, err := elsewhere(ctx, id)
		if err == nil && !ok {
			f.meanwhile()
		}
		return o, ok, err
	})
}

// TestFrozenWriter: a node that writes both places stands still between two of its steps for so
// long that others collect what it has made, or have the ID that it was about to make. What it does
// then gives no labels an ID that other labels have, or had a moment ago, in the place that is
// read.
func TestFrozenWriter(t *testing.T) {
	testenv.CheckLeaks(t)
	shared := newPlaces(t)
	for i, tt := range []struct {
		name, mode string
		asking     bool // after it has asked the store, else before it writes there
		meanwhile  func(p *places, id allocator.ID, other string)
	}{
		{"nodes that write the store have the ID", readKeys, true, func(p *places, id allocator.ID, other string) { p.putKeys(id, other) }},
		{"the same, and the object is made", readKeys, false, func(p *places, id allocator.ID, other string) { p.putKeys(id, other) }},
		{"nodes that write the store had the ID", readKeys, true, func(p *places, id allocator.ID, other string) {
			p.putKey(id, other)
			p.collect(id)
		}},
		{"nodes that write objects have the ID", readObjects, true, func(p *places, id allocator.ID, other string) { p.putObject(id, other) }},
		{"the same, and its object was collected", readObjects, false, func(p *places, id allocator.ID, other string) {
			p.deleteObject(id)
			p.putObject(id, other)
		}},
		{"its object was collected, and so was that of others", readObjects, false, func(p *places, id allocator.ID, other string) {
			p.deleteObject(id)
			p.putQuarantined(id, other)
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := &places{t, shared.etcd, shared.server, shared.store, shared.client, last}
			set, other := fmt.Sprint("thaws-", i), fmt.Sprint("meanwhile-", i)
			id := p.firstOf(set)
			meanwhile := sync.OnceFunc(func() { tt.meanwhile(p, id, other) })
			keys, objects := p.parts(fmt.Sprint("192.0.2.5", i))
			b := p.both(objects, &frozenKeys{keys, meanwhile}, tt.mode)
			if tt.asking {
				b = p.both(&frozenObjects{objects, meanwhile}, keys, tt.mode)
			}
			p.follow(b)
			got, err := b.Acquire(t.Context(), allocator.StringKey(set), &source{picks: []allocator.ID{id}})
			if err != nil || got.ID == id || got.ID == allocator.NoID {
				t.Fatalf("%s has %+v, %v", set, got, err)
			}
			p.agreeOn(set)
			inKeys, inObjects := p.ids()
			if slices.Contains(inKeys[set], id.String()) || slices.Contains(inObjects[set], id.String()) {
				t.Errorf("%s has %s, too: %v, %v", set, id, inKeys[set], inObjects[set])
			}
		})
	}
}

func (p *places) deleteObject(id allocator.ID) {
	p.Helper()
	if err := p.client.UrgentV2.Delete().Resource(v2.ResourceIdentities).Name(id.String()).Do(context.Background()).Error(); err != nil {
		p.Fatal(err)
	}
}

// TestQuarantineIsTheLastResort: if no ID is free in both places, one in quarantine is given to
// other labels, and none that has labels in either place.
func TestQuarantineIsTheLastResort(t *testing.T) {
	testenv.CheckLeaks(t)
	for _, mode := range []string{readKeys, readObjects} {
		t.Run(mode, func(t *testing.T) {
			p := newPlaces(t)
			p.last = first + 3
			p.putKeys(first, "in-keys")
			p.putObject(first+1, "in-objects")
			p.putKey(first+2, "collected")
			p.collect(first + 2)
			p.putQuarantined(first+3, "quarantined")
			p.putKeys(first+3, "quarantined") // it is in use in the store
			a := p.agent("192.0.2.1", mode)
			if got := p.allocate(a, "new"); got != first+2 || p.restsInStore(got) {
				t.Errorf("new has %s", got)
			}
			p.agreeOn("new")
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			if got, _, err := a.Allocate(ctx, allocator.StringKey("another")); err == nil {
				t.Errorf("another has %s", got)
			}
		})
	}
}

// TestUnreadableKeys: IDs in the store whose keys cannot be read are passed over by labels that
// look for an ID.
func TestUnreadableKeys(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{readKeys, readObjects} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			p := newPlaces(t)
			p.last = first + 15
			for id := first; id < int(p.last); id++ {
				if err := kvstore.Put(t.Context(), p.store, fmt.Sprint(storekeys.IdentitiesPrefix, "/id/", id), nil, kvstore.Permanent); err != nil {
					t.Fatal(err)
				}
			}
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			id, _, err := p.agent("192.0.2.1", mode).Allocate(ctx, allocator.StringKey("a"))
			if err != nil || id != p.last {
				t.Errorf("ID %s, %v; want %s, the only one that is free", id, err, p.last)
			}
		})
	}
}
