package allocator_test

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hawser-net/hawser/pkg/allocator"
	"github.com/hawser-net/hawser/pkg/kvstore"
)

// restarted starts an allocator of a node that was there before and whose store is away until back
// is called. It has assumed the keys.
func restarted(t *testing.T, mem *kvstore.Memory, name string, assume map[string]allocator.ID) (n *node, back func()) {
	t.Helper()
	be, store := backend(t, mem, name)
	var away atomic.Bool
	away.Store(true)
	store.SetFault(func(context.Context, kvstore.MemoryCall) (before, after error) {
		if away.Load() {
			return errors.New("the store is away"), nil
		}
		return nil, nil
	})
	events := make(allocator.AllocatorEventChan, 1<<10)
	a, err := allocator.NewAllocator(allocator.StringKey(""), be, allocator.WithMin(256), allocator.WithMax(65535), allocator.WithEvents(events),
		allocator.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		t.Fatal(err)
	}
	for key, id := range assume {
		if err := a.Assume(allocator.StringKey(key), id); err != nil {
			t.Fatal(err)
		}
	}
	done := make(chan error, 1)
	go func() { done <- a.Run(context.Background()) }()
	t.Cleanup(func() {
		a.Close()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return &node{a, store, events}, func() { away.Store(false) }
}

// A node that starts while the store is away goes on with the IDs it had, also for new uses of
// their keys.
func TestAssume(t *testing.T) {
	t.Parallel()
	mem := kvstore.NewMemory()
	other := newNode(t, mem, "192.0.2.2")
	kept, lost, moved := other.allocate(t, "kept"), allocator.ID(4000), allocator.ID(5000)
	taken := other.allocate(t, "another key")
	now := other.allocate(t, "moved")
	a, back := restarted(t, mem, "192.0.2.1", map[string]allocator.ID{"kept": kept, "lost": lost, "moved": moved, "robbed": taken})
	short, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if id, isNew, err := a.Allocate(short, allocator.StringKey("kept")); err != nil || id != kept || isNew {
		t.Errorf("a known key while the store is away: %d, %v, %v; want %d", id, isNew, err, kept)
	}
	shorter, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if id, _, err := a.Allocate(shorter, allocator.StringKey("unknown")); err == nil {
		t.Errorf("an unknown key got %d without the store", id)
	}
	back()
	path := func(key string) string { return base + "/value/" + key + "/192.0.2.1" }
	for key, id := range map[string]allocator.ID{"kept": kept, "lost": lost, "moved": now} {
		eventually(t, key+" is referred to in the store", func() bool { return inStore(t, other.store, path(key)) == id.String() })
	}
	if got := inStore(t, other.store, base+"/id/4000"); got != "lost" {
		t.Errorf("the ID that the store lost belongs to %q", got)
	}
	got := map[string]allocator.ID{}
	for len(got) < 2 {
		select {
		case ev := <-a.events:
			if ev.Kind == allocator.EventRenumbered {
				got[ev.Key.GetKey()] = ev.ID
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("got new IDs for %v, want moved and robbed", got)
		}
	}
	if got["moved"] != now || got["robbed"] == taken || got["robbed"] == allocator.NoID {
		t.Errorf("got new IDs %v; want moved as %d and robbed not as %d", got, now, taken)
	}
	// Two uses of the key: one assumed, one allocated.
	a.release(t, "kept")
	if inStore(t, other.store, path("kept")) == "" {
		t.Error("the reference went before the last use")
	}
	a.release(t, "kept")
	if got := inStore(t, other.store, path("kept")); got != "" {
		t.Errorf("the reference to %s is left", got)
	}
}

func TestAssumeRefuses(t *testing.T) {
	t.Parallel()
	a := newNode(t, kvstore.NewMemory(), "192.0.2.1")
	id := a.allocate(t, "key")
	for name, err := range map[string]error{
		"another ID for a key in use":  a.Assume(allocator.StringKey("key"), id+1),
		"an ID in use for another key": a.Assume(allocator.StringKey("other"), id),
		"an ID out of range":           a.Assume(allocator.StringKey("other"), 1),
		"an empty key":                 a.Assume(allocator.StringKey(""), 300),
	} {
		if err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
	if err := a.Assume(allocator.StringKey("key"), id); err != nil {
		t.Errorf("the ID in use: %v", err)
	}
}
