package allocator_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hawser-net/hawser/pkg/allocator"
	"github.com/hawser-net/hawser/pkg/kvstore"
	"github.com/hawser-net/hawser/pkg/kvstore/consul"
	"github.com/hawser-net/hawser/pkg/kvstore/etcd"
	"github.com/hawser-net/hawser/pkg/kvstore/kvstoretest"
)

// The keys of these tests: one with references of another below its own directory, and one that
// stands alone. They hold a colon, so that no text is taken for an encoded one.
const restoredKey, longerKey, otherKey = "k8s:app=x;", "k8s:app=x;/y", "k8s:app=z;"

// restorable is a connection to a store that can be put back to a copy.
type restorable struct {
	kvstore.Backend
	save func() (restore func())
	// before, if not nil, is called ahead of each transaction.
	before func(txn kvstore.Txn)
}

// Txn lets a test act between what a caller has seen and what it writes.
func (r *restorable) Txn(ctx context.Context, txn kvstore.Txn) (kvstore.TxnResult, error) {
	if r.before != nil {
		r.before(txn)
	}
	return r.Backend.Txn(ctx, txn)
}

// onRestorables runs a test on each kind of store.
func onRestorables(t *testing.T, test func(t *testing.T, store *restorable)) {
	t.Run("memory", func(t *testing.T) {
		t.Parallel()
		mem := kvstore.NewMemory()
		store := mem.Client()
		t.Cleanup(func() { store.Close() })
		test(t, &restorable{Backend: store, save: mem.Snapshot})
	})
	t.Run("etcd", func(t *testing.T) {
		t.Parallel()
		server := kvstoretest.StartEtcd(t)
		cfg := etcd.Defaults()
		cfg.Endpoints, cfg.QPS = []string{server.Endpoint()}, 0
		store, err := etcd.New(t.Context(), cfg, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { store.Close() })
		test(t, &restorable{Backend: store, save: server.Snapshot})
	})
	t.Run("consul", func(t *testing.T) {
		t.Parallel()
		cfg := consul.Defaults()
		cfg.Address = kvstoretest.StartConsul(t)
		store, err := consul.New(t.Context(), cfg, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { store.Close() })
		test(t, &restorable{Backend: store, save: func() func() { return kvstoretest.SnapshotConsul(t, cfg.Address) }})
	})
}

// answering waits until the store answers, after it was stopped.
func (r *restorable) answering(t *testing.T) {
	t.Helper()
	eventually(t, "the store answers", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		_, err := r.Get(ctx, "nothing")
		return errors.Is(err, kvstore.ErrNotFound)
	})
}

// backend returns the backend of a node on the store.
func (r *restorable) backend(t *testing.T, suffix string) *allocator.KVStoreBackend {
	t.Helper()
	be, err := allocator.NewKVStoreBackend(allocator.KVStoreConfig{Store: r, BasePath: base, Suffix: suffix, KeyType: allocator.StringKey("")})
	if err != nil {
		t.Fatal(err)
	}
	return be
}

// remove deletes keys, one after the other.
func (r *restorable) remove(t *testing.T, paths ...string) {
	t.Helper()
	for _, path := range paths {
		if err := kvstore.Delete(t.Context(), r, base+path); err != nil {
			t.Fatal(err)
		}
	}
}

// besides are references that stand in a key's directory and do not count.
var besides = map[string][]string{
	"of a longer key":                {"/id/300", longerKey, "/value/" + longerKey + "/192.0.2.9", "300"},
	"to an ID that is another key's": {"/id/300", otherKey, "/value/" + restoredKey + "/192.0.2.9", "300"},
}

// TestRestoredDuringAllocate: a store goes back to a copy in which a key has an ID in use, after
// a request has seen references that do not count, and before it writes. No revision shows that
// anything has changed. The ID in use counts.
func TestRestoredDuringAllocate(t *testing.T) {
	t.Parallel()
	for name, beside := range besides {
		restoredDuringAllocate(t, name, beside, known{allocator.NoID, 500})
		restoredDuringAllocate(t, name+", while the cache knows an old ID", beside, known{400, 500})
	}
}

func restoredDuringAllocate(t *testing.T, name string, beside []string, watch known) {
	t.Run("references "+name, func(t *testing.T) {
		t.Parallel()
		onRestorables(t, func(t *testing.T, store *restorable) {
			put(t, store, append([]string{"/id/400", restoredKey, "/value/" + restoredKey + "/192.0.2.8", "400"}, beside...)...)
			restore := store.save()
			store.answering(t)
			store.remove(t, "/value/"+restoredKey+"/192.0.2.8", "/id/400")
			restored := false
			store.before = func(txn kvstore.Txn) {
				if !restored && slices.ContainsFunc(txn.If, func(c kvstore.Cond) bool { return c.Kind == kvstore.CondPrefixUnchangedSince && c.Revision > 0 }) {
					restored = true
					restore()
					store.answering(t)
				}
			}
			got, err := store.backend(t, "192.0.2.1").Acquire(t.Context(), allocator.StringKey(restoredKey), watch)
			if err != nil || got.ID != 400 {
				t.Errorf("acquired %+v, %v beside a reference to 400", got, err)
			}
			if !restored {
				t.Error("the store never went back")
			}
			if own := inStore(t, store, base+"/id/500"); own != "" {
				t.Errorf("the ID 500 was made for %q", own)
			}
		})
	})
}

// TestRestoredDuringCollection: a store goes back to a copy in which an ID is in use, after that
// was found dead twice, and before it is deleted. It stays.
func TestRestoredDuringCollection(t *testing.T) {
	t.Parallel()
	onRestorables(t, func(t *testing.T, store *restorable) {
		put(t, store, append([]string{"/id/400", restoredKey, "/value/" + restoredKey + "/192.0.2.8", "400"}, besides["of a longer key"]...)...)
		restore := store.save()
		store.answering(t)
		store.remove(t, "/value/"+restoredKey+"/192.0.2.8")
		restored := false
		store.before = func(txn kvstore.Txn) {
			if !restored && slices.ContainsFunc(txn.Then, func(o kvstore.Op) bool { return o.Kind == kvstore.OpDelete && o.Key == base+"/id/400" }) {
				restored = true
				restore()
				store.answering(t)
			}
		}
		var dead map[allocator.ID]int64
		var stats allocator.GCStats
		for range 2 {
			var err error
			if dead, stats, err = store.backend(t, "").RunGC(t.Context(), nil, allocator.Range{Min: 400, Max: 400}, dead); err != nil {
				t.Fatal(err)
			}
		}
		if !restored || stats.Spared != 1 || inStore(t, store, base+"/id/400") == "" {
			t.Errorf("the store went back: %v; %+v; the ID's key is %q", restored, stats, inStore(t, store, base+"/id/400"))
		}
	})
}

// TestManyReferencesThatDoNotCount: however many there are, a key gets its ID, and is collected
// again; and nothing else is left in the store.
func TestManyReferencesThatDoNotCount(t *testing.T) {
	t.Parallel()
	onRestorables(t, func(t *testing.T, store *restorable) {
		put(t, store, "/id/300", otherKey)
		for part := range 4 {
			var pairs []string
			for i := range 40 {
				pairs = append(pairs, fmt.Sprintf("/value/%s/198.51.100.%d", restoredKey, 40*part+i), "300")
			}
			put(t, store, pairs...)
		}
		be := store.backend(t, "192.0.2.1")
		got, err := be.Acquire(t.Context(), allocator.StringKey(restoredKey), known{allocator.NoID, 500})
		if err != nil || got.ID != 500 || !got.IsNew {
			t.Fatalf("acquired %+v, %v beside references to another's ID", got, err)
		}
		if err := be.Release(t.Context(), got.ID, allocator.StringKey(restoredKey)); err != nil {
			t.Fatal(err)
		}
		var dead map[allocator.ID]int64
		var stats allocator.GCStats
		for range 2 {
			if dead, stats, err = be.RunGC(t.Context(), nil, allocator.Range{Min: 500, Max: 500}, dead); err != nil {
				t.Fatal(err)
			}
		}
		if stats.Deleted != 1 {
			t.Errorf("the ID was not collected: %+v", stats)
		}
		l, err := store.List(t.Context(), base+"/")
		if err != nil {
			t.Fatal(err)
		}
		for _, kv := range l.Pairs {
			if !strings.Contains(kv.Key, "/198.51.100.") && kv.Key != base+"/id/300" {
				t.Errorf("%s is left", kv.Key)
			}
		}
	})
}
