package multipool

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/hawser-net/hawser/internal/ipam"
	"github.com/hawser-net/hawser/internal/k8s/ippools"
	"github.com/hawser-net/hawser/internal/operator/pool"
)

// maxBlocks is how many blocks of a family a node can have: other nodes believe 1024 pod CIDRs of a family of a node and no more.
const maxBlocks = 512

// request is how many addresses a node needs of a pool.
type request struct {
	pool   string
	needed [2]int // IPv4, IPv6
}

// allocation are the blocks of a pool that a node has.
type allocation struct {
	pool                  string
	cidrs                 []string
	allowFirst, allowLast bool
}

// node is what the book needs to know of a CiliumNode.
type node struct {
	name    string
	uid     string
	created time.Time
	// version is the resource version that was read.
	version   string
	podCIDRs  []string // of cluster-pool
	requested []request
	allocated []allocation
}

// answer is what is to become of a node.
type answer struct {
	// allocated and podCIDRs are what the node should have; changed says that it has not.
	allocated []allocation
	podCIDRs  []string
	changed   bool
	// faults are for people, in the node's status.
	faults []string
	// displaced are nodes that lost a block to this one, which is older. Their status is to be told.
	displaced []string
	// released is set if a block became free.
	released bool
}

// complain notes a fault once.
func (a *answer) complain(format string, args ...any) {
	if text := fmt.Sprintf(format, args...); !slices.Contains(a.faults, text) {
		a.faults = append(a.faults, text)
	}
}

// give adds a block of a pool to what the node should have.
func (a *answer) give(name string, block netip.Prefix) {
	i := slices.IndexFunc(a.allocated, func(x allocation) bool { return x.pool == name })
	if i < 0 {
		i = len(a.allocated)
		a.allocated = append(a.allocated, allocation{pool: name})
	}
	if !slices.Contains(a.allocated[i].cidrs, block.String()) {
		a.allocated[i].cidrs = append(a.allocated[i].cidrs, block.String())
		a.changed = true
	}
}

// member is a node in the book.
type member struct {
	uid     string
	created time.Time
	// served is set if nothing was to be complained about, and the node had what it was to have, when it was last read from the server.
	served bool
	// given are blocks that were not seen at the node yet, with the version of its object that the write replaces.
	given map[netip.Prefix]string
}

// giver is a pool that blocks are given of.
type giver struct {
	ippools.Pool
	blocks [2]*pool.Pool // nil where the pool has none of the family
}

// book says which node holds which blocks of which pool. What always holds: no two nodes hold overlapping blocks. It is plain memory and not safe for
// concurrent use.
type book struct {
	standard string // the name of the default pool
	migrate  bool
	held     [2]*pool.Pool // of IPv4 and IPv6; shared by all givers
	of       map[netip.Prefix]string
	givers   map[string]*giver
	nodes    map[string]*member
}

var familyNames = [2]string{"IPv4", "IPv6"}

func family(p netip.Prefix) int {
	if p.Addr().Is4() {
		return 0
	}
	return 1
}

func newBook(standard string, migrate bool) *book {
	b := &book{standard: standard, migrate: migrate, of: map[netip.Prefix]string{}, givers: map[string]*giver{}, nodes: map[string]*member{}}
	for f, bits := range [2]int{32, 128} {
		b.held[f], _ = pool.New(nil, bits) // without ranges there is nothing to be wrong
	}
	return b
}

// setPool has blocks be given of a pool as it is now. It reports whether anything changed by that.
func (b *book) setPool(p ippools.Pool) (changed bool, err error) {
	before := b.givers[p.Name]
	if before != nil && before.Equal(p) {
		return false, nil
	}
	now := &giver{Pool: p}
	for f, part := range [2]ippools.Family{p.IPv4, p.IPv6} {
		if len(part.Ranges) == 0 {
			continue
		}
		var old *pool.Pool
		if before != nil {
			old = before.blocks[f]
		}
		if now.blocks[f], err = b.held[f].Share(part.Ranges, part.Bits, old); err != nil {
			return false, fmt.Errorf("CiliumPodIPPool %s: %w", p.Name, err)
		}
	}
	b.givers[p.Name] = now
	return true, nil
}

// removePool has nothing more be given of a pool. What nodes hold of it they keep.
func (b *book) removePool(name string) (changed bool) {
	_, changed = b.givers[name]
	delete(b.givers, name)
	return changed
}

// block is a block with the pool that it is said to be of.
type block struct {
	prefix netip.Prefix
	pool   string
}

// blocks reads what a node has, without what stands there twice; bad are texts that are no CIDRs. Blocks of cluster-pool come last, as such of
// the pool legacy.
func (n node) blocks(legacy string) (good []block, bad []string) {
	seen := map[netip.Prefix]bool{}
	read := func(name string, cidrs []string) {
		for _, text := range cidrs {
			p, err := netip.ParsePrefix(text)
			if err != nil || p.Addr().Is4In6() {
				bad = append(bad, text)
				continue
			}
			if p = p.Masked(); !seen[p] {
				seen[p] = true
				good = append(good, block{p, name})
			}
		}
	}
	for _, a := range n.allocated {
		read(a.pool, a.cidrs)
	}
	read(legacy, n.podCIDRs)
	return good, bad
}

// legacy is the pool that a node's blocks of cluster-pool are of; "" is none.
func (b *book) legacy(n node) string {
	if b.migrate && len(n.requested) > 0 {
		return b.standard
	}
	return ""
}

// restore books what nodes hold already, the oldest node first, before anything is given out.
func (b *book) restore(nodes []node) {
	nodes = slices.Clone(nodes)
	slices.SortFunc(nodes, func(x, y node) int {
		return cmp.Or(x.created.Compare(y.created), cmp.Compare(x.name, y.name))
	})
	for _, n := range nodes {
		own, bad := n.blocks(b.legacy(n))
		served := len(bad) == 0
		for _, o := range own {
			if b.held[family(o.prefix)].Claim(n.name, o.prefix) != nil {
				served = false // who is in the way is older; the node is told when it is looked at
				continue
			}
			b.of[o.prefix] = o.pool
		}
		b.nodes[n.name] = &member{uid: n.uid, created: n.created, served: served, given: map[netip.Prefix]string{}}
	}
}

// agrees reports whether a view of n that may be old leaves nothing to do.
func (b *book) agrees(n node) bool {
	m := b.nodes[n.name]
	if m == nil || m.uid != n.uid || !m.served || len(m.given) > 0 {
		return false
	}
	if len(n.podCIDRs) > 0 && len(n.requested) > 0 {
		return false // these are to be moved, or complained about
	}
	own, bad := n.blocks("")
	if len(bad) > 0 || len(own) != len(b.held[0].Holds(n.name))+len(b.held[1].Holds(n.name)) {
		return false
	}
	for _, o := range own {
		holders := b.held[family(o.prefix)].Overlapping(o.prefix)
		if len(holders) != 1 || holders[0].Owner != n.name || holders[0].Prefix != o.prefix || b.of[o.prefix] != o.pool {
			return false
		}
		if o.pool != "" && !b.covers(o) {
			return false
		}
	}
	for _, a := range n.allocated {
		if s := b.givers[a.pool]; s != nil && (s.AllowFirst != a.allowFirst || s.AllowLast != a.allowLast) {
			return false
		}
	}
	for _, r := range n.requested {
		for f := range r.needed {
			if b.has(n.name, r.pool, f) < r.needed[f] {
				return false
			}
		}
	}
	return true
}

// covers says whether a block is one that its pool has.
func (b *book) covers(o block) bool {
	s := b.givers[o.pool]
	return s != nil && s.Covers(o.prefix)
}

// has counts the addresses of a pool that a node has for its pods. Those of blocks that the pool does not have any more do not count.
func (b *book) has(name, of string, f int) int {
	s := b.givers[of]
	if s == nil {
		return 0
	}
	n := 0
	for _, p := range b.held[f].Holds(name) {
		if b.of[p] == of && s.Covers(p) {
			n += ipam.Capacity(ipam.Block{Prefix: p, AllowFirst: s.AllowFirst, AllowLast: s.AllowLast})
		}
	}
	return n
}

// settle decides about n, which must be as the server has it now: what is not in it any more, and cannot come, is released.
func (b *book) settle(n node) answer {
	var a answer
	m := b.nodes[n.name]
	if m != nil && m.uid != n.uid { // another node of the same name
		a.released = b.forget(n.name)
		m = nil
	}
	if m == nil {
		m = &member{uid: n.uid, created: n.created, given: map[netip.Prefix]string{}}
		b.nodes[n.name] = m
	}
	a.podCIDRs = n.podCIDRs
	for _, x := range n.allocated {
		x.cidrs = slices.Clone(x.cidrs)
		a.allocated = append(a.allocated, x)
	}
	own, bad := n.blocks(b.legacy(n))
	for _, text := range bad {
		a.complain("spec.ipam: %q is not a CIDR; remove it", text)
	}
	b.release(n, m, own, &a)
	b.claim(n, own, &a)
	b.adopt(n, own, &a)
	for _, r := range n.requested {
		for f, needed := range r.needed {
			b.give(f, n, m, r.pool, needed, &a)
		}
	}
	for i, x := range a.allocated {
		if s := b.givers[x.pool]; s != nil && (s.AllowFirst != x.allowFirst || s.AllowLast != x.allowLast) {
			a.allocated[i].allowFirst, a.allocated[i].allowLast = s.AllowFirst, s.AllowLast
			a.changed = true
		}
	}
	m.served = len(a.faults) == 0 && !a.changed
	return a
}

// release gives back what n does not have any more. A block whose write may still arrive is given once more: the write is the same.
func (b *book) release(n node, m *member, own []block, a *answer) {
	for f := range b.held {
		for _, p := range b.held[f].Holds(n.name) {
			if slices.ContainsFunc(own, func(o block) bool { return o.prefix == p }) {
				delete(m.given, p)
				continue
			}
			if version, ok := m.given[p]; ok && version == n.version {
				a.give(b.of[p], p)
				continue
			}
			delete(m.given, p)
			b.held[f].ReleaseOne(n.name, p)
			delete(b.of, p)
			a.released = true
		}
	}
}

// claim books the blocks that a node has.
func (b *book) claim(n node, own []block, a *answer) {
	for _, o := range own {
		held := b.held[family(o.prefix)]
		rival := slices.IndexFunc(held.Overlapping(o.prefix), func(h pool.Holding) bool { return h.Owner != n.name && !b.older(n, h.Owner) })
		if rival >= 0 {
			h := held.Overlapping(o.prefix)[rival]
			a.complain("spec.ipam: %s overlaps %s of node %s, which is older; remove it, and restart the pods that have addresses of it", o.prefix, h.Prefix, h.Owner)
			continue
		}
		for _, h := range held.Overlapping(o.prefix) {
			if h.Owner != n.name {
				held.ReleaseOne(h.Owner, h.Prefix)
				delete(b.of, h.Prefix)
				if loser := b.nodes[h.Owner]; loser != nil {
					loser.served = false
					delete(loser.given, h.Prefix)
				}
				a.displaced = append(a.displaced, h.Owner)
			}
		}
		if err := held.Claim(n.name, o.prefix); err != nil { // only its own other blocks are left to be in the way
			a.complain("spec.ipam: %v; remove one of them", err)
			continue
		}
		b.of[o.prefix] = o.pool
		if o.pool != "" && !b.covers(o) {
			a.complain("pool %q does not have %s (any more), of which this node has pods: add it to CiliumPodIPPool %s again, or delete the pods with its addresses; "+
				"nobody is given new ones of it", o.pool, o.prefix, o.pool)
		}
	}
}

// adopt makes a node's blocks of cluster-pool such of the default pool, if its agent asks for pools.
func (b *book) adopt(n node, own []block, a *answer) {
	if len(n.podCIDRs) == 0 || len(n.requested) == 0 {
		return
	}
	if !b.migrate {
		a.complain("spec.ipam.podCIDRs are left of another mode; start the operator with --%s to have them be blocks of pool %q, or remove them", migrateFlag, b.standard)
		return
	}
	for _, o := range own {
		if o.pool == b.standard {
			a.give(o.pool, o.prefix)
		}
	}
	a.podCIDRs, a.changed = nil, true
}

// give gives a node blocks of a pool until it has as many addresses as it needs.
func (b *book) give(f int, n node, m *member, of string, needed int, a *answer) {
	have := b.has(n.name, of, f)
	if have >= needed {
		return
	}
	s := b.givers[of]
	switch {
	case s == nil:
		a.complain("there is no CiliumPodIPPool %s, of which %d %s addresses are asked for; create it", of, needed, familyNames[f])
		return
	case s.blocks[f] == nil:
		a.complain("CiliumPodIPPool %s has no %s range, and %d addresses are asked for; add one", of, familyNames[f], needed)
		return
	}
	for have < needed {
		if len(b.held[f].Holds(n.name)) >= maxBlocks {
			a.complain("the node has %d %s blocks already and asks for more addresses of pool %q; pools with larger blocks (maskSize) need fewer", maxBlocks, familyNames[f], of)
			return
		}
		p, err := s.blocks[f].Allocate(n.name)
		if err != nil {
			a.complain("pool %q: the node needs %d %s addresses and has %d: %v; add a range to CiliumPodIPPool %s", of, needed, familyNames[f], have, err, of)
			return
		}
		b.of[p], m.given[p] = of, n.version
		a.give(of, p)
		have = b.has(n.name, of, f)
	}
}

// older reports whether n comes before the holder in the order of age, in which the first keeps what two have.
func (b *book) older(n node, holder string) bool {
	h := b.nodes[holder]
	if h == nil {
		return true
	}
	return cmp.Or(n.created.Compare(h.created), cmp.Compare(n.name, holder)) < 0
}

// wrote tells the book that the node has what settle answered; served says that nothing was wrong.
func (b *book) wrote(name string, served bool) {
	if m := b.nodes[name]; m != nil {
		clear(m.given)
		m.served = served
	}
}

// forget releases what a node holds that is gone. It reports whether that was anything.
func (b *book) forget(name string) bool {
	delete(b.nodes, name)
	n := 0
	for _, held := range b.held {
		for _, p := range held.Release(name) {
			delete(b.of, p)
			n++
		}
	}
	return n > 0
}
