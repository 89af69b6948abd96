package allocator_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hawser-net/hawser/pkg/allocator"
	"github.com/hawser-net/hawser/pkg/kvstore"
)

// The tests here are of names that users of other allocators look for.

// TestGetIf: an ID is read under conditions on the store, as that a lock is still held.
func TestGetIf(t *testing.T) {
	t.Parallel()
	mem := kvstore.NewMemory()
	want := newNode(t, mem, "n1").allocate(t, "web")
	b, store := backend(t, mem, "n2")
	if err := kvstore.Put(t.Context(), store, "lock", []byte("mine"), kvstore.Leased); err != nil {
		t.Fatal(err)
	}
	lock, err := store.Get(t.Context(), "lock")
	if err != nil {
		t.Fatal(err)
	}
	held := kvstore.ModRevisionIs("lock", lock.ModRevision)
	if id, err := b.GetIf(t.Context(), allocator.StringKey("web"), held, kvstore.Absent("other")); err != nil || id != want {
		t.Errorf("while the lock is held: %v, %v; want %v", id, err, want)
	}
	if id, err := b.GetIf(t.Context(), allocator.StringKey("unused"), held); err != nil || id != allocator.NoID {
		t.Errorf("a key without an ID: %v, %v", id, err)
	}
	if err := kvstore.Delete(t.Context(), store, "lock"); err != nil {
		t.Fatal(err)
	}
	if id, err := b.GetIf(t.Context(), allocator.StringKey("web"), held); !errors.Is(err, allocator.ErrConditionFailed) || id != allocator.NoID || !strings.Contains(err.Error(), "web") {
		t.Errorf("after the lock is lost: %v, %v", id, err)
	}
}

// TestDelete: Delete ends an allocator as Close does; what it wrote stays.
func TestDelete(t *testing.T) {
	t.Parallel()
	mem := kvstore.NewMemory()
	n := newNode(t, mem, "n1")
	id := n.allocate(t, "web")
	n.Delete()
	n.Delete()
	if _, _, err := n.Allocate(t.Context(), allocator.StringKey("db")); !errors.Is(err, allocator.ErrClosed) {
		t.Errorf("an allocation afterwards: %v", err)
	}
	b, _ := backend(t, mem, "n2")
	if got, err := b.Get(t.Context(), allocator.StringKey("web")); err != nil || got != id {
		t.Errorf("the ID afterwards: %v, %v; want %v", got, err, id)
	}
}

// TestDeleteAllKeys: everything of the allocator goes from the store, and nothing else.
func TestDeleteAllKeys(t *testing.T) {
	t.Parallel()
	mem := kvstore.NewMemory()
	one := newNode(t, mem, "n1")
	one.allocate(t, "web")
	one.allocate(t, "db")
	_, store := backend(t, mem, "n2")
	if err := kvstore.Put(t.Context(), store, base+"-of-others/id/1", []byte("x"), kvstore.Permanent); err != nil {
		t.Fatal(err)
	}
	one.Delete() // it would write again what it uses
	if err := one.DeleteAllKeys(t.Context()); err != nil {
		t.Fatal(err)
	}
	list, err := store.List(t.Context(), "")
	if err != nil || len(list.Pairs) != 1 || list.Pairs[0].Key != base+"-of-others/id/1" {
		t.Errorf("left are %+v, %v", list.Pairs, err)
	}
}

// TestGetEvents returns the channel that was given, and WithoutGC changes nothing.
func TestGetEvents(t *testing.T) {
	t.Parallel()
	n := newNode(t, kvstore.NewMemory(), "n1", allocator.WithoutGC())
	if n.GetEvents() != n.events {
		t.Error("another channel than the one that was given")
	}
	id := n.allocate(t, "web")
	for {
		select {
		case ev := <-n.GetEvents():
			if ev.ID == id && ev.Kind == allocator.EventUpsert {
				return
			}
		case <-time.After(20 * time.Second):
			t.Fatal("no event of an ID")
		}
	}
}

// TestWithBackend: the option counts, not the argument, which may be missing.
func TestWithBackend(t *testing.T) {
	t.Parallel()
	here, there := kvstore.NewMemory(), kvstore.NewMemory()
	argument, _ := backend(t, here, "n1")
	option, _ := backend(t, there, "n1")
	for name, given := range map[string]allocator.Backend{"none": nil, "another": argument} {
		a, err := allocator.NewAllocator(allocator.StringKey(""), given, allocator.WithBackend(option))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		ended := make(chan error, 1)
		go func() { ended <- a.Run(t.Context()) }()
		id, _, err := a.Allocate(t.Context(), allocator.StringKey(name))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for place, want := range map[allocator.Backend]allocator.ID{option: id, argument: allocator.NoID} {
			if got, err := place.Get(t.Context(), allocator.StringKey(name)); err != nil || got != want {
				t.Errorf("%s: %s, %v, want %s", name, got, err, want)
			}
		}
		a.Close()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	gc, err := allocator.NewAllocatorForGC(nil, allocator.WithBackend(option))
	if err != nil {
		t.Fatal(err)
	}
	if _, stats, err := gc.RunGC(t.Context(), nil, nil); err != nil || stats.Alive != 2 {
		t.Errorf("collection: %+v, %v", stats, err)
	}
	if _, err := allocator.NewAllocator(allocator.StringKey(""), nil); err == nil {
		t.Error("an allocator without a backend")
	}
	if _, err := allocator.NewAllocatorForGC(nil); err == nil {
		t.Error("a collector without a backend")
	}
}

// TestWaitForInitialSyncEnds: with an error, at the end of its context or of the allocator.
func TestWaitForInitialSyncEnds(t *testing.T) {
	t.Parallel()
	b, _ := backend(t, kvstore.NewMemory(), "n1")
	a, err := allocator.NewAllocator(allocator.StringKey(""), b)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := a.WaitForInitialSync(ctx); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, allocator.ErrNotRunning) {
		t.Errorf("at the end of its context: %v", err)
	}
	if _, _, err := a.Allocate(ctx, allocator.StringKey("web")); !errors.Is(err, allocator.ErrNotRunning) {
		t.Errorf("Allocate without Run: %v", err)
	}
	began := time.Now()
	if _, _, err := a.Allocate(context.Background(), allocator.StringKey("web")); !errors.Is(err, allocator.ErrNotRunning) {
		t.Errorf("Allocate without Run, and without an end: %v after %v", err, time.Since(began))
	}
	a.Close()
	if err := a.WaitForInitialSync(t.Context()); !errors.Is(err, allocator.ErrClosed) {
		t.Errorf("at the end of the allocator: %v", err)
	}
}

// TestTimeout: WithTimeout bounds an Allocate whose context has no end, and no other.
func TestTimeout(t *testing.T) {
	t.Parallel()
	n := newNode(t, kvstore.NewMemory(), "n1", allocator.WithTimeout(50*time.Millisecond))
	n.store.SetFault(func(ctx context.Context, call kvstore.MemoryCall) (before, after error) {
		if call.Op == "txn" {
			<-ctx.Done()
			return ctx.Err(), nil
		}
		return nil, nil
	})
	began := time.Now()
	if _, _, err := n.Allocate(context.Background(), allocator.StringKey("web")); err == nil || time.Since(began) > 20*time.Second {
		t.Errorf("without an answer of the store: %v after %v", err, time.Since(began))
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	began = time.Now()
	if _, _, err := n.Allocate(ctx, allocator.StringKey("db")); err == nil || time.Since(began) < 900*time.Millisecond {
		t.Errorf("with an end of its own: %v after %v", err, time.Since(began))
	}
	n.store.SetFault(nil)
}

// TestLookups: which call asks the caches and which the store, and what each says of what is not
// there.
func TestLookups(t *testing.T) {
	t.Parallel()
	mem := kvstore.NewMemory()
	web, db, none := allocator.StringKey("web"), allocator.StringKey("db"), allocator.StringKey("none")
	far := newNode(t, mem, "n1")
	wantDB := far.allocate(t, "db")
	n := newNode(t, mem, "n2") // returns after WaitForInitialSync
	wantWeb := n.allocate(t, "web")
	eventually(t, "the watch delivers the own ID", func() bool { return n.IsAllocated(wantWeb) })
	all := map[allocator.ID]string{}
	n.ForeachCache(func(id allocator.ID, key allocator.AllocatorKey) { all[id] = key.GetKey() })
	if len(all) != 2 || all[wantWeb] != "web" || all[wantDB] != "db" {
		t.Errorf("the cache holds %v, want web as %d and db as %d", all, wantWeb, wantDB)
	}
	// Only the calls that are made for a lookup count: the maintenance makes calls of its own.
	type lookedUp struct{}
	var calls atomic.Int32
	n.store.SetFault(func(ctx context.Context, _ kvstore.MemoryCall) (before, after error) {
		if ctx.Value(lookedUp{}) != nil {
			calls.Add(1)
		}
		return nil, nil
	})
	type lookup struct {
		name  string
		call  func(context.Context) (any, error)
		want  any
		err   error
		calls int32 // of the store
	}
	get := func(key allocator.AllocatorKey) func(context.Context) (any, error) {
		return func(ctx context.Context) (any, error) { return n.Get(ctx, key) }
	}
	noCache := func(key allocator.AllocatorKey) func(context.Context) (any, error) {
		return func(ctx context.Context) (any, error) { return n.GetNoCache(ctx, key) }
	}
	byID := func(id allocator.ID) func(context.Context) (any, error) {
		return func(ctx context.Context) (any, error) {
			key, err := n.GetByID(ctx, id)
			if key == nil {
				return nil, err
			}
			return key, err
		}
	}
	for _, l := range []lookup{
		{"Get of a key in use", get(web), wantWeb, nil, 0},
		{"Get of a key in the cache", get(db), wantDB, nil, 0},
		{"Get of no key", get(none), allocator.NoID, nil, 1},
		{"GetNoCache of a key in use", noCache(web), wantWeb, nil, 1},
		{"GetNoCache of a key in the cache", noCache(db), wantDB, nil, 1},
		{"GetNoCache of no key", noCache(none), allocator.NoID, nil, 1},
		{"GetByID of an ID in the cache", byID(wantDB), db, nil, 0},
		{"GetByID of no ID", byID(1), nil, allocator.ErrIdentityNonExistent, 1},
	} {
		calls.Store(0)
		got, err := l.call(context.WithValue(t.Context(), lookedUp{}, true))
		if got != l.want || !errors.Is(err, l.err) {
			t.Errorf("%s: %v, %v; want %v, %v", l.name, got, err, l.want, l.err)
		}
		if n := calls.Load(); n != l.calls {
			t.Errorf("%s: %d calls of the store, want %d", l.name, n, l.calls)
		}
	}
	// An ID that the watch has not delivered yet is looked up in the store.
	unwatched, _ := backend(t, mem, "n3")
	a, err := allocator.NewAllocator(allocator.StringKey(""), unwatched)
	if err != nil {
		t.Fatal(err)
	}
	if key, err := a.GetByID(t.Context(), wantDB); err != nil || key != allocator.AllocatorKey(db) {
		t.Errorf("GetByID before anything was observed: %v, %v", key, err)
	}
	if id, err := a.Get(t.Context(), db); err != nil || id != wantDB {
		t.Errorf("Get before anything was observed: %v, %v", id, err)
	}
}

// TestUses: Allocate says whether it made the ID, Release whether it ended the last use.
func TestUses(t *testing.T) {
	t.Parallel()
	mem := kvstore.NewMemory()
	one, two := newNode(t, mem, "n1"), newNode(t, mem, "n2")
	web := allocator.StringKey("web")
	var first allocator.ID
	for i, use := range []struct {
		n     *node
		isNew bool
	}{{one, true}, {one, false}, {two, false}} {
		id, isNew, err := use.n.Allocate(t.Context(), web)
		if err != nil || isNew != use.isNew || first != allocator.NoID && id != first {
			t.Errorf("use %d: %v, new %v, %v", i, id, isNew, err)
		}
		first = id
	}
	for i, last := range []bool{false, true} {
		if got, err := one.Release(t.Context(), web); err != nil || got != last {
			t.Errorf("release %d: the last one %v, %v", i, got, err)
		}
	}
	if _, err := one.Release(t.Context(), web); !errors.Is(err, allocator.ErrNotInUse) {
		t.Errorf("one release too many: %v", err)
	}
	if id, err := one.GetNoCache(t.Context(), web); err != nil || id != first {
		t.Errorf("while another node uses it: %v, %v; want %v", id, err, first)
	}
}

// TestNothingCollectsByItself: with WithoutGC or without, an unused ID stays until
// RunGC.
func TestNothingCollectsByItself(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string][]allocator.AllocatorOption{"as it is": nil, "WithoutGC": {allocator.WithoutGC()}} {
		mem := kvstore.NewMemory()
		n := newNode(t, mem, "n1", append(opts, allocator.WithSyncInterval(5*time.Millisecond))...)
		n.allocate(t, "busy") // or a comparison has nothing to ask
		id := n.allocate(t, "web")
		n.release(t, "web")
		before := n.store.Calls()
		eventually(t, name+": it has compared many times", func() bool { return n.store.Calls() > before+20 })
		other := mem.Client()
		defer other.Close()
		if got := inStore(t, other, base+"/id/"+id.String()); got != "web" {
			t.Errorf("%s: the ID of web is %q", name, got)
		}
		dead, _, err := n.RunGC(t.Context(), nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, stats, err := n.RunGC(t.Context(), nil, dead); err != nil || stats.Deleted != 1 || stats.Alive != 1 {
			t.Errorf("%s: the second round of RunGC: %+v, %v", name, stats, err)
		}
	}
}
