package maps

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/cilium/ebpf"

	"github.com/hawser-net/hawser/internal/datapath"
)

// serviceState is a row as the kernel has it, and the set that holds its backends; 0 if it has
// none.
type serviceState struct {
	row datapath.Service
	set uint32
}

func toKernelFrontend(f datapath.ServiceFrontend) kernelLbKey {
	return kernelLbKey{Addr: toKernelAddr(f.Addr.Addr()), Port: NetworkOrder(f.Addr.Port()), Proto: f.Proto, Scope: uint8(f.Scope)}
}

func fromKernelFrontend(k kernelLbKey) datapath.ServiceFrontend {
	return datapath.ServiceFrontend{Addr: fromKernelAddrPort(k.Addr, k.Port), Proto: k.Proto, Scope: datapath.ServiceScope(k.Scope)}
}

func toKernelBackend(b netip.AddrPort) kernelLbBackend {
	return kernelLbBackend{Addr: toKernelAddr(b.Addr()), Port: NetworkOrder(b.Port())}
}

func fromKernelAddrPort(a kernelAddr, port uint16) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom16(a.B).Unmap(), ntohs(port))
}

// affinityTicks rounds up: a client is promised at least the time.
func affinityTicks(d time.Duration) uint32 {
	return uint32((d + TickNanoseconds - 1) / TickNanoseconds)
}

// The kernel counts in ticks: what is read back is the whole second below, which is what was
// written if that was whole seconds.
func affinityFromTicks(ticks uint32) time.Duration {
	return (time.Duration(ticks) * TickNanoseconds).Truncate(time.Second)
}

// readServices reads the tables of services.
func (m *Maps) readServices() (map[datapath.ServiceFrontend]serviceState, error) {
	services := make(map[datapath.ServiceFrontend]serviceState)
	sets := make(map[uint32][]netip.AddrPort)
	err := each(m.maps[kernelMapLbSlots], func(k kernelLbSlot, v kernelLbBackend) bool {
		sets[k.Set] = append(sets[k.Set], fromKernelAddrPort(v.Addr, v.Port))
		m.lastSet = max(m.lastSet, k.Set)
		return true
	})
	if err != nil {
		return nil, fmt.Errorf("backends: %w", err)
	}
	for _, backends := range sets {
		slices.SortFunc(backends, netip.AddrPort.Compare)
	}
	ranges, err := m.readRanges()
	if err != nil {
		return nil, err
	}
	members, parts := make(map[uint32]int), make(map[uint32]int)
	err = errors.Join(
		each(m.maps[kernelMapLbMembers], func(k kernelLbMember, _ uint32) bool { members[k.Set]++; return true }),
		each(m.maps[kernelMapLbTables], func(k kernelLbPart, _ kernelLbCells) bool { parts[k.Set]++; return true }))
	if err != nil {
		return nil, fmt.Errorf("members and tables of sets: %w", err)
	}
	err = each(m.maps[kernelMapLbServices], func(k kernelLbKey, v kernelLbService) bool {
		f := fromKernelFrontend(k)
		row := datapath.Service{
			ServiceFrontend: f, ID: v.Id, Affinity: affinityFromTicks(v.Affinity), Backends: sets[v.Set], RemoteOnly: v.Flags&lbRemoteOnly != 0,
			LimitSources: v.Flags&lbSourceRanges != 0, Sources: ranges[v.Set], Maglev: v.Flags&lbMaglev != 0,
			DSR: v.Flags&lbDSR != 0,
		}
		if int(v.Count) != len(row.Backends) || members[v.Set] != len(row.Backends) || hasTable(row) && parts[v.Set] != tableParts {
			row.Backends = nil // written by another process: it will be rewritten
		}
		services[f] = serviceState{row: row, set: v.Set}
		m.lastSet = max(m.lastSet, v.Set)
		return true
	})
	if err != nil {
		return nil, fmt.Errorf("frontends: %w", err)
	}
	m.unshare(services)
	return services, nil
}

// unshare takes the set from rows that name one of another row, which another process has written:
// a row that is removed must not take the other's backends with it. The set stays with the row for
// which it was written, if that is known.
func (m *Maps) unshare(services map[datapath.ServiceFrontend]serviceState) {
	users := make(map[uint32]int)
	for _, s := range services {
		users[s.set]++
	}
	for f, s := range services {
		if s.set == 0 || users[s.set] == 1 {
			continue
		}
		if wrote, known := m.services[f]; !known || wrote.set != s.set {
			s.row.Backends, s.row.Sources, s.set = nil, nil, 0
			services[f] = s
		}
	}
}

// readRanges reads the ranges of clients, by set.
func (m *Maps) readRanges() (map[uint32][]netip.Prefix, error) {
	ranges := make(map[uint32][]netip.Prefix)
	err := each(m.maps[kernelMapLbRanges], func(k kernelLbRange, _ uint32) bool {
		ranges[k.Set] = append(ranges[k.Set], fromKernelRange(k))
		m.lastSet = max(m.lastSet, k.Set)
		return true
	})
	if err != nil {
		return nil, fmt.Errorf("ranges of clients: %w", err)
	}
	for _, list := range ranges {
		slices.SortFunc(list, netip.Prefix.Compare)
	}
	return ranges, nil
}

// Services implements datapath.Services.
func (m *Maps) Services() ([]datapath.Service, error) {
	m.servicesMu.Lock()
	defer m.servicesMu.Unlock()
	services, err := m.readServices()
	if err != nil {
		return nil, fmt.Errorf("services: %w", err)
	}
	return rowsOf(services), nil
}

func rowsOf(services map[datapath.ServiceFrontend]serviceState) []datapath.Service {
	list := make([]datapath.Service, 0, len(services))
	for _, s := range services {
		list = append(list, s.row)
	}
	return list
}

// RecheckServices implements datapath.Services.
func (m *Maps) RecheckServices() (list []datapath.Service, changed []datapath.ServiceFrontend, err error) {
	m.servicesMu.Lock()
	defer m.servicesMu.Unlock()
	found, err := m.readServices()
	if err != nil {
		return nil, nil, fmt.Errorf("services: %w", err)
	}
	for f, have := range found {
		if wrote, known := m.services[f]; !known || have.set != wrote.set || !have.row.Equal(wrote.row) {
			changed = append(changed, f)
		}
	}
	for f := range m.services {
		if _, there := found[f]; !there {
			changed = append(changed, f)
		}
	}
	m.services = found
	return rowsOf(found), changed, nil
}

// UpsertService implements datapath.Services. The backends are written as a set of their own before
// the frontend names it; the old set goes after that, or before where there is no room for both. A
// program that has read the old row looks again when it does not find its slot.
func (m *Maps) UpsertService(s datapath.Service) error {
	if err := s.Validate(); err != nil {
		return err
	}
	if m.hasService(s) {
		return nil
	}
	cells := cellsOf(s) // takes a while: others need not wait for it
	m.servicesMu.Lock()
	defer m.servicesMu.Unlock()
	s.Backends, s.Sources = slices.Clone(s.Backends), slices.Clone(s.Sources)
	err := m.upsertService(s, cells)
	old := m.services[s.ServiceFrontend]
	if !errors.Is(err, datapath.ErrFull) || old.set == 0 {
		return err
	}
	// The old backends' addresses may be reassigned soon: the old set makes room for the new one,
	// or for what of it fits.
	less := s.AtMost(len(old.row.Backends), old.row.Backends)
	if old.row.Equal(less) {
		return err
	}
	if verr := m.vacate(old); verr != nil {
		return errors.Join(err, verr)
	}
	if lerr := m.upsertService(less, cellsOf(less)); lerr != nil {
		return errors.Join(err, lerr)
	}
	if len(less.Backends) == len(s.Backends) {
		return nil
	}
	return err
}

// vacate removes a frontend's backends, and frees its set. Packets for it are dropped: clients are
// not refused while another set is written. It is called with servicesMu held.
func (m *Maps) vacate(old serviceState) error {
	none := datapath.Service{ServiceFrontend: old.row.ServiceFrontend, ID: old.row.ID, RemoteOnly: true}
	if err := m.maps[kernelMapLbServices].Put(toKernelFrontend(none.ServiceFrontend), kernelLbService{Id: none.ID, Flags: serviceFlags(none)}); err != nil {
		return fmt.Errorf("service %s: %w", none.ServiceFrontend, classify(err))
	}
	m.services[none.ServiceFrontend] = serviceState{row: none}
	if err := m.deleteSet(old); err != nil {
		return fmt.Errorf("service %s: remove its former backends: %w", none.ServiceFrontend, err)
	}
	return nil
}

// upsertService is called with servicesMu held, and keeps s.
func (m *Maps) upsertService(s datapath.Service, cells []kernelLbCells) error {
	old, known := m.services[s.ServiceFrontend]
	next := serviceState{row: s, set: old.set}
	if !known || !old.row.SameSet(s) {
		next.set = 0
		if needsSet(s) {
			next.set = m.freeSet()
			if err := m.writeSet(next, cells); err != nil {
				return fmt.Errorf("service %s: write %d backends: %w", s.ServiceFrontend, len(s.Backends), errors.Join(err, m.deleteSet(next)))
			}
		}
	}
	v := kernelLbService{Set: next.set, Count: uint32(len(s.Backends)), Affinity: affinityTicks(s.Affinity), Id: s.ID, Flags: serviceFlags(s)}
	if err := m.maps[kernelMapLbServices].Put(toKernelFrontend(s.ServiceFrontend), v); err != nil {
		if next.set != old.set {
			err = errors.Join(err, m.deleteSet(next))
		}
		return fmt.Errorf("service %s: %w", s.ServiceFrontend, classify(err))
	}
	m.services[s.ServiceFrontend] = next
	if known && old.set != next.set {
		if err := m.deleteSet(old); err != nil {
			return fmt.Errorf("service %s: remove its former backends: %w", s.ServiceFrontend, err)
		}
	}
	return nil
}

// hasService reports whether a row is as it should be.
func (m *Maps) hasService(s datapath.Service) bool {
	m.servicesMu.Lock()
	defer m.servicesMu.Unlock()
	old, known := m.services[s.ServiceFrontend]
	return known && old.row.Equal(s) && (old.set != 0) == needsSet(s)
}

// Flags of a frontend's row, as in bpf/lib/maps.h.
const (
	lbRemoteOnly   = 1 << 0
	lbSourceRanges = 1 << 1
	lbMaglev       = 1 << 2
	lbDSR          = 1 << 3
)

func serviceFlags(s datapath.Service) (flags uint32) {
	for _, f := range []struct {
		on  bool
		bit uint32
	}{{s.RemoteOnly, lbRemoteOnly}, {s.LimitSources, lbSourceRanges}, {s.Maglev, lbMaglev}, {s.DSR, lbDSR}} {
		if f.on {
			flags |= f.bit
		}
	}
	return flags
}

// needsSet reports whether anything stands under the number of the row's set.
func needsSet(s datapath.Service) bool { return len(s.Backends) > 0 || len(s.Sources) > 0 }

// freeSet returns a number that no set has, nor had lately.
func (m *Maps) freeSet() uint32 {
	used := func(set uint32) bool {
		for _, s := range m.services {
			if s.set == set {
				return true
			}
		}
		return false
	}
	wrapped := m.lastSet == ^uint32(0)
	m.lastSet++
	for wrapped && (m.lastSet == 0 || used(m.lastSet)) {
		m.lastSet++
	}
	return m.lastSet
}

func (s serviceState) slots() (keys []kernelLbSlot, values []kernelLbBackend) {
	for i, b := range s.row.Backends {
		keys = append(keys, kernelLbSlot{Set: s.set, Slot: uint32(i)})
		values = append(values, toKernelBackend(b))
	}
	return keys, values
}

func (s serviceState) members() (keys []kernelLbMember, values []uint32) {
	for _, b := range s.row.Backends {
		keys = append(keys, kernelLbMember{Backend: toKernelBackend(b), Set: s.set})
		values = append(values, 1)
	}
	return keys, values
}

func (m *Maps) writeSet(s serviceState, cells []kernelLbCells) error {
	slots, backends := s.slots()
	if _, err := putAll(m.maps[kernelMapLbSlots], slots, backends); err != nil {
		return err
	}
	members, values := s.members()
	if _, err := putAll(m.maps[kernelMapLbMembers], members, values); err != nil {
		return err
	}
	for _, k := range s.ranges() {
		if err := m.maps[kernelMapLbRanges].Put(k, uint32(1)); err != nil {
			return fmt.Errorf("ranges of clients: %w", classify(err))
		}
	}
	if _, err := putAll(m.maps[kernelMapLbTables], s.parts(), cells); err != nil {
		return fmt.Errorf("table of cells (see --bpf-lb-maglev-map-max): %w", err)
	}
	return nil
}

func (m *Maps) deleteSet(s serviceState) error {
	slots, _ := s.slots()
	members, _ := s.members()
	errs := []error{deleteAll(m.maps[kernelMapLbTables], s.parts()), deleteAll(m.maps[kernelMapLbMembers], members)}
	for _, k := range s.ranges() {
		errs = append(errs, deleteOne(m.maps[kernelMapLbRanges], k))
	}
	// The slots go last: while they are there, the number of the set is not given to another.
	return errors.Join(append(errs, deleteAll(m.maps[kernelMapLbSlots], slots))...)
}

// deleteOne removes an entry of a trie, which takes no batches; one that is absent doesn't matter.
func deleteOne[K any](m *ebpf.Map, k K) error {
	if err := m.Delete(k); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return err
	}
	return nil
}

// The address is in its IPv6 form, and before it stands the number of the set.
func (s serviceState) ranges() (keys []kernelLbRange) {
	for _, p := range s.row.Sources {
		bits := uint32(32 + p.Bits())
		if p.Addr().Is4() {
			bits += 96
		}
		keys = append(keys, kernelLbRange{Bits: bits, Set: s.set, Addr: toKernelAddr(p.Addr())})
	}
	return keys
}

func fromKernelRange(k kernelLbRange) netip.Prefix {
	a, bits := netip.AddrFrom16(k.Addr.B), int(k.Bits)-32
	if a.Is4In6() && bits >= 96 {
		return netip.PrefixFrom(a.Unmap(), bits-96)
	}
	return netip.PrefixFrom(a, bits)
}

// parts are the keys of the set's table, if it has one.
func (s serviceState) parts() (keys []kernelLbPart) {
	if !hasTable(s.row) {
		return nil
	}
	for i := range uint32(tableParts) {
		keys = append(keys, kernelLbPart{Set: s.set, Part: i})
	}
	return keys
}

// A table and its parts, as in bpf/lib/maps.h.
const (
	tableCells = datapath.MaxMaglevBackends
	partCells  = len(kernelLbCells{}.Slot)
	tableParts = (tableCells + partCells - 1) / partCells
)

func hasTable(s datapath.Service) bool { return s.Maglev && len(s.Backends) > 0 }

// cellsOf returns the parts of a row's table, if it has one.
func cellsOf(s datapath.Service) []kernelLbCells {
	if !hasTable(s) {
		return nil
	}
	cells := make([]kernelLbCells, tableParts)
	for i, slot := range maglev(s.Backends, tableCells) {
		cells[i/partCells].Slot[i%partCells] = slot
	}
	return cells
}

// DeleteService implements datapath.Services.
func (m *Maps) DeleteService(f datapath.ServiceFrontend) error {
	m.servicesMu.Lock()
	defer m.servicesMu.Unlock()
	if err := m.maps[kernelMapLbServices].Delete(toKernelFrontend(f)); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("service %s: remove the frontend: %w", f, err)
	}
	old, known := m.services[f]
	delete(m.services, f)
	if !known {
		return nil
	}
	if err := m.deleteSet(old); err != nil {
		return fmt.Errorf("service %s: remove its backends: %w", f, err)
	}
	return nil
}

// PruneServiceSets implements datapath.Services: it removes backends that no frontend leads to.
func (m *Maps) PruneServiceSets() error {
	m.servicesMu.Lock()
	defer m.servicesMu.Unlock()
	used := make(map[uint32]bool)
	for _, s := range m.services {
		used[s.set] = true
	}
	slots, err1 := unusedKeys[kernelLbSlot, kernelLbBackend](m.maps[kernelMapLbSlots], func(k kernelLbSlot) bool { return used[k.Set] })
	members, err2 := unusedKeys[kernelLbMember, uint32](m.maps[kernelMapLbMembers], func(k kernelLbMember) bool { return used[k.Set] })
	parts, err3 := unusedKeys[kernelLbPart, kernelLbCells](m.maps[kernelMapLbTables], func(k kernelLbPart) bool { return used[k.Set] })
	ranges, err4 := unusedKeys[kernelLbRange, uint32](m.maps[kernelMapLbRanges], func(k kernelLbRange) bool { return used[k.Set] })
	err := errors.Join(err1, err2, err3, err4)
	if err == nil {
		err = errors.Join(
			deleteAll(m.maps[kernelMapLbSlots], slots), deleteAll(m.maps[kernelMapLbMembers], members), deleteAll(m.maps[kernelMapLbTables], parts))
	}
	for _, k := range ranges {
		err = errors.Join(err, deleteOne(m.maps[kernelMapLbRanges], k))
	}
	if err != nil {
		return fmt.Errorf("services: remove backends of no frontend: %w", err)
	}
	return nil
}

// unusedKeys returns the keys of a map that are not used.
func unusedKeys[K comparable, V any](m *ebpf.Map, used func(K) bool) (keys []K, err error) {
	err = each(m, func(k K, _ V) bool {
		if !used(k) {
			keys = append(keys, k)
		}
		return true
	})
	return keys, err
}

// ForgetServiceFlows implements datapath.Services.
func (m *Maps) ForgetServiceFlows(ctx context.Context, forget func(datapath.ServiceFlow) bool) (int, error) {
	now, err := now()
	if err != nil {
		return 0, fmt.Errorf("services: read the clock: %w", err)
	}
	// An entry leads the client's packets to a backend; the flow between the two leads those of the
	// backend back, and they extend it. So a flow that no entry leads to is forgotten as well, one
	// call after its entry, or the next owner of the backend's address could answer in its place
	// for as long as it likes. Until then the replies in flight arrive.
	type entry struct {
		key  kernelCtKey
		flow datapath.ServiceFlow
	}
	type back struct {
		key       kernelCtKey
		live, dsr bool // of a flow of DSR only one direction is known here, or no entry
	}
	var entries []entry
	var gone []kernelCtKey
	flows := make(map[datapath.ServiceFlow]back)
	err = each(m.maps[kernelMapCt], func(k kernelCtKey, v kernelCtValue) bool {
		e := fromKernelCT(k, v, now)
		live := e.SeenReply && !ctEnded(v.Flags) && e.Expires > 0
		switch {
		case k.Collision != 0:
		case v.Flags&ctService != 0:
			entries = append(entries, entry{k, datapath.ServiceFlow{
				Client: e.Src, Frontend: e.Dst, Proto: e.Proto, Backend: fromKernelAddrPort(v.Nat, v.NatPort),
			}})
		case v.Flags&ctTranslated != 0:
			flow := datapath.ServiceFlow{Client: serviceClient(e, v), Frontend: e.Service, Proto: e.Proto, Backend: e.Dst}
			if e.Service.IsValid() && !flows[flow].live {
				flows[flow] = back{k, live, e.DSR}
			}
		case forget(datapath.ServiceFlow{Client: e.Src, Frontend: e.Dst, Proto: e.Proto, Answered: live}):
			gone = append(gone, k)
		}
		return ctx.Err() == nil
	})
	if err != nil {
		return 0, fmt.Errorf("services: list flows: %w", err)
	}
	for _, e := range entries {
		b := flows[e.flow]
		delete(flows, e.flow)
		e.flow.Answered = b.live
		if forget(e.flow) {
			gone = append(gone, e.key)
		}
	}
	for flow, b := range flows {
		flow.Answered = b.live
		if !b.dsr && forget(flow) {
			gone = append(gone, b.key)
		}
	}
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	if err := deleteAll(m.maps[kernelMapCt], gone); err != nil {
		return 0, fmt.Errorf("services: forget %d flows: %w", len(gone), err)
	}
	return len(gone), nil
}

// serviceClient returns who opened a translated flow, by the address and port that the client
// itself uses.
func serviceClient(e datapath.CTEntry, v kernelCtValue) netip.AddrPort {
	client := e.Src
	if v.Flags&ctHairpin != 0 {
		client = netip.AddrPortFrom(e.Dst.Addr(), client.Port())
	}
	if v.ClientPort != 0 {
		client = netip.AddrPortFrom(client.Addr(), ntohs(v.ClientPort))
	}
	return client
}

// SocketFrontend returns the frontend that a socket of the node's own named when it was given its
// peer as a backend; ok is false if no hook did that. The cookie is the kernel's number of the
// socket.
func (m *Maps) SocketFrontend(cookie uint64, proto uint8, peer netip.AddrPort) (frontend netip.AddrPort, ok bool, err error) {
	const toFrontend = 1 // SOCKET_FRONTEND in bpf/lib/maps.h
	key := kernelLbSocket{Cookie: cookie, Addr: toKernelAddr(peer.Addr()), Port: NetworkOrder(peer.Port()), Proto: proto, Direction: toFrontend}
	var v kernelLbBackend
	err = m.maps[kernelMapLbSockets].Lookup(key, &v)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return netip.AddrPort{}, false, nil
	}
	if err != nil {
		return netip.AddrPort{}, false, fmt.Errorf("services: look for a socket's frontend: %w", err)
	}
	return fromKernelAddrPort(v.Addr, v.Port), true, nil
}
