package testenv

import (
	"testing"
	"time"
)

// Eventually asks until f returns "".
func Eventually(t testing.TB, within time.Duration, f func() string) {
	t.Helper()
	deadline := time.Now().Add(within)
	for {
		problem := f()
		if problem == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("after %s: %s", within, problem)
		}
		time.Sleep(20 * time.Millisecond)
	}
}
