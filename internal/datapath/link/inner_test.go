package link

import (
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/testenv"
)

// TestInner makes an endpoint that is a part of this process, twice: the second takes the first
// one's place. When it is released its interface is gone.
func TestInner(t *testing.T) {
	n := newNode(t)
	if _, err := n.SetNode(tunnelNode()); err != nil {
		t.Fatal(err)
	}
	node := tunnelNode()
	addrs := []InnerAddress{
		{IP: netip.MustParseAddr("10.0.1.77"), Router: node.RouterIPv4}, {IP: netip.MustParseAddr("fd00:1::77"), Router: node.RouterIPv6},
	}
	before, err := os.Readlink("/proc/self/ns/net")
	must(t, err)
	for range 50 { // on whichever thread
		ns, err := newNamespace()
		must(t, err)
		ns.Close()
	}
	if after, err := os.Readlink("/proc/self/ns/net"); err != nil || after != before {
		t.Fatalf("the process is in %s, it was in %s: %v", after, before, err)
	}
	first, err := n.AddInner("lxc_test", addrs, 1400, 1350)
	must(t, err)
	defer first.Close()
	in, err := n.AddInner("lxc_test", addrs, 1400, 1350)
	must(t, err)
	list, err := n.EndpointLinks()
	must(t, err)
	if len(list) != 1 || list[0].Name != "lxc_test" || list[0].IfIndex != in.IfIndex || list[0].Up || list[0].MAC.String() != in.HostMAC.String() || first.IfIndex == in.IfIndex {
		t.Fatalf("interfaces %+v, want one that is down: %+v, not %+v", list, in, first)
	}
	h, err := netlink.NewHandleAt(netns.NsHandle(in.ns.Fd()), unix.NETLINK_ROUTE)
	must(t, err)
	defer h.Close()
	inside := linkNamed(t, h, "eth0")
	if inside.Attrs().MTU != 1400 || inside.Attrs().HardwareAddr.String() != in.MAC.String() {
		t.Errorf("inside: %+v", inside.Attrs())
	}
	for family, want := range map[int]int{unix.AF_INET: 1350, unix.AF_INET6: 1350} {
		routes, err := h.RouteList(inside, family)
		must(t, err)
		found := false
		for _, r := range routes {
			found = found || r.Gw != nil && r.MTU == want
		}
		if !found {
			t.Errorf("no default route with MTU %d: %v", want, routes)
		}
	}
	must(t, n.EnsureEndpoint(datapath.Endpoint{
		ID: 1, IfIndex: in.IfIndex, IfName: "lxc_test", MAC: in.MAC, HostMAC: in.HostMAC, IPv4: addrs[0].IP, IPv6: addrs[1].IP, Incarnation: 1,
	}))
	for _, a := range addrs {
		l, err := in.Listen(netip.AddrPortFrom(a.IP, 4240))
		must(t, err)
		l.Close()
	}
	if l, err := n.Links.h.LinkByName("eth0"); err != nil || n.RemoveInner("eth0") == nil {
		t.Errorf("an interface of another program is removed: %v, %v", l, err)
	}
	h.Close()
	in.Close()
	testenv.Eventually(t, time.Minute, func() string {
		if list, err := n.EndpointLinks(); err != nil || len(list) > 0 {
			return "the interface is there without its namespace"
		}
		return ""
	})
	must(t, n.RemoveInner("lxc_test"))
}

// TestInnerWhereIPv6IsOff: a namespace may begin with IPv6 switched off, as the host has it; an
// endpoint that is to have an address of it has one.
func TestInnerWhereIPv6IsOff(t *testing.T) {
	n := newNode(t)
	node := tunnelNode()
	ns, err := newNamespace()
	must(t, err)
	in := &Inner{ns: ns}
	defer in.Close()
	must(t, visit(ns, func() error { return apply([]setting{{path: "net/ipv6/conf/default/disable_ipv6", value: "1"}}) }))
	addrs := []InnerAddress{
		{IP: netip.MustParseAddr("10.0.1.77"), Router: node.RouterIPv4}, {IP: netip.MustParseAddr("fd00:1::77"), Router: node.RouterIPv6},
	}
	must(t, n.fillInner(in, "lxc_test", addrs, 1400, 1350))
	if in.Lacks != nil || len(in.IPs) != 2 {
		t.Errorf("it has %v: %v", in.IPs, in.Lacks)
	}
}

// TestInnerOfOneFamily: a family that does not work, here since its packets do not fit, leaves the
// other.
func TestInnerOfOneFamily(t *testing.T) {
	n := newNode(t)
	node := tunnelNode()
	addrs := []InnerAddress{
		{IP: netip.MustParseAddr("10.0.1.77"), Router: node.RouterIPv4}, {IP: netip.MustParseAddr("fd00:1::77"), Router: node.RouterIPv6},
	}
	in, err := n.AddInner("lxc_test", addrs, 1200, 0)
	must(t, err)
	defer in.Close()
	if len(in.IPs) != 1 || in.IPs[0] != addrs[0].IP || in.Lacks == nil {
		t.Errorf("it has %v: %v", in.IPs, in.Lacks)
	}
	l, err := in.Listen(netip.AddrPortFrom(addrs[0].IP, 4240))
	must(t, err)
	l.Close()
	if _, err := n.AddInner("lxc_test", addrs[1:], 1200, 0); err == nil {
		t.Error("an endpoint without any address")
	}
}
