package ipam

import (
	"fmt"
	"net/netip"
)

// After a reboot a node knows none of its pods, but objects in the API server name their addresses
// until they are deleted, and other nodes evaluate what has such an address as the former pod. Such
// an address is reserved: it counts as given out, to nobody, until it is forgotten. If nothing else
// is free, nobody gets it all the same: a pod that has to wait is better than one with another's
// rights. Only the pod that had it can have it again.
//
// An address that is not assignable, because it is being given back, is not reserved: it is when it
// becomes assignable (see [IPAM.ReserveNew]).

// former is a pod that has a reserved address according to objects.
type former struct {
	pod  string
	same bool // it exists, and may have its address again
	pool string
}

// allocation is what stands for the address while nobody has it.
func (f former) allocation(ip netip.Addr) *Allocation {
	return &Allocation{IP: ip, Owner: "former pod " + f.pod, Pool: f.pool, Reserved: true}
}

// Reserve keeps an address from being given out until [IPAM.Forget]: objects say that pod has it.
// With same this is a pod of the node, which is the only owner that may have it again. It reports
// false if the address is given out, excluded, or not the node's: then there is nothing to keep.
func (m *IPAM) Reserve(ip netip.Addr, pod string, same bool) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.reserve(ip, pod, same)
}

// reserve is Reserve with m.mu held.
func (m *IPAM) reserve(ip netip.Addr, pod string, same bool) bool {
	p, i, err := m.find(ip)
	if err != nil || m.given[ip] != nil || p.isMarked(i) {
		return false
	}
	next := p.next
	m.take(p, i, "")
	p.next = max(next, p.next) // those that are forgotten soon come last
	f := former{pod, same, p.name}
	m.former[ip], m.given[ip] = f, f.allocation(ip)
	return true
}

// NamedPod is the pod to which objects give an address. Same is set if it is one of the node, which
// may have the address again.
type NamedPod struct {
	IP   netip.Addr
	Pod  string
	Same bool
}

// Naming returns those of the node's addresses for which fresh returns true that objects give to
// pods. It is called with a lock held, so it must not call back, and fresh counts until it returns.
type Naming func(fresh func(netip.Addr) bool) []NamedPod

// ReserveNew has every address that becomes assignable from now on be reserved before anybody can
// get it, if objects give it to a pod: a cloud assigns to one node what another one had, whose
// objects may be there for long.
func (m *IPAM) ReserveNew(naming Naming) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.naming = naming
}

// reserveNew reserves what of the assignable addresses was none before. m.mu is held.
func (m *IPAM) reserveNew(before func(netip.Addr) bool) {
	if m.naming == nil {
		return
	}
	now := m.assignable()
	for _, a := range m.naming(func(ip netip.Addr) bool { return m.given[ip] == nil && now(ip) && !before(ip) }) {
		m.reserve(a.IP, a.Pod, a.Same)
	}
}

// Forget ends the reservation of an address. If it was given to the pod that had it, it stays so.
func (m *IPAM) Forget(ip netip.Addr) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.former, ip)
	if a := m.given[ip]; a != nil && a.Reserved {
		m.giveBack(ip)
	}
}

// Reserved returns the addresses that [IPAM.Reserve] keeps, in no order, also those that the pods
// of before have got again.
func (m *IPAM) Reserved() []netip.Addr {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := make([]netip.Addr, 0, len(m.former))
	for ip := range m.former {
		out = append(out, ip)
	}
	return out
}

// returns reports whether an address is reserved for the pod that asks. m.mu is held.
func (m *IPAM) returns(ip netip.Addr, owner string) bool {
	f, ok := m.former[ip]
	return ok && f.same && f.pod == owner && m.given[ip].Reserved
}

// takeBack gives a pod a reserved address that it had. m.mu is held.
func (m *IPAM) takeBack(ip netip.Addr, owner string) *Allocation {
	a := &Allocation{IP: ip, Owner: owner, Pool: m.given[ip].Pool}
	m.given[ip] = a
	m.demandMoved()
	return a
}

// before returns the address of a pool that its owner had, nil if there is none. m.mu is held.
func (m *IPAM) before(f Families, owner, pool string) *Allocation {
	for ip := range m.former {
		if familyOf(ip) != f || !m.returns(ip, owner) {
			continue
		}
		if p, _, err := m.find(ip); err == nil && p.name == pool && !p.drained {
			return m.takeBack(ip, owner)
		}
	}
	return nil
}

// kept says for an error how many addresses of a pool are reserved; empty if none is. m.mu is held.
func (m *IPAM) kept(f Families, pool string) string {
	n := 0
	for ip, former := range m.former {
		if a := m.given[ip]; a.Reserved && familyOf(ip) == f && former.pool == pool {
			n++
		}
	}
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("; %d of them are of pods that are not on this node any more, and become free when no CiliumEndpoint, CiliumEndpointSlice or Pod names them", n)
}
