// Package retry has the pauses between attempts, and what ends them: the one place for sleep,
// backoff and notices.
package retry

import (
	"context"
	"math/rand/v2"
	"time"
)

// Sleep waits unless ctx ends first, and reports whether it waited in full.
func Sleep(ctx context.Context, d time.Duration) bool { return SleepUnless(ctx, d, nil) }

// SleepUnless waits until sooner fires at the longest, and reports whether ctx goes on.
func SleepUnless(ctx context.Context, d time.Duration, sooner <-chan struct{}) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-sooner:
		return true
	case <-ctx.Done():
		return false
	}
}

// Notify wakes the receiver of a channel with a buffer of one, or makes its next receive return at
// once. Until then further calls have no effect.
func Notify(ch chan<- struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// Backoff is how long to wait after so many attempts that failed: first, doubled each time, at most
// most, and random in its upper half.
func Backoff(failures int, first, most time.Duration) time.Duration {
	d := min(first, most)
	for ; failures > 0 && d < most; failures-- {
		d = min(2*d, most)
	}
	return d/2 + rand.N(d/2+1)
}

// Wait sleeps for the Backoff. Its error is that of ctx.
func Wait(ctx context.Context, failures int, first, most time.Duration) error {
	if !Sleep(ctx, Backoff(failures, first, most)) {
		return ctx.Err()
	}
	return nil
}
