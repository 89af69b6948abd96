package endpoint_test

import (
	"testing"

	"github.com/hawser-net/hawser/internal/policy"
)

// TestRecorderDoesNotWaitForPolicy: while the engine is in use, which may take long, its
// revision can be read and a view is refused.
func TestRecorderDoesNotWaitForPolicy(t *testing.T) {
	p := boot(t, newMachine(), t.TempDir()).policy
	ran := func() (ran bool) {
		if did := p.TryView(func(*policy.Engine) { ran = true }); did != ran {
			t.Errorf("it says %v and was %v", did, ran)
		}
		return ran
	}
	if !ran() {
		t.Error("a view of an idle engine is refused")
	}
	if err := p.Change(func(*policy.Engine) error {
		p.Revision() // or this test never ends
		if ran() {
			t.Error("a view runs beside a change")
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}
