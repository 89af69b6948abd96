package ipam

import (
	"encoding/binary"
	"math/bits"
	"net/netip"
	"slices"
)

// maxIPv6 bounds the addresses of an IPv6 pool: the first so many of its CIDR.
const maxIPv6 = 1 << 16

// minIPv4Bits is the shortest IPv4 prefix accepted; it bounds a pool's bitmap to 2 MiB.
const minIPv4Bits = 8

// pool holds the allocated addresses of one CIDR. It is not safe for concurrent use.
type pool struct {
	// name is that of the pool that the CIDR is of.
	name string
	cidr netip.Prefix
	// allowFirst and allowLast: the outermost addresses may be given out.
	allowFirst, allowLast bool
	// drained: nothing more is given out.
	drained bool
	// led: the network routes the addresses by itself, and no other node has to know them.
	led  bool
	size uint32 // addresses in reach, by index from the CIDR's first
	// members, if not nil, are the addresses instead, in their order; held are those of them that
	// are not given out again.
	members []netip.Addr
	held    map[uint32]bool
	// used has a bit for each address that is not to be given out: allocated, excluded, or the
	// network's first and last.
	used []uint64
	// next is the index at which the search for a free address begins: one past the last found, so
	// that an address just released stays unused for a whole round.
	next     uint32
	capacity int // addresses that can be given out: size less first, last and excluded
	count    int // addresses given out
}

func newPool(name string, b Block) *pool {
	cidr := b.Prefix
	hostBits := cidr.Addr().BitLen() - cidr.Bits()
	p := &pool{name: name, cidr: cidr.Masked(), allowFirst: b.AllowFirst, allowLast: b.AllowLast, drained: b.Drained}
	if cidr.Addr().Is6() && hostBits > bits.TrailingZeros32(maxIPv6) {
		p.size = maxIPv6
	} else {
		p.size = 1 << hostBits
	}
	p.used = make([]uint64, (p.size+63)/64)
	for i := p.size; i < uint32(len(p.used))*64; i++ {
		p.mark(i) // beyond the end
	}
	p.capacity = int(p.size)
	for _, edge := range []struct {
		index uint32
		allow bool
	}{{0, b.AllowFirst}, {p.size - 1, b.AllowLast}} {
		if p.size > 2 && !edge.allow {
			p.mark(edge.index)
			p.capacity--
		}
	}
	return p
}

// Capacity returns how many addresses a block has for pods.
func Capacity(b Block) int {
	hostBits := b.Prefix.Addr().BitLen() - b.Prefix.Bits()
	if hostBits >= bits.TrailingZeros32(maxIPv6) && b.Prefix.Addr().Is6() {
		hostBits = bits.TrailingZeros32(maxIPv6)
	}
	size := 1 << hostBits
	n := size
	if size > 2 && !b.AllowFirst {
		n--
	}
	if size > 2 && !b.AllowLast {
		n--
	}
	return n
}

func (p *pool) mark(i uint32)          { p.used[i/64] |= 1 << (i % 64) }
func (p *pool) clear(i uint32)         { p.used[i/64] &^= 1 << (i % 64) }
func (p *pool) isMarked(i uint32) bool { return p.used[i/64]&(1<<(i%64)) != 0 }

// assignable reports whether an address may be given out when it is free.
func (p *pool) assignable(i uint32) bool {
	first, last := p.members == nil && i == 0, p.members == nil && i == p.size-1
	edge := p.size > 2 && (first && !p.allowFirst || last && !p.allowLast)
	return !p.drained && !p.held[i] && !edge
}

// index returns an address's number in the pool, or false if it is out of reach.
func (p *pool) index(ip netip.Addr) (uint32, bool) {
	if p.members != nil {
		i, ok := slices.BinarySearchFunc(p.members, ip, netip.Addr.Compare)
		return uint32(i), ok
	}
	if !p.cidr.Contains(ip) {
		return 0, false
	}
	if ip.Is4() {
		a, b := ip.As4(), p.cidr.Addr().As4()
		return binary.BigEndian.Uint32(a[:]) - binary.BigEndian.Uint32(b[:]), true
	}
	a, b := ip.As16(), p.cidr.Addr().As16()
	if binary.BigEndian.Uint64(a[:8]) != binary.BigEndian.Uint64(b[:8]) {
		return 0, false
	}
	d := binary.BigEndian.Uint64(a[8:]) - binary.BigEndian.Uint64(b[8:])
	return uint32(d), d < uint64(p.size)
}

// addr is the reverse of index.
func (p *pool) addr(i uint32) netip.Addr {
	if p.members != nil {
		return p.members[i]
	}
	if p.cidr.Addr().Is4() {
		b := p.cidr.Addr().As4()
		binary.BigEndian.PutUint32(b[:], binary.BigEndian.Uint32(b[:])+i)
		return netip.AddrFrom4(b)
	}
	b := p.cidr.Addr().As16()
	binary.BigEndian.PutUint64(b[8:], binary.BigEndian.Uint64(b[8:])+uint64(i))
	return netip.AddrFrom16(b)
}

// free finds the next free address, without taking it.
func (p *pool) free() (uint32, bool) {
	if p.count >= p.capacity {
		return 0, false
	}
	// One word more than there are: the first is looked at from next on, and at the end up to next.
	words := uint32(len(p.used))
	for n := range words + 1 {
		w := (p.next/64 + n) % words
		busy := p.used[w]
		if n == 0 {
			busy |= 1<<(p.next%64) - 1
		}
		if busy != ^uint64(0) {
			return w*64 + uint32(bits.TrailingZeros64(^busy)), true
		}
	}
	return 0, false
}

// take marks an address as given out and makes the search go on behind it.
func (p *pool) take(i uint32) {
	p.mark(i)
	p.count++
	p.next = (i + 1) % p.size
}

// release is the reverse of take, except for where the search goes on.
func (p *pool) release(i uint32) {
	p.count--
	if p.held[i] {
		p.capacity--
		return
	}
	p.clear(i)
}
