package allocator_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/hawser-net/hawser/pkg/allocator"
	"github.com/hawser-net/hawser/pkg/kvstore"
)

// Anyone may have written anything to the store: nothing there may crash a node, or make it use an
// ID that the store has for another key.
func FuzzStoreContent(f *testing.F) {
	f.Add("key", "id/5=key\nvalue/key/192.0.2.9=5\n")
	f.Add("key", "id/5=other\nvalue/key/192.0.2.9=5\nvalue/key/192.0.2.8=6")
	f.Add("a/b", "value/a/b=7\nvalue/a/b/=8\nvalue/a/b/c/d=9\nid/07=a/b\nid/=x\nid/-1=x\nid/18446744073709551616=y")
	f.Add("k8s:a=b;", "id/1=\nid/2=k8s:a=b;\nid/3=k8s:a=b;\nvalue//=1\nvalue/k8s:a=b;/n= 3 \nlocks/=1")
	f.Fuzz(func(t *testing.T, text, content string) {
		if text == "" || len(content) > 4096 {
			t.Skip()
		}
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		mem := kvstore.NewMemory()
		store := mem.Client()
		defer store.Close()
		for line := range strings.SplitSeq(content, "\n") {
			k, v, _ := strings.Cut(line, "=")
			if k == "" {
				continue
			}
			if err := kvstore.Put(ctx, store, base+"/"+k, []byte(v), kvstore.Permanent); err != nil {
				t.Fatal(err)
			}
		}
		be, err := allocator.NewKVStoreBackend(allocator.KVStoreConfig{Store: store, BasePath: base, Suffix: "192.0.2.1", KeyType: allocator.StringKey("")})
		if err != nil {
			t.Fatal(err)
		}
		a, err := allocator.NewAllocator(allocator.StringKey(""), be, allocator.WithMin(1), allocator.WithMax(8))
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
		key := allocator.StringKey(text)
		id, _, err := a.Allocate(ctx, key)
		switch {
		case err == nil:
			kv, err := store.Get(t.Context(), base+"/id/"+id.String())
			if err != nil || string(kv.Value) != text {
				t.Fatalf("key %q got %d, which the store has as %q, %v", text, id, kv.Value, err)
			}
			if got, err := a.GetByID(t.Context(), id); err != nil || got.GetKey() != text {
				t.Errorf("ID %d is %v, %v", id, got, err)
			}
		case errors.Is(err, allocator.ErrExhausted), errors.Is(err, context.DeadlineExceeded), errors.Is(err, allocator.ErrContended):
			// Full, or a lock that is never released.
		default:
			t.Fatalf("allocate %q: %v", text, err)
		}
		var dead map[allocator.ID]int64
		for range 2 {
			if dead, _, err = a.RunGC(t.Context(), nil, dead); err != nil {
				t.Fatal(err)
			}
		}
		if _, _, err := be.RunLocksGC(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		if id != allocator.NoID {
			if _, err := store.Get(t.Context(), base+"/id/"+id.String()); err != nil {
				t.Errorf("ID %d of %q is in use and was collected: %v", id, text, err)
			}
		}
	})
}
