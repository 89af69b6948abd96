package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/ipam"
	"github.com/hawser-net/hawser/internal/k8s/ippools"
)

// nodePools are the CIDRs of named pools that the operator assigns to this node (--ipam
// multi-pool): it says in the node's CiliumNode how many addresses of which pool are needed, takes
// what it is assigned, and hands back what is unused. It is safe for concurrent use.
//
// No address is lost or given twice over a crash: what is assigned is stored before an address of
// it is given, and that it is handed back is stored before the operator is told. An object that is
// older than the last one read is no news, unless the server itself confirms it: then it was put
// back.
//
// Its object does not take a CIDR from a node whose pods use it: such a CIDR gives no new
// addresses, and is written into the object again.
type nodePools struct {
	standard string         // the default pool
	ahead    map[string]int // addresses to have in advance, by pool
	families ipam.Families
	path     string
	// patience is how long a CIDR must have been superfluous before it is handed back: its pods may
	// be starting anew, and its addresses rest meanwhile.
	patience time.Duration
	log      *slog.Logger
	// refresh has the node's object written, if it is not as fill makes it.
	refresh func()
	// moved is told that the node's CIDRs have changed.
	moved func()
	// known says what there is of a pool; heard is false as long as not all are known.
	known func(name string) (p ippools.Pool, ok, heard bool)
	// live reads the node's object from the server itself.
	live func(context.Context) (*v2.CiliumNode, error)
	// report says that some CIDR is in use that is not assigned, or that none is.
	report func(error)

	mu    sync.Mutex
	doubt bool       // an object was told of that is older than the last one
	pool  *ipam.IPAM // nil until attach
	state poolState
	asked map[string]ipam.Count      // what is to stand in the object
	since time.Time                  // since when something else is needed; zero if it is not
	idle  map[netip.Prefix]time.Time // since when a CIDR is superfluous
}

// poolState is what outlives the agent.
type poolState struct {
	// UID and Generation are of the object that was read last.
	UID        string `json:"uid,omitempty"`
	Generation int64  `json:"generation,omitempty"`
	// Pools are the CIDRs that the node may use, by pool.
	Pools map[string][]assignedCIDR `json:"pools,omitempty"`
	// Releasing are CIDRs that are handed back: nobody uses them, and the object may still have
	// them.
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

// releasePatience is how long a CIDR is superfluous before it is handed back.
const releasePatience = 30 * time.Second

// askPatience is how long the object may say that other numbers are needed than are, if the node
// has enough: a write for each pod would be one for each agent to hear. It is half as long again at
// most.
const askPatience = 2 * time.Minute

func newNodePools(cfg Config, path string, log *slog.Logger) (*nodePools, error) {
	n := &nodePools{
		standard: cfg.DefaultPool, ahead: cfg.preAllocation(), path: path, patience: releasePatience, log: log,
		refresh: func() {}, moved: func() {}, report: func(error) {},
		live:  func(context.Context) (*v2.CiliumNode, error) { return nil, errors.New("there is no server yet") },
		known: func(string) (ippools.Pool, bool, bool) { return ippools.Pool{}, false, false },
		idle:  map[netip.Prefix]time.Time{},
	}
	if cfg.EnableIPv4 {
		n.families |= ipam.IPv4
	}
	if cfg.EnableIPv6 {
		n.families |= ipam.IPv6
	}
	data, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, fmt.Errorf("read the pools of before: %w", err)
	default:
		if err := json.Unmarshal(data, &n.state); err != nil {
			return nil, fmt.Errorf("%s is damaged: %w; delete it if no pod runs on this node", path, err)
		}
	}
	n.asked = n.wanted()
	return n, nil
}

// inherit makes CIDRs of another mode, of which there are pods, such of the default pool.
func (n *nodePools) inherit(r ranges) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.state.Pools) > 0 {
		return nil
	}
	next := n.state
	for _, text := range []string{r.V4, r.V6} {
		if p, err := netip.ParsePrefix(text); err == nil {
			next.Pools = map[string][]assignedCIDR{n.standard: append(next.Pools[n.standard], assignedCIDR{CIDR: p.Masked()})}
		}
	}
	return n.store(next)
}

// clear forgets all of before: nothing on this node uses it, and the server says what is assigned
// now.
func (n *nodePools) clear() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.state = poolState{Releasing: n.state.Releasing}
}

// missing says which family of the default pool the node has no CIDR of that nobody disputes; nil
// if it can begin.
func (n *nodePools) missing() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	var have ipam.Families
	for _, c := range n.state.Pools[n.standard] {
		if c.Disputed {
			continue
		}
		if c.CIDR.Addr().Is4() {
			have |= ipam.IPv4
		} else {
			have |= ipam.IPv6
		}
	}
	if lacks := n.families &^ have; lacks != 0 {
		return fmt.Errorf("a CIDR (%s) of pool %q", lacks, n.standard)
	}
	return nil
}

// attach has addresses be given of what is assigned.
func (n *nodePools) attach(pool *ipam.IPAM) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.pool = pool
	return n.assign()
}

// assign brings the addresses that are given to what is assigned. mu is held.
func (n *nodePools) assign() error {
	if n.pool == nil {
		return nil
	}
	want := map[string][]ipam.Block{}
	var outside, disputed, gone []string
	for name, cidrs := range n.state.Pools {
		spec, ok, heard := n.known(name)
		for _, c := range cidrs {
			b := ipam.Block{Prefix: c.CIDR, AllowFirst: c.AllowFirst, AllowLast: c.AllowLast, Drained: c.Disputed || c.Gone}
			if heard && (!ok || spec.Fault == nil && !spec.Covers(c.CIDR)) {
				b.Drained = true
				outside = append(outside, fmt.Sprintf("%s of pool %q", c.CIDR, name))
			}
			if c.Disputed {
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
		n.log.Error("some of what is assigned to this node cannot be used", "error", err)
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
	if len(outside) > 0 {
		slices.Sort(outside)
		n.log.Warn("this node has CIDRs that their pools do not have (any more); no new pod gets an address of them", "cidrs", outside)
	}
	n.report(err)
	return nil
}

// store puts what is to be known after a crash on disk, and takes it over. mu is held.
func (n *nodePools) store(next poolState) error {
	data, err := json.Marshal(next)
	if err == nil {
		err = writeState(n.path, data)
	}
	if err != nil {
		return fmt.Errorf("store the pools: %w", err)
	}
	n.state = next
	return nil
}

// hear is told of this node's object whenever it has changed.
func (n *nodePools) hear(o *v2.CiliumNode) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.older(o) {
		n.doubt = true
		return
	}
	n.doubt = false
	n.take(o, false)
}

// older says whether an object is one of before. mu is held.
func (n *nodePools) older(o *v2.CiliumNode) bool {
	return string(o.UID) == n.state.UID && o.Generation < n.state.Generation
}

// confirm looks whether an object that seemed to be old is what the server has. Then the server was
// put back to what it was before.
func (n *nodePools) confirm(ctx context.Context) {
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
		n.log.Warn("this node's CiliumNode was put back to an earlier state; what it has more than this node is handed back, and what pods use is asked for again",
			"generation", o.Generation, "before", n.state.Generation)
	}
	n.take(o, back)
}

// take takes over what an object says. If the server was put back it has CIDRs that this node may
// have handed back since; they may be another's. mu is held.
func (n *nodePools) take(o *v2.CiliumNode, back bool) {
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
				n.log.Warn("what is assigned to this node is no CIDR", "pool", a.Pool, "cidr", text)
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
		if i := slices.IndexFunc(n.state.Pools[n.standard], kept); i >= 0 && !slices.ContainsFunc(next.Pools[n.standard], kept) {
			next.Pools[n.standard] = append(next.Pools[n.standard], n.state.Pools[n.standard][i])
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
		return
	}
	if err := n.store(next); err != nil {
		n.log.Error("what is assigned to this node is not used", "error", err)
		n.report(err)
		return
	}
	n.log.Info("the operator has assigned pod CIDRs", "pools", text(next.Pools))
	n.settle()
	if back || n.gone() {
		n.refresh()
	}
}

// used returns the CIDRs of which addresses are given out, with their pools. mu is held.
func (n *nodePools) used() map[netip.Prefix]string {
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

// gone says whether a CIDR is in use that the object does not have. mu is held.
func (n *nodePools) gone() bool {
	for _, cidrs := range n.state.Pools {
		if slices.ContainsFunc(cidrs, func(c assignedCIDR) bool { return c.Gone }) {
			return true
		}
	}
	return false
}

// look is told that pools have changed.
func (n *nodePools) look() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.settle()
}

// settle takes over what is assigned, and says what is needed. mu is held.
func (n *nodePools) settle() {
	_ = n.assign()
	n.moved()
	if n.ask(n.wanted(), time.Now()) {
		n.refresh()
	}
}

// ask has the object say what is needed, at once if the node has less and has not asked for it,
// else in a while. It reports whether the object is to be written. mu is held.
func (n *nodePools) ask(needs map[string]ipam.Count, now time.Time) bool {
	if maps.Equal(needs, n.asked) {
		n.since = time.Time{}
		return false
	}
	if n.since.IsZero() {
		n.since = now.Add(rand.N(askPatience / 2)) // not all nodes at once
	}
	if !n.urgent(needs) && now.Sub(n.since) < askPatience {
		return false
	}
	n.asked, n.since = needs, time.Time{}
	return true
}

// urgent says whether more is needed than the node has and has asked for. mu is held.
func (n *nodePools) urgent(needs map[string]ipam.Count) bool {
	if n.pool == nil {
		return true
	}
	spare := spare(n.pool.Usage(), needs)
	for name, c := range needs {
		asked := n.asked[name]
		if c.IPv4 > asked.IPv4 && spare[poolPart{name, ipam.IPv4}] < 0 || c.IPv6 > asked.IPv6 && spare[poolPart{name, ipam.IPv6}] < 0 {
			return true
		}
	}
	return false
}

// poolPart is what there is of a pool in a family.
type poolPart struct {
	pool   string
	family ipam.Families
}

// spare returns how many addresses more the node has than it needs, less than none if it lacks
// some.
func spare(usage []ipam.Usage, needs map[string]ipam.Count) map[poolPart]int {
	out := map[poolPart]int{}
	for _, u := range usage {
		if !u.Drained {
			out[poolPart{u.Pool, u.Family}] += u.Capacity
		}
	}
	for name, c := range needs {
		out[poolPart{name, ipam.IPv4}] -= c.IPv4
		out[poolPart{name, ipam.IPv6}] -= c.IPv6
	}
	return out
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

// wanted returns how many addresses of each pool are needed: those in use, and those to have in
// advance. mu is held.
func (n *nodePools) wanted() map[string]ipam.Count {
	used := map[string]ipam.Count{}
	if n.pool != nil {
		used = n.pool.Demand()
	}
	for name := range n.ahead {
		if _, ok := used[name]; !ok {
			used[name] = ipam.Count{}
		}
	}
	out := map[string]ipam.Count{}
	for name, u := range used {
		spec, ok, _ := n.known(name)
		has := func(f ipam.Families, part ippools.Family) bool {
			return n.families&f != 0 && (!ok || spec.Fault != nil || len(part.Ranges) > 0)
		}
		var c ipam.Count
		if has(ipam.IPv4, spec.IPv4) {
			c.IPv4 = inAdvance(u.IPv4, n.ahead[name])
		}
		if has(ipam.IPv6, spec.IPv6) {
			c.IPv6 = inAdvance(u.IPv6, n.ahead[name])
		}
		if c != (ipam.Count{}) {
			out[name] = c
		}
	}
	return out
}

// inAdvance is how many addresses a node with so many in use asks for: the next multiple of ahead,
// and ahead more. So it does not ask anew for each pod.
func inAdvance(used, ahead int) int {
	if ahead <= 0 {
		return used
	}
	return (used+ahead-1)/ahead*ahead + ahead
}

// fill writes into the node's object what it needs and what its pods use, and takes out what it
// hands back. An object that is made is given all that the node has.
func (n *nodePools) fill(o *v2.CiliumNode, made bool) {
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
func (n *nodePools) without(all []v2.IPAMPoolAllocation) (left []v2.IPAMPoolAllocation) {
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

// tend says what is needed now, and hands back what has been superfluous for long enough.
func (n *nodePools) tend(now time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	needs := n.wanted()
	next := n.state
	for _, cidr := range n.superfluous(needs, now) {
		if !n.pool.Retire(cidr) {
			continue // a pod was faster
		}
		delete(n.idle, cidr)
		pools, ours := map[string][]assignedCIDR{}, false
		for name, cidrs := range next.Pools {
			left := slices.DeleteFunc(slices.Clone(cidrs), func(c assignedCIDR) bool { return c.CIDR == cidr })
			if ours = ours || len(left) < len(cidrs); len(left) > 0 {
				pools[name] = left
			}
		}
		if !ours {
			continue // it was taken from the node while it was in use
		}
		next.Pools, next.Releasing = pools, append(slices.Clone(next.Releasing), cidr)
		n.log.Info("hands back a pod CIDR that no pod has an address of", "cidr", cidr)
	}
	handed := len(next.Releasing) != len(n.state.Releasing)
	if handed {
		if err := n.store(next); err != nil {
			n.log.Error("pod CIDRs that nobody uses are kept", "error", err)
			_ = n.assign() // they are the node's as before
			handed = false
		} else {
			n.moved()
		}
	}
	if handed { // what is asked for must not bring it back
		n.asked, n.since = needs, time.Time{}
	}
	if n.ask(needs, now) || handed || n.gone() {
		n.refresh()
	}
}

// superfluous returns the CIDRs without which the node still has what it needs, and has had for
// long enough. mu is held.
func (n *nodePools) superfluous(needs map[string]ipam.Count, now time.Time) []netip.Prefix {
	usage := n.pool.Usage()
	spare := spare(usage, needs)
	var out []netip.Prefix
	idle := map[netip.Prefix]time.Time{}
	for _, u := range slices.Backward(usage) { // the first are searched first, so the last are used least
		p := poolPart{u.Pool, u.Family}
		if u.Used > 0 || !u.Drained && spare[p] < u.Capacity {
			continue
		}
		if !u.Drained {
			spare[p] -= u.Capacity
		}
		since, ok := n.idle[u.CIDR]
		if !ok {
			since = now
		}
		idle[u.CIDR] = since
		if now.Sub(since) >= n.patience {
			out = append(out, u.CIDR)
		}
	}
	n.idle = idle
	return out
}
