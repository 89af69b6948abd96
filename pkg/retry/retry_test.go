package retry

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// TestWait: pauses double up to the longest, and end with the context.
func TestWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for failures, most := range []time.Duration{10, 20, 40, 50, 50} {
			most *= time.Millisecond
			if d := Backoff(failures, 10*time.Millisecond, 50*time.Millisecond); d < most/2 || d > most {
				t.Errorf("after %d failures %v, want %v to %v", failures, d, most/2, most)
			}
		}
		for _, failures := range []int{-1, 40, 100, 1 << 30} {
			if d := Backoff(failures, time.Second, time.Hour); d < time.Second/2 || d > time.Hour {
				t.Errorf("after %d failures %v", failures, d)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		began := time.Now()
		if err := Wait(ctx, 2, time.Second, time.Minute); err != nil || time.Since(began) < 2*time.Second || time.Since(began) > 4*time.Second {
			t.Errorf("waited %v, %v", time.Since(began), err)
		}
		time.AfterFunc(time.Second, cancel)
		if err := Wait(ctx, 20, time.Minute, time.Hour); !errors.Is(err, context.Canceled) {
			t.Errorf("the context ended, and Wait says %v", err)
		}
	})
}

// TestSleepUnless: a sleep ends with the time, with the first notice, and with the context.
func TestSleepUnless(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		sooner := make(chan struct{}, 1)
		began := time.Now()
		if !SleepUnless(ctx, time.Minute, sooner) || time.Since(began) != time.Minute {
			t.Errorf("waited %v", time.Since(began))
		}
		Notify(sooner)
		Notify(sooner)
		if began = time.Now(); !SleepUnless(ctx, time.Minute, sooner) || time.Since(began) != 0 {
			t.Errorf("waited %v although something came", time.Since(began))
		}
		if !SleepUnless(ctx, time.Minute, sooner) || time.Since(began) != time.Minute {
			t.Errorf("waited %v: two notices are one for whoever did not wait", time.Since(began))
		}
		began = time.Now()
		cancel()
		if SleepUnless(ctx, time.Minute, sooner) || time.Since(began) != 0 {
			t.Error("the context ended, and the sleep did not")
		}
	})
}
