package identities

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"time"

	"golang.org/x/time/rate"

	"github.com/hawser-net/hawser/internal/endpoint"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/ipcache"
	"github.com/hawser-net/hawser/internal/policy"
	"github.com/hawser-net/hawser/internal/table"
	"github.com/hawser-net/hawser/pkg/retry"
)

const (
	// confirmInterval is how often is looked whether IDs have ended, and whether this node has
	// released them.
	confirmInterval = time.Second
	// confirmSpread is over how long all nodes together spread their confirmations, per node: all
	// observe an ending at once.
	confirmSpread = 10 * time.Millisecond
	// Under constant churn a node confirms confirmBurst times at once, and then every confirmEvery:
	// an ID is quarantined for longer than that by default, and where identities are objects each
	// confirmation of each node is an object that the operator must delete.
	confirmEvery = 5 * time.Minute
	confirmBurst = 3
	// confirmRetry is the pause after a failure, more or less: rights may be missing for ever.
	confirmRetry = 30 * time.Second
	// confirmRepeat is how often the last confirmation is repeated, in case it was deleted, and for
	// a collector that counts only what was written since it became the leader. It is shorter than
	// the quarantine.
	confirmRepeat = 10 * time.Minute
	// confirmHeld is how long a node may use IDs that have ended before that is worth a warning.
	confirmHeld = 5 * time.Minute
	// confirmTimeout bounds one confirmation. A store that is away longer may come
	// back as an old copy, in which revisions mean something else.
	confirmTimeout = 5 * time.Second
)

// action is what a node does about identities that have ended.
type action int

const (
	nothing action = iota
	// withdrawAction takes back what was confirmed; repeatAction confirms the same again;
	// confirmAction confirms that nothing is used here that has ended until now.
	withdrawAction
	repeatAction
	confirmAction
)

// schedule decides what a node confirms, and when. It sends nothing and knows no clock. Times given
// to it must not go back.
type schedule struct {
	confirmed        int64 // the last revision; 0 for none
	applied          int64 // the one that next was called with last
	at, due, retry   time.Time
	withdraw, repeat bool
	pace             *rate.Limiter
	spread           func() time.Duration // a share, at random, of the time in which all nodes confirm
}

func newSchedule(spread func() time.Duration) *schedule {
	return &schedule{pace: rate.NewLimiter(rate.Every(confirmEvery), confirmBurst), spread: spread}
}

// next returns what is to be done now, if up to applied every change is known, of which the last
// one that may have ended an ID was at ended.
func (w *schedule) next(now time.Time, applied, ended int64) action {
	back := applied < w.applied
	w.applied = applied
	if back && w.confirmed > 0 { // the store was put back to an earlier state: what was confirmed is of another one
		w.confirmed, w.due, w.withdraw = 0, time.Time{}, true
		w.retry = now.Add(w.spread()) // all nodes observe it at once
	}
	switch {
	case now.Before(w.retry):
	case w.withdraw:
		return withdrawAction
	case w.confirmed > 0 && (w.repeat || now.Sub(w.at) > confirmRepeat): // first: who uses an ended ID confirms no more for now
		return repeatAction
	case ended > w.confirmed && w.due.IsZero():
		w.due = now.Add(w.spread())
	case ended > w.confirmed && !now.Before(w.due) && w.pace.TokensAt(now) >= 1:
		return confirmAction
	}
	return nothing
}

// done notes that what next returned has been done.
func (w *schedule) done(now time.Time, what action, applied int64) {
	switch what {
	case withdrawAction:
		w.withdraw = false
	case confirmAction:
		w.confirmed, w.due = applied, time.Time{}
		w.pace.AllowN(now, 1)
		w.at = now
	case repeatAction:
		w.repeat = false
		w.at = now
	case nothing:
	}
}

// failed notes that it could not be done.
func (w *schedule) failed(now time.Time) { w.retry = now.Add(confirmRetry/2 + rand.N(confirmRetry)) }

// errUsed means that this node uses an ID that has ended.
var errUsed = errors.New("this node still uses an identity that has ended")

// hold notes for how long confirmations are held up. The zero value is ready.
type hold struct {
	since time.Time
	said  bool
}

// long reports, once, that they have been held up for long.
func (h *hold) long(now time.Time) bool {
	if h.since.IsZero() {
		h.since = now
	}
	if h.said || now.Sub(h.since) < confirmHeld {
		return false
	}
	h.said = true
	return true
}

// ConfirmerConfig gives a Confirmer what of a node may use an identity.
type ConfirmerConfig struct {
	Identities *Identities
	// InForce is closed when policy is that of everything there was to observe.
	InForce <-chan struct{}
	// Addresses are the cluster's, Kernel reconciles the kernel with them.
	Addresses *ipcache.Cache
	Kernel    *table.Reconciler[netip.Prefix, ipcache.Entry]
	Endpoints *endpoint.Registry
	Policy    interface{ View(func(*policy.Engine)) }
	// Nodes returns how many nodes there are.
	Nodes func() int
	Log   *slog.Logger
}

// Confirmer confirms to the collector of identities that this node no longer uses those that ended:
// no ID is reused before (docs/design/0010-reuse.md).
type Confirmer struct{ ConfirmerConfig }

// NewConfirmer returns one that has confirmed nothing.
func NewConfirmer(c ConfirmerConfig) *Confirmer { return &Confirmer{c} }

// Run confirms until ctx ends.
func (c *Confirmer) Run(ctx context.Context) error {
	select {
	case <-c.InForce: // before, the kernel holds what it held when the last agent ended
	case <-ctx.Done():
		return nil
	}
	if c.Kernel.WaitPruned(ctx) != nil {
		return nil
	}
	w := newSchedule(c.spread)
	failing := false
	var held hold
	lost := make(chan struct{}, 1)
	defer c.Identities.alloc.ObserveLostConfirmation(func() {
		retry.Notify(lost)
	})()
	tick := time.NewTicker(confirmInterval)
	defer tick.Stop()
	for {
		applied, ended := c.Identities.alloc.AppliedRevision()
		what := w.next(time.Now(), applied, ended)
		err := c.perform(ctx, what, w.confirmed, applied)
		switch {
		case what == nothing:
		case errors.Is(err, errUsed): // looked at again a moment later
			if held.long(time.Now()) {
				c.Log.Warn("for minutes it could not be confirmed that identities have ended on this node; their IDs are not used again meanwhile", "error", err)
			}
		case err != nil:
			if ctx.Err() == nil && !failing {
				c.Log.Warn("cannot confirm yet that identities have ended on this node; their IDs stay quarantined for a while", "error", err)
			}
			failing = true
			w.failed(time.Now())
		default:
			failing = false
			w.done(time.Now(), what, applied)
			if what == confirmAction {
				held = hold{}
			}
		}
		select {
		case <-tick.C:
		case <-lost:
			w.repeat = true
		case <-ctx.Done():
			return nil
		}
	}
}

// perform does it. Its error is errUsed if this node uses an ID that has ended.
func (c *Confirmer) perform(ctx context.Context, what action, confirmed, applied int64) error {
	switch what {
	case withdrawAction:
		return c.confirm(ctx, 0)
	case repeatAction:
		return c.confirm(ctx, confirmed)
	case confirmAction:
		return c.confirmUpTo(ctx, applied)
	case nothing:
	}
	return nil
}

// confirm writes a confirmation, if the store answers soon.
func (c *Confirmer) confirm(ctx context.Context, revision int64) error {
	ctx, cancel := context.WithTimeout(ctx, confirmTimeout)
	defer cancel()
	return c.Identities.alloc.Confirm(ctx, revision)
}

// spread returns how long this node is to wait with what all nodes would write at the same time.
func (c *Confirmer) spread() time.Duration {
	return rand.N(confirmInterval + confirmSpread*time.Duration(c.Nodes()))
}

// confirmUpTo confirms the end of IDs up to a revision, if this node has released all of them. A
// rule set that cannot be written delays nothing: its endpoints are locked.
func (c *Confirmer) confirmUpTo(ctx context.Context, revision int64) error {
	if err := c.usesEnded(); err != nil {
		return err
	}
	endings := c.Identities.unconfirmed()
	gone := make(map[identity.ID]bool, len(endings))
	for _, id := range endings {
		gone[id] = !c.Identities.assigned(id)
	}
	for p, e := range c.Addresses.All() {
		if gone[e.Identity] { // its pod's end was not observed yet
			return fmt.Errorf("%w: address %s has ID %d", errUsed, p, e.Identity)
		}
	}
	if err := c.Kernel.WaitTried(ctx, c.Addresses.Table().Revision()); err != nil {
		return fmt.Errorf("remove deleted pods from the kernel: %w", err)
	}
	if err := c.confirm(ctx, revision); err != nil {
		return err
	}
	c.Identities.confirmed(endings)
	return nil
}

// usesEnded returns errUsed if rules or endpoints of this node use an ID that stands for nothing
// any more.
func (c *Confirmer) usesEnded() error {
	for _, row := range c.Endpoints.List() {
		if c.Identities.inRange(row.Identity) && !c.Identities.assigned(row.Identity) {
			return fmt.Errorf("%w: endpoint %d has ID %d", errUsed, row.ID, row.Identity)
		}
	}
	var left []identity.ID
	for _, k := range c.Identities.List() {
		if c.Identities.inRange(k.ID) && !c.Identities.assigned(k.ID) {
			left = append(left, k.ID)
		}
	}
	var err error
	c.Policy.View(func(e *policy.Engine) {
		for _, id := range left {
			if err == nil && e.Knows(id) {
				err = fmt.Errorf("%w: rules know ID %d", errUsed, id)
			}
		}
	})
	return err
}
