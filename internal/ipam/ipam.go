// Package ipam gives out the addresses of a node's pod CIDRs ("host scope"). Either there is one
// pool with a CIDR of each family, either of which may be absent, or there are pools by name, each
// with as many CIDRs as are assigned to the node at the time: see [IPAM.Assign].
//
// Every address given out has an owner in text ("namespace/pod", "router"), and an address is never
// given to two. The search for a free address goes round each CIDR, so that an address just
// released stays unused as long as possible there: peers that still know it under its old identity
// do not meet a new pod behind it. A pool's next CIDR is used when its first ones are full, so that
// those at its end become free and can be returned. The first and the last address of a CIDR are
// never given out unless it has no more than two, and of an IPv6 CIDR only the first 65536 are
// used.
//
// A container runtime asks for an address before the endpoint that will use it exists. Such an
// address is allocated with an expiration: unless [IPAM.StopExpiration] is called with the UUID
// that came with it, it is released after [Config.Expiration]. The owner of the endpoint must first
// make the address count as used (see [Config.InUse]), then call StopExpiration, and give up if
// that fails; then no moment is left in which the address could be given to another.
//
// Nothing is kept on disk. After a restart the caller calls [IPAM.Restore] for the addresses of
// each endpoint it knows and then [IPAM.Open]; until then nothing new is given out. Addresses that
// peers may know as those of pods that the node does not have are kept back by [IPAM.Reserve].
//
// The package starts no goroutine of its own; [IPAM.Run] is the one that releases expired
// addresses. All methods are safe for concurrent use.
package ipam

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hawser-net/hawser/internal/validate"
	"github.com/hawser-net/hawser/pkg/retry"
)

// DefaultPool is the name of the only pool, and by default of the default pool. The empty name
// means it too.
const DefaultPool = "default"

// Errors that the package returns, wrapped with the address or CIDR they are about.
var (
	// ErrInvalid: the address or pool is none that could ever be given out here.
	ErrInvalid = errors.New("invalid address")
	// ErrExists: the address belongs to someone already, or is excluded.
	ErrExists = errors.New("address is taken")
	// ErrNotFound: the address is not allocated.
	ErrNotFound = errors.New("address is not allocated")
	// ErrInUse: the address cannot be released because an endpoint uses it.
	ErrInUse = errors.New("address is in use")
	// ErrExhausted: no address is free.
	ErrExhausted = errors.New("no address is free")
	// ErrDisabled: the node has no CIDR of this family.
	ErrDisabled = errors.New("address family is disabled")
	// ErrExpiration: there is no expiration to stop, or the UUID is not that of the allocation.
	ErrExpiration = errors.New("expiration does not match")
	// ErrNotOpen: addresses from before the restart are still being restored.
	ErrNotOpen = errors.New("addresses are still being restored")
)

// Families is a set of address families.
type Families uint8

// The families.
const (
	IPv4 Families = 1 << iota
	IPv6
	Both = IPv4 | IPv6
)

// String returns "ipv4", "ipv6", "ipv4+ipv6" or "none".
func (f Families) String() string {
	switch f & Both {
	case IPv4:
		return "ipv4"
	case IPv6:
		return "ipv6"
	case Both:
		return "ipv4+ipv6"
	}
	return "none"
}

// ParseFamilies reads the family parameter of the agent's API: "ipv4", "ipv6", or "" for both.
func ParseFamilies(s string) (Families, error) {
	switch s {
	case "":
		return Both, nil
	case "ipv4":
		return IPv4, nil
	case "ipv6":
		return IPv6, nil
	}
	return 0, fmt.Errorf("%w: family %q is neither ipv4 nor ipv6", ErrInvalid, s)
}

func familyOf(ip netip.Addr) Families {
	if ip.Is4() {
		return IPv4
	}
	return IPv6
}

// Config is what an [IPAM] is made from.
type Config struct {
	// IPv4CIDR and IPv6CIDR are the node's pod CIDRs. The zero Prefix disables the family.
	IPv4CIDR netip.Prefix
	IPv6CIDR netip.Prefix
	// Assigned, if not empty, are the families of a node whose CIDRs are set by [IPAM.Assign]; the
	// two above are not set then.
	Assigned Families
	// None is set on a node without pods: it assigns no address. None of the above is set then.
	None bool
	// DefaultPool is the pool of who names none, [DefaultPool] by default.
	DefaultPool string
	// Expiration is how long an address allocated with expiration is kept, 10 minutes by default.
	Expiration time.Duration
	// InUse reports whether an endpoint uses an address, and names it. Such an address is neither
	// released by Release nor by its expiration. It is called without locks held. Nil means none is
	// used.
	InUse func(ip netip.Addr) (user string, used bool)
	// Local reports whether the node itself has an address, on whatever interface. Such an address
	// is never assigned. It is called with a lock held, so it must not call back. Nil means that
	// the node has none in its pod CIDRs.
	Local func(ip netip.Addr) bool
	// Log receives what is worth knowing; nil discards it.
	Log *slog.Logger
}

// DefaultExpiration is how long an address is kept for an endpoint that is not registered yet.
const DefaultExpiration = 10 * time.Minute

// Defaults sets what is not set.
func (c *Config) Defaults() {
	c.Expiration = cmp.Or(c.Expiration, DefaultExpiration)
	c.DefaultPool = cmp.Or(c.DefaultPool, DefaultPool)
	if c.InUse == nil {
		c.InUse = func(netip.Addr) (string, bool) { return "", false }
	}
	if c.Local == nil {
		c.Local = func(netip.Addr) bool { return false }
	}
	c.Log = cmp.Or(c.Log, slog.New(slog.DiscardHandler))
}

// Validate reports all invalid settings.
func (c *Config) Validate() error {
	var errs validate.Errors
	if p := c.IPv4CIDR; p != (netip.Prefix{}) {
		switch {
		case !p.IsValid() || !p.Addr().Is4():
			errs.Add("IPv4 pod CIDR %v is not an IPv4 prefix", p)
		case p.Bits() < minIPv4Bits:
			errs.Add("IPv4 pod CIDR %v is too large for one node; a /%d is the largest", p, minIPv4Bits)
		}
	}
	if p := c.IPv6CIDR; p != (netip.Prefix{}) && (!p.IsValid() || !p.Addr().Is6() || p.Addr().Is4In6()) {
		errs.Add("IPv6 pod CIDR %v is not an IPv6 prefix", p)
	}
	given := c.IPv4CIDR != (netip.Prefix{}) || c.IPv6CIDR != (netip.Prefix{})
	errs.If(given && c.Assigned != 0, "the node's pod CIDRs are assigned and cannot be given")
	errs.If(c.None && (given || c.Assigned != 0), "a node without pods has no pod CIDR")
	errs.If(!given && c.Assigned == 0 && !c.None, "the node has no pod CIDR")
	errs.If(c.Expiration < 0, "expiration %v is negative", c.Expiration)
	return errs.Err()
}

// Allocation is one address that was given out.
type Allocation struct {
	IP    netip.Addr
	Owner string
	// Pool is the one that the address is of.
	Pool string
	// UUID and Expires are set while the allocation waits to be confirmed.
	UUID    string
	Expires time.Time
	// Reserved: nobody has it, see [IPAM.Reserve].
	Reserved bool
}

// Result is what AllocateNext gives: an allocation for each family asked for and enabled.
type Result struct {
	IPv4 *Allocation
	IPv6 *Allocation
}

// IPAM gives out addresses. Make one with [New].
type IPAM struct {
	cfg Config
	// wake notifies Run that an expiration was added.
	wake chan struct{}

	mu       sync.Mutex
	open     bool
	singly   bool  // addresses are those of AssignAddresses
	refused  error // why no address is assigned; nil if addresses may be
	families Families
	pools    [2][]*pool // IPv4, IPv6; searched in their order
	given    map[netip.Addr]*Allocation
	excluded map[netip.Addr]string
	expiring map[netip.Addr]*Allocation // those of given that expire
	former   map[netip.Addr]former      // those of given that are reserved, or were and have their pod again
	waiting  map[waiter]time.Time       // callers that found a pool exhausted, and how long that counts
	assigned chan struct{}              // closed when something is assigned, or given back
	naming   Naming                     // nil until ReserveNew
	demand   chan struct{}              // signals that what Demand returns may have changed
}

// New returns an IPAM that gives out nothing until Open is called.
func New(cfg Config) (*IPAM, error) {
	cfg.Defaults()
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("ipam: %w", err)
	}
	m := &IPAM{
		cfg:      cfg,
		wake:     make(chan struct{}, 1),
		given:    make(map[netip.Addr]*Allocation),
		excluded: make(map[netip.Addr]string),
		expiring: make(map[netip.Addr]*Allocation),
		former:   make(map[netip.Addr]former),
		waiting:  make(map[waiter]time.Time),
		assigned: make(chan struct{}),
		demand:   make(chan struct{}, 1),
		families: cfg.Assigned,
	}
	for i, cidr := range []netip.Prefix{cfg.IPv4CIDR, cfg.IPv6CIDR} {
		if cidr.IsValid() {
			m.pools[i] = []*pool{newPool(cfg.DefaultPool, Block{Prefix: cidr})}
			m.families |= IPv4 << i
		}
	}
	return m, nil
}

// of returns the pools of one family. m.mu is held.
func (m *IPAM) of(f Families) []*pool {
	if f == IPv4 {
		return m.pools[0]
	}
	return m.pools[1]
}

// Families returns the enabled families.
func (m *IPAM) Families() Families { return m.families }

// CIDRs returns the pod CIDRs of some families, IPv4 first, each family in the order in which it is
// searched: those that other nodes must lead to. What [IPAM.AssignAddresses] gave is of none.
func (m *IPAM) CIDRs(families Families) []netip.Prefix {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []netip.Prefix
	for i, ps := range m.pools {
		if families&(IPv4<<i) == 0 {
			continue
		}
		for _, p := range ps {
			if p.members == nil && !p.led {
				out = append(out, p.cidr)
			}
		}
	}
	return out
}

// Refuse stops the assignment of addresses until it is called with nil; why goes into the error.
// Assigned addresses stay.
func (m *IPAM) Refuse(why error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.refused = why
}

// Open ends the restoring: from now on addresses are given out.
func (m *IPAM) Open() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.open = true
}

// find returns the pool and index of an address that the caller named. m.mu is held.
func (m *IPAM) find(ip netip.Addr) (*pool, uint32, error) {
	if !ip.IsValid() || ip.Zone() != "" || ip.Is4In6() {
		return nil, 0, fmt.Errorf("%w: %v is no pod address", ErrInvalid, ip)
	}
	f := familyOf(ip)
	if m.families&f == 0 {
		return nil, 0, fmt.Errorf("%w: the node has no %v pod CIDR for %v", ErrDisabled, f, ip)
	}
	var cidrs []string
	for _, p := range m.of(f) {
		if i, ok := p.index(ip); ok {
			return p, i, nil
		}
		cidrs = append(cidrs, p.String())
	}
	if len(cidrs) == 0 {
		return nil, 0, fmt.Errorf("%w: %v is not the node's, to which no %v pod CIDR is assigned", ErrInvalid, ip, f)
	}
	return nil, 0, fmt.Errorf("%w: %v is not in the node's pod CIDR %s", ErrInvalid, ip, strings.Join(cidrs, ", "))
}

// named returns the name of the pool that the caller means.
func (m *IPAM) named(name string) (string, error) {
	if name == "" {
		return m.cfg.DefaultPool, nil
	}
	if m.cfg.Assigned == 0 && name != m.cfg.DefaultPool {
		return "", fmt.Errorf("%w: there is no pool %q, only %q", ErrInvalid, name, m.cfg.DefaultPool)
	}
	return name, nil
}

// findIn is find for an address of a pool that the caller names; of any for the empty name. m.mu is
// held.
func (m *IPAM) findIn(ip netip.Addr, name string) (*pool, uint32, error) {
	p, i, err := m.find(ip)
	if err == nil && name != "" && p.name != name {
		return nil, 0, fmt.Errorf("%w: %v is of pool %q, not of %q", ErrInvalid, ip, p.name, name)
	}
	return p, i, err
}

// AllocateNext gives an address of each family asked for that is enabled: IPv6 first, then
// IPv4; either all of them or none. If expire is set, each expires by itself. It is an error if
// none of the families is enabled.
func (m *IPAM) AllocateNext(families Families, owner, pool string, expire bool) (Result, error) {
	return m.AllocateFrom(families, owner, Choice{pool, pool}, expire)
}

// Choice is a pool for each family. An empty name is that of the default pool.
type Choice struct{ IPv4, IPv6 string }

// of returns the pool of a family.
func (c Choice) of(f Families) string {
	if f == IPv4 {
		return c.IPv4
	}
	return c.IPv6
}

// AllocateFrom is AllocateNext with a pool for each family. If one is exhausted, what owner lacks
// counts in [IPAM.Demand] for a while.
func (m *IPAM) AllocateFrom(families Families, owner string, pools Choice, expire bool) (Result, error) {
	var err4, err6 error
	pools.IPv4, err4 = m.named(pools.IPv4)
	pools.IPv6, err6 = m.named(pools.IPv6)
	if err := errors.Join(err6, err4); err != nil {
		if err4 != nil && err6 != nil {
			err = err4 // of one name
		}
		return Result{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.open {
		return Result{}, ErrNotOpen
	}
	if m.cfg.None {
		return Result{}, fmt.Errorf("%w: the node has no pods, so it gives out no addresses", ErrDisabled)
	}
	if families &= m.families; families == 0 {
		return Result{}, fmt.Errorf("%w: the node gives out %v addresses only", ErrDisabled, m.families)
	}
	var r Result
	for _, f := range []Families{IPv6, IPv4} {
		if families&f == 0 {
			continue
		}
		a, err := m.next(f, owner, pools.of(f), expire)
		if err != nil {
			if r.IPv6 != nil {
				m.free(r.IPv6.IP)
			}
			m.wait(families, owner, pools)
			return Result{}, err
		}
		if f == IPv6 {
			r.IPv6 = a
		} else {
			r.IPv4 = a
		}
	}
	m.served(families, owner, pools)
	return r, nil
}

// next gives one address of a pool and returns a copy of its allocation.
func (m *IPAM) next(f Families, owner, pool string, expire bool) (*Allocation, error) {
	if m.refused != nil {
		return nil, fmt.Errorf("%w: %w", ErrExhausted, m.refused)
	}
	var full []string
	total := 0
	for _, p := range m.of(f) {
		if p.name != pool || p.drained {
			continue
		}
		i, ok := p.free()
		for ok && m.keptForNode(p.addr(i)) {
			i, ok = p.free()
		}
		if !ok {
			full = append(full, p.String())
			total += p.capacity
			continue
		}
		return m.hand(m.take(p, i, owner), expire), nil
	}
	if a := m.before(f, owner, pool); a != nil {
		return m.hand(a, expire), nil
	}
	switch {
	case m.cfg.Assigned == 0:
		return nil, fmt.Errorf("%w: all %d %v addresses of pod CIDR %s are allocated; delete pods, or add nodes with larger CIDRs%s",
			ErrExhausted, total, f, strings.Join(full, ", "), m.kept(f, pool))
	case len(full) == 0 && m.singly:
		return nil, fmt.Errorf("%w: this node has no %v address that a pod may get now", ErrExhausted, f)
	case len(full) == 0:
		return nil, fmt.Errorf("%w: no %v pod CIDR of pool %q is assigned to this node", ErrExhausted, f, pool)
	}
	return nil, fmt.Errorf("%w: all %d %v addresses of pool %q that this node has are allocated: %s%s",
		ErrExhausted, total, f, pool, strings.Join(full, ", "), m.kept(f, pool))
}

// hand returns a copy of a new allocation, which expires if it shall.
func (m *IPAM) hand(a *Allocation, expire bool) *Allocation {
	if expire {
		m.limit(a, newUUID())
	}
	c := *a
	return &c
}

// keptForNode excludes an address for good if the node itself has it, and reports whether it does.
func (m *IPAM) keptForNode(ip netip.Addr) bool {
	if !m.cfg.Local(ip) {
		return false
	}
	if err := m.exclude(ip, nodeOwner); err != nil {
		return false // given or excluded: then it is not free
	}
	m.cfg.Log.Warn("an address in the pod CIDR is the node's own, on an interface that is not Hawser's: no pod gets it", "ip", ip)
	return true
}

func (m *IPAM) take(p *pool, i uint32, owner string) *Allocation {
	p.take(i)
	a := &Allocation{IP: p.addr(i), Owner: owner, Pool: p.name}
	m.given[a.IP] = a
	m.demandMoved()
	return a
}

// free releases an address that is given out. One of a former pod is reserved again.
func (m *IPAM) free(ip netip.Addr) {
	delete(m.given, ip)
	delete(m.expiring, ip)
	if f, ok := m.former[ip]; ok {
		m.given[ip] = f.allocation(ip)
		m.demandMoved()
		return
	}
	for _, p := range m.of(familyOf(ip)) {
		if i, ok := p.index(ip); ok {
			p.release(i)
		}
	}
	m.demandMoved()
}

// Allocate gives a certain address to owner.
func (m *IPAM) Allocate(ip netip.Addr, owner, pool string) error {
	if _, err := m.named(pool); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, _, err := m.findIn(ip, pool); err != nil && m.open {
		return err
	}
	return m.allocate(ip, owner)
}

// Take is Allocate for an address that AllocateNext gave out with expiration before a restart, and
// uuid: it expires, unless StopExpiration is called, as if it had been given out now.
func (m *IPAM) Take(ip netip.Addr, owner, uuid string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	err := m.allocate(ip, owner)
	if err == nil && uuid != "" {
		m.limit(m.given[ip], uuid)
	}
	return err
}

func (m *IPAM) allocate(ip netip.Addr, owner string) error {
	if !m.open {
		return ErrNotOpen
	}
	if _, _, err := m.find(ip); err == nil && m.given[ip] == nil {
		m.keptForNode(ip)
	}
	return m.claim(ip, owner)
}

// limit has an allocation expire.
func (m *IPAM) limit(a *Allocation, uuid string) {
	a.UUID, a.Expires = uuid, time.Now().Add(m.cfg.Expiration)
	m.expiring[a.IP] = a
	retry.Notify(m.wake)
}

// Restore is Allocate before Open, for an address that was given out before a restart.
func (m *IPAM) Restore(ip netip.Addr, owner string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.open {
		return fmt.Errorf("cannot restore %v: addresses are given out already", ip)
	}
	return m.claim(ip, owner)
}

func (m *IPAM) claim(ip netip.Addr, owner string) error {
	p, i, err := m.find(ip)
	if err != nil {
		return err
	}
	back := m.returns(ip, owner)
	if a := m.given[ip]; a != nil && !back {
		return fmt.Errorf("%w: %v belongs to %s", ErrExists, ip, nameOf(a.Owner))
	}
	if o, ok := m.excluded[ip]; ok {
		return fmt.Errorf("%w: %v is excluded for %s", ErrExists, ip, nameOf(o))
	}
	if m.open && m.refused != nil {
		return fmt.Errorf("%w: %w", ErrInvalid, m.refused)
	}
	if m.open && p.led && p.drained {
		return fmt.Errorf("%w: nothing of %v is given out at present", ErrInvalid, p.cidr)
	}
	if back {
		m.takeBack(ip, owner)
		return nil
	}
	if p.isMarked(i) {
		if m.open && p.members != nil {
			return fmt.Errorf("%w: %v is being given back", ErrInvalid, ip)
		}
		if m.open || m.cfg.Assigned == 0 {
			return fmt.Errorf("%w: %v is the first or last address of pod CIDR %v", ErrInvalid, ip, p.cidr)
		}
		p.capacity++ // the pool allowed it when it was given out
	}
	next := p.next
	m.take(p, i, owner)
	if !m.open {
		p.next = max(next, p.next) // go on behind the highest address in use
	}
	return nil
}

func nameOf(owner string) string {
	return cmp.Or(owner, "an owner without name")
}

// nodeOwner is for whom addresses are excluded that the node has on interfaces of its own.
const nodeOwner = "an interface of the node"

// exclude makes sure that an address is never given out, because something else has it. Addresses
// outside the pod CIDRs are no error. Excluding for the same owner twice does nothing.
func (m *IPAM) exclude(ip netip.Addr, owner string) error {
	p, i, err := m.find(ip)
	if err != nil {
		if !ip.IsValid() {
			return err
		}
		return nil // it would never be given out anyway
	}
	if a := m.given[ip]; a != nil {
		return fmt.Errorf("%w: cannot exclude %v for %s, it belongs to %s", ErrExists, ip, nameOf(owner), nameOf(a.Owner))
	}
	if o, ok := m.excluded[ip]; ok {
		if o == owner {
			return nil
		}
		return fmt.Errorf("%w: cannot exclude %v for %s, it is excluded for %s", ErrExists, ip, nameOf(owner), nameOf(o))
	}
	m.excluded[ip] = owner
	if !p.isMarked(i) {
		p.mark(i)
		p.capacity--
	}
	return nil
}

// RouterOwner owns the node's own addresses in the pod network.
const RouterOwner = "router"

// AllocateRouter gives the node's own address of each enabled family, preferably the one it had
// before: preferred addresses that are taken or of no use are passed over. It may be called before
// Open, but after the endpoints' addresses were restored.
func (m *IPAM) AllocateRouter(preferred ...netip.Addr) (Result, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var r Result
	for _, ip := range preferred {
		if _, _, err := m.find(ip); err != nil {
			m.cfg.Log.Info("the former router address cannot be used", "ip", ip, "error", err)
			continue
		}
		slot := &r.IPv4
		if ip.Is6() {
			slot = &r.IPv6
		}
		if *slot != nil {
			continue
		}
		if err := m.claim(ip, RouterOwner); err != nil {
			m.cfg.Log.Warn("the former router address cannot be kept", "ip", ip, "error", err)
			continue
		}
		*slot = &Allocation{IP: ip, Owner: RouterOwner}
	}
	for _, f := range []Families{IPv6, IPv4} {
		slot := &r.IPv4
		if f == IPv6 {
			slot = &r.IPv6
		}
		if m.families&f == 0 || *slot != nil {
			continue
		}
		a, err := m.next(f, RouterOwner, m.cfg.DefaultPool, false)
		if err != nil {
			for _, a := range []*Allocation{r.IPv4, r.IPv6} {
				if a != nil {
					m.free(a.IP)
				}
			}
			return Result{}, fmt.Errorf("router address: %w", err)
		}
		*slot = a
	}
	return r, nil
}

// Release gives an address back. It is refused while an endpoint uses the address, and for the
// router's.
func (m *IPAM) Release(ip netip.Addr, pool string) error {
	if _, err := m.named(pool); err != nil {
		return err
	}
	a, err := m.lookup(ip, pool)
	if err != nil {
		return err
	}
	switch {
	case a.Owner == RouterOwner:
		return fmt.Errorf("%w: %v is the node's own", ErrInUse, ip)
	case a.Reserved:
		return fmt.Errorf("%w: %v is kept until no object names it, for other nodes know it as that of %s", ErrInUse, ip, a.Owner)
	}
	if user, used := m.cfg.InUse(ip); used {
		return fmt.Errorf("%w: %v is used by %s; delete that first", ErrInUse, ip, user)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.given[ip] != a {
		return fmt.Errorf("%w: %v, any more", ErrNotFound, ip)
	}
	m.giveBack(ip)
	return nil
}

// FreeOf gives an address back if owner has it, and reports whether it did.
func (m *IPAM) FreeOf(ip netip.Addr, owner string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	a := m.given[ip]
	if a == nil || a.Owner != owner || owner == RouterOwner {
		return false
	}
	m.giveBack(ip)
	return true
}

// Free releases an address without checking who uses it. It is for the owner of an endpoint that
// was just deleted.
func (m *IPAM) Free(ip netip.Addr) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, _, err := m.find(ip); err != nil {
		return err
	}
	if m.given[ip] == nil {
		return fmt.Errorf("%w: %v", ErrNotFound, ip)
	}
	m.giveBack(ip)
	return nil
}

func (m *IPAM) lookup(ip netip.Addr, pool string) (*Allocation, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, _, err := m.findIn(ip, pool); err != nil {
		return nil, err
	}
	if a := m.given[ip]; a != nil {
		return a, nil
	}
	return nil, fmt.Errorf("%w: %v", ErrNotFound, ip)
}

// Lookup returns the owner of an address.
func (m *IPAM) Lookup(ip netip.Addr) (Allocation, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if a := m.given[ip]; a != nil {
		return *a, true
	}
	return Allocation{}, false
}

// StopExpiration confirms an allocation, which then stays until it is released. The UUID is that
// which AllocateNext returned.
func (m *IPAM) StopExpiration(ip netip.Addr, uuid string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	a := m.given[ip]
	switch {
	case a == nil:
		return fmt.Errorf("%w: %v, perhaps because it expired", ErrNotFound, ip)
	case a.UUID == "":
		return fmt.Errorf("%w: %v does not expire", ErrExpiration, ip)
	case a.UUID != uuid:
		return fmt.Errorf("%w: %v was allocated with another UUID than %q", ErrExpiration, ip, uuid)
	}
	a.UUID, a.Expires = "", time.Time{}
	delete(m.expiring, ip)
	return nil
}

// Run releases the addresses whose expiration was not stopped in time. It returns the cause when
// ctx ends.
func (m *IPAM) Run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		var after <-chan time.Time
		if next := m.expire(time.Now()); !next.IsZero() {
			timer.Reset(time.Until(next))
			after = timer.C
		}
		select {
		case <-after:
		case <-m.wake:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// expire releases what has expired and returns the time of the next expiration, zero if none.
func (m *IPAM) expire(now time.Time) (next time.Time) {
	var due []Allocation
	m.mu.Lock()
	for _, a := range m.expiring {
		switch {
		case !now.Before(a.Expires):
			due = append(due, *a)
		case next.IsZero() || a.Expires.Before(next):
			next = a.Expires
		}
	}
	m.mu.Unlock()
	for _, d := range due {
		user, used := m.cfg.InUse(d.IP)
		m.mu.Lock()
		// It may have been confirmed, or released and given out again, since it was seen.
		if a := m.expiring[d.IP]; a != nil && a.UUID == d.UUID {
			if used {
				a.UUID, a.Expires = "", time.Time{}
				delete(m.expiring, d.IP)
				m.cfg.Log.Warn("kept an unconfirmed address that is in use", "ip", d.IP, "owner", d.Owner, "user", user)
			} else {
				m.giveBack(d.IP)
				m.cfg.Log.Info("released an address that was not confirmed", "ip", d.IP, "owner", d.Owner)
			}
		}
		m.mu.Unlock()
	}
	return next
}

// Dump returns all allocations, IPv4 first, each family in the order of addresses.
func (m *IPAM) Dump() []Allocation {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := make([]Allocation, 0, len(m.given))
	for _, a := range m.given {
		all = append(all, *a)
	}
	slices.SortFunc(all, func(a, b Allocation) int { return a.IP.Compare(b.IP) })
	return all
}

// Usage is how full a CIDR is.
type Usage struct {
	Family   Families
	Pool     string
	CIDR     netip.Prefix // zero for single addresses
	Capacity int          // addresses that can be given out
	Used     int          // addresses given out
	// Drained: no address of it is given out any more.
	Drained bool
}

// Usage returns the state of each CIDR, IPv4 first.
func (m *IPAM) Usage() []Usage {
	m.mu.Lock()
	defer m.mu.Unlock()
	var u []Usage
	for i, ps := range m.pools {
		for _, p := range ps {
			u = append(u, Usage{Family: IPv4 << i, Pool: p.name, CIDR: p.cidr, Capacity: p.capacity, Used: p.count, Drained: p.drained})
		}
	}
	return u
}

// newUUID returns a random UUID (RFC 9562, version 4).
func newUUID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	b[6] = b[6]&0x0f | 0x40
	b[8] = b[8]&0x3f | 0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}
