package allocator

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"
)

// TestEventQueueIsBounded has IDs come, go and change keys while the reader stands still or
// follows now and then. Never more waits than there is to report; and whenever the reader has
// read all, it knows what is so.
func TestEventQueueIsBounded(t *testing.T) {
	t.Parallel()
	const ids, keys, remotes = 20, 5, 2
	type place struct {
		remote string
		id     ID
	}
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 1))
		q := &eventQueue{}
		truth, known := map[place]string{}, map[place]string{}
		local, delivered := map[string]ID{}, map[string]ID{}
		read := func() bool {
			ev, more := q.pop()
			if more != nil {
				return false
			}
			at := place{ev.Remote, ev.ID}
			switch ev.Kind {
			case EventUpsert:
				known[at] = ev.Key.GetKey()
			case EventDelete:
				delete(known, at)
			case EventRenumbered:
				delivered[ev.Key.GetKey()] = ev.ID
			}
			return true
		}
		for range 3000 {
			at := place{[]string{"", "other"}[r.IntN(remotes)], ID(1 + r.IntN(ids))}
			key := StringKey(fmt.Sprint("key-", r.IntN(keys)))
			switch have, there := truth[at]; r.IntN(8) {
			case 0:
				q.push(AllocatorEvent{Kind: EventSync, Remote: at.remote})
			case 1, 2:
				if there {
					q.push(AllocatorEvent{Kind: EventDelete, ID: at.id, Key: StringKey(have), Remote: at.remote})
					delete(truth, at)
				}
			case 3:
				from, to := local[string(key)], ID(1+r.IntN(ids))
				if from == to {
					break
				}
				if from != 0 {
					q.push(AllocatorEvent{Kind: EventRenumbered, ID: to, OldID: from, Key: key})
				} else {
					delivered[string(key)] = to
				}
				local[string(key)] = to
			case 4:
				if r.IntN(4) == 0 {
					for range r.IntN(30) {
						read()
					}
				}
			default:
				if there && have != string(key) {
					q.push(AllocatorEvent{Kind: EventDelete, ID: at.id, Key: StringKey(have), Remote: at.remote})
				}
				q.push(AllocatorEvent{Kind: EventUpsert, ID: at.id, Key: key, Remote: at.remote}) // perhaps once more
				truth[at] = string(key)
			}
			if n := q.waiting.Len(); n > remotes*(2*ids+1)+keys || n != len(q.places) {
				t.Fatalf("seed %d: %d events wait, by %d subjects", seed, n, len(q.places))
			}
			if r.IntN(500) == 0 {
				for read() {
				}
				if !maps.Equal(known, truth) || !maps.Equal(delivered, local) {
					t.Fatalf("seed %d: the reader knows %v and %v, it is %v and %v", seed, known, delivered, truth, local)
				}
			}
		}
	}
}

// TestEventQueueKeepsOrder: a reader that waits gets events that do not cancel out in order.
func TestEventQueueKeepsOrder(t *testing.T) {
	t.Parallel()
	q := &eventQueue{}
	out := make(AllocatorEventChan)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		q.pump(ctx, out)
	}()
	for id := range ID(100) {
		q.push(AllocatorEvent{Kind: EventUpsert, ID: id + 1, Key: StringKey("k")})
	}
	q.push(AllocatorEvent{Kind: EventSync})
	for id := range ID(100) {
		if ev := <-out; ev.Kind != EventUpsert || ev.ID != id+1 {
			t.Fatalf("got event %+v, want ID %d", ev, id+1)
		}
	}
	if ev := <-out; ev.Kind != EventSync {
		t.Errorf("got event %+v at the end", ev)
	}
	cancel()
	<-done
}
