// Package rounds repeats what is done every now and then.
package rounds

import (
	"context"
	"time"
)

// Every calls f at once and then every interval, from start to start, and when kick says so, until ctx ends. After a failure it tries again sooner, first
// after a twelfth of the interval, but at least a second. It runs in the caller's goroutine and returns nil.
func Every(ctx context.Context, interval time.Duration, kick <-chan struct{}, f func(context.Context) error) error {
	soon := min(interval, max(interval/12, time.Second))
	retry := soon
	for {
		began := time.Now()
		pause := interval
		if ctx.Err() != nil {
			return nil
		}
		if err := f(ctx); err != nil {
			pause = retry
			retry = min(2*retry, interval)
		} else {
			retry = soon
		}
		t := time.NewTimer(max(0, pause-time.Since(began)))
		select {
		case <-ctx.Done():
			t.Stop()
			return nil
		case <-kick:
			t.Stop()
		case <-t.C:
		}
	}
}
