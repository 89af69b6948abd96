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
