package allocator_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/hawser-net/hawser/pkg/allocator"
	"github.com/hawser-net/hawser/pkg/kvstore"
	"github.com/hawser-net/hawser/pkg/kvstore/kvstoretest"
)

// editor writes to an etcd without following the protocol.
type editor struct {
	*testing.T
	etcd *clientv3.Client
}

func (e editor) put(pairs ...string) {
	e.Helper()
	var ops []clientv3.Op
	for i := 0; i < len(pairs); i += 2 {
		ops = append(ops, clientv3.OpPut(base+pairs[i], pairs[i+1]))
	}
	if _, err := e.etcd.Txn(e.Context()).Then(ops...).Commit(); err != nil {
		e.Fatal(err)
	}
}

func (e editor) remove(key string) {
	e.Helper()
	if _, err := e.etcd.Delete(e.Context(), base+key); err != nil {
		e.Fatal(err)
	}
}

// get returns a key's value, or "none".
func (e editor) get(key string) string {
	e.Helper()
	r, err := e.etcd.Get(e.Context(), base+key)
	if err != nil {
		e.Fatal(err)
	}
	if len(r.Kvs) == 0 {
		return "none"
	}
	return string(r.Kvs[0].Value)
}

// revision is the store's.
func (e editor) revision() int64 {
	e.Helper()
	r, err := e.etcd.Get(e.Context(), "any")
	if err != nil {
		e.Fatal(err)
	}
	return r.Header.Revision
}

// means returns the key of an ID as a node knows it, "none" if it knows of none.
func means(t *testing.T, a *allocator.Allocator, id allocator.ID) string {
	t.Helper()
	found := "none"
	a.ForeachCache(func(n allocator.ID, key allocator.AllocatorKey) {
		if n == id {
			found = key.GetKey()
		}
	})
	return found
}

func notOne(t *testing.T, events allocator.AllocatorEventChan, what string) {
	t.Helper()
	select {
	case ev := <-events:
		t.Errorf("%s: got event %+v", what, ev)
	default:
	}
}

// TestEditedKey: overwriting the key of an ID changes its meaning for no node, however often and
// with whatever value, while its owner is away and cannot revert it; the edit is reported until it
// is reverted, and the ID is not collected. An ID that is made anew
// means what it is made for.
func TestEditedKey(t *testing.T) {
	t.Parallel()
	server := kvstoretest.StartEtcd(t)
	e := editor{t, server.Client()}
	e.put("/id/300", "web", "/value/web/192.0.2.9", "300") // by a node that is away
	events := make(allocator.AllocatorEventChan, 64)
	a, store := etcdNode(t, server, "192.0.2.1", allocator.WithEvents(events))
	for _, want := range []allocator.EventKind{allocator.EventUpsert, allocator.EventSync} {
		if ev := <-events; ev.Kind != want {
			t.Fatalf("first event %+v, want %s", ev, want)
		}
	}
	gc, err := allocator.NewKVStoreBackend(allocator.KVStoreConfig{Store: store, BasePath: base, KeyType: allocator.StringKey("")})
	if err != nil {
		t.Fatal(err)
	}
	edited := func(want ...allocator.ID) func() bool { return func() bool { return slices.Equal(a.Edited(), want) } }
	for _, value := range []string{"friend", "foe", "", "friend"} {
		e.put("/id/300", value)
		eventually(t, "the edit is reported", edited(300))
		e.put("/id/301", "marker") // what was written before it is reported before
		if ev := <-events; ev.Kind != allocator.EventUpsert || ev.ID != 301 {
			t.Fatalf("got event %+v for an edit to %q", ev, value)
		}
		e.remove("/id/301")
		if ev := <-events; ev.Kind != allocator.EventDelete || ev.ID != 301 {
			t.Fatalf("got event %+v for an edit to %q", ev, value)
		}
		if key, err := a.GetByID(t.Context(), 300); err != nil || key.GetKey() != "web" || !a.IsAllocated(300) {
			t.Errorf("edited to %q: 300 means %v, %v", value, key, err)
		}
		if id, err := a.Get(t.Context(), allocator.StringKey("friend")); err != nil || id != allocator.NoID {
			t.Errorf("edited to %q: friend has %s, %v", value, id, err)
		}
		var seen map[allocator.ID]int64
		for range 3 {
			if seen, _, err = gc.RunGC(t.Context(), nil, allocator.Range{Min: 256, Max: 65535}, seen); err != nil {
				t.Fatal(err)
			}
		}
		if e.get("/id/300") != value {
			t.Fatalf("an ID in use was collected because it was edited to %q", value)
		}
	}
	e.put("/id/300", "web")
	eventually(t, "it is as it was", edited())
	notOne(t, events, "of an edit that is over")
	e.remove("/id/300")
	e.put("/id/300", "friend")
	eventually(t, "it was made anew", func() bool { return means(t, a, 300) == "friend" })
	if !edited()() {
		t.Errorf("edited: %v", a.Edited())
	}
}

// TestEditedKeyIsRestored: a node that uses an ID gives it its key back at once, also if the key
// that a client wrote over it has an ID of its own in use, and goes on with its ID, as all
// do that know it. A node that starts while the edit stands takes the ID for what it is used for.
func TestEditedKeyIsRestored(t *testing.T) {
	t.Parallel()
	server := kvstoretest.StartEtcd(t)
	e := editor{t, server.Client()}
	events := make(allocator.AllocatorEventChan, 64)
	owner, store := etcdNode(t, server, "192.0.2.1", allocator.WithEvents(events), allocator.WithSyncInterval(200*time.Millisecond))
	other, _ := etcdNode(t, server, "192.0.2.2", allocator.WithEvents(events))
	id, _, err := owner.Allocate(t.Context(), allocator.StringKey("web"))
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := other.Allocate(t.Context(), allocator.StringKey("friend")); err != nil {
		t.Fatal(err)
	}
	stop := func() (goOn func()) {
		cut := make(chan struct{})
		store.hold.Store(&cut)
		return func() { close(cut) }
	}
	goOn := stop()
	for _, value := range []string{"unused", "friend", "", "friend"} {
		e.put("/id/"+id.String(), value)
		eventually(t, "the edit is reported", func() bool { return slices.Equal(other.Edited(), []allocator.ID{id}) })
		late, _ := etcdNode(t, server, "192.0.2.3")
		if got := means(t, late, id); got != "web" || !slices.Equal(late.Edited(), []allocator.ID{id}) {
			t.Errorf("a node that starts takes %s for %q, edited %v", id, got, late.Edited())
		}
		goOn()
		eventually(t, "it has its key back", func() bool { return e.get("/id/"+id.String()) == "web" })
		eventually(t, "it is no longer reported", func() bool { return len(other.Edited())+len(owner.Edited()) == 0 })
		eventually(t, "a node that came late knows", func() bool { return means(t, late, id) == "web" && len(late.Edited()) == 0 })
		if _, _, err := owner.Allocate(t.Context(), allocator.StringKey("web")); err != nil { // waits until the owner has done with the edit
			t.Fatal(err)
		}
		goOn = stop()
	}
	goOn()
	if again, err := owner.Get(t.Context(), allocator.StringKey("web")); err != nil || again != id {
		t.Errorf("web has %s, %v, want %s", again, err, id)
	}
	for len(events) > 0 {
		if ev := <-events; ev.Kind == allocator.EventRenumbered || ev.Kind == allocator.EventDelete && ev.ID == id {
			t.Errorf("got event %+v", ev)
		}
	}
}

// TestEditedKeyIsTakenIntoUse: a node that takes the key of an edited ID into use gives the ID its
// key back, and makes no second one.
func TestEditedKeyIsTakenIntoUse(t *testing.T) {
	t.Parallel()
	server := kvstoretest.StartEtcd(t)
	e := editor{t, server.Client()}
	e.put("/id/300", "web")
	a, _ := etcdNode(t, server, "192.0.2.1")
	e.put("/id/300", "friend")
	eventually(t, "the edit is reported", func() bool { return len(a.Edited()) == 1 })
	if id, isNew, err := a.Allocate(t.Context(), allocator.StringKey("friend")); err != nil || id == 300 || !isNew {
		t.Errorf("friend has %s, new %t, %v", id, isNew, err)
	}
	if id, isNew, err := a.Allocate(t.Context(), allocator.StringKey("web")); err != nil || id != 300 || isNew || e.get("/id/300") != "web" {
		t.Errorf("web has %s, new %t, %v; the store says %q", id, isNew, err, e.get("/id/300"))
	}
}

// TestEditedUnusedKey: an edited, unused ID is not taken into use by nodes that
// start meanwhile, for either key: others know what it was.
func TestEditedUnusedKey(t *testing.T) {
	t.Parallel()
	server := kvstoretest.StartEtcd(t)
	e := editor{t, server.Client()}
	e.put("/id/300", "web")
	before, _ := etcdNode(t, server, "192.0.2.1")
	e.put("/id/300", "friend")
	eventually(t, "the edit is reported", func() bool { return len(before.Edited()) == 1 })
	late, _ := etcdNode(t, server, "192.0.2.2")
	for _, key := range []allocator.StringKey{"friend", "web"} {
		id, _, err := late.Allocate(t.Context(), key)
		if err != nil || id == 300 {
			t.Fatalf("%s has %s, %v", key, id, err)
		}
		for _, a := range []*allocator.Allocator{before, late} {
			eventually(t, "all know", func() bool { return means(t, a, id) == string(key) })
		}
	}
	if got := means(t, before, 300); got != "web" {
		t.Errorf("300 means %q", got)
	}
}

// TestEditedKeyThatStays: an ID that a client edited and that nodes use by its new key is none
// of its own key's any more. A node that takes that key into use makes one ID, and keeps it.
func TestEditedKeyThatStays(t *testing.T) {
	t.Parallel()
	server := kvstoretest.StartEtcd(t)
	e := editor{t, server.Client()}
	e.put("/id/300", "web")
	a, store := etcdNode(t, server, "192.0.2.1", allocator.WithSyncInterval(200*time.Millisecond))
	other, _ := etcdNode(t, server, "192.0.2.2")
	e.put("/id/300", "friend", "/value/friend/192.0.2.9", "300")
	for _, node := range []*allocator.Allocator{a, other} {
		eventually(t, "the edit is reported", func() bool { return len(node.Edited()) == 1 })
	}
	before := e.revision()
	web := allocator.StringKey("web")
	id, isNew, err := a.Allocate(t.Context(), web)
	if err != nil || !isNew || id == 300 {
		t.Fatalf("web has %s, new %t, %v", id, isNew, err)
	}
	if now := e.revision(); now != before+1 {
		t.Errorf("one ID was made with %d changes of the store", now-before)
	}
	eventually(t, "the other node knows the ID", func() bool { return means(t, other, id) == "web" })
	if got, err := other.Get(t.Context(), web); err != nil || got != id {
		t.Errorf("to another node web has %s, %v, want %s", got, err, id)
	}
	compared := store.txns.Load() + 4
	eventually(t, "its references were compared with the store", func() bool { return store.txns.Load() >= compared })
	e.put("/id/300", "friend")
	compared = store.txns.Load() + 4
	eventually(t, "its references were compared with the store again", func() bool { return store.txns.Load() >= compared })
	if now := e.revision(); now != before+2 {
		t.Errorf("an ID in good order was repaired: %d changes of the store", now-before-2)
	}
}

// TestReadingUsesIsRetried: a node that starts while an edit stands goes by what the
// ID is used for, however often the store does not answer when it asks for that. Until it does
// the node knows nothing.
func TestReadingUsesIsRetried(t *testing.T) {
	t.Parallel()
	server := kvstoretest.StartEtcd(t)
	e := editor{t, server.Client()}
	e.put("/id/300", "web", "/value/web/192.0.2.9", "300")
	e.put("/id/300", "friend")
	late, store := startEtcdNode(t, server, "192.0.2.1", true)
	eventually(t, "it asks, and asks again", func() bool { return store.txns.Load()+store.lists.Load() >= 4 })
	if got := means(t, late, 300); got != "none" {
		t.Errorf("without an answer 300 means %q", got)
	}
	store.refuse.Store(false)
	if err := late.WaitForInitialSync(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := means(t, late, 300); got != "web" || !slices.Equal(late.Edited(), []allocator.ID{300}) {
		t.Errorf("300 means %q, edited %v", got, late.Edited())
	}
}

// TestRewrittenIDsCostLittle: of an ID that was written again as it was, a node that starts
// reads the references to its own key, not those to all.
func TestRewrittenIDsCostLittle(t *testing.T) {
	t.Parallel()
	server := kvstoretest.StartEtcd(t)
	e := editor{t, server.Client()}
	rewrite := func(from, to int) {
		for n := from; n < to; n++ {
			id, key := fmt.Sprint("/id/", n), fmt.Sprint("app-", n)
			e.put(id, key, "/value/"+key+"/192.0.2.9", fmt.Sprint(n))
			e.put(id, key)
		}
	}
	rewrite(300, 320)
	check := func(name string, most int64) {
		t.Helper()
		a, store := etcdNode(t, server, name)
		if lists, txns := store.lists.Load(), store.txns.Load(); lists > most || txns > 40 {
			t.Errorf("%s read everything %d times, and %d times what is of one key", name, lists, txns)
		}
		if id, isNew, err := a.Allocate(t.Context(), allocator.StringKey("app-310")); err != nil || id != 310 || isNew {
			t.Errorf("%s: app-310 has %s, new %t, %v", name, id, isNew, err)
		}
	}
	check("192.0.2.1", 0)
	rewrite(320, 500) // so many that one listing is less
	check("192.0.2.2", 1)
}

// TestEditedWhileCutOff: an edit that a node finds in a listing counts as one.
func TestEditedWhileCutOff(t *testing.T) {
	t.Parallel()
	mem := kvstore.NewMemory()
	other := mem.Client()
	defer other.Close()
	put(t, other, "/id/300", "web", "/value/web/192.0.2.9", "300")
	a := newNode(t, mem, "192.0.2.1")
	cut := errors.New("cut off")
	a.store.SetFault(func(context.Context, kvstore.MemoryCall) (before, after error) { return cut, nil })
	a.store.BreakWatches()
	put(t, other, "/id/300", "friend")
	put(t, other, "/id/301", "marker")
	mem.Compact()
	a.store.BreakWatches()
	a.store.SetFault(nil)
	eventually(t, "the marker is known", func() bool { return means(t, a.Allocator, 301) == "marker" })
	if got := means(t, a.Allocator, 300); got != "web" || !slices.Equal(a.Edited(), []allocator.ID{300}) {
		t.Errorf("300 means %q, edited %v", got, a.Edited())
	}
}

// TestOldCopy: the store goes back to a copy in which an ID in use meant something else, to
// another key or to none any more. The copy counts; a node that uses the ID for another key gets
// another ID; and all nodes come to agree on the meaning of every ID in use.
func TestOldCopy(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"in use then", "left behind then"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			oldCopy(t, name == "in use then")
		})
	}
}

func oldCopy(t *testing.T, used bool) {
	server := kvstoretest.StartEtcd(t)
	e := editor{t, server.Client()}
	few := []allocator.AllocatorOption{allocator.WithMin(300), allocator.WithMax(301), allocator.WithSyncInterval(time.Second)}
	first, store := etcdNode(t, server, "192.0.2.1", few...)
	second, _ := etcdNode(t, server, "192.0.2.2", few...)
	reader, _ := etcdNode(t, server, "192.0.2.3", few...)
	was, now := allocator.StringKey("was"), allocator.StringKey("now")
	e.put("/id/301", "filler")
	eventually(t, "the filler is known", func() bool { return means(t, first, 301) == "filler" })
	if id, _, err := first.Allocate(t.Context(), was); err != nil || id != 300 {
		t.Fatalf("the first key has %s, %v", id, err)
	}
	release := func() {
		if _, err := first.Release(t.Context(), was); err != nil {
			t.Fatal(err)
		}
	}
	if !used {
		release()
	}
	e.remove("/id/301")
	restore := server.Snapshot()
	e.etcd = server.Client()
	e.put("/id/301", "filler")
	if used {
		release()
	}
	gc, err := allocator.NewKVStoreBackend(allocator.KVStoreConfig{Store: store, BasePath: base, KeyType: was})
	if err != nil {
		t.Fatal(err)
	}
	var seen map[allocator.ID]int64
	for range 2 {
		if seen, _, err = gc.RunGC(t.Context(), nil, allocator.Range{Min: 300, Max: 300}, seen); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the end of the ID is known", func() bool { return means(t, second, 300) == "none" && means(t, second, 301) == "filler" })
	if id, _, err := second.Allocate(t.Context(), now); err != nil || id != 300 {
		t.Fatalf("the second key has %s, %v", id, err)
	}
	eventually(t, "the reader knows", func() bool { return means(t, reader, 300) == "now" })

	restore()
	e.etcd = server.Client()
	eventually(t, "the node that uses the ID for another key has another one", func() bool {
		id, err := second.Get(t.Context(), now)
		return err == nil && id == 301 && e.get("/id/301") == "now" && e.get("/value/now/192.0.2.2") == "301"
	})
	for i, a := range []*allocator.Allocator{first, second, reader} {
		for end := time.Now().Add(40 * time.Second); means(t, a, 300) != "was" || means(t, a, 301) != "now"; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("node %d takes 300 for %q and 301 for %q; the store says %q and %q; %v", i, means(t, a, 300), means(t, a, 301), e.get("/id/300"), e.get("/id/301"), a.Edited())
			}
		}
		if got := a.Edited(); len(got) > 0 {
			t.Errorf("%v were not edited", got)
		}
	}
}
