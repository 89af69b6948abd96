package addressing

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"reflect"
	"slices"
	"time"

	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/ipam"
)

// Network sets up network interfaces of the node. Set is called with all wanted interfaces, and
// reports for each, in the same order, whether packets pass. It retries failures by itself; its
// owner calls [Singles.InterfacesChanged] when the outcome changes.
type Network interface {
	Set([]datapath.Interface) ([]datapath.InterfaceState, error)
}

// Uplinks are how a node's addresses get their packets through its network interfaces.
type Uplinks struct {
	Network Network
	// MTU is that of each interface, 0 for what it has.
	MTU int
	// Masquerade are the families in which packets to destinations outside of the interface's
	// networks, and of NativeCIDRs, leave as the node's own; all of IPv6 but NativeCIDRs. Of
	// another family all packets leave by the interface of their address.
	Masquerade  ipam.Families
	NativeCIDRs []netip.Prefix
}

// slowInterface is how long an interface that the operator has assigned may take to be there before
// that is a fault: attaching one takes seconds.
const slowInterface = 20 * time.Second

// uplinks are the interfaces as they were last set up. mu of Singles guards it.
type uplinks struct {
	Uplinks
	// want is what was set last, and dirty is set if it must be set again: the interfaces no longer
	// match the last answer.
	want  []datapath.Interface
	dirty bool
	// passes are the addresses whose packets pass, by the last answer.
	passes map[netip.Prefix]bool
	// faults are why those of other interfaces do not, by the interface, and since when.
	faults map[string]uplinkFault
	err    error
	// beyond is how many addresses are not set up because there are too many.
	beyond int
}

var errNotSet = errors.New("nothing records whether it was set up")

type uplinkFault struct {
	err   error
	since time.Time
}

// Connect has the node's network interfaces set up, now and whenever its addresses change. From now
// on an address is given only if packets from and to it pass. It comes after the addresses of
// former endpoints are in the allocator, which must not be without their interfaces for a
// moment, and before the allocator is opened. What fails is reported by Run.
func (s *Singles) Connect(u Uplinks) {
	s.mu.Lock()
	s.uplinks = &uplinks{Uplinks: u, dirty: true}
	s.mu.Unlock()
	s.connect()
}

// InterfacesChanged is called when interfaces changed since they were set up: one was added,
// removed or modified.
func (s *Singles) InterfacesChanged([]datapath.InterfaceState, error) {
	s.mu.Lock()
	if s.uplinks != nil {
		s.uplinks.dirty = true
	}
	s.mu.Unlock()
	s.notify.again()
}

// InterfaceOf returns the network interface that an address of the node is of.
func (s *Singles) InterfaceOf(ip netip.Addr) (Interface, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	resource, ok := s.resourceOf(ip)
	if !ok {
		return Interface{}, false
	}
	k := slices.IndexFunc(s.state.Interfaces, func(i Interface) bool { return i.ID == resource })
	if k < 0 {
		return Interface{}, false
	}
	return s.state.Interfaces[k].of(ip), true
}

// resourceOf is what an address is of. One that was taken away while it is used is of what it was
// of. mu is held.
func (s *Singles) resourceOf(ip netip.Addr) (string, bool) {
	if r, ok := s.state.Pool.of(ip); ok {
		return r, true
	}
	return s.state.Lost.of(ip)
}

// inUse reports which addresses, and which prefixes by one of theirs, pods have, or can have again:
// as long as there is no allocator, any, or none if the node has no endpoints. mu is held.
func (s *Singles) inUse() func(netip.Prefix) bool {
	if s.pool == nil {
		return func(netip.Prefix) bool { return !s.unused }
	}
	used := map[netip.Addr]bool{}
	for _, a := range s.pool.Dump() {
		used[a.IP] = true
	}
	for _, ip := range s.before {
		used[ip] = true
	}
	return func(p netip.Prefix) bool { return anyOf(used, p) }
}

// missingFrom are the addresses in use that a pool has not. mu is held.
func (s *Singles) missingFrom(pool byPrefix[string], used func(netip.Prefix) bool) byPrefix[string] {
	lost := byPrefix[string]{}
	for _, had := range []byPrefix[string]{s.state.Lost, s.state.Pool} {
		for p, id := range had {
			if _, is := pool[p]; !is && used(p) {
				lost[p] = id
			}
		}
	}
	return lost
}

// needed are the interfaces known so far of which next has addresses in use. mu is held.
func (s *Singles) needed(next singlesState, used func(netip.Prefix) bool) []Interface {
	ids := map[string]bool{}
	for _, addrs := range []byPrefix[string]{next.Pool, next.Lost} {
		for p, id := range addrs {
			if used(p) {
				ids[id] = true
			}
		}
	}
	return slices.DeleteFunc(slices.Clone(s.state.Interfaces), func(i Interface) bool { return !ids[i.ID] })
}

// forget drops the state of addresses that are no longer assigned. mu is held.
func (s *Singles) forget() {
	if s.unsaved != nil {
		return // it is read again, which drops them too
	}
	used := s.inUse()
	next := s.state
	next.Lost = s.missingFrom(s.state.Pool, used)
	needed := map[string]bool{}
	for _, i := range s.needed(next, used) {
		needed[i.ID] = true
	}
	next.Interfaces = slices.DeleteFunc(slices.Clone(s.state.Interfaces), func(i Interface) bool { return i.Kept && !needed[i.ID] })
	if maps.Equal(next.Lost, s.state.Lost) && len(next.Interfaces) == len(s.state.Interfaces) {
		return
	}
	if err := s.store(next); err != nil {
		s.log.Warn("interfaces of unused addresses are kept", "error", err)
		return
	}
	if s.object != nil {
		s.take(s.object, false) // interfaces that conflicted with removed ones can be used now
	}
}

// connect reconciles the interfaces with what the addresses need. Only one goroutine may
// call it.
//
// All addresses of the node are set up, whether or not a pod has them: so an ADD waits for nothing,
// and there are hardly more of them than pods.
func (s *Singles) connect() {
	s.mu.Lock()
	u := s.uplinks
	if u == nil {
		s.mu.Unlock()
		return
	}
	want, ids, beyond := s.wantedInterfaces()
	for s.withdraw(want) {
		// Meanwhile pods may have got some.
		want, ids, beyond = s.wantedInterfaces()
	}
	u.beyond = beyond
	if !u.dirty && reflect.DeepEqual(want, u.want) {
		s.mu.Unlock()
		return
	}
	u.dirty = false
	s.mu.Unlock()
	states, err := u.Network.Set(want)
	s.mu.Lock()
	defer s.mu.Unlock()
	u.want, u.err = want, err
	passes, faults := map[netip.Prefix]bool{}, map[string]uplinkFault{}
	all := unexplained(err, states)
	for k, i := range want {
		fault := cmp.Or(err, errNotSet)
		if k < len(states) {
			fault = cmp.Or(states[k].Err, all)
		}
		if fault == nil {
			for _, p := range i.Pods {
				passes[p] = true
			}
			continue
		}
		since := time.Now()
		if was, ok := u.faults[ids[k]]; ok {
			since = was.since
		}
		faults[ids[k]] = uplinkFault{fault, since}
	}
	first := u.passes == nil
	moved := first || !maps.Equal(passes, u.passes)
	u.passes, u.faults = passes, faults
	if moved && s.pool != nil {
		s.pool.AssignAddresses(s.want())
		if !first {
			s.notify.moved()
		}
	}
	s.inspect()
}

// withdraw stops the assignment of addresses that are set up and not in want, before they are
// removed. It returns whether there are any. mu is held.
func (s *Singles) withdraw(want []datapath.Interface) bool {
	stay := map[netip.Prefix]bool{}
	for _, i := range want {
		for _, p := range i.Pods {
			if s.uplinks.passes[p] {
				stay[p] = true
			}
		}
	}
	if len(stay) == len(s.uplinks.passes) {
		return false
	}
	s.uplinks.passes = stay
	if s.pool != nil {
		s.pool.AssignAddresses(s.want())
		s.notify.moved()
	}
	return true
}

// unexplained is what of an error is of no state: then no interface is known to be as it should be.
func unexplained(err error, states []datapath.InterfaceState) error {
	if err == nil {
		return nil
	}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, part := range joined.Unwrap() {
			if rest := unexplained(part, states); rest != nil {
				return rest
			}
		}
		return nil
	}
	if slices.ContainsFunc(states, func(s datapath.InterfaceState) bool { return errors.Is(s.Err, err) }) {
		return nil
	}
	return err
}

// wantedInterfaces are those of which the node has addresses, and the ID of each; beyond is how
// many addresses are left out because the kernel would have too many rules. What pods have is
// there, whatever it is. mu is held.
func (s *Singles) wantedInterfaces() (want []datapath.Interface, ids []string, beyond int) {
	used, misplaced := s.inUse(), s.misplaced()
	pods, spare := map[string][]netip.Prefix{}, map[string][]netip.Prefix{}
	for _, addrs := range []byPrefix[string]{s.state.Pool, s.state.Lost} {
		for p, id := range addrs {
			switch {
			case used(p):
				pods[id] = append(pods[id], p)
			case misplaced[p] == "":
				spare[id] = append(spare[id], p)
			}
		}
	}
	rules := 0
	for _, i := range s.state.Interfaces {
		rules += len(pods[i.ID]) * s.rulesOf(i)
	}
	for _, i := range s.state.Interfaces {
		slices.SortFunc(spare[i.ID], netip.Prefix.Compare)
		room := min(len(spare[i.ID]), max(0, maxRules-rules)/s.rulesOf(i))
		rules += room * s.rulesOf(i)
		beyond += len(spare[i.ID]) - room
		pods := append(pods[i.ID], spare[i.ID][:room]...)
		if len(pods) == 0 {
			continue
		}
		slices.SortFunc(pods, netip.Prefix.Compare)
		mac, _ := net.ParseMAC(i.MAC) // it was one when it was read
		d := datapath.Interface{MAC: mac, Number: i.Number, MTU: s.uplinks.MTU, Subnets: []datapath.Subnet{{CIDR: i.Subnet, Gateway: i.Gateway}}, Pods: pods}
		if last := pods[len(pods)-1]; last.Addr().Is6() && s.cfg.Mode == ENI && i.Subnet.Addr().Is4() {
			// The subnet itself does not matter: what counts is the router, which is the same in
			// all.
			d.Subnets = append(d.Subnets, datapath.Subnet{CIDR: netip.PrefixFrom(last.Addr(), 64).Masked(), Gateway: gateway6})
		}
		for _, p := range slices.Concat(i.Networks, s.uplinks.NativeCIDRs) {
			if s.masquerades(p) && !slices.Contains(d.VPCCIDRs, p) {
				d.VPCCIDRs = append(d.VPCCIDRs, p)
			}
		}
		want, ids = append(want, d), append(ids, i.ID)
	}
	return want, ids, beyond
}

// rulesOf is how many rules each address of an interface needs at most. mu is held.
func (s *Singles) rulesOf(i Interface) int {
	if s.uplinks.Masquerade == 0 {
		return 2
	}
	return 1 + max(1, len(i.Networks)+len(s.uplinks.NativeCIDRs))
}

// masquerades reports whether what leaves p's family's networks does so as the node. mu is held.
func (s *Singles) masquerades(p netip.Prefix) bool {
	if p.Addr().Is4() {
		return s.uplinks.Masquerade&ipam.IPv4 != 0
	}
	return s.uplinks.Masquerade&ipam.IPv6 != 0
}

// misplaced are the addresses of the pool that cannot be a pod's on the interface that the pool
// names, each with the reason. mu is held.
func (s *Singles) misplaced() map[netip.Prefix]string {
	known := map[string]Interface{}
	for _, i := range s.state.Interfaces {
		known[i.ID] = i
	}
	out := map[netip.Prefix]string{}
	for p, id := range s.state.Pool {
		i, ok := known[id]
		if !ok {
			continue // what is wrong is another thing
		}
		why := i.misplaced(p)
		if slices.ContainsFunc(s.cfg.Hosts, p.Contains) {
			why = "the node's own"
		}
		if why != "" {
			out[p] = why
		}
	}
	return out
}

// passes reports whether packets from and to an address pass. It returns true before interfaces are
// set up, and where there are none. mu is held.
func (s *Singles) passes(p netip.Prefix) bool {
	return s.uplinks == nil || s.uplinks.passes == nil || s.uplinks.passes[p]
}

// interfaceFaults are why addresses are given to no pod. mu is held.
func (s *Singles) interfaceFaults() (errs []error) {
	errs = append(errs, s.shown)
	if s.uplinks == nil {
		return errs
	}
	known := map[string]bool{}
	for _, i := range s.state.Interfaces {
		known[i.ID] = !i.Kept
		f, ok := s.uplinks.faults[i.ID]
		if ok && (!errors.Is(f.err, datapath.ErrNoInterface) || time.Since(f.since) > slowInterface) {
			errs = append(errs, fmt.Errorf("packets of network interface %.200q (%s) do not pass, and its addresses are given to no pod: %w", i.ID, i.MAC, f.err))
		}
	}
	if len(s.uplinks.faults) == 0 {
		errs = append(errs, s.uplinks.err)
	}
	unknown := map[string]int{}
	for _, id := range s.state.Pool {
		if !known[id] {
			unknown[id]++
		}
	}
	var lacking []error
	for _, id := range slices.Sorted(maps.Keys(unknown)) {
		lacking = append(lacking, fmt.Errorf("%d addresses in spec.ipam.pool of CiliumNode %s are of network interface %.200q, which its status does not show; they are given to no pod", unknown[id], s.cfg.Self.Name, id))
	}
	if n := s.uplinks.beyond; n > 0 {
		lacking = append(lacking, fmt.Errorf("%d addresses in spec.ipam.pool of CiliumNode %s are given to no pod: the kernel would have more than %d rules for addresses", n, s.cfg.Self.Name, maxRules))
	}
	misplaced := s.misplaced()
	for _, p := range slices.SortedFunc(maps.Keys(misplaced), netip.Prefix.Compare) {
		lacking = append(lacking, fmt.Errorf("address %s in spec.ipam.pool of CiliumNode %s is given to no pod: it is %s (network interface %.200q)", datapath.SpellPods(p), s.cfg.Self.Name, misplaced[p], s.state.Pool[p]))
	}
	if s.cfg.Mode == ENI && s.cfg.Families&ipam.IPv6 != 0 && len(s.placed()) == 0 {
		errs = append(errs, fmt.Errorf("spec.ipam.ipv6-pool of CiliumNode %s has no prefix for pods, which get no IPv6 address: see its status.ipam.operator-status.error", s.cfg.Self.Name))
	}
	return append(errs, few(lacking))
}
