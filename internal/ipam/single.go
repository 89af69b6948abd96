package ipam

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
)

// A node whose addresses are not of CIDRs has a pool of single ones for each family. It is a pool
// as any other, but for which address has which number: they are counted in their order.

// newSingles returns a pool of single addresses. Those that held says are not given out.
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

// AssignSingles makes the node have single addresses of the default pool, and no others: those of
// want, with whether they may be given out. Those that are given out stay the node's until they are
// free; stays returns them. Families that are not enabled are left out.
func (m *IPAM) AssignSingles(want map[netip.Addr]bool) (stays []netip.Addr) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := range m.pools {
		f := IPv4 << i
		held := map[netip.Addr]bool{}
		for ip, give := range want {
			if m.families&f != 0 && familyOf(ip) == f {
				held[ip] = !give
			}
		}
		for ip := range m.given {
			if _, ok := want[ip]; !ok && familyOf(ip) == f {
				held[ip] = true
				stays = append(stays, ip)
			}
		}
		members := slices.SortedFunc(maps.Keys(held), netip.Addr.Compare)
		if len(members) == 0 {
			m.pools[i] = nil
			continue
		}
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
		// The search goes on where it was, so that an address just released rests.
		if before := m.pools[i]; len(before) > 0 && before[0].size > 0 {
			last := before[0].addr(before[0].next)
			at, _ := slices.BinarySearchFunc(members, last, netip.Addr.Compare)
			next.next = uint32(at) % next.size
		}
		m.pools[i] = []*pool{next}
	}
	slices.SortFunc(stays, netip.Addr.Compare)
	close(m.assigned)
	m.assigned = make(chan struct{})
	m.demandMoved()
	return stays
}

// Hold keeps a single address from being given out until [IPAM.AssignSingles] says otherwise. It
// reports false if somebody has it, or as long as it is not known who has: before Open.
func (m *IPAM) Hold(ip netip.Addr) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.open || m.given[ip] != nil {
		return false
	}
	if p, i, err := m.find(ip); err == nil && p.members != nil {
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
