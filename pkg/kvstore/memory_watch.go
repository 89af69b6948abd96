package kvstore

import (
	"context"
	"sort"
	"strings"
	"time"
)

// BreakWatches cuts the streams of all watches of this connection. Each resumes after its last
// event, or lists again if the store has since forgotten what came between ([Memory.Compact]).
func (c *MemoryClient) BreakWatches() {
	c.mu.Lock()
	defer c.mu.Unlock()
	close(c.broken)
	c.broken = make(chan struct{})
}

// Watch implements [Backend].
func (c *MemoryClient) Watch(ctx context.Context, prefix string) <-chan Event {
	out := make(chan Event, 64)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		close(out)
		return out
	}
	c.wg.Add(1)
	go func() {
		defer c.wg.Done()
		defer close(out)
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(c.ctx, cancel)()
		w := memoryWatch{client: c, prefix: prefix, out: out}
		w.run(ctx)
	}()
	return out
}

type memoryWatch struct {
	client *MemoryClient
	prefix string
	out    chan<- Event
	known  Known
	next   int64 // first revision not yet told
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
				// A fault function says when the store is back; asking again soon is right for a
				// store in memory.
				select {
				case <-ctx.Done():
				case <-time.After(time.Millisecond):
				}
				continue
			}
			if !w.send(ctx, w.known.Relist(l)...) {
				return
			}
			w.next = l.Revision + 1
		}
		relist = w.follow(ctx)
	}
}

// follow tells changes until the stream breaks, and says whether the watch must list again.
func (w *memoryWatch) follow(ctx context.Context) (relist bool) {
	m := w.client.store
	w.client.mu.Lock()
	broken := w.client.broken
	w.client.mu.Unlock()
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
		if !w.send(ctx, events...) {
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

func (w *memoryWatch) send(ctx context.Context, events ...Event) bool {
	for _, ev := range events {
		select {
		case w.out <- ev:
		case <-ctx.Done():
			return false
		}
	}
	return true
}
