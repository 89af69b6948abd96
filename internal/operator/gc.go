package operator

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"golang.org/x/time/rate"

	"github.com/hawser-net/hawser/internal/operator/identities"
	"github.com/hawser-net/hawser/internal/operator/rounds"
	"github.com/hawser-net/hawser/pkg/allocator"
	"github.com/hawser-net/hawser/pkg/kvstore"
)

// gcBurst bounds how many identities are deleted without a pause when the rate was not used before:
// as many as one transaction deletes.
const gcBurst = 42

// storeRate is how many identities end a second in a key-value store unless configured otherwise:
// every agent follows them there, and the store is the only server. Where they are objects it
// depends on the number of agents, see [identities.Config].
const storeRate = rate.Limit(2500.0 / 60)

// gcLimiter bounds how fast identities are deleted: by so many a second unless configured
// otherwise.
func (o *Operator) gcLimiter(otherwise rate.Limit) *rate.Limiter {
	if o.cfg.GCRateLimit == 0 {
		return rate.NewLimiter(otherwise, gcBurst)
	}
	return rate.NewLimiter(rate.Limit(float64(o.cfg.GCRateLimit)/o.cfg.GCRateInterval.Seconds()), min(o.cfg.GCRateLimit, gcBurst))
}

// lockTimeout bounds one sweep of the locks.
const lockTimeout = time.Minute

// users returns a function that reports whether an ID is in use even without a reference.
type users func(ctx context.Context, numbers []allocator.ID) (func(allocator.ID) bool, error)

// collectIdentities deletes identities without references, two rounds after that was first
// observed, or the heartbeat timeout after it as long as IDs are plentiful. With used, identities
// are the operator's: IDs that it reports as used are kept. It deletes nothing in a store that is
// another cluster's, too.
func (o *Operator) collectIdentities(ctx context.Context, store kvstore.Backend, ids *allocator.Allocator, limiter *rate.Limiter, used users) error {
	seen := map[allocator.ID]int64{}
	since := map[allocator.ID]time.Time{} // of those in seen
	taken := 0
	log := o.log.With("part", "identity-gc")
	return rounds.Every(ctx, o.cfg.GCInterval, nil, func(ctx context.Context) error {
		start := time.Now()
		if err := o.owns(ctx, store); err != nil {
			if ctx.Err() == nil {
				log.Warn("no identity is collected in the key-value store, trying again", "error", err)
			}
			return err
		}
		var grace time.Duration
		if identities.Plenty(taken, o.first, o.last) {
			grace = o.cfg.HeartbeatTimeout
		}
		due := maps.Clone(seen)
		maps.DeleteFunc(due, func(id allocator.ID, _ int64) bool { return start.Sub(since[id]) < grace })
		if used != nil {
			inUse, err := used(ctx, slices.Collect(maps.Keys(due)))
			if err != nil {
				if ctx.Err() == nil {
					o.log.Warn("cannot find out which identities are in use, so none is collected", "error", err)
				}
				return err
			}
			maps.DeleteFunc(due, func(id allocator.ID, _ int64) bool {
				if !inUse(id) {
					return false
				}
				delete(since, id)
				return true
			})
		}
		next, stats, err := ids.RunGC(ctx, limiter, due)
		if errors.Is(err, kvstore.ErrNoSpace) {
			next = map[allocator.ID]int64{} // references could not be written: start over
		} else if err != nil {
			// The next try comes early. What this round saw for the first time has not been unused
			// for an interval then, so it does not count yet.
			maps.DeleteFunc(next, func(id allocator.ID, mod int64) bool { return seen[id] != mod })
			// And it may not have got to see what was still within its grace, which goes on.
			for id, mod := range seen {
				if _, ok := due[id]; !ok {
					next[id] = mod
				}
			}
		} else {
			taken = stats.Alive + stats.Dead + stats.Spared + stats.Quarantined
		}
		for id, mod := range next {
			if _, ok := since[id]; !ok || seen[id] != mod {
				since[id] = start
			}
		}
		maps.DeleteFunc(since, func(id allocator.ID, _ time.Time) bool { _, ok := next[id]; return !ok })
		seen = next
		if ctx.Err() != nil {
			return nil
		}
		took := time.Since(start)
		// What waits for its second round still exists.
		o.metrics.collected(ofKVStore, identities.Stats{
			Alive: stats.Alive + stats.Dead + stats.Spared, Unused: stats.Dead, Deleted: stats.Deleted,
			Quarantined: stats.Quarantined, Freed: stats.Freed, Awaited: stats.Unconfirmed,
		}, took, err)
		if err != nil {
			log.Warn("cannot collect unused identities, trying again", "error", err, "deleted", stats.Deleted)
			return err
		}
		level := log.Debug
		if stats.Deleted > 0 || stats.Dead > 0 {
			level = log.Info
		}
		level("looked for unused identities", "deleted", stats.Deleted, "unused", stats.Dead, "used", stats.Alive,
			"spared", stats.Spared, "quarantined", stats.Quarantined, "freed", stats.Freed, "of-other-clusters", stats.OutOfRange, "took", took.Round(time.Millisecond))
		return nil
	})
}

// collectLocks deletes locks that have not moved between two sweeps: their holder's lease should
// have ended long ago.
func (o *Operator) collectLocks(ctx context.Context, ids *allocator.Allocator) error {
	seen := map[string]allocator.Lock{}
	return rounds.Every(ctx, o.cfg.LockGCInterval, nil, o.metrics.meter.Measure("locks", func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, lockTimeout)
		defer cancel()
		held, deleted, err := ids.RunLocksGC(ctx, seen)
		o.metrics.meter.Removed("locks", deleted)
		if held != nil {
			seen = held
		}
		if err != nil && !errors.Is(err, context.Canceled) {
			o.log.Warn("cannot sweep locks, trying again", "error", err)
			// A retry comes early: what it finds unmoved has had less time than it is due.
			seen = map[string]allocator.Lock{}
		}
		return err
	}))
}
