package allocator_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hawser-net/hawser/pkg/allocator"
	"github.com/hawser-net/hawser/pkg/kvstore"
)

func largeKey(n, size int) string {
	return fmt.Sprintf("k8s:n=%d", n) + strings.Repeat("x", size) + ";"
}

// TestCollectLargeKeys: unused IDs whose keys together are more than a server takes in one request
// are collected, and one whose key is too large by itself keeps no other from it. References to
// them can be compared all the same.
func TestCollectLargeKeys(t *testing.T) {
	t.Parallel()
	onRestorables(t, func(t *testing.T, store *restorable) {
		const size, number = 30 << 10, 64
		var refs []allocator.Reference
		for id := 300; id < 300+number; id++ {
			key := largeKey(id, size)
			put(t, store, fmt.Sprint("/id/", id), key)
			refs = append(refs, allocator.Reference{ID: allocator.ID(id), Key: allocator.StringKey(key)})
		}
		const hostile = 290 // the first to be listed
		put(t, store, fmt.Sprint("/id/", hostile), largeKey(hostile, 370<<10))
		be, err := allocator.NewKVStoreBackend(allocator.KVStoreConfig{
			Store: store, BasePath: base, Suffix: "192.0.2.1", KeyType: allocator.StringKey(""), Quarantine: time.Hour,
		})
		if err != nil {
			t.Fatal(err)
		}
		if wrong, err := be.Check(t.Context(), refs); err != nil || len(wrong) != number {
			t.Errorf("%d of %d references are found to be missing, %.300v", len(wrong), number, err)
		}
		var seen map[allocator.ID]int64
		var stats allocator.GCStats
		for range 2 {
			if seen, stats, err = be.RunGC(t.Context(), nil, allocator.Range{Min: 256, Max: 65535}, seen); err != nil {
				t.Fatalf("%.300v", err)
			}
		}
		if stats.Deleted+stats.Spared != number+1 || stats.Deleted < number {
			t.Errorf("collected: %+v", stats)
		}
	})
}

// TestAllocateTooLargeKey: a key that no transaction can hold is refused at once, by a message that
// can be read.
func TestAllocateTooLargeKey(t *testing.T) {
	t.Parallel()
	onRestorables(t, func(t *testing.T, store *restorable) {
		if _, ok := store.Backend.(*kvstore.MemoryClient); ok {
			return // it has no limit
		}
		be := store.backend(t, "192.0.2.1")
		a, err := allocator.NewAllocator(allocator.StringKey(""), be, allocator.WithMin(300), allocator.WithMax(400))
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() { done <- a.Run(t.Context()) }()
		defer func() {
			a.Close()
			if err := <-done; err != nil {
				t.Error(err)
			}
		}()
		if err := a.WaitForInitialSync(t.Context()); err != nil {
			t.Fatal(err)
		}
		tries := 0
		store.before = func(txn kvstore.Txn) {
			if len(txn.Then) > 0 && txn.Then[0].Kind == kvstore.OpPut {
				tries++
			}
		}
		_, _, err = a.Allocate(t.Context(), allocator.StringKey(largeKey(1, 500<<10)))
		if !errors.Is(err, kvstore.ErrTxnTooLarge) || len(err.Error()) > 2000 {
			t.Errorf("the error has %d bytes: %.300v", len(err.Error()), err)
		}
		if tries != 1 {
			t.Errorf("%d tries", tries)
		}
	})
}

// TestRewrittenWithLargeKey: someone has written a key over that of an ID which is too large to ask
// for who refers to it. Nodes that start learn of all IDs, and take that one for what it was.
func TestRewrittenWithLargeKey(t *testing.T) {
	t.Parallel()
	onRestorables(t, func(t *testing.T, store *restorable) {
		put(t, store, "/id/300", "k8s:app=x;", "/value/k8s:app=x;/192.0.2.9", "300")
		put(t, store, "/id/300", largeKey(300, 370<<10))
		put(t, store, "/id/301", "k8s:app=y;")
		a, err := allocator.NewAllocator(allocator.StringKey(""), store.backend(t, "192.0.2.1"), allocator.WithMin(300), allocator.WithMax(400))
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() { done <- a.Run(context.Background()) }()
		defer func() {
			a.Close()
			if err := <-done; err != nil {
				t.Error(err)
			}
		}()
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		if err := a.WaitForInitialSync(ctx); err != nil {
			t.Fatal(err)
		}
		for id, want := range map[allocator.ID]string{300: "k8s:app=x;", 301: "k8s:app=y;"} {
			if key, err := a.GetByID(ctx, id); err != nil || key.GetKey() != want {
				t.Errorf("ID %s is %.100v, %v; want %s", id, key, err, want)
			}
		}
	})
}
