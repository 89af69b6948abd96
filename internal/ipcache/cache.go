package ipcache

import (
	"errors"
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"unique"

	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/table"
)

// ErrInvalid is returned, wrapped, for an invalid claim.
var ErrInvalid = errors.New("invalid address claim")

// Cache merges claims into a table of entries. It is safe for concurrent use.
type Cache struct {
	table *table.Table[netip.Prefix, Entry]

	mu sync.Mutex
	// rivals holds all claims of the prefixes that have more than one, the one that counts first.
	rivals map[netip.Prefix][]Entry
	// lengths counts the entries by family and prefix length, for Lookup.
	lengths [2][129]int
	// generated has the identities that claims of that source are made with: inside of a pod CIDR
	// they have its identity and host instead.
	generated map[generatedKey]identity.ID
	// nodes has the prefixes claimed in the name of each node; podCIDRs those with their hosts.
	nodes    map[string]map[netip.Prefix]Claim
	podCIDRs map[netip.Prefix]int // number of nodes that claim it
}

// generatedKey is the claim of source Generated of an owner.
type generatedKey struct {
	p     netip.Prefix
	owner unique.Handle[string]
}

// New returns an empty cache.
func New() *Cache {
	return &Cache{
		table:     table.New[netip.Prefix](Entry.Equal),
		rivals:    make(map[netip.Prefix][]Entry),
		generated: make(map[generatedKey]identity.ID),
		nodes:     make(map[string]map[netip.Prefix]Claim),
		podCIDRs:  make(map[netip.Prefix]int),
	}
}

// Table returns the table of entries, which the caller must not write to.
func (c *Cache) Table() *table.Table[netip.Prefix, Entry] { return c.table }

// All yields the entries as they are when the loop begins.
func (c *Cache) All() iter.Seq2[netip.Prefix, Entry] { return c.table.All() }

// Single returns the prefix that holds just one address.
func Single(ip netip.Addr) netip.Prefix { return netip.PrefixFrom(ip, ip.BitLen()) }

func check(p netip.Prefix, cl Claim) error {
	switch {
	case !p.IsValid() || p != p.Masked() || p.Addr().Is4In6():
		return fmt.Errorf("%w: %v is no network prefix", ErrInvalid, p)
	case cl.Source < Restored || cl.Source > Host:
		return fmt.Errorf("%w of %v: source %d does not exist", ErrInvalid, p, cl.Source)
	case cl.Identity == identity.Unknown:
		return fmt.Errorf("%w of %v: no identity", ErrInvalid, p)
	}
	return nil
}

// Upsert makes a claim, or replaces what the same source and owner claimed, and returns the table's
// revision that has it. p must have no bits beyond its length.
func (c *Cache) Upsert(p netip.Prefix, cl Claim) (revision uint64, err error) {
	if err := check(p, cl); err != nil {
		return 0, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.table.Update(func(x table.Txn[netip.Prefix, Entry]) { c.upsert(x, p, compact(cl)) })
	return c.table.Revision(), nil
}

// UpsertGenerated makes claims of source Generated for an owner, all at once.
func (c *Cache) UpsertGenerated(owner string, ids map[netip.Prefix]identity.ID) (revision uint64, err error) {
	for p, id := range ids {
		if err := check(p, Claim{Source: Generated, Identity: id}); err != nil {
			return 0, err
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.table.Update(func(x table.Txn[netip.Prefix, Entry]) {
		for p, id := range ids {
			c.upsert(x, p, compact(Claim{Source: Generated, Owner: owner, Identity: id}))
		}
	})
	return c.table.Revision(), nil
}

// Delete takes a claim back. One that was never made is no error. It returns the table's revision
// that is without it.
func (c *Cache) Delete(p netip.Prefix, source Source, owner string) (revision uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.table.Update(func(x table.Txn[netip.Prefix, Entry]) {
		c.delete(x, p, Entry{Source: source, owner: unique.Make(owner)})
	})
	return c.table.Revision()
}

func (c *Cache) upsert(x table.Txn[netip.Prefix, Entry], p netip.Prefix, e Entry) {
	if e.Source == Generated {
		c.generated[generatedKey{p, e.owner}] = e.Identity
		e = c.placed(x, p, e)
	}
	old, found := x.Get(p)
	if !found {
		c.count(p, 1)
		x.Upsert(p, e)
		return
	}
	all := c.rivals[p]
	if all == nil {
		if old.same(e) {
			x.Upsert(p, e)
			return
		}
		all = []Entry{old}
	}
	all = slices.DeleteFunc(all, e.same)
	at := slices.IndexFunc(all, func(o Entry) bool { return e.before(o) })
	if at < 0 {
		at = len(all)
	}
	c.choose(x, p, slices.Insert(all, at, e))
}

func (c *Cache) delete(x table.Txn[netip.Prefix, Entry], p netip.Prefix, e Entry) {
	old, found := x.Get(p)
	if !found {
		return
	}
	if e.Source == Generated {
		delete(c.generated, generatedKey{p, e.owner})
	}
	all := c.rivals[p]
	if all == nil {
		if !old.same(e) {
			return
		}
		c.count(p, -1)
		x.Delete(p)
		return
	}
	c.choose(x, p, slices.DeleteFunc(all, e.same))
}

// choose makes the first of the claims count. There is at least one.
func (c *Cache) choose(x table.Txn[netip.Prefix, Entry], p netip.Prefix, all []Entry) {
	if len(all) > 1 {
		c.rivals[p] = all
	} else {
		delete(c.rivals, p)
	}
	x.Upsert(p, all[0])
}

func familyIndex(a netip.Addr) int {
	if a.Is4() {
		return 0
	}
	return 1
}

func (c *Cache) count(p netip.Prefix, n int) { c.lengths[familyIndex(p.Addr())][p.Bits()] += n }

// Lookup returns the entry of the longest prefix that holds an address.
func (c *Cache) Lookup(ip netip.Addr) (p netip.Prefix, e Entry, found bool) {
	ip = ip.Unmap().WithZone("")
	if !ip.IsValid() {
		return p, e, false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for bits := ip.BitLen(); bits >= 0; bits-- {
		if c.lengths[familyIndex(ip)][bits] == 0 {
			continue
		}
		p, _ = ip.Prefix(bits)
		if e, found = c.table.Get(p); found {
			return p, e, true
		}
	}
	return netip.Prefix{}, e, false
}

// Node is what the cache must know of a node.
type Node struct {
	// Name is the owner of the claims.
	Name string
	// Local means that it is this node, Foreign that it is one of another cluster.
	Local, Foreign bool
	// IPs are its addresses in the underlay, RouterIPs those in the pod network.
	IPs       []netip.Addr
	RouterIPs []netip.Addr
	// Own are further addresses that this node's kernel accepts as its own; those of other nodes
	// are not known.
	Own      []netip.Prefix
	PodCIDRs []netip.Prefix
	// HealthIPs are those of its health endpoint.
	HealthIPs []netip.Addr
	// Host is the address to which packets for its pods are sent.
	Host netip.Addr
}

// SetNode claims the addresses of a node and, if it is another one, its pod networks. Claims made
// before in its name that are not among them are taken back. Addresses and networks that make no
// sense are left out.
func (c *Cache) SetNode(n Node) {
	want := make(map[netip.Prefix]Claim)
	claim := func(p netip.Prefix, s Source, id identity.ID, host netip.Addr) {
		cl := Claim{Source: s, Owner: n.Name, Identity: id, Host: host}
		if n.Local {
			cl.Source, cl.Identity, cl.Host = Host, identity.Host, netip.Addr{}
		}
		if check(p, cl) == nil {
			want[p] = cl
		}
	}
	if !n.Local {
		for _, p := range n.PodCIDRs {
			claim(p, PodCIDR, identity.Unmanaged, n.Host)
		}
		for _, ip := range n.HealthIPs {
			claim(Single(ip), Health, identity.Health, n.Host)
		}
	}
	if n.Local {
		for _, p := range n.Own {
			claim(p, Host, identity.Host, netip.Addr{})
		}
	}
	own := RemoteNode
	if n.Foreign {
		own = MeshNode
	}
	for _, ip := range n.RouterIPs {
		claim(Single(ip), own, identity.RemoteNode, n.Host)
	}
	for _, ip := range n.IPs {
		claim(Single(ip), own, identity.RemoteNode, netip.Addr{})
	}
	c.setNode(n.Name, want)
}

// DeleteNode takes all claims back that were made in the name of a node.
func (c *Cache) DeleteNode(name string) { c.setNode(name, nil) }

func (c *Cache) setNode(name string, want map[netip.Prefix]Claim) {
	c.mu.Lock()
	defer c.mu.Unlock()
	have := c.nodes[name]
	var moved []netip.Prefix // pod networks whose host may have changed
	c.table.Update(func(x table.Txn[netip.Prefix, Entry]) {
		for p, old := range have {
			if old.Source == PodCIDR {
				moved = append(moved, p)
			}
			if cl, keep := want[p]; keep && cl.Source == old.Source {
				continue
			}
			c.delete(x, p, Entry{Source: old.Source, owner: unique.Make(name)})
			if old.Source == PodCIDR {
				if c.podCIDRs[p]--; c.podCIDRs[p] == 0 {
					delete(c.podCIDRs, p)
				}
			}
		}
		for p, cl := range want {
			if old, had := have[p]; cl.Source == PodCIDR && (!had || old.Source != PodCIDR) {
				c.podCIDRs[p]++
				moved = append(moved, p)
			}
			c.upsert(x, p, compact(cl))
		}
		c.follow(x, moved)
	})
	if len(want) == 0 {
		delete(c.nodes, name)
	} else {
		c.nodes[name] = maps.Clone(want)
	}
}

// follow renews the generated prefixes inside of pod networks.
func (c *Cache) follow(x table.Txn[netip.Prefix, Entry], networks []netip.Prefix) {
	for k, id := range c.generated {
		inside := func(n netip.Prefix) bool { return n.Bits() <= k.p.Bits() && n.Contains(k.p.Addr()) }
		if slices.ContainsFunc(networks, inside) {
			c.upsert(x, k.p, Entry{Identity: id, Source: Generated, owner: k.owner})
		}
	}
}

// placed returns a generated entry as it is where its prefix lies. Inside of a pod network it has
// the identity and the host of the smallest one: a rule that names a part of the network must not
// have the pods there that are not known yet pass for what is outside of the cluster.
func (c *Cache) placed(x table.Txn[netip.Prefix, Entry], p netip.Prefix, e Entry) Entry {
	e.host = unique.Make(netip.Addr{})
	if len(c.podCIDRs) == 0 {
		return e
	}
	for bits := p.Bits(); bits >= 0; bits-- {
		n, _ := p.Addr().Prefix(bits)
		if c.podCIDRs[n] == 0 {
			continue
		}
		claims := c.rivals[n]
		if claims == nil {
			network, _ := x.Get(n)
			claims = []Entry{network}
		}
		for _, network := range claims {
			if network.Source == PodCIDR {
				e.Identity, e.host = network.Identity, network.host
				return e
			}
		}
	}
	return e
}
