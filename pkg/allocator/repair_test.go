package allocator_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hawser-net/hawser/pkg/allocator"
	"github.com/hawser-net/hawser/pkg/kvstore"
)

// hooked is a backend that lets a test act between the store's answer and the allocator's next
// step.
type hooked struct {
	*allocator.KVStoreBackend
	beforeAcquire, afterAcquire, afterRestore func()
}

func (h *hooked) Acquire(ctx context.Context, key allocator.AllocatorKey, ids allocator.IDSource) (allocator.Acquired, error) {
	call(h.beforeAcquire)
	defer call(h.afterAcquire)
	return h.KVStoreBackend.Acquire(ctx, key, ids)
}

func (h *hooked) Restore(ctx context.Context, ref allocator.Reference) error {
	defer call(h.afterRestore)
	return h.KVStoreBackend.Restore(ctx, ref)
}

func call(f func()) {
	if f != nil {
		f()
	}
}

// once returns a function that runs f at its first call.
func once(f func()) func() {
	var done atomic.Bool
	return func() {
		if !done.Swap(true) {
			f()
		}
	}
}

// newHooked starts an allocator on a backend with hooks, which set is called to fill in before
// anything runs.
func newHooked(t *testing.T, mem *kvstore.Memory, name string, set func(h *hooked, store *kvstore.MemoryClient), opts ...allocator.AllocatorOption) *node {
	t.Helper()
	be, store := backend(t, mem, name)
	h := &hooked{KVStoreBackend: be}
	set(h, store)
	events := make(allocator.AllocatorEventChan, 1<<10)
	opts = append([]allocator.AllocatorOption{
		allocator.WithMin(256), allocator.WithMax(65535), allocator.WithEvents(events), allocator.WithMasterKeyProtection(),
		allocator.WithLogger(slog.New(slog.DiscardHandler)),
	}, opts...)
	a, err := allocator.NewAllocator(allocator.StringKey(""), h, opts...)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- a.Run(context.Background()) }()
	t.Cleanup(func() {
		a.Close()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	if err := a.WaitForInitialSync(t.Context()); err != nil {
		t.Fatal(err)
	}
	return &node{a, store, events}
}

func inStore(t *testing.T, store kvstore.Backend, key string) string {
	t.Helper()
	kv, err := store.Get(t.Context(), key)
	if errors.Is(err, kvstore.ErrNotFound) {
		return ""
	}
	if err != nil {
		t.Fatal(err)
	}
	return string(kv.Value)
}

func put(t *testing.T, store kvstore.Backend, pairs ...string) {
	t.Helper()
	var txn kvstore.Txn
	for i := 0; i < len(pairs); i += 2 {
		txn.Then = append(txn.Then, kvstore.PutOp(base+pairs[i], []byte(pairs[i+1]), kvstore.Permanent))
	}
	if _, err := store.Txn(t.Context(), txn); err != nil {
		t.Fatal(err)
	}
}

// A lease that is lost while a repair is under way has its effect after the repair: the change must
// not be wiped out with the old fault.
func TestLeaseLostDuringRepair(t *testing.T) {
	t.Parallel()
	mem := kvstore.NewMemory()
	a := newHooked(t, mem, "192.0.2.1", func(h *hooked, store *kvstore.MemoryClient) { h.afterRestore = once(store.ExpireLeases) })
	id := a.allocate(t, "key")
	a.store.ExpireLeases()
	eventually(t, "the reference is back although the lease was lost twice", func() bool {
		return inStore(t, a.store, base+"/value/key/192.0.2.1") == id.String()
	})
}

// A lease that is lost between the store's answer and the end of Allocate takes a reference that
// was not recorded yet.
func TestLeaseLostDuringAllocate(t *testing.T) {
	t.Parallel()
	mem := kvstore.NewMemory()
	a := newHooked(t, mem, "192.0.2.1", func(h *hooked, store *kvstore.MemoryClient) { h.afterAcquire = once(store.ExpireLeases) })
	id := a.allocate(t, "key")
	eventually(t, "the reference is written again", func() bool {
		return inStore(t, a.store, base+"/value/key/192.0.2.1") == id.String()
	})
}

// Between the loss of an ID and the new one no caller gets either: the old one is not in force,
// the new one is not certain.
func TestNoEventsWhileRenumbering(t *testing.T) {
	t.Parallel()
	mem := kvstore.NewMemory()
	reached, goOn := make(chan struct{}), make(chan struct{})
	var armed atomic.Bool
	a := newHooked(t, mem, "192.0.2.1", func(h *hooked, _ *kvstore.MemoryClient) {
		stop := once(func() { close(reached); <-goOn })
		h.beforeAcquire = func() {
			if armed.Load() {
				stop()
			}
		}
	})
	id := a.allocate(t, "key")
	armed.Store(true)
	other := mem.Client()
	defer other.Close()
	txn := kvstore.Txn{Then: []kvstore.Op{
		kvstore.DeleteOp(base + "/value/key/192.0.2.1"), kvstore.DeleteOp(fmt.Sprintf("%s/id/%d", base, id)),
		kvstore.PutOp(base+"/id/9", []byte("key"), kvstore.Permanent), kvstore.PutOp(base+"/value/key/192.0.2.9", []byte("9"), kvstore.Permanent),
	}}
	if _, err := other.Txn(t.Context(), txn); err != nil {
		t.Fatal(err)
	}
	<-reached
	if got, err := a.Get(t.Context(), allocator.StringKey("key")); got == id {
		t.Errorf("Get returns %d, which is not in force any more, %v", got, err)
	}
	short, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if got, _, err := a.Allocate(short, allocator.StringKey("key")); err == nil {
		t.Errorf("Allocate returns %d in the middle of a change", got)
	}
	close(goOn)
	for ev := range a.events {
		if ev.Kind == allocator.EventRenumbered {
			if ev.OldID != id || ev.ID == id {
				t.Errorf("renumbered: %+v", ev)
			}
			break
		}
	}
}

// References to a younger ID go if their writers see the older one. Until then a node that
// knows both waits instead of keeping the younger one alive.
func TestYoungerIDIsReleased(t *testing.T) {
	t.Parallel()
	mem := kvstore.NewMemory()
	other := mem.Client()
	defer other.Close()
	put(t, other, "/id/300", "key")
	put(t, other, "/id/400", "key", "/value/key/192.0.2.9", "400")
	a := newNode(t, mem, "192.0.2.1")
	var txns atomic.Int32
	a.store.SetFault(func(_ context.Context, call kvstore.MemoryCall) (before, after error) {
		if call.Op == "txn" && txns.Add(1) == 3 {
			return kvstore.Delete(t.Context(), other, base+"/value/key/192.0.2.9"), nil
		}
		return nil, nil
	})
	if id := a.allocate(t, "key"); id != 300 {
		t.Errorf("the key is %d, want the oldest ID, 300", id)
	}
}

// A younger ID that stays in use is the one in force, and everybody joins it.
func TestYoungerIDInUseStays(t *testing.T) {
	t.Parallel()
	mem := kvstore.NewMemory()
	other := mem.Client()
	defer other.Close()
	put(t, other, "/id/300", "key")
	put(t, other, "/id/400", "key", "/value/key/192.0.2.9", "400")
	if id := newNode(t, mem, "192.0.2.1").allocate(t, "key"); id != 400 {
		t.Errorf("the key is %d, but 400 is in use", id)
	}
}

// Two IDs of one key that others have brought about, each with its references in good order,
// become one: the oldest.
func TestDuplicatesHeal(t *testing.T) {
	t.Parallel()
	mem := kvstore.NewMemory()
	a := newNode(t, mem, "192.0.2.1", allocator.WithSyncInterval(20*time.Millisecond))
	young := a.allocate(t, "key")
	cut := errors.New("cut off")
	a.store.SetFault(func(context.Context, kvstore.MemoryCall) (before, after error) { return cut, nil })
	other := mem.Client()
	defer other.Close()
	if err := kvstore.DeletePrefix(t.Context(), other, base+"/"); err != nil {
		t.Fatal(err)
	}
	old := newNode(t, mem, "192.0.2.2").allocate(t, "key")
	if old == young {
		t.Skip("the same ID was picked again")
	}
	put(t, other, "/id/"+young.String(), "key", "/value/key/192.0.2.1", young.String())
	a.store.SetFault(nil)
	eventually(t, "the node has followed to the oldest ID", func() bool {
		got, err := a.Get(t.Context(), allocator.StringKey("key"))
		return err == nil && got == old && inStore(t, other, base+"/value/key/192.0.2.1") == old.String()
	})
}

// An Allocate that waits for the watch ends with the allocator.
func TestCloseEndsAllocate(t *testing.T) {
	t.Parallel()
	mem := kvstore.NewMemory()
	var listing atomic.Bool
	listing.Store(true)
	acquired := make(chan struct{})
	a := newHooked(t, mem, "192.0.2.1", func(h *hooked, store *kvstore.MemoryClient) {
		h.afterAcquire = once(func() { close(acquired) })
		store.SetFault(func(_ context.Context, call kvstore.MemoryCall) (before, after error) {
			if call.Op == "list" && !listing.Load() {
				return errors.New("no listing now"), nil
			}
			return nil, nil
		})
	})
	listing.Store(false)
	// A change that the watch cannot resume after: it has to list, and cannot.
	other := mem.Client()
	defer other.Close()
	a.store.BreakWatches()
	put(t, other, "/id/300", "unrelated")
	mem.Compact()
	a.store.BreakWatches()
	got := make(chan error, 1)
	go func() {
		_, _, err := a.Allocate(t.Context(), allocator.StringKey("key"))
		got <- err
	}()
	<-acquired
	a.Close()
	select {
	case err := <-got:
		if err != nil && !errors.Is(err, allocator.ErrClosed) {
			t.Errorf("Allocate after Close: %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("Allocate goes on although the allocator is closed")
	}
}

// A remote ID whose key becomes unreadable is reported as deleted.
func TestRemoteKeyBecomesUnreadable(t *testing.T) {
	t.Parallel()
	here, there := kvstore.NewMemory(), kvstore.NewMemory()
	a := newNode(t, here, "192.0.2.1")
	be, store := backend(t, there, "")
	put(t, store, "/id/300", "key")
	rc, err := a.WatchRemoteKVStore("far", be, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer rc.Close()
	if err := rc.WaitForSync(t.Context()); err != nil {
		t.Fatal(err)
	}
	put(t, store, "/id/300", "")
	for ev := range a.events {
		if ev.Remote == "far" && ev.Kind == allocator.EventDelete {
			if ev.ID != 300 || ev.Key.GetKey() != "key" {
				t.Errorf("got event %+v", ev)
			}
			break
		}
	}
}

// known is what a backend asks of an allocator whose cache is out of date.
type known struct{ id, pick allocator.ID }

func (k known) Known(string) allocator.ID           { return k.id }
func (k known) Pick() (allocator.ID, error)         { return k.pick, nil }
func (k known) Taken(allocator.ID)                  {}
func (k known) Quarantined(allocator.ID, time.Time) {}

// An ID that was unused a moment ago may be in force for the key now: a plan must believe the
// references, not its memory.
func TestIDComesBackDuringAllocate(t *testing.T) {
	t.Parallel()
	mem := kvstore.NewMemory()
	other := mem.Client()
	defer other.Close()
	be, store := backend(t, mem, "192.0.2.1")
	var txns atomic.Int32
	store.SetFault(func(context.Context, kvstore.MemoryCall) (before, after error) {
		if txns.Add(1) == 2 {
			put(t, other, "/id/300", "key", "/value/key/192.0.2.9", "300")
		}
		return nil, nil
	})
	got, err := be.Acquire(t.Context(), allocator.StringKey("key"), known{300, 400})
	if err != nil || got.ID != 300 {
		t.Errorf("acquired %+v, %v beside a reference to 300", got, err)
	}
}

// A write whose answer never came can take effect late, after the reference has been taken back. It
// must not stay for ever.
func TestLateReferenceIsTakenBack(t *testing.T) {
	t.Parallel()
	mem := kvstore.NewMemory()
	// What is written more than an interval late need not be repaired: it is long enough for this
	// test to write before.
	a := newNode(t, mem, "192.0.2.1", allocator.WithSyncInterval(time.Second))
	// The first attempt fails, and is not written either: the test writes it later.
	a.store.SetFault(func(_ context.Context, call kvstore.MemoryCall) (before, after error) {
		if call.Op == "txn" && strings.Contains(call.Key, "/value/key/") {
			return errors.New("no answer"), nil
		}
		return nil, nil
	})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, _, err := a.Allocate(ctx, allocator.StringKey("key")); err == nil {
		t.Fatal("allocated without the store")
	}
	var released atomic.Bool
	a.store.SetFault(func(_ context.Context, call kvstore.MemoryCall) (before, after error) {
		released.Store(released.Load() || strings.Contains(call.Key, "/value/key/"))
		return nil, nil
	})
	eventually(t, "the attempt is taken back", released.Load)
	put(t, mem.Client(), "/id/300", "key", "/value/key/192.0.2.1", "300")
	eventually(t, "what was written late is taken back too", func() bool { return inStore(t, a.store, base+"/value/key/192.0.2.1") == "" })
}

// A reference to an ID that belongs to another key by now says nothing about the ID in
// force.
func TestLookupPassesOverStaleReferences(t *testing.T) {
	t.Parallel()
	mem := kvstore.NewMemory()
	be, store := backend(t, mem, "192.0.2.1")
	put(t, store, "/id/300", "foreign", "/value/key/192.0.2.8", "300", "/id/400", "key", "/value/key/192.0.2.9", "400")
	if id, err := be.Get(t.Context(), allocator.StringKey("key")); err != nil || id != 400 {
		t.Errorf("the key is %d, %v in the store, want 400", id, err)
	}
	put(t, store, "/id/500", "key", "/value/key/192.0.2.7", "500")
	if id, err := be.Get(t.Context(), allocator.StringKey("key")); err != nil || id != 400 {
		t.Errorf("the key is %d, %v in the store, want 400, the oldest", id, err)
	}
}

// The last user of a key goes while the key is being renumbered: the reference that the renumbering
// writes must go with it.
func TestReleaseWhileRenumbering(t *testing.T) {
	t.Parallel()
	mem := kvstore.NewMemory()
	reached, goOn := make(chan struct{}), make(chan struct{})
	var armed atomic.Bool
	a := newHooked(t, mem, "192.0.2.1", func(h *hooked, _ *kvstore.MemoryClient) {
		stop := once(func() { close(reached); <-goOn })
		h.beforeAcquire = func() {
			if armed.Load() {
				stop()
			}
		}
	})
	id := a.allocate(t, "key")
	armed.Store(true)
	put(t, mem.Client(), "/id/"+id.String(), "foreign", "/value/foreign/192.0.2.9", id.String()) // without the second, it would be put back
	<-reached
	short, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if last, err := a.Release(short, allocator.StringKey("key")); !last || err == nil {
		t.Errorf("release during a change: %v, %v", last, err)
	}
	close(goOn)
	eventually(t, "the new ID is written", func() bool { // and with it the reference, which must go again
		l, err := a.store.List(t.Context(), base+"/id/")
		return err == nil && len(l.Pairs) == 2
	})
	eventually(t, "no reference is left", func() bool { return inStore(t, a.store, base+"/value/key/192.0.2.1") == "" })
}

// An ID that the store has lost is not the oldest of its key any more, even while this node
// would like it back: following the others is quick.
func TestLostIDIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	mem := kvstore.NewMemory()
	a := newNode(t, mem, "192.0.2.1")
	id := a.allocate(t, "key")
	before := a.store.Calls()
	other := mem.Client()
	defer other.Close()
	txn := kvstore.Txn{Then: []kvstore.Op{
		kvstore.DeleteOp(base + "/id/" + id.String()), kvstore.DeleteOp(base + "/value/key/192.0.2.1"),
		kvstore.PutOp(base+"/id/9", []byte("key"), kvstore.Permanent), kvstore.PutOp(base+"/value/key/192.0.2.9", []byte("9"), kvstore.Permanent),
	}}
	if _, err := other.Txn(t.Context(), txn); err != nil {
		t.Fatal(err)
	}
	for ev := range a.events {
		if ev.Kind == allocator.EventRenumbered {
			break
		}
	}
	if calls := a.store.Calls() - before; calls > 4 {
		t.Errorf("the change of ID took %d round trips", calls)
	}
}
