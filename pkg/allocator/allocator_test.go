package allocator_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/hawser-net/hawser/pkg/allocator"
	"github.com/hawser-net/hawser/pkg/kvstore"
	"github.com/hawser-net/hawser/pkg/kvstore/kvstoretest/leaktest"
)

func TestMain(m *testing.M) {
	leaktest.VerifyTestMain(m, goleak.IgnoreAnyFunction("go.etcd.io/etcd/client/pkg/v3/fileutil.purgeFile"))
}

const base = "test/identities"

// node is one node's allocator with its own connection to the shared store.
type node struct {
	*allocator.Allocator
	store  *kvstore.MemoryClient
	events allocator.AllocatorEventChan
}

// newNode starts an allocator; the test's end stops it.
func newNode(t *testing.T, mem *kvstore.Memory, name string, opts ...allocator.AllocatorOption) *node {
	t.Helper()
	return newNodeAt(t, mem.Client(), name, opts...)
}

func newNodeAt(t *testing.T, store *kvstore.MemoryClient, name string, opts ...allocator.AllocatorOption) *node {
	t.Helper()
	be, err := allocator.NewKVStoreBackend(allocator.KVStoreConfig{Store: store, BasePath: base, Suffix: name, KeyType: allocator.StringKey("")})
	if err != nil {
		t.Fatal(err)
	}
	events := make(allocator.AllocatorEventChan, 1<<16)
	opts = append([]allocator.AllocatorOption{
		allocator.WithMin(256), allocator.WithMax(65535), allocator.WithEvents(events), allocator.WithMasterKeyProtection(), allocator.WithLogger(slog.New(slog.DiscardHandler)),
	}, opts...)
	a, err := allocator.NewAllocator(allocator.StringKey(""), be, opts...)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
		store.Close()
	})
	if err := a.WaitForInitialSync(t.Context()); err != nil {
		t.Fatal(err)
	}
	return &node{a, store, events}
}

func (n *node) allocate(t *testing.T, key string) allocator.ID {
	t.Helper()
	id, _, err := n.Allocate(t.Context(), allocator.StringKey(key))
	if err != nil {
		t.Fatalf("allocate %q: %v", key, err)
	}
	return id
}

func (n *node) release(t *testing.T, key string) {
	t.Helper()
	if _, err := n.Release(t.Context(), allocator.StringKey(key)); err != nil {
		t.Fatalf("release %q: %v", key, err)
	}
}

// eventually waits for a condition that a watch or a repair makes true.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(time.Minute) // machines are loaded
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("never happened: %s", what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// Many nodes race for the same keys: one ID for each key, one key for each ID, whatever
// the interleaving, and the form in which each of them writes.
func TestRaceForKeys(t *testing.T) {
	t.Parallel()
	for name, layouts := range map[string][]kvstore.Layout{
		"etcd":                 {kvstore.LayoutEtcd},
		"Consul":               {kvstore.LayoutConsul},
		"both forms at Consul": {kvstore.LayoutConsul, kvstore.LayoutConsulPlain},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			raceForKeys(t, layouts)
		})
	}
}

func raceForKeys(t *testing.T, layouts []kvstore.Layout) {
	mem := kvstore.NewMemory()
	const nodes, keys = 16, 60
	var mu sync.Mutex
	byKey := map[string]map[allocator.ID]bool{}
	owner := map[allocator.ID]string{}
	made := map[string]int{}
	var wg sync.WaitGroup
	for n := range nodes {
		a := newNodeAt(t, mem.ClientAs(layouts[n%len(layouts)]), fmt.Sprintf("192.0.2.%d", n))
		wg.Go(func() {
			for _, k := range rand.Perm(keys) {
				key := fmt.Sprintf("k8s:app=%d;", k)
				id, isNew, err := a.Allocate(t.Context(), allocator.StringKey(key))
				if err != nil {
					t.Errorf("%s: %v", key, err)
					return
				}
				mu.Lock()
				if byKey[key] == nil {
					byKey[key] = map[allocator.ID]bool{}
				}
				byKey[key][id] = true
				if o, ok := owner[id]; ok && o != key {
					t.Errorf("ID %d belongs to %q and %q", id, o, key)
				}
				owner[id] = key
				if isNew {
					made[key]++
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	for key, ids := range byKey {
		if len(ids) != 1 {
			t.Errorf("%s has the IDs %v", key, ids)
		}
		if made[key] != 1 {
			t.Errorf("%s was made %d times", key, made[key])
		}
	}
}

// A key in use costs nothing, any other key one transaction.
func TestRoundTrips(t *testing.T) {
	t.Parallel()
	mem := kvstore.NewMemory()
	a, b := newNode(t, mem, "192.0.2.1"), newNode(t, mem, "192.0.2.2")
	cost := func(n *node, key string) int {
		before := n.store.Calls()
		n.allocate(t, key)
		return n.store.Calls() - before
	}
	if got := cost(a, "new"); got != 1 {
		t.Errorf("a new key cost %d round trips, want 1", got)
	}
	if got := cost(a, "new"); got != 0 {
		t.Errorf("a key in use cost %d round trips, want 0", got)
	}
	eventually(t, "the other node knows the ID", func() (known bool) {
		b.ForeachCache(func(_ allocator.ID, key allocator.AllocatorKey) { known = known || key.GetKey() == "new" })
		return known
	})
	if got := cost(b, "new"); got != 1 {
		t.Errorf("a key known from the watch cost %d round trips, want 1", got)
	}
}

// A released ID that is not collected yet is used again for its key.
func TestReleasedIDComesBack(t *testing.T) {
	t.Parallel()
	mem := kvstore.NewMemory()
	a := newNode(t, mem, "192.0.2.1")
	id := a.allocate(t, "key")
	a.release(t, "key")
	if got, err := a.GetNoCache(t.Context(), allocator.StringKey("key")); err != nil || got != allocator.NoID {
		t.Errorf("an unused key has the ID %d, %v", got, err)
	}
	b := newNode(t, mem, "192.0.2.2")
	if got := b.allocate(t, "key"); got != id {
		t.Errorf("the key came back as %d, was %d", got, id)
	}
	if _, err := a.Release(t.Context(), allocator.StringKey("key")); !errors.Is(err, allocator.ErrNotInUse) {
		t.Errorf("releasing twice: %v", err)
	}
}

// One path of a key can lie inside another's: label values may hold slashes.
func TestKeysInsideKeys(t *testing.T) {
	t.Parallel()
	mem := kvstore.NewMemory()
	a := newNode(t, mem, "192.0.2.1")
	ids := map[allocator.ID]string{}
	for _, key := range []string{"k8s:a=b/c;", "k8s:a=b", "k8s:a=b/c;/192.0.2.1", "k8s:a=b/c"} {
		id := a.allocate(t, key)
		if other, ok := ids[id]; ok {
			t.Errorf("%q and %q have the same ID", key, other)
		}
		ids[id] = key
	}
	for id, key := range ids {
		if got, err := a.GetNoCache(t.Context(), allocator.StringKey(key)); err != nil || got != id {
			t.Errorf("%q is %d, %v in the store; want %d", key, got, err, id)
		}
	}
}

func TestExhausted(t *testing.T) {
	t.Parallel()
	mem := kvstore.NewMemory()
	a := newNode(t, mem, "192.0.2.1", allocator.WithMin(1), allocator.WithMax(100))
	seen := map[allocator.ID]bool{}
	for i := range 100 {
		id := a.allocate(t, fmt.Sprint("key-", i))
		if id < 1 || id > 100 || seen[id] {
			t.Fatalf("key %d got %d", i, id)
		}
		seen[id] = true
	}
	_, _, err := a.Allocate(t.Context(), allocator.StringKey("one too many"))
	if !errors.Is(err, allocator.ErrExhausted) {
		t.Fatalf("allocating from a full range: %v", err)
	}
	// Two rounds of collection make room again; what is in use stays.
	for i := range 10 {
		a.release(t, fmt.Sprint("key-", i))
	}
	dead, stats, err := a.RunGC(t.Context(), nil, nil)
	if err != nil || stats.Alive != 90 || stats.Dead != 10 || stats.Deleted != 0 {
		t.Fatalf("first round: %+v, %v", stats, err)
	}
	if _, stats, err = a.RunGC(t.Context(), nil, dead); err != nil || stats.Deleted != 10 || stats.Alive != 90 {
		t.Fatalf("second round: %+v, %v", stats, err)
	}
	eventually(t, "the IDs are known to be free", func() bool {
		_, _, err := a.Allocate(t.Context(), allocator.StringKey("one too many"))
		return err == nil
	})
}

// Collection never takes an ID that came back into use between its rounds.
func TestCollectionSparesWhatCameBack(t *testing.T) {
	t.Parallel()
	mem := kvstore.NewMemory()
	a := newNode(t, mem, "192.0.2.1")
	id := a.allocate(t, "key")
	a.release(t, "key")
	dead, _, err := a.RunGC(t.Context(), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := a.allocate(t, "key"); got != id {
		t.Fatalf("the key came back as %d, was %d", got, id)
	}
	if _, stats, err := a.RunGC(t.Context(), nil, dead); err != nil || stats.Deleted != 0 || stats.Alive != 1 {
		t.Errorf("the second round: %+v, %v", stats, err)
	}
}

// What another client deletes while it is in use is written again, with the same ID.
func TestProtection(t *testing.T) {
	t.Parallel()
	mem := kvstore.NewMemory()
	a := newNode(t, mem, "192.0.2.1")
	id := a.allocate(t, "key")
	other := mem.Client()
	defer other.Close()
	if err := kvstore.DeletePrefix(t.Context(), other, base+"/"); err != nil { // all of it
		t.Fatal(err)
	}
	eventually(t, "ID and reference are back", func() bool {
		kv, err := other.Get(t.Context(), fmt.Sprintf("%s/id/%d", base, id))
		ref, rerr := other.Get(t.Context(), base+"/value/key/192.0.2.1")
		return err == nil && string(kv.Value) == "key" && rerr == nil && string(ref.Value) == id.String()
	})
}

// A lost lease takes the references with it; they are written again.
func TestLostLease(t *testing.T) {
	t.Parallel()
	mem := kvstore.NewMemory()
	a := newNode(t, mem, "192.0.2.1")
	id := a.allocate(t, "key")
	a.store.ExpireLeases()
	eventually(t, "the reference is back", func() bool {
		got, err := a.GetNoCache(t.Context(), allocator.StringKey("key"))
		return err == nil && got == id
	})
}

// If the ID was given to another key while this node's reference was lost, the node follows.
func TestRenumbered(t *testing.T) {
	t.Parallel()
	mem := kvstore.NewMemory()
	a := newNode(t, mem, "192.0.2.1")
	id := a.allocate(t, "key")
	other := mem.Client()
	defer other.Close()
	txn := kvstore.Txn{Then: []kvstore.Op{
		kvstore.DeleteOp(base + "/value/key/192.0.2.1"), kvstore.PutOp(fmt.Sprintf("%s/id/%d", base, id), []byte("foreign"), kvstore.Permanent),
		kvstore.PutOp(base+"/value/foreign/192.0.2.9", []byte(id.String()), kvstore.Permanent), // or it would be taken for an edit, and put back
	}}
	if _, err := other.Txn(t.Context(), txn); err != nil {
		t.Fatal(err)
	}
	for ev := range a.events {
		if ev.Kind != allocator.EventRenumbered {
			continue
		}
		if ev.OldID != id || ev.ID == id || ev.Key.GetKey() != "key" {
			t.Errorf("renumbered: %+v", ev)
		}
		break
	}
	if got := a.allocate(t, "key"); got == id {
		t.Errorf("the key still has the foreign ID %d", got)
	}
}
