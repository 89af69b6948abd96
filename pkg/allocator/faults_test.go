package allocator_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hawser-net/hawser/pkg/allocator"
	"github.com/hawser-net/hawser/pkg/kvstore"
)

// backend returns a backend on a new connection.
func backend(t *testing.T, mem *kvstore.Memory, suffix string) (*allocator.KVStoreBackend, *kvstore.MemoryClient) {
	t.Helper()
	store := mem.Client()
	t.Cleanup(func() { store.Close() })
	be, err := allocator.NewKVStoreBackend(allocator.KVStoreConfig{Store: store, BasePath: base, Suffix: suffix, KeyType: allocator.StringKey("")})
	if err != nil {
		t.Fatal(err)
	}
	return be, store
}

// While another writer holds the lock of a key, no first reference to it appears; its choice is
// followed.
func TestForeignLockIsHonoured(t *testing.T) {
	t.Parallel()
	mem := kvstore.NewMemory()
	a := newNode(t, mem, "192.0.2.1")
	other := mem.Client()
	defer other.Close()
	lock := base + "/locks/key/694d"
	if err := kvstore.Put(t.Context(), other, lock, nil, kvstore.Leased); err != nil {
		t.Fatal(err)
	}
	got := make(chan allocator.ID, 1)
	go func() {
		id, _, err := a.Allocate(t.Context(), allocator.StringKey("key"))
		if err != nil {
			t.Error(err)
		}
		got <- id
	}()
	// Several attempts later nothing has been written.
	before := a.store.Calls()
	eventually(t, "the allocator tries and waits", func() bool { return a.store.Calls() > before+3 })
	if l, err := other.List(t.Context(), base+"/value/"); err != nil || len(l.Pairs) != 0 {
		t.Fatalf("references while the lock is held: %+v, %v", l.Pairs, err)
	}
	// The holder does as older allocators do: the ID first, then its reference, then it lets
	// go.
	for _, kv := range [][2]string{{base + "/id/777", "key"}, {base + "/value/key/192.0.2.9", "777"}} {
		if err := kvstore.Put(t.Context(), other, kv[0], []byte(kv[1]), kvstore.Permanent); err != nil {
			t.Fatal(err)
		}
	}
	if err := kvstore.Delete(t.Context(), other, lock); err != nil {
		t.Fatal(err)
	}
	if id := <-got; id != 777 {
		t.Errorf("the lock's holder made 777, the node uses %d", id)
	}
	// A lock on a key that has an ID in force keeps no node waiting.
	if err := kvstore.Put(t.Context(), other, lock, nil, kvstore.Leased); err != nil {
		t.Fatal(err)
	}
	if id := newNode(t, mem, "192.0.2.2").allocate(t, "key"); id != 777 {
		t.Errorf("ID %d with the lock held", id)
	}
}

// An answer that is lost must neither make a second ID nor leave an unwanted reference.
func TestLostAnswers(t *testing.T) {
	t.Parallel()
	mem := kvstore.NewMemory()
	a := newNode(t, mem, "192.0.2.1")
	lost := errors.New("the answer was lost")
	a.store.SetFault(func(_ context.Context, call kvstore.MemoryCall) (before, after error) {
		if call.Op == "txn" && rand.IntN(3) == 0 {
			return nil, lost
		}
		return nil, nil
	})
	ids := map[allocator.ID]string{}
	for i := range 40 {
		key := fmt.Sprint("key-", i)
		id := a.allocate(t, key)
		if other, ok := ids[id]; ok {
			t.Errorf("%q and %q share %d", key, other, id)
		}
		ids[id] = key
	}
	l, err := mem.Client().List(t.Context(), base+"/id/")
	if err != nil || len(l.Pairs) != len(ids) {
		t.Fatalf("%d IDs in the store for %d keys, %v", len(l.Pairs), len(ids), err)
	}
	// Allocations that are given up in the middle leave nothing behind.
	a.store.SetFault(func(_ context.Context, call kvstore.MemoryCall) (before, after error) { return nil, lost })
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	if _, _, err := a.Allocate(ctx, allocator.StringKey("given up")); err == nil {
		t.Fatal("allocated although no answer came")
	}
	a.store.SetFault(nil)
	eventually(t, "the reference of the failed attempt is gone", func() bool {
		l, err := a.store.List(t.Context(), base+"/value/given up/")
		return err == nil && len(l.Pairs) == 0
	})
	// A release that does not come through is made up for later.
	a.store.SetFault(func(context.Context, kvstore.MemoryCall) (before, after error) { return lost, nil })
	if last, err := a.Release(t.Context(), allocator.StringKey("key-0")); !last || !errors.Is(err, lost) {
		t.Errorf("release without the store: %v, %v", last, err)
	}
	a.store.SetFault(nil)
	eventually(t, "the reference is taken back", func() bool {
		l, err := a.store.List(t.Context(), base+"/value/key-0/")
		return err == nil && len(l.Pairs) == 0
	})
}

// lateStore keeps the transactions that delete something and hides their results,
// until the test says otherwise.
type lateStore struct {
	kvstore.Backend
	mu   sync.Mutex
	hold bool
	late []kvstore.Txn
}

func (s *lateStore) Txn(ctx context.Context, txn kvstore.Txn) (kvstore.TxnResult, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.hold && len(txn.Then) == 1 && txn.Then[0].Kind == kvstore.OpDelete {
		s.late = append(s.late, txn)
		return kvstore.TxnResult{}, errors.New("no answer came")
	}
	return s.Backend.Txn(ctx, txn)
}

// A request to take a reference back that reaches the store when the key is in use again must not
// take that use's reference.
func TestLateRelease(t *testing.T) {
	t.Parallel()
	mem := kvstore.NewMemory()
	store := &lateStore{Backend: mem.Client()}
	t.Cleanup(func() { store.Close() })
	const path = base + "/value/key/192.0.2.1"
	for name, fresh := range map[string]bool{"written by this agent": false, "written by the agent before": true} {
		be, err := allocator.NewKVStoreBackend(allocator.KVStoreConfig{Store: store, BasePath: base, Suffix: "192.0.2.1", KeyType: allocator.StringKey("")})
		if err != nil {
			t.Fatal(err)
		}
		ref := allocator.Reference{ID: 300, Key: allocator.StringKey("key")}
		if err := be.Restore(t.Context(), ref); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		releaser := be
		if fresh {
			if releaser, err = allocator.NewKVStoreBackend(allocator.KVStoreConfig{Store: store, BasePath: base, Suffix: "192.0.2.1", KeyType: allocator.StringKey("")}); err != nil {
				t.Fatal(err)
			}
		}
		store.hold = true
		if err := releaser.Release(t.Context(), allocator.NoID, ref.Key); err == nil {
			t.Fatalf("%s: released without an answer", name)
		}
		store.hold = false
		if err := be.Restore(t.Context(), ref); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for _, txn := range store.late {
			if _, err := store.Backend.Txn(t.Context(), txn); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
		if _, err := store.Get(t.Context(), path); err != nil {
			t.Errorf("%s: a late request took the reference of a later use: %v", name, err)
		}
		if err := be.Release(t.Context(), allocator.NoID, ref.Key); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := store.Get(t.Context(), path); !errors.Is(err, kvstore.ErrNotFound) {
			t.Errorf("%s: the reference is still there: %v", name, err)
		}
	}
}

// A node whose watch is behind does not know that a key has an ID without references. It must
// not return a second one to any caller.
func TestStaleWatchMakesNoSecondID(t *testing.T) {
	t.Parallel()
	mem := kvstore.NewMemory()
	a := newNode(t, mem, "192.0.2.1")
	// The second node's watch is broken, and its listings fail, until the test says otherwise; its
	// transactions work.
	b := newNode(t, mem, "192.0.2.2")
	var stalled atomic.Bool
	stalled.Store(true)
	b.store.SetFault(func(_ context.Context, call kvstore.MemoryCall) (before, after error) {
		if call.Op == "list" && stalled.Load() {
			return errors.New("no listing now"), nil
		}
		return nil, nil
	})
	b.store.BreakWatches()
	id := a.allocate(t, "key")
	a.release(t, "key")
	mem.Compact()
	b.store.BreakWatches()
	got := make(chan allocator.ID, 1)
	go func() {
		id, _, err := b.Allocate(t.Context(), allocator.StringKey("key"))
		if err != nil {
			t.Error(err)
		}
		got <- id
	}()
	time.Sleep(20 * time.Millisecond) // either order must end well; this makes the bad one likely
	stalled.Store(false)
	b.store.BreakWatches()
	if second := <-got; second != id {
		t.Errorf("the key had the ID %d, and then %d", id, second)
	}
	eventually(t, "one ID is left", func() bool {
		l, err := a.store.List(t.Context(), base+"/id/")
		return err == nil && len(l.Pairs) == 1
	})
}

// With 99 of 100 IDs taken, many nodes still find the rest, each once.
func TestNearlyFull(t *testing.T) {
	t.Parallel()
	mem := kvstore.NewMemory()
	const size, free = 10000, 100
	fill := mem.Client()
	defer fill.Close()
	for from := 1; from <= size-free; from += 100 {
		var txn kvstore.Txn
		for i := from; i < from+100; i++ {
			txn.Then = append(txn.Then, kvstore.PutOp(fmt.Sprintf("%s/id/%d", base, 1<<16|i), []byte(fmt.Sprint("old-", i)), kvstore.Permanent))
		}
		if _, err := fill.Txn(t.Context(), txn); err != nil {
			t.Fatal(err)
		}
	}
	opts := []allocator.AllocatorOption{allocator.WithMin(1), allocator.WithMax(size), allocator.WithPrefixMask(1 << 16)}
	var mu sync.Mutex
	seen := map[allocator.ID]string{}
	var full atomic.Int32
	var wg sync.WaitGroup
	for n := range 4 {
		a := newNode(t, mem, fmt.Sprintf("192.0.2.%d", n), opts...)
		wg.Go(func() {
			for i := range free/4 + 1 {
				key := fmt.Sprintf("new-%d-%d", n, i)
				id, _, err := a.Allocate(t.Context(), allocator.StringKey(key))
				if errors.Is(err, allocator.ErrExhausted) {
					if !strings.Contains(err.Error(), "65537") || !strings.Contains(err.Error(), "75536") {
						t.Errorf("the error does not name the range: %v", err)
					}
					full.Add(1)
					continue
				}
				if err != nil {
					t.Errorf("%s: %v", key, err)
					continue
				}
				mu.Lock()
				if other, ok := seen[id]; ok || id>>16 != 1 || id&0xffff > size {
					t.Errorf("%s got %d, which is %q's or out of range", key, id, other)
				}
				seen[id] = key
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if len(seen) != free || full.Load() != 4 {
		t.Errorf("%d IDs were found, want %d; %d calls found the range full, want 4", len(seen), free, full.Load())
	}
}

// Tens of thousands of dead IDs are collected in the second round, and none of those in use.
func TestCollectMany(t *testing.T) {
	t.Parallel()
	mem := kvstore.NewMemory()
	const total, live = 6500, 500
	fill := mem.Client()
	defer fill.Close()
	for from := 0; from < total; from += 50 {
		var txn kvstore.Txn
		for i := from; i < from+50; i++ {
			key := fmt.Sprintf("k8s:app=%d;", i)
			txn.Then = append(txn.Then, kvstore.PutOp(fmt.Sprintf("%s/id/%d", base, 256+i), []byte(key), kvstore.Permanent))
			if i%(total/live) == 0 {
				txn.Then = append(txn.Then, kvstore.PutOp(fmt.Sprintf("%s/value/%s/192.0.2.7", base, key), []byte(fmt.Sprint(256+i)), kvstore.Leased))
			}
		}
		if _, err := fill.Txn(t.Context(), txn); err != nil {
			t.Fatal(err)
		}
	}
	be, _ := backend(t, mem, "")
	gc, err := allocator.NewAllocatorForGC(be, allocator.WithMin(256), allocator.WithMax(65535))
	if err != nil {
		t.Fatal(err)
	}
	dead, stats, err := gc.RunGC(t.Context(), nil, nil)
	if err != nil || stats.Alive != live || stats.Dead != total-live {
		t.Fatalf("first round: %+v, %v", stats, err)
	}
	// One comes into use between the rounds, and one is written again.
	var back int
	for id := range dead {
		key := fmt.Sprintf("k8s:app=%d;", id-256)
		if back++; back == 1 {
			err = kvstore.Put(t.Context(), fill, fmt.Sprintf("%s/value/%s/192.0.2.8", base, key), []byte(id.String()), kvstore.Leased)
		} else {
			err = kvstore.Put(t.Context(), fill, fmt.Sprintf("%s/id/%s", base, id), []byte(key), kvstore.Permanent)
		}
		if err != nil {
			t.Fatal(err)
		}
		if back == 2 {
			break
		}
	}
	// A restart in between forgets the first round: it must not collect early.
	if _, stats, err := gc.RunGC(t.Context(), nil, nil); err != nil || stats.Deleted != 0 {
		t.Fatalf("a first round after a restart: %+v, %v", stats, err)
	}
	if _, stats, err = gc.RunGC(t.Context(), nil, dead); err != nil || stats.Deleted != total-live-2 || stats.Alive != live+1 || stats.Dead != 1 {
		t.Fatalf("second round: %+v, %v", stats, err)
	}
	l, err := fill.List(t.Context(), base+"/id/")
	if err != nil || len(l.Pairs) != live+2 {
		t.Errorf("%d IDs are left, want %d, %v", len(l.Pairs), live+2, err)
	}
}

// A lock that does not move between two rounds goes, a moving one stays; only the oldest key of a
// lock counts.
func TestLockCollection(t *testing.T) {
	t.Parallel()
	mem := kvstore.NewMemory()
	be, store := backend(t, mem, "")
	for _, k := range []string{"a/1", "a/2", "b/1"} {
		if err := kvstore.Put(t.Context(), store, base+"/locks/"+k, nil, kvstore.Permanent); err != nil {
			t.Fatal(err)
		}
	}
	gc, err := allocator.NewAllocatorForGC(be)
	if err != nil {
		t.Fatal(err)
	}
	held, deleted, err := gc.RunLocksGC(t.Context(), nil)
	if err != nil || len(held) != 2 || deleted != 0 {
		t.Fatalf("held locks: %v, %d deleted, %v", held, deleted, err)
	}
	if err := kvstore.Put(t.Context(), store, base+"/locks/b/1", nil, kvstore.Permanent); err != nil {
		t.Fatal(err)
	}
	if held, deleted, err = gc.RunLocksGC(t.Context(), held); err != nil || deleted != 1 {
		t.Fatalf("held locks: %v, %d deleted, %v", held, deleted, err)
	}
	l, err := store.List(t.Context(), base+"/locks/")
	if err != nil || len(l.Pairs) != 2 || l.Pairs[0].Key != base+"/locks/a/2" || l.Pairs[1].Key != base+"/locks/b/1" {
		t.Errorf("locks left: %+v, %v", l.Pairs, err)
	}
}

func TestRemoteCache(t *testing.T) {
	t.Parallel()
	here, there := kvstore.NewMemory(), kvstore.NewMemory()
	a := newNode(t, here, "192.0.2.1")
	far := newNode(t, there, "198.51.100.1", allocator.WithMin(1), allocator.WithMax(0xffff), allocator.WithPrefixMask(2<<16))
	id := far.allocate(t, "far")
	stray := newNode(t, there, "198.51.100.2").allocate(t, "stray") // not of the remote cluster's range
	be, _ := backend(t, there, "")
	accept := func(id allocator.ID, _ allocator.AllocatorKey) error {
		if id>>16 != 2 {
			return errors.New("not of this cluster")
		}
		return nil
	}
	rc, err := a.WatchRemoteKVStore("far", be, accept)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.WatchRemoteKVStore("far", be, nil); err == nil {
		t.Error("two remote caches of one name")
	}
	if err := rc.WaitForSync(t.Context()); err != nil {
		t.Fatal(err)
	}
	if key, err := a.GetByID(t.Context(), id); err != nil || key.GetKey() != "far" {
		t.Errorf("remote ID %d: %v, %v", id, key, err)
	}
	if _, err := a.GetByID(t.Context(), stray); !errors.Is(err, allocator.ErrIdentityNonExistent) {
		t.Errorf("a refused ID: %v", err)
	}
	all := map[allocator.ID]string{}
	a.ForeachCache(func(id allocator.ID, key allocator.AllocatorKey) { all[id] = key.GetKey() })
	if len(all) != 1 || all[id] != "far" {
		t.Errorf("the caches have %v, want the remote ID %d only", all, id)
	}
	// A remote key does not answer for a local one.
	if got := a.allocate(t, "far"); got == id {
		t.Errorf("the local key has the remote ID %d", got)
	}
	var kinds []string
	observe := func(n int) {
		for len(kinds) < n {
			ev := <-a.events
			if ev.Remote == "far" && (ev.Kind == allocator.EventSync || ev.ID == id) {
				kinds = append(kinds, ev.Kind.String())
			}
		}
	}
	observe(2)
	rc.Close()
	rc.Close()
	if _, err := a.GetByID(t.Context(), id); !errors.Is(err, allocator.ErrIdentityNonExistent) {
		t.Errorf("an ID of a closed cache: %v", err)
	}
	observe(3)
	if got := strings.Join(kinds, " "); got != "upsert sync delete" {
		t.Errorf("events of the remote cache: %s", got)
	}
}

func TestConstructorsRefuse(t *testing.T) {
	t.Parallel()
	be, store := backend(t, kvstore.NewMemory(), "192.0.2.1")
	for name, opts := range map[string][]allocator.AllocatorOption{
		"min of 0":       {allocator.WithMin(0)},
		"max below min":  {allocator.WithMin(10), allocator.WithMax(9)},
		"mask in range":  {allocator.WithMax(1 << 17), allocator.WithPrefixMask(1 << 16)},
		"no sync":        {allocator.WithSyncInterval(0)},
		"negative limit": {allocator.WithTimeout(-1)},
	} {
		if _, err := allocator.NewAllocator(allocator.StringKey(""), be, opts...); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if _, err := allocator.NewAllocator(nil, be); err == nil {
		t.Error("no key type: accepted")
	}
	good := allocator.KVStoreConfig{Store: store, BasePath: base, Suffix: "n", KeyType: allocator.StringKey("")}
	for name, spoil := range map[string]func(*allocator.KVStoreConfig){
		"no store":        func(c *allocator.KVStoreConfig) { c.Store = nil },
		"no base":         func(c *allocator.KVStoreConfig) { c.BasePath = "/" },
		"slash in suffix": func(c *allocator.KVStoreConfig) { c.Suffix = "a/b" },
		"no type":         func(c *allocator.KVStoreConfig) { c.KeyType = nil },
	} {
		bad := good
		spoil(&bad)
		if _, err := allocator.NewKVStoreBackend(bad); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
