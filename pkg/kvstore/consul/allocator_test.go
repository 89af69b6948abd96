package consul_test

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/hawser-net/hawser/pkg/allocator"
	"github.com/hawser-net/hawser/pkg/allocator/conformance"
	"github.com/hawser-net/hawser/pkg/kvstore"
	"github.com/hawser-net/hawser/pkg/kvstore/consul"
	"github.com/hawser-net/hawser/pkg/kvstore/kvstoretest"
)

// basePath is above all keys of the allocators in these tests.
const basePath = "test/numbers"

// label is a key of the allocator.
type label string

func (k label) String() string                                  { return string(k) }
func (k label) GetKey() string                                  { return string(k) }
func (k label) PutKey(v string) (allocator.AllocatorKey, error) { return label(v), nil }

// startNode returns the allocator of a node, with a connection of its own, which ends with the
// test.
func startNode(ctx context.Context, t *testing.T, cfg consul.Config, suffix string) *allocator.Allocator {
	t.Helper()
	c, err := consul.New(ctx, cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	backend, err := allocator.NewKVStoreBackend(allocator.KVStoreConfig{
		Store: c, BasePath: basePath, Suffix: suffix, KeyType: label(""),
	})
	if err != nil {
		t.Fatal(err)
	}
	a, err := allocator.NewAllocator(label(""), backend, allocator.WithMin(256), allocator.WithMax(65535))
	if err != nil {
		t.Fatal(err)
	}
	run, stop := context.WithCancel(context.WithoutCancel(ctx)) // the test's context ends before its cleanups
	ended := make(chan error, 1)
	go func() { ended <- a.Run(run) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return a
}

// TestAllocator has several nodes number the same keys at once: what matters most of a store, and
// what Consul has no condition for.
func TestAllocator(t *testing.T) {
	address := kvstoretest.StartConsul(t)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	const nodes, keys = 6, 25
	var mu sync.Mutex
	numbers := map[string]allocator.ID{}
	owners := map[allocator.ID]string{}
	var wg sync.WaitGroup
	for n := range nodes {
		a := startNode(ctx, t, config(address), fmt.Sprintf("10.0.0.%d", n))
		wg.Add(1)
		go func() {
			defer wg.Done()
			for i := range keys {
				key := fmt.Sprintf("k8s:app=%d;k8s:a.b/c=d;", (i+n)%keys)
				id, _, err := a.Allocate(ctx, label(key))
				if err != nil {
					t.Errorf("allocate: %v", err)
					return
				}
				mu.Lock()
				if have, ok := numbers[key]; ok && have != id {
					t.Errorf("%s is %d and %d", key, have, id)
				}
				if have, ok := owners[id]; ok && have != key {
					t.Errorf("%d is %s and %s", id, have, key)
				}
				numbers[key], owners[id] = id, key
				mu.Unlock()
			}
		}()
	}
	wg.Wait()
}

// TestAllocatorConformance runs the suite of all allocator backends on a real Consul.
func TestAllocatorConformance(t *testing.T) {
	address := kvstoretest.StartConsul(t)
	var clients []*consul.Client
	settings := api.DefaultNonPooledConfig()
	settings.Address = address
	raw, err := api.NewClient(settings)
	if err != nil {
		t.Fatal(err)
	}
	conformance.Run(t, conformance.Harness{
		IDs: allocator.Range{Min: 256, Max: 65535},
		Open: func(t *testing.T, node string) allocator.Backend {
			t.Helper()
			cfg := config(address)
			cfg.LeaseTTL = consul.MinLeaseTTL // it asks for its sessions every third of that
			c, err := consul.New(t.Context(), cfg, nil)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { c.Close() })
			clients = append(clients, c)
			b, err := allocator.NewKVStoreBackend(allocator.KVStoreConfig{
				Store: c, BasePath: basePath, Suffix: node, KeyType: allocator.StringKey(""),
			})
			if err != nil {
				t.Fatal(err)
			}
			return b
		},
		LoseReferences: func(t *testing.T) {
			t.Helper()
			for _, c := range clients {
				for _, id := range c.SessionIDs() {
					if _, err := raw.Session().Destroy(id, nil); err != nil {
						t.Fatal(err)
					}
				}
			}
		},
	})
}

// TestMixedAllocators has two kinds of writers number the same keys at once: this package's, and
// those that take the lock of a key with Consul's own client, look for its references, and write
// what there is none of, in Cilium's layout. There is one number for each key.
func TestMixedAllocators(t *testing.T) {
	address := kvstoretest.StartConsul(t)
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
	defer cancel()
	const nodes, keys = 3, 15
	text := func(i int) string { return fmt.Sprintf("k8s:app=%d;k8s:a.b/c=d;", i%keys) }
	var mu sync.Mutex
	numbers := map[string]allocator.ID{}
	note := func(key string, id allocator.ID) {
		mu.Lock()
		defer mu.Unlock()
		if have, ok := numbers[key]; ok && have != id {
			t.Errorf("%s is %d and %d", key, have, id)
		}
		numbers[key] = id
	}
	var wg sync.WaitGroup
	for n := range nodes {
		a := startNode(ctx, t, config(address), fmt.Sprintf("10.0.0.%d", n))
		wg.Go(func() {
			for i := range keys {
				id, _, err := a.Allocate(ctx, label(text(i+n)))
				if err != nil {
					t.Errorf("allocate: %v", err)
					return
				}
				note(text(i+n), id)
			}
		})
		other, err := newLocker(address, fmt.Sprintf("10.0.1.%d", n))
		if err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			for i := range keys {
				id, err := other.allocate(ctx, text(keys-i+n))
				if err != nil {
					t.Errorf("allocate under a lock: %v", err)
					return
				}
				note(text(keys-i+n), id)
			}
		})
	}
	wg.Wait()
	if len(numbers) != keys {
		t.Errorf("%d keys have a number, want %d", len(numbers), keys)
	}
}

// TestEditedNumberInBothForms: a number to which nodes refer in both forms of its key gets that
// back when a client writes another one over it, and they keep it.
func TestEditedNumberInBothForms(t *testing.T) {
	address := kvstoretest.StartConsul(t)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	const web, friend = "k8s:app=web;", "k8s:app=friend;"
	plain := config(address)
	plain.PlainKeys = true
	nodes := []*allocator.Allocator{startNode(ctx, t, plain, "10.0.0.1"), startNode(ctx, t, config(address), "10.0.0.2")}
	ids := make([]allocator.ID, len(nodes))
	for i, a := range nodes {
		var err error
		if ids[i], _, err = a.Allocate(ctx, label(web)); err != nil || ids[i] != ids[0] {
			t.Fatalf("node %d has %s, %v; node 0 %s", i, ids[i], err, ids[0])
		}
	}
	store, err := consul.New(ctx, config(address), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	refs, err := store.List(ctx, basePath+"/value/")
	if err != nil || len(refs.Pairs) != 2 {
		t.Fatalf("references %+v, %v", refs.Pairs, err)
	}
	master := basePath + "/id/" + ids[0].String()
	if err := kvstore.Put(ctx, store, master, []byte(store.Layout().Encode(friend)), kvstore.Permanent); err != nil {
		t.Fatal(err)
	}
	for {
		kv, err := store.Get(ctx, master)
		if err == nil && store.Layout().Decode(string(kv.Value)) == web {
			break
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			t.Fatalf("the number stays %q, %v", kv.Value, err)
		}
	}
	for i, a := range nodes {
		// It waits until the node has done with the edit.
		if id, _, err := a.Allocate(ctx, label(web)); err != nil || id != ids[0] {
			t.Errorf("node %d has %s afterwards, %v; want %s", i, id, err, ids[0])
		}
	}
}

// locker allocates as Cilium does on Consul: under a lock of the key, in several requests.
type locker struct {
	kv   *api.Client
	node string
}

func newLocker(address, node string) (*locker, error) {
	cfg := api.DefaultNonPooledConfig()
	cfg.Address = address
	kv, err := api.NewClient(cfg)
	return &locker{kv, node}, err
}

func (l *locker) allocate(ctx context.Context, key string) (id allocator.ID, err error) {
	encoded := base64.URLEncoding.EncodeToString([]byte(key))
	lock, err := l.kv.LockOpts(&api.LockOptions{Key: basePath + "/locks/" + encoded + ".lock"})
	if err != nil {
		return 0, err
	}
	if _, err := lock.Lock(ctx.Done()); err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, lock.Unlock()) }()
	values := basePath + "/value/" + encoded + "/"
	put := func(key, value string) error {
		_, err := l.kv.KV().Put(&api.KVPair{Key: key, Value: []byte(value)}, nil)
		return err
	}
	found, _, err := l.kv.KV().List(values, &api.QueryOptions{RequireConsistent: true})
	if err != nil {
		return 0, err
	}
	if len(found) > 0 {
		if id, err = allocator.ParseID(string(found[0].Value)); err != nil {
			return 0, err
		}
		return id, put(values+l.node, id.String())
	}
	for {
		id = allocator.ID(256 + rand.IntN(65000))
		pair := &api.KVPair{Key: basePath + "/id/" + id.String(), Value: []byte(encoded)}
		made, _, err := l.kv.KV().CAS(pair, nil) // an index of 0: only if there is none
		if err != nil {
			return 0, err
		}
		if made {
			return id, put(values+l.node, id.String())
		}
	}
}
