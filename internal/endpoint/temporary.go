package endpoint

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// replaceWorkers is how many endpoints get their identity at once: each waits until its address is
// in the kernel.
const replaceWorkers = 16

// Waiting is what ReplaceTemporary leaves to do.
type Waiting struct {
	// Endpoints is how many have a temporary identity still.
	Endpoints int
	// Next is in how long ReplaceTemporary is to be called again although nothing was observed; 0
	// if it need not be.
	Next time.Duration
}

// ReplaceTemporary gives the endpoints that have a temporary identity the cluster-wide one, if it
// is known by now. The endpoint's kernel row is replaced in one write, so every packet is evaluated
// by the old identity or by the new one; its rule set is the same before and after. Call it when
// identities have become known, and not before Policy.Synced: a restored endpoint would get rules
// that were observed in part.
//
// Other nodes observe a new identity at the same time as this one, or a moment later. A new pod has
// its identity at once. One that they know by the identity of its earlier labels keeps that for
// Config.PropagationDelay, so that they do not drop packets of its flows for being of an identity
// unobserved of.
func (l *Lifecycle) ReplaceTemporary(ctx context.Context) (Waiting, error) {
	var (
		workers errgroup.Group
		mu      sync.Mutex
		out     Waiting
		errs    []error
	)
	workers.SetLimit(replaceWorkers)
	for _, row := range l.cfg.Registry.List() {
		// One that is being made or relabelled may have taken a temporary identity a moment ago:
		// its lock is waited for.
		undecided := row.Identity == 0 || row.State == StateWaitingForIdentity || row.State == StateCreating
		if !undecided && !row.Identity.IsTemporary() || ctx.Err() != nil {
			continue
		}
		workers.Go(func() error {
			still, wait, err := l.replaceTemporary(ctx, row.ID)
			mu.Lock()
			defer mu.Unlock()
			if still {
				out.Endpoints++
			}
			if wait > 0 && (out.Next == 0 || wait < out.Next) {
				out.Next = wait
			}
			if err != nil {
				errs = append(errs, err)
			}
			return nil
		})
	}
	_ = workers.Wait() // errs has them all
	return out, errors.Join(errs...)
}

// replaceTemporary does one endpoint, or reports whether it waits for an identity, and how long for
// others to observe it.
func (l *Lifecycle) replaceTemporary(ctx context.Context, id uint16) (waiting bool, wait time.Duration, err error) {
	unlock := l.lock(id)
	defer unlock()
	old, ok := l.cfg.Registry.Get(id)
	if !ok || !old.Identity.IsTemporary() || old.State == StateDisconnecting {
		return false, 0, nil
	}
	got, err := l.acquire(ctx, old.IdentityLabels)
	if err != nil {
		return true, 0, fmt.Errorf("endpoint %d keeps %s: %w", id, old.Identity, err)
	}
	row := old.become(got)
	row.Referenced = true
	if got.IsTemporary() { // it holds a reference of its own to the very same
		l.release(row)
		if old.State == StateRestoring {
			old.Kernel, old.PolicyRevision = l.cfg.Policy.Row(id)
			l.set(old, StateReady, "identity "+old.Identity.String())
		}
		return true, 0, nil
	}
	if wait := l.notYet(old); wait > 0 {
		l.release(row)
		return true, wait, nil
	}
	if _, err := l.renew(ctx, old, row, StateReady); err != nil {
		l.release(row)
		return true, 0, fmt.Errorf("endpoint %d keeps %s: %w", id, old.Identity, err)
	}
	l.release(old)
	l.cfg.Log.Info("an endpoint has its identity", "endpoint", id, "was", old.Identity, "is", got)
	return false, 0, nil
}

// notYet returns how long an endpoint is still to be known by its earlier identity, after its next
// one has become known.
func (l *Lifecycle) notYet(row Endpoint) time.Duration {
	if row.Known == 0 || l.cfg.PropagationDelay <= 0 {
		return 0
	}
	now := l.cfg.Now()
	if row.Due.IsZero() {
		row.Due = now.Add(l.cfg.PropagationDelay)
		l.set(row, row.State, "an identity is known")
	}
	return row.Due.Sub(now)
}
