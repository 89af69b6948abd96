package endpoint

import (
	"context"
	"errors"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/hawser-net/hawser/internal/labels"
)

// SetFilter has another filter divide the labels of endpoints from now on. Endpoints that are there
// keep their division until Refilter.
func (l *Lifecycle) SetFilter(f *labels.Filter) { l.filter.Store(f) }

// refilterWorkers is how many endpoints get other identity labels at once: each may wait for an
// identity, and until its address is in the kernel.
const refilterWorkers = 16

// Refilter gives endpoints the identity that the labels have which the filter leaves now, as if
// their labels had changed. Call it not before Policy.Synced, as ReplaceTemporary. What
// fails is to be tried again.
func (l *Lifecycle) Refilter(ctx context.Context) error {
	var (
		workers errgroup.Group
		mu      sync.Mutex
		errs    []error
	)
	workers.SetLimit(refilterWorkers)
	for _, row := range l.cfg.Registry.List() {
		if !l.otherwise(row) || ctx.Err() != nil {
			continue
		}
		workers.Go(func() error {
			if err := l.refilter(ctx, row.ID); err != nil {
				mu.Lock()
				errs = append(errs, err)
				mu.Unlock()
			}
			return nil
		})
	}
	_ = workers.Wait() // errs has them all
	return errors.Join(errs...)
}

func (l *Lifecycle) refilter(ctx context.Context, id uint16) error {
	unlock := l.lock(id)
	defer unlock()
	row, ok := l.cfg.Registry.Get(id)
	if !ok || row.State == StateDisconnecting || !l.otherwise(row) {
		return nil
	}
	row, err := l.takeUpFirst(ctx, row, "identity")
	if err != nil {
		return err
	}
	_, err = l.relabel(ctx, row, row, true)
	return err
}

// otherwise reports whether the filter divides an endpoint's labels in another way than they are.
func (l *Lifecycle) otherwise(row Endpoint) bool {
	set, _ := l.split(row)
	return !set.Equal(row.IdentityLabels)
}

// Relabelling returns how many endpoints do not have their final identity yet: it is temporary or
// about to change, or their identity labels do not match the filter. Endpoints created after the
// call match the filter.
func (l *Lifecycle) Relabelling() (n int) {
	for _, row := range l.cfg.Registry.List() {
		if row.State != StateReady || row.Identity == 0 || row.Identity.IsTemporary() || l.otherwise(row) {
			n++
		}
	}
	return n
}
