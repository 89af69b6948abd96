package ipam

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
)

// A node to whose addresses the network leads by itself has prefixes, each of which is a pool as
// any other, and a pool of single addresses for each family: it differs in which address has which
// number, as they are counted in their order.

// newSingles returns a pool of single addresses. Those for which held returns true are not
// assigned.
func newSingles(name string, members []netip.Addr, held map[netip.Addr]bool) *pool {
	p := &pool{name: name, size: uint32(len(members)), members: members, capacity: len(members), held: map[uint32]bool{}}
	p.used = make([]uint64, (p.size+63)/64)
	for i := p.size; i < uint32(len(p.used))*64; i++ {
		p.mark(i) // beyond the end
	}
	for i, ip := range members {
		if held[ip] {
			p.hold(uint32(i))
		}
	}
	return p
}

// hold keeps a free address from being given out.
func (p *pool) hold(i uint32) {
	p.held[i] = true
	if !p.isMarked(i) {
		p.mark(i)
		p.capacity--
	}
}

// AssignAddresses makes the node have addresses of the default pool, to each of which the network
// leads by itself, and no others: those of want, single ones or all of a prefix, with whether they
// may be given out. Those that are given out stay the node's until they are free; stays returns
// them. Families that are not enabled are left out. Prefixes do not overlap; a single address
// within one is of it. Of those of a family the lowest is given out of first.
func (m *IPAM) AssignAddresses(want map[netip.Prefix]bool) (stays []netip.Addr) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.singly = true
	before := m.assignable()
	for i := range m.pools {
		f := IPv4 << i
		var next []*pool
		members := map[netip.Addr]bool{}
		for _, p := range slices.SortedFunc(maps.Keys(want), netip.Prefix.Compare) {
			switch {
			case m.families&f == 0 || familyOf(p.Addr()) != f:
			case p.IsSingleIP():
				members[p.Addr()] = !want[p]
			default:
				next = append(next, m.network(m.pools[i], p.Masked(), !want[p]))
			}
		}
		within := func(ip netip.Addr) bool {
			return slices.ContainsFunc(next, func(p *pool) bool { _, ok := p.index(ip); return ok })
		}
		maps.DeleteFunc(members, func(ip netip.Addr, _ bool) bool { return within(ip) })
		for ip := range m.given {
			if _, ok := members[ip]; !ok && familyOf(ip) == f && !within(ip) {
				members[ip] = true
				stays = append(stays, ip)
			}
		}
		if len(members) > 0 {
			next = append(next, m.singles(m.pools[i], members))
		}
		m.pools[i] = next
	}
	slices.SortFunc(stays, netip.Addr.Compare)
	m.reserveNew(before)
	m.moved()
	m.demandMoved()
	return stays
}

// network returns the pool of a prefix: that of before, or a new one in which what is given out of
// it is taken. m.mu is held.
func (m *IPAM) network(before []*pool, cidr netip.Prefix, drained bool) *pool {
	if k := slices.IndexFunc(before, func(p *pool) bool { return p.members == nil && p.cidr == cidr }); k >= 0 {
		p := before[k]
		p.drained = drained
		return p
	}
	p := m.newPool(m.cfg.DefaultPool, Block{Prefix: cidr, Drained: drained})
	p.led = true
	for ip := range m.given {
		if i, ok := p.index(ip); ok {
			if p.isMarked(i) {
				p.capacity++ // it was given out when nothing spoke against it
			}
			p.take(i)
		}
	}
	return p
}

// singles returns a pool of single addresses, with whether they are held. m.mu is held.
func (m *IPAM) singles(before []*pool, held map[netip.Addr]bool) *pool {
	members := slices.SortedFunc(maps.Keys(held), netip.Addr.Compare)
	next := newSingles(m.cfg.DefaultPool, members, held)
	for j, ip := range members {
		at := uint32(j)
		switch _, excluded := m.excluded[ip]; {
		case m.given[ip] != nil:
			if next.held[at] {
				next.capacity++
			}
			next.mark(at)
			next.count++
		case excluded && !next.isMarked(at):
			next.mark(at)
			next.capacity--
		}
	}
	// The search goes on where it was, so that an address just released is used last.
	k := slices.IndexFunc(before, func(p *pool) bool { return p.members != nil })
	if k >= 0 && before[k].size > 0 {
		last := before[k].addr(before[k].next)
		at, _ := slices.BinarySearchFunc(members, last, netip.Addr.Compare)
		next.next = uint32(at) % next.size
	}
	return next
}

// Hold keeps a single address from being assigned until [IPAM.AssignAddresses] permits it again. It
// reports false if the address is in use, before Open, when its users are not known, and for an
// address of a prefix, which the node has as a whole.
func (m *IPAM) Hold(ip netip.Addr) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.open || m.given[ip] != nil {
		return false
	}
	p, i, err := m.find(ip)
	if err == nil && p.members == nil {
		return false
	}
	if err == nil {
		p.hold(i)
	}
	return true
}

// Prefixes returns what addresses of the node's pods are of: CIDRs, and single addresses as CIDRs
// of their own.
func (m *IPAM) Prefixes() []netip.Prefix {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []netip.Prefix
	for _, ps := range m.pools {
		for _, p := range ps {
			if p.members == nil {
				out = append(out, p.cidr)
			}
			for _, ip := range p.members {
				out = append(out, netip.PrefixFrom(ip, ip.BitLen()))
			}
		}
	}
	return out
}

// String names what the pool has for people.
func (p *pool) String() string {
	if p.members != nil {
		return fmt.Sprintf("%d single addresses", len(p.members))
	}
	return p.cidr.String()
}
