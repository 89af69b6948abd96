package allocator_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-net/hawser/pkg/allocator"
	"github.com/hawser-net/hawser/pkg/kvstore"
)

// TestPendingRequest: one request for a key outlives the calls that wait for it, serves later
// calls, and gives back an ID that no call wants any more.
func TestPendingRequest(t *testing.T) {
	t.Parallel()
	key, value := allocator.StringKey("web"), base+"/value/web/192.0.2.1"
	run := func(name string, answer time.Duration, f func(t *testing.T, n *node, requests func() int)) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNode(t, kvstore.NewMemory(), "192.0.2.1", allocator.WithTimeout(time.Minute))
				var mu sync.Mutex
				requests := 0
				n.store.SetFault(func(ctx context.Context, call kvstore.MemoryCall) (before, after error) {
					if call.Op != "txn" || !strings.Contains(call.Key, "/value/web/") {
						return nil, nil
					}
					mu.Lock()
					requests++
					mu.Unlock()
					select {
					case <-time.After(answer):
						return nil, nil
					case <-ctx.Done():
						return ctx.Err(), nil
					}
				})
				f(t, n, func() int {
					mu.Lock()
					defer mu.Unlock()
					return requests
				})
			})
		})
	}
	giveUp := func(t *testing.T, n *node, after time.Duration) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), after)
		defer cancel()
		if id, _, err := n.Allocate(ctx, key); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("%d, %v", id, err)
		}
	}
	run("a later call gets it", 10*time.Second, func(t *testing.T, n *node, requests func() int) {
		began := time.Now()
		giveUp(t, n, time.Second)
		giveUp(t, n, time.Second)
		var wg sync.WaitGroup
		var mu sync.Mutex
		made := 0
		for range 3 {
			wg.Go(func() {
				_, isNew, err := n.Allocate(t.Context(), key)
				if took := time.Since(began); err != nil || took != 10*time.Second {
					t.Errorf("%v after %v", err, took)
				}
				mu.Lock()
				defer mu.Unlock()
				if isNew {
					made++
				}
			})
		}
		wg.Wait()
		if requests() != 1 || made != 1 {
			t.Errorf("%d requests, and %d calls made the ID", requests(), made)
		}
		for i := range 3 {
			if last, err := n.Release(t.Context(), key); err != nil || last != (i == 2) {
				t.Errorf("release %d of 3: last %v, %v", i+1, last, err)
			}
		}
	})
	run("no caller wants it any more", 10*time.Second, func(t *testing.T, n *node, _ func() int) {
		giveUp(t, n, time.Second)
		time.Sleep(9500 * time.Millisecond)
		if inStore(t, n.store, value) == "" {
			t.Fatal("the request ended with the call")
		}
		time.Sleep(time.Minute)
		if got := inStore(t, n.store, value); got != "" {
			t.Errorf("a reference to %s is left", got)
		}
	})
	run("a store that refuses", 0, func(t *testing.T, n *node, _ func() int) {
		refused := errors.New("permission denied")
		n.store.SetFault(func(context.Context, kvstore.MemoryCall) (before, after error) { return refused, nil })
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, _, err := n.Allocate(ctx, key); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, refused) {
			t.Errorf("a call that stops waiting gets %v", err)
		}
		n.store.SetFault(nil)
	})
	run("a store that does not answer", time.Hour, func(t *testing.T, n *node, requests func() int) {
		giveUp(t, n, 150*time.Second)
		if got := requests(); got < 3 { // none lasts longer than its time
			t.Errorf("%d requests", got)
		}
	})
}
