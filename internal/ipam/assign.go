package ipam

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/hawser-net/hawser/pkg/retry"
)

// Block is a CIDR that is assigned to the node.
type Block struct {
	Prefix netip.Prefix
	// AllowFirst and AllowLast report whether the outermost addresses may be given out; a CIDR of
	// two or one has none.
	AllowFirst, AllowLast bool
	// Drained blocks keep what is given out, and give out nothing new.
	Drained bool
}

// validate reports why a block cannot be used for pods.
func (b Block) validate() error {
	p := b.Prefix
	switch {
	case !p.IsValid() || p.Addr().Is4In6():
		return fmt.Errorf("%w: %v is no pod CIDR", ErrInvalid, p)
	case p.Addr().Is4() && p.Bits() < minIPv4Bits:
		return fmt.Errorf("%w: pod CIDR %v is too large for one node; a /%d is the largest", ErrInvalid, p, minIPv4Bits)
	}
	return nil
}

// Assign makes the node have the CIDRs of want, by pool, and no others. Those of families that are
// not enabled are left out. A CIDR that is not in want but has addresses given out stays, drained,
// until it is called again and none is; stays returns them. A CIDR that overlaps one that the node
// has, or one named before it, is refused; the error joins these.
func (m *IPAM) Assign(want map[string][]Block) (stays []netip.Prefix, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.cfg.Assigned == 0 {
		return nil, errors.New("the node's pod CIDRs are given, and cannot be assigned")
	}
	before := m.assignable()
	var errs []error
	var next [2][]*pool
	// What the node has comes first: nothing else can have addresses that are in use.
	for i, ps := range m.pools {
		for _, p := range ps {
			b, ok := blockOf(want[p.name], p.cidr)
			switch {
			case ok && p.count == 0 && (b.AllowFirst != p.allowFirst || b.AllowLast != p.allowLast):
				p = m.newPool(p.name, b)
			case ok:
				p.drained = b.Drained
				m.allow(p, b)
			case p.count == 0:
				continue
			default:
				p.drained = true
				stays = append(stays, p.cidr)
			}
			next[i] = append(next[i], p)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(want)) {
		for _, b := range want[name] {
			if err := b.validate(); err != nil {
				errs = append(errs, fmt.Errorf("pool %q: %w", name, err))
				continue
			}
			b.Prefix = b.Prefix.Masked()
			f := familyOf(b.Prefix.Addr())
			if m.families&f == 0 {
				continue
			}
			ps := &next[f-IPv4]
			j := slices.IndexFunc(*ps, func(p *pool) bool { return p.cidr.Overlaps(b.Prefix) })
			switch {
			case j < 0:
				*ps = append(*ps, m.newPool(name, b))
			case (*ps)[j].cidr == b.Prefix && (*ps)[j].name == name: // the node has it
			default:
				errs = append(errs, fmt.Errorf("%w: pod CIDR %v of pool %q overlaps %v of pool %q, which this node has",
					ErrExists, b.Prefix, name, (*ps)[j].cidr, (*ps)[j].name))
			}
		}
	}
	m.pools = next
	m.reserveNew(before)
	m.moved()
	m.demandMoved()
	return stays, errors.Join(errs...)
}

// allow permits the first and last address of a CIDR in use, if a block does. Withdrawing that
// permission takes effect when no address of the CIDR is assigned: until then the node has more
// addresses than it is believed to have. m.mu is held.
func (m *IPAM) allow(p *pool, b Block) {
	for _, edge := range []struct {
		index   uint32
		want    bool
		allowed *bool
	}{{0, b.AllowFirst, &p.allowFirst}, {p.size - 1, b.AllowLast, &p.allowLast}} {
		if !edge.want || *edge.allowed {
			continue
		}
		*edge.allowed = true
		ip := p.addr(edge.index)
		if _, excluded := m.excluded[ip]; p.size > 2 && !excluded && m.given[ip] == nil {
			p.clear(edge.index)
			p.capacity++
		}
	}
}

func blockOf(blocks []Block, cidr netip.Prefix) (Block, bool) {
	i := slices.IndexFunc(blocks, func(b Block) bool { return b.Prefix.Masked() == cidr })
	if i < 0 {
		return Block{}, false
	}
	return blocks[i], true
}

// newPool returns a pool for a CIDR that the node did not have. m.mu is held.
func (m *IPAM) newPool(name string, b Block) *pool {
	p := newPool(name, b)
	for ip := range m.excluded {
		if i, ok := p.index(ip); ok && !p.isMarked(i) {
			p.mark(i)
			p.capacity--
		}
	}
	return p
}

// RemoveUnused takes a CIDR from the node if no address of it is given out, and reports whether it
// did.
func (m *IPAM) RemoveUnused(cidr netip.Prefix) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i, ps := range m.pools {
		for j, p := range ps {
			if p.cidr == cidr && p.count == 0 && m.cfg.Assigned != 0 {
				m.pools[i] = slices.Delete(slices.Clone(ps), j, j+1)
				m.demandMoved()
				return true
			}
		}
	}
	return false
}

// PoolOf returns the pool of which an address is; "" if it is not the node's.
func (m *IPAM) PoolOf(ip netip.Addr) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	p, _, err := m.find(ip)
	if err != nil {
		return ""
	}
	return p.name
}

// Moved returns a channel that is closed when an address may be free that was not before: something
// is assigned, or given back.
func (m *IPAM) Moved() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.assigned
}

// moved notifies those who wait for an address. m.mu is held.
func (m *IPAM) moved() {
	close(m.assigned)
	m.assigned = make(chan struct{})
}

// giveBack is free for who had the address: those who wait for one may get it. m.mu is held.
func (m *IPAM) giveBack(ip netip.Addr) {
	m.free(ip)
	m.moved()
}

// Assignable reports whether an address is one that may be given out, now or once it is free.
func (m *IPAM) Assignable(ip netip.Addr) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.assignable()(ip)
}

// assignable is Assignable as things are now, whatever becomes of the pools. m.mu is held.
func (m *IPAM) assignable() func(netip.Addr) bool {
	var now []pool
	for _, p := range slices.Concat(m.pools[0], m.pools[1]) {
		now = append(now, *p)
	}
	return func(ip netip.Addr) bool {
		for k := range now {
			if i, ok := now[k].index(ip); ok && now[k].assignable(i) {
				return true
			}
		}
		return false
	}
}

// Count is a number of addresses of each family.
type Count struct{ IPv4, IPv6 int }

// waiter is a request that could not be served.
type waiter struct {
	pool, owner string
	family      Families
}

// waitFor is how long a caller that found a pool exhausted counts: it asks again within that time
// if it still wants an address.
const waitFor = 5 * time.Minute

// wait notes what an owner lacks. m.mu is held.
func (m *IPAM) wait(families Families, owner string, pools Choice) {
	if m.cfg.Assigned == 0 {
		return
	}
	for _, f := range []Families{IPv4, IPv6} {
		if families&f != 0 {
			m.waiting[waiter{pools.of(f), owner, f}] = time.Now().Add(waitFor)
		}
	}
	m.demandMoved()
}

// served forgets what an owner lacked. m.mu is held.
func (m *IPAM) served(families Families, owner string, pools Choice) {
	for _, f := range []Families{IPv4, IPv6} {
		if families&f != 0 {
			delete(m.waiting, waiter{pools.of(f), owner, f})
		}
	}
}

// demandMoved notifies followers of the demand. m.mu is held.
func (m *IPAM) demandMoved() {
	retry.Notify(m.demand)
}

// DemandMoved receives something when what Demand returns may have changed.
func (m *IPAM) DemandMoved() <-chan struct{} { return m.demand }

// Demand returns how many addresses of each pool are in use, or were asked for in vain in the last
// five minutes.
func (m *IPAM) Demand() map[string]Count {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := map[string]Count{}
	add := func(pool string, f Families, n int) {
		c := out[pool]
		if f == IPv4 {
			c.IPv4 += n
		} else {
			c.IPv6 += n
		}
		out[pool] = c
	}
	for i, ps := range m.pools {
		for _, p := range ps {
			add(p.name, IPv4<<i, p.count)
		}
	}
	for w, end := range m.waiting {
		if time.Now().After(end) {
			delete(m.waiting, w)
			continue
		}
		add(w.pool, w.family, 1)
	}
	return out
}
