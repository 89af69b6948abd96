package table

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hawser-net/hawser/internal/validate"
	"github.com/hawser-net/hawser/pkg/retry"
)

// Target is what a reconciler reconciles with a table. Its methods are called by one
// goroutine at a time, may block, and should give up when ctx ends. Each call must be repeatable:
// after an error nothing is known of what was done. The slices are valid during the call only.
//
// To report which rows of a batch failed, Update and Delete return [RowErrors]. Any other error
// means that all rows of the batch failed; they are then tried again one by one.
type Target[K comparable, V any] interface {
	// Update makes the target hold the rows. Rows that it holds already are no error.
	Update(ctx context.Context, rows []Row[K, V]) error
	// Delete removes the rows; Value is the last one they had. Rows that the target lacks are no
	// error.
	Delete(ctx context.Context, rows []Row[K, V]) error
	// Prune removes from the target all that is not in desired, and repairs differences that it can
	// detect. It should touch nothing else.
	Prune(ctx context.Context, desired iter.Seq2[K, V]) error
}

// RowErrors reports which rows of a batch failed, by their index. The others succeeded.
type RowErrors map[int]error

// Error lists the failed rows' errors.
func (e RowErrors) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d rows failed", len(e))
	for _, i := range slices.Sorted(maps.Keys(e)) {
		fmt.Fprintf(&b, "; row %d: %v", i, e[i])
	}
	return b.String()
}

// Unwrap returns the rows' errors.
func (e RowErrors) Unwrap() []error { return slices.Collect(maps.Values(e)) }

// Phase is how far a row has come.
type Phase uint8

// The phases of a row.
const (
	// Pending: the newest value was not tried yet.
	Pending Phase = iota
	// Done: the target holds the newest value.
	Done
	// Failed: the last attempt failed and another will be made.
	Failed
)

// String returns "pending", "done" or "error".
func (p Phase) String() string {
	switch p {
	case Pending:
		return "pending"
	case Done:
		return "done"
	}
	return "error"
}

// Status is the state of one row. All but Phase is set for failed rows only: a row that is done
// costs no memory for its status.
type Status struct {
	Phase Phase
	// Deleting means that the row is gone from the table but not yet from the target.
	Deleting bool
	// Err is the error of the last attempt, made at Last; Since is the first of the attempts that
	// failed in a row, Attempts their number, Next the time of the next one.
	Err      error
	Since    time.Time
	Last     time.Time
	Next     time.Time
	Attempts int
}

// Summary counts the rows by phase. Rows that wait to be deleted are counted too.
type Summary struct {
	Pending, Done, Failed int
	// LastPrune is the time of the last Prune that succeeded, PruneErr the error of the last one if
	// that failed.
	LastPrune time.Time
	PruneErr  error
}

// ReconcilerConfig are the settings of a [Reconciler].
type ReconcilerConfig struct {
	// Name names the target in logs and errors.
	Name string
	// Log receives failures and recoveries; nil discards them.
	Log *slog.Logger
	// BatchSize bounds the rows given to the target at once.
	BatchSize int
	// A row that failed is tried again after MinBackoff, and after twice the time for each further
	// failure up to MaxBackoff, less a random part of up to half.
	MinBackoff time.Duration
	MaxBackoff time.Duration
	// PruneInterval is the time between Prunes once the first was asked for with
	// [Reconciler.Prune]; 0 means only when asked.
	PruneInterval time.Duration
	// Failing, if not nil, is called by Run's goroutine when rows have begun or ceased to fail, see
	// [Reconciler.Failing]. It must not wait for the reconciler.
	Failing func()
}

// Defaults sets what is not set.
func (c *ReconcilerConfig) Defaults() {
	c.Name = cmp.Or(c.Name, "target")
	c.Log = cmp.Or(c.Log, slog.New(slog.DiscardHandler))
	c.BatchSize = cmp.Or(c.BatchSize, 256)
	c.MinBackoff = cmp.Or(c.MinBackoff, 100*time.Millisecond)
	c.MaxBackoff = cmp.Or(c.MaxBackoff, 30*time.Second)
}

// Validate reports all invalid settings.
func (c *ReconcilerConfig) Validate() error {
	var errs validate.Errors
	errs.If(c.BatchSize < 0, "batch size %d is negative", c.BatchSize)
	errs.If(c.MinBackoff < 0 || c.MaxBackoff < c.MinBackoff, "backoff from %v to %v is no range", c.MinBackoff, c.MaxBackoff)
	errs.If(c.PruneInterval < 0, "prune interval %v is negative", c.PruneInterval)
	return errs.Err()
}

// Reconciler keeps a target in sync with the rows of a table. It starts with the rows present; it
// prunes only on request, because a missing row means nothing until all writers of the table are
// synced.
type Reconciler[K comparable, V any] struct {
	cfg    ReconcilerConfig
	table  *Table[K, V]
	target Target[K, V]
	obs    *Observer[K, V]
	prune  chan struct{}

	mu       sync.Mutex
	done     uint64               // every change up to here was tried at least once
	failing  map[K]*failure[K, V] // rows whose last attempt failed
	progress chan struct{}        // closed at the next progress; nil without waiters
	lastGood time.Time            // of Prune
	pruneErr error
	pruning  bool   // a Prune runs
	pruned   uint64 // number of Prunes that ended, well or not
	asked    uint64 // value of pruned that satisfies those who asked
	turned   bool   // rows have begun or ceased to fail since Failing was called
	ended    bool   // Run has ended: there is no progress any more

	buf []Row[K, V] // of the goroutine in Run
}

type failure[K comparable, V any] struct {
	change Change[K, V]
	status Status
}

// NewReconciler returns a reconciler of target; unset settings take their defaults. Its observer
// exists from now on, so the caller must call Run, which ends it.
func NewReconciler[K comparable, V any](cfg ReconcilerConfig, t *Table[K, V], target Target[K, V]) (*Reconciler[K, V], error) {
	cfg.Defaults()
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("reconciler of %s: %w", cfg.Name, err)
	}
	return &Reconciler[K, V]{
		cfg: cfg, table: t, target: target, obs: t.Watch(),
		prune: make(chan struct{}, 1), failing: make(map[K]*failure[K, V]),
	}, nil
}

// Prune asks for one Prune as soon as the changes known now are written, and for regular ones if
// so configured. It does not wait; see [Reconciler.WaitPruned].
func (r *Reconciler[K, V]) Prune() { r.askPrune() }

func (r *Reconciler[K, V]) askPrune() (upTo uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	upTo = r.pruned + 1
	if r.pruning {
		upTo++ // the one that runs may have read the table already
	}
	r.asked = max(r.asked, upTo)
	retry.Notify(r.prune)
	return upTo
}

// WaitPruned asks for a Prune and waits for it to succeed.
func (r *Reconciler[K, V]) WaitPruned(ctx context.Context) error {
	upTo := r.askPrune()
	return r.wait(ctx, func() (bool, error) { return r.pruned >= upTo && r.pruneErr == nil, r.pruneErr })
}

// errEnded is for those who wait for progress after Run has ended.
var errEnded = errors.New("it is not reconciled any more")

// Run reconciles until ctx ends and then returns its cause. It is called once. Who waits for what
// was not done by then gets an error.
func (r *Reconciler[K, V]) Run(ctx context.Context) error {
	defer r.end()
	timer := time.NewTimer(0)
	defer timer.Stop()
	var (
		pruneAt   time.Time // of the next regular or repeated Prune; zero if none
		pruneFail int       // number of Prunes that failed in a row
	)
	for {
		if err := r.round(ctx); err != nil {
			return err
		}
		if now := time.Now(); r.pruneAsked() && pruneFail == 0 || !pruneAt.IsZero() && !now.Before(pruneAt) {
			err := r.runPrune(ctx)
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			pruneAt = time.Time{}
			if err != nil {
				pruneFail++
				pruneAt = now.Add(retry.Backoff(pruneFail-1, r.cfg.MinBackoff, r.cfg.MaxBackoff))
				r.cfg.Log.Warn("could not prune", "target", r.cfg.Name, "attempts", pruneFail, "error", err)
			} else {
				pruneFail = 0
				if r.cfg.PruneInterval > 0 {
					pruneAt = now.Add(r.cfg.PruneInterval)
				}
			}
			continue // much may have changed meanwhile
		}
		due := r.nextRetry()
		if !pruneAt.IsZero() && (due.IsZero() || pruneAt.Before(due)) {
			due = pruneAt
		}
		var after <-chan time.Time
		if !due.IsZero() {
			timer.Reset(time.Until(due))
			after = timer.C
		}
		select {
		case <-r.obs.Changed():
		case <-r.prune:
		case <-after:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// end releases what Run held, and those who wait.
func (r *Reconciler[K, V]) end() {
	r.obs.Close()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = true
	r.notify()
}

func (r *Reconciler[K, V]) pruneAsked() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.asked > r.pruned
}

func (r *Reconciler[K, V]) runPrune(ctx context.Context) error {
	r.mu.Lock()
	r.pruning = true
	r.mu.Unlock()
	rows, _ := r.table.Snapshot() // now, when the target has all changes but the very last
	err := r.target.Prune(ctx, func(yield func(K, V) bool) {
		for i := range rows {
			if !yield(rows[i].Key, rows[i].Value) {
				return
			}
		}
	})
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pruning = false
	r.pruned++
	if r.pruneErr = err; err == nil {
		r.lastGood = time.Now()
	}
	r.notify()
	return err
}

// round writes all changes there are and the retries that are due.
func (r *Reconciler[K, V]) round(ctx context.Context) error {
	for {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		changes, err := r.obs.Poll()
		if err != nil {
			return err
		}
		if len(changes) == 0 {
			break
		}
		// Keep the order of changes, in runs of updates and runs of deletes.
		for len(changes) > 0 {
			n := 1
			for n < len(changes) && n < r.cfg.BatchSize && changes[n].Deleted == changes[0].Deleted {
				n++
			}
			r.apply(ctx, changes[:n])
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			changes = changes[n:]
		}
		r.notifyFailing()
		r.mu.Lock()
		r.done = max(r.done, r.obs.Revision())
		r.notify()
		r.mu.Unlock()
	}
	// The observer may have gone past revisions that were no changes for it.
	r.mu.Lock()
	r.done = max(r.done, r.obs.Revision())
	due := r.due(time.Now())
	r.mu.Unlock()
	for i := range due {
		r.apply(ctx, due[i:i+1])
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	r.notifyFailing()
	r.mu.Lock()
	r.notify()
	r.mu.Unlock()
	return nil
}

// notifyFailing signals that rows have begun or ceased to fail.
func (r *Reconciler[K, V]) notifyFailing() {
	r.mu.Lock()
	turned := r.turned
	r.turned = false
	r.mu.Unlock()
	if turned && r.cfg.Failing != nil {
		r.cfg.Failing()
	}
}

// apply gives one run of changes to the target and notes what failed.
func (r *Reconciler[K, V]) apply(ctx context.Context, changes []Change[K, V]) {
	rows := r.buf[:0]
	for i := range changes {
		rows = append(rows, changes[i].Row)
	}
	r.buf = rows
	defer clear(rows)
	var err error
	if changes[0].Deleted {
		err = r.target.Delete(ctx, rows)
	} else {
		err = r.target.Update(ctx, rows)
	}
	if ctx.Err() != nil {
		return // what failed now failed because we are leaving
	}
	var perRow RowErrors
	whole := err != nil && !errors.As(err, &perRow)
	if whole {
		perRow = make(RowErrors, len(rows))
		for i := range rows {
			perRow[i] = err
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(perRow) == 0 && len(r.failing) == 0 {
		return
	}
	now, reported := time.Now(), false
	for i, c := range changes {
		f := r.failing[c.Key]
		if perRow[i] == nil {
			if f != nil {
				delete(r.failing, c.Key)
				r.turned = true
				r.cfg.Log.Info("recovered", "target", r.cfg.Name, "key", c.Key, "attempts", f.status.Attempts)
			}
			continue
		}
		if f == nil {
			f = &failure[K, V]{status: Status{Phase: Failed, Since: now}}
			r.failing[c.Key] = f
			r.turned = true
			if !reported { // once for a batch that fails as a whole
				r.cfg.Log.Warn("could not reconcile", "target", r.cfg.Name, "key", c.Key, "rows", len(changes), "delete", c.Deleted, "error", perRow[i])
			}
			reported = whole
		}
		f.change = c
		f.status.Deleting, f.status.Err, f.status.Last = c.Deleted, perRow[i], now
		f.status.Attempts++
		f.status.Next = now.Add(retry.Backoff(f.status.Attempts-1, r.cfg.MinBackoff, r.cfg.MaxBackoff))
	}
}

// due returns the changes to be tried again at this time, oldest change first. The caller holds mu.
func (r *Reconciler[K, V]) due(now time.Time) []Change[K, V] {
	var due []Change[K, V]
	for _, f := range r.failing {
		if !now.Before(f.status.Next) {
			due = append(due, f.change)
		}
	}
	slices.SortFunc(due, func(a, b Change[K, V]) int {
		if a.Revision < b.Revision {
			return -1
		}
		return 1
	})
	return due
}

func (r *Reconciler[K, V]) nextRetry() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	var next time.Time
	for _, f := range r.failing {
		if next.IsZero() || f.status.Next.Before(next) {
			next = f.status.Next
		}
	}
	return next
}

// notify wakes those who wait for progress. The caller holds mu.
func (r *Reconciler[K, V]) notify() {
	if r.progress != nil {
		close(r.progress)
		r.progress = nil
	}
}

// wait waits until ok, which is called under mu, returns true. If ctx or Run ends first the error
// has the cause and the last error that ok returned.
func (r *Reconciler[K, V]) wait(ctx context.Context, ok func() (bool, error)) error {
	for {
		r.mu.Lock()
		yes, last := ok()
		if yes {
			r.mu.Unlock()
			return nil
		}
		if r.progress == nil {
			r.progress = make(chan struct{})
		}
		progress, ended := r.progress, r.ended
		r.mu.Unlock()
		var err error
		if ended {
			err = errEnded
		} else {
			select {
			case <-progress:
				continue
			case <-ctx.Done():
				err = context.Cause(ctx)
			}
		}
		if last != nil {
			err = fmt.Errorf("%w; last error: %w", err, last)
		}
		return fmt.Errorf("waiting for %s: %w", r.cfg.Name, err)
	}
}

// WaitDone waits until the target holds the row as it was at a revision (as returned by
// [Table.Upsert] or [Table.Delete]) or a later one. A row that fails is waited for until ctx or Run
// ends; the error then names the failure.
func (r *Reconciler[K, V]) WaitDone(ctx context.Context, key K, revision uint64) error {
	return r.wait(ctx, func() (bool, error) {
		if f := r.failing[key]; f != nil {
			return false, f.status.Err
		}
		return r.done >= revision, nil
	})
}

// WaitAll waits until all changes up to a revision are in the target and no row fails.
func (r *Reconciler[K, V]) WaitAll(ctx context.Context, revision uint64) error {
	return r.wait(ctx, func() (bool, error) {
		for _, f := range r.failing {
			return false, f.status.Err
		}
		return r.done >= revision, nil
	})
}

// WaitTried waits until all changes up to a revision were tried at least once, whether or not they
// succeeded. It is what a first Prune waits for: a target that is full may have room only after
// that.
func (r *Reconciler[K, V]) WaitTried(ctx context.Context, revision uint64) error {
	return r.wait(ctx, func() (bool, error) { return r.done >= revision, nil })
}

// Status returns the state of one row; found is false if the table has no such row and its
// deletion, if there was one, is done.
func (r *Reconciler[K, V]) Status(key K) (status Status, found bool) {
	row, present := r.table.GetRow(key)
	r.mu.Lock()
	defer r.mu.Unlock()
	if f := r.failing[key]; f != nil {
		return f.status, true
	}
	if present && row.Revision <= r.done {
		return Status{Phase: Done}, true
	}
	return Status{}, present
}

// Failing returns the status of all failing rows.
func (r *Reconciler[K, V]) Failing() map[K]Status {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := make(map[K]Status, len(r.failing))
	for k, f := range r.failing {
		m[k] = f.status
	}
	return m
}

// Summary counts the rows by phase.
func (r *Reconciler[K, V]) Summary() Summary {
	rows, revision := r.table.Len(), r.table.Revision()
	r.mu.Lock()
	done := r.done
	s := Summary{Failed: len(r.failing), LastPrune: r.lastGood, PruneErr: r.pruneErr}
	r.mu.Unlock()
	if done < revision {
		s.Pending = r.table.changedSince(done)
	}
	s.Done = max(0, rows-s.Pending-s.Failed)
	return s
}
