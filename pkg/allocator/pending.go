package allocator

import (
	"context"
	"fmt"
)

// pending is the one request for the ID of a key that all calls of Allocate wait for. It outlives
// them: if the store is slower than the callers' timeouts, requests abandoned half-way would start
// over each time and never finish.
type pending struct {
	ctx  context.Context
	done chan struct{} // closed when id, isNew, again and err are set

	// These are guarded by Allocator.mu.
	waiting int
	// served: each of those who waited has a reference, or err; no other call may join.
	served bool
	isNew  bool
	// failed is the error of the last attempt, at first that of the request before.
	failed error

	id    ID
	again bool // the time of the request is up, not that of who waits
	err   error
}

// wait waits for the request for a key's ID, which it begins if there is none, unless ctx ends
// first. It returns at once if the key is in use here. Of those who wait for an ID one gets isNew.
// failed is what the request before failed with, if there was one.
func (a *Allocator) wait(ctx context.Context, text string, key AllocatorKey, failed error) (id ID, isNew, again bool, err error) {
	p, id, err := a.enter(ctx, text, key, failed)
	if p == nil {
		return id, false, false, err
	}
	select {
	case <-p.done:
	case <-ctx.Done():
		if left, failed := a.leaveRequest(p); left {
			return NoID, false, false, gaveUp(ctx, failed)
		}
		<-p.done // in a moment
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	isNew, p.isNew = p.isNew, false
	return p.id, isNew, p.again, p.err
}

// gaveUp is the error of a call whose context has ended, of which failed is what the last attempt
// failed with, if one did.
func gaveUp(ctx context.Context, failed error) error {
	if failed == nil {
		return ctx.Err()
	}
	return fmt.Errorf("%w; the last attempt: %w", ctx.Err(), failed)
}

// enter returns the ID if the key is in use here, else the request for it.
func (a *Allocator) enter(ctx context.Context, text string, key AllocatorKey, failed error) (*pending, ID, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.isClosed || a.ctx.Err() != nil {
		return nil, NoID, ErrClosed
	}
	if ctx.Err() != nil {
		return nil, NoID, gaveUp(ctx, failed)
	}
	lk := a.local[text]
	if lk == nil {
		lk = &localKey{key: key, text: text, turn: make(chan struct{}, 1)}
		a.local[text] = lk
	}
	if lk.inUse() {
		lk.refs++
		return nil, lk.id, nil
	}
	if p := lk.pending; p == nil || p.ctx.Err() != nil {
		p = &pending{done: make(chan struct{}), failed: failed}
		var cancel context.CancelFunc
		p.ctx, cancel = context.WithTimeout(a.ctx, a.set.timeout)
		lk.pending = p
		lk.users++
		a.requests.Go(func() {
			defer cancel()
			a.request(lk, p)
		})
	}
	lk.pending.waiting++
	return lk.pending, NoID, nil
}

// leaveRequest takes a call from those who wait, unless they were served in this very moment. It
// returns what the last attempt failed with, too.
func (a *Allocator) leaveRequest(p *pending) (left bool, failed error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !p.served {
		p.waiting--
	}
	return !p.served, p.failed
}

// noteFailed keeps the error of an attempt for those who stop waiting for p, which may be nil.
func (a *Allocator) noteFailed(p *pending, err error) {
	if p == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	p.failed = err
}

// request gets the ID from the store.
func (a *Allocator) request(lk *localKey, p *pending) {
	defer a.leave(lk)
	defer close(p.done)
	id, isNew, err := a.find(p.ctx, lk, p)
	a.mu.Lock()
	defer a.mu.Unlock()
	p.id, p.isNew, p.err = id, isNew, err
	switch {
	case err == nil:
	case a.ctx.Err() != nil:
		p.err = ErrClosed
	case p.ctx.Err() != nil:
		p.again = true
		if p.failed != nil {
			p.err = p.failed // it says more than that the time of the request is up
		}
	}
	if !p.served { // it failed
		p.waiting = 0
		lk.serve(p)
	}
}

// find waits for the key's turn. Its previous holder may have done the work.
func (a *Allocator) find(ctx context.Context, lk *localKey, p *pending) (id ID, isNew bool, err error) {
	select {
	case lk.turn <- struct{}{}:
		defer func() { <-lk.turn }()
	case <-ctx.Done():
		return NoID, false, ctx.Err()
	}
	if id := a.join(lk, p); id != NoID {
		return id, false, nil
	}
	return a.acquire(ctx, lk, p)
}

// join serves those who wait if the key is in use by now.
func (a *Allocator) join(lk *localKey, p *pending) ID {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !lk.inUse() {
		return NoID
	}
	lk.serve(p)
	return lk.id
}

// inUse must be called with mu held. A key that is being renumbered has users but no ID.
func (lk *localKey) inUse() bool { return lk.refs > 0 && lk.id != NoID }

// serve gives each waiter of p a reference, if there is one. It must be called with mu held.
func (lk *localKey) serve(p *pending) {
	if p == nil {
		return
	}
	p.served = true
	lk.refs += p.waiting
	if lk.pending == p {
		lk.pending = nil
	}
}
