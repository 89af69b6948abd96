package allocator_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hawser-net/hawser/pkg/allocator"
)

// scripted is a backend that delivers what a test scripts.
type scripted struct {
	allocator.Backend
	say chan func(allocator.CacheMutations)
}

func (s *scripted) ListAndWatch(ctx context.Context, handler allocator.CacheMutations) error {
	for {
		select {
		case f := <-s.say:
			f(handler)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Check implements [allocator.Backend].
func (*scripted) Check(context.Context, []allocator.Reference) ([]allocator.Reference, error) {
	return nil, nil
}

func newScripted() *scripted { return &scripted{say: make(chan func(allocator.CacheMutations))} }

// TestRestoredIDIsNotified: an ID that loses its key, as an object in quarantine does, and gets one
// again is reported to all readers, whatever the key and however often, even if it was in
// quarantine when it was first observed; and nothing is delivered twice.
func TestRestoredIDIsNotified(t *testing.T) {
	t.Parallel()
	web, db := allocator.StringKey("app=web"), allocator.StringKey("app=db")
	upsert := func(id allocator.ID, key allocator.AllocatorKey) func(allocator.CacheMutations) {
		return func(m allocator.CacheMutations) { m.OnUpsert(allocator.Mapping{ID: id, Key: key, Created: 1}) }
	}
	listed := func(m allocator.CacheMutations) { m.OnListDone(1) }
	script := []struct {
		say  func(allocator.CacheMutations)
		want string // "" for nothing
	}{
		{upsert(301, nil), ""}, // in quarantine from the start
		{listed, "sync"},
		{upsert(300, web), "upsert 300 app=web"},
		{upsert(300, web), ""},
		{upsert(300, nil), "delete 300 app=web"},
		{upsert(300, nil), ""},
		{upsert(300, web), "upsert 300 app=web"},
		{upsert(300, web), ""},
		{upsert(300, nil), "delete 300 app=web"},
		{upsert(300, db), "upsert 300 app=db"}, // reclaimed for another key
		{upsert(300, web), "delete 300 app=db, upsert 300 app=web"},
		{upsert(301, web), "upsert 301 app=web"},
		{upsert(301, nil), "delete 301 app=web"},
		{listed, ""}, // the watch began anew
		{upsert(301, db), "upsert 301 app=db"},
	}
	for _, remote := range []bool{false, true} {
		events := make(allocator.AllocatorEventChan, 64)
		own, other := newScripted(), newScripted()
		a, err := allocator.NewAllocator(allocator.StringKey(""), own, allocator.WithMin(256), allocator.WithMax(65535), allocator.WithEvents(events))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- a.Run(ctx) }()
		source, from := own, ""
		if remote {
			source, from = other, "east"
			if _, err := a.WatchRemoteKVStore(from, other, nil); err != nil {
				t.Fatal(err)
			}
		}
		for n, step := range script {
			source.say <- step.say
			for _, want := range strings.Split(step.want, ", ") {
				if want == "" {
					continue // what is delivered too much comes before the next
				}
				select {
				case ev := <-events:
					text := ev.Kind.String()
					if ev.Key != nil {
						text = fmt.Sprintf("%s %s %s", ev.Kind, ev.ID, ev.Key)
					}
					if ev.Remote != from || text != want {
						t.Fatalf("remote %t, step %d: %q of %q, want %q of %q", remote, n, text, ev.Remote, want, from)
					}
				case <-time.After(time.Minute):
					t.Fatalf("remote %t, step %d: %q is not delivered", remote, n, want)
				}
			}
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		a.Close()
	}
}
