package cloud

import "net/netip"

// Addresses are those of a subnet that can be given. It is for use under the cloud's lock.
type Addresses struct {
	CIDR netip.Prefix
	// first and last are how many addresses the cloud keeps at either end.
	first, last int
	// kept are those that are never given.
	kept map[netip.Addr]bool
	// others are those of other owners; see Exhaust.
	others map[netip.Addr]bool
}

// NewAddresses returns those of a CIDR of which the cloud keeps the first and the last so many.
func NewAddresses(cidr netip.Prefix, first, last int) Addresses {
	return Addresses{CIDR: cidr.Masked(), first: first, last: last}
}

// Free returns the free addresses; taken are those of the cloud's interfaces.
func (a *Addresses) Free(taken map[netip.Addr]bool) []netip.Addr {
	var out []netip.Addr
	n := 0
	for ip := a.CIDR.Addr(); a.CIDR.Contains(ip); ip = ip.Next() {
		if n++; n > a.first && !taken[ip] && !a.others[ip] && !a.kept[ip] {
			out = append(out, ip)
		}
	}
	// The last ones are the cloud's, which are free unless an interface was given one.
	end := n - a.last
	for len(out) > 0 && a.index(out[len(out)-1]) >= end {
		out = out[:len(out)-1]
	}
	return out
}

// index is the number of an address in the CIDR.
func (a *Addresses) index(ip netip.Addr) int {
	x, y := ip.As16(), a.CIDR.Addr().As16()
	n := 0
	for k := range x {
		n = n<<8 + int(x[k]) - int(y[k])
	}
	return n
}

// Keep has addresses never be given, which something has that is no interface of the cloud.
func (a *Addresses) Keep(ips ...netip.Addr) {
	if a.kept == nil {
		a.kept = map[netip.Addr]bool{}
	}
	for _, ip := range ips {
		a.kept[ip] = true
	}
}

// Others returns how many addresses have other owners.
func (a *Addresses) Others() int { return len(a.others) }

// Exhaust has others have all addresses but free; a larger number than there is gives back what was
// taken.
func (a *Addresses) Exhaust(taken map[netip.Addr]bool, free int) {
	a.others = nil
	all := a.Free(taken)
	a.others = map[netip.Addr]bool{}
	for k, ip := range all {
		if k < len(all)-free {
			a.others[ip] = true
		}
	}
}
