package etcd

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/hawser-net/hawser/pkg/kvstore"
	"github.com/hawser-net/hawser/pkg/kvstore/internal/driver"
	"github.com/hawser-net/hawser/pkg/retry"
)

// Watch implements [kvstore.Backend].
func (c *Client) Watch(ctx context.Context, prefix string) <-chan kvstore.Event {
	return driver.Watch(ctx, c.conn, func(ctx context.Context, send func(...kvstore.Event) bool) {
		w := watch{client: c, prefix: prefix, send: send, known: kvstore.WatchState{Prefix: prefix}}
		w.run(ctx)
	})
}

// watch is the state of one watch: what it delivered to its reader, and the first revision it has
// not delivered yet.
type watch struct {
	client *Client
	prefix string
	send   func(...kvstore.Event) bool
	known  kvstore.WatchState
	next   int64
	age    int64 // of the history that next belongs to
}

// run lists and then follows the changes, repeatedly.
func (w *watch) run(ctx context.Context) {
	relist, failures := true, 0
	defer w.client.health.Unread(w.prefix, nil)
	for ctx.Err() == nil {
		if relist {
			age := w.client.history.age()
			if age != w.age {
				w.known.Invalidate()
			}
			l, err := w.client.List(ctx, w.prefix)
			if err != nil {
				if ctx.Err() != nil {
					return
				}
				w.distrust(err)
				w.client.log.Warn("cannot list for a watch, trying again", "prefix", w.prefix, "error", err)
				retry.Sleep(ctx, retryPause(failures, time.Minute))
				failures++
				continue
			}
			w.client.health.Unread(w.prefix, nil)
			w.age = age
			if !w.send(w.known.Replace(l)...) {
				return
			}
			w.next = l.Revision + 1
		}
		var err error
		var progress bool
		progress, relist, err = w.follow(ctx)
		if progress {
			failures = 0
		}
		if err != nil && ctx.Err() == nil {
			relist = w.distrust(err) || relist
			w.client.log.Info("a watch was interrupted", "prefix", w.prefix, "relist", relist, "error", err)
			retry.Sleep(ctx, retryPause(failures, time.Minute))
			failures++
		}
	}
}

// distrust notes in the status of the client that the store sends what it must not, if that is what
// the error says. Then it is read again from the start only.
func (w *watch) distrust(err error) bool {
	if w.client.cfg.MaxMessage > 0 && status.Code(err) == codes.ResourceExhausted && !errors.Is(err, ErrTooMuch) {
		err = fmt.Errorf("%w: %w", ErrTooMuch, err)
	}
	if !errors.Is(err, ErrTooMuch) && !errors.Is(err, ErrUnsorted) {
		return false
	}
	w.client.health.Unread(w.prefix, err)
	return true
}

// follow delivers changes until the stream ends. It reports whether it delivered any and whether
// the watch must list again.
func (w *watch) follow(ctx context.Context) (progress, relist bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	c := w.client
	broken := c.conn.Broken()
	if c.history.age() != w.age {
		return false, true, nil
	}
	stream := c.etcd.Watch(clientv3.WithRequireLeader(c.login.stream(ctx)), w.prefix, clientv3.WithPrefix(), clientv3.WithRev(w.next))
	for {
		var resp clientv3.WatchResponse
		var ok bool
		select {
		case <-broken:
			return progress, c.history.age() != w.age, nil
		case resp, ok = <-stream:
		}
		if !ok {
			return progress, false, errors.New("the stream ended")
		}
		if err := resp.Err(); err != nil {
			compacted := resp.CompactRevision != 0 || errors.Is(err, rpctypes.ErrCompacted)
			return progress, compacted, err
		}
		c.inflow.taken(resp.Events)
		for _, ev := range resp.Events {
			rev := ev.Kv.ModRevision
			var event kvstore.Event
			var isNew bool
			if ev.Type == mvccpb.DELETE {
				event, isNew = w.known.Delete(string(ev.Kv.Key), rev)
			} else {
				event, isNew = w.known.Put(pair(ev.Kv))
			}
			if isNew && !w.send(event) {
				return progress, false, nil
			}
			w.next = rev + 1
			progress = true
			if err := within(&c.cfg, w.prefix, w.known.Size); err != nil {
				return progress, true, err
			}
		}
		if n := len(resp.Events); n > 0 {
			last := resp.Events[n-1]
			c.history.remember(change{
				key: string(last.Kv.Key), revision: last.Kv.ModRevision, deleted: last.Type == mvccpb.DELETE, value: string(last.Kv.Value),
			})
		}
	}
}
