package link

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/datapath/link/netdump"
)

// gateway6 is the next hop of IPv6 routes through HostDevice. The kernel refuses a gateway that is
// the host's own address in IPv6; any link-local one does, because HostDevice asks no neighbour.
var gateway6 = netip.MustParseAddr("fe80::1")

// route is a route of ours. It is comparable: two routes are the same if they are equal.
type route struct {
	dst netip.Prefix
	gw  netip.Addr
	src netip.Addr
	dev int
	mtu int
	// unreachable answers with an ICMP error instead of forwarding; dev is 0.
	unreachable bool
	table       int // 0 is the main one
}

func (r route) String() string {
	var b strings.Builder
	if r.unreachable {
		b.WriteString("unreachable ")
	}
	b.WriteString(r.dst.String())
	if r.gw.IsValid() {
		fmt.Fprintf(&b, " via %s", r.gw)
	}
	if r.dev != 0 {
		fmt.Fprintf(&b, " dev %d", r.dev)
	}
	if r.table != 0 {
		fmt.Fprintf(&b, " table %d", r.table)
	}
	return b.String()
}

// request builds the message that adds, replaces or removes r.
func (r route) request(typ, flags int, ignore ...syscall.Errno) *request {
	verb := "add"
	if typ == unix.RTM_DELROUTE {
		verb = "remove"
	}
	req := newRequest(verb+" route "+r.String(), typ, flags, ignore...)
	msg := nl.NewRtMsg()
	msg.Family = uint8(family(r.dst.Addr()))
	msg.Dst_len = uint8(r.dst.Bits())
	msg.Table = uint8(cmp.Or(r.table, unix.RT_TABLE_MAIN))
	msg.Protocol = RouteProtocol
	msg.Type = unix.RTN_UNICAST
	msg.Scope = unix.RT_SCOPE_UNIVERSE
	if r.unreachable {
		msg.Type = unix.RTN_UNREACHABLE
	} else if !r.gw.IsValid() && r.dst.Addr().Is4() {
		msg.Scope = unix.RT_SCOPE_LINK
	}
	req.AddData(msg)
	req.attr(unix.RTA_DST, r.dst.Addr().AsSlice())
	if r.dev != 0 {
		req.attr(unix.RTA_OIF, nl.Uint32Attr(uint32(r.dev)))
	}
	if r.gw.IsValid() {
		req.attr(unix.RTA_GATEWAY, r.gw.AsSlice())
	}
	if r.src.IsValid() {
		req.attr(unix.RTA_PREFSRC, r.src.AsSlice())
	}
	if r.mtu != 0 {
		metrics := nl.NewRtAttr(unix.RTA_METRICS, nil)
		metrics.AddRtAttr(unix.RTAX_MTU, nl.Uint32Attr(uint32(r.mtu)))
		req.AddData(metrics)
	}
	return req
}

// desiredRoutes is pure: the routes that n asks for on the devices d, and for each destination the
// peer it leads to. Routes of endpoints are not among them. A faulty peer is left out and reported;
// the others' routes are returned all the same.
func desiredRoutes(n datapath.Node, d datapath.Devices) (out []route, peers map[netip.Prefix]string, err error) {
	var errs []error
	router := func(p netip.Prefix) netip.Addr {
		if p.Addr().Is4() {
			return n.RouterIPv4
		}
		return n.RouterIPv6
	}
	// The gateway of IPv4 routes must be on a link of its own before the kernel takes it.
	if n.Tunnel && n.RouterIPv4.IsValid() {
		out = append(out, route{dst: netip.PrefixFrom(n.RouterIPv4, 32), dev: d.HostIfIndex, src: n.RouterIPv4})
	}
	for _, p := range n.PodCIDRs {
		p = p.Masked()
		if router(p).IsValid() && !p.IsSingleIP() {
			out = append(out, route{dst: p, unreachable: true})
		}
	}
	peers = map[netip.Prefix]string{}
	for _, peer := range n.Peers {
		bad := func(format string, args ...any) {
			errs = append(errs, &datapath.RouteError{Peer: peer.Name, Err: fmt.Errorf("node %s "+format, append([]any{peer.Name}, args...)...)})
		}
		for _, p := range peer.PodCIDRs {
			p = p.Masked()
			src := router(p)
			if balance := p.Addr().Is4() && n.Balance4 || p.Addr().Is6() && n.Balance6; !src.IsValid() && !balance {
				continue // this node does not have the family
			}
			other, dup := peers[p]
			switch {
			case p.Bits() == 0:
				bad("claims %s as its pod network: refused; correct the node's pod network in the cluster", p)
				continue
			case slices.ContainsFunc(n.PodCIDRs, p.Overlaps):
				bad("claims %s, which is of this node's pod network: refused; give one of the two another network", p)
				continue
			case dup:
				bad("claims pod network %s, which node %s has: refused; give one of the two another network", p, other)
				continue
			}
			r := route{dst: p, src: src}
			switch {
			case n.Tunnel:
				r.dev, r.mtu, r.gw = d.HostIfIndex, d.RouteMTU, n.RouterIPv4
				if p.Addr().Is6() {
					r.gw = gateway6
				}
			case !n.DirectRoutes:
				continue // the network knows
			default:
				r.dev, r.gw = d.NativeIfIndex, peer.IPv4
				if p.Addr().Is6() {
					r.gw = peer.IPv6
				}
				if !r.gw.IsValid() {
					bad("has pod network %s but no address of that family: no route; give it one", p)
					continue
				}
			}
			peers[p] = peer.Name
			out = append(out, r)
		}
	}
	return out, peers, errors.Join(errs...)
}

// ourRoutes lists the routes of the main table that carry our protocol number, or with tables those
// of all others.
func (l *Links) ourRoutes(tables bool) ([]route, error) {
	filter := netlink.Route{Protocol: RouteProtocol, Table: unix.RT_TABLE_MAIN}
	if tables {
		filter.Table = unix.RT_TABLE_UNSPEC
	}
	var out []route
	for _, fam := range l.families() {
		list, err := netdump.List(func() ([]netlink.Route, error) {
			return l.h.RouteListFiltered(fam, &filter, netlink.RT_FILTER_PROTOCOL|netlink.RT_FILTER_TABLE)
		})
		if err != nil {
			return nil, fmt.Errorf("list routes: %w", err)
		}
		for _, nr := range list {
			if tables && nr.Table == unix.RT_TABLE_MAIN {
				continue
			}
			r, err := fromNetlink(nr, fam)
			if err != nil {
				return nil, err
			}
			if tables {
				r.table = nr.Table
			}
			out = append(out, r)
		}
	}
	return out, nil
}

// families are the address families that the kernel has.
func (l *Links) families() []int {
	if l.ipv6 {
		return []int{unix.AF_INET, unix.AF_INET6}
	}
	return []int{unix.AF_INET}
}

func fromNetlink(nr netlink.Route, fam int) (route, error) {
	r := route{dev: nr.LinkIndex, mtu: nr.MTU, unreachable: nr.Type == unix.RTN_UNREACHABLE}
	if nr.Dst == nil {
		r.dst = everywhere(fam == unix.AF_INET6)
	} else {
		var err error
		if r.dst, err = fromIPNet(nr.Dst, fam); err != nil {
			return r, fmt.Errorf("the kernel lists a route: %w", err)
		}
	}
	if gw, ok := netip.AddrFromSlice(nr.Gw); ok {
		r.gw = unmapIf4(gw, fam)
	}
	if src, ok := netip.AddrFromSlice(nr.Src); ok {
		r.src = unmapIf4(src, fam)
	}
	if r.unreachable {
		r.dev = 0 // IPv6 shows the loopback device here
	}
	return r, nil
}

// everywhere is the prefix of all addresses of a family.
func everywhere(v6 bool) netip.Prefix {
	if v6 {
		return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
	}
	return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
}

func fromIPNet(n *net.IPNet, fam int) (netip.Prefix, error) {
	addr, ok := netip.AddrFromSlice(n.IP)
	if !ok {
		return netip.Prefix{}, fmt.Errorf("malformed destination %v", n)
	}
	ones, _ := n.Mask.Size()
	return netip.PrefixFrom(unmapIf4(addr, fam), ones), nil
}

func unmapIf4(a netip.Addr, fam int) netip.Addr {
	if fam == unix.AF_INET {
		return a.Unmap()
	}
	return a
}

// reconcileRoutes makes our routes those of want. Endpoints' routes stay, except that they follow
// the router address. peers names the peer to which a destination leads. It returns what it could
// not do; the rest is done.
func (l *Links) reconcileRoutes(want []route, peers map[netip.Prefix]string, n datapath.Node, endpointDevs map[int]bool) error {
	have, err := l.ourRoutes(false)
	if err != nil {
		return err
	}
	byDst := make(map[netip.Prefix]route, len(have))
	present := make(map[route]bool, len(have))
	for _, r := range have {
		byDst[r.dst] = r
		present[r] = true
	}
	wanted := make(map[netip.Prefix]bool, len(want))
	var reqs []*request
	var dsts []netip.Prefix // of the first requests, those for wanted routes
	for _, r := range want {
		wanted[r.dst] = true
		if present[r] {
			continue
		}
		flags := unix.NLM_F_CREATE | unix.NLM_F_EXCL
		if _, ours := byDst[r.dst]; ours {
			flags = unix.NLM_F_CREATE | unix.NLM_F_REPLACE
		}
		reqs = append(reqs, r.request(unix.RTM_NEWROUTE, flags))
		dsts = append(dsts, r.dst)
	}
	var gone []route
	for _, r := range have {
		if wanted[r.dst] && byDst[r.dst] == r {
			continue
		}
		if endpointDevs[r.dev] && !r.unreachable && r.dst.IsSingleIP() {
			src := n.RouterIPv4
			if r.dst.Addr().Is6() {
				src = n.RouterIPv6
			}
			if r.src != src {
				r.src = src
				reqs = append(reqs, r.request(unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_REPLACE))
			}
			continue
		}
		gone = append(gone, r)
	}
	// Routes that others lean on (a gateway's own) go last.
	slices.SortFunc(gone, func(a, b route) int { return cmp.Compare(a.dst.Bits(), b.dst.Bits()) })
	for _, r := range gone {
		reqs = append(reqs, r.request(unix.RTM_DELROUTE, 0, unix.ESRCH, unix.ENODEV, unix.ENOENT))
	}
	var errs []error
	for i, err := range l.rt.run(reqs...) {
		peer := ""
		if i < len(dsts) {
			peer = peers[dsts[i]]
		}
		offLink := peer != "" && !n.Tunnel && (errors.Is(err, unix.ENETUNREACH) || errors.Is(err, unix.EHOSTUNREACH))
		switch {
		case err == nil, offLink && n.SkipUnreachable:
			continue
		case offLink:
			err = fmt.Errorf("node %s is not on the network of device %s, so that it cannot be the gateway to its pods; let the network route to pods"+
				" (--auto-direct-node-routes=false, or --direct-routing-skip-unreachable for such nodes) or use a tunnel: %w", peer, n.Device, err)
		case errors.Is(err, unix.EEXIST):
			err = fmt.Errorf("%s: a route that is not Hawser's is in the way: remove it: %w", reqs[i].what, err)
		}
		errs = append(errs, &datapath.RouteError{Peer: peer, Err: err})
	}
	return errors.Join(errs...)
}
