package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"
)

// group runs the agent's goroutines. The first that fails ends them all.
type group struct {
	all    errgroup.Group
	ctx    context.Context
	cancel context.CancelFunc
	log    *slog.Logger
}

func newGroup(ctx context.Context, log *slog.Logger) *group {
	ctx, cancel := context.WithCancel(ctx)
	return &group{ctx: ctx, cancel: cancel, log: log}
}

// start runs f until the group ends.
func (g *group) start(name string, f func(context.Context) error) {
	g.all.Go(func() error {
		err := f(g.ctx)
		if err == nil || (g.ctx.Err() != nil && errors.Is(err, context.Canceled)) {
			return nil
		}
		g.log.Error("a part of the agent failed", "part", name, "error", err)
		g.cancel()
		return fmt.Errorf("%s: %w", name, err)
	})
}

// wait returns when the group has ended, with the failure that ended it.
func (g *group) wait() error {
	<-g.ctx.Done()
	return g.all.Wait()
}

// abort ends the group, for an agent that gives up before everything runs.
func (g *group) abort() error {
	g.cancel()
	return g.wait()
}

// syncGate opens when everything that was expected has arrived.
type syncGate struct {
	done chan struct{}

	mu      sync.Mutex
	left    map[string]bool // what has not arrived
	awaited bool            // nothing else will be expected
}

func newSyncGate() *syncGate { return &syncGate{done: make(chan struct{}), left: map[string]bool{}} }

// expect returns a function to call when one thing has been observed; more calls have no effect.
// what names it for people, and nothing else at the same gate.
func (s *syncGate) expect(what string) func() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.left[what] = true
	return sync.OnceFunc(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.left, what)
		if s.awaited && len(s.left) == 0 {
			close(s.done)
		}
	})
}

// missing returns what has not arrived, sorted.
func (s *syncGate) missing() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.left))
}

// wait returns when all that was expected has come, or ctx ends. What is waited for must all have
// been expected before.
func (s *syncGate) wait(ctx context.Context) error {
	s.mu.Lock()
	if !s.awaited && len(s.left) == 0 {
		close(s.done)
	}
	s.awaited = true
	s.mu.Unlock()
	select {
	case <-s.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// latch opens once.
type latch struct {
	opened chan struct{}
	once   sync.Once
}

func newLatch() *latch { return &latch{opened: make(chan struct{})} }

func (l *latch) open() { l.once.Do(func() { close(l.opened) }) }

func (l *latch) isOpen() bool {
	select {
	case <-l.opened:
		return true
	default:
		return false
	}
}

// wait returns when the latch is open, or ctx ends.
func (l *latch) wait(ctx context.Context) error {
	select {
	case <-l.opened:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
