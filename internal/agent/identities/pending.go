package identities

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/hawser-net/hawser/internal/identity"
	k8sids "github.com/hawser-net/hawser/internal/k8s/identities"
	"github.com/hawser-net/hawser/internal/labels"
	"github.com/hawser-net/hawser/pkg/allocator"
	"github.com/hawser-net/hawser/pkg/retry"
)

const (
	// waitTimeout is how long a pod waits for an ID, where this node may ask for one, before it
	// starts with a temporary one. An ID costs one or two requests, milliseconds each; a store that
	// has not answered by then is away, or so slow that the pod had better not wait. It is far
	// above what a busy store takes, because a temporary identity costs every node extra work, and
	// far below what a runtime waits for a plugin.
	waitTimeout = 2 * time.Second
	// pendingRetry is the first pause after a request for an ID failed for which a temporary one
	// stands, pendingMost the longest, up to a fifth of it more by chance.
	pendingRetry = 5 * time.Second
	pendingMost  = 50 * time.Second
	// releaseTimeout bounds the release of an ID that is no longer wanted; if it fails the
	// allocator releases it later.
	releaseTimeout = 10 * time.Second
)

// pendingID is the request for an ID that a temporary one stands for.
type pendingID struct {
	cancel context.CancelFunc // ends it
	why    error              // what failed last
}

// acquireOrAllocate returns the ID of a set, allocating one if there is none, or a temporary one if
// the store does not answer in time. It takes a reference to it. The allocator's request goes on
// meanwhile.
func (ids *Identities) acquireOrAllocate(ctx context.Context, set labels.Set) (identity.ID, error) {
	most := waitTimeout
	if end, ok := ctx.Deadline(); ok {
		most = min(most, time.Until(end)/2) // there must be time left for the temporary one
	}
	pending, failed := ids.pendingOf(set)
	if pending {
		most = 0 // others have waited
	}
	bounded, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	id, why := ids.allocate(bounded, set)
	if why == nil || errors.Is(why, allocator.ErrExhausted) || errors.Is(why, allocator.ErrClosed) || errors.Is(why, errInvalid) {
		return id, why
	}
	if err := ctx.Err(); err != nil {
		return 0, fmt.Errorf("waiting for an identity: %w", err)
	}
	if failed != nil {
		why = failed // no need to wait for an error that is known
	}
	temporary, err := ids.useTemporary(set, why)
	if err != nil {
		return 0, fmt.Errorf("no identity was allocated for %s (%w), and %w", set, why, err)
	}
	return temporary, nil
}

// pendingOf reports whether a temporary identity stands in for a set's ID, which was asked for, and
// what the last request for it failed with.
func (ids *Identities) pendingOf(set labels.Set) (pending bool, failed error) {
	ids.mu.RLock()
	defer ids.mu.RUnlock()
	p := ids.pending[set.KVString()]
	if p == nil {
		return false, nil
	}
	return true, p.why
}

// useTemporary takes a temporary identity into use. With the first use a goroutine begins that
// holds a reference to the set's own ID, as soon as there is one, until the last use ends.
func (ids *Identities) useTemporary(set labels.Set, why error) (identity.ID, error) {
	ids.mu.Lock()
	defer ids.mu.Unlock()
	temporary, err := ids.temps.Acquire(set)
	if err != nil {
		return 0, err
	}
	if _, had := ids.known[temporary]; !had {
		ids.log.Warn("no answer to the request for an identity yet; a temporary one is used meanwhile", "labels", set.String(), "identity", temporary, "error", why)
	}
	ids.add(temporary, set)
	if text := set.KVString(); ids.pending[text] == nil && ids.ctx.Err() == nil {
		ctx, cancel := context.WithCancel(ids.ctx)
		p := &pendingID{cancel: cancel, why: why}
		ids.pending[text] = p
		ids.wg.Go(func() { ids.hold(ctx, set, p) })
	}
	return temporary, nil
}

// endPending must be called with mu held, when no temporary identity stands for the set any more.
func (ids *Identities) endPending(set labels.Set) {
	text := set.KVString()
	if p := ids.pending[text]; p != nil {
		p.cancel()
		delete(ids.pending, text)
	}
}

// hold gets the ID of a set, reports it, and holds it until ctx ends.
func (ids *Identities) hold(ctx context.Context, set labels.Set, p *pendingID) {
	pauses := wait.Backoff{Duration: pendingRetry, Factor: 2, Jitter: 0.2, Steps: 8, Cap: pendingMost}
	for logged := ""; ; {
		_, err := ids.allocate(ctx, set)
		if err == nil {
			break
		}
		if ctx.Err() != nil || errors.Is(err, allocator.ErrClosed) {
			return
		}
		ids.mu.Lock()
		p.why = err
		ids.mu.Unlock()
		if text := err.Error(); text != logged {
			ids.log.Warn("a request for an identity failed; it is made again within a minute, and a temporary one is used meanwhile", "labels", set.String(), "error", err)
			logged = text
		}
		if !retry.Sleep(ctx, pauses.Step()) {
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
