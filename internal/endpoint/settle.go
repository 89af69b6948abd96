package endpoint

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// settleWorkers is how many endpoints get their identity at once: each waits for the kernel to learn of its address.
const settleWorkers = 16

// Settle gives the endpoints that have a temporary identity the cluster-wide one, where that is known by now, and returns how many still wait for theirs.
// The endpoint's kernel row is replaced in one write, so every packet is judged by the old identity or by the new one; its rule set is the same before and
// after. Call it when identities have become known, and not before Policy.Synced: a restored endpoint would get rules that were heard in part.
func (l *Lifecycle) Settle(ctx context.Context) (waiting int, err error) {
	var (
		wg    sync.WaitGroup
		mu    sync.Mutex
		errs  []error
		slots = make(chan struct{}, settleWorkers)
	)
	for _, row := range l.cfg.Registry.List() {
		// One that is being made or relabelled may have taken a temporary identity a moment ago: its lock is waited for.
		undecided := row.Identity == 0 || row.State == StateWaitingForIdentity
		if !undecided && !row.Identity.IsTemporary() || ctx.Err() != nil {
			continue
		}
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			still, err := l.settle(ctx, row.ID)
			mu.Lock()
			defer mu.Unlock()
			if still {
				waiting++
			}
			if err != nil {
				errs = append(errs, err)
			}
		})
	}
	wg.Wait()
	return waiting, errors.Join(errs...)
}

// settle does one endpoint.
func (l *Lifecycle) settle(ctx context.Context, id uint16) (waiting bool, err error) {
	unlock := l.lock(id)
	defer unlock()
	old, ok := l.cfg.Registry.Get(id)
	if !ok || !old.Identity.IsTemporary() || old.State == StateDisconnecting {
		return false, nil
	}
	got, err := l.acquire(ctx, old.IdentityLabels)
	if err != nil {
		return true, fmt.Errorf("endpoint %d keeps %s: %w", id, old.Identity, err)
	}
	row := old.become(got)
	row.Referenced = true
	if got.IsTemporary() { // it holds a reference of its own to the very same
		l.release(row)
		if old.State == StateRestoring {
			old.Kernel, old.PolicyRevision = l.cfg.Policy.Row(id)
			l.set(old, StateReady, "identity "+old.Identity.String())
		}
		return true, nil
	}
	err = l.cfg.Placer.Place(ctx, row)
	if err == nil {
		row, err = l.realise(row)
	}
	if err == nil {
		err = l.cfg.Store.Put(row)
	}
	if err != nil {
		_, err = l.revert(old, row, err)
		return true, err
	}
	l.release(old)
	l.set(row, StateReady, fmt.Sprintf("identity %s instead of %s", got, old.Identity))
	l.cfg.Log.Info("an endpoint has its identity", "endpoint", id, "was", old.Identity, "is", got)
	return false, nil
}
