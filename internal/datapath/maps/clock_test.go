package maps

import (
	"errors"
	"testing"
	"time"
)

// TestEventsFollowTheWallClock: when the wall clock is set, the times of events are right within a
// second, without that each event costs a look at it.
func TestEventsFollowTheWallClock(t *testing.T) {
	zero := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	reads := 0
	var fails error
	c := wallClock{read: func() (time.Time, error) { reads++; return zero, fails }}
	at := func(mono time.Duration) time.Time {
		t.Helper()
		got, err := c.at(mono)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	for i := range 1000 {
		mono := time.Hour + time.Duration(i)*clockEvery/1000
		if got := at(mono); !got.Equal(zero.Add(mono)) {
			t.Fatalf("%v is %v", mono, got)
		}
	}
	if reads != 1 {
		t.Errorf("the clock was read %d times in a second", reads)
	}
	zero = zero.Add(-time.Minute) // the administrator sets the clock
	if got := at(time.Hour + clockEvery); !got.Equal(zero.Add(time.Hour + clockEvery)) {
		t.Errorf("a second after it was set the time is %v", got)
	}
	fails = errors.New("no clock")
	if _, err := c.at(2 * time.Hour); !errors.Is(err, fails) {
		t.Errorf("without a clock: %v", err)
	}
}
