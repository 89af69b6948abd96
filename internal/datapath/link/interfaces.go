package link

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"

	"github.com/vishvananda/netlink"

	"github.com/hawser-net/hawser/internal/datapath"
)

// InterfacePrograms evaluate what passes an interface that joins the nodes. Package datapath/loader
// implements it.
type InterfacePrograms interface {
	// AttachInterface attaches the programs to an interface, which is down unless another process
	// brought it up, and trusts its packets from then on.
	AttachInterface(ifIndex int, mac net.HardwareAddr) error
	// DetachInterface has nothing believed any more; the programs stay.
	DetachInterface(ifIndex int) error
	// ForgetInterface has nothing believed any more, and takes the programs off. That the interface
	// is gone is no error.
	ForgetInterface(ifIndex int) error
	// Interfaces lists those, besides the native device, that AttachInterface got and
	// ForgetInterface was not, or not with success.
	Interfaces() ([]int, error)
}

// Interfaces makes the interfaces that a cloud attaches to the node carry packets of pods: each is
// up, has its programs, a table of routes, and rules that lead packets from its addresses there.
// All rules with the routing protocol number RouteProtocol are its own, and all routes with it
// outside of the main table; what is none of these is never touched.
//
// An interface comes up after its programs are attached and before anything is routed by it. It
// never carries packets without programs, unless another process brings it up; then its packets do
// not count as the cluster's until it has its programs.
//
// It is safe for concurrent use.
type Interfaces struct {
	links    *Links
	programs InterfacePrograms
	log      *slog.Logger

	mu     sync.Mutex // one reconciliation at a time
	begun  bool       // Set has been called
	last   string     // the outcome that Set returned last, or Run called changed with
	want   []datapath.Interface
	states []datapath.InterfaceState // of the last reconciliation
	again  bool                      // Set has failed since Run looked
}

// NewInterfaces returns an Interfaces that has touched nothing yet: see Set. There is one for a
// node.
func NewInterfaces(l *Links, programs InterfacePrograms, log *slog.Logger) *Interfaces {
	log = cmp.Or(log, slog.New(slog.DiscardHandler))
	return &Interfaces{links: l, programs: programs, log: log}
}

// Set makes the node's interfaces those of want. It compares with the kernel and touches only what
// differs, does as much as it can, and returns a state for each of want, in its order. The error
// joins what failed; that an interface is absent is none. It needs a SetNode before it.
//
// Addresses that are not in want lose their rules at once, also those that an agent before this one
// has left.
func (i *Interfaces) Set(want []datapath.Interface) ([]datapath.InterfaceState, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.want, i.begun = slices.Clone(want), true
	states, err := i.reconcile()
	i.last, i.again = outcome(states, err), err != nil
	return states, err
}

func outcome(states []datapath.InterfaceState, err error) string {
	return fmt.Sprintf("%v %v", states, err)
}

// reconcile is called under the lock.
func (i *Interfaces) reconcile() ([]datapath.InterfaceState, error) {
	states, err := i.links.setInterfaces(i.want, i.programs)
	i.states = states
	return slices.Clone(states), err
}

// cloudInterface is a wanted interface as the kernel has it.
type cloudInterface struct {
	datapath.Interface
	link   netlink.Link
	native bool
	// ready means that it is up and evaluated: only then is anything new routed there.
	ready bool
}

func (c *cloudInterface) index() int { return c.link.Attrs().Index }

// setInterfaces makes interfaces, routes, rules and exceptions of masquerading be as wanted.
func (l *Links) setInterfaces(want []datapath.Interface, programs InterfacePrograms) ([]datapath.InterfaceState, error) {
	l.nodeMu.Lock()
	defer l.nodeMu.Unlock()
	states := make([]datapath.InterfaceState, len(want))
	for n, w := range want {
		states[n].MAC = w.MAC
	}
	if l.native == 0 {
		return fail(states, errors.New("the device towards other nodes is not known yet: SetNode comes first"))
	}
	all, err := l.listLinks()
	if err != nil {
		return fail(states, err)
	}
	var errs []error
	var found []*cloudInterface
	for n, fault := range faultsOf(want) {
		c, err := l.findInterface(all, want[n])
		if fault != nil {
			err = fault
		}
		if c != nil {
			states[n].Name, states[n].IfIndex = c.link.Attrs().Name, c.index()
		}
		if err == nil {
			found = append(found, c)
			err = l.raiseInterface(c, programs)
			c.ready = err == nil
		}
		states[n].Err = err
		if !errors.Is(err, datapath.ErrNoInterface) {
			errs = append(errs, err)
		}
	}
	l.cloud = map[int]bool{}
	for _, c := range found {
		l.cloud[c.index()] = true
	}
	errs = append(errs, partAddresses(found))
	failed, left, err := l.reconcilePaths(found)
	errs = append(errs, err)
	if failed == nil {
		// Nothing is known of the ways to the interfaces: for what is not known to pass, nothing is
		// given to pods.
		fail(states, err)
	}
	for n, s := range states {
		if s.Err == nil {
			states[n].Err = failed[s.IfIndex]
		}
	}
	errs = append(errs, forgetOthers(found, programs, left), l.exceptVPC(want))
	return states, errors.Join(errs...)
}

// fail has every state without an error of its own have err.
func fail(states []datapath.InterfaceState, err error) ([]datapath.InterfaceState, error) {
	for n := range states {
		states[n].Err = cmp.Or(states[n].Err, err)
	}
	return states, err
}

// faultsOf is pure: what makes each of want impossible, by itself or with those before it.
func faultsOf(want []datapath.Interface) []error {
	out := make([]error, len(want))
	macs, numbers := map[string]bool{}, map[int]bool{}
	for n, w := range want {
		out[n] = w.Validate()
		switch {
		case out[n] != nil:
			continue
		case macs[w.MAC.String()]:
			out[n] = fmt.Errorf("interface %s is listed twice", w.MAC)
		case numbers[w.Number]:
			out[n] = fmt.Errorf("interface %s has number %d, which another has", w.MAC, w.Number)
		}
		macs[w.MAC.String()], numbers[w.Number] = true, true
	}
	return out
}

// findInterface finds an interface by its hardware address, which others may have taken over from
// it: networks on top of it, and bridges and bonds of which it is a part. Where a machine shows an
// interface twice, as Azure does with accelerated networking, the upper one counts.
//
// A machine's interfaces have no kind. One end of a veth pair may belong to another container
// network, which a writer of the configuration must not be able to have trusted: it counts only
// where the device towards other nodes is a veth, too, as in a machine that is itself a namespace,
// and its peer is not here.
func (l *Links) findInterface(all []netlink.Link, want datapath.Interface) (*cloudInterface, error) {
	inPairs := slices.ContainsFunc(all, func(link netlink.Link) bool { return link.Attrs().Index == l.native && link.Type() == "veth" })
	var found, part netlink.Link
	for _, link := range all {
		a := link.Attrs()
		if !bytes.Equal(a.HardwareAddr, want.MAC) || a.EncapType != "ether" || isOwnDevice(a.Name) {
			continue
		}
		pair := link.Type() == "veth" && inPairs && a.NetNsID >= 0 && !isEndpointLink(link)
		if link.Type() != "device" && !pair {
			continue
		}
		if a.MasterIndex != 0 {
			part = link
			continue
		}
		if found != nil {
			return nil, fmt.Errorf("interfaces %s and %s both have the hardware address %s: give the one that is not the cloud's another", found.Attrs().Name, a.Name, want.MAC)
		}
		found = link
	}
	if found == nil && part != nil {
		return nil, fmt.Errorf("interface %s (%s) is a part of interface %d, which takes its packets: take it out", part.Attrs().Name, want.MAC, part.Attrs().MasterIndex)
	}
	if found == nil {
		return nil, fmt.Errorf("hardware address %s: %w", want.MAC, datapath.ErrNoInterface)
	}
	return &cloudInterface{Interface: want, link: found, native: found.Attrs().Index == l.native}, nil
}

func isOwnDevice(name string) bool {
	return name == HostDevice || name == NetDevice || name == TunnelDevice
}

// raiseInterface attaches an interface's programs, then sets it up.
func (l *Links) raiseInterface(c *cloudInterface, programs InterfacePrograms) error {
	name := c.link.Attrs().Name
	if err := programs.AttachInterface(c.index(), c.MAC); err != nil {
		return errors.Join(err, programs.DetachInterface(c.index()))
	}
	// A packet may come by another interface than that by which its answer goes; the programs check
	// sources.
	settings := []setting{
		{path: "net/ipv4/conf/" + name + "/rp_filter", value: "0"},
		{path: "net/ipv4/conf/" + name + "/forwarding", value: "1"},
	}
	if !c.native {
		// Else a router's advertisement would lead what is the native device's by this one.
		settings = append(settings,
			setting{path: "net/ipv4/conf/" + name + "/send_redirects", value: "0"},
			setting{path: "net/ipv6/conf/" + name + "/accept_ra", value: "0", optional: true},
			// The interface's link-local address is unique; duplicate address detection would take
			// a second in which no neighbour is found.
			setting{path: "net/ipv6/conf/" + name + "/accept_dad", value: "0", optional: true})
	}
	if slices.ContainsFunc(c.Subnets, func(s datapath.Subnet) bool { return s.CIDR.Addr().Is6() }) {
		// The router of IPv6 is asked for from the interface's link-local address.
		settings = append(settings, setting{path: "net/ipv6/conf/" + name + "/disable_ipv6", value: "0", optional: true})
	}
	if err := l.inNS(func() error { return apply(settings) }); err != nil {
		return err
	}
	if !c.native && c.MTU != 0 {
		if err := l.setMTU(c.link, c.MTU); err != nil {
			return err
		}
	}
	if c.link.Attrs().Flags&net.FlagUp == 0 {
		return errors.Join(l.rt.run(linkUp(c.index()))...)
	}
	return nil
}

// partAddresses leaves each address, and each network of such, to the first of the interfaces that
// have it: of two rules for one address the kernel would use the one that was made first.
func partAddresses(found []*cloudInterface) error {
	var errs []error
	owner := map[netip.Prefix]*cloudInterface{}
	var networks []netip.Prefix
	for _, c := range found {
		c.Pods = slices.DeleteFunc(slices.Clone(c.Pods), func(p netip.Prefix) bool {
			other := owner[p]
			if k := slices.IndexFunc(networks, p.Overlaps); k >= 0 {
				other = owner[networks[k]]
			}
			if other == nil {
				if owner[p] = c; !p.IsSingleIP() {
					networks = append(networks, p)
				}
				return false
			}
			if other != c {
				errs = append(errs, fmt.Errorf("address %s is on interface %s as well as on %s: the first has its packets", datapath.SpellPods(p), other.MAC, c.MAC))
			}
			return true
		})
	}
	return errors.Join(errs...)
}

// forgetOthers has nothing believed of what comes by interfaces that are none of the cloud's any
// more, and takes the programs off them, unless pods' packets may still be led there.
func forgetOthers(found []*cloudInterface, programs InterfacePrograms, led bool) error {
	known, err := programs.Interfaces()
	errs := []error{err}
	for _, index := range known {
		switch {
		case slices.ContainsFunc(found, func(c *cloudInterface) bool { return c.index() == index }):
		case led:
			errs = append(errs, programs.DetachInterface(index))
		default:
			errs = append(errs, programs.ForgetInterface(index))
		}
	}
	return errors.Join(errs...)
}

// exceptVPC has what pods send to networks of the cloud leave under their own addresses.
func (l *Links) exceptVPC(want []datapath.Interface) error {
	var vpc []netip.Prefix
	for _, w := range want {
		for _, p := range w.VPCCIDRs {
			if p.IsValid() {
				vpc = append(vpc, p.Masked())
			}
		}
	}
	slices.SortFunc(vpc, netip.Prefix.Compare)
	vpc = slices.Compact(vpc)
	if l.vpcKnown && !l.vpcFailed && slices.Equal(vpc, l.vpc) {
		return nil
	}
	l.vpc, l.vpcKnown = vpc, true
	if l.node == nil {
		return nil
	}
	err := l.reconcileMasquerade(*l.node)
	l.vpcFailed = err != nil
	return err
}
