package fake

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/hawser-net/hawser/internal/datapath"
)

var _ datapath.Services = (*Maps)(nil)

// SetServiceRoom limits the backends of all frontends together, to provoke datapath.ErrFull.
func (m *Maps) SetServiceRoom(backends int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.serviceRoom = backends
}

// SetServiceFlows replaces the flows that ForgetServiceFlows looks at.
func (m *Maps) SetServiceFlows(flows []datapath.ServiceFlow) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.serviceFlows = slices.Clone(flows)
}

// ServiceFlows returns the flows that were not removed.
func (m *Maps) ServiceFlows() []datapath.ServiceFlow {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.serviceFlows)
}

// UpsertService implements datapath.Services.
func (m *Maps) UpsertService(s datapath.Service) error {
	if err := m.node.begin("Maps.UpsertService", s); err != nil {
		return err
	}
	if err := s.Validate(); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	var full error
	if old, known := m.services[s.ServiceFrontend]; !known || !slices.Equal(old.Backends, s.Backends) {
		// As in the kernel, the new backends are written before the old ones go, if there is room.
		used := len(s.Backends)
		for _, o := range m.services {
			used += len(o.Backends)
		}
		if less := s.AtMost(len(old.Backends), old.Backends); used > m.serviceRoom {
			if len(old.Backends) < len(s.Backends) {
				full = fmt.Errorf("service %s: %w", s.ServiceFrontend, datapath.ErrFull)
			}
			if len(old.Backends) == 0 {
				return full
			}
			s = less
		}
	}
	s.Backends, s.Sources = slices.Clone(s.Backends), slices.Clone(s.Sources)
	m.services[s.ServiceFrontend] = s
	return full
}

// DeleteService implements datapath.Services.
func (m *Maps) DeleteService(f datapath.ServiceFrontend) error {
	if err := m.node.begin("Maps.DeleteService", f); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.services, f)
	return nil
}

// Services implements datapath.Services.
func (m *Maps) Services() ([]datapath.Service, error) {
	if err := m.node.begin("Maps.Services", nil); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	list := slices.Collect(maps.Values(m.services))
	for i := range list {
		list[i].Backends, list[i].Sources = slices.Clone(list[i].Backends), slices.Clone(list[i].Sources)
	}
	return list, nil
}

// RecheckServices implements datapath.Services. No other program changes a fake's rows.
func (m *Maps) RecheckServices() (rows []datapath.Service, changed []datapath.ServiceFrontend, err error) {
	rows, err = m.Services()
	return rows, nil, err
}

// ForgetServiceFlows implements datapath.Services.
func (m *Maps) ForgetServiceFlows(ctx context.Context, forget func(datapath.ServiceFlow) bool) (int, error) {
	if err := m.node.begin("Maps.ForgetServiceFlows", nil); err != nil {
		return 0, err
	}
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	before := len(m.serviceFlows)
	m.serviceFlows = slices.DeleteFunc(m.serviceFlows, forget)
	return before - len(m.serviceFlows), nil
}

// PruneServiceSets does nothing: what the kernel's map may be left with has no counterpart here.
func (m *Maps) PruneServiceSets() error { return m.node.begin("Maps.PruneServiceSets", nil) }
