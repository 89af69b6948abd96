package service

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"slices"

	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/table"
)

// Maps is the [table.Target] that reconciles the kernel's table of services with the frontends. A
// restart of the agent touches nothing that stayed the same, because the kernel's side writes only
// what differs. It is for one reconciler.
type Maps struct {
	// Edited, if not nil, is called by Prune with the frontends that another process has changed or
	// removed since they were written. They are as they should be again when Prune has succeeded.
	Edited func([]datapath.ServiceFrontend)

	kernel  datapath.Services
	changed func()
	pruned  bool
}

// NewMaps returns a target for the kernel's table. changed is called whenever flows may lead to
// where they should not any more: see [Flows]. It must not block.
func NewMaps(kernel datapath.Services, changed func()) *Maps {
	return &Maps{kernel: kernel, changed: changed}
}

var _ table.Target[datapath.ServiceFrontend, Frontend] = (*Maps)(nil)

// Update implements [table.Target].
func (m *Maps) Update(_ context.Context, rows []table.Row[datapath.ServiceFrontend, Frontend]) error {
	failed := make(table.RowErrors)
	for i, r := range rows {
		if err := m.kernel.UpsertService(r.Value.Service); err != nil {
			failed[i] = fmt.Errorf("%s: %w", r.Value.Owner, err)
		}
	}
	m.changed()
	if len(failed) > 0 {
		return failed
	}
	return nil
}

// Delete implements [table.Target].
func (m *Maps) Delete(_ context.Context, rows []table.Row[datapath.ServiceFrontend, Frontend]) error {
	failed := make(table.RowErrors)
	for i, r := range rows {
		if err := m.kernel.DeleteService(r.Key); err != nil {
			failed[i] = fmt.Errorf("%s: %w", r.Value.Owner, err)
		}
	}
	m.changed()
	if len(failed) > 0 {
		return failed
	}
	return nil
}

// Prune implements [table.Target].
func (m *Maps) Prune(_ context.Context, desired iter.Seq2[datapath.ServiceFrontend, Frontend]) error {
	have, edited, err := m.kernel.RecheckServices()
	if err != nil {
		return fmt.Errorf("reading the kernel's services: %w", err)
	}
	if len(edited) > 0 && m.Edited != nil {
		m.Edited(edited)
	}
	wanted := make(map[datapath.ServiceFrontend]datapath.Service)
	for f, r := range desired {
		wanted[f] = r.Service
	}
	removed := false
	for _, s := range have {
		want, ok := wanted[s.ServiceFrontend]
		if ok && want.Equal(s) {
			delete(wanted, s.ServiceFrontend)
		}
		if !ok {
			removed = true
			if err := m.kernel.DeleteService(s.ServiceFrontend); err != nil {
				return err
			}
		}
	}
	for _, s := range wanted {
		// A row without room has failed in Update, too, which is tried again. One service that
		// fills the map must not hold up everything else, and what waits for it.
		if err := m.kernel.UpsertService(s); err != nil && !errors.Is(err, datapath.ErrFull) {
			return err
		}
	}
	if !m.pruned || removed || len(wanted) > 0 { // to look through the flows is not cheap
		m.changed()
	}
	if err := m.kernel.PruneServiceSets(); err != nil {
		return err
	}
	m.pruned = true
	return nil
}

// Flows removes from flows what the table of frontends no longer contains: datagrams to a backend
// that is removed, connections that such a backend has not answered, and flows that began before
// their destination was a service's. A connection that is answered goes on, whatever became of its
// backend's place in the service.
type Flows struct {
	kernel    datapath.Services
	frontends *table.Table[datapath.ServiceFrontend, Frontend]
}

// NewFlows returns the Flows of a table.
func NewFlows(kernel datapath.Services, frontends *table.Table[datapath.ServiceFrontend, Frontend]) *Flows {
	return &Flows{kernel: kernel, frontends: frontends}
}

// ForgetStale goes through the flows once.
func (f *Flows) ForgetStale(ctx context.Context) error {
	frontends := maps.Collect(f.frontends.All())
	stale := func(flow datapath.ServiceFlow) bool { return Stale(frontends, flow) }
	if _, err := f.kernel.ForgetServiceFlows(ctx, stale); err != nil {
		return fmt.Errorf("have flows forget former backends: %w", err)
	}
	return nil
}

// Sockets are the connected sockets for datagrams of the node's own processes that were given a
// backend for the frontend that they named: unlike a pod's packets, theirs are not checked again.
// EndSockets ends those for which end returns true, so that their owners reconnect, and returns how
// many.
type Sockets interface {
	EndSockets(end func(frontend, backend netip.AddrPort) bool) (int, error)
}

// EndStaleSockets goes through the sockets once, and ends those whose backend is none of their
// frontend's any more. It returns how many.
func (f *Flows) EndStaleSockets(sockets Sockets) (int, error) {
	n, err := sockets.EndSockets(f.former)
	if err != nil {
		return n, fmt.Errorf("end sockets to removed backends: %w", err)
	}
	return n, nil
}

// former reports whether a process of the node would not be given the backend for the frontend by
// now.
func (f *Flows) former(frontend, backend netip.AddrPort) bool {
	scope := datapath.ServiceInternal
	at := []netip.AddrPort{frontend}
	if frontend.Addr().IsLoopback() {
		scope = datapath.ServiceNode
		if frontend.Addr().Is4() { // one row is for all that have none of their own
			at = append(at, netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), frontend.Port()))
		}
	}
	for _, a := range at {
		if r, ok := f.frontends.Get(datapath.ServiceFrontend{Addr: a, Proto: protoUDP, Scope: scope}); ok {
			_, found := slices.BinarySearchFunc(r.Backends, backend, netip.AddrPort.Compare)
			return !found
		}
	}
	return true
}

const (
	protoTCP = 6
	protoUDP = 17
)

// unspecified is the address that stands for any of a's family.
func unspecified(a netip.Addr) netip.Addr {
	if a.Is4() {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}

// Stale reports whether a flow must choose a backend again.
func Stale(frontends map[datapath.ServiceFrontend]Frontend, flow datapath.ServiceFlow) bool {
	known := false
	leads := func(at netip.AddrPort, scope datapath.ServiceScope) bool {
		r, ok := frontends[datapath.ServiceFrontend{Addr: at, Proto: flow.Proto, Scope: scope}]
		known = known || ok
		_, found := slices.BinarySearchFunc(r.Backends, flow.Backend, netip.AddrPort.Compare)
		return found
	}
	if leads(flow.Frontend, datapath.ServiceInternal) || leads(flow.Frontend, datapath.ServiceExternal) {
		return false
	}
	// A pod's flow to another node's port: one row is for all of them. What went there untranslated
	// may have gone to a host that is no node.
	if !known && flow.Backend.IsValid() && leads(netip.AddrPortFrom(unspecified(flow.Frontend.Addr()), flow.Frontend.Port()), datapath.ServiceRemoteNode) {
		return false
	}
	// What goes to an address of no service, untranslated, is what it should be.
	if !known && !flow.Backend.IsValid() {
		return false
	}
	return flow.Proto == protoUDP || !flow.Answered
}
