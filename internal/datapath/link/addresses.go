package link

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/datapath/link/netdump"
)

// NodeAddress is an address of the node's.
type NodeAddress struct {
	IP      netip.Addr
	IfIndex int
	// Ethernet means that the device has Ethernet headers, which the programs read.
	Ethernet bool
}

// ipvsDevice is where kube-proxy in its mode ipvs puts the addresses of services.
const ipvsDevice = "kube-ipvs0"

// NodeAddresses lists the addresses by which others can reach the node, by device: those of global
// scope of all devices but Hawser's own, pods' interfaces and that of services.
func (l *Links) NodeAddresses() ([]NodeAddress, error) {
	links, err := l.listLinks()
	if err != nil {
		return nil, err
	}
	addrs, err := l.listAddresses(nil, netlink.FAMILY_ALL)
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	var out []NodeAddress
	for _, dev := range links {
		name := dev.Attrs().Name
		if name == HostDevice || name == NetDevice || name == TunnelDevice || name == ipvsDevice || isEndpointLink(dev) {
			continue
		}
		for _, a := range addrs {
			ip, ok := netip.AddrFromSlice(a.IP)
			// An address that may be another host's is not reported.
			if !ok || a.LinkIndex != dev.Attrs().Index || !ip.Unmap().IsGlobalUnicast() || a.Flags&(unix.IFA_F_TENTATIVE|unix.IFA_F_DADFAILED) != 0 {
				continue
			}
			out = append(out, NodeAddress{IP: ip.Unmap(), IfIndex: a.LinkIndex, Ethernet: dev.Attrs().EncapType == "ether"})
		}
	}
	return out, nil
}

// OwnPrefixes lists what the kernel takes for the node, by its table of local routes: addresses of
// any device and scope, broadcast addresses of their networks, in IPv6 the addresses of the routers
// of these, and local routes that were added by hand. Addresses that mean another machine on each
// host are left out: loopback and IPv6 link-local ones.
func (l *Links) OwnPrefixes() ([]netip.Prefix, error) {
	var out []netip.Prefix
	for _, fam := range l.families() {
		list, err := netdump.List(func() ([]netlink.Route, error) {
			return l.h.RouteListFiltered(fam, &netlink.Route{Table: unix.RT_TABLE_LOCAL}, netlink.RT_FILTER_TABLE)
		})
		if err != nil {
			return nil, fmt.Errorf("list local routes: %w", err)
		}
		for _, r := range list {
			if r.Dst == nil || r.Type != unix.RTN_LOCAL && r.Type != unix.RTN_BROADCAST && r.Type != unix.RTN_ANYCAST {
				continue
			}
			p, err := fromIPNet(r.Dst, fam)
			if err != nil {
				return nil, fmt.Errorf("local routes: %w", err)
			}
			if a := p.Addr(); a.IsUnspecified() || a.IsLoopback() || a.IsMulticast() || a.Is6() && a.IsLinkLocalUnicast() {
				continue
			}
			out = append(out, p)
		}
	}
	slices.SortFunc(out, netip.Prefix.Compare)
	return slices.Compact(out), nil
}

// otherDevices finds the devices besides the native one on which the node has addresses.
func (l *Links) otherDevices(d *datapath.Devices) error {
	all, err := l.NodeAddresses()
	if err != nil {
		return err
	}
	for _, a := range all {
		if a.Ethernet && a.IfIndex != d.NativeIfIndex && !l.cloud[a.IfIndex] {
			d.Others = append(d.Others, a.IfIndex)
		}
	}
	slices.Sort(d.Others)
	d.Others = slices.Compact(d.Others)
	return nil
}

// WatchAddresses calls changed whenever what NodeAddresses returns may have changed; a burst of
// changes is one call. It returns nil when ctx ends.
func (l *Links) WatchAddresses(ctx context.Context, changed func()) error {
	w, err := l.listen(ctx, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR)
	if err != nil {
		return fmt.Errorf("watch the node's addresses: %w", err)
	}
	defer w.close()
	due, wait := false, forever
	for {
		got, err := w.next(wait)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, unix.ENOBUFS):
			due, wait = true, watchDebounce
			continue
		case err != nil:
			return fmt.Errorf("watch the node's addresses: %w", err)
		case got == nil && due: // the burst is over
			changed()
			due, wait = false, forever
			continue
		}
		if !due && slices.ContainsFunc(got, isGlobal) {
			due, wait = true, watchDebounce
		}
	}
}

// isGlobal reports whether a message is about an address that others reach. Each new pod's
// interface has one that they don't.
func isGlobal(m syscall.NetlinkMessage) bool {
	const scope = 3 // of struct ifaddrmsg, see rtnetlink(7)
	return (m.Header.Type == unix.RTM_NEWADDR || m.Header.Type == unix.RTM_DELADDR) && len(m.Data) >= unix.SizeofIfAddrmsg && m.Data[scope] < unix.RT_SCOPE_LINK
}
