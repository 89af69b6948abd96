package allocator_test

import (
	"encoding/base64"
	"testing"

	"github.com/hawser-net/hawser/pkg/allocator"
	"github.com/hawser-net/hawser/pkg/kvstore"
)

const (
	layoutText = "k8s:a.b/c=d;k8s:app=x;"
	lockKey    = base + "/locks/"
)

var layoutB64 = base64.URLEncoding.EncodeToString([]byte(layoutText))

// layoutStore has a connection that writes what other programs write.
type layoutStore struct {
	t     *testing.T
	mem   *kvstore.Memory
	other *kvstore.MemoryClient
}

func newLayoutStore(t *testing.T) layoutStore {
	t.Helper()
	t.Parallel()
	mem := kvstore.NewMemory()
	s := layoutStore{t, mem, mem.ClientAs(kvstore.LayoutConsul)}
	t.Cleanup(func() { s.other.Close() })
	return s
}

func (s layoutStore) put(key, value string, lifetime kvstore.Lifetime) {
	s.t.Helper()
	if err := kvstore.Put(s.t.Context(), s.other, key, []byte(value), lifetime); err != nil {
		s.t.Fatal(err)
	}
}

// want checks a key; an empty value means that there is none.
func (s layoutStore) want(key, value string) {
	s.t.Helper()
	kv, err := s.other.Get(s.t.Context(), key)
	if err != nil && value != "" || string(kv.Value) != value {
		s.t.Errorf("%s is %q (%v), want %q", key, kv.Value, err, value)
	}
}

// TestConsulLayout: on Consul, a key stands encoded under its ID and above its references, as
// Cilium writes it.
func TestConsulLayout(t *testing.T) {
	s := newLayoutStore(t)
	a := newNodeAt(t, s.mem.ClientAs(kvstore.LayoutConsul), "192.0.2.1")
	id := a.allocate(t, layoutText)
	s.want(base+"/id/"+id.String(), layoutB64)
	s.want(base+"/value/"+layoutB64+"/192.0.2.1", id.String())
	s.want(base+"/value/"+layoutText+"/192.0.2.1", "")

	// What another program wrote is found.
	other := base64.URLEncoding.EncodeToString([]byte("k8s:app=y;"))
	s.put(base+"/id/777", other, kvstore.Permanent)
	s.put(base+"/value/"+other+"/192.0.2.9", "777", kvstore.Leased)
	if id := a.allocate(t, "k8s:app=y;"); id != 777 {
		t.Errorf("ID %d, want 777", id)
	}
	if id, err := a.GetNoCache(t.Context(), allocator.StringKey("k8s:app=y;")); err != nil || id != 777 {
		t.Errorf("GetNoCache: %d, %v", id, err)
	}
	if key, err := a.GetByID(t.Context(), 777); err != nil || key.GetKey() != "k8s:app=y;" {
		t.Errorf("GetByID: %v, %v", key, err)
	}

	// The reference to a key of slashes goes, and comes back with the lease.
	a.store.ExpireLeases()
	eventually(t, "the reference is written again", func() bool {
		_, err := s.other.Get(t.Context(), base+"/value/"+layoutB64+"/192.0.2.1")
		return err == nil
	})
	a.release(t, layoutText)
	s.want(base+"/value/"+layoutB64+"/192.0.2.1", "")
}

// TestConsulLocks: the lock of a key is a key that hangs on a session; it stays, without one, when
// its holder releases it.
func TestConsulLocks(t *testing.T) {
	s := newLayoutStore(t)
	a := newNodeAt(t, s.mem.ClientAs(kvstore.LayoutConsul), "192.0.2.1")
	lock := lockKey + layoutB64 + ".lock"
	s.put(lock, "", kvstore.Leased)
	got := make(chan allocator.ID, 1)
	go func() {
		id, _, err := a.Allocate(t.Context(), allocator.StringKey(layoutText))
		if err != nil {
			t.Error(err)
		}
		got <- id
	}()
	before := a.store.Calls()
	eventually(t, "the allocator tries and waits", func() bool { return a.store.Calls() > before+3 })
	s.want(base+"/value/"+layoutB64+"/192.0.2.1", "")
	s.put(base+"/id/777", layoutB64, kvstore.Permanent)
	s.put(base+"/value/"+layoutB64+"/192.0.2.9", "777", kvstore.Leased)
	s.put(lock, "", kvstore.Permanent)
	if id := <-got; id != 777 {
		t.Errorf("the lock's holder made 777, the node uses %d", id)
	}
	a.allocate(t, "k8s:app=z;")
}

// TestConsulLockCollection: every such key is a lock of its own.
func TestConsulLockCollection(t *testing.T) {
	s := newLayoutStore(t)
	be, err := allocator.NewKVStoreBackend(allocator.KVStoreConfig{Store: s.other, BasePath: base, KeyType: allocator.StringKey("")})
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range []string{"YQ==.lock", "Yg==.lock", "Yw==.lock"} {
		s.put(lockKey+k, "x", kvstore.Leased)
	}
	held, _, err := be.RunLocksGC(t.Context(), nil)
	if err != nil || len(held) != 3 {
		t.Fatalf("held locks: %v, %v", held, err)
	}
	s.put(lockKey+"Yg==.lock", "x", kvstore.Leased)
	if _, deleted, err := be.RunLocksGC(t.Context(), held); err != nil || deleted != 2 {
		t.Fatalf("%d deleted, %v", deleted, err)
	}
	s.want(lockKey+"YQ==.lock", "")
	s.want(lockKey+"Yg==.lock", "x")
	s.want(lockKey+"Yw==.lock", "")
}

// TestOldFormOnConsul: a store whose keys stand as they are, as earlier versions wrote them, goes
// on with its IDs. First all nodes read both forms and write the old one, then they write the
// new one.
func TestOldFormOnConsul(t *testing.T) {
	s := newLayoutStore(t)
	s.put(base+"/id/777", layoutText, kvstore.Permanent)
	s.put(base+"/value/"+layoutText+"/192.0.2.9", "777", kvstore.Leased) // a node that has not been touched
	s.put(base+"/id/778", "k8s:app=unused;", kvstore.Permanent)

	between := newNodeAt(t, s.mem.ClientAs(kvstore.LayoutConsulPlain), "192.0.2.1")
	if id := between.allocate(t, layoutText); id != 777 {
		t.Errorf("ID %d, want 777", id)
	}
	s.want(base+"/id/777", layoutText)
	s.want(base+"/value/"+layoutText+"/192.0.2.1", "777")

	after := newNodeAt(t, s.mem.ClientAs(kvstore.LayoutConsul), "192.0.2.2")
	for key, want := range map[string]allocator.ID{layoutText: 777, "k8s:app=unused;": 778} {
		if id := after.allocate(t, key); id != want {
			t.Errorf("%s is %d, want %d", key, id, want)
		}
	}
	s.want(base+"/id/777", layoutB64)
	s.want(base+"/value/"+layoutB64+"/192.0.2.2", "777")
	// Those that write the old form read the new one.
	if id := newNodeAt(t, s.mem.ClientAs(kvstore.LayoutConsulPlain), "192.0.2.3").allocate(t, "k8s:app=unused;"); id != 778 {
		t.Errorf("ID %d, want 778", id)
	}

	// An ID with a reference in either form is in use.
	after.release(t, layoutText)
	var marked map[allocator.ID]int64
	for range 3 {
		be, err := allocator.NewKVStoreBackend(allocator.KVStoreConfig{Store: s.other, BasePath: base, KeyType: allocator.StringKey("")})
		if err != nil {
			t.Fatal(err)
		}
		if marked, _, err = be.RunGC(t.Context(), nil, allocator.Range{Min: 256, Max: 65535}, marked); err != nil {
			t.Fatal(err)
		}
	}
	s.want(base+"/id/777", layoutB64)
	s.want(base+"/id/778", base64.URLEncoding.EncodeToString([]byte("k8s:app=unused;")))
}
