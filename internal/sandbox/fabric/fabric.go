// Package fabric is the network of a cloud on one machine: namespaces are its instances, one more
// is its router. An interface that the cloud attaches is plugged into its instance's namespace, as
// a device with its hardware address; one that it takes away is unplugged. The router leads each
// address that the cloud has assigned to the interface that it is assigned to, whoever answers
// there, and nothing else: what comes by an interface under an address of another one is dropped,
// as is what is sent to an unassigned address of a subnet. All of this holds for IPv6 as well,
// where subnets have it: each interface finds the router at [IPv6Gateway].
//
// Its state follows from the cloud's, so it can start over at any time. [Fabric] is for one
// goroutine.
package fabric

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/hawser-net/hawser/internal/datapath/link/netdump"
	"github.com/hawser-net/hawser/internal/sandbox/cloud"
	"github.com/hawser-net/hawser/internal/sandbox/machine"
)

// protocol marks the routes that are of the fabric, so that those of others are left alone.
const protocol = 202

// Host is the namespace of an instance.
type Host struct {
	// Name begins the names of its links in the router's namespace: at most 9 characters.
	Name string `json:"name"`
	// Instance is what the cloud calls it, Namespace the path of its network namespace, which may
	// come and go.
	Instance  string `json:"instance"`
	Namespace string `json:"namespace"`
	// First is the link in the router's namespace that is the other end of the instance's first
	// interface, which is there from the start.
	First string `json:"first"`
}

// Fabric is the network. Its Router is the path of the router's namespace.
type Fabric struct {
	Router string
	Hosts  []Host
	// Gateway is the router's address in a subnet.
	Gateway func(netip.Prefix) netip.Addr
}

// port is an interface that is attached.
type port struct {
	cloud.Interface
	host Host
	mac  net.HardwareAddr
	link string // in the router's namespace
}

// Apply reconciles the network with the cloud. What cannot be done for one interface does not
// keep the others from being plugged; all of it is tried again the next time.
func (f *Fabric) Apply(v cloud.View) error {
	ports, err := f.ports(v)
	errs := []error{err}
	// Before anything is led: it fails closed.
	if err := f.strict(); err != nil {
		return errors.Join(append(errs, err)...)
	}
	errs = append(errs, machine.WithNetlink(f.Router, func(h *netlink.Handle) error { return f.apply(h, v, ports) }))
	return errors.Join(errs...)
}

// ports are the interfaces that are attached to hosts.
func (f *Fabric) ports(v cloud.View) ([]port, error) {
	hosts := map[string]Host{}
	for _, h := range f.Hosts {
		hosts[h.Instance] = h
	}
	var out []port
	var errs []error
	for _, i := range v.Interfaces {
		h, ok := hosts[i.Instance]
		if !ok {
			continue // not attached, or to a machine that is not here
		}
		mac, err := net.ParseMAC(i.MAC)
		if err != nil {
			errs = append(errs, fmt.Errorf("interface %s: %w", i.ID, err))
			continue
		}
		p := port{Interface: i, host: h, mac: mac, link: h.First}
		if i.Index > 0 {
			p.link = fmt.Sprintf("%s-e%d", h.Name, i.Index)
		}
		out = append(out, p)
	}
	return out, errors.Join(errs...)
}

func (f *Fabric) apply(h *netlink.Handle, v cloud.View, ports []port) error {
	errs := []error{f.unplug(h, ports)}
	var ready []port
	ipv6 := slices.ContainsFunc(v.Subnets, func(s cloud.Subnet) bool { return s.IPv6.IsValid() })
	for _, p := range ports {
		err := f.plug(h, p)
		if err == nil && ipv6 {
			err = f.plugIPv6(h, p)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("plug interface %s into %s: %w", p.ID, p.host.Name, err))
			continue
		}
		ready = append(ready, p)
	}
	return errors.Join(append(errs, f.gateways(h, v), f.lead(h, v, ready))...)
}

// unplug removes the links of interfaces that are attached no more, or elsewhere.
func (f *Fabric) unplug(h *netlink.Handle, ports []port) error {
	links, err := netdump.List(h.LinkList)
	if err != nil {
		return fmt.Errorf("list the router's links: %w", err)
	}
	var errs []error
	for _, l := range links {
		name, alias := l.Attrs().Name, l.Attrs().Alias
		ours := slices.ContainsFunc(f.Hosts, func(x Host) bool { return strings.HasPrefix(name, x.Name+"-e") })
		if ours && !slices.ContainsFunc(ports, func(p port) bool { return p.link == name && p.ID == alias }) {
			errs = append(errs, h.LinkDel(l))
		}
	}
	return errors.Join(errs...)
}

// plug sees that an interface is in its host's namespace, and its other end here is up.
func (f *Fabric) plug(h *netlink.Handle, p port) error {
	link, err := h.LinkByName(p.link)
	var missing netlink.LinkNotFoundError
	switch {
	case errors.As(err, &missing) && p.Index > 0:
		if err = f.make(h, p); err == nil {
			link, err = h.LinkByName(p.link)
		}
	case err == nil && link.Attrs().MasterIndex != 0:
		// A port of its own: no packet passes another instance but by the router.
		err = h.LinkSetNoMaster(link)
	}
	if err != nil {
		return err
	}
	// It answers for addresses of the subnet, which the instance takes for neighbours, at once, to
	// all: the kernel's filter of reverse paths would drop questions, too (see strict).
	err = machine.InNamespace(f.Router, func() error {
		var errs []error
		for path, value := range map[string]string{"conf/%s/rp_filter": "0", "conf/%s/proxy_arp": "1", "neigh/%s/proxy_delay": "0", "conf/%s/send_redirects": "0"} {
			errs = append(errs, os.WriteFile("/proc/sys/net/ipv4/"+fmt.Sprintf(path, p.link), []byte(value), 0o644))
		}
		return errors.Join(errs...)
	})
	if err != nil {
		return err
	}
	return h.LinkSetUp(link)
}

// strict drops packets that come by an interface under an address that is led elsewhere, or
// nowhere. It concerns packets only: a cloud's gateway answers questions for its hardware address
// under any address, such as those of a node on an interface whose addresses are all of pods.
func (f *Fabric) strict() error {
	ns, err := os.Open(f.Router)
	if err != nil {
		return err
	}
	defer ns.Close()
	c, err := nftables.New(nftables.WithNetNSFd(int(ns.Fd())))
	if err != nil {
		return err
	}
	table := &nftables.Table{Name: "fabric", Family: nftables.TableFamilyIPv4}
	sources(c, table)
	sources(c, &nftables.Table{Name: "fabric", Family: nftables.TableFamilyIPv6}, linkLocal...)
	if err := c.Flush(); err != nil {
		return fmt.Errorf("filter of sources in nftables: %w", err)
	}
	return nil
}

// sources adds the filter of a family; what matches one of exempt passes.
func sources(c *nftables.Conn, table *nftables.Table, exempt ...[]expr.Any) {
	c.AddTable(table)
	chain := &nftables.Chain{Name: "sources", Table: table, Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityRaw}
	c.AddChain(chain)
	c.FlushChain(chain)
	for _, match := range exempt {
		c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: append(slices.Clone(match), &expr.Verdict{Kind: expr.VerdictAccept})})
	}
	c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{ // fib saddr . iif oif missing drop
		&expr.Fib{Register: 1, FlagSADDR: true, FlagIIF: true, FlagPRESENT: true, ResultOIF: true},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{0}},
		&expr.Verdict{Kind: expr.VerdictDrop},
	}})
}

// make makes the pair of links, one end already in the host's namespace. It is down there, as a
// device is that was just plugged in.
func (f *Fabric) make(h *netlink.Handle, p port) error {
	ns, err := os.Open(p.host.Namespace)
	if err != nil {
		return err
	}
	defer ns.Close()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = p.link
	err = h.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: fmt.Sprintf("eth%d", p.Index), PeerNamespace: netlink.NsFd(int(ns.Fd())), PeerHardwareAddr: p.mac})
	if err != nil {
		return err
	}
	link, err := h.LinkByName(p.link)
	if err == nil {
		err = h.LinkSetAlias(link, p.ID)
	}
	return err
}

// gateways has the router be found at its address of each subnet.
func (f *Fabric) gateways(h *netlink.Handle, v cloud.View) error {
	lo, err := h.LinkByName("lo")
	if err != nil {
		return err
	}
	var errs []error
	for _, s := range v.Subnets {
		gateway := f.Gateway(s.CIDR)
		if routes, err := h.RouteGet(gateway.AsSlice()); err == nil && len(routes) > 0 && routes[0].Type == unix.RTN_LOCAL {
			continue
		}
		err := h.AddrReplace(lo, &netlink.Addr{IPNet: machine.IPNet(netip.PrefixFrom(gateway, gateway.BitLen())), Scope: int(netlink.SCOPE_HOST)})
		if err != nil {
			err = fmt.Errorf("gateway of subnet %s: %w", s.ID, err)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// way is a route of the fabric. One without a link drops.
type way struct {
	dst  netip.Prefix
	link int
}

// neighbour is the static neighbour entry of an address on a link, from the cloud's state.
type neighbour struct {
	ip   netip.Addr
	link int
	mac  string
}

// lead sets the routes and neighbours that lead to the ports, and removes the former ones.
func (f *Fabric) lead(h *netlink.Handle, v cloud.View, ports []port) error {
	ways, neighbours := map[way]bool{}, map[neighbour]bool{}
	for _, s := range v.Subnets {
		ways[way{dst: s.CIDR.Masked()}] = true
		if s.IPv6.IsValid() {
			ways[way{dst: s.IPv6.Masked()}] = true
		}
	}
	for _, p := range ports {
		link, err := h.LinkByName(p.link)
		if err != nil {
			return err
		}
		index := link.Attrs().Index
		at := func(ip netip.Addr) { neighbours[neighbour{ip, index, p.mac.String()}] = true }
		for _, ip := range slices.Concat([]netip.Addr{p.Primary}, p.Addresses, p.IPv6) {
			ways[way{netip.PrefixFrom(ip, ip.BitLen()), index}] = true
			at(ip)
		}
		for _, cidr := range p.Prefixes {
			ways[way{cidr.Masked(), index}] = true
			for ip := cidr.Masked().Addr(); cidr.Contains(ip); ip = ip.Next() {
				at(ip)
			}
		}
		for _, cidr := range p.IPv6Prefixes {
			ways[way{cidr.Masked(), index}] = true
			at(ipv6Hop)
		}
	}
	return errors.Join(leadWays(h, ways), leadNeighbours(h, neighbours, ports))
}

func leadWays(h *netlink.Handle, want map[way]bool) error {
	var have []netlink.Route
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		list, err := h.RouteListFiltered(family, &netlink.Route{Protocol: protocol}, netlink.RT_FILTER_PROTOCOL)
		if err != nil {
			return fmt.Errorf("list the fabric's routes: %w", err)
		}
		have = append(have, list...)
	}
	var errs []error
	for _, r := range have {
		ip, _ := netip.AddrFromSlice(r.Dst.IP)
		bits, _ := r.Dst.Mask.Size()
		w := way{netip.PrefixFrom(ip.Unmap(), bits), r.LinkIndex}
		if r.Type == unix.RTN_BLACKHOLE {
			w.link = 0 // the kernel shows loopback for some
		}
		if want[w] {
			delete(want, w)
			continue
		}
		if err := h.RouteDel(&r); err != nil && !errors.Is(err, unix.ESRCH) {
			errs = append(errs, fmt.Errorf("remove the route to %s: %w", w.dst, err))
		}
	}
	for w := range want {
		r := &netlink.Route{Dst: machine.IPNet(w.dst), Protocol: protocol, LinkIndex: w.link, Scope: netlink.SCOPE_LINK}
		if w.link == 0 {
			// Behind what the router itself has in the subnet, as the rest of the machines.
			r.Type, r.Scope, r.Priority = unix.RTN_BLACKHOLE, netlink.SCOPE_UNIVERSE, 1000
		} else if w.dst.Addr().Is6() && !w.dst.IsSingleIP() {
			r.Gw = ipv6Hop.AsSlice()
		}
		if err := h.RouteReplace(r); err != nil {
			errs = append(errs, fmt.Errorf("lead to %s: %w", w.dst, err))
		}
	}
	return errors.Join(errs...)
}

func leadNeighbours(h *netlink.Handle, want map[neighbour]bool, ports []port) error {
	links := map[string]int{}
	for _, p := range ports {
		if l, err := h.LinkByName(p.link); err == nil {
			links[p.link] = l.Attrs().Index
		}
	}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(links)) {
		have, err := h.NeighList(links[name], unix.AF_UNSPEC)
		if err != nil {
			return fmt.Errorf("list neighbours: %w", err)
		}
		for _, n := range have {
			ip, _ := netip.AddrFromSlice(n.IP)
			ip = ip.Unmap()
			is := neighbour{ip, n.LinkIndex, n.HardwareAddr.String()}
			if n.State&unix.NUD_PERMANENT == 0 {
				continue
			}
			if want[is] {
				delete(want, is)
				continue
			}
			if err := h.NeighDel(&n); err != nil && !errors.Is(err, unix.ENOENT) {
				errs = append(errs, fmt.Errorf("forget neighbour %s: %w", ip, err))
			}
		}
	}
	for n := range want {
		mac, err := net.ParseMAC(n.mac)
		if err == nil {
			family := unix.AF_INET
			if n.ip.Is6() {
				family = unix.AF_INET6
			}
			err = h.NeighSet(&netlink.Neigh{LinkIndex: n.link, Family: family, State: unix.NUD_PERMANENT, IP: n.ip.AsSlice(), HardwareAddr: mac})
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("neighbour %s: %w", n.ip, err))
		}
	}
	return errors.Join(errs...)
}
