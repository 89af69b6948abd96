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

// serviceState is a row as the kernel has it, and the set that holds its backends; 0 if it has none.
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

// The kernel counts in ticks: what is read back is the whole second below, which is what was written
// if that was whole seconds.
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
	err = each(m.maps[kernelMapLbServices], func(k kernelLbKey, v kernelLbService) bool {
		f := fromKernelFrontend(k)
		row := datapath.Service{ServiceFrontend: f, ID: v.Id, Affinity: affinityFromTicks(v.Affinity), Backends: sets[v.Set]}
		if int(v.Count) != len(row.Backends) {
			row.Backends = nil // somebody else's work: it will be written anew
		}
		services[f] = serviceState{row: row, set: v.Set}
		m.lastSet = max(m.lastSet, v.Set)
		return true
	})
	if err != nil {
		return nil, fmt.Errorf("frontends: %w", err)
	}
	return services, nil
}

// Services implements datapath.Services.
func (m *Maps) Services() ([]datapath.Service, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	services, err := m.readServices()
	if err != nil {
		return nil, fmt.Errorf("services: %w", err)
	}
	list := make([]datapath.Service, 0, len(services))
	for _, s := range services {
		list = append(list, s.row)
	}
	return list, nil
}

// UpsertService implements datapath.Services. The backends are written as a set of their own before the
// frontend names it; the old set goes after that. A program that has read the old row looks again when
// it does not find its slot.
func (m *Maps) UpsertService(s datapath.Service) error {
	if err := s.Validate(); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	old, known := m.services[s.ServiceFrontend]
	if known && old.row.Equal(s) && (old.set != 0) == (len(s.Backends) > 0) {
		return nil
	}
	s.Backends = slices.Clone(s.Backends)
	next := serviceState{row: s, set: old.set}
	if !known || !slices.Equal(old.row.Backends, s.Backends) {
		next.set = 0
		if len(s.Backends) > 0 {
			next.set = m.freeSet()
			if err := m.writeSet(next); err != nil {
				return fmt.Errorf("service %s: write %d backends: %w", s.ServiceFrontend, len(s.Backends), errors.Join(err, m.deleteSet(next)))
			}
		}
	}
	v := kernelLbService{Set: next.set, Count: uint32(len(s.Backends)), Affinity: affinityTicks(s.Affinity), Id: s.ID}
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

func (m *Maps) writeSet(s serviceState) error {
	slots, backends := s.slots()
	if _, err := putAll(m.maps[kernelMapLbSlots], slots, backends); err != nil {
		return err
	}
	members, values := s.members()
	_, err := putAll(m.maps[kernelMapLbMembers], members, values)
	return err
}

func (m *Maps) deleteSet(s serviceState) error {
	slots, _ := s.slots()
	members, _ := s.members()
	return errors.Join(deleteAll(m.maps[kernelMapLbSlots], slots), deleteAll(m.maps[kernelMapLbMembers], members))
}

// DeleteService implements datapath.Services.
func (m *Maps) DeleteService(f datapath.ServiceFrontend) error {
	m.mu.Lock()
	defer m.mu.Unlock()
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
	m.mu.Lock()
	defer m.mu.Unlock()
	used := make(map[uint32]bool)
	for _, s := range m.services {
		used[s.set] = true
	}
	var slots []kernelLbSlot
	var members []kernelLbMember
	err := errors.Join(
		each(m.maps[kernelMapLbSlots], func(k kernelLbSlot, _ kernelLbBackend) bool {
			if !used[k.Set] {
				slots = append(slots, k)
			}
			return true
		}),
		each(m.maps[kernelMapLbMembers], func(k kernelLbMember, _ uint32) bool {
			if !used[k.Set] {
				members = append(members, k)
			}
			return true
		}))
	if err == nil {
		err = errors.Join(deleteAll(m.maps[kernelMapLbSlots], slots), deleteAll(m.maps[kernelMapLbMembers], members))
	}
	if err != nil {
		return fmt.Errorf("services: remove backends of no frontend: %w", err)
	}
	return nil
}

// ForgetServiceFlows implements datapath.Services.
func (m *Maps) ForgetServiceFlows(ctx context.Context, forget func(datapath.ServiceFlow) bool) (int, error) {
	now, err := now()
	if err != nil {
		return 0, fmt.Errorf("services: read the clock: %w", err)
	}
	type meeting struct {
		client, frontend netip.AddrPort
		proto            uint8
	}
	type entry struct {
		key  kernelCtKey
		flow datapath.ServiceFlow
	}
	answered := make(map[meeting]bool)
	var entries []entry
	var gone []kernelCtKey
	err = each(m.maps[kernelMapCt], func(k kernelCtKey, v kernelCtValue) bool {
		e := fromKernelCT(k, v, now)
		live := e.SeenReply && !e.Closing && e.Expires > 0
		switch {
		case v.Flags&ctService != 0:
			entries = append(entries, entry{k, datapath.ServiceFlow{
				Client: e.Src, Frontend: e.Dst, Proto: e.Proto, Backend: fromKernelAddrPort(v.Nat, v.NatPort),
			}})
		case v.Flags&ctMasquerade != 0:
		case v.Flags&ctTranslated != 0:
			if live {
				answered[meeting{serviceClient(e, v), e.Service, e.Proto}] = true
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
		e.flow.Answered = answered[meeting{e.flow.Client, e.flow.Frontend, e.flow.Proto}]
		if forget(e.flow) {
			gone = append(gone, e.key)
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

// serviceClient returns who opened a translated flow, by the address and port that the client itself uses.
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
