package fake

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"

	"github.com/hawser-net/hawser/internal/datapath"
)

// Maps keeps what the kernel's maps would hold.
type Maps struct {
	node *Node

	mu        sync.Mutex
	endpoints map[int]datapath.Endpoint
	addresses map[netip.Addr]datapath.Endpoint
	ruleSets  map[datapath.RuleSetID]datapath.RuleSet
	ipcache   map[netip.Prefix]datapath.IPCacheEntry
	blocks    map[netip.Prefix]uint32
	known     map[uint32]bool // nil: all
	peers     map[netip.Addr]datapath.TunnelPeer
	flows     []datapath.CTEntry
	monitor   datapath.MonitorFlags
	// room is how many policy entries fit in all rule sets together.
	room int
	// share is how many of them one rule set may have.
	share int

	services     map[datapath.ServiceFrontend]datapath.Service
	serviceFlows []datapath.ServiceFlow
	serviceRoom  int // for backends of all services together
}

var _ datapath.Maps = (*Maps)(nil)

func newMaps(n *Node) *Maps {
	return &Maps{
		node:      n,
		endpoints: make(map[int]datapath.Endpoint),
		addresses: make(map[netip.Addr]datapath.Endpoint),
		ruleSets:  make(map[datapath.RuleSetID]datapath.RuleSet),
		ipcache:   make(map[netip.Prefix]datapath.IPCacheEntry),
		blocks:    make(map[netip.Prefix]uint32),
		peers:     make(map[netip.Addr]datapath.TunnelPeer),
		room:      1 << 20,
		share:     1 << 20,

		services:    make(map[datapath.ServiceFrontend]datapath.Service),
		serviceRoom: 1 << 20,
	}
}

// SetPolicyRoom limits the policy entries of all rule sets together, to provoke datapath.ErrFull.
func (m *Maps) SetPolicyRoom(entries int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.room = entries
}

// SetRuleSetShare limits the policy entries of each rule set, to provoke datapath.ErrShare.
func (m *Maps) SetRuleSetShare(entries int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.share = entries
}

// SetFlows replaces the tracked flows.
func (m *Maps) SetFlows(flows ...datapath.CTEntry) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.flows = slices.Clone(flows)
}

// Monitor returns the flags last set by SetMonitor.
func (m *Maps) Monitor() datapath.MonitorFlags {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.monitor
}

// Verdict returns the verdict for a new packet at a local endpoint, by its row and rule set. The
// peer's address matters to rules about blocks of addresses only; it may be invalid.
func (m *Maps) Verdict(addr netip.Addr, dir datapath.Direction, peer uint32, from netip.Addr, proto uint8, port uint16) datapath.DropReason {
	m.mu.Lock()
	defer m.mu.Unlock()
	ep, ok := m.addresses[addr]
	if !ok {
		return datapath.ReasonNoEndpoint
	}
	if ep.Locked {
		return datapath.ReasonEndpointLocked
	}
	rs, ok := m.ruleSets[ep.RuleSet]
	if !ok {
		return datapath.ReasonNoRuleSet
	}
	if peer >= datapath.MinPodIdentity && peer <= datapath.MaxPodIdentity && m.known != nil && !m.known[peer] {
		peer = datapath.UnobservedIdentity
	}
	if reason := rs.Verdict(dir, peer, m.blockAt(from), proto, port); !ep.Audit {
		return reason
	}
	return datapath.ReasonForwarded
}

// blockAt finds the longest block around an address; the lock is held.
func (m *Maps) blockAt(a netip.Addr) (block uint32) {
	best := -1
	for p, id := range m.blocks {
		if p.Contains(a.Unmap()) && p.Bits() > best {
			best, block = p.Bits(), id
		}
	}
	return block
}

func cloneEndpoint(ep datapath.Endpoint) datapath.Endpoint {
	ep.MAC, ep.HostMAC = bytes.Clone(ep.MAC), bytes.Clone(ep.HostMAC)
	return ep
}

// UpsertEndpoint implements datapath.Maps.
func (m *Maps) UpsertEndpoint(ep datapath.Endpoint) error {
	if err := m.node.begin("Maps.UpsertEndpoint", ep); err != nil {
		return err
	}
	if err := ep.Validate(); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	ep = cloneEndpoint(ep)
	ep.IfName = "" // the kernel's row has no room for it
	old := m.endpoints[ep.IfIndex]
	m.endpoints[ep.IfIndex] = ep
	for _, a := range ep.Addresses() {
		m.addresses[a] = ep
	}
	for _, a := range old.Addresses() {
		if a != ep.IPv4 && a != ep.IPv6 && m.addresses[a].IfIndex == ep.IfIndex {
			delete(m.addresses, a)
		}
	}
	return nil
}

// DeleteEndpoint implements datapath.Maps.
func (m *Maps) DeleteEndpoint(ifIndex int) error {
	if err := m.node.begin("Maps.DeleteEndpoint", ifIndex); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, a := range m.endpoints[ifIndex].Addresses() {
		if m.addresses[a].IfIndex == ifIndex {
			delete(m.addresses, a)
		}
	}
	delete(m.endpoints, ifIndex)
	return nil
}

// Endpoints implements datapath.Maps.
func (m *Maps) Endpoints() ([]datapath.Endpoint, error) {
	if err := m.node.begin("Maps.Endpoints", nil); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	var list []datapath.Endpoint
	for _, ep := range m.endpoints {
		list = append(list, cloneEndpoint(ep))
	}
	return list, nil
}

// used counts the policy entries of all rule sets but one.
func (m *Maps) used(except datapath.RuleSetID) int {
	n := 0
	for id, rs := range m.ruleSets {
		if id != except {
			n += len(rs.Entries)
		}
	}
	return n
}

// InstallRuleSet implements datapath.Maps.
func (m *Maps) InstallRuleSet(rs datapath.RuleSet) error {
	if err := m.node.begin("Maps.InstallRuleSet", rs); err != nil {
		return err
	}
	if err := rs.Validate(); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(rs.Entries) > m.share {
		return fmt.Errorf("rule set %d, %d entries: %w: %w", rs.ID, len(rs.Entries), datapath.ErrFull, datapath.ErrShare)
	}
	// As in the kernel, new entries are written before old ones go.
	union := len(m.ruleSets[rs.ID].Entries)
	for k := range rs.Entries {
		if _, known := m.ruleSets[rs.ID].Entries[k]; !known {
			union++
		}
	}
	if m.used(rs.ID)+union > m.room {
		return fmt.Errorf("rule set %d, %d entries: %w", rs.ID, len(rs.Entries), datapath.ErrFull)
	}
	rs.Entries = maps.Clone(rs.Entries)
	if rs.Entries == nil {
		rs.Entries = make(map[datapath.PolicyKey]datapath.PolicyEntry)
	}
	m.ruleSets[rs.ID] = rs
	return nil
}

// UpdateRuleSet implements datapath.Maps.
func (m *Maps) UpdateRuleSet(d datapath.RuleSetDelta) error {
	if err := m.node.begin("Maps.UpdateRuleSet", d); err != nil {
		return err
	}
	for k := range d.Upserts {
		if err := k.Validate(); err != nil {
			return fmt.Errorf("rule set %d: %w", d.ID, err)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	rs, ok := m.ruleSets[d.ID]
	if !ok {
		return fmt.Errorf("rule set %d is not installed", d.ID)
	}
	others, want := m.used(d.ID), len(rs.Entries)
	for k := range d.Upserts {
		if _, known := rs.Entries[k]; !known {
			want++
		}
	}
	for _, k := range d.Deletes {
		if _, known := rs.Entries[k]; known {
			want--
		}
	}
	if want > m.share {
		return fmt.Errorf("rule set %d, %d entries: %w: %w", d.ID, want, datapath.ErrFull, datapath.ErrShare)
	}
	for k, e := range d.Upserts {
		if _, known := rs.Entries[k]; !known && others+len(rs.Entries) >= m.room {
			return fmt.Errorf("rule set %d: %w", d.ID, datapath.ErrFull)
		}
		rs.Entries[k] = e
	}
	for _, k := range d.Deletes {
		delete(rs.Entries, k)
	}
	return nil
}

// DeleteRuleSet implements datapath.Maps.
func (m *Maps) DeleteRuleSet(id datapath.RuleSetID) error {
	if err := m.node.begin("Maps.DeleteRuleSet", id); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.ruleSets, id)
	return nil
}

// RuleSets implements datapath.Maps.
func (m *Maps) RuleSets() ([]datapath.RuleSet, error) {
	if err := m.node.begin("Maps.RuleSets", nil); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	var list []datapath.RuleSet
	for _, rs := range m.ruleSets {
		rs.Entries = maps.Clone(rs.Entries)
		list = append(list, rs)
	}
	return list, nil
}

// UpsertIPCache implements datapath.Maps.
func (m *Maps) UpsertIPCache(entries []datapath.IPCacheEntry) error {
	if err := m.node.begin("Maps.UpsertIPCache", entries); err != nil {
		return err
	}
	canonical := make([]datapath.IPCacheEntry, 0, len(entries))
	for _, e := range entries {
		p, err := datapath.CanonicalPrefix(e.Prefix)
		if err != nil {
			return err
		}
		e.Prefix = p
		e.TunnelEndpoint = e.TunnelEndpoint.Unmap()
		canonical = append(canonical, e)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, e := range canonical {
		m.ipcache[e.Prefix] = e
	}
	return nil
}

// DeleteIPCache implements datapath.Maps.
func (m *Maps) DeleteIPCache(prefixes []netip.Prefix) error {
	if err := m.node.begin("Maps.DeleteIPCache", prefixes); err != nil {
		return err
	}
	for _, p := range prefixes {
		if _, err := datapath.CanonicalPrefix(p); err != nil {
			return err
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, p := range prefixes {
		p, _ := datapath.CanonicalPrefix(p)
		delete(m.ipcache, p)
	}
	return nil
}

// IPCache implements datapath.Maps.
func (m *Maps) IPCache() ([]datapath.IPCacheEntry, error) {
	if err := m.node.begin("Maps.IPCache", nil); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Collect(maps.Values(m.ipcache)), nil
}

// UpsertTunnelPeers implements datapath.Maps.
func (m *Maps) UpsertTunnelPeers(peers []datapath.TunnelPeer) error {
	if err := m.node.begin("Maps.UpsertTunnelPeers", peers); err != nil {
		return err
	}
	for _, p := range peers {
		if err := p.Validate(); err != nil {
			return err
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, p := range peers {
		m.peers[p.Addr] = p
	}
	return nil
}

// DeleteTunnelPeers implements datapath.Maps.
func (m *Maps) DeleteTunnelPeers(addrs []netip.Addr) error {
	if err := m.node.begin("Maps.DeleteTunnelPeers", addrs); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, a := range addrs {
		delete(m.peers, a)
	}
	return nil
}

// TunnelPeers implements datapath.Maps.
func (m *Maps) TunnelPeers() ([]datapath.TunnelPeer, error) {
	if err := m.node.begin("Maps.TunnelPeers", nil); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Collect(maps.Values(m.peers)), nil
}

// SetKnownIdentities implements datapath.Maps.
func (m *Maps) SetKnownIdentities(ids []uint32) error {
	if err := m.node.begin("Maps.SetKnownIdentities", ids); err != nil {
		return err
	}
	if err := datapath.ValidatePodIdentities(ids); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.known = map[uint32]bool{}
	for _, id := range ids {
		m.known[id] = true
	}
	return nil
}

// UpdateKnownIdentities implements datapath.Maps.
func (m *Maps) UpdateKnownIdentities(added, removed []uint32) error {
	if err := m.node.begin("Maps.UpdateKnownIdentities", [2][]uint32{added, removed}); err != nil {
		return err
	}
	if err := errors.Join(datapath.ValidatePodIdentities(added), datapath.ValidatePodIdentities(removed)); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, id := range removed {
		delete(m.known, id)
	}
	for _, id := range added {
		if m.known != nil {
			m.known[id] = true
		}
	}
	return nil
}

// KnownIdentities implements datapath.Maps.
func (m *Maps) KnownIdentities() (ids []uint32, all bool, err error) {
	if err := m.node.begin("Maps.KnownIdentities", nil); err != nil {
		return nil, false, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Sorted(maps.Keys(m.known)), m.known == nil, nil
}

// UpsertBlocks implements datapath.Maps.
func (m *Maps) UpsertBlocks(blocks []datapath.Block) error {
	if err := m.node.begin("Maps.UpsertBlocks", blocks); err != nil {
		return err
	}
	for _, b := range blocks {
		if err := b.Validate(); err != nil {
			return err
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, b := range blocks {
		p, _ := datapath.CanonicalPrefix(b.Prefix)
		m.blocks[p] = b.Identity
	}
	return nil
}

// DeleteBlocks implements datapath.Maps.
func (m *Maps) DeleteBlocks(prefixes []netip.Prefix) error {
	if err := m.node.begin("Maps.DeleteBlocks", prefixes); err != nil {
		return err
	}
	for _, p := range prefixes {
		if _, err := datapath.CanonicalPrefix(p); err != nil {
			return err
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, p := range prefixes {
		p, _ := datapath.CanonicalPrefix(p)
		delete(m.blocks, p)
	}
	return nil
}

// Blocks implements datapath.Maps.
func (m *Maps) Blocks() ([]datapath.Block, error) {
	if err := m.node.begin("Maps.Blocks", nil); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	list := make([]datapath.Block, 0, len(m.blocks))
	for p, id := range m.blocks {
		list = append(list, datapath.Block{Prefix: p, Identity: id})
	}
	return list, nil
}

// LastGeneration implements datapath.Maps.
func (m *Maps) LastGeneration() (uint32, error) {
	if err := m.node.begin("Maps.LastGeneration", nil); err != nil {
		return 0, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	var last uint32
	for _, ep := range m.endpoints {
		last = max(last, ep.PolicyGeneration, ep.Incarnation)
	}
	for _, f := range m.flows {
		last = max(last, f.SrcGeneration, f.DstGeneration, f.SrcOwner, f.DstOwner)
	}
	return last, nil
}

// CT implements datapath.Maps.
func (m *Maps) CT(fn func(datapath.CTEntry) bool) error {
	if err := m.node.begin("Maps.CT", nil); err != nil {
		return err
	}
	m.mu.Lock()
	flows := m.flows
	m.mu.Unlock()
	for _, f := range flows {
		if !fn(f) {
			break
		}
	}
	return nil
}

// FlowShares implements datapath.Maps. The fake has room for all.
func (m *Maps) FlowShares() ([]datapath.FlowShare, error) {
	return nil, m.node.begin("Maps.FlowShares", nil)
}

// CollectCT implements datapath.Maps.
func (m *Maps) CollectCT(ctx context.Context) (alive, removed int, err error) {
	if err := m.node.begin("Maps.CollectCT", nil); err != nil {
		return 0, 0, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.flows), 0, ctx.Err()
}

// Metrics implements datapath.Maps. The fake counts nothing.
func (m *Maps) Metrics() ([]datapath.Metric, error) { return nil, m.node.begin("Maps.Metrics", nil) }

// SetMonitor implements datapath.Maps.
func (m *Maps) SetMonitor(flags datapath.MonitorFlags) error {
	if err := m.node.begin("Maps.SetMonitor", flags); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.monitor = flags
	return nil
}
