package identities

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-net/hawser/internal/identity"
	k8sids "github.com/hawser-net/hawser/internal/k8s/identities"
	"github.com/hawser-net/hawser/internal/labels"
	"github.com/hawser-net/hawser/internal/storekeys"
	"github.com/hawser-net/hawser/pkg/allocator"
	"github.com/hawser-net/hawser/pkg/kvstore"
)

type sinkFunc func(map[identity.ID]labels.Set, []identity.ID) error

func (f sinkFunc) SetIdentities(up map[identity.ID]labels.Set, del []identity.ID) error {
	return f(up, del)
}

// observed returns identities of which a test says what is observed.
func observed(t *testing.T, cfg Config) *Identities {
	t.Helper()
	cfg.Log, cfg.First, cfg.Last = slog.New(slog.DiscardHandler), 256, 65535
	cfg.Timeout, cfg.SyncInterval = time.Minute, time.Minute
	backend, err := allocator.NewKVStoreBackend(allocator.KVStoreConfig{
		Store: kvstore.NewMemory().Client(), BasePath: storekeys.IdentitiesPrefix, Suffix: "192.0.2.1", KeyType: k8sids.Key{},
	})
	if err != nil {
		t.Fatal(err)
	}
	cfg.Store = backend
	ids, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(ids.Close)
	return ids
}

// What the store says of IDs that are not the cluster's to give, or of labels that no pod can
// have, changes nothing: one key could otherwise make the world a pod, or a pod a host.
func TestStoreCannotRedefineIdentities(t *testing.T) {
	t.Parallel()
	ids := observed(t, Config{})
	set := func(s string) k8sids.Key {
		parsed, err := labels.ParseKV(s)
		if err != nil {
			t.Fatal(err)
		}
		return k8sids.Key{Set: parsed}
	}
	web := "k8s:app=web;k8s:io.cilium.k8s.policy.cluster=default;"
	for _, ev := range []allocator.AllocatorEvent{
		{Kind: allocator.EventUpsert, ID: 300, Key: set(web)},
		{Kind: allocator.EventUpsert, ID: 301, Key: set(web + "gen:io.cilium.k8s.named-ports=http.TCP.80;")},
		{Kind: allocator.EventUpsert, ID: 1, Key: set(web)},
		{Kind: allocator.EventUpsert, ID: 9, Key: set(web)},
		{Kind: allocator.EventUpsert, ID: 255, Key: set(web)},
		{Kind: allocator.EventUpsert, ID: 65536, Key: set(web)},
		{Kind: allocator.EventUpsert, ID: 1<<24 + 1, Key: set(web)},
		{Kind: allocator.EventUpsert, ID: 302, Key: set("reserved:host=;")},
		{Kind: allocator.EventUpsert, ID: 303, Key: set("cidr:10.0.0.0/8=;reserved:world=;")},
		{Kind: allocator.EventUpsert, ID: 304, Key: set("block:10.0.0.0/8=;" + web)},
		{Kind: allocator.EventDelete, ID: 9, Key: set(web)},
		{Kind: allocator.EventSync},
	} {
		ids.events <- ev
	}
	ctx, cancel := context.WithCancel(t.Context())
	got := map[identity.ID]labels.Set{}
	err := ids.Run(ctx, sinkFunc(func(up map[identity.ID]labels.Set, del []identity.ID) error {
		for id, s := range up {
			got[id] = s
		}
		for _, id := range del {
			delete(got, id)
		}
		return nil
	}), cancel, func(labels.Set, identity.ID) {})
	if err != nil {
		t.Fatal(err)
	}
	want := ids.static()
	want[300], want[301] = set(web).Set, set(web+"gen:io.cilium.k8s.named-ports=http.TCP.80;").Set
	if len(got) != len(want) {
		t.Errorf("%d identities, want %d", len(got), len(want))
	}
	for id, s := range want {
		if got[id].KVString() != s.KVString() {
			t.Errorf("identity %d is %s, want %s", id, got[id], s)
		}
	}
}

// TestDeletedInUse: an ID that is deleted while addresses have it means what it meant, until the
// last of them goes or it is given labels again.
func TestDeletedInUse(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		used := map[identity.ID]bool{300: true, 301: true}
		var mu sync.Mutex
		ids := observed(t, Config{Referenced: func() map[identity.ID]bool {
			mu.Lock()
			defer mu.Unlock()
			return maps.Clone(used)
		}})
		got := map[identity.ID]labels.Set{}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() {
			ended <- ids.Run(ctx, sinkFunc(func(up map[identity.ID]labels.Set, del []identity.ID) error {
				mu.Lock()
				defer mu.Unlock()
				maps.Copy(got, up)
				for _, id := range del {
					delete(got, id)
				}
				return nil
			}), func() {}, func(labels.Set, identity.ID) {})
		}()
		want := func(when string, want ...identity.ID) {
			t.Helper()
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			for id := identity.ID(300); id < 303; id++ {
				_, known := ids.Labels(id)
				if _, ok := got[id]; ok != slices.Contains(want, id) || known != ok {
					t.Errorf("%s: ID %d is known %v, to policy %v; want %v", when, id, known, ok, want)
				}
			}
		}
		for id := allocator.ID(300); id < 303; id++ {
			ids.events <- allocator.AllocatorEvent{Kind: allocator.EventUpsert, ID: id, Key: k8sids.Key{Set: app("web")}}
		}
		want("observed", 300, 301, 302)
		for id := allocator.ID(300); id < 303; id++ {
			ids.events <- allocator.AllocatorEvent{Kind: allocator.EventDelete, ID: id}
		}
		want("deleted", 300, 301)
		time.Sleep(time.Hour)
		want("an hour later", 300, 301)
		ids.events <- allocator.AllocatorEvent{Kind: allocator.EventUpsert, ID: 300, Key: k8sids.Key{Set: app("web")}}
		mu.Lock()
		clear(used)
		mu.Unlock()
		time.Sleep(releasePause)
		want("unused", 300)
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
