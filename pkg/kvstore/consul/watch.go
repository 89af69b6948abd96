package consul

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/hawser-net/hawser/pkg/kvstore"
	"github.com/hawser-net/hawser/pkg/kvstore/internal/driver"
	"github.com/hawser-net/hawser/pkg/retry"
)

// waitTime is how long a query waits for a change before it is asked again.
const waitTime = 5 * time.Minute

// Watch implements [kvstore.Backend].
func (c *Client) Watch(ctx context.Context, prefix string) <-chan kvstore.Event {
	return driver.Watch(ctx, c.conn, func(ctx context.Context, send func(...kvstore.Event) bool) {
		w := watch{client: c, prefix: prefix, send: send}
		w.run(ctx)
	})
}

// watch is the state of one watch: what it delivered to its reader, and the index of that.
type watch struct {
	client *Client
	prefix string
	send   func(...kvstore.Event) bool
	known  map[string]kvstore.KeyValue
	index  uint64 // to ask for changes after
	// doubt means that the last query failed: the next server may have older data, and would let a
	// query for a later index wait.
	doubt     bool
	delivered int64 // the last revision delivered
	// sentinel is nil while the reader knows no key.
	sentinel *sentinel
}

// What ends a query before its time.
var (
	errBroken    = errors.New("the watches are asked to restart")
	errUnnoticed = errors.New("keys are gone, and the index of their prefix does not show it")
)

func (w *watch) run(ctx context.Context) {
	defer w.stopSentinel()
	failures := 0
	var relist kvstore.WatchState
	for ctx.Err() == nil {
		var err error
		if w.index == 0 {
			var l kvstore.Listing
			if l, w.index, err = w.client.list(ctx, w.prefix); err == nil {
				events := relist.Replace(l)
				relist = kvstore.WatchState{}
				w.known = byKey(l.Pairs)
				w.delivered = l.Revision
				w.send(events...)
			}
		} else {
			if !w.doubt { // else the next answer comes at once
				w.post(ctx)
			}
			err = w.follow(ctx)
		}
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			w.client.log.Info("a watch was interrupted", "prefix", w.prefix, "error", err)
			retry.Sleep(ctx, retryPause(failures, time.Minute))
			failures++
		default:
			failures = 0
		}
		if w.index == 0 && w.known != nil {
			// The store went back in time. What the reader knows is compared with what is there
			// now, trusting no revision.
			pairs := make([]kvstore.KeyValue, 0, len(w.known))
			for _, kv := range w.known {
				pairs = append(pairs, kv)
			}
			relist = kvstore.WatchState{}
			relist.Replace(kvstore.Listing{Pairs: pairs})
			relist.Invalidate()
		}
	}
}

func byKey(pairs []kvstore.KeyValue) map[string]kvstore.KeyValue {
	m := make(map[string]kvstore.KeyValue, len(pairs))
	for _, kv := range pairs {
		m[kv.Key] = kv
	}
	return m
}

// follow waits for a change and delivers it. A break of the watches ends the query only: its result
// is delivered, as it would not be queried again.
func (w *watch) follow(ctx context.Context) error {
	l, index, err := w.query(ctx)
	if err != nil {
		return err
	}
	if index < w.index { // restored from a backup, or another store
		w.index = 0
		return nil
	}
	w.index = index
	w.send(w.changes(l)...)
	return nil
}

// query waits until the index of the prefix has changed, the watches are broken, or the sentinel
// has found that the index does not show. After a query that failed it does not wait.
func (w *watch) query(ctx context.Context) (l kvstore.Listing, index uint64, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	broken := w.client.conn.Broken()
	var gone <-chan struct{}
	if w.sentinel != nil && !w.doubt {
		gone = w.sentinel.gone
	}
	finished := make(chan struct{})
	defer func() { cancel(nil); <-finished }()
	go func() {
		defer close(finished)
		select {
		case <-broken:
			cancel(errBroken)
		case <-gone:
			if retry.Sleep(ctx, unnoticedAfter) {
				cancel(errUnnoticed)
			}
		case <-ctx.Done():
		}
	}()
	opts := consistent(ctx)
	if !w.doubt {
		opts.WaitIndex, opts.WaitTime = w.index, waitTime
	}
	pairs, meta, err := w.client.consul.KV().List(w.prefix, opts)
	if err == nil {
		l, index, err = listing(pairs, meta.LastIndex), meta.LastIndex, all(meta)
	}
	if err == nil && len(pairs) < len(w.known) {
		// Consul does not state to whoever has no token what it hides, perhaps for a moment only.
		l, index, err = w.client.list(ctx, w.prefix)
	}
	if w.doubt = err != nil; err != nil {
		return kvstore.Listing{}, 0, cmp.Or(context.Cause(ctx), err)
	}
	return l, index, nil
}

// changes compares a listing with what was delivered: first what was written, in order, then what
// is gone.
func (w *watch) changes(l kvstore.Listing) []kvstore.Event {
	now := byKey(l.Pairs)
	var events []kvstore.Event
	for _, kv := range l.Pairs {
		old, known := w.known[kv.Key]
		switch {
		case known && old.ModRevision == kv.ModRevision && bytes.Equal(old.Value, kv.Value):
		case known && old.ModRevision >= kv.ModRevision: // of another history: the store went back, and has gone on
			events = append(events, kvstore.Event{Kind: kvstore.EventModify, KeyValue: kv, Revision: l.Revision})
		case known && old.CreateRevision == kv.CreateRevision:
			events = append(events, kvstore.Event{Kind: kvstore.EventModify, KeyValue: kv, Revision: kv.ModRevision})
		case known: // deleted and made again
			events = append(events,
				kvstore.Event{Kind: kvstore.EventDelete, KeyValue: kvstore.KeyValue{Key: kv.Key}, Revision: kv.CreateRevision - 1},
				kvstore.Event{Kind: kvstore.EventCreate, KeyValue: kv, Revision: kv.ModRevision})
		default:
			events = append(events, kvstore.Event{Kind: kvstore.EventCreate, KeyValue: kv, Revision: kv.ModRevision})
		}
	}
	for key := range w.known {
		if _, ok := now[key]; !ok {
			events = append(events, kvstore.Event{Kind: kvstore.EventDelete, KeyValue: kvstore.KeyValue{Key: key}, Revision: l.Revision})
		}
	}
	slices.SortStableFunc(events, func(a, b kvstore.Event) int {
		return cmp.Or(cmp.Compare(a.Revision, b.Revision), cmp.Compare(a.Key, b.Key))
	})
	for i := range events { // a deletion in between may be older than what was delivered before
		events[i].Revision = max(events[i].Revision, w.delivered)
		w.delivered = events[i].Revision
	}
	w.known = now
	return events
}
