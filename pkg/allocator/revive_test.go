package allocator_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hawser-net/hawser/pkg/allocator"
)

// scripted is a backend that tells what a test has it tell.
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

// TestRevivedNumberIsTold: a number that loses its key, as an object that rests does, and gets one
// again is told to everybody, with whatever key and however often, if it rested when it was first
// observed too; and nothing is delivered twice.
func TestRevivedNumberIsTold(t *testing.T) {
	t.Parallel()
	web, db := allocator.StringKey("app=web"), allocator.StringKey("app=db")
	upsert := func(id allocator.ID, key allocator.AllocatorKey) func(allocator.CacheMutations) {
		return func(m allocator.CacheMutations) { m.OnUpsert(allocator.Mapping{ID: id, Key: key, Created: 1}) }
	}
	listed := func(m allocator.CacheMutations) { m.OnListDone(1) }
	script := []struct {
		say  func(allocator.CacheMutations)
		told string // "" for nothing
	}{
		{upsert(301, nil), ""}, // it rests at the start
		{listed, "sync"},
		{upsert(300, web), "upsert 300 app=web"},
		{upsert(300, web), ""},
		{upsert(300, nil), "delete 300 app=web"},
		{upsert(300, nil), ""},
		{upsert(300, web), "upsert 300 app=web"},
		{upsert(300, web), ""},
		{upsert(300, nil), "delete 300 app=web"},
		{upsert(300, db), "upsert 300 app=db"}, // seized for others
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
		teller, from := own, ""
		if remote {
			teller, from = other, "east"
			if _, err := a.WatchRemoteKVStore(from, other, nil); err != nil {
				t.Fatal(err)
			}
		}
		for n, step := range script {
			teller.say <- step.say
			for _, want := range strings.Split(step.told, ", ") {
				if want == "" {
					continue // what is told too much is told before the next
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
					t.Fatalf("remote %t, step %d: %q is not told", remote, n, want)
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
