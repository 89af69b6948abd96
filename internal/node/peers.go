package node

import (
	"cmp"
	"iter"
	"net/netip"
	"slices"
	"strings"

	"github.com/hawser-net/hawser/internal/datapath"
)

// Peers returns what the datapath must know of all nodes but self, by name. A node of another
// cluster is named "cluster/name". Nodes without an address to send to are left out. Where two nodes
// claim overlapping pod CIDRs, only the first by name has them, and those of self's cluster before
// all others: a route must not depend on the order in which nodes were heard of.
func Peers(nodes iter.Seq2[Key, Node], self Key) []datapath.Peer {
	var sorted []Node
	for k, n := range nodes {
		if k != self {
			sorted = append(sorted, n)
		}
	}
	foreign := func(n Node) int {
		if n.Cluster == self.Cluster {
			return 0
		}
		return 1
	}
	slices.SortFunc(sorted, func(a, b Node) int {
		return cmp.Or(foreign(a)-foreign(b), strings.Compare(a.Cluster, b.Cluster), strings.Compare(a.Name, b.Name))
	})
	var claimed prefixSet
	peers := make([]datapath.Peer, 0, len(sorted))
	for _, n := range sorted {
		p := datapath.Peer{Name: n.Name, IPv4: n.UnderlayIPv4(), IPv6: n.UnderlayIPv6()}
		if n.Cluster != self.Cluster {
			p.Name = n.Key().String()
		}
		if !p.IPv4.IsValid() && !p.IPv6.IsValid() {
			continue
		}
		for _, c := range n.PodCIDRs() {
			if claimed.add(c) {
				p.PodCIDRs = append(p.PodCIDRs, c)
			}
		}
		peers = append(peers, p)
	}
	return peers
}

// prefixSet is a set of prefixes that do not overlap.
type prefixSet struct {
	members map[netip.Prefix]bool
	// lengths counts the members by length; above counts, for each prefix, the members inside it.
	lengths [129]int
	above   map[netip.Prefix]int
}

// add adds a prefix unless it overlaps one that is there.
func (s *prefixSet) add(p netip.Prefix) bool {
	if s.members == nil {
		s.members, s.above = make(map[netip.Prefix]bool), make(map[netip.Prefix]int)
	}
	p = p.Masked()
	if s.above[p] > 0 {
		return false
	}
	for l := p.Bits(); l >= 0; l-- {
		if s.lengths[l] > 0 && s.members[netip.PrefixFrom(p.Addr(), l).Masked()] {
			return false
		}
	}
	s.members[p] = true
	s.lengths[p.Bits()]++
	for l := p.Bits(); l >= 0; l-- {
		s.above[netip.PrefixFrom(p.Addr(), l).Masked()]++
	}
	return true
}
