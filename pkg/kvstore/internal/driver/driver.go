// Package driver is what connections to all kinds of stores have in common: their end, the bound on
// their requests, and the goroutines behind their watches. It does not know what a store is, so
// that package kvstore can use it for its store in memory.
package driver

import (
	"context"
	"errors"
	"fmt"
	"sort"
	"strings"
	"sync"
)

// ErrClosed means that the connection was closed; nothing was written.
var ErrClosed = errors.New("key-value store is closed")

// errCut is of a write that was under way when the connection was closed. It is not ErrClosed.
var errCut = errors.New("the connection was closed before the answer came, so it may have been carried out")

// Conn is the life of a connection, and the goroutines that end with it. All methods may be called
// concurrently. Use [New].
type Conn struct {
	kind   string
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
	slots  chan struct{} // nil: no bound

	mu     sync.Mutex
	closed bool
	broken chan struct{} // closed and replaced to break watches
}

// New returns an open connection to a store of a kind, with at most inflight requests at once; 0 is
// no bound.
func New(kind string, inflight int) *Conn {
	ctx, cancel := context.WithCancel(context.Background())
	c := &Conn{kind: kind, ctx: ctx, cancel: cancel, broken: make(chan struct{})}
	if inflight > 0 {
		c.slots = make(chan struct{}, inflight)
	}
	return c
}

// Context ends when the connection is closed.
func (c *Conn) Context() context.Context { return c.ctx }

// Closed reports whether Shut was called.
func (c *Conn) Closed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closed
}

// Shut ends the context and lets no goroutine begin any more. It is false if that was so before.
func (c *Conn) Shut() (first bool) {
	c.mu.Lock()
	first = !c.closed
	c.closed = true
	c.mu.Unlock()
	c.cancel()
	return first
}

// Wait waits for the goroutines, which Shut has asked to end.
func (c *Conn) Wait() { c.wg.Wait() }

// Go runs f in a goroutine that Wait waits for. It is false, and f does not run, if the connection
// is closed.
func (c *Conn) Go(f func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	c.wg.Go(f)
	return true
}

// Await waits until ready is closed. Its error names what was waited for.
func (c *Conn) Await(ctx context.Context, ready <-chan struct{}, what string) error {
	select {
	case <-ready:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%s: %w", what, ctx.Err())
	case <-c.ctx.Done():
		return ErrClosed
	}
}

// Begin waits until a request may be sent, and returns a context that also ends with the
// connection. The function returned must be called when the request is done.
func (c *Conn) Begin(ctx context.Context) (both context.Context, done func(), err error) {
	if err := ctx.Err(); err != nil {
		return nil, nil, err
	}
	if c.ctx.Err() != nil {
		return nil, nil, ErrClosed
	}
	if c.slots != nil {
		select {
		case c.slots <- struct{}{}:
		case <-ctx.Done():
			return nil, nil, fmt.Errorf("waiting for earlier requests: %w", ctx.Err())
		case <-c.ctx.Done():
			return nil, nil, ErrClosed
		}
	}
	both, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(c.ctx, cancel)
	return both, func() {
		stop()
		cancel()
		if c.slots != nil {
			<-c.slots
		}
	}, nil
}

// Sent is for the error of a write that was sent to the store: if the connection is closed, Fault
// does not take that for ErrClosed, as the write may have been carried out.
func (c *Conn) Sent(err error) error {
	if err == nil || c.ctx.Err() == nil {
		return err
	}
	return fmt.Errorf("%w (%s: %v)", errCut, c.kind, err)
}

// Fault turns an error of a store's client library into one for callers: what was done to which
// key, and the context's error or ErrClosed where these are the cause. The error of a write must
// have gone through Sent.
func (c *Conn) Fault(ctx context.Context, doing, key string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, errCut):
	case c.ctx.Err() != nil:
		err = ErrClosed
	case errors.Is(err, ErrClosed), ctx.Err() == nil:
	default:
		err = fmt.Errorf("%w (%s: %v)", ctx.Err(), c.kind, err)
	}
	return fmt.Errorf("%s: %s %.300q: %w", c.kind, doing, key, err) // a key may be very long
}

// Broken is closed when the watches must restart. Take it before a request to the store.
func (c *Conn) Broken() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.broken
}

// BreakWatches restarts every watch.
func (c *Conn) BreakWatches() {
	c.mu.Lock()
	defer c.mu.Unlock()
	close(c.broken)
	c.broken = make(chan struct{})
}

// Watch runs a watch in a goroutine until its context ends, which it does with ctx and with the
// connection, and closes the channel afterwards. send is false when the context has ended first.
func Watch[Event any](ctx context.Context, c *Conn, run func(ctx context.Context, send func(...Event) bool)) <-chan Event {
	out := make(chan Event, 64)
	started := c.Go(func() {
		defer close(out)
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(c.ctx, cancel)()
		run(ctx, func(events ...Event) bool {
			for _, ev := range events {
				select {
				case out <- ev:
				case <-ctx.Done():
					return false
				}
			}
			return true
		})
	})
	if !started {
		close(out)
	}
	return out
}

// KeysWithPrefix returns those of the sorted keys that start with prefix.
func KeysWithPrefix(keys []string, prefix string) []string {
	from := sort.SearchStrings(keys, prefix)
	to := from
	for to < len(keys) && strings.HasPrefix(keys[to], prefix) {
		to++
	}
	return keys[from:to:to]
}
