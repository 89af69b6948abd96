package identities

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hawser-net/hawser/internal/identity"
)

// TestTemporaryIdentityIsMeasured: how long labels had a temporary identity is observed once, when
// no endpoint has it any more, whether this node may ask for an ID or others make them.
func TestTemporaryIdentityIsMeasured(t *testing.T) {
	for _, mode := range []identity.Management{identity.ManagedByAgent, identity.ManagedByBoth, identity.ManagedByOperator} {
		t.Run(string(mode), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSeeker(t, 65535)
				defer s.stop()
				s.cfg.Management = mode
				var measured []float64
				s.cfg.Temporary = prometheus.ObserverFunc(func(v float64) { measured = append(measured, v) })
				s.store.set(time.Hour, nil)
				first, _ := s.acquire(app("a"))
				if !first.IsTemporary() {
					t.Fatalf("a store that does not answer: %s", first)
				}
				began := time.Now()
				time.Sleep(time.Minute)
				second, _ := s.acquire(app("a"))
				if second != first {
					t.Fatalf("then %s", second)
				}
				s.give(first, app("a"))
				if len(measured) > 0 {
					t.Errorf("measured %v while an endpoint has it", measured)
				}
				s.give(second, app("a"))
				took := time.Since(began).Seconds()
				if len(measured) != 1 || measured[0] < took || measured[0] > took+lookWait.Seconds() {
					t.Errorf("measured %v; want %v", measured, took)
				}
				if len(s.since) > 0 {
					t.Errorf("remembered: %v", s.since)
				}
			})
		})
	}
}
