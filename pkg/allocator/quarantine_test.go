package allocator_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hawser-net/hawser/pkg/allocator"
	"github.com/hawser-net/hawser/pkg/kvstore"
	"github.com/hawser-net/hawser/pkg/kvstore/kvstoretest"
)

// collectors are operators that collect in turn: each is another process and remembers nothing of
// the others' work.
type collectors struct {
	*testing.T
	store      kvstore.Backend
	quarantine time.Duration
	lost       time.Duration
	be         *allocator.KVStoreBackend
	seen       map[allocator.ID]int64
}

// another makes another operator the leader.
func (c *collectors) another() {
	c.Helper()
	var err error
	if c.be, err = allocator.NewKVStoreBackend(allocator.KVStoreConfig{Store: c.store, BasePath: base, KeyType: allocator.StringKey(""), Quarantine: c.quarantine, ConfirmTimeout: c.lost}); err != nil {
		c.Fatal(err)
	}
	c.seen = nil
}

func (c *collectors) round() allocator.GCStats {
	c.Helper()
	next, stats, err := c.be.RunGC(c.Context(), nil, allocator.Range{Min: 1, Max: 65535}, c.seen)
	if err != nil {
		c.Fatal(err)
	}
	c.seen = next
	return stats
}

// TestQuarantineIsInTheStore: an ID that was collected is given to no other key during its
// quarantine, not even by a node that never saw it, after the operator that collected it and all
// nodes that knew it are gone.
func TestQuarantineIsInTheStore(t *testing.T) {
	t.Parallel()
	mem := kvstore.NewMemory()
	store := mem.Client()
	defer store.Close()
	c := &collectors{T: t, store: store, quarantine: time.Hour}
	c.another()
	few := []allocator.AllocatorOption{allocator.WithMin(1), allocator.WithMax(3), allocator.WithQuarantine(0)}
	old := newNode(t, mem, "192.0.2.1", few...)
	id := old.allocate(t, "old")
	old.release(t, "old")
	c.round()
	if stats := c.round(); stats.Deleted != 1 || stats.Quarantined != 1 {
		t.Fatalf("the round that collects says %+v", stats)
	}
	c.another() // the leader changes
	for range 3 {
		if stats := c.round(); stats.Freed != 0 || stats.Quarantined != 1 {
			t.Fatalf("another leader says %+v", stats)
		}
	}
	fresh := newNode(t, mem, "192.0.2.2", few...)
	for _, key := range []string{"a", "b"} {
		if got := fresh.allocate(t, key); got == id {
			t.Errorf("%s has ID %d, which is in quarantine", key, got)
		}
	}
	// No other ID is left: better than none.
	if got := fresh.allocate(t, "c"); got != id {
		t.Errorf("c has ID %d, want %d", got, id)
	}
	if got := records(t, mem); len(got) != 0 {
		t.Errorf("IDs in use are in quarantine: %q", got)
	}
}

// TestWithdrawnIDIsInQuarantine: a node observes an ID and is cut off, and the ID is withdrawn.
// Nodes that have never observed it give it to no other key, which the one that is cut off would
// take for the first; its own key takes it back.
func TestWithdrawnIDIsInQuarantine(t *testing.T) {
	t.Parallel()
	server := kvstoretest.StartEtcd(t)
	px := newProxy(t, strings.TrimPrefix(server.Endpoint(), "unix://"))
	few := []allocator.AllocatorOption{allocator.WithMin(300), allocator.WithMax(339), allocator.WithQuarantine(0)}
	frozen, _ := startEtcdNodeAt(t, px.endpoint(), "192.0.2.1", false, few...)
	if err := frozen.WaitForInitialSync(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, store := etcdNode(t, server, "192.0.2.2", few...)
	be, err := allocator.NewKVStoreBackend(allocator.KVStoreConfig{Store: store, BasePath: base, Suffix: "192.0.2.3", KeyType: allocator.StringKey("")})
	if err != nil {
		t.Fatal(err)
	}
	got, err := be.Acquire(t.Context(), allocator.StringKey("old"), onlyID(302))
	if err != nil || got.ID != 302 || !got.IsNew {
		t.Fatalf("%+v, %v", got, err)
	}
	means := func() string {
		key, err := frozen.GetByID(t.Context(), 302)
		if err != nil {
			return ""
		}
		return key.GetKey()
	}
	eventually(t, "the ID is observed", func() bool { return means() == "old" })
	px.pause()
	defer px.heal()
	if err := be.Withdraw(t.Context(), allocator.StringKey("old"), got); err != nil {
		t.Fatal(err)
	}
	fresh, _ := etcdNode(t, server, "192.0.2.4", few...)
	for n := range 39 { // all the others
		key := fmt.Sprint("new-", n)
		if id, _, err := fresh.Allocate(t.Context(), allocator.StringKey(key)); err != nil || id == 302 {
			t.Errorf("%s has %s, %v, which a node that is cut off takes for %q", key, id, err, means())
		}
	}
	if id, _, err := fresh.Allocate(t.Context(), allocator.StringKey("old")); err != nil || id != 302 {
		t.Errorf("old has %s, %v", id, err)
	}
}

// relisting has the watch begin anew in each of some requests for an ID.
type relisting struct {
	*allocator.KVStoreBackend
	left    int
	handler allocator.CacheMutations
	made    map[allocator.ID]bool
}

func (r *relisting) ListAndWatch(ctx context.Context, handler allocator.CacheMutations) error {
	r.handler = handler
	return r.KVStoreBackend.ListAndWatch(ctx, handler)
}

func (r *relisting) Acquire(ctx context.Context, key allocator.AllocatorKey, ids allocator.IDSource) (allocator.Acquired, error) {
	got, err := r.KVStoreBackend.Acquire(ctx, key, ids)
	if err == nil && r.left > 0 {
		r.left--
		r.made[got.ID] = true
		r.handler.OnListDone(got.Revision)
	}
	return got, err
}

// TestWithdrawnIDIsTakenBack: a node withdraws the ID that it has made for a key again and again,
// as its watch begins anew each time. That puts no number of IDs into quarantine.
func TestWithdrawnIDIsTakenBack(t *testing.T) {
	t.Parallel()
	mem := kvstore.NewMemory()
	be, _ := backend(t, mem, "192.0.2.1")
	r := &relisting{KVStoreBackend: be, left: 10, made: map[allocator.ID]bool{}}
	a, err := allocator.NewAllocator(allocator.StringKey(""), r, allocator.WithMin(300), allocator.WithMax(400))
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- a.Run(context.Background()) }()
	defer func() {
		a.Close()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	id, _, err := a.Allocate(t.Context(), allocator.StringKey("key"))
	if err != nil || r.left > 0 {
		t.Fatalf("%v, %d requests are left", err, r.left)
	}
	if got := records(t, mem); len(got) > 0 || len(r.made) != 1 || !r.made[id] {
		t.Errorf("the key has %s, had %v, and in quarantine are %q", id, r.made, got)
	}
}

// onlyID is a source of one ID.
type onlyID allocator.ID

func (onlyID) Known(string) allocator.ID           { return allocator.NoID }
func (o onlyID) Pick() (allocator.ID, error)       { return allocator.ID(o), nil }
func (onlyID) Quarantined(allocator.ID, time.Time) {}
func (onlyID) Taken(allocator.ID)                  {}

// records returns the IDs with a quarantine record.
func records(t *testing.T, mem *kvstore.Memory) []string {
	t.Helper()
	store := mem.Client()
	defer store.Close()
	return quarantinedIDs(t, store)
}

func quarantinedIDs(t *testing.T, store kvstore.Backend) (ids []string) {
	t.Helper()
	l, err := store.List(t.Context(), base+"/quarantine/")
	if err != nil {
		t.Fatal(err)
	}
	for _, kv := range l.Pairs {
		ids = append(ids, strings.TrimPrefix(kv.Key, base+"/quarantine/"))
	}
	return ids
}

// TestQuarantineEnds: a quarantine ends when the present leader has seen its record for as long,
// whatever time the record names and clocks show; never in the first round.
func TestQuarantineEnds(t *testing.T) {
	t.Parallel()
	onRestorables(t, func(t *testing.T, store *restorable) {
		// To an operator whose clock was set two hours ahead a record is two hours old.
		for id, since := range map[string]string{
			"1": time.Now().Add(-2 * time.Hour).Format(time.RFC3339), "2": time.Now().Add(time.Hour).Format(time.RFC3339), "3": "nonsense",
			"70000": "2006-01-02T15:04:05Z", // of another range
		} {
			put(t, store, "/quarantine/"+id, since)
		}
		c := &collectors{T: t, store: store, quarantine: time.Hour}
		c.another()
		for range 4 {
			if stats := c.round(); stats.Freed != 0 || stats.Quarantined != 3 {
				t.Errorf("within its time: %+v, %q are left", stats, quarantinedIDs(t, store))
			}
		}
		c.quarantine = 50 * time.Millisecond
		c.another()
		time.Sleep(2 * c.quarantine) // what is waited for is the clock
		if stats := c.round(); stats.Freed != 0 {
			t.Errorf("another leader ends quarantines that it has just seen: %+v", stats)
		}
		time.Sleep(2 * c.quarantine)
		if stats := c.round(); stats.Freed != 3 || !slices.Equal(quarantinedIDs(t, store), []string{"70000"}) {
			t.Errorf("after its time: %+v, %q are left", stats, quarantinedIDs(t, store))
		}
	})
}

// TestRestoredQuarantine: a store goes back to a copy in which an ID is in quarantine, after that
// was over, and nodes have the ID for another key. What collectors and nodes knew of the quarantine
// before does not end it again.
func TestRestoredQuarantine(t *testing.T) {
	t.Parallel()
	onRestorables(t, func(t *testing.T, store *restorable) {
		put(t, store, "/quarantine/300", time.Now().Add(-2*time.Hour).Format(time.RFC3339))
		node := store.backend(t, "192.0.2.1")
		l, err := store.List(t.Context(), base+"/quarantine/")
		if err != nil {
			t.Fatal(err)
		}
		put(t, store, "/something", "else") // what a node has observed is older than its confirmation
		confirm := func() {
			t.Helper()
			if err := node.Confirm(t.Context(), l.Revision); err != nil {
				t.Fatal(err)
			}
		}
		confirm()
		c := &collectors{T: t, store: store, quarantine: time.Nanosecond, lost: time.Hour}
		waits := func(what string) {
			t.Helper()
			for range 3 {
				if stats := c.round(); stats.Freed != 0 {
					t.Fatalf("%s: %+v", what, stats)
				}
			}
			if stats := c.round(); stats.Unconfirmed != 1 {
				t.Errorf("%s: %+v", what, stats)
			}
		}
		c.another()
		waits("the node confirmed it before this leader saw it")
		restore := store.save()
		store.answering(t)
		confirm() // the same again
		if stats := c.round(); stats.Freed != 1 {
			t.Fatalf("the node repeats it: %+v", stats)
		}
		restore()
		store.answering(t)
		if got := quarantinedIDs(t, store); !slices.Equal(got, []string{"300"}) {
			t.Fatalf("the copy has %q in quarantine", got)
		}
		waits("the store went back")
		c.another()
		waits("the store went back, and another leads")
		confirm()
		if stats := c.round(); stats.Freed != 1 {
			t.Errorf("the node repeats it once more: %+v", stats)
		}

		// Nor does what was seen before count while the record is the same.
		put(t, store, "/quarantine/301", "nonsense")
		c.quarantine = 100 * time.Millisecond
		c.another()
		restore = store.save()
		store.answering(t)
		for i := range 10 {
			put(t, store, "/something", fmt.Sprint(i))
		}
		c.round()
		time.Sleep(2 * c.quarantine) // what is waited for is the clock
		restore()
		store.answering(t)
		if stats := c.round(); stats.Freed+stats.Unconfirmed != 0 || stats.Quarantined != 1 {
			t.Errorf("the first round in the copy: %+v", stats)
		}
	})
}

// TestLongestQuarantinedFirst: when no ID is free, the one longest in quarantine is made again
// first, whatever a node remembers itself.
func TestLongestQuarantinedFirst(t *testing.T) {
	t.Parallel()
	mem := kvstore.NewMemory()
	store := mem.Client()
	defer store.Close()
	now := time.Now()
	for id, ago := range map[string]time.Duration{"1": time.Minute, "2": 3 * time.Hour, "3": time.Hour, "4": 2 * time.Hour} {
		put(t, store, "/quarantine/"+id, now.Add(-ago).UTC().Format(time.RFC3339))
	}
	n := newNode(t, mem, "192.0.2.1", allocator.WithMin(1), allocator.WithMax(4))
	var got []allocator.ID
	for _, key := range []string{"a", "b", "c", "d"} {
		got = append(got, n.allocate(t, key))
	}
	if want := []allocator.ID{2, 4, 3, 1}; !slices.Equal(got, want) {
		t.Errorf("IDs %v, want %v", got, want)
	}
}

// TestLastOnesAtOnce: label sets that need an ID at once, when only IDs in quarantine are left, get
// one each, also if several look at the same one.
func TestLastOnesAtOnce(t *testing.T) {
	t.Parallel()
	const ids = 64
	for range 20 {
		mem := kvstore.NewMemory()
		store := mem.Client()
		defer store.Close()
		now := time.Now()
		for id := range ids {
			put(t, store, fmt.Sprint("/quarantine/", id+1), now.Add(-time.Duration(id)*time.Minute).UTC().Format(time.RFC3339))
		}
		n := newNode(t, mem, "192.0.2.1", allocator.WithMin(1), allocator.WithMax(ids))
		var wg sync.WaitGroup
		for i := range ids {
			wg.Go(func() {
				if _, _, err := n.Allocate(t.Context(), allocator.StringKey(fmt.Sprint("key-", i))); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
	}
}

// TestRestoredIDLeavesQuarantine: a node that was cut off while its ID was collected has it
// again, and the record is gone.
func TestRestoredIDLeavesQuarantine(t *testing.T) {
	t.Parallel()
	mem := kvstore.NewMemory()
	store := mem.Client()
	defer store.Close()
	put(t, store, "/id/300", "key")
	c := &collectors{T: t, store: store, quarantine: time.Hour}
	c.another()
	c.round()
	if stats := c.round(); stats.Quarantined != 1 {
		t.Fatalf("the round that collects says %+v", stats)
	}
	be, _ := backend(t, mem, "192.0.2.1")
	if o, ok, err := be.Occupant(t.Context(), 300); err != nil || !ok || !o.Quarantined || o.Key != "key" || time.Since(o.Since) > time.Minute {
		t.Errorf("the ID belongs to %+v, %t, %v", o, ok, err)
	}
	if err := be.Restore(t.Context(), allocator.Reference{ID: 300, Key: allocator.StringKey("key")}); err != nil {
		t.Fatal(err)
	}
	if got := records(t, mem); len(got) != 0 {
		t.Errorf("an ID in use is in quarantine: %q", got)
	}
	if o, ok, err := be.Occupant(t.Context(), 300); err != nil || !ok || o.Quarantined || o.Key != "key" {
		t.Errorf("the ID belongs to %+v, %t, %v", o, ok, err)
	}
}

// TestQuarantineAfterOtherKey: a node that was cut off while its ID was collected, given to another
// key and collected again does not get it back, whatever it does: others may still go by what it
// meant last. Nor does a node that observes the reference of the first.
func TestQuarantineAfterOtherKey(t *testing.T) {
	t.Parallel()
	for name, was := range map[string]string{"another key": " other", "a key that is not known": ""} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			mem := kvstore.NewMemory()
			store := mem.Client()
			defer store.Close()
			put(t, store, "/quarantine/300", time.Now().UTC().Format(time.RFC3339)+was)
			be, _ := backend(t, mem, "192.0.2.1")
			var c *allocator.ConflictError
			err := be.Restore(t.Context(), allocator.Reference{ID: 300, Key: allocator.StringKey("key")})
			if !errors.As(err, &c) || !c.Quarantined || c.Owner != strings.TrimSpace(was) {
				t.Errorf("restored: %v", err)
			}
			put(t, store, "/value/key/192.0.2.9", "300")
			put(t, store, "/value/key/longer/192.0.2.9", "300") // so that a marker is needed
			n := newNode(t, mem, "192.0.2.2", allocator.WithMin(300), allocator.WithMax(400))
			id := n.allocate(t, "key")
			if id == 300 {
				t.Errorf("key has the ID in quarantine")
			}
			assumed := newNode(t, mem, "192.0.2.3", allocator.WithMin(300), allocator.WithMax(400))
			if err := assumed.Assume(allocator.StringKey("key"), 300); err != nil {
				t.Fatal(err)
			}
			eventually(t, "it has the ID in force", func() bool {
				kv, err := store.Get(t.Context(), base+"/value/key/192.0.2.3")
				return err == nil && string(kv.Value) == id.String()
			})
			if got := records(t, mem); !slices.Equal(got, []string{"300"}) {
				t.Errorf("in quarantine are %q", got)
			}
		})
	}
}

// TestKeyTakesItsIDBack: a key whose ID was collected before a node's watch has shown it gets
// that ID back.
func TestKeyTakesItsIDBack(t *testing.T) {
	t.Parallel()
	mem := kvstore.NewMemory()
	store := mem.Client()
	defer store.Close()
	put(t, store, "/quarantine/300", time.Now().UTC().Format(time.RFC3339)+" key")
	be, _ := backend(t, mem, "192.0.2.1")
	got, err := be.Acquire(t.Context(), allocator.StringKey("key"), known{300, 400})
	if err != nil || got.ID != 300 || got.IsNew || len(records(t, mem)) != 0 {
		t.Errorf("key has %+v, %v; in quarantine are %q", got, err, records(t, mem))
	}
}

// TestQuarantineWaitsForNodes: after its quarantine an ID is not given to other keys before every
// node that confirms anything has released it, its lease has run out, or the timeout has passed.
func TestQuarantineWaitsForNodes(t *testing.T) {
	t.Parallel()
	mem := kvstore.NewMemory()
	store := mem.Client()
	defer store.Close()
	put(t, store, "/quarantine/300", time.Now().Add(-2*time.Hour).Format(time.RFC3339))
	now, err := store.List(t.Context(), base+"/quarantine/")
	if err != nil {
		t.Fatal(err)
	}
	ended := now.Pairs[0].ModRevision
	c := &collectors{T: t, store: store, quarantine: time.Nanosecond, lost: time.Hour}
	fast, _ := backend(t, mem, "192.0.2.1")
	slow, gone := backend(t, mem, "192.0.2.2")
	confirm := func(b *allocator.KVStoreBackend, revision int64) {
		t.Helper()
		if err := b.Confirm(t.Context(), revision); err != nil {
			t.Fatal(err)
		}
	}
	awaits := func(what string) {
		t.Helper()
		for range 3 {
			if stats := c.round(); stats.Freed != 0 || !slices.Equal(records(t, mem), []string{"300"}) {
				t.Fatalf("%s: %+v, %q are in quarantine", what, stats, records(t, mem))
			}
		}
		if stats := c.round(); stats.Unconfirmed != 1 || stats.Quarantined != 1 {
			t.Errorf("%s: %+v", what, stats)
		}
	}
	c.another()
	c.round()
	confirm(fast, ended)
	confirm(slow, ended-1)
	awaits("one node has not observed it")
	put(t, store, "/confirmed/192.0.2.3", "nonsense")
	confirm(slow, ended)
	awaits("what a node says cannot be read")
	if _, err := store.Txn(t.Context(), kvstore.Txn{Then: []kvstore.Op{kvstore.DeleteOp(base + "/confirmed/192.0.2.3")}}); err != nil {
		t.Fatal(err)
	}
	confirm(slow, ended+1000)
	awaits("a node has observed what has not happened yet: the store was put back since")
	c.another()
	c.round()
	confirm(fast, ended)
	confirm(slow, ended-1)
	awaits("another leader, and one that goes back")
	c.lost = 50 * time.Millisecond
	c.another()
	c.round()
	time.Sleep(2 * c.lost) // what is waited for is the clock
	if stats := c.round(); stats.Freed != 1 {
		t.Errorf("the node counts as lost: %+v", stats)
	}
	put(t, store, "/quarantine/300", time.Now().Add(-2*time.Hour).Format(time.RFC3339))
	if now, err = store.List(t.Context(), base+"/quarantine/"); err != nil {
		t.Fatal(err)
	}
	c.lost = time.Hour
	c.another()
	awaits("again")
	confirm(fast, now.Revision)
	awaits("one node alone has confirmed it")
	gone.ExpireLeases()
	c.round()
	if got := records(t, mem); len(got) != 0 {
		t.Errorf("IDs wait for a node whose lease has run out: %q", got)
	}
}
