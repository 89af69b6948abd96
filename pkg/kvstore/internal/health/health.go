// Package health evaluates a connection to a store by what its checks find, and by the heartbeat.
package health

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/hawser-net/hawser/pkg/kvstore"
	"github.com/hawser-net/hawser/pkg/retry"
)

// Config is how a connection is checked.
type Config struct {
	// Kind is that of the store.
	Kind string
	// Interval is how often the store is checked, FailingInterval how often after a check failed.
	Interval, FailingInterval time.Duration
	// MaxQuorumFailures is how many checks in a row may fail before the connection has.
	MaxQuorumFailures int
	// HeartbeatKey is named in messages; HeartbeatStaleAfter is how old the heartbeat may be, 0 for
	// any age.
	HeartbeatKey        string
	HeartbeatStaleAfter time.Duration
	// Servers means that the store names its single servers, so that messages count them.
	Servers bool
	// Leases counts the leases that the connection holds now, and the keys on them.
	Leases func() (leases, keys int)
	// Log is never nil.
	Log *slog.Logger
}

// Monitor keeps the health of a connection. All methods may be called concurrently. Use [New].
type Monitor struct {
	cfg  Config
	beat kvstore.Heartbeat

	mu     sync.Mutex
	status kvstore.Status // what the last check found
	up     int            // endpoints that answered then
	logged kvstore.State
	unread map[string]error // by prefix
}

// New returns the monitor of a connection that has not been checked.
func New(cfg Config) *Monitor {
	return &Monitor{cfg: cfg, status: kvstore.Status{Kind: cfg.Kind, State: kvstore.StateConnecting}, unread: map[string]error{}}
}

// Run calls check, at once and then at the intervals of the settings, until ctx ends. check reports
// whether the store answered with a quorum.
func (m *Monitor) Run(ctx context.Context, check func() bool) {
	for {
		pause := m.cfg.Interval
		if !check() {
			pause = m.cfg.FailingInterval
		}
		// Up to a tenth more or less, so that a cluster's clients do not ask in step.
		if !retry.Sleep(ctx, pause*9/10+rand.N(pause/5+1)) {
			return
		}
	}
}

// Heartbeat takes what a check found of the heartbeat's key: its revision, 0 if there is none, or
// why it could not be read.
func (m *Monitor) Heartbeat(revision int64, err error) {
	if err != nil {
		m.beat.ReadFailed()
		return
	}
	m.beat.Observe(revision, time.Now())
}

// Fault notes why there is no connection yet.
func (m *Monitor) Fault(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.status.LastError = err.Error()
}

// Unread notes why the store cannot be relied on for the keys behind a prefix; nil means that it
// can.
func (m *Monitor) Unread(prefix string, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err == nil {
		delete(m.unread, prefix)
	} else {
		m.unread[prefix] = err
	}
}

// Close notes that the connection is closed, for good.
func (m *Monitor) Close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.status.State = kvstore.StateClosed
}

// Checked takes the outcome of a check: how the servers are, whether their space is used up, and
// why there was no quorum. It reports whether there was one.
func (m *Monitor) Checked(endpoints []kvstore.EndpointStatus, full bool, quorum error) bool {
	if !m.note(endpoints, full, quorum) {
		return false
	}
	now := m.Status()
	m.mu.Lock()
	defer m.mu.Unlock()
	if now.State != m.logged {
		m.cfg.Log.Info("state of "+m.cfg.Kind+" changed", "from", m.logged, "to", now.State, "detail", now.Message)
		m.logged = now.State
	}
	return quorum == nil
}

// note is false if the connection is closed.
func (m *Monitor) note(endpoints []kvstore.EndpointStatus, full bool, quorum error) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := &m.status
	if s.State == kvstore.StateClosed {
		return false
	}
	up, fault := 0, ""
	for _, e := range endpoints {
		if e.Healthy {
			up++
		} else {
			fault = e.Address + ": " + e.Message
		}
	}
	s.Endpoints, m.up, s.Full = endpoints, up, full
	if quorum == nil {
		s.QuorumFailures, s.LastOK, s.LastError, s.State = 0, time.Now(), fault, kvstore.StateOK
		if up < len(endpoints) || full {
			s.State = kvstore.StateDegraded
		}
		return true
	}
	s.QuorumFailures++
	s.LastError = quorum.Error()
	switch {
	case s.QuorumFailures > m.cfg.MaxQuorumFailures:
		s.State = kvstore.StateFailed
	case !s.LastOK.IsZero():
		s.State = kvstore.StateDegraded
	}
	return true
}

// Status is the state of the connection. The counts are current, the rest is from the last check.
func (m *Monitor) Status() kvstore.Status {
	leases, keys := m.cfg.Leases()
	age, beats := m.beat.Age(time.Now())
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.status
	s.Endpoints = slices.Clone(s.Endpoints)
	s.Leases, s.LeasedKeys = leases, keys
	found, silence := m.cfg.Kind+": ", "no answer to"
	if m.cfg.Servers {
		found += fmt.Sprintf("%d of %d endpoints answer, ", m.up, len(s.Endpoints))
		silence = "no quorum for"
	}
	found += fmt.Sprintf("%d leases with %d keys", leases, keys)
	if s.Full {
		found += ", " + kvstore.ErrNoSpace.Error()
	}
	switch {
	case s.State == kvstore.StateClosed:
		s.Message = m.cfg.Kind + ": closed"
	case len(s.Endpoints) == 0:
		s.Message = m.cfg.Kind + ": connecting"
		if s.LastError != "" {
			s.Message += ": " + s.LastError
		}
	case s.QuorumFailures > 0:
		s.Message = fmt.Sprintf("%s, %s %d checks in a row: %s", found, silence, s.QuorumFailures, s.LastError)
	case beats && age > m.cfg.HeartbeatStaleAfter && m.cfg.HeartbeatStaleAfter > 0:
		s.State = kvstore.StateFailed
		s.LastError = fmt.Sprintf("the heartbeat (%s) has not changed for %s", m.cfg.HeartbeatKey, age.Round(time.Second))
		s.Message = found + ", quorum, but " + s.LastError
	case len(m.unread) > 0:
		s.State = kvstore.StateFailed
		s.LastError = m.unread[slices.Min(slices.Collect(maps.Keys(m.unread)))].Error()
		s.Message = found + ", quorum, but " + s.LastError
	default:
		s.Message = found + ", quorum"
	}
	return s
}
