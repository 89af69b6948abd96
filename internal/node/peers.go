package node

import (
	"cmp"
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"strings"

	"github.com/hawser-net/hawser/internal/datapath"
)

// Peers returns what the datapath must know of all nodes but self, by name. A node of another
// cluster is named "cluster/name". Nodes without an address to send to are left out.
//
// Of nodes that claim overlapping pod CIDRs one keeps them, and the other claims are refused: self
// takes precedence, then the previous holder, so that no node can take over the CIDRs of another.
// Among new claims those of self's cluster take precedence, then the first node by name: a route
// must not depend on the order in which nodes were observed.
//
// held is what Peers returned before, perhaps in an earlier process. With await nodes of held that
// are not among nodes have not been observed yet: they are returned as they were.
func Peers(nodes iter.Seq2[Key, Node], self Key, held []datapath.Peer, await bool) (peers []datapath.Peer, refused []*datapath.RouteError) {
	var sorted []Node
	var claimed prefixSet
	for k, n := range nodes {
		if k != self {
			sorted = append(sorted, n)
			continue
		}
		for _, c := range n.PodCIDRs() {
			claimed.add(c, "this node")
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
	present := make(map[string]map[netip.Prefix]bool, len(sorted)) // what each claims
	for _, n := range sorted {
		cidrs := make(map[netip.Prefix]bool)
		for _, c := range n.PodCIDRs() {
			cidrs[c.Masked()] = true
		}
		present[peerName(n, self)] = cidrs
	}
	keeps := make(map[string]map[netip.Prefix]bool, len(held))
	for _, h := range held {
		claims, known := present[h.Name]
		if !known && !await {
			continue
		}
		kept := make(map[netip.Prefix]bool)
		for _, c := range h.PodCIDRs {
			c = c.Masked()
			if known && !claims[c] {
				continue
			}
			if _, ok := claimed.add(c, "node "+h.Name); ok {
				kept[c] = true
			}
		}
		keeps[h.Name] = kept
	}
	peers = make([]datapath.Peer, 0, len(sorted))
	for _, n := range sorted {
		p := datapath.Peer{Name: peerName(n, self), IPv4: n.UnderlayIPv4(), IPv6: n.UnderlayIPv6(), Addresses: n.NodeIPs()}
		if n.Cluster != self.Cluster {
			p.Cluster, p.ClusterID = n.Cluster, n.ClusterID
		}
		if !p.IPv4.IsValid() && !p.IPv6.IsValid() {
			continue
		}
		for _, c := range n.PodCIDRs() {
			holder, ok := "", keeps[p.Name][c.Masked()]
			if !ok {
				holder, ok = claimed.add(c, "node "+p.Name)
			}
			if !ok {
				refused = append(refused, &datapath.RouteError{Peer: p.Name, Err: fmt.Errorf(
					"node %s claims pod network %s, which is %s's: refused; give one of the two another network", p.Name, c, holder)})
				continue
			}
			p.PodCIDRs = append(p.PodCIDRs, c)
		}
		peers = append(peers, p)
	}
	if await {
		for _, h := range held {
			if present[h.Name] == nil {
				h.PodCIDRs = slices.DeleteFunc(slices.Clone(h.PodCIDRs), func(c netip.Prefix) bool { return !keeps[h.Name][c.Masked()] })
				peers = append(peers, h)
			}
		}
	}
	return peers, refused
}

// peerName is how a node is called on self.
func peerName(n Node, self Key) string {
	if n.Cluster != self.Cluster {
		return n.Key().String()
	}
	return n.Name
}

// prefixSet is a set of prefixes that do not overlap, with the holder of each.
type prefixSet struct {
	members map[netip.Prefix]string
	// lengths counts the members by length; above counts, for each prefix, the members inside it.
	lengths [129]int
	above   map[netip.Prefix]int
}

// add adds a prefix unless it overlaps one that is there: then it returns the holder.
func (s *prefixSet) add(p netip.Prefix, name string) (holder string, ok bool) {
	if s.members == nil {
		s.members, s.above = make(map[netip.Prefix]string), make(map[netip.Prefix]int)
	}
	p = p.Masked()
	for l := p.Bits(); l >= 0; l-- {
		if s.lengths[l] == 0 {
			continue
		}
		if holder, there := s.members[netip.PrefixFrom(p.Addr(), l).Masked()]; there {
			return holder, false
		}
	}
	if s.above[p] > 0 {
		return "in part another node", false
	}
	s.members[p] = name
	s.lengths[p.Bits()]++
	for l := p.Bits(); l >= 0; l-- {
		s.above[netip.PrefixFrom(p.Addr(), l).Masked()]++
	}
	return "", true
}
