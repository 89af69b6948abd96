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
	"github.com/hawser-net/hawser/pkg/kvstore"
	"github.com/hawser-net/hawser/pkg/kvstore/consul"
)

// label is a key of the allocator.
type label string

func (k label) String() string                                  { return string(k) }
func (k label) GetKey() string                                  { return string(k) }
func (k label) PutKey(v string) (allocator.AllocatorKey, error) { return label(v), nil }
func (k label) GetAsMap() map[string]string                     { return map[string]string{"": string(k)} }
func (k label) PutKeyFromMap(m map[string]string) (allocator.AllocatorKey, error) {
	return label(m[""]), nil
}

// startNode returns the allocator of a node, with a connection of its own, which ends with the test.
func startNode(ctx context.Context, t *testing.T, address, suffix string) *allocator.Allocator {
	t.Helper()
	c, err := consul.New(ctx, config(address), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	backend, err := allocator.NewKVStoreBackend(allocator.KVStoreConfig{
		Store: c, BasePath: kvstore.IdentitiesPrefix, Suffix: suffix, KeyType: label(""),
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

// TestAllocator has several nodes number the same keys at once: what matters most of a store, and what Consul has no condition for.
func TestAllocator(t *testing.T) {
	address := server(t)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	const nodes, keys = 6, 25
	var mu sync.Mutex
	numbers := map[string]allocator.ID{}
	owners := map[allocator.ID]string{}
	var wg sync.WaitGroup
	for n := range nodes {
		a := startNode(ctx, t, address, fmt.Sprintf("10.0.0.%d", n))
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

// TestMixedAllocators has two kinds of writers number the same keys at once: this package's, and those that take the lock of a key with Consul's own client, look
// for its references, and write what there is none of, in Cilium's layout. There is one number for each key.
func TestMixedAllocators(t *testing.T) {
	address := server(t)
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
		a := startNode(ctx, t, address, fmt.Sprintf("10.0.0.%d", n))
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
	lock, err := l.kv.LockOpts(&api.LockOptions{Key: kvstore.IdentitiesPrefix + "/locks/" + encoded + ".lock"})
	if err != nil {
		return 0, err
	}
	if _, err := lock.Lock(ctx.Done()); err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, lock.Unlock()) }()
	values := kvstore.IdentitiesPrefix + "/value/" + encoded + "/"
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
		pair := &api.KVPair{Key: kvstore.IdentitiesPrefix + "/id/" + id.String(), Value: []byte(encoded)}
		made, _, err := l.kv.KV().CAS(pair, nil) // an index of 0: only if there is none
		if err != nil {
			return 0, err
		}
		if made {
			return id, put(values+l.node, id.String())
		}
	}
}
