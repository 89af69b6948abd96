package addressing

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/atomicfile"
	"github.com/hawser-net/hawser/internal/ipam"
	"github.com/hawser-net/hawser/internal/k8s"
	"github.com/hawser-net/hawser/internal/k8s/ippools"
)

// Pools are the CIDRs of named pools that the operator assigns to this node (MultiPool): it
// requests addresses of pools in the node's CiliumNode, uses the CIDRs that are assigned, and
// releases unused ones.
//
// No address is lost or given twice over a crash: what is assigned is stored before an address of
// it is given, and that it is handed back is stored before the operator is asked. An object that is
// older than the last one read is ignored, unless the server itself confirms it: then it was put
// back.
//
// Its object does not take a CIDR from a node whose pods use it: such a CIDR gives no new
// addresses, and is written into the object again.
type Pools struct {
	cfg  Config
	path string
	// releaseAfter is how long a CIDR must have been superfluous before it is released: its pods
	// may be restarting, and its addresses are in quarantine meanwhile.
	releaseAfter time.Duration
	log          *slog.Logger
	catalog      catalog
	// askAs has the operator asked until ctx ends, live reads the node's object from the server.
	askAs  func(ctx context.Context, observed func(*v2.CiliumNode)) error
	live   func(context.Context) (*v2.CiliumNode, error)
	notify notifier

	mu sync.Mutex
	// doubt: an object was observed that is older than the last one, or what it assigns could not
	// be stored.
	doubt   bool
	unsaved error      // why what is assigned could not be stored, and is not used
	pool    *ipam.IPAM // nil until Attach
	state   poolState
	asked   map[string]ipam.Count      // what is to stand in the object
	since   time.Time                  // since when something else is needed; zero if it is not
	idle    map[netip.Prefix]time.Time // since when a CIDR is superfluous
	ownLeft []string                   // disputed CIDRs of which only the node itself has addresses
}

// catalog knows which pools there are.
type catalog interface {
	// Get returns a pool; observed is false as long as not all are known.
	Get(name string) (p ippools.Pool, ok, observed bool)
	All() []ippools.Pool
	Synced() <-chan struct{}
	Run(ctx context.Context) error
}

// poolState is what outlives the agent.
type poolState struct {
	// UID and Generation are of the object that was read last.
	UID        string `json:"uid,omitempty"`
	Generation int64  `json:"generation,omitempty"`
	// Pools are the CIDRs that the node may use, by pool.
	Pools map[string][]assignedCIDR `json:"pools,omitempty"`
	// Releasing are CIDRs being released: they are unused, but the object may still list them.
	Releasing []netip.Prefix `json:"releasing,omitempty"`
}

type assignedCIDR struct {
	CIDR       netip.Prefix `json:"cidr"`
	AllowFirst bool         `json:"allowFirst,omitempty"`
	AllowLast  bool         `json:"allowLast,omitempty"`
	// Disputed: another node had something of it first. Gone: it is in use, and not in the object.
	// Of neither new addresses are given.
	Disputed bool `json:"disputed,omitempty"`
	Gone     bool `json:"gone,omitempty"`
}

// releaseDelay is how long a CIDR is superfluous before it is handed back.
const releaseDelay = 30 * time.Second

// askDelay is how long the requested numbers in the object may be outdated, if the node has enough:
// every agent would observe a write for each pod. It is half as long again at most.
const askDelay = 2 * time.Minute

// NewPools returns the pools of a node as they were when its last agent ended.
func NewPools(cfg Config, client *k8s.Client) (*Pools, error) {
	n, err := newPools(cfg)
	if err != nil {
		return nil, err
	}
	n.catalog = ippools.New(client, n.look, n.log)
	n.live = func(ctx context.Context) (*v2.CiliumNode, error) { return cfg.ownNode(ctx, client) }
	n.askAs = func(ctx context.Context, observed func(*v2.CiliumNode)) error {
		return cfg.askOperator(ctx, client, observed, n.Fill)
	}
	return n, nil
}

// newPools returns pools that know no server.
func newPools(cfg Config) (*Pools, error) {
	n := &Pools{
		cfg: cfg, path: filepath.Join(cfg.Dir, "pools.json"), releaseAfter: releaseDelay, log: cfg.Log, catalog: noCatalog{},
		notify: newNotifier(), idle: map[netip.Prefix]time.Time{},
	}
	if err := atomicfile.ReadJSON(n.path, &n.state); err != nil {
		return nil, fmt.Errorf("read the pools of before: %w; delete the file if no pod runs on this node", err)
	}
	n.asked = n.wanted()
	return n, nil
}

// noCatalog is that of a node that has not observed any pool.
type noCatalog struct{}

func (noCatalog) Get(string) (ippools.Pool, bool, bool) { return ippools.Pool{}, false, false }
func (noCatalog) All() []ippools.Pool                   { return nil }
func (noCatalog) Synced() <-chan struct{}               { return nil }
func (noCatalog) Run(context.Context) error             { return nil }

// inherit makes CIDRs of another mode, of which there are pods, such of the default pool.
func (n *Pools) inherit(r Ranges) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.state.Pools) > 0 {
		return nil
	}
	next := n.state
	for _, text := range []string{r.V4, r.V6} {
		if p, err := netip.ParsePrefix(text); err == nil {
			next.Pools = map[string][]assignedCIDR{n.cfg.DefaultPool: append(next.Pools[n.cfg.DefaultPool], assignedCIDR{CIDR: p.Masked()})}
		}
	}
	return n.store(next)
}

// clear drops the former state: nothing on this node uses it, and the server has the present
// assignment.
func (n *Pools) clear() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.state = poolState{Releasing: n.state.Releasing}
}

// missing reports for which family of the default pool the node lacks an undisputed CIDR; nil if it
// can start.
func (n *Pools) missing() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	var have ipam.Families
	for _, c := range n.state.Pools[n.cfg.DefaultPool] {
		if c.Disputed {
			continue
		}
		if c.CIDR.Addr().Is4() {
			have |= ipam.IPv4
		} else {
			have |= ipam.IPv6
		}
	}
	if lacks := n.cfg.Families &^ have; lacks != 0 {
		return fmt.Errorf("a CIDR (%s) of pool %q", lacks, n.cfg.DefaultPool)
	}
	return nil
}

// Attach has addresses be given of what is assigned.
func (n *Pools) Attach(pool *ipam.IPAM) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.pool = pool
	return n.assign()
}

// assign updates the addresses of the pool to those that are assigned. mu is held.
func (n *Pools) assign() error {
	if n.pool == nil {
		return nil
	}
	n.ownLeft = n.leftToNode()
	want := map[string][]ipam.Block{}
	var outside, disputed, gone []string
	for name, cidrs := range n.state.Pools {
		spec, ok, observed := n.catalog.Get(name)
		for _, c := range cidrs {
			b := ipam.Block{Prefix: c.CIDR, AllowFirst: c.AllowFirst, AllowLast: c.AllowLast, Drained: c.Disputed || c.Gone}
			if observed && (!ok || spec.Fault == nil && !spec.Covers(c.CIDR)) {
				b.Drained = true
				outside = append(outside, fmt.Sprintf("%s of pool %q", c.CIDR, name))
			}
			if c.Disputed && !slices.Contains(n.ownLeft, c.CIDR.String()) {
				disputed = append(disputed, c.CIDR.String())
			}
			if c.Gone {
				gone = append(gone, c.CIDR.String())
			}
			want[name] = append(want[name], b)
		}
	}
	stays, err := n.pool.Assign(want)
	if err != nil {
		n.log.Error("some assignments to this node cannot be used", "error", err)
		err = fmt.Errorf("assigned pod CIDRs are not used: %w", err)
	}
	for _, p := range stays {
		gone = append(gone, p.String())
	}
	if len(gone) > 0 {
		slices.Sort(gone)
		err = errors.Join(err, fmt.Errorf("pods of this node use %s, which is not assigned to it any more: no new pod gets an address of it, and it is asked for again", strings.Join(gone, ", ")))
	}
	if len(disputed) > 0 {
		slices.Sort(disputed)
		err = errors.Join(err, fmt.Errorf("this node has %s, of which another node had something first: no new pod gets an address of it; delete the pods that have one", strings.Join(disputed, ", ")))
	}
	if len(n.ownLeft) > 0 {
		err = errors.Join(err, fmt.Errorf("this node has %s, of which another node had something first, and only this node's own addresses are left there: drain the node and restart its agent, which then takes others", strings.Join(n.ownLeft, ", ")))
	}
	if len(outside) > 0 {
		slices.Sort(outside)
		n.log.Warn("this node has CIDRs that their pools do not have (any more); no new pod gets an address of them", "cidrs", outside)
	}
	n.notify.report(errors.Join(err, n.unsaved))
	return nil
}

// leftToNode returns the disputed CIDRs of which nobody but the node itself has addresses: those of
// its router and its health endpoint, whose owners are no pods. mu is held.
func (n *Pools) leftToNode() (out []string) {
	var all []ipam.Allocation
	for _, cidrs := range n.state.Pools {
		for _, c := range cidrs {
			if !c.Disputed {
				continue
			}
			if all == nil {
				all = n.pool.Dump()
			}
			of := slices.DeleteFunc(slices.Clone(all), func(a ipam.Allocation) bool { return !c.CIDR.Contains(a.IP) })
			if len(of) > 0 && !slices.ContainsFunc(of, func(a ipam.Allocation) bool { return strings.Contains(a.Owner, "/") }) {
				out = append(out, c.CIDR.String())
			}
		}
	}
	slices.Sort(out)
	return out
}

// store puts what is to be known after a crash on disk, and takes it over. mu is held.
func (n *Pools) store(next poolState) error {
	data, err := json.Marshal(next)
	if err == nil {
		err = n.cfg.Save(n.path, data)
	}
	if err != nil {
		return fmt.Errorf("store the pools: %w", err)
	}
	n.state = next
	return nil
}

// Observe is called with this node's object whenever it has changed.
func (n *Pools) Observe(o *v2.CiliumNode) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.older(o) {
		n.doubt = true
		return
	}
	n.doubt = false
	n.take(o, false)
}

// older reports whether an object is an older version. mu is held.
func (n *Pools) older(o *v2.CiliumNode) bool {
	return string(o.UID) == n.state.UID && o.Generation < n.state.Generation
}

// confirm looks whether an object that seemed to be old is what the server has. Then the server was
// put back to what it was before. An object that could not be stored is read again, too.
func (n *Pools) confirm(ctx context.Context) {
	n.mu.Lock()
	doubt := n.doubt
	n.mu.Unlock()
	if !doubt {
		return
	}
	o, err := n.live(ctx)
	n.mu.Lock()
	defer n.mu.Unlock()
	if apierrors.IsNotFound(err) {
		n.doubt = false // it is made again
		return
	}
	if err != nil {
		n.log.Warn("this node's CiliumNode is older than it was, and whether the server has it so cannot be read yet", "error", err)
		return
	}
	n.doubt = false
	back := n.older(o)
	if back {
		n.log.Warn("this node's CiliumNode was restored to an earlier state; what it has more than this node is returned, and what pods use is requested again",
			"generation", o.Generation, "before", n.state.Generation)
	}
	n.take(o, back)
}

// take applies an object. If the server was restored from a backup, it contains CIDRs that this
// node may have released since; they may be another's. mu is held.
func (n *Pools) take(o *v2.CiliumNode, back bool) {
	had := map[netip.Prefix]bool{}
	for _, cidrs := range n.state.Pools {
		for _, c := range cidrs {
			had[c.CIDR] = true
		}
	}
	disputed := strings.Split(o.Annotations[ippools.DisputedAnnotation], ",")
	listed := map[netip.Prefix]bool{}
	next := poolState{UID: string(o.UID), Generation: o.Generation, Pools: map[string][]assignedCIDR{}}
	for _, a := range o.Spec.IPAM.Pools.Allocated {
		for _, text := range a.CIDRs {
			p, err := netip.ParsePrefix(text)
			if err != nil || p.Addr().Is4In6() {
				n.log.Warn("an assignment to this node is not a CIDR", "pool", a.Pool, "cidr", text)
				continue
			}
			p = p.Masked()
			listed[p] = true
			if slices.Contains(n.state.Releasing, p) || back && !had[p] {
				next.Releasing = append(next.Releasing, p)
				continue
			}
			next.Pools[a.Pool] = append(next.Pools[a.Pool], assignedCIDR{
				CIDR: p, AllowFirst: a.AllowFirstIP, AllowLast: a.AllowLastIP, Disputed: slices.Contains(disputed, p.String()),
			})
		}
	}
	// What another mode has given the node stays the node's, of the default pool, until the
	// operator has written it there.
	for _, text := range o.Spec.IPAM.PodCIDRs {
		p, err := netip.ParsePrefix(text)
		kept := func(c assignedCIDR) bool { return err == nil && c.CIDR == p.Masked() }
		if i := slices.IndexFunc(n.state.Pools[n.cfg.DefaultPool], kept); i >= 0 && !slices.ContainsFunc(next.Pools[n.cfg.DefaultPool], kept) {
			next.Pools[n.cfg.DefaultPool] = append(next.Pools[n.cfg.DefaultPool], n.state.Pools[n.cfg.DefaultPool][i])
		}
		if err == nil {
			listed[p.Masked()] = true
		}
	}
	used := n.used()
	for name, cidrs := range n.state.Pools {
		for _, c := range cidrs {
			if !listed[c.CIDR] && (n.pool == nil || used[c.CIDR] != "") {
				c.Gone = true
				next.Pools[name] = append(next.Pools[name], c)
			}
		}
	}
	same := slices.Equal(next.Releasing, n.state.Releasing) && maps.EqualFunc(next.Pools, n.state.Pools, slices.Equal[[]assignedCIDR])
	if same {
		n.state.UID, n.state.Generation = next.UID, next.Generation
		if n.unsaved != nil {
			n.unsaved = nil
			_ = n.assign()
		}
		return
	}
	if err := n.store(next); err != nil {
		if n.unsaved == nil || n.unsaved.Error() != err.Error() {
			n.log.Error("the assignment to this node is not used", "error", err)
		}
		n.doubt, n.unsaved = true, err // the object is read again: it may not change before there is room
		n.notify.report(err)
		return
	}
	n.unsaved = nil
	n.log.Info("the operator has assigned pod CIDRs", "pools", text(next.Pools))
	n.applyAssigned()
	if back || n.gone() {
		n.notify.refresh()
	}
}

// used returns the CIDRs of which addresses are given out, with their pools. mu is held.
func (n *Pools) used() map[netip.Prefix]string {
	out := map[netip.Prefix]string{}
	if n.pool != nil {
		for _, u := range n.pool.Usage() {
			if u.Used > 0 {
				out[u.CIDR] = u.Pool
			}
		}
	}
	return out
}

// gone reports whether a CIDR is in use that the object does not have. mu is held.
func (n *Pools) gone() bool {
	for _, cidrs := range n.state.Pools {
		if slices.ContainsFunc(cidrs, func(c assignedCIDR) bool { return c.Gone }) {
			return true
		}
	}
	return false
}

// look is called when pools have changed.
func (n *Pools) look() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.applyAssigned()
}

// applyAssigned applies the assignment, and requests what is needed. mu is held.
func (n *Pools) applyAssigned() {
	_ = n.assign()
	n.notify.moved()
	if n.ask(n.wanted(), time.Now()) {
		n.notify.refresh()
	}
}

// Fill writes into the node's object what it needs and what its pods use, and takes out what it
// hands back. An object that is made is given all that the node has.
func (n *Pools) Fill(o *v2.CiliumNode, made bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	pools := &o.Spec.IPAM.Pools
	var requested []v2.IPAMPoolRequest
	for _, name := range slices.Sorted(maps.Keys(n.asked)) {
		c := n.asked[name]
		requested = append(requested, v2.IPAMPoolRequest{Pool: name, Needed: v2.IPAMPoolDemand{IPv4Addrs: c.IPv4, IPv6Addrs: c.IPv6}})
	}
	pools.Requested = requested
	if made {
		for _, name := range slices.Sorted(maps.Keys(n.state.Pools)) {
			for _, c := range n.state.Pools[name] {
				addTo(pools, name, c)
			}
		}
		return
	}
	listed := map[netip.Prefix]bool{}
	note := func(text string) {
		if p, err := netip.ParsePrefix(text); err == nil {
			listed[p.Masked()] = true
		}
	}
	for _, text := range o.Spec.IPAM.PodCIDRs {
		note(text)
	}
	if len(n.state.Releasing) > 0 {
		pools.Allocated = n.without(pools.Allocated)
	}
	for _, a := range pools.Allocated {
		for _, text := range a.CIDRs {
			note(text)
		}
	}
	used := n.used()
	for _, p := range slices.SortedFunc(maps.Keys(used), func(a, b netip.Prefix) int { return strings.Compare(a.String(), b.String()) }) {
		if !listed[p] {
			addTo(pools, used[p], assignedCIDR{CIDR: p})
		}
	}
}

// without returns what an object has less what is handed back. mu is held.
func (n *Pools) without(all []v2.IPAMPoolAllocation) (left []v2.IPAMPoolAllocation) {
	for _, a := range all {
		a.CIDRs = slices.DeleteFunc(slices.Clone(a.CIDRs), func(text string) bool {
			p, err := netip.ParsePrefix(text)
			return err == nil && slices.Contains(n.state.Releasing, p.Masked())
		})
		if len(a.CIDRs) > 0 {
			left = append(left, a)
		}
	}
	return left
}

// addTo adds a CIDR to what an object has.
func addTo(pools *v2.IPAMPools, name string, c assignedCIDR) {
	i := slices.IndexFunc(pools.Allocated, func(a v2.IPAMPoolAllocation) bool { return a.Pool == name })
	if i < 0 {
		i = len(pools.Allocated)
		pools.Allocated = append(pools.Allocated, v2.IPAMPoolAllocation{Pool: name, AllowFirstIP: c.AllowFirst, AllowLastIP: c.AllowLast})
	}
	pools.Allocated[i].CIDRs = append(pools.Allocated[i].CIDRs, c.CIDR.String())
}

func text(pools map[string][]assignedCIDR) string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(pools)) {
		for _, c := range pools[name] {
			out = append(out, name+" "+c.CIDR.String())
		}
	}
	return strings.Join(out, ", ")
}
