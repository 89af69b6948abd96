package cni

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/hawser-net/hawser/api/rest"
	"github.com/hawser-net/hawser/internal/datapath/link/netdump"
)

// txQueueLen of both ends; a veth pair has none by default, which keeps a queueing discipline that
// a user adds later from working.
const txQueueLen = 1000

// podNS is a pod's network namespace.
type podNS struct {
	f      *os.File
	h      *netlink.Handle
	cookie uint64 // SO_NETNS_COOKIE, 0 if the kernel has none
}

// errNoNS means that a namespace is gone.
var errNoNS = errors.New("the network namespace does not exist")

// enter opens the namespace at path. inside, if not nil, is called on a thread that is in it.
func enter(path string, inside func()) (*podNS, error) {
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("%w: %s", errNoNS, path)
	}
	if err != nil {
		return nil, fmt.Errorf("open network namespace: %w", err)
	}
	ns := &podNS{f: f}
	if err := ns.visit(inside); err != nil {
		ns.close()
		return nil, err
	}
	return ns, nil
}

func (ns *podNS) visit(inside func()) error {
	runtime.LockOSThread()
	previous, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("open own network namespace: %w", err)
	}
	defer previous.Close()
	if err := unix.Setns(int(ns.f.Fd()), unix.CLONE_NEWNET); err != nil {
		runtime.UnlockOSThread()
		if errors.Is(err, unix.EINVAL) { // what is left when the namespace was unmounted
			return fmt.Errorf("%w: %s is a file and not a network namespace", errNoNS, ns.f.Name())
		}
		return fmt.Errorf("enter network namespace %s: %w", ns.f.Name(), err)
	}
	if ns.h, err = netlink.NewHandle(unix.NETLINK_ROUTE); err == nil {
		ns.cookie = cookie()
		if inside != nil {
			inside()
		}
	}
	if back := unix.Setns(int(previous.Fd()), unix.CLONE_NEWNET); back != nil {
		// The thread stays locked to this goroutine: nothing else runs in the wrong place.
		return errors.Join(err, fmt.Errorf("return from the pod's network namespace: %w", back))
	}
	runtime.UnlockOSThread()
	if err != nil {
		return fmt.Errorf("open netlink in the pod's network namespace: %w", err)
	}
	return nil
}

func (ns *podNS) close() {
	if ns.h != nil {
		ns.h.Close()
	}
	ns.f.Close()
}

// cookie is the kernel's never repeated number of the calling thread's namespace.
func cookie() uint64 {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0
	}
	defer unix.Close(fd)
	v, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err != nil {
		return 0
	}
	return v
}

// isOwnNS reports whether path is the namespace that this process runs in.
func isOwnNS(path string) bool {
	a, errA := os.Stat(path)
	b, errB := os.Stat("/proc/self/ns/net")
	return errA == nil && errB == nil && os.SameFile(a, b)
}

// parentInterface returns the index of the network interface by which packets of an address leave:
// that of a cloud, which the agent names by its hardware address. Without one it is 0. Interfaces
// that are made on top of another have its hardware address, too.
func parentInterface(mac string) (int, error) {
	if mac == "" {
		return 0, nil
	}
	want, err := net.ParseMAC(mac)
	if err != nil {
		return 0, fmt.Errorf("the agent names network interface %q: %w", mac, err)
	}
	host, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return 0, err
	}
	defer host.Close()
	links, err := netdump.List(host.LinkList)
	// What an incomplete listing has is there.
	for _, l := range links {
		on := []string{"vlan", "macvlan", "macvtap", "ipvlan", "bridge", "bond"}
		if bytes.Equal(l.Attrs().HardwareAddr, want) && !slices.Contains(on, l.Type()) {
			return l.Attrs().Index, nil
		}
	}
	if err != nil {
		return 0, fmt.Errorf("list network interfaces: %w", err)
	}
	return 0, fmt.Errorf("its network interface %s is not on this node", want)
}

// veth is a pair that was made.
type veth struct {
	hostIndex       int
	hostMAC, podMAC net.HardwareAddr
}

// aliasPrefix begins the alias of a pod's interface on the host, which names the network that it is
// of: a GC lists what must stay of one network, and is not about others.
const aliasPrefix = "cni network "

// networkAlias is the alias for a network of that name; empty if it has none. The kernel takes 255
// bytes.
func networkAlias(name string) string {
	if name == "" {
		return ""
	}
	alias := aliasPrefix + name
	return alias[:min(len(alias), 255)]
}

// createVeth makes a pair with one end called hostName here and the other called ifName in the pod,
// for a network. An interface of either name that is left from an earlier attempt is removed, if
// left allows it: it returns an error for one that is in use. It is called with the attachment, by
// the name of its interface on the host, whose interface is in the pod; empty for this one's.
func createVeth(host *netlink.Handle, pod *podNS, network, hostName, ifName string, cfg rest.DaemonConfigurationStatus, left func(other string) error) (veth, error) {
	var v veth
	var err error
	if v.hostMAC, err = randomMAC(); err != nil {
		return v, err
	}
	if v.podMAC, err = randomMAC(); err != nil {
		return v, err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = hostName
	attrs.HardwareAddr = v.hostMAC
	attrs.TxQLen = txQueueLen
	attrs.MTU = cfg.DeviceMTU
	attrs.GSOMaxSize, attrs.GROMaxSize = size(cfg.GSOMaxSize), size(cfg.GROMaxSize)
	attrs.GSOIPv4MaxSize, attrs.GROIPv4MaxSize = size(cfg.GSOIPv4MaxSize), size(cfg.GROIPv4MaxSize)
	link := &netlink.Veth{
		LinkAttrs:        attrs,
		PeerName:         ifName,
		PeerHardwareAddr: v.podMAC,
		PeerTxQLen:       txQueueLen,
		PeerMTU:          uint32(cfg.DeviceMTU),
		PeerNamespace:    netlink.NsFd(pod.f.Fd()),
	}
	err = host.LinkAdd(link)
	if errors.Is(err, unix.EEXIST) {
		other, err := ofAnother(host, pod, ifName, hostName)
		if err == nil {
			err = left(other)
		}
		if errors.Is(err, errForeign) {
			err = fmt.Errorf("%w; remove it, or have the runtime ask for another name", err)
		}
		if err != nil {
			return v, err
		}
		if err := errors.Join(pod.removeRules(ifName), removeVeth(host, hostName), removeVeth(pod.h, ifName)); err != nil {
			return v, fmt.Errorf("remove an interface left from an earlier attempt: %w", err)
		}
		if err := host.LinkAdd(link); err != nil {
			return v, fmt.Errorf("create the pair of %s and, in the pod, %s: %w", hostName, ifName, err)
		}
	} else if err != nil {
		return v, fmt.Errorf("create the pair of %s and, in the pod, %s: %w", hostName, ifName, err)
	}
	v.hostIndex = link.Attrs().Index
	if alias := networkAlias(network); alias != "" {
		if err := host.LinkSetAlias(link, alias); err != nil { // the kernel takes none with a new interface
			return v, errors.Join(fmt.Errorf("name the network of %s: %w", hostName, err), removeVeth(host, hostName))
		}
	}
	return v, nil
}

// errForeign means that an interface in a pod was made by another program.
var errForeign = errors.New("not Hawser's")

// ofAnother returns the name on the host of the interface that is called ifName in the pod, if it
// is that of another attachment than the one whose is called hostName: of a container that was
// given the same namespace. It is empty for what is not there, is this one's, or is going, as its
// other end is gone. Any other interface is an error, [errForeign]: it is in use for all that is
// known here.
func ofAnother(host *netlink.Handle, pod *podNS, ifName, hostName string) (string, error) {
	in, err := pod.h.LinkByName(ifName)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("look up %s in the pod: %w", ifName, err)
	}
	if in.Type() != "veth" {
		return "", fmt.Errorf("interface %s in the pod is a %s device and %w", ifName, in.Type(), errForeign)
	}
	if in.Attrs().ParentIndex == 0 {
		return "", nil
	}
	elsewhere := fmt.Errorf("interface %s in the pod is %w: its other end is not on the node", ifName, errForeign)
	out, err := host.LinkByIndex(in.Attrs().ParentIndex)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		if _, err := pod.h.LinkByIndex(in.Attrs().Index); errors.As(err, &netlink.LinkNotFoundError{}) {
			return "", nil // the pair was being removed
		}
		return "", elsewhere
	}
	if err != nil {
		return "", fmt.Errorf("look up the other end of %s in the pod: %w", ifName, err)
	}
	pair, err := isPair(host, pod, out, in)
	if err != nil {
		return "", err
	}
	switch name := out.Attrs().Name; {
	case !pair:
		return "", elsewhere
	case name == hostName:
		return "", nil
	case pluginLink(name):
		return name, nil
	default:
		return "", fmt.Errorf("interface %s in the pod is %w: its other end on the node is %s", ifName, errForeign, name)
	}
}

// isPair reports whether an interface of the host and one in a pod are the two ends of a veth pair.
func isPair(host *netlink.Handle, pod *podNS, out, in netlink.Link) (bool, error) {
	// The index may be that of an interface in a third namespace.
	there, err := host.GetNetNsIdByFd(int(pod.f.Fd()))
	if err != nil {
		return false, fmt.Errorf("look up the pod's network namespace: %w", err)
	}
	a, b := out.Attrs(), in.Attrs()
	return out.Type() == "veth" && in.Type() == "veth" && a.NetNsID == there && a.ParentIndex == b.Index && b.ParentIndex == a.Index, nil
}

func size(n int) uint32 { return uint32(max(n, 0)) }

// randomMAC returns a unicast address from the locally administered space.
func randomMAC() (net.HardwareAddr, error) {
	mac := make(net.HardwareAddr, 6)
	if _, err := rand.Read(mac); err != nil {
		return nil, fmt.Errorf("choose a hardware address: %w", err)
	}
	mac[0] = mac[0]&^0x01 | 0x02
	return mac, nil
}

// removeVeth removes an interface if it exists. What is no veth was not made by us and stays.
func removeVeth(h *netlink.Handle, name string) error { return removeOwnVeth(h, name, 0) }

// removeOwnVeth is removeVeth for the interface with an index only: one of that name with another
// was made by a second ADD for the same attachment, which has taken this one's place.
func removeOwnVeth(h *netlink.Handle, name string, index int) error {
	link, err := h.LinkByName(name)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look up interface %s: %w", name, err)
	}
	if index != 0 && link.Attrs().Index != index {
		return nil
	}
	if link.Type() != "veth" {
		return fmt.Errorf("interface %s is a %s device and not Hawser's", name, link.Type())
	}
	if err := h.LinkDel(link); err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("remove interface %s: %w", name, err)
	}
	return nil
}

// configurePod gives the pod's end its sizes, addresses and routes and brings it up.
func configurePod(pod *podNS, ifName string, addrs []address, cfg rest.DaemonConfigurationStatus) error {
	link, err := pod.h.LinkByName(ifName)
	if err != nil {
		return fmt.Errorf("look up %s in the pod: %w", ifName, err)
	}
	is := link.Attrs()
	for _, s := range []struct {
		size int
		have uint32
		set  func(netlink.Link, int) error
	}{
		{cfg.GSOMaxSize, is.GSOMaxSize, pod.h.LinkSetGSOMaxSize},
		{cfg.GROMaxSize, is.GROMaxSize, pod.h.LinkSetGROMaxSize},
		{cfg.GSOIPv4MaxSize, is.GSOIPv4MaxSize, pod.h.LinkSetGSOIPv4MaxSize},
		{cfg.GROIPv4MaxSize, is.GROIPv4MaxSize, pod.h.LinkSetGROIPv4MaxSize},
	} {
		if s.size > 0 && size(s.size) != s.have {
			if err := s.set(link, s.size); err != nil {
				return fmt.Errorf("set the segment size of %s to %d: %w", ifName, s.size, err)
			}
		}
	}
	for _, a := range addrs {
		addr := &netlink.Addr{IPNet: ipNet(a.ip)}
		if a.ip.Is6() {
			addr.Flags = unix.IFA_F_NODAD // the address is ours alone; don't make the pod wait
		}
		if err := pod.h.AddrAdd(link, addr); err != nil {
			return fmt.Errorf("add address %s to %s: %w", a.ip, ifName, err)
		}
	}
	if err := pod.h.LinkSetUp(link); err != nil {
		return fmt.Errorf("bring up %s: %w", ifName, err)
	}
	for i := range addrs {
		if err := addrs[i].route(pod.h, link.Attrs().Index, cfg.RouteMTU); err != nil {
			return err
		}
	}
	return nil
}

// address is one of the pod's addresses and the node's router address of its family.
type address struct {
	ip, router netip.Addr
	table      int // of its routes, if that is not the main one
}

// A pod's routes lead through its first interface. Those of each further one are in a table of its
// own, for what has its address: the programs on an interface drop all else. The table's number is
// the index of the interface added to firstTable, which leaves room for tables of the pod's own.
const (
	firstTable    = 1 << 20
	tablePriority = 30000 // before the main table, which has 32766
)

// route adds the address's routes through the interface with an index, to the main table unless one
// of another interface is in their place there.
func (a *address) route(pod *netlink.Handle, index, mtu int) error {
	err := a.routeIn(unix.RT_TABLE_MAIN, pod, index, mtu)
	if !errors.Is(err, unix.EEXIST) {
		return err
	}
	a.table = firstTable + index
	if err := a.routeIn(a.table, pod, index, mtu); err != nil {
		return err
	}
	if err := pod.RuleAdd(a.rule()); err != nil && !errors.Is(err, unix.EEXIST) { // of a DEL that was killed
		return fmt.Errorf("have the pod route what %s sends by table %d: %w", a.ip, a.table, err)
	}
	return nil
}

// routeIn adds the routes to a table: all, or none.
func (a *address) routeIn(table int, pod *netlink.Handle, index, mtu int) error {
	var added []netlink.Route
	for _, r := range a.routes(mtu) {
		r.LinkIndex, r.Table = index, table
		if err := pod.RouteAdd(&r); err != nil {
			err = fmt.Errorf("add route %s to table %d of the pod: %w", r.Dst, table, err)
			for _, r := range added {
				err = errors.Join(err, pod.RouteDel(&r))
			}
			return err
		}
		added = append(added, r)
	}
	return nil
}

// rule has packets from the address routed by its table.
func (a *address) rule() *netlink.Rule {
	r := netlink.NewRule()
	r.Src, r.Table, r.Priority = ipNet(a.ip), a.table, tablePriority
	return r
}

// rules lists the rules by which packets of the pod are routed by tables of its further interfaces.
func (ns *podNS) rules() ([]netlink.Rule, error) {
	all, err := netdump.List(func() ([]netlink.Rule, error) { return ns.h.RuleList(netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("list the pod's rules: %w", err)
	}
	return slices.DeleteFunc(all, func(r netlink.Rule) bool { return r.Table < firstTable || r.Src == nil }), nil
}

// removeRules removes those by which packets are routed by the table of an interface, which must be
// there still. The routes in it go with the interface.
func (ns *podNS) removeRules(ifName string) error {
	link, err := ns.h.LinkByName(ifName)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look up %s in the pod: %w", ifName, err)
	}
	rules, err := ns.rules()
	errs := []error{err}
	for _, r := range rules {
		if r.Table == firstTable+link.Attrs().Index {
			errs = append(errs, removeRule(ns.h, &r))
		}
	}
	return errors.Join(errs...)
}

func removeRule(pod *netlink.Handle, r *netlink.Rule) error {
	if err := pod.RuleDel(r); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove the pod's rule for %s: %w", r.Src, err)
	}
	return nil
}

// routes are those of the pod: the router is on the link, everything else behind it.
func (a address) routes(mtu int) []netlink.Route {
	toRouter := netlink.Route{Dst: ipNet(a.router)}
	if a.ip.Is4() {
		toRouter.Scope = netlink.SCOPE_LINK
	}
	return []netlink.Route{toRouter, {Dst: anyNet(a.ip), Gw: a.router.AsSlice(), MTU: mtu}}
}

func ipNet(ip netip.Addr) *net.IPNet {
	return &net.IPNet{IP: ip.AsSlice(), Mask: net.CIDRMask(ip.BitLen(), ip.BitLen())}
}

func anyNet(ip netip.Addr) *net.IPNet {
	return &net.IPNet{IP: make(net.IP, ip.BitLen()/8), Mask: net.CIDRMask(0, ip.BitLen())}
}

// podSysctls writes the kernel parameters of the pod's namespace; it must run inside of it.
// Failures are for the log only: a pod works without.
func podSysctls(cfg rest.DaemonConfigurationStatus, ipv6 bool) error {
	var errs []error
	set := func(path, value string) {
		if err := os.WriteFile("/proc/sys/net/"+path, []byte(value), 0o644); err != nil {
			errs = append(errs, fmt.Errorf("set kernel parameter net/%s: %w", path, err))
		}
	}
	if ipv6 {
		if b, err := os.ReadFile("/proc/sys/net/ipv6/conf/all/disable_ipv6"); err != nil || strings.TrimSpace(string(b)) != "0" {
			set("ipv6/conf/all/disable_ipv6", "0")
		}
	}
	if ports := cfg.IPLocalReservedPorts; ports != "" {
		const path = "ipv4/ip_local_reserved_ports"
		have, err := readOnce("/proc/sys/net/" + path)
		switch {
		case err != nil:
			errs = append(errs, fmt.Errorf("read kernel parameter net/%s: %w", path, err))
		case have == "" || have == ports:
			set(path, ports)
		default:
			set(path, have+","+ports) // the kernel merges
		}
	}
	switch mode := cfg.PacketizationLayerPMTUDMode; mode {
	case "", "unset":
	case "disabled":
		set("ipv4/tcp_mtu_probing", "0")
	case "blackhole", "always":
		probing := 1
		if mode == "always" {
			probing = 2
		}
		set("ipv4/tcp_mtu_probing", strconv.Itoa(probing))
		set("ipv4/tcp_base_mss", "1024")
		set("ipv4/tcp_mtu_probe_floor", "48")
	default:
		errs = append(errs, fmt.Errorf("the agent's mode of path MTU discovery, %q, is not known to this plugin", mode))
	}
	if cfg.EnableBBRHostNamespaceOnly {
		set("ipv4/tcp_congestion_control", "cubic")
	}
	return errors.Join(errs...)
}

// maxList is longer than a list of all ports can be, one by one.
const maxList = 1 << 19

// readOnce reads a list of the kernel whole: it gives what fits into the first read, and nothing
// afterwards.
func readOnce(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	buf := make([]byte, maxList)
	n, err := f.Read(buf)
	if err != nil && !errors.Is(err, io.EOF) {
		return "", err
	}
	return strings.TrimSpace(string(buf[:n])), nil
}
