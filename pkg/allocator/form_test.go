package allocator_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/hawser-net/hawser/pkg/allocator"
	"github.com/hawser-net/hawser/pkg/kvstore/etcd"
	"github.com/hawser-net/hawser/pkg/kvstore/kvstoretest"
)

// wordsKey is a set of words. Its canonical string has them sorted; any order can be read.
type wordsKey string

func (k wordsKey) String() string { return string(k) }
func (k wordsKey) GetKey() string { return string(k) }

func (wordsKey) PutKey(s string) (allocator.AllocatorKey, error) {
	words := strings.Split(s, ",")
	slices.Sort(words)
	return wordsKey(strings.Join(words, ",")), nil
}

// wordsNode is a node whose keys are sets of words.
func wordsNode(t *testing.T, server *kvstoretest.Etcd, name string) (*allocator.Allocator, *counted) {
	t.Helper()
	cfg := etcd.Defaults()
	cfg.Endpoints, cfg.QPS = []string{server.Endpoint()}, 0
	client, err := etcd.New(t.Context(), cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	store := &counted{Backend: client}
	backend, err := allocator.NewKVStoreBackend(allocator.KVStoreConfig{Store: store, BasePath: base, Suffix: name, KeyType: wordsKey("")})
	if err != nil {
		t.Fatal(err)
	}
	a, err := allocator.NewAllocator(wordsKey(""), backend, allocator.WithMin(256), allocator.WithMax(1000), allocator.WithMasterKeyProtection())
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- a.Run(context.Background()) }()
	t.Cleanup(func() {
		a.Close()
		if err := errors.Join(<-done, client.Close()); err != nil {
			t.Error(err)
		}
	})
	if err := a.WaitForInitialSync(t.Context()); err != nil {
		t.Fatal(err)
	}
	return a, store
}

// TestKeyInAnotherForm: a client writes the key of an ID, or of a reference, in a form that is not
// the canonical one. It is the same key: a node that starts takes that ID into use, makes no second
// one, and writes the canonical form. The ID is not collected.
func TestKeyInAnotherForm(t *testing.T) {
	t.Parallel()
	const canonical = wordsKey("a,b")
	for _, tt := range []struct {
		name  string
		setUp func(e editor)
		used  bool
	}{
		{"the ID is made so", func(e editor) { e.put("/id/300", "b,a") }, false},
		{"the ID and its reference are made so", func(e editor) { e.put("/id/300", "b,a", "/value/b,a/192.0.2.9", "300") }, true},
		{"the ID is made so and used", func(e editor) { e.put("/id/300", "b,a", "/value/a,b/192.0.2.9", "300") }, true},
		{"the ID in use is edited", func(e editor) {
			e.put("/id/300", "a,b", "/value/a,b/192.0.2.9", "300")
			e.put("/id/300", "b,a")
		}, true},
		{"the reference is moved", func(e editor) {
			e.put("/id/300", "a,b", "/value/a,b/192.0.2.9", "300")
			e.put("/value/b,a/192.0.2.9", "300")
			e.remove("/value/a,b/192.0.2.9")
		}, true},
		{"both are", func(e editor) {
			e.put("/id/300", "a,b", "/value/a,b/192.0.2.9", "300")
			e.put("/id/300", "b,a", "/value/b,a/192.0.2.9", "300")
			e.remove("/value/a,b/192.0.2.9")
		}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			server := kvstoretest.StartEtcd(t)
			e := editor{t, server.Client()}
			tt.setUp(e)
			first, store := wordsNode(t, server, "192.0.2.1")
			gc, err := allocator.NewKVStoreBackend(allocator.KVStoreConfig{Store: store, BasePath: base, KeyType: wordsKey("")})
			if err != nil {
				t.Fatal(err)
			}
			var seen map[allocator.ID]int64
			collect := func() {
				t.Helper()
				for range 3 {
					if seen, _, err = gc.RunGC(t.Context(), nil, allocator.Range{Min: 256, Max: 1000}, seen); err != nil {
						t.Fatal(err)
					}
				}
				if key := e.get("/id/300"); key == "none" {
					t.Fatal("an ID in use was collected")
				}
			}
			if tt.used {
				collect()
			}
			second, _ := wordsNode(t, server, "192.0.2.2")
			for _, a := range []*allocator.Allocator{first, second} {
				if key := means(t, a, 300); key != string(canonical) || len(a.Edited()) != 0 {
					t.Errorf("300 means %q, edited %v", key, a.Edited())
				}
				before := store.txns.Load()
				if id, isNew, err := a.Allocate(t.Context(), canonical); err != nil || id != 300 || isNew {
					t.Errorf("%s, new %t, %v", id, isNew, err)
				}
				if n := store.txns.Load() - before; n > 3 {
					t.Errorf("%d transactions", n)
				}
			}
			if key := e.get("/id/300"); key != string(canonical) {
				t.Errorf("the key of 300 is %q", key)
			}
			// Edited under the nodes that use it.
			e.put("/id/300", "b,a")
			late, _ := wordsNode(t, server, "192.0.2.3")
			if id, isNew, err := late.Allocate(t.Context(), canonical); err != nil || id != 300 || isNew {
				t.Errorf("a node that starts after an edit: %s, new %t, %v", id, isNew, err)
			}
			for _, a := range []*allocator.Allocator{first, second, late} {
				if key := means(t, a, 300); key != string(canonical) || len(a.Edited()) != 0 {
					t.Errorf("300 means %q, edited %v", key, a.Edited())
				}
			}
			collect()
		})
	}
}
