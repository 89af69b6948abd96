package nodemanager

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	v2 "github.com/hawser-net/hawser/api/v2"
)

// world is a node, its agent, its pods and a cloud of a few subnets, as naive as can be: sets of
// addresses, no units, no inventory.
type world struct {
	r     *rand.Rand
	v     View
	cidrs map[string]netip.Prefix // of subnets
	taken map[netip.Addr]bool     // in the cloud, by anybody
	pods  map[netip.Addr]bool     // addresses that pods really use
	made  int
	log   []string
}

func newWorld(r *rand.Rand) *world {
	w := &world{r: r, cidrs: map[string]netip.Prefix{}, taken: map[netip.Addr]bool{}, pods: map[netip.Addr]bool{}}
	w.v = View{
		InstanceType: "t", PreAllocate: r.IntN(9), MinAllocate: r.IntN(2) * r.IntN(20), MaxAboveWatermark: r.IntN(2) * r.IntN(6),
		First: r.IntN(2), UsePrimary: r.IntN(4) == 0, Prefixes: r.IntN(2) == 0, Release: r.IntN(3) > 0, Delay: time.Duration(r.IntN(4)) * time.Second,
		Limits:  Limits{Interfaces: 1 + r.IntN(4), Addresses: 2 + r.IntN(8), Prefixes: r.IntN(3) > 0},
		Subnets: map[string]Subnet{}, Groups: []string{"sg"}, Now: time.Unix(1000, 0),
		Used: map[netip.Addr]string{}, Pool: map[netip.Addr]bool{}, Releases: map[netip.Addr]v2.IPReleaseStatus{},
	}
	if r.IntN(3) == 0 {
		w.v.MaxAllocate = w.v.MinAllocate + r.IntN(30)
	}
	for i := range 1 + r.IntN(3) {
		id := fmt.Sprint("subnet-", i)
		w.cidrs[id] = netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, byte(i), 0}), 24+r.IntN(5))
		w.v.Subnets[id] = Subnet{ID: id}
		w.v.Choice = append(w.v.Choice, id)
	}
	slices.Sort(w.v.Choice)
	w.startIPv6()
	w.create("subnet-0", 0, 0)
	w.v.Loose[0].Attachment = "a"
	w.v.Attached, w.v.Loose = w.v.Loose, nil
	return w
}

// one returns a free address of a subnet.
func (w *world) one(subnet string) netip.Prefix {
	var free []netip.Addr
	addrs(w.cidrs[subnet], func(a netip.Addr) {
		if !w.taken[a] {
			free = append(free, a)
		}
	})
	if len(free) == 0 {
		return netip.Prefix{}
	}
	return netip.PrefixFrom(free[w.r.IntN(len(free))], 32)
}

// sixteen returns a free prefix of a subnet.
func (w *world) sixteen(subnet string) netip.Prefix {
	c := w.cidrs[subnet]
	for a := c.Addr(); c.Contains(a); {
		p, ok := netip.PrefixFrom(a, prefixBits), true
		addrs(p, func(x netip.Addr) { ok = ok && !w.taken[x]; a = x.Next() })
		if ok {
			return p
		}
	}
	return netip.Prefix{}
}

func (w *world) take(p netip.Prefix) { addrs(p, func(a netip.Addr) { w.taken[a] = true }) }

func (w *world) assign(i *Interface, addresses, prefixes int) {
	for range prefixes {
		p := w.sixteen(i.Subnet)
		if !p.IsValid() { // scattered: the manager notes it
			s := w.v.Subnets[i.Subnet]
			s.NoPrefixes = true
			w.v.Subnets[i.Subnet] = s
			return
		}
		w.take(p)
		i.Held = append(i.Held, p)
	}
	for range addresses {
		p := w.one(i.Subnet)
		if !p.IsValid() {
			return
		}
		w.take(p)
		i.Held = append(i.Held, p)
	}
}

func (w *world) create(subnet string, addresses, prefixes int) {
	p := w.one(subnet)
	if !p.IsValid() {
		return
	}
	w.take(p)
	i := Interface{ID: fmt.Sprint("eni-", w.made), Subnet: subnet, Primary: p.Addr(), Managed: w.made > 0, DeleteOnTermination: w.made == 0}
	if w.made > 0 && w.r.IntN(8) == 0 {
		i.Primary = netip.Addr{} // it has one that is never reported
	}
	w.made++
	w.assign(&i, addresses, prefixes)
	w.v.Loose = append(w.v.Loose, i)
}

// look refreshes what the cloud says of its subnets.
func (w *world) look() {
	for id, s := range w.v.Subnets {
		s.Free = 0
		addrs(w.cidrs[id], func(a netip.Addr) {
			if !w.taken[a] {
				s.Free++
			}
		})
		w.v.Subnets[id] = s
	}
}

// step decides, writes and makes the call. It reports what is wrong.
func (w *world) step() (d Decision, fault string) {
	w.look()
	d = Decide(&w.v)
	w.v.Excess = d.Excess
	if !maps.Equal(keys(d.Pool), w.v.Pool) || !maps.Equal(d.Releases, w.v.Releases) {
		for a := range w.pods {
			if _, ok := d.Pool[a]; !ok {
				return d, fmt.Sprintf("%s, which a pod uses, leaves the pool", a)
			}
		}
		w.v.Pool, w.v.Releases = keys(d.Pool), maps.Clone(d.Releases)
		w.log = append(w.log, fmt.Sprint("write ", len(d.Pool), d.Releases))
		if w.r.IntN(4) == 0 {
			return d, "" // ended between writing and calling
		}
		d = Decide(&w.v)
	}
	w.log = append(w.log, fmt.Sprintf("%s %s addresses %d prefixes %d units %v", d.Step.Call, d.Step.Interface.ID, d.Step.Addresses, d.Step.Prefixes, d.Step.Units))
	at := func() *Interface {
		return &w.v.Attached[slices.IndexFunc(w.v.Attached, func(i Interface) bool { return i.ID == d.Step.Interface.ID })]
	}
	switch d.Step.Call {
	case Assign:
		w.assign(at(), d.Step.Addresses, d.Step.Prefixes)
	case Create:
		w.create(d.Step.Subnet, d.Step.Addresses, d.Step.Prefixes)
	case Attach:
		i := w.v.Loose[0]
		i.Attachment, i.Index = "a", d.Step.Index
		w.v.Attached, w.v.Loose = append(w.v.Attached, i), w.v.Loose[1:]
	case AssignIPv6:
		return d, w.assignIPv6(at())
	case Modify:
		at().DeleteOnTermination = d.Step.Interface.DeleteOnTermination
	case Delete:
		delete(w.taken, w.v.Loose[0].Primary)
		for _, u := range w.v.Loose[0].Held {
			addrs(u, func(a netip.Addr) { delete(w.taken, a) })
		}
		w.v.Loose = w.v.Loose[1:]
	case Unassign:
		for _, u := range d.Step.Units {
			i := at()
			k := slices.Index(i.Held, u)
			if k < 0 {
				return d, fmt.Sprintf("%s is unassigned and is not there", u)
			}
			i.Held = slices.Delete(i.Held, k, k+1)
			addrs(u, func(a netip.Addr) {
				delete(w.taken, a)
				if w.pods[a] {
					fault = fmt.Sprintf("%s was unassigned while a pod used it", a)
				}
			})
		}
	}
	return d, fault
}

func keys(m map[netip.Addr]string) map[netip.Addr]bool {
	out := map[netip.Addr]bool{}
	for a := range m {
		out[a] = true
	}
	return out
}

// agent does something that agents do: pods come and go, and answers to what is marked.
func (w *world) agent(quiet bool) {
	// What pods use is reported a while later, or at once.
	if quiet || w.r.IntN(2) == 0 {
		w.v.Used = map[netip.Addr]string{}
		for a := range w.pods {
			w.v.Used[a] = "pod"
		}
	}
	for a, s := range w.v.Releases {
		switch {
		case s == v2.IPReleased:
			if !w.v.Pool[a] {
				delete(w.v.Releases, a)
			}
		case s != v2.IPMarkedForRelease || !quiet && w.r.IntN(2) == 0:
		case w.pods[a] || !quiet && w.r.IntN(5) == 0:
			w.v.Releases[a] = v2.IPDoNotRelease
		default:
			w.v.Releases[a] = v2.IPReadyForRelease
		}
	}
	if quiet {
		return
	}
	switch w.r.IntN(4) {
	case 0, 1:
		for range w.r.IntN(6) {
			for a := range w.v.Pool {
				if _, asked := w.v.Releases[a]; !asked && !w.pods[a] {
					w.pods[a] = true
					break
				}
			}
		}
	case 2:
		part := w.r.IntN(4) // 0 is all
		for a := range w.pods {
			if part == 0 || w.r.IntN(3) == 0 {
				delete(w.pods, a)
			}
		}
	case 3: // another user of the subnet
		if p := w.one(w.v.Choice[0]); p.IsValid() && w.r.IntN(3) == 0 {
			w.take(p)
		}
	}
}

// check compares what is there with the limits, counting by hand.
func (w *world) check() string {
	if len(w.v.Attached) > w.v.Limits.Interfaces {
		return fmt.Sprintf("%d interfaces of %d", len(w.v.Attached), w.v.Limits.Interfaces)
	}
	seen, index := map[netip.Addr]string{}, map[int]bool{}
	for _, i := range w.v.Attached {
		if index[i.Index] {
			return fmt.Sprint("two interfaces at ", i.Index)
		}
		index[i.Index] = true
		if len(i.Held)+1 > w.v.Limits.Addresses {
			return fmt.Sprintf("%s holds %d addresses of %d", i.ID, len(i.Held)+1, w.v.Limits.Addresses)
		}
		for _, u := range i.Held {
			addrs(u, func(a netip.Addr) { seen[a] = i.ID })
		}
		if w.v.UsePrimary && i.Primary.IsValid() {
			seen[i.Primary] = i.ID
		}
	}
	for a := range w.v.Pool {
		if seen[a] == "" {
			return fmt.Sprintf("%s is in the pool and not assigned", a)
		}
	}
	if m := w.v.MaxAllocate; m > 0 && len(w.v.Pool) > m+len(w.v.Attached) { // primary addresses come with their interface
		return fmt.Sprintf("%d addresses, max-allocate is %d", len(w.v.Pool), m)
	}
	for a := range w.pods {
		if !w.v.Pool[a] {
			return fmt.Sprintf("%s of a pod is not in the pool", a)
		}
	}
	return ""
}

// checkConverged says by counting whether a node at rest has what the watermarks ask for, or there
// is nothing to be had.
func (w *world) checkConverged(d Decision) string {
	free := len(w.v.Pool) - len(w.pods)
	lacks := free < w.v.PreAllocate || len(w.v.Pool) < w.v.MinAllocate || free < w.v.Pending
	if w.v.MaxAllocate > 0 && len(w.v.Pool) >= w.v.MaxAllocate {
		lacks = false
	}
	if lacks {
		// Anything to be had? One more address on an interface, or one more interface.
		for _, i := range w.v.Attached {
			if i.Index >= w.v.First && len(i.Held)+1 < w.v.Limits.Addresses && w.one(i.Subnet).IsValid() {
				return fmt.Sprintf("%d free of %d, and %s has room", free, len(w.v.Pool), i.ID)
			}
		}
		for _, s := range w.v.Choice {
			if len(w.v.Attached) < w.v.Limits.Interfaces && w.v.Subnets[s].Free > 1 {
				return fmt.Sprintf("%d free of %d, and an interface can be made in %s", free, len(w.v.Pool), s)
			}
		}
		if said, _, _ := strings.Cut(d.Fault, faultIPv6); said == "" && (free == 0 || !d.AtCapacity) {
			return "lacks addresses, and its status does not say so"
		}
		return ""
	}
	if d.Step.Call != Nothing {
		return "not at rest: " + d.Step.Call.String()
	}
	// Too many: would the node lack anything with the smallest thing released that is unused?
	if !w.v.Release || len(w.pods)+w.v.PreAllocate+w.v.MaxAboveWatermark >= len(w.v.Pool) || w.v.MinAllocate+w.v.MaxAboveWatermark >= len(w.v.Pool) {
		return ""
	}
	for _, i := range w.v.Attached {
		for _, u := range i.Held {
			n, used := 0, i.Index < w.v.First
			addrs(u, func(a netip.Addr) { n++; used = used || w.pods[a] })
			left := len(w.v.Pool) - n
			if !used && left-len(w.pods) >= w.v.PreAllocate+w.v.MaxAboveWatermark+w.v.Pending && left >= w.v.MinAllocate+w.v.MaxAboveWatermark {
				return fmt.Sprintf("%s could be released: %d in the pool, %d used", u, len(w.v.Pool), len(w.pods))
			}
		}
	}
	return ""
}

func TestWorld(t *testing.T) {
	for seed := range uint64(120) {
		w := newWorld(rand.New(rand.NewPCG(seed, 12)))
		fail := func(what string) {
			t.Helper()
			if what != "" {
				t.Fatalf("seed %d: %s\n%s\nview %+v", seed, what, strings.Join(w.log[max(0, len(w.log)-12):], "\n"), w.v)
			}
		}
		for range 120 {
			w.agent(false)
			if w.r.IntN(30) == 0 {
				w.v.Excess = nil // another operator leads
			}
			d, fault := w.step()
			fail(fault)
			fail(w.check())
			fail(w.checkIPv6(d))
			w.others()
			w.v.Now = w.v.Now.Add(time.Duration(w.r.IntN(1500)) * time.Millisecond)
			w.v.IPv6Rest -= time.Second
		}
		w.v.Pending = w.r.IntN(2) * w.r.IntN(20)
		var d Decision
		for range 300 {
			w.agent(true)
			var fault string
			d, fault = w.step()
			fail(fault)
			fail(w.check())
			fail(w.checkIPv6(d))
			w.v.Now = w.v.Now.Add(time.Second)
			w.v.IPv6Rest -= time.Second
		}
		fail(w.checkConverged(d))
		fail(w.checkConvergedIPv6(d))
	}
}

// TestNoPrimary has the cloud report no primary address of an interface: the pool has none either.
func TestNoPrimary(t *testing.T) {
	held := netip.MustParsePrefix("10.0.0.7/32")
	v := &View{
		UsePrimary: true, Limits: Limits{Interfaces: 2, Addresses: 2},
		Attached: []Interface{{ID: "a", Attachment: "x", Primary: netip.MustParseAddr("10.0.0.5")}, {ID: "b", Attachment: "x", Index: 1, Held: []netip.Prefix{held}}},
	}
	if d := Decide(v); !maps.Equal(d.Pool, map[netip.Addr]string{held.Addr(): "b"}) || d.Available != 1 {
		t.Errorf("%d addresses: %v", d.Available, d.Pool)
	}
	if _, assigned := v.units(); len(assigned) != 2 || assigned[netip.Addr{}] {
		t.Errorf("assigned: %v", assigned)
	}
}

// TestOther has what no pod gets take places of an interface: no address is asked for there.
func TestOther(t *testing.T) {
	v := &View{
		PreAllocate: 8, Limits: Limits{Interfaces: 1, Addresses: 4}, Subnets: map[string]Subnet{"s": {ID: "s", Free: 100}},
		Attached: []Interface{{ID: "a", Attachment: "x", Subnet: "s", Primary: netip.MustParseAddr("10.0.0.5"), Held: []netip.Prefix{netip.MustParsePrefix("10.0.0.7/32")}, Other: 1}},
	}
	if d := Decide(v); d.Step.Call != Assign || d.Step.Addresses != 1 || d.AtCapacity {
		t.Errorf("a place of four is left: %+v", d)
	}
	v.Attached[0].Other = 2
	if d := Decide(v); d.Step.Call != Nothing || !d.AtCapacity || d.Fault != "" {
		t.Errorf("no place is left: %+v", d)
	}
	v.Pending = 2
	if d := Decide(v); d.Step.Call != Nothing || !strings.Contains(d.Fault, "hold no more than 4 addresses") {
		t.Errorf("no place is left, and pods wait: %+v", d)
	}
}

// TestWatermarks has the field's formulas as a table.
func TestWatermarks(t *testing.T) {
	for _, c := range []struct{ pre, floor, most, above, available, used, needed, excess int }{
		{pre: 8, needed: 8},
		{pre: 8, available: 8, used: 3, needed: 3},
		{pre: 8, available: 20, used: 3, excess: 9},
		{pre: 8, floor: 10, needed: 10},
		{pre: 8, floor: 10, available: 10, used: 1},
		{pre: 8, floor: 10, available: 14, used: 1, excess: 4},
		{pre: 8, floor: 10, available: 14, used: 4, excess: 2},
		{pre: 8, floor: 10, above: 4, available: 14, used: 4},
		{pre: 8, most: 10, available: 8, used: 8, needed: 2},
		{pre: 8, most: 10, available: 12, used: 12},
		{pre: 8, above: 3, available: 14, used: 3, excess: 0},
		{pre: 8, above: 3, available: 15, used: 3, excess: 1},
	} {
		v := &View{PreAllocate: c.pre, MinAllocate: c.floor, MaxAllocate: c.most, MaxAboveWatermark: c.above}
		if n := neededAddresses(v, c.available, c.used); n != c.needed {
			t.Errorf("%+v: needed %d", c, n)
		}
		if n := excessAddresses(v, c.available, c.used); n != c.excess {
			t.Errorf("%+v: excess %d", c, n)
		}
	}
}

// TestReleasedIsInNoPool: the agent removes what was released from the status once the pool is
// without it, also if the cloud has made it another interface's own meanwhile.
func TestReleasedIsInNoPool(t *testing.T) {
	t.Parallel()
	own, held := netip.MustParseAddr("10.0.0.9"), netip.MustParseAddr("10.0.0.8")
	v := View{
		UsePrimary: true, Limits: Limits{Interfaces: 2, Addresses: 4}, Now: time.Unix(1000, 0),
		Used: map[netip.Addr]string{}, Pool: map[netip.Addr]bool{own: true, held: true},
		Attached: []Interface{
			{ID: "eni-0", Attachment: "b", Primary: netip.MustParseAddr("10.0.0.1")},
			{ID: "eni-1", Index: 1, Attachment: "a", Primary: own, Held: []netip.Prefix{netip.PrefixFrom(held, 32)}},
		},
	}
	for _, released := range []bool{false, true} {
		v.Releases = map[netip.Addr]v2.IPReleaseStatus{}
		if released {
			v.Releases[own], v.Releases[held] = v2.IPReleased, v2.IPReleased
		}
		for _, a := range []netip.Addr{own, held} {
			if _, ok := Decide(&v).Pool[a]; ok == released {
				t.Errorf("released %v: %s in the pool is %v", released, a, ok)
			}
		}
	}
}

// TestWhyNot: the status of a node that cannot have more says what is missing, in words that hold
// for each cloud.
func TestWhyNot(t *testing.T) {
	t.Parallel()
	for want, change := range map[string]func(*View){
		"no security group for a new interface: none of its VPC has the tags in the node's spec (security-group-tags)":                        func(v *View) { v.Groups = nil },
		"no subnet for a new interface: none has the tags":                                                                                    func(v *View) { v.Choice, v.Chosen = nil, "none has the tags" },
		`instance type "t" is not known`:                                                                                                      func(v *View) { v.Limits = Limits{} },
		"instance type t holds no more than 1 interfaces with 2 addresses each: use a larger type, prefix delegation, or fewer pods per node": func(v *View) { v.Limits.Interfaces, v.Pending = 1, 9 },
		"no free address in subnet s (10.0.0.0/24): add a subnet that the node may use, or release addresses there":                           func(v *View) { v.Subnets["s"] = Subnet{ID: "s", CIDR: "10.0.0.0/24"} },
		`the instance has no interface "eth1": correct the interface's name in the spec of the node`:                                          func(v *View) { v.Limits.Interfaces, v.Only = 1, "eth1" },
		"9 pods wait for addresses and max-allocate is 1: raise spec.ipam.max-allocate of the node":                                           func(v *View) { v.Pending, v.MaxAllocate = 9, 1 },
	} {
		v := View{
			InstanceType: "t", PreAllocate: 8, Pending: 1, Limits: Limits{Interfaces: 2, Addresses: 2}, Groups: []string{"sg"},
			Subnets: map[string]Subnet{"s": {ID: "s", CIDR: "10.0.0.0/24", Free: 9}}, Choice: []string{"s"},
			Attached: []Interface{{ID: "eni-0", Attachment: "a", Subnet: "s", Primary: netip.MustParseAddr("10.0.0.9"), Held: []netip.Prefix{netip.MustParsePrefix("10.0.0.8/32")}}},
		}
		change(&v)
		if d := Decide(&v); d.Fault != want || d.Step.Call != Nothing {
			t.Errorf("%q and %s, want %q", d.Fault, d.Step.Call, want)
		}
	}
}
