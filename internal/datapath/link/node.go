package link

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/validate"
)

// What VXLAN puts in front of a pod's packet: inner Ethernet 14, VXLAN 8, UDP 8 and the outer IP
// header (RFC 7348).
const (
	vxlanOverhead4 = 14 + 8 + 8 + 20
	vxlanOverhead6 = 14 + 8 + 8 + 40
)

// Limits of an interface's MTU: IPv6 needs 1280 (RFC 8200), IP packets end at 65535.
const (
	minMTU     = 1280
	maxMTU     = 65535
	defaultMTU = 1500 // if there is no device to ask
)

// SetNode implements datapath.Links. It is idempotent and does as much as it can: the routes of one
// faulty peer, for example, do not keep the others' from being set, and the Devices are returned
// together with the error. Errors before the devices are in place end it.
//
// A peer that claims some of this node's own pod network, or what a peer before it claims, does not
// get it.
func (l *Links) SetNode(n datapath.Node) (datapath.Devices, error) {
	l.nodeMu.Lock()
	defer l.nodeMu.Unlock()
	var d datapath.Devices
	if err := validateNode(n); err != nil {
		return d, err
	}
	n.TunnelPort = cmp.Or(n.TunnelPort, DefaultTunnelPort)
	if err := l.inNS(func() error { return apply(forwardingSettings(n)) }); err != nil {
		return d, err
	}
	if err := l.inNS(func() (err error) { d.NetNSCookie, err = NetNSCookie(); return err }); err != nil {
		return d, err
	}
	if err := l.nativeDevice(n, &d); err != nil {
		return d, err
	}
	l.native = d.NativeIfIndex
	if err := l.hostDevices(&d); err != nil {
		return d, err
	}
	if err := l.tunnelDevice(n, &d); err != nil {
		return d, err
	}
	if err := l.segments(n, &d); err != nil {
		return d, err
	}
	if err := l.otherDevices(&d); err != nil {
		return d, err
	}
	ours := deviceSettings(HostDevice)
	ours = append(ours, deviceSettings(NetDevice)...)
	if n.Tunnel {
		ours = append(ours, deviceSettings(TunnelDevice)...)
	}
	errs := []error{l.inNS(func() error { return apply(ours) })}

	// New router addresses come first and old ones go last: the kernel drops routes whose source
	// address goes.
	stale, err := l.addRouterAddresses(n, d.HostIfIndex)
	errs = append(errs, err)
	l.mu.Lock()
	l.router4, l.router6 = n.RouterIPv4, n.RouterIPv6
	l.mu.Unlock()

	want, peers, err := desiredRoutes(n, d)
	errs = append(errs, err)
	endpoints, err := l.endpointDevs()
	if err == nil {
		err = l.reconcileRoutes(want, peers, n, endpoints)
	}
	errs = append(errs, err)
	errs = append(errs, l.removeAddresses(d.HostIfIndex, stale))
	l.node = &n
	errs = append(errs, l.reconcileMasquerade(n), l.leaveCloud(n))
	return d, errors.Join(errs...)
}

// NetNSCookie returns the kernel's number of the network namespace of the calling thread.
func NetNSCookie() (uint64, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("number of the network namespace: %w", err)
	}
	defer unix.Close(fd)
	cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err != nil {
		return 0, fmt.Errorf("number of the network namespace: %w", err)
	}
	return cookie, nil
}

func validateNode(n datapath.Node) error {
	var errs validate.Errors
	errs.If((n.Balance4 || n.Balance6) && n.Tunnel, "a node without pods has no address for the inside of a tunnel: it needs native routing")
	errs.If(!n.RouterIPv4.IsValid() && !n.RouterIPv6.IsValid() && !n.Balance4 && !n.Balance6, "the node has no router address in either family")
	errs.If(n.RouterIPv4.IsValid() && !n.RouterIPv4.Is4(), "router address %s is not IPv4", n.RouterIPv4)
	errs.If(n.RouterIPv6.IsValid() && (!n.RouterIPv6.Is6() || n.RouterIPv6.Is4In6()), "router address %s is not IPv6", n.RouterIPv6)
	errs.If(n.Device == "" && !n.Tunnel, "native routing needs the device towards the other nodes")
	errs.If(n.Tunnel && (n.BigTCP4 || n.BigTCP6), "packets beyond 64 KiB cannot be encapsulated: BIG TCP needs native routing")
	errs.If(n.MTU != 0 && (n.MTU < minMTU || n.MTU > maxMTU), "MTU %d is not within %d to %d", n.MTU, minMTU, maxMTU)
	for _, p := range append(append([]netip.Prefix{}, n.PodCIDRs...), n.ClusterCIDRs...) {
		errs.If(!p.IsValid() || p.Addr().Is4In6(), "malformed prefix %v", p)
	}
	return errs.Err()
}

// nativeDevice reads the device towards other nodes and works out the MTUs.
func (l *Links) nativeDevice(n datapath.Node, d *datapath.Devices) error {
	d.DeviceMTU = n.MTU
	overhead := vxlanOverhead4
	for _, p := range n.Peers {
		if !p.IPv4.IsValid() {
			overhead = vxlanOverhead6
		}
	}
	if n.Device != "" {
		dev, err := l.h.LinkByName(n.Device)
		if err != nil {
			return fmt.Errorf("device %s towards other nodes: %w", n.Device, err)
		}
		// The programs read Ethernet headers: on another device they would let everything pass
		// unfiltered.
		if kind := dev.Attrs().EncapType; kind != "ether" {
			return fmt.Errorf("device %s towards other nodes has no Ethernet headers (it is of type %s, with headers of kind %q), so the programs cannot"+
				" filter there; name the Ethernet device by which the nodes reach each other with --devices", n.Device, dev.Type(), kind)
		}
		d.NativeIfIndex, d.NativeMAC = dev.Attrs().Index, bytes.Clone(dev.Attrs().HardwareAddr)
		if d.DeviceMTU == 0 {
			d.DeviceMTU = dev.Attrs().MTU
		} else if d.DeviceMTU > dev.Attrs().MTU {
			return fmt.Errorf("MTU %d is larger than the %d of device %s", d.DeviceMTU, dev.Attrs().MTU, n.Device)
		}
		addrs, err := l.listAddresses(dev, unix.AF_INET)
		if err != nil {
			return fmt.Errorf("addresses of device %s: %w", n.Device, err)
		}
		if len(addrs) == 0 {
			overhead = vxlanOverhead6
		}
	}
	d.DeviceMTU = cmp.Or(d.DeviceMTU, defaultMTU)
	d.DeviceMTU = min(d.DeviceMTU, maxMTU)
	if n.Tunnel {
		d.RouteMTU = d.DeviceMTU - overhead
		if n.RouterIPv6.IsValid() && d.RouteMTU < minMTU {
			return fmt.Errorf("MTU %d less %d for encapsulation is below the %d that IPv6 needs", d.DeviceMTU, overhead, minMTU)
		}
	}
	return nil
}

// hostDevices makes the pair hawser_host and hawser_net.
func (l *Links) hostDevices(d *datapath.Devices) error {
	host, err := l.h.LinkByName(HostDevice)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.MTU = HostDevice, d.DeviceMTU
		if err := l.h.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: NetDevice, PeerTxQLen: -1, PeerMTU: uint32(d.DeviceMTU)}); err != nil {
			return fmt.Errorf("create %s and %s: %w", HostDevice, NetDevice, err)
		}
		host, err = l.h.LinkByName(HostDevice)
	}
	if err != nil {
		return fmt.Errorf("look up %s: %w", HostDevice, err)
	}
	if host.Type() != "veth" {
		return fmt.Errorf("%s is a %s device, not a veth: remove it", HostDevice, host.Type())
	}
	peer, err := l.h.LinkByName(NetDevice)
	if err != nil {
		return fmt.Errorf("%s exists without its other end (%w): remove it", HostDevice, err)
	}
	for _, link := range []netlink.Link{host, peer} {
		if err := l.setMTU(link, d.DeviceMTU); err != nil {
			return err
		}
	}
	// Without ARP every neighbour is reachable at the device's own address: nothing is asked, and
	// a frame that no program takes reaches hawser_net with a foreign address and is dropped.
	if host.Attrs().RawFlags&unix.IFF_NOARP == 0 {
		if err := l.h.LinkSetARPOff(host); err != nil {
			return fmt.Errorf("turn ARP off on %s: %w", HostDevice, err)
		}
	}
	for _, link := range []netlink.Link{peer, host} {
		if err := l.setUp(link); err != nil {
			return err
		}
	}
	d.HostIfIndex = host.Attrs().Index
	d.HostMAC = bytes.Clone(host.Attrs().HardwareAddr)
	return nil
}

// tunnelDevice makes hawser_vxlan, or removes it in native mode. One of another port is replaced.
func (l *Links) tunnelDevice(n datapath.Node, d *datapath.Devices) error {
	link, err := l.h.LinkByName(TunnelDevice)
	missing := errors.As(err, &netlink.LinkNotFoundError{})
	if err != nil && !missing {
		return fmt.Errorf("look up %s: %w", TunnelDevice, err)
	}
	if !missing {
		vx, ok := link.(*netlink.Vxlan)
		if n.Tunnel && ok && vx.FlowBased && vx.Port == int(n.TunnelPort) {
			if err := l.setMTU(link, d.DeviceMTU); err != nil {
				return err
			}
		} else {
			if err := l.h.LinkDel(link); err != nil {
				return fmt.Errorf("remove %s: %w", TunnelDevice, err)
			}
			missing = true
		}
	}
	if !n.Tunnel {
		return nil
	}
	if missing {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.MTU = TunnelDevice, d.DeviceMTU
		err := l.h.LinkAdd(&netlink.Vxlan{
			LinkAttrs: attrs,
			FlowBased: true, // the programs name the remote node and the VNI packet by packet
			Port:      int(n.TunnelPort),
			// Over IPv6 the sender chooses whether to checksum; take either.
			UDP6ZeroCSumRx: true,
		})
		if err != nil {
			return fmt.Errorf("create %s on port %d: %w", TunnelDevice, n.TunnelPort, err)
		}
		if link, err = l.h.LinkByName(TunnelDevice); err != nil {
			return fmt.Errorf("look up %s: %w", TunnelDevice, err)
		}
	}
	d.TunnelIfIndex = link.Attrs().Index
	prog, err := l.FilterProgram(d.TunnelIfIndex, true)
	if err != nil {
		return err
	}
	if prog == 0 {
		// Nothing would evaluate what arrives. ReplaceFilter brings the device up.
		l.mu.Lock()
		l.tunnelWaiting = d.TunnelIfIndex
		l.mu.Unlock()
		return errors.Join(l.rt.run(linkConf(d.TunnelIfIndex, l.ipv6))...)
	}
	return l.setUp(link)
}

func (l *Links) setMTU(link netlink.Link, mtu int) error {
	if link.Attrs().MTU == mtu {
		return nil
	}
	if err := l.h.LinkSetMTU(link, mtu); err != nil {
		return fmt.Errorf("set MTU of %s to %d: %w", link.Attrs().Name, mtu, err)
	}
	return nil
}

// setUp brings an own device up if it is down.
func (l *Links) setUp(link netlink.Link) error {
	if link.Attrs().Flags&net.FlagUp != 0 {
		return nil
	}
	index := link.Attrs().Index
	return errors.Join(l.rt.run(linkConf(index, l.ipv6), linkUp(index))...)
}

// addRouterAddresses puts the router addresses on hawser_host and returns those that are there but
// not wanted.
func (l *Links) addRouterAddresses(n datapath.Node, host int) (stale []netlink.Addr, err error) {
	link := &netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Name: HostDevice, Index: host}}
	for _, f := range []struct {
		family int
		want   netip.Addr
	}{{unix.AF_INET, n.RouterIPv4}, {unix.AF_INET6, n.RouterIPv6}} {
		if f.family == unix.AF_INET6 && !l.ipv6 {
			continue
		}
		addrs, err := l.listAddresses(link, f.family)
		if err != nil {
			return nil, fmt.Errorf("list addresses of %s: %w", HostDevice, err)
		}
		found := false
		for _, a := range addrs {
			ip, _ := netip.AddrFromSlice(a.IP)
			ones, _ := a.Mask.Size()
			switch {
			case f.want.IsValid() && ip.Unmap() == f.want && ones == f.want.BitLen():
				found = true
			case ip.IsLinkLocalUnicast() && ip.Is6():
				// harmless, and the kernel's own
			default:
				stale = append(stale, a)
			}
		}
		if !f.want.IsValid() || found {
			continue
		}
		addr := &netlink.Addr{IPNet: &net.IPNet{IP: f.want.AsSlice(), Mask: net.CIDRMask(f.want.BitLen(), f.want.BitLen())}}
		if f.family == unix.AF_INET6 {
			addr.Flags = unix.IFA_F_NODAD
		}
		if err := l.h.AddrReplace(link, addr); err != nil {
			return nil, fmt.Errorf("add router address %s to %s: %w", f.want, HostDevice, err)
		}
	}
	return stale, nil
}

func (l *Links) removeAddresses(host int, addrs []netlink.Addr) error {
	link := &netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Name: HostDevice, Index: host}}
	var errs []error
	for _, a := range addrs {
		if err := l.h.AddrDel(link, &a); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
			errs = append(errs, fmt.Errorf("remove address %s from %s: %w", a.IPNet, HostDevice, err))
		}
	}
	return errors.Join(errs...)
}

// endpointDevs returns the indexes of the pods' interfaces.
func (l *Links) endpointDevs() (map[int]bool, error) {
	links, err := l.listLinks()
	if err != nil {
		return nil, err
	}
	out := map[int]bool{}
	for _, link := range links {
		if isEndpointLink(link) {
			out[link.Attrs().Index] = true
		}
	}
	return out, nil
}

// IsLocal reports whether the kernel takes packets to an address for this node, because one of its
// interfaces has it. An address to which there is no route is not local.
func (l *Links) IsLocal(ip netip.Addr) bool {
	routes, err := l.h.RouteGet(ip.AsSlice())
	return err == nil && len(routes) > 0 && routes[0].Type == unix.RTN_LOCAL
}

// CleanUp removes hawser_host, hawser_net, hawser_vxlan, our routes, rules and masquerading, and
// puts segment sizes back. The pods' interfaces stay; nothing being there is not an error.
func (l *Links) CleanUp() error {
	l.nodeMu.Lock()
	defer l.nodeMu.Unlock()
	var errs []error
	routes, err := l.ourRoutes(false)
	errs = append(errs, err)
	var reqs []*request
	for _, r := range routes {
		reqs = append(reqs, r.request(unix.RTM_DELROUTE, 0, unix.ESRCH, unix.ENODEV, unix.ENOENT))
	}
	errs = append(errs, l.rt.run(reqs...)...)
	errs = append(errs, l.forgetSegments(), l.removePaths())
	for _, name := range []string{HostDevice, TunnelDevice} {
		link, err := l.h.LinkByName(name)
		if errors.As(err, &netlink.LinkNotFoundError{}) {
			continue
		}
		if err == nil {
			err = l.h.LinkDel(link)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("remove %s: %w", name, err))
		}
	}
	errs = append(errs, l.removeMasquerade(), l.RemoveGuard())
	return errors.Join(errs...)
}
