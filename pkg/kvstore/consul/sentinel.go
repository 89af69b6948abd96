package consul

import (
	"context"
	"time"

	"github.com/hawser-net/hawser/pkg/kvstore"
	"github.com/hawser-net/hawser/pkg/retry"
)

// unnoticedAfter is how long the query for a prefix may take to show a deletion that a sentinel has
// found. What it has not shown by then it does not show.
const unnoticedAfter = time.Second

// sentinel is a key that the reader of a watch knows, with a blocking query of its own.
//
// Consul takes the index of a prefix from the keys and the tombstones below it, and a tree that is
// deleted leaves one tombstone, under its own name. If that is above the prefix, all keys of the
// prefix are gone, and its index goes back to that of an older tombstone: a query for a later one
// waits for its whole time. The index of a key that does not exist is that of the whole store, so a
// query for a single key ends with the key in any case.
type sentinel struct {
	key  string
	gone chan struct{} // closed when the key is found missing
	stop context.CancelFunc
	done chan struct{} // closed when the query has ended
}

// post starts a query for a key until that is gone, or until end is called.
func (c *Client) post(ctx context.Context, kv kvstore.KeyValue) *sentinel {
	ctx, stop := context.WithCancel(ctx)
	s := &sentinel{key: kv.Key, gone: make(chan struct{}), stop: stop, done: make(chan struct{})}
	go s.run(ctx, c, uint64(kv.ModRevision))
	return s
}

func (s *sentinel) run(ctx context.Context, c *Client, index uint64) {
	defer close(s.done)
	for failures := 0; ctx.Err() == nil; {
		opts := consistent(ctx)
		opts.WaitIndex, opts.WaitTime = index, waitTime
		p, _, err := c.consul.KV().Get(s.key, opts)
		switch {
		case err != nil:
			index = 0 // the next server may have older data
			retry.Sleep(ctx, retryPause(failures, time.Minute))
			failures++
		case p == nil:
			close(s.gone)
			return
		default:
			index, failures = p.ModifyIndex, 0
		}
	}
}

// end stops the query and waits for it.
func (s *sentinel) end() {
	s.stop()
	<-s.done
}

// post sees to it that one of the keys that the reader knows has a sentinel: the oldest, which is
// the least likely to go soon.
func (w *watch) post(ctx context.Context) {
	if s := w.sentinel; s != nil {
		_, known := w.known[s.key]
		select {
		case <-s.gone:
			known = false
		default:
		}
		if known {
			return
		}
		w.stopSentinel()
	}
	var oldest kvstore.KeyValue
	for _, kv := range w.known {
		if oldest.Key == "" || kv.CreateRevision < oldest.CreateRevision {
			oldest = kv
		}
	}
	if oldest.Key != "" {
		w.sentinel = w.client.post(ctx, oldest)
	}
}

// stopSentinel ends the sentinel, if there is one.
func (w *watch) stopSentinel() {
	if w.sentinel != nil {
		w.sentinel.end()
		w.sentinel = nil
	}
}
