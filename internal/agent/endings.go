package agent

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/policy"
)

const (
	// endingsPause is how often is looked whether numbers have ended, and whether this node has let go of them.
	endingsPause = time.Second
	// endingsShare is how long all nodes together spread what each has to say, per node: all hear of an ending at once.
	endingsShare = 10 * time.Millisecond
	// endingsRetry is the pause after a failure, more or less: rights may be missing for ever.
	endingsRetry = 30 * time.Second
	// endingsAgain is how often what was said last is said again: somebody may have taken it away.
	endingsAgain = 10 * time.Minute
	// endingsTimeout bounds a request that says something. A store that is away longer may come back as an old copy, in which revisions mean something else.
	endingsTimeout = 5 * time.Second
)

// confirmEnds tells whoever collects identities, when some have ended, that this node goes by them no more, until ctx ends: no number is given to other labels
// before (docs/design/0010-reuse.md).
func (a *api) confirmEnds(ctx context.Context, log *slog.Logger) error {
	select {
	case <-a.inForce: // before, the kernel holds what it held when the last agent ended
	case <-ctx.Done():
		return nil
	}
	if a.addresses.WaitPruned(ctx) != nil {
		return nil
	}
	var told int64
	var when, due, retry time.Time
	failing := false
	lost := make(chan struct{}, 1)
	defer a.identities.alloc.ObserveLostConfirmation(func() {
		select {
		case lost <- struct{}{}:
		default: // it is told already
		}
	})()
	tick := time.NewTicker(endingsPause)
	defer tick.Stop()
	gone, back := false, false
	for {
		applied, ended := a.identities.alloc.Heard()
		if applied < told { // the store was put back to an earlier state: what was said is of another one
			told, due, back = 0, time.Time{}, true
			retry = a.spread() // all nodes hear of it at once
		}
		var done bool
		var err error
		switch now := time.Now(); {
		case now.Before(retry):
		case back:
			err = a.confirm(ctx, 0)
			back = err != nil
		case gone && told > 0:
			err = a.confirm(ctx, told)
			done, gone = err == nil, err != nil
		case ended > told && due.IsZero():
			due = a.spread()
		case ended > told && !now.Before(due):
			if done, err = a.confirmUpTo(ctx, applied); done {
				told, due = applied, time.Time{}
			}
		case told > 0 && now.Sub(when) > endingsAgain:
			err = a.confirm(ctx, told)
			done = err == nil
		}
		if done {
			when, failing = time.Now(), false
		}
		if err != nil && ctx.Err() == nil && !failing {
			log.Warn("cannot confirm yet that identities have ended on this node; their numbers wait for it for a while", "error", err)
		}
		if err != nil {
			failing, retry = true, time.Now().Add(endingsRetry/2+rand.N(endingsRetry))
		}
		select {
		case <-tick.C:
		case <-lost:
			gone = true
		case <-ctx.Done():
			return nil
		}
	}
}

// confirm says it, if the store answers soon.
func (a *api) confirm(ctx context.Context, revision int64) error {
	ctx, cancel := context.WithTimeout(ctx, endingsTimeout)
	defer cancel()
	return a.identities.alloc.Confirm(ctx, revision)
}

// spread returns when this node is to say what all nodes have to say at the same time.
func (a *api) spread() time.Time {
	return time.Now().Add(rand.N(endingsPause + endingsShare*time.Duration(a.nodes.Table().Len())))
}

// confirmUpTo confirms the end of numbers up to a revision, if this node has let go of all of them. A rule set that cannot be written keeps nothing up: who has
// it is locked.
func (a *api) confirmUpTo(ctx context.Context, revision int64) (done bool, err error) {
	if a.goesByEnded() {
		return false, nil
	}
	endings := a.identities.endings()
	gone := make(map[identity.ID]bool, len(endings))
	for _, id := range endings {
		gone[id] = !a.identities.stands(id)
	}
	for _, e := range a.cache.All() {
		if gone[e.Identity] {
			return false, nil // its pod's end was not heard yet
		}
	}
	if err := a.addresses.WaitTried(ctx, a.cache.Table().Revision()); err != nil {
		return false, fmt.Errorf("tell the kernel of pods that are gone: %w", err)
	}
	if err := a.confirm(ctx, revision); err != nil {
		return false, err
	}
	a.identities.confirmed(endings)
	return true, nil
}

// goesByEnded says whether rules or endpoints of this node go by a number that stands for nothing any more.
func (a *api) goesByEnded() bool {
	for _, row := range a.registry.List() {
		if a.identities.ours(row.Identity) && !a.identities.stands(row.Identity) {
			return true
		}
	}
	var left []identity.ID
	for _, k := range a.identities.list() {
		if a.identities.ours(k.id) && !a.identities.stands(k.id) {
			left = append(left, k.id)
		}
	}
	ended := false
	a.policy.View(func(e *policy.Engine) {
		for _, id := range left {
			ended = ended || e.Knows(id)
		}
	})
	return ended
}
