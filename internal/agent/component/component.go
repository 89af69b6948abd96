// Package component keeps the health of the agent's components, for its status and metrics.
package component

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/hawser-net/hawser/api/rest"
)

// Statuses has the last status of each component. It is safe for concurrent use.
type Statuses struct {
	mu    sync.Mutex
	state map[string]rest.PartStatus
}

// New returns one without components.
func New() *Statuses { return &Statuses{state: map[string]rest.PartStatus{}} }

// Set records a component's state; Since changes only when the state does.
func (s *Statuses) Set(name string, state rest.State, msg string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.state[name]
	since := old.Since
	if old.State != state {
		since = time.Now()
	}
	s.state[name] = rest.PartStatus{Name: name, State: state, Msg: msg, Since: since}
}

// Report sets a component to OK, or to the failure that err is.
func (s *Statuses) Report(name string, err error, ok string) {
	if err != nil {
		s.Set(name, rest.StateFailure, err.Error())
		return
	}
	s.Set(name, rest.StateOk, ok)
}

// Warn sets a component to OK, or to the warning that err is: the agent works.
func (s *Statuses) Warn(name string, err error, ok string) {
	if err != nil {
		s.Set(name, rest.StateWarning, err.Error())
		return
	}
	s.Set(name, rest.StateOk, ok)
}

// List returns all components by name.
func (s *Statuses) List() []rest.PartStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]rest.PartStatus, 0, len(s.state))
	for _, c := range s.state {
		out = append(out, c)
	}
	slices.SortFunc(out, func(a, b rest.PartStatus) int { return cmp.Compare(a.Name, b.Name) })
	return out
}
