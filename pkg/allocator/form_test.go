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

// TestKeyInAnotherForm: somebody writes the key of a number in a form that is not the canonical
// one. The number means the key, but no reference to it can be written, so the key gets another
// one, once and at once.
func TestKeyInAnotherForm(t *testing.T) {
	t.Parallel()
	server := kvstoretest.StartEtcd(t)
	e := editor{t, server.Client()}
	e.put("/id/300", "b,a", "/value/b,a/192.0.2.9", "300")
	const canonical = wordsKey("a,b")
	var got allocator.ID
	for _, name := range []string{"192.0.2.1", "192.0.2.2"} {
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
		a, err := allocator.NewAllocator(wordsKey(""), backend, allocator.WithMin(256), allocator.WithMax(1000))
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
		if key := means(t, a, 300); key != string(canonical) {
			t.Errorf("300 means %q", key)
		}
		before := store.txns.Load()
		id, isNew, err := a.Allocate(t.Context(), canonical)
		if err != nil || id == 300 || isNew != (got == allocator.NoID) || got != allocator.NoID && id != got {
			t.Errorf("node %s: %s, new %t, %v; the node before had %s", name, id, isNew, err, got)
		}
		if n := store.txns.Load() - before; n > 3 {
			t.Errorf("node %s: %d transactions", name, n)
		}
		got = id
	}
	if key := e.get("/id/" + got.String()); key != string(canonical) {
		t.Errorf("the key of %s is %q", got, key)
	}
}
