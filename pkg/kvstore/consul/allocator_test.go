package consul_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

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
		c, err := consul.New(ctx, config(address), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		backend, err := allocator.NewKVStoreBackend(allocator.KVStoreConfig{
			Store: c, BasePath: kvstore.IdentitiesPrefix, Suffix: fmt.Sprintf("10.0.0.%d", n), KeyType: label(""),
		})
		if err != nil {
			t.Fatal(err)
		}
		a, err := allocator.NewAllocator(label(""), backend, allocator.WithMin(256), allocator.WithMax(65535))
		if err != nil {
			t.Fatal(err)
		}
		run, stop := context.WithCancel(ctx)
		ended := make(chan error, 1)
		go func() { ended <- a.Run(run) }()
		defer func() {
			stop()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}()
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
