package clustermesh

import (
	"cmp"
	"slices"
	"time"

	"github.com/hawser-net/hawser/pkg/kvstore"
)

// Status is how far one other cluster is followed.
type Status struct {
	Name string
	// ID is its ID, 0 until it is known.
	ID uint32
	// Connected: its store answers. Ready: all of it was observed, at least once; that stays in
	// force whatever happens.
	Connected, Ready bool
	// Since is when Connected last changed.
	Since time.Time
	// Message is a line for people.
	Message string
	// What is in force of it.
	Nodes, Identities, Addresses, Services int
	// Refused counts what is in its store and not accepted, up to maxRefused.
	Refused int
	// LastError is what keeps it from being followed, if anything does; Failures how often
	// something did.
	LastError   string
	LastErrorAt time.Time
	Failures    int
}

// Status returns the state of all other clusters by name, and what is wrong with the directory, if
// anything is.
func (m *Mesh) Status() (list []Status, fault string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range m.remotes {
		list = append(list, r.snapshot())
	}
	slices.SortFunc(list, func(a, b Status) int { return cmp.Compare(a.Name, b.Name) })
	return list, m.fault
}

func (r *remote) snapshot() Status {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.status
}

// ready reports whether everything was observed at least once.
func (r *remote) ready() bool {
	for _, h := range r.progress {
		if !h.listed || !h.complete && !r.wasReady() {
			return false
		}
	}
	return r.peer.id != 0
}

func (r *remote) wasReady() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.status.Ready
}

// updateStatus updates the status.
func (s *session) updateStatus() {
	store, ready := s.store.Status(), s.ready()
	s.remote.mu.Lock()
	st := &s.remote.status
	was := *st
	// One that answers, but has no quorum, may be silent about what changes.
	if now := store.Healthy() && store.QuorumFailures == 0; now != st.Connected {
		st.Connected, st.Since = now, time.Now()
	}
	st.ID, st.Ready, st.Message = s.peer.id, ready, store.Message
	st.Nodes, st.Identities, st.Addresses, st.Services = len(s.accepted), len(s.identities), len(s.placed), len(s.offered)
	st.Refused = len(s.refused)
	if store.State == kvstore.StateFailed && store.LastError != "" && st.LastError == "" {
		st.LastError, st.LastErrorAt = store.LastError, time.Now()
		st.Failures++
	}
	now := *st
	s.answers = now.Connected
	s.remote.mu.Unlock()
	if was.Connected != now.Connected && (was.Ready || now.Connected) {
		s.log.Info("the store of another cluster", "answers", now.Connected, "detail", now.Message)
	}
	if was.Ready != now.Ready {
		if now.Ready {
			s.log.Info("another cluster was read completely", "identities", now.Identities, "nodes", now.Nodes, "addresses", now.Addresses,
				"services", now.Services, "refused", now.Refused)
		}
		s.m.mu.Lock()
		s.m.notify()
		s.m.mu.Unlock()
	}
}
