package policy

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/identity"
)

// Class is what a rule set's entries of a peer follow from: two peers with the same class in a
// direction are treated alike there. It means nothing for another rule set, and nothing after the
// next Flush.
type Class struct {
	peer, block int32
	named       identity.ID
}

// ClassOf returns the class of a peer, which may have an address, as of the last Flush. ok is false
// if there is no such rule set.
func (e *Engine) ClassOf(rs datapath.RuleSetID, dir datapath.Direction, id identity.ID, at netip.Addr) (c Class, ok bool) {
	set := e.byID[rs]
	if set == nil || !set.installed {
		return Class{}, false
	}
	d := &set.dirs[dir]
	for i := range d.groups {
		g := &d.groups[i]
		p := g.as.ids[id]
		if p == nil {
			continue
		}
		c.peer = d.step(c.peer, int32(i))
		if g.named && len(p.namedPorts) > 0 {
			c.named = id
		}
	}
	if block := e.blocks.longest(at); block != 0 {
		for i := range d.groups {
			if d.groups[i].as.ids[block] != nil {
				c.block = d.step(c.block, int32(i))
			}
		}
	}
	return c, true
}

// Side is the outcome of a rule set for a peer in a direction.
type Side struct {
	// Enforced reports whether what no rule matches is dropped.
	Enforced bool
	// Passing is what of the traffic passes: ranges that do not overlap, sorted by protocol and
	// port. ProtoAny stands for the protocols that rules cannot name.
	Passing []PortMatch
	// Owners are those of the rules that match the peer, or if none does, of those that enforce;
	// sorted.
	Owners []Owner
	// ByAddress means that the rule set distinguishes blocks of addresses.
	ByAddress bool
}

// protocols are those that rules can name, and one for all others.
func protocols() []uint8 {
	return []uint8{datapath.ProtoAny, datapath.ProtoICMP, datapath.ProtoTCP, datapath.ProtoUDP, datapath.ProtoICMPv6, datapath.ProtoSCTP}
}

// otherProtocol is one that no rule can name.
const otherProtocol = 253 // RFC 3692: for experiments

// Side evaluates all traffic with a peer by Lookup: once between any two ports at which an entry
// begins or ends. ok is false if there is no such rule set.
func (e *Engine) Side(rs datapath.RuleSetID, dir datapath.Direction, id identity.ID, at netip.Addr) (side Side, ok bool) {
	set := e.byID[rs]
	if set == nil || !set.installed {
		return Side{}, false
	}
	d := &set.dirs[dir]
	side.Enforced = d.enforced
	cuts := map[uint8][]uint32{}
	cut := func(s *portSet) {
		s.each(func(k portKey, _ datapath.PolicyEntry) {
			first := uint32(k.port)
			cuts[k.proto] = append(cuts[k.proto], first, first+1<<(16-k.bits))
		})
	}
	cut(d.base)
	cut(d.peers[id])
	if block := e.blocks.longest(at); block != 0 {
		cut(d.peers[block])
	}
	for _, proto := range protocols() {
		asked := proto
		if proto == datapath.ProtoAny {
			asked = otherProtocol
		}
		list := append(cuts[proto], 0, 1<<16)
		if proto == datapath.ProtoAny {
			list = []uint32{0, 1 << 16} // they have no ports
		}
		slices.Sort(list)
		list = slices.Compact(list)
		for i := range len(list) - 1 {
			if !e.Lookup(rs, dir, id, at, asked, uint16(list[i])).Pass() {
				continue
			}
			m := PortMatch{Proto: proto, First: uint16(list[i]), Last: uint16(list[i+1] - 1)}
			if n := len(side.Passing); n > 0 && side.Passing[n-1].Proto == proto && side.Passing[n-1].Last+1 == m.First && m.First != 0 {
				side.Passing[n-1].Last = m.Last
				continue
			}
			side.Passing = append(side.Passing, m)
		}
	}
	side.ByAddress = slices.ContainsFunc(d.groups, func(g group) bool { return g.as.sel.kind == byBlock })
	side.Owners = e.speakers(set, dir, id, at)
	return side, true
}

// speakers returns the owners whose rules match a peer, else those whose rules enforce.
func (e *Engine) speakers(rs *ruleSet, dir datapath.Direction, id identity.ID, at netip.Addr) []Owner {
	p := e.peers[id]
	var match, enforce []Owner
	for _, er := range rs.rules {
		if er.enforces[dir] {
			enforce = append(enforce, er.owner)
		}
		for i := range er.clauses {
			c := &er.clauses[i]
			if c.dir != dir || c.maybe && rs.dirs[dir].places[c] == 0 {
				continue
			}
			is := func(s *Selector) bool { return p != nil && s.match(&e.cfg, p) || s.isAround(at) }
			if c.all || slices.ContainsFunc(c.peers, is) {
				match = append(match, er.owner)
				break
			}
		}
	}
	out := match
	if len(out) == 0 {
		out = enforce
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// Everything is all traffic, as Side.Passing has it.
func Everything() (out []PortMatch) {
	for _, proto := range protocols() {
		out = append(out, PortMatch{Proto: proto, First: 0, Last: 65535})
	}
	return out
}

// Complete reports whether everything passes.
func Complete(passing []PortMatch) bool { return slices.Equal(passing, Everything()) }

// Intersect returns what is in both of two lists as Side.Passing has them, Subtract what is in the
// first only.
func Intersect(a, b []PortMatch) (out []PortMatch) {
	for len(a) > 0 && len(b) > 0 {
		x, y := a[0], b[0]
		if first, last := max(x.First, y.First), min(x.Last, y.Last); x.Proto == y.Proto && first <= last {
			out = append(out, PortMatch{Proto: x.Proto, First: first, Last: last})
		}
		// What ends first has nothing in common with what follows in the other list.
		if cmp.Or(cmp.Compare(x.Proto, y.Proto), cmp.Compare(x.Last, y.Last)) <= 0 {
			a = a[1:]
		} else {
			b = b[1:]
		}
	}
	return out
}

// Subtract returns what is in a and not in b, as Intersect.
func Subtract(a, b []PortMatch) (out []PortMatch) {
	for _, x := range a {
		for len(b) > 0 && cmp.Or(cmp.Compare(b[0].Proto, x.Proto), cmp.Compare(b[0].Last, x.First)) < 0 {
			b = b[1:] // it ends before x, and before all that follows
		}
		first := uint32(x.First)
		for _, y := range b {
			if y.Proto != x.Proto || y.First > x.Last {
				break
			}
			if uint32(y.First) > first {
				out = append(out, PortMatch{Proto: x.Proto, First: uint16(first), Last: y.First - 1})
			}
			first = max(first, uint32(y.Last)+1)
		}
		if first <= uint32(x.Last) {
			out = append(out, PortMatch{Proto: x.Proto, First: uint16(first), Last: x.Last})
		}
	}
	return out
}

// IsEndpoint reports whether policy is enforced on an identity: on pods and on the network's own
// endpoints, as far as it is known.
func (e *Engine) IsEndpoint(id identity.ID) bool {
	p := e.known(id)
	return p != nil && p.isEndpoint()
}

// BlockAt returns the identity of the longest known block around an address, 0 if there is none.
func (e *Engine) BlockAt(a netip.Addr) identity.ID { return e.blocks.longest(a) }

// HasBlocks reports whether any verdict depends on addresses in addition to identities.
func (e *Engine) HasBlocks() bool { return len(e.blocks.peers) > 0 }

// Size is how much rules ask for.
type Size struct {
	// Keys counts protocols with prefixes of ports, into which the ports of all entries are cut;
	// PeerKeys those of entries that name peers, which each peer may have.
	Keys, PeerKeys int
	// Selectors counts those of peers, and the further values or prefixes that these and those of
	// subjects name.
	Selectors int
}

// SizeOf adds up rules, as they are written: what is there twice counts twice.
func SizeOf(rules []*Rule) (n Size) {
	count := func(s *Selector) {
		n.Selectors += len(s.except)
		for i := range s.reqs {
			n.Selectors += max(0, len(s.reqs[i].values)-1)
		}
	}
	var keys []portKey
	for _, r := range rules {
		count(r.Subject)
		for i := range r.Clauses {
			c := &r.Clauses[i]
			keys = keys[:0]
			for _, m := range c.Ports {
				if m.Name != "" {
					keys = append(keys, portKey{})
				} else {
					keys = m.appendKeys(keys)
				}
			}
			n.Keys += len(keys)
			if !c.AllPeers || c.Direction == datapath.Egress && slices.ContainsFunc(c.Ports, func(m PortMatch) bool { return m.Name != "" }) {
				n.PeerKeys += len(keys)
			}
			n.Selectors += len(c.Peers)
			for _, s := range c.Peers {
				count(s)
			}
		}
	}
	return n
}
