package nodemanager

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	v2 "github.com/hawser-net/hawser/api/v2"
)

// held is an address or prefix of the node, with its state in release-ips.
type held struct {
	unit  netip.Prefix
	iface *Interface
	// marked counts its addresses that are marked or ready, ready those that are ready.
	marked, ready int
	used, refused bool
	// outdated is set if the description may show what the node has no more.
	outdated bool
}

// leaving reports whether the agent has promised not to use it.
func (h *held) leaving() bool { return h.ready == size(h.unit) && !h.used && !h.refused }

// Decide reports what becomes of a node. It changes nothing that v refers to. The same view gives
// the same decision.
func Decide(v *View) Decision {
	d := Decision{Pool: map[netip.Addr]string{}, Releases: map[netip.Addr]v2.IPReleaseStatus{}, Excess: map[netip.Prefix]time.Time{}}
	units, assigned := v.units()
	v.pool(&d, units)
	d.Used = v.usedOf(d.Pool)
	d.Available = len(d.Pool)
	v.release(&d, units, assigned)
	d.Needed = neededAddresses(v, d.Available, d.Used)
	v.choose(&d, units)
	v.ipv6(&d)
	v.blame(&d, assigned)
	v.blameIPv6(&d)
	return d
}

// units lists what pods may get, in the order in which it is released, and all addresses that the
// cloud has assigned to the instance.
func (v *View) units() (out []*held, assigned map[netip.Addr]bool) {
	assigned = map[netip.Addr]bool{}
	for k := range v.Attached {
		i := &v.Attached[k]
		if i.Primary.IsValid() {
			assigned[i.Primary] = true
		}
		for _, u := range i.Held {
			addrs(u, func(a netip.Addr) { assigned[a] = true })
			if v.usable(i) {
				out = append(out, v.held(u, i))
			}
		}
	}
	// The last interface empties first, and what is marked already before what is not.
	slices.SortFunc(out, func(a, b *held) int {
		return cmp.Or(cmp.Compare(min(b.marked, 1), min(a.marked, 1)), cmp.Compare(b.iface.Index, a.iface.Index), b.unit.Compare(a.unit))
	})
	return out, assigned
}

func (v *View) held(u netip.Prefix, i *Interface) *held {
	h := &held{unit: u, iface: i}
	addrs(u, func(a netip.Addr) {
		if _, ok := v.Used[a]; ok {
			h.used = true
		}
		switch v.Releases[a] {
		case v2.IPMarkedForRelease:
			h.marked++
		case v2.IPReadyForRelease:
			h.marked++
			h.ready++
		case v2.IPDoNotRelease:
			h.refused = true
		}
	})
	h.outdated = !h.leaving() && v.outdated(u)
	return h
}

// pool decides what pods may get: everything but what leaves, or has left as far as the agent
// knows, or may have left before this operator led.
func (v *View) pool(d *Decision, units []*held) {
	for _, h := range units {
		if h.leaving() || h.outdated {
			continue
		}
		addrs(h.unit, func(a netip.Addr) {
			if v.Releases[a] != v2.IPReleased {
				d.Pool[a] = h.iface.ID
			}
		})
	}
	if !v.UsePrimary {
		return
	}
	for k := range v.Attached {
		// The first interface's primary address is the node's own.
		i := &v.Attached[k]
		if i.Index > 0 && i.Primary.IsValid() && v.usable(i) && v.Releases[i.Primary] != v2.IPReleased {
			d.Pool[i.Primary] = i.ID
		}
	}
}

func (v *View) usedOf(pool map[netip.Addr]string) (n int) {
	for a := range v.Used {
		if _, ok := pool[a]; ok {
			n++
		}
	}
	return n
}

// release takes the handshake one step on: the operator marks what has been superfluous for long
// enough, the agent answers for each address, and what it is ready to release goes as a whole.
func (v *View) release(d *Decision, units []*held, assigned map[netip.Addr]bool) {
	for a, s := range v.Releases {
		// The agent removes what it has read as released.
		if s == v2.IPReleased || s == v2.IPReadyForRelease && !assigned[a] {
			d.Releases[a] = v2.IPReleased
		}
	}
	excess := 0
	if v.Release {
		excess = excessAddresses(v, d.Available, d.Used+v.Pending)
	}
	for _, h := range units {
		n := size(h.unit)
		switch {
		case h.leaving():
			addrs(h.unit, func(a netip.Addr) { d.Releases[a] = v2.IPReadyForRelease })
			continue
		case h.outdated || h.used || n > excess || v.hasReleased(h.unit):
			continue // the marks, if there are any, go: it is needed again
		}
		excess -= n
		since, ok := v.Excess[h.unit]
		if h.refused || !ok && h.marked == 0 {
			since = v.Now // what was refused is asked for again after the delay
		}
		d.Excess[h.unit] = since
		if left := since.Add(v.Delay).Sub(v.Now); left > 0 && (h.refused || h.marked == 0) {
			d.Again = max(time.Millisecond, minPositive(d.Again, left))
			continue
		}
		addrs(h.unit, func(a netip.Addr) {
			if d.Releases[a] = v2.IPMarkedForRelease; v.Releases[a] == v2.IPReadyForRelease {
				d.Releases[a] = v2.IPReadyForRelease
			}
		})
	}
}

// hasReleased reports whether the agent has yet to read of an address that it was released.
func (v *View) hasReleased(unit netip.Prefix) (yes bool) {
	addrs(unit, func(a netip.Addr) { yes = yes || v.Releases[a] == v2.IPReleased })
	return yes
}

func minPositive(a, b time.Duration) time.Duration {
	if a == 0 {
		return b
	}
	return min(a, b)
}

// choose finds the next call.
func (v *View) choose(d *Decision, units []*held) {
	// Pods that wait and for whom there is no address count beyond the watermarks.
	want := max(d.Needed, v.Pending-(d.Available-d.Used))
	ask := max(want, 0)
	if ask > 0 {
		ask += v.MaxAboveWatermark
	}
	if v.MaxAllocate > 0 {
		ask = max(min(ask, v.MaxAllocate-d.Available), 0)
	}
	switch {
	case v.finish(d, ask > 0):
	case v.unassign(d, units):
	case ask > 0:
		v.grow(d, ask)
	case want > 0:
		d.Fault = fmt.Sprintf("%d pods wait for addresses and max-allocate is %d: raise spec.ipam.max-allocate of the node", v.Pending, v.MaxAllocate)
	}
}

// finish goes on with an interface that was left half made.
func (v *View) finish(d *Decision, wanted bool) bool {
	if len(v.Loose) > 0 {
		i := v.Loose[0]
		d.Step = Step{Call: Delete, Interface: i}
		if index, room := v.freeIndex(); wanted && room && slices.Contains(v.Choice, i.Subnet) {
			d.Step = Step{Call: Attach, Interface: i, Index: index}
		}
		return true
	}
	for _, i := range v.Attached {
		if i.Managed && i.DeleteOnTermination == v.KeepOnTermination {
			i.DeleteOnTermination = !v.KeepOnTermination
			d.Step = Step{Call: Modify, Interface: i}
			return true
		}
	}
	return false
}

// unassign takes away what the agent is ready to release, when the pool does not show it any more.
func (v *View) unassign(d *Decision, units []*held) bool {
	for _, h := range units {
		if !h.leaving() || v.shown(h.unit) {
			continue
		}
		if d.Step.Call == Nothing {
			d.Step = Step{Call: Unassign, Interface: *h.iface}
		}
		if d.Step.Interface.ID == h.iface.ID {
			d.Step.Units = append(d.Step.Units, h.unit)
		}
	}
	return d.Step.Call != Nothing
}

func (v *View) shown(unit netip.Prefix) (yes bool) {
	addrs(unit, func(a netip.Addr) { yes = yes || v.Pool[a] })
	return yes
}

// freeIndex returns the first place for an interface.
func (v *View) freeIndex() (int, bool) {
	if len(v.Attached) >= v.Limits.Interfaces {
		return 0, false
	}
	taken := map[int]bool{}
	for _, i := range v.Attached {
		taken[i.Index] = true
	}
	index := max(v.First, 1)
	for taken[index] {
		index++
	}
	return index, true
}

// grow chooses where ask more addresses come from: an interface that has room, else a new one, as
// prefixes if that can be, else one by one.
func (v *View) grow(d *Decision, ask int) {
	prefixes := v.Prefixes && v.Limits.Prefixes
	if v.MaxAllocate > 0 {
		prefixes = prefixes && v.MaxAllocate-d.Available >= prefixSize
	}
	if prefixes && (v.extend(d, ask, true) || v.add(d, ask, true)) {
		return
	}
	if v.extend(d, ask, false) || v.add(d, ask, false) {
		return
	}
	d.Fault = v.whyNot(d)
	// A node that is full is no fault as long as no pod waits.
	if d.AtCapacity && d.Available > d.Used && v.Pending <= d.Available-d.Used {
		d.Fault, d.Stale = "", false
	}
}

// countOf returns how many units give ask addresses, at most room of them, out of free addresses.
func (v *View) countOf(d *Decision, ask, room, free int, prefixes bool) int {
	if !prefixes {
		return min(ask, room, free)
	}
	n := min((ask+prefixSize-1)/prefixSize, room, free/prefixSize)
	if v.MaxAllocate > 0 {
		n = min(n, (v.MaxAllocate-d.Available)/prefixSize)
	}
	return n
}

func (s *Step) count(n int, prefixes bool) {
	if prefixes {
		s.Prefixes = n
	} else {
		s.Addresses = n
	}
}

// extend assigns to an interface that is there.
func (v *View) extend(d *Decision, ask int, prefixes bool) bool {
	sorted := slices.SortedFunc(slices.Values(v.Attached), func(a, b Interface) int { return cmp.Compare(a.Index, b.Index) })
	for k := range sorted {
		i := &sorted[k]
		s := v.Subnets[i.Subnet]
		if !v.usable(i) || prefixes && s.NoPrefixes {
			continue
		}
		if n := v.countOf(d, ask, v.room(i), s.Free, prefixes); n > 0 {
			d.Step = Step{Call: Assign, Interface: *i}
			d.Step.count(n, prefixes)
			return true
		}
	}
	return false
}

// add makes an interface.
func (v *View) add(d *Decision, ask int, prefixes bool) bool {
	index, room := v.freeIndex()
	if !room || len(v.Groups) == 0 {
		return false
	}
	for _, s := range v.sortedSubnets() {
		if prefixes && s.NoPrefixes {
			continue
		}
		// The primary address comes out of the subnet, too.
		if n := v.countOf(d, ask, v.Limits.Addresses-1, s.Free-1, prefixes); n > 0 {
			d.Step = Step{Call: Create, Subnet: s.ID, Groups: v.Groups, Index: index}
			d.Step.count(n, prefixes)
			return true
		}
	}
	return false
}

// whyNot reports why no address can be had, and what to do.
func (v *View) whyNot(d *Decision) string {
	if v.Limits.Interfaces == 0 {
		return fmt.Sprintf("instance type %q is not known", v.InstanceType)
	}
	var dry []string
	room := false // on an interface that is there
	for k := range v.Attached {
		i := &v.Attached[k]
		if v.usable(i) && v.room(i) > 0 {
			room = true
			dry = append(dry, v.subnetText(i.Subnet))
		}
	}
	_, place := v.freeIndex()
	switch {
	case v.Only != "" && !slices.ContainsFunc(v.Attached, func(i Interface) bool { return i.Name == v.Only }):
		return fmt.Sprintf("the instance has no interface %q: correct the interface's name in the spec of the node", v.Only)
	case !place && !room && v.InstanceType == "":
		d.AtCapacity = true
		return fmt.Sprintf("the %d interfaces of the instance hold no more than %d addresses each: fewer pods per node, or another interface", v.Limits.Interfaces, v.Limits.Addresses)
	case !place && !room:
		d.AtCapacity = true
		return fmt.Sprintf("instance type %s holds no more than %d interfaces with %d addresses each: use a larger type, prefix delegation, or fewer pods per node",
			v.InstanceType, v.Limits.Interfaces, v.Limits.Addresses)
	}
	d.Stale = true
	switch {
	case place && len(v.Choice) == 0:
		return fmt.Sprintf("no subnet for a new interface: %s", v.Chosen)
	case place && len(v.Groups) == 0:
		return "no security group for a new interface: none of its VPC has the tags in the node's spec (security-group-tags)"
	}
	if place {
		for _, id := range v.Choice {
			dry = append(dry, v.subnetText(id))
		}
	}
	slices.Sort(dry)
	return fmt.Sprintf("no free address in %s: add a subnet that the node may use, or release addresses there", strings.Join(slices.Compact(dry), ", "))
}

// add adds to the text for people.
func (d *Decision) add(fault string) {
	d.Fault = strings.Join(slices.DeleteFunc([]string{d.Fault, fault}, func(s string) bool { return s == "" }), "; ")
}

func (v *View) subnetText(id string) string {
	if s, ok := v.Subnets[id]; ok && s.CIDR != "" {
		return fmt.Sprintf("subnet %s (%s)", id, s.CIDR)
	}
	return "subnet " + id
}

// blame returns addresses that pods use and the cloud does not route here.
func (v *View) blame(d *Decision, assigned map[netip.Addr]bool) {
	if len(v.Attached) == 0 {
		return
	}
	for _, a := range slices.SortedFunc(maps.Keys(v.Used), netip.Addr.Compare) {
		if !assigned[a] {
			d.add(fmt.Sprintf("address %s of %s is not assigned to the instance any more: assign it again or delete the pod", a, v.Used[a]))
			return
		}
	}
}
