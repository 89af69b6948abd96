package doublewrite_test

import (
	"context"
	"fmt"
	"math/rand/v2"
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
}

func newPlaces(t *testing.T) *places {
	t.Helper()
	p := &places{T: t, etcd: kvstoretest.StartEtcd(t), server: kubeapi.Start(t)}
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
	objects, err := identities.New(identities.Config{Client: client, First: first, Last: last, KeyType: allocator.StringKey(""), Node: name, Namespace: "default"})
	if err != nil {
		p.Fatal(err)
	}
	switch mode {
	case keysOnly:
		return keys
	case objectsOnly:
		return objects
	}
	both, err := doublewrite.New(doublewrite.Config{Objects: objects, Keys: keys, ReadObjects: mode == readObjects})
	if err != nil {
		p.Fatal(err)
	}
	return both
}

// agent is an allocator as one node runs it.
func (p *places) agent(name, mode string) *allocator.Allocator {
	p.Helper()
	a, err := allocator.NewAllocator(allocator.StringKey(""), p.backend(name, mode), allocator.WithMin(first), allocator.WithMax(last),
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

// IDs returns what both places say: the IDs of each set of labels.
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
		t.Run(s.name, func(t *testing.T) { race(&places{t, p.etcd, p.server, p.store, p.client}, s.modes) })
	}
	t.Run("other labels have the ID", func(t *testing.T) { taken(&places{t, p.etcd, p.server, p.store, p.client}) })
	t.Run("one place has it", func(t *testing.T) { oneHasIt(&places{t, p.etcd, p.server, p.store, p.client}) })
	t.Run("one place is away", func(t *testing.T) { away(&places{t, p.etcd, p.server, p.store, p.client}) })
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
		tt.start()
		p.allocate(b, fresh)
		p.agree(known, fresh)
	}
}
