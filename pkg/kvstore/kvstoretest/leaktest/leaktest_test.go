package leaktest

import (
	"testing"
	"time"

	"go.uber.org/goleak"
)

// packageTests are tests of a package, for its TestMain.
type packageTests func() int

func (f packageTests) Run() int { return f() }

// TestLateGoroutine: a goroutine that ends soon after the tests is waited for.
func TestLateGoroutine(t *testing.T) {
	before := goleak.IgnoreCurrent()
	late := func() int {
		go time.Sleep(time.Second)
		return 0
	}
	waiting{packageTests(late), []goleak.Option{before}}.Run()
	if err := goleak.Find(before); err != nil {
		t.Errorf("after the tests of a package: %v", err)
	}
	late()
	VerifyNone(t, before)
}
