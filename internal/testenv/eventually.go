package testenv

import (
	"testing"
	"time"
)

// Eventually asks until f returns "". It leaves most of the time to what it waits for: what f looks
// at is often not cheap, least of all with the race detector.
func Eventually(t testing.TB, within time.Duration, f func() string) {
	t.Helper()
	deadline := time.Now().Add(within)
	for {
		began := time.Now()
		problem := f()
		if problem == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("after %s: %s", within, problem)
		}
		time.Sleep(Breath(began))
	}
}

// Breath is how long to wait before looking again, after a look that began then: at most a fifth of
// the time is spent looking, unless that is more than half a second.
func Breath(began time.Time) time.Duration {
	return min(max(20*time.Millisecond, 4*time.Since(began)), 500*time.Millisecond)
}
