// Package leaktest checks that tests leave no goroutines behind. It waits for those that are on
// their way out, as long as a busy machine may need: goleak itself waits less than half a second.
package leaktest

import (
	"testing"
	"time"

	"go.uber.org/goleak"
)

// Timeout is how long a goroutine may take to end.
const Timeout = 20 * time.Second

// VerifyTestMain runs the tests of a package, for its TestMain, and fails if they leave goroutines
// behind. The failure names no test that could be run again.
func VerifyTestMain(m goleak.TestingM, ignore ...goleak.Option) {
	goleak.VerifyTestMain(waiting{m, ignore}, ignore...)
}

// waiting is tests that end when their goroutines have.
type waiting struct {
	goleak.TestingM
	ignore []goleak.Option
}

// Run runs the tests.
func (w waiting) Run() int {
	code := w.TestingM.Run()
	if code == 0 {
		_ = Find(w.ignore...) // who called Run looks again
	}
	return code
}

// VerifyNone fails the test if there are goroutines but those to ignore. Defer it first in a test
// that is not parallel.
func VerifyNone(t testing.TB, ignore ...goleak.Option) {
	t.Helper()
	if err := Find(ignore...); err != nil {
		t.Error(err)
	}
}

// Find waits until there are no goroutines but those to ignore, and returns what is still there
// after [Timeout].
func Find(ignore ...goleak.Option) error {
	for deadline := time.Now().Add(Timeout); ; {
		err := goleak.Find(ignore...) // it waits a little itself
		if err == nil || time.Now().After(deadline) {
			return err
		}
	}
}
