package clusterpool

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/hawser-net/hawser/internal/operator/pool"
)

// node is what the index needs to know of a CiliumNode.
type node struct {
	name    string
	uid     string
	created time.Time
	cidrs   []string // spec.ipam.podCIDRs
}

// answer is what is to become of a node.
type answer struct {
	// cidrs is what spec.ipam.podCIDRs should hold.
	cidrs []string
	// faults are for people, in the node's status.
	faults []string
	// displaced are nodes that lost a prefix to this one, which is older. Their status must show
	// that.
	displaced []string
	// released is set if a prefix became free.
	released bool
}

// member is a node in the index.
type member struct {
	uid     string
	created time.Time
	// served is set if nothing was to be complained about, and the node had what it was to have,
	// when it was last read from the server.
	served bool
}

// index records which node holds which blocks of addresses. What always holds: no two nodes hold
// overlapping prefixes. It is plain memory and not safe for concurrent use. It has no clock: times
// are arguments, and must not go back.
type index struct {
	pools      [2]*pool.Pool // of IPv4 and IPv6
	serving    [2]bool       // whether nodes are given blocks of the family
	nodes      map[string]*member
	quarantine time.Duration
	// gone are nodes without an object, with the time until which they keep what they held.
	gone map[string]time.Time
}

func newIndex(v4 []netip.Prefix, v4Bits int, v6 []netip.Prefix, v6Bits int) (*index, error) {
	p4, err4 := pool.New(v4, v4Bits)
	p6, err6 := pool.New(v6, v6Bits)
	if err := errors.Join(err4, err6); err != nil {
		return nil, err
	}
	return &index{pools: [2]*pool.Pool{p4, p6}, serving: [2]bool{len(v4) > 0, len(v6) > 0}, nodes: map[string]*member{}, gone: map[string]time.Time{}}, nil
}

// restore records what nodes hold already, the oldest node first, before anything is given out.
func (b *index) restore(nodes []node) {
	nodes = slices.Clone(nodes)
	slices.SortFunc(nodes, func(x, y node) int {
		return cmp.Or(x.created.Compare(y.created), cmp.Compare(x.name, y.name))
	})
	for _, n := range nodes {
		parsed, bad := parse(n.cidrs)
		served := len(bad) == 0
		for _, p := range parsed {
			// The node that holds it is older; the conflict is reported in that node's status.
			served = b.pools[pool.Family(p)].Claim(n.name, p) == nil && served
		}
		b.nodes[n.name] = &member{uid: n.uid, created: n.created, served: served}
	}
}

// agrees reports whether a view of n that may be old leaves nothing to do.
func (b *index) agrees(n node) bool {
	m := b.nodes[n.name]
	if m == nil || m.uid != n.uid || !m.served {
		return false
	}
	parsed, bad := parse(n.cidrs)
	if len(bad) > 0 {
		return false
	}
	var of [2][]netip.Prefix
	for _, p := range parsed {
		of[pool.Family(p)] = append(of[pool.Family(p)], p)
	}
	for f := range of {
		held := b.pools[f].Holds(n.name)
		if b.serving[f] && len(of[f]) == 0 || len(held) != len(of[f]) {
			return false
		}
		for _, p := range of[f] {
			if !slices.Contains(held, p) {
				return false
			}
		}
	}
	return true
}

// reconcile decides about n, which must be as the server has it now: what is not in it any more is
// released. A recreated object keeps the blocks of the former one, if it names no others: the
// node's pods may run.
func (b *index) reconcile(n node, now time.Time) answer {
	a := answer{released: b.expire(now)}
	m := b.nodes[n.name]
	if m == nil || m.uid != n.uid {
		m = &member{uid: n.uid, created: n.created}
		b.nodes[n.name] = m
	}
	delete(b.gone, n.name)
	a.cidrs = slices.Clone(n.cidrs)
	parsed, bad := parse(n.cidrs)
	for _, text := range bad {
		a.faults = append(a.faults, fmt.Sprintf("spec.ipam.podCIDRs: %q is not a CIDR; remove it", text))
	}
	for f, pl := range b.pools {
		own := slices.DeleteFunc(slices.Clone(parsed), func(p netip.Prefix) bool { return pool.Family(p) != f })
		if len(own) > 0 {
			for _, p := range pl.Holds(n.name) {
				if !slices.Contains(own, p) {
					a.released = pl.ReleaseOne(n.name, p) || a.released
				}
			}
			b.claim(pl, n, own, &a)
			continue
		}
		switch {
		case len(bad) > 0: // it may be one of these
		case b.serving[f]:
			b.give(f, n, &a)
		default: // a block from when the family was served; no node is given one
			a.released = len(pl.Release(n.name)) > 0 || a.released
		}
	}
	m.served = len(a.faults) == 0 && slices.Equal(a.cidrs, n.cidrs)
	return a
}

// claim records the prefixes that a node has.
func (b *index) claim(pl *pool.Pool, n node, own []netip.Prefix, a *answer) {
	for _, p := range own {
		var rival string
		for _, h := range pl.Overlapping(p) {
			if h.Owner != n.name && !b.older(n, h.Owner) {
				rival = h.Owner
				a.faults = append(a.faults, fmt.Sprintf("spec.ipam.podCIDRs: %s overlaps %s of node %s, which is older; "+
					"remove it to be given another, and restart the pods that have addresses of it", p, h.Prefix, h.Owner))
				break
			}
		}
		if rival != "" {
			continue
		}
		for _, h := range pl.Overlapping(p) {
			if h.Owner != n.name {
				pl.ReleaseOne(h.Owner, h.Prefix)
				if loser := b.nodes[h.Owner]; loser != nil {
					loser.served = false
				}
				a.displaced = append(a.displaced, h.Owner)
			}
		}
		if err := pl.Claim(n.name, p); err != nil { // only its own other prefixes are left to be in the way
			a.faults = append(a.faults, fmt.Sprintf("spec.ipam.podCIDRs: %v; remove one of them", err))
		}
	}
}

// give gives a node that has no block of a family one. It is the one that was given to it before,
// if that has not arrived.
func (b *index) give(f int, n node, a *answer) {
	blocks := b.pools[f].Holds(n.name)
	if len(blocks) == 0 {
		block, err := b.pools[f].Allocate(n.name)
		if err != nil {
			hint := ""
			if len(b.gone) > 0 {
				hint = fmt.Sprintf(", or wait: blocks of nodes that are gone are free after %s", b.quarantine)
			}
			a.faults = append(a.faults, fmt.Sprintf("no %s addresses for this node: %v; add a range to --%s%s", pool.FamilyNames[f], err, rangeFlags[f], hint))
			return
		}
		blocks = append(blocks, block)
	}
	for _, block := range blocks {
		a.cidrs = append(a.cidrs, block.String())
	}
}

// older reports whether n comes before the holder in the order of age, in which the first keeps
// what two have.
func (b *index) older(n node, holder string) bool {
	h := b.nodes[holder]
	if h == nil {
		return true
	}
	return cmp.Or(n.created.Compare(h.created), cmp.Compare(n.name, holder)) < 0
}

// wrote records that the node has what reconcile answered; served means that nothing was wrong.
func (b *index) wrote(name string, served bool) {
	if m := b.nodes[name]; m != nil {
		m.served = served
	}
}

// forget has what a node holds be released after a while, as its object is gone. It reports whether
// anything became free.
func (b *index) forget(name string, now time.Time) (released bool) {
	_, known := b.gone[name]
	if m := b.nodes[name]; m != nil && !known {
		m.uid, m.served = "", false
		b.gone[name] = now.Add(b.quarantine)
	}
	return b.expire(now)
}

// expire releases what nodes held that have been gone for long enough. It reports whether that was
// anything.
func (b *index) expire(now time.Time) (released bool) {
	for name, end := range b.gone {
		if now.Before(end) {
			continue
		}
		delete(b.gone, name)
		delete(b.nodes, name)
		for _, pl := range b.pools {
			released = len(pl.Release(name)) > 0 || released
		}
	}
	return released
}

// parse reads the CIDRs of a node. Bits below the prefix are dropped, as the agent does; what is
// written twice counts once.
func parse(cidrs []string) (good []netip.Prefix, bad []string) {
	for _, text := range cidrs {
		p, err := netip.ParsePrefix(text)
		if err != nil || p.Addr().Is4In6() {
			bad = append(bad, text)
			continue
		}
		if p = p.Masked(); !slices.Contains(good, p) {
			good = append(good, p)
		}
	}
	return good, bad
}
