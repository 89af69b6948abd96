package addressing

import (
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"github.com/hawser-net/hawser/internal/ipam"
	"github.com/hawser-net/hawser/internal/k8s/ippools"
)

// ask writes the needed numbers to the object, at once if the node has less and has not requested
// them, else after a delay. It reports whether the object must be written. mu is held.
func (n *Pools) ask(needs map[string]ipam.Count, now time.Time) bool {
	if maps.Equal(needs, n.asked) {
		n.since = time.Time{}
		return false
	}
	if n.since.IsZero() {
		n.since = now.Add(rand.N(askDelay / 2)) // not all nodes at once
	}
	if !n.urgent(needs) && now.Sub(n.since) < askDelay {
		return false
	}
	n.asked, n.since = needs, time.Time{}
	return true
}

// urgent reports whether more is needed than the node has and has asked for. mu is held.
func (n *Pools) urgent(needs map[string]ipam.Count) bool {
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

// wanted returns how many addresses of each pool are needed: those in use, and those to have in
// advance. mu is held.
func (n *Pools) wanted() map[string]ipam.Count {
	used := map[string]ipam.Count{}
	if n.pool != nil {
		used = n.pool.Demand()
	}
	for name := range n.cfg.Ahead {
		if _, ok := used[name]; !ok {
			used[name] = ipam.Count{}
		}
	}
	out := map[string]ipam.Count{}
	for name, u := range used {
		spec, ok, _ := n.catalog.Get(name)
		has := func(f ipam.Families, part ippools.Family) bool {
			return n.cfg.Families&f != 0 && (!ok || spec.Fault != nil || len(part.Ranges) > 0)
		}
		var c ipam.Count
		if has(ipam.IPv4, spec.IPv4) {
			c.IPv4 = inAdvance(u.IPv4, n.cfg.Ahead[name])
		}
		if has(ipam.IPv6, spec.IPv6) {
			c.IPv6 = inAdvance(u.IPv6, n.cfg.Ahead[name])
		}
		if c != (ipam.Count{}) {
			out[name] = c
		}
	}
	return out
}

// inAdvance is how many addresses a node with so many in use asks for: the next multiple of ahead,
// and ahead more. So it does not request addresses for each pod.
func inAdvance(used, ahead int) int {
	if ahead <= 0 {
		return used
	}
	return (used+ahead-1)/ahead*ahead + ahead
}

// tend asks for what is needed now, and hands back what has been superfluous for long enough.
func (n *Pools) tend(now time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	needs := n.wanted()
	next := n.state
	for _, cidr := range n.superfluous(needs, now) {
		if !n.pool.RemoveUnused(cidr) {
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
		n.log.Info("returning an unused pod CIDR", "cidr", cidr)
	}
	handed := len(next.Releasing) != len(n.state.Releasing)
	if handed {
		if err := n.store(next); err != nil {
			n.log.Error("unused pod CIDRs are kept", "error", err)
			_ = n.assign() // they are the node's as before
			handed = false
		} else {
			n.notify.moved()
		}
	}
	if handed { // what is asked for must not bring it back
		n.asked, n.since = needs, time.Time{}
	}
	if n.ask(needs, now) || handed || n.gone() {
		n.notify.refresh()
	}
	if !slices.Equal(n.ownLeft, n.leftToNode()) {
		_ = n.assign() // what the user is to do is another thing now
	}
}

// superfluous returns the CIDRs without which the node still has what it needs, and has had for
// long enough. mu is held.
func (n *Pools) superfluous(needs map[string]ipam.Count, now time.Time) []netip.Prefix {
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
		if now.Sub(since) >= n.releaseAfter {
			out = append(out, u.CIDR)
		}
	}
	n.idle = idle
	return out
}
