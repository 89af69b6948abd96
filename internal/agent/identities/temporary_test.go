package identities

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hawser-net/hawser/internal/identity"
)

// TestTemporaryIdentityIsMeasured: how long labels had a temporary identity is told once, when
// nobody has it any more.
func TestTemporaryIdentityIsMeasured(t *testing.T) {
	s := newSeeker(t, 65535)
	defer s.stop()
	var told []float64
	s.cfg.Temporary = prometheus.ObserverFunc(func(v float64) { told = append(told, v) })
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
	if len(told) > 0 {
		t.Errorf("told %v while somebody has it", told)
	}
	s.releaseTemporary(id)
	if len(told) != 1 || told[0] < 60 || told[0] > 600 {
		t.Errorf("told %v; want a minute", told)
	}
	if len(s.since) > 0 {
		t.Errorf("remembered: %v", s.since)
	}
}
