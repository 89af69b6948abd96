package maps

import (
	"hash/fnv"
	"net/netip"
)

// maglev returns a table of so many cells, each with the index of a backend: the table of Google's
// Maglev balancer (NSDI 2016). All backends have nearly as many cells; tables of the same backends
// are equal; and when a backend comes or goes, few cells that were, and are, others' change. So
// nodes that know the same backends choose the same one for a client, by a hash of it, and a client
// that meets another node meets the same backend there.
//
// cells must be a prime, and the backends sorted, none twice, and no more than cells; without any,
// the table is nil. A backend is known by its address and port alone.
func maglev(backends []netip.AddrPort, cells int) []uint16 {
	if len(backends) == 0 {
		return nil
	}
	// Each backend has a permutation of the cells, and takes in turn the first of it that is free.
	type permutation struct{ next, step uint32 }
	permutations := make([]permutation, len(backends))
	n := uint32(cells)
	for i, b := range backends {
		h := backendHash(b)
		permutations[i] = permutation{uint32(h>>32) % n, uint32(h)%(n-1) + 1}
	}
	table, taken := make([]uint16, cells), make([]bool, cells)
	for left := cells; ; {
		for i := range permutations {
			p := &permutations[i]
			for taken[p.next] {
				p.next = (p.next + p.step) % n
			}
			table[p.next], taken[p.next] = uint16(i), true
			if left--; left == 0 {
				return table
			}
		}
	}
}

func backendHash(b netip.AddrPort) uint64 {
	a := b.Addr().As16()
	h := fnv.New64a()
	h.Write(append(a[:], byte(b.Port()>>8), byte(b.Port())))
	// FNV leaves its upper half poorly mixed; the finalizer of MurmurHash3 does not.
	x := h.Sum64()
	x = (x ^ x>>33) * 0xff51afd7ed558ccd
	x = (x ^ x>>33) * 0xc4ceb9fe1a85ec53
	return x ^ x>>33
}
