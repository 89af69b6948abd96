package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
)

// group runs the agent's goroutines. The first that fails ends them all.
type group struct {
	ctx    context.Context
	cancel context.CancelFunc
	log    *slog.Logger
	wg     sync.WaitGroup

	mu  sync.Mutex
	err error
}

func newGroup(ctx context.Context, log *slog.Logger) *group {
	ctx, cancel := context.WithCancel(ctx)
	return &group{ctx: ctx, cancel: cancel, log: log}
}

// start runs f until the group ends.
func (g *group) start(name string, f func(context.Context) error) {
	g.wg.Add(1)
	go func() {
		defer g.wg.Done()
		err := f(g.ctx)
		if err == nil || (g.ctx.Err() != nil && errors.Is(err, context.Canceled)) {
			return
		}
		g.mu.Lock()
		if g.err == nil {
			g.err = fmt.Errorf("%s: %w", name, err)
		}
		g.mu.Unlock()
		g.log.Error("a part of the agent failed", "part", name, "error", err)
		g.cancel()
	}()
}

// wait returns when the group has ended, with the failure that ended it.
func (g *group) wait() error {
	<-g.ctx.Done()
	g.wg.Wait()
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.err
}

// abort ends the group, for an agent that gives up before everything runs.
func (g *group) abort() error {
	g.cancel()
	return g.wait()
}

// syncGate opens when everything that was expected has arrived.
type syncGate struct {
	wg   sync.WaitGroup
	done chan struct{}
	once sync.Once
}

func newSyncGate() *syncGate { return &syncGate{done: make(chan struct{})} }

// expect returns a function to call when one thing has been observed; more calls have no effect.
func (s *syncGate) expect() func() {
	s.wg.Add(1)
	return sync.OnceFunc(s.wg.Done)
}

// wait returns when all that was expected has come, or ctx ends. What is waited for must all have
// been expected before.
func (s *syncGate) wait(ctx context.Context) error {
	s.once.Do(func() {
		go func() {
			s.wg.Wait()
			close(s.done)
		}()
	})
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
