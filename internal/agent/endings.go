package agent

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"golang.org/x/time/rate"

	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/policy"
)

const (
	// endingsPause is how often is looked whether numbers have ended, and whether this node has let
	// go of them.
	endingsPause = time.Second
	// endingsShare is how long all nodes together spread what each has to say, per node: all hear
	// of an ending at once.
	endingsShare = 10 * time.Millisecond
	// Where numbers end all the time, a node says so endingsBurst times at once, and then every
	// endingsEvery: a number rests for longer than that, unless the operator is told otherwise, and
	// where identities are objects each word of each node is an object that somebody has to delete.
	endingsEvery = 5 * time.Minute
	endingsBurst = 3
	// endingsRetry is the pause after a failure, more or less: rights may be missing for ever.
	endingsRetry = 30 * time.Second
	// endingsAgain is how often what was said last is said again: somebody may have taken it away.
	endingsAgain = 10 * time.Minute
	// endingsTimeout bounds a request that says something. A store that is away longer may come
	// back as an old copy, in which revisions mean something else.
	endingsTimeout = 5 * time.Second
)

// saying is what a node says of the end of identities.
type saying int

const (
	saysNothing saying = iota
	// takesBack what it said before; saysAgain what it said last; saysUpTo, that it goes by nothing
	// that has ended until now.
	takesBack
	saysAgain
	saysUpTo
)

// words decides what a node says, and when. It sends nothing and knows no clock. Times given to it
// must not go back.
type words struct {
	told             int64 // the revision that was said last; 0 for none
	when, due, retry time.Time
	back, again      bool
	pace             *rate.Limiter
	spread           func() time.Duration // a share, at random, of the time in which all nodes say something
}

func newWords(spread func() time.Duration) *words {
	return &words{pace: rate.NewLimiter(rate.Every(endingsEvery), endingsBurst), spread: spread}
}

// next returns what is to be said now, if up to applied every change is known, of which the last
// one that may have ended a number was at ended.
func (w *words) next(now time.Time, applied, ended int64) saying {
	if applied < w.told { // the store was put back to an earlier state: what was said is of another one
		w.told, w.due, w.back = 0, time.Time{}, true
		w.retry = now.Add(w.spread()) // all nodes hear of it at once
	}
	switch {
	case now.Before(w.retry):
	case w.back:
		return takesBack
	case w.again && w.told > 0:
		return saysAgain
	case ended > w.told && w.due.IsZero():
		w.due = now.Add(w.spread())
	case ended > w.told && !now.Before(w.due) && w.pace.TokensAt(now) >= 1:
		return saysUpTo
	case w.told > 0 && now.Sub(w.when) > endingsAgain:
		return saysAgain
	}
	return saysNothing
}

// said notes that what next returned has been said.
func (w *words) said(now time.Time, what saying, applied int64) {
	switch what {
	case takesBack:
		w.back = false
	case saysUpTo:
		w.told, w.due = applied, time.Time{}
		w.pace.AllowN(now, 1)
		w.when = now
	case saysAgain:
		w.again = false
		w.when = now
	case saysNothing:
	}
}

// failed notes that it could not be said.
func (w *words) failed(now time.Time) { w.retry = now.Add(endingsRetry/2 + rand.N(endingsRetry)) }

// confirmEnds tells whoever collects identities, when some have ended, that this node goes by them
// no more, until ctx ends: no number is given to other labels before (docs/design/0010-reuse.md).
func (a *api) confirmEnds(ctx context.Context, log *slog.Logger) error {
	select {
	case <-a.inForce: // before, the kernel holds what it held when the last agent ended
	case <-ctx.Done():
		return nil
	}
	if a.addresses.WaitPruned(ctx) != nil {
		return nil
	}
	w := newWords(a.spread)
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
	for {
		applied, ended := a.identities.alloc.Heard()
		what := w.next(time.Now(), applied, ended)
		done, err := a.say(ctx, what, w.told, applied)
		switch {
		case err != nil:
			if ctx.Err() == nil && !failing {
				log.Warn("cannot confirm yet that identities have ended on this node; their numbers wait for it for a while", "error", err)
			}
			failing = true
			w.failed(time.Now())
		case done:
			failing = false
			w.said(time.Now(), what, applied)
		}
		select {
		case <-tick.C:
		case <-lost:
			w.again = true
		case <-ctx.Done():
			return nil
		}
	}
}

// say says it. It reports false if there is nothing to say, or this node goes by a number that has
// ended.
func (a *api) say(ctx context.Context, what saying, told, applied int64) (done bool, err error) {
	switch what {
	case takesBack:
		err = a.confirm(ctx, 0)
	case saysAgain:
		err = a.confirm(ctx, told)
	case saysUpTo:
		return a.confirmUpTo(ctx, applied)
	case saysNothing:
		return false, nil
	}
	return err == nil, err
}

// confirm says it, if the store answers soon.
func (a *api) confirm(ctx context.Context, revision int64) error {
	ctx, cancel := context.WithTimeout(ctx, endingsTimeout)
	defer cancel()
	return a.identities.alloc.Confirm(ctx, revision)
}

// spread returns how long this node is to wait with what all nodes have to say at the same time.
func (a *api) spread() time.Duration {
	return rand.N(endingsPause + endingsShare*time.Duration(a.nodes.Table().Len()))
}

// confirmUpTo confirms the end of numbers up to a revision, if this node has let go of all of them.
// A rule set that cannot be written keeps nothing up: who has it is locked.
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

// goesByEnded says whether rules or endpoints of this node go by a number that stands for nothing
// any more.
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
