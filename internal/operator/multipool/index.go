package multipool

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/hawser-net/hawser/internal/ipam"
	"github.com/hawser-net/hawser/internal/k8s/ippools"
	"github.com/hawser-net/hawser/internal/operator/pool"
)

// maxBlocks is how many blocks of a family a node can have: other nodes believe 1024 pod CIDRs of a
// family of a node and no more.
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

// node is what the index needs to know of a CiliumNode.
type node struct {
	name    string
	uid     string
	created time.Time
	// version is the resource version that was read.
	version   string
	podCIDRs  []string // of cluster-pool
	requested []request
	allocated []allocation
	// disputed is the mark of the CIDRs that it has and that were another's first: see
	// [ippools.DisputedAnnotation].
	disputed string
}

// answer is what is to become of a node.
type answer struct {
	// allocated and podCIDRs are what the node should have; changed means that it does not have
	// them.
	allocated []allocation
	podCIDRs  []string
	disputed  string
	changed   bool
	// faults are for people, in the node's status.
	faults []string
	// released is set if a block became free.
	released bool
}

// addFault notes a fault once.
func (a *answer) addFault(format string, args ...any) {
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

// member is a node in the index, or one that is gone whose blocks are in quarantine.
type member struct {
	uid string // "" when it is gone
	// served is set if nothing was to be complained about, and the node had what it was to have,
	// when it was last read from the server.
	served bool
	// given are blocks that were not seen at the node yet, with the version of its object that the
	// write replaces.
	given map[netip.Prefix]string
	// lost are CIDRs of the node that overlap those of an earlier owner. Its pods may use them, so
	// nothing of them is assigned.
	lost []netip.Prefix
	// quarantined are CIDRs that the node was seen to have, and has no more, with the time until
	// which they stay its own.
	quarantined map[netip.Prefix]time.Time
}

func newMember(uid string) *member {
	return &member{uid: uid, given: map[netip.Prefix]string{}, quarantined: map[netip.Prefix]time.Time{}}
}

// allocator is a pool that blocks are given of.
type allocator struct {
	ippools.Pool
	blocks [2]*pool.Pool // nil where the pool has none of the family
}

// index records which node holds which blocks of which pool. Invariants: no two nodes hold
// overlapping blocks, and a block in any node's object is not assigned to another. It is plain
// memory and not safe for concurrent use. It has no clock: times are arguments, and must not go
// back.
type index struct {
	defaultPool       string // the name of the default pool
	migrate           bool
	quarantineTime    time.Duration
	quarantinedBlocks int           // of all nodes
	held              [2]*pool.Pool // of IPv4 and IPv6; shared by all givers
	of                map[netip.Prefix]string
	allocators        map[string]*allocator
	faulty            map[string]error // pools whose objects are invalid; their givers, if they have any, are of before
	nodes             map[string]*member
}

func newIndex(defaultPool string, migrate bool) *index {
	b := &index{defaultPool: defaultPool, migrate: migrate, quarantineTime: pool.Quarantine, of: map[netip.Prefix]string{}, allocators: map[string]*allocator{}, faulty: map[string]error{}, nodes: map[string]*member{}}
	for f, bits := range [2]int{32, 128} {
		b.held[f], _ = pool.New(nil, bits) // without ranges there is nothing to be wrong
	}
	return b
}

// setPool has blocks be given of a pool as it is now. It reports whether anything changed by that.
func (b *index) setPool(p ippools.Pool) (changed bool, err error) {
	before := b.allocators[p.Name]
	if before != nil && before.Equal(p) {
		changed = b.faulty[p.Name] != nil
		delete(b.faulty, p.Name)
		return changed, nil
	}
	now := &allocator{Pool: p}
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
	b.allocators[p.Name] = now
	delete(b.faulty, p.Name)
	return true, nil
}

// faultyPool notes that a pool is invalid. It is as it was before; if it was not, nothing is
// known of it. It reports whether that is new.
func (b *index) faultyPool(name string, fault error) (changed bool) {
	before := b.faulty[name]
	b.faulty[name] = fault
	return before == nil || before.Error() != fault.Error()
}

// faultHint reports why a pool may not be as it is meant; nothing if it is.
func (b *index) faultHint(name string) string {
	if fault := b.faulty[name]; fault != nil {
		return fmt.Sprintf(" (what counts is its last good version: %v)", fault)
	}
	return ""
}

// removePool has nothing more be given of a pool. What nodes hold of it they keep.
func (b *index) removePool(name string) (changed bool) {
	_, given := b.allocators[name]
	_, faulty := b.faulty[name]
	delete(b.allocators, name)
	delete(b.faulty, name)
	return given || faulty
}

// block is a block with the pool named for it.
type block struct {
	prefix netip.Prefix
	pool   string
}

// blocks reads what a node has, without what stands there twice; bad are texts that are no CIDRs.
// Blocks of cluster-pool come last, as such of the pool legacy.
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
func (b *index) legacy(n node) string {
	if b.migrate && len(n.requested) > 0 {
		return b.defaultPool
	}
	return ""
}

// restore records what nodes hold already, the oldest node first, before anything is assigned.
// Blocks that a former operator marked as another's come last: the first owner keeps them.
func (b *index) restore(nodes []node) {
	nodes = slices.Clone(nodes)
	slices.SortFunc(nodes, func(x, y node) int {
		return cmp.Or(x.created.Compare(y.created), cmp.Compare(x.name, y.name))
	})
	for _, n := range nodes {
		b.nodes[n.name] = newMember(n.uid)
	}
	for _, marked := range []bool{false, true} {
		for _, n := range nodes {
			m := b.nodes[n.name]
			own, bad := n.blocks(b.legacy(n))
			marks := strings.Split(n.disputed, ",")
			for _, o := range own {
				if slices.Contains(marks, o.prefix.String()) == marked && b.insert(n.name, o) != nil {
					m.lost = append(m.lost, o.prefix)
				}
			}
			m.served = len(bad) == 0 && len(m.lost) == 0 // the status of who lost something reports it later
		}
	}
	b.avoid()
}

// insert records a block that a node has. If the block is taken, the error is a [pool.TakenError].
func (b *index) insert(name string, o block) error {
	err := b.held[pool.Family(o.prefix)].Claim(name, o.prefix)
	if err == nil {
		b.of[o.prefix] = o.pool
	}
	return err
}

// avoid excludes from assignment what nodes have in their objects and do not hold.
func (b *index) avoid() {
	var lost [2][]netip.Prefix
	for _, m := range b.nodes {
		for _, p := range m.lost {
			lost[pool.Family(p)] = append(lost[pool.Family(p)], p)
		}
	}
	for f := range lost {
		b.held[f].Avoid(lost[f])
	}
}

// agrees reports whether a view of n that may be old leaves nothing to do.
func (b *index) agrees(n node) bool {
	m := b.nodes[n.name]
	if m == nil || m.uid != n.uid || !m.served || len(m.given) > 0 {
		return false
	}
	if len(n.podCIDRs) > 0 && len(n.requested) > 0 {
		return false // these are to be moved, or complained about
	}
	own, bad := n.blocks("")
	if len(bad) > 0 || n.disputed != "" || len(own) != b.listed(n.name, m) {
		return false
	}
	for _, o := range own {
		holders := b.held[pool.Family(o.prefix)].Overlapping(o.prefix)
		if len(holders) != 1 || holders[0].Owner != n.name || holders[0].Prefix != o.prefix || b.of[o.prefix] != o.pool {
			return false
		}
		if o.pool != "" && !b.covers(o) {
			return false
		}
	}
	for _, a := range n.allocated {
		if s := b.allocators[a.pool]; s != nil && (s.AllowFirst != a.allowFirst || s.AllowLast != a.allowLast) {
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

// listed counts the blocks that a node holds and that are not in quarantine.
func (b *index) listed(name string, m *member) (n int) {
	for _, held := range b.held {
		for _, p := range held.Holds(name) {
			if m.quarantined[p].IsZero() {
				n++
			}
		}
	}
	return n
}

// covers reports whether a block is one that its pool has, as far as that is known.
func (b *index) covers(o block) bool {
	s := b.allocators[o.pool]
	return s == nil && b.faulty[o.pool] != nil || s != nil && s.Covers(o.prefix)
}

// has counts the addresses of a pool that a node has for its pods. Those of blocks that the pool
// does not have any more do not count, nor those that were another's first.
func (b *index) has(name, of string, f int) int {
	s := b.allocators[of]
	if s == nil {
		return 0
	}
	n := 0
	for _, p := range b.held[f].Holds(name) {
		if _, quarantined := b.nodes[name].quarantined[p]; !quarantined && b.of[p] == of && s.Covers(p) {
			n += ipam.Capacity(ipam.Block{Prefix: p, AllowFirst: s.AllowFirst, AllowLast: s.AllowLast})
		}
	}
	return n
}

// reconcile decides about n, which must be as the server has it now.
func (b *index) reconcile(n node, now time.Time) answer {
	a := answer{released: b.expire(now), podCIDRs: n.podCIDRs}
	m := b.nodes[n.name]
	if m == nil {
		m = newMember(n.uid)
		b.nodes[n.name] = m
	}
	if m.uid != n.uid { // it is new, or another of the same name
		m.uid = n.uid
		clear(m.given)
	}
	for _, x := range n.allocated {
		x.cidrs = slices.Clone(x.cidrs)
		a.allocated = append(a.allocated, x)
	}
	own, bad := n.blocks(b.legacy(n))
	for _, text := range bad {
		a.addFault("spec.ipam: %q is not a CIDR; remove it", text)
	}
	b.quarantineMissing(n, m, own, now, &a)
	b.claim(n, m, own, &a)
	b.adopt(n, own, &a)
	for _, r := range n.requested {
		for f, needed := range r.needed {
			b.give(f, n, m, r.pool, needed, &a)
		}
	}
	for i, x := range a.allocated {
		if s := b.allocators[x.pool]; s != nil && (s.AllowFirst != x.allowFirst || s.AllowLast != x.allowLast) {
			a.allocated[i].allowFirst, a.allocated[i].allowLast, a.changed = s.AllowFirst, s.AllowLast, true
		}
	}
	a.changed = a.changed || a.disputed != n.disputed
	m.served = len(a.faults) == 0 && !a.changed
	return a
}

// quarantineMissing starts the quarantine of what n does not have any more. A block whose write may
// still arrive is given once more: the write is the same.
func (b *index) quarantineMissing(n node, m *member, own []block, now time.Time, a *answer) {
	listed := map[netip.Prefix]bool{}
	for _, o := range own {
		listed[o.prefix] = true
		delete(m.given, o.prefix)
		b.endQuarantine(m, o.prefix)
	}
	for _, p := range b.known(n.name, m) {
		if listed[p] {
			continue
		}
		if version, ok := m.given[p]; ok && version == n.version {
			a.give(b.of[p], p)
			continue
		}
		delete(m.given, p)
		b.startQuarantine(m, p, now)
	}
}

// claim records the blocks that a node has. Of two nodes with one block the first owner keeps it,
// as there is no way to see which pods use it.
func (b *index) claim(n node, m *member, own []block, a *answer) {
	before := m.lost
	m.lost = slices.DeleteFunc(slices.Clone(before), func(p netip.Prefix) bool { return m.quarantined[p].IsZero() })
	var marks []string
	for _, o := range own {
		if err := b.insert(n.name, o); err != nil {
			m.lost = append(m.lost, o.prefix)
			marks = append(marks, o.prefix.String())
			a.addFault("spec.ipam: %s", dispute(n.name, err))
			continue
		}
		if o.pool != "" && !b.covers(o) {
			a.addFault("pool %q does not have %s (any more), of which this node has pods: add it to CiliumPodIPPool %s again, or delete the pods with its addresses; "+
				"no new ones of it are assigned", o.pool, o.prefix, o.pool)
		}
	}
	slices.Sort(marks)
	a.disputed = strings.Join(marks, ",")
	if !slices.Equal(before, m.lost) {
		b.avoid()
	}
}

// dispute reports what is wrong with a block of a node that cannot be recorded.
func dispute(name string, err error) string {
	var taken *pool.TakenError
	switch {
	case !errors.As(err, &taken):
		return err.Error()
	case taken.Owner == name:
		return fmt.Sprintf("%s overlaps %s, which the node has, too; remove one of them", taken.Wanted, taken.Held)
	}
	return fmt.Sprintf("%s overlaps %s of node %s, which had it first: no new pod gets an address of it here; delete the pods that have one", taken.Wanted, taken.Held, taken.Owner)
}

// adopt makes a node's blocks of cluster-pool such of the default pool, if its agent asks for
// pools.
func (b *index) adopt(n node, own []block, a *answer) {
	if len(n.podCIDRs) == 0 || len(n.requested) == 0 {
		return
	}
	if !b.migrate {
		a.addFault("spec.ipam.podCIDRs are left of another mode; start the operator with --%s to have them be blocks of pool %q, or remove them", migrateFlag, b.defaultPool)
		return
	}
	for _, o := range own {
		if o.pool == b.defaultPool {
			a.give(o.pool, o.prefix)
		}
	}
	a.podCIDRs, a.changed = nil, true
}

// give gives a node blocks of a pool until it has as many addresses as it needs.
func (b *index) give(f int, n node, m *member, of string, needed int, a *answer) {
	have := b.has(n.name, of, f)
	if have >= needed {
		return
	}
	s := b.allocators[of]
	// What is in quarantine in the node's own name is free for it, unless another node has it.
	for _, p := range b.held[f].Holds(n.name) {
		if have < needed && s != nil && !m.quarantined[p].IsZero() && b.of[p] == of && s.Covers(p) && !b.held[f].Avoids(p) {
			b.endQuarantine(m, p)
			m.given[p] = n.version
			a.give(of, p)
			have = b.has(n.name, of, f)
		}
	}
	if have >= needed {
		return
	}
	switch {
	case s == nil && b.faulty[of] != nil:
		a.addFault("pool %q: the node needs %d %s addresses, and what there is of the pool is not known: %v", of, needed, pool.FamilyNames[f], b.faulty[of])
		return
	case s == nil:
		a.addFault("there is no CiliumPodIPPool %s, of which %d %s addresses are asked for; create it", of, needed, pool.FamilyNames[f])
		return
	case s.blocks[f] == nil:
		a.addFault("CiliumPodIPPool %s has no %s range, and %d addresses are asked for; add one%s", of, pool.FamilyNames[f], needed, b.faultHint(of))
		return
	}
	for have < needed {
		if len(b.held[f].Holds(n.name)) >= maxBlocks {
			a.addFault("the node has %d %s blocks already and asks for more addresses of pool %q; pools with larger blocks (maskSize) need fewer", maxBlocks, pool.FamilyNames[f], of)
			return
		}
		p, err := s.blocks[f].Allocate(n.name)
		if err != nil {
			a.addFault("pool %q: the node needs %d %s addresses and has %d: %v; add a range to CiliumPodIPPool %s%s%s", of, needed, pool.FamilyNames[f], have, err, of, b.waitHint(), b.faultHint(of))
			return
		}
		b.of[p], m.given[p] = of, n.version
		a.give(of, p)
		have = b.has(n.name, of, f)
	}
}

// waitHint adds that something may become free by itself.
func (b *index) waitHint() string {
	if b.quarantinedBlocks == 0 {
		return ""
	}
	return fmt.Sprintf(", or wait: what nodes handed back in the last %s is not given yet", b.quarantineTime)
}

// wrote records that the node has what reconcile answered; served means that nothing was wrong.
func (b *index) wrote(name string, served bool) {
	if m := b.nodes[name]; m != nil {
		clear(m.given)
		m.served = served
	}
}

// forget starts the quarantine of what a node had that is gone. It comes back to the node if that
// comes back.
func (b *index) forget(name string, now time.Time) (released bool) {
	if m := b.nodes[name]; m != nil {
		m.uid, m.served = "", false
		clear(m.given)
		for _, p := range b.known(name, m) {
			b.startQuarantine(m, p, now)
		}
		if len(m.quarantined) == 0 {
			delete(b.nodes, name)
		}
	}
	return b.expire(now)
}

// known are the CIDRs that a node has or had: those that it holds and those that it lost.
func (b *index) known(name string, m *member) []netip.Prefix {
	return slices.Concat(b.held[0].Holds(name), b.held[1].Holds(name), m.lost)
}

// startQuarantine keeps a CIDR from other nodes that a node has no more.
func (b *index) startQuarantine(m *member, p netip.Prefix, now time.Time) {
	if _, ok := m.quarantined[p]; !ok {
		m.quarantined[p] = now.Add(b.quarantineTime)
		b.quarantinedBlocks++
	}
}

// endQuarantine ends it for a CIDR that a node has again, or that is free.
func (b *index) endQuarantine(m *member, p netip.Prefix) {
	if _, ok := m.quarantined[p]; ok {
		delete(m.quarantined, p)
		b.quarantinedBlocks--
	}
}

// expire releases what was in quarantine for long enough. It reports whether that was anything.
func (b *index) expire(now time.Time) (released bool) {
	if b.quarantinedBlocks == 0 {
		return false
	}
	for name, m := range b.nodes {
		for p, end := range m.quarantined {
			if now.Before(end) {
				continue
			}
			b.endQuarantine(m, p)
			if b.held[pool.Family(p)].ReleaseOne(name, p) {
				delete(b.of, p)
			}
			m.lost = slices.DeleteFunc(m.lost, func(l netip.Prefix) bool { return l == p })
			released = true
		}
		if m.uid == "" && len(m.quarantined) == 0 {
			delete(b.nodes, name)
		}
	}
	if released {
		b.avoid()
	}
	return released
}
