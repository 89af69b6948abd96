package identities

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hawser-net/hawser/internal/identity"
)

// TestTemporaryIdentityIsMeasured: how long labels had a temporary identity is observed once, when
// no endpoint has it any more.
func TestTemporaryIdentityIsMeasured(t *testing.T) {
	s := newSeeker(t, 65535)
	defer s.stop()
	var measured []float64
	s.cfg.Temporary = prometheus.ObserverFunc(func(v float64) { measured = append(measured, v) })
	take := func() identity.ID {
		id, err := s.temps.Acquire(app("a"))
		if err != nil {
			t.Fatal(err)
		}
		s.Add(id, app("a"))
		return id
	}
	id := take()
	s.mu.Lock()
	s.since[id] = time.Now().Add(-time.Minute)
	s.mu.Unlock()
	take()
	s.releaseTemporary(id)
	if len(measured) > 0 {
		t.Errorf("measured %v while an endpoint has it", measured)
	}
	s.releaseTemporary(id)
	if len(measured) != 1 || measured[0] < 60 || measured[0] > 600 {
		t.Errorf("measured %v; want a minute", measured)
	}
	if len(s.since) > 0 {
		t.Errorf("remembered: %v", s.since)
	}
}
