package identities

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hawser-net/hawser/internal/identity"
	k8sids "github.com/hawser-net/hawser/internal/k8s/identities"
	"github.com/hawser-net/hawser/internal/labels"
	"github.com/hawser-net/hawser/pkg/allocator"
)

const (
	// waitTimeout is how long a pod waits for an ID, where this node may ask for one, before it
	// starts with a temporary one. An ID costs one or two requests, milliseconds each; a store that
	// has not answered by then is away, or so slow that the pod had better not wait. It is far
	// above what a busy store takes, because a temporary identity is extra work for everybody, and
	// far below what a runtime waits for a plugin.
	waitTimeout = 2 * time.Second
	// pendingRetry is the pause after a request for an ID failed for which a temporary one stands.
	pendingRetry = 5 * time.Second
	// releaseTimeout bounds how long an ID that nobody wants any more is given back; the allocator
	// does it later if need be.
	releaseTimeout = 10 * time.Second
)

// acquireOrAllocate returns the ID of a set, makes it if there is none, and returns a temporary one
// if whoever keeps IDs does not answer in time. It takes a reference to it. The allocator's request
// goes on meanwhile.
func (ids *Identities) acquireOrAllocate(ctx context.Context, set labels.Set) (identity.ID, error) {
	wait := waitTimeout
	if ids.isPending(set) {
		wait = 0 // others have waited
	}
	bounded, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	id, why := ids.allocate(bounded, set)
	if why == nil || errors.Is(why, allocator.ErrExhausted) || errors.Is(why, allocator.ErrClosed) || errors.Is(why, errInvalid) {
		return id, why
	}
	if err := ctx.Err(); err != nil {
		return 0, fmt.Errorf("waiting for an identity: %w", err)
	}
	temporary, err := ids.useTemporary(set)
	if err != nil {
		return 0, fmt.Errorf("no identity could be had for %s (%w), and %w", set, why, err)
	}
	return temporary, nil
}

// isPending says whether a temporary identity stands in for a set's ID, which was asked for.
func (ids *Identities) isPending(set labels.Set) bool {
	ids.mu.RLock()
	defer ids.mu.RUnlock()
	return ids.pending[set.KVString()] != nil
}

// useTemporary takes a temporary identity into use. With the first use a goroutine begins that
// holds a reference to the set's own ID, as soon as there is one, until the last use ends.
func (ids *Identities) useTemporary(set labels.Set) (identity.ID, error) {
	ids.mu.Lock()
	defer ids.mu.Unlock()
	temporary, err := ids.temps.Acquire(set)
	if err != nil {
		return 0, err
	}
	if _, had := ids.known[temporary]; !had {
		ids.log.Warn("no answer to the question for an identity yet; a temporary one is used meanwhile", "labels", set.String(), "identity", temporary)
	}
	ids.known[temporary] = set
	if text := set.KVString(); ids.pending[text] == nil && ids.ctx.Err() == nil {
		ctx, cancel := context.WithCancel(ids.ctx)
		ids.pending[text] = cancel
		ids.wg.Go(func() { ids.hold(ctx, set) })
	}
	return temporary, nil
}

// endPending must be called with mu held, when no temporary identity stands for the set any more.
func (ids *Identities) endPending(set labels.Set) {
	text := set.KVString()
	if cancel := ids.pending[text]; cancel != nil {
		cancel()
		delete(ids.pending, text)
	}
}

// hold gets the ID of a set, says that it is there, and holds it until ctx ends.
func (ids *Identities) hold(ctx context.Context, set labels.Set) {
	for {
		_, err := ids.allocate(ctx, set)
		if err == nil {
			break
		}
		select {
		case <-time.After(pendingRetry):
		case <-ctx.Done():
			return
		}
	}
	ids.notify()
	<-ctx.Done()
	if ids.ctx.Err() != nil {
		return // the agent ends, and its endpoints keep what they have
	}
	release, cancel := context.WithTimeout(ids.ctx, releaseTimeout)
	defer cancel()
	_, _ = ids.alloc.Release(release, k8sids.Key{Set: set}) // the allocator does later what fails
}
