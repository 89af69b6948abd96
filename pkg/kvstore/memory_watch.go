package kvstore

import (
	"context"
	"sort"
	"strings"
	"time"

	"github.com/hawser-net/hawser/pkg/kvstore/internal/driver"
	"github.com/hawser-net/hawser/pkg/retry"
)

// BreakWatches cuts the streams of all watches of this connection. Each resumes after its last
// event, or relists if the store has since been compacted beyond it ([Memory.Compact]).
func (c *MemoryClient) BreakWatches() { c.conn.BreakWatches() }

// Watch implements [Backend].
func (c *MemoryClient) Watch(ctx context.Context, prefix string) <-chan Event {
	return driver.Watch(ctx, c.conn, func(ctx context.Context, send func(...Event) bool) {
		w := memoryWatch{client: c, prefix: prefix, send: send}
		w.run(ctx)
	})
}

type memoryWatch struct {
	client *MemoryClient
	prefix string
	send   func(...Event) bool
	known  WatchState
	next   int64 // first revision not yet delivered
	// restored is how often the store had gone back when it was listed.
	restored int
}

func (w *memoryWatch) run(ctx context.Context) {
	relist := true
	for ctx.Err() == nil {
		if relist {
			w.client.store.mu.Lock()
			w.restored = w.client.store.restored
			w.client.store.mu.Unlock()
			l, err := w.client.List(ctx, w.prefix)
			if err != nil {
				// A fault function decides when the store is back; a quick retry is right for a
				// store in memory.
				retry.Sleep(ctx, time.Millisecond)
				continue
			}
			if !w.send(w.known.Replace(l)...) {
				return
			}
			w.next = l.Revision + 1
		}
		relist = w.follow(ctx)
	}
}

// follow delivers changes until the stream breaks, and reports whether the watch must list again.
func (w *memoryWatch) follow(ctx context.Context) (relist bool) {
	m := w.client.store
	broken := w.client.conn.Broken()
	for {
		m.mu.Lock()
		changed := m.changed
		if w.next <= m.compacted || w.restored != m.restored {
			m.mu.Unlock()
			return true
		}
		from := sort.Search(len(m.log), func(i int) bool { return m.log[i].rev >= w.next })
		var events []Event
		for _, ch := range m.log[from:] {
			if !strings.HasPrefix(ch.kv.Key, w.prefix) {
				continue
			}
			var ev Event
			var ok bool
			if ch.deleted {
				ev, ok = w.known.Delete(ch.kv.Key, ch.rev)
			} else {
				ev, ok = w.known.Put(ch.kv.clone())
			}
			if ok {
				events = append(events, ev)
			}
		}
		w.next = m.revision + 1
		m.mu.Unlock()
		if !w.send(events...) {
			return false
		}
		select {
		case <-ctx.Done():
			return false
		case <-broken:
			return false
		case <-changed:
		}
	}
}
