package link

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/testenv"
)

// node is a network namespace with a device "eth0" whose other end is in a second one.
type node struct {
	*Links
	ns   netns.NsHandle
	far  netns.NsHandle
	h    *netlink.Handle
	peer *netlink.Handle
}

// newNS makes an unnamed namespace that goes when its last descriptor is closed.
func newNS(t testing.TB) netns.NsHandle {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: network namespaces")
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cur, err := netns.Get()
	if err != nil {
		t.Fatal(err)
	}
	defer cur.Close()
	ns, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	if err := netns.Set(cur); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ns.Close() })
	return ns
}

func handleAt(t testing.TB, ns netns.NsHandle) *netlink.Handle {
	t.Helper()
	h, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.Close)
	return h
}

func newNode(t testing.TB) *node {
	t.Helper()
	ns, far := newNS(t), newNS(t)
	n := &node{ns: ns, far: far, h: handleAt(t, ns), peer: handleAt(t, far)}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "eth0"
	must(t, n.h.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "eth0", PeerNamespace: netlink.NsFd(far)}))
	for h, addrs := range map[*netlink.Handle][]string{
		n.h:    {"192.0.2.1/24", "2001:db8::1/64"},
		n.peer: {"192.0.2.2/24", "2001:db8::2/64"},
	} {
		eth := linkNamed(t, h, "eth0")
		must(t, h.LinkSetUp(eth))
		must(t, h.LinkSetUp(linkNamed(t, h, "lo")))
		for _, a := range addrs {
			addr, err := netlink.ParseAddr(a)
			must(t, err)
			if strings.Contains(a, ":") {
				addr.Flags = unix.IFA_F_NODAD
			}
			must(t, h.AddrAdd(eth, addr))
		}
	}
	// Carrier is noticed a moment later, and shows in routes.
	deadline := time.Now().Add(10 * time.Second)
	for linkNamed(t, n.h, "eth0").Attrs().OperState != netlink.OperUp {
		if time.Now().After(deadline) {
			t.Fatal("eth0 has no carrier after 10s")
		}
		time.Sleep(time.Millisecond)
	}
	n.Links = newLinks(t, ns)
	return n
}

func newLinks(t testing.TB, ns netns.NsHandle) *Links {
	t.Helper()
	l, err := New(Config{NetNSFD: int(ns)}, slog.New(slog.NewTextHandler(t.Output(), nil)))
	must(t, err)
	t.Cleanup(l.Close)
	return l
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func linkNamed(t testing.TB, h *netlink.Handle, name string) netlink.Link {
	t.Helper()
	link, err := h.LinkByName(name)
	if err != nil {
		t.Fatalf("link %s: %v", name, err)
	}
	return link
}

// in runs fn in the node's namespace on a thread of its own.
func (n *node) in(t testing.TB, fn func() error) {
	t.Helper()
	must(t, n.inNS(fn))
}

// output runs a command in the node's namespace.
func (n *node) output(t testing.TB, name string, args ...string) string {
	t.Helper()
	var out []byte
	n.in(t, func() error {
		var err error
		if out, err = exec.Command(name, args...).CombinedOutput(); err != nil {
			return fmt.Errorf("%s %v: %w: %s", name, args, err, out)
		}
		return nil
	})
	return string(out)
}

// dump is everything on the node that SetNode may change, with counters left out, when the kernel
// has done what follows by itself: found no duplicate of the addresses, and that the node's own
// pair is connected, which it reports up to a second late.
func (n *node) dump(t testing.TB) string {
	t.Helper()
	unsettled := regexp.MustCompile(` tentative|hawser_(net|host)@.*NO-CARRIER`)
	text := n.dumpNow(t)
	for deadline := time.Now().Add(10 * time.Second); unsettled.MatchString(text) && time.Now().Before(deadline); {
		time.Sleep(50 * time.Millisecond)
		text = n.dumpNow(t)
	}
	return text
}

func (n *node) dumpNow(t testing.TB) string {
	t.Helper()
	var b strings.Builder
	for _, c := range [][]string{
		{"ip", "-d", "link"}, {"ip", "addr"}, {"ip", "route", "show", "table", "all"},
		{"ip", "-6", "route", "show", "table", "all"}, {"ip", "neigh", "show", "nud", "permanent"}, {"nft", "list", "ruleset"},
	} {
		b.WriteString(n.output(t, c[0], c[1:]...))
	}
	return b.String()
}

func (n *node) sysctl(t testing.TB, path string) string {
	t.Helper()
	var b []byte
	n.in(t, func() error {
		var err error
		b, err = os.ReadFile(filepath.Join("/proc/sys", path))
		return err
	})
	return strings.TrimSpace(string(b))
}

// tunnelNode is a dual-stack node in tunnel mode with two peers.
func tunnelNode() datapath.Node {
	return datapath.Node{
		Tunnel: true, Device: "eth0",
		RouterIPv4:   netip.MustParseAddr("10.1.0.1"),
		RouterIPv6:   netip.MustParseAddr("fd00:1::1"),
		PodCIDRs:     []netip.Prefix{netip.MustParsePrefix("10.1.0.0/24"), netip.MustParsePrefix("fd00:1::/112")},
		ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/16")},
		Masquerade4:  true, Masquerade6: true,
		Peers: []datapath.Peer{
			{
				Name: "two", IPv4: netip.MustParseAddr("192.0.2.2"), IPv6: netip.MustParseAddr("2001:db8::2"),
				PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.2.0.0/24"), netip.MustParsePrefix("fd00:2::/112")},
			},
			{
				Name: "three", IPv4: netip.MustParseAddr("192.0.2.3"), IPv6: netip.MustParseAddr("2001:db8::3"),
				PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.3.0.0/24"), netip.MustParsePrefix("fd00:3::/112")},
			},
		},
	}
}

func nativeNode() datapath.Node {
	n := tunnelNode()
	n.Tunnel, n.DirectRoutes = false, true
	return n
}

func TestSetNodeIsIdempotent(t *testing.T) {
	for name, desired := range map[string]datapath.Node{"tunnel": tunnelNode(), "native": nativeNode()} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			first, err := n.SetNode(desired)
			must(t, err)
			before := n.dump(t)

			restarted := newLinks(t, n.ns)
			second, err := restarted.SetNode(desired)
			must(t, err)
			if diff := cmp.Diff(first, second); diff != "" {
				t.Errorf("devices after restart (-first +second):\n%s", diff)
			}
			if diff := cmp.Diff(before, n.dump(t)); diff != "" {
				t.Errorf("a restart changed the node (-before +after):\n%s", diff)
			}
		})
	}
}

func TestSetNodeTunnel(t *testing.T) {
	n := newNode(t)
	d, err := n.SetNode(tunnelNode())
	must(t, err)
	if d.DeviceMTU != 1500 || d.RouteMTU != 1450 {
		t.Errorf("MTU %d, route MTU %d, want 1500 and 1450", d.DeviceMTU, d.RouteMTU)
	}
	host := linkNamed(t, n.h, HostDevice)
	if d.HostIfIndex != host.Attrs().Index || d.HostMAC.String() != host.Attrs().HardwareAddr.String() {
		t.Errorf("host device facts %+v do not match %+v", d, host.Attrs())
	}
	if d.NativeIfIndex != linkNamed(t, n.h, "eth0").Attrs().Index {
		t.Errorf("native index %d is not eth0's", d.NativeIfIndex)
	}
	vx := linkNamed(t, n.h, TunnelDevice).(*netlink.Vxlan)
	if !vx.FlowBased || vx.Port != DefaultTunnelPort || vx.Index != d.TunnelIfIndex {
		t.Errorf("tunnel device %+v", vx)
	}
	if vx.Flags&net.FlagUp != 0 {
		t.Error("the tunnel device is up without a program")
	}
	routes := n.output(t, "ip", "route") + n.output(t, "ip", "-6", "route")
	for _, want := range []string{
		"10.2.0.0/24 via 10.1.0.1 dev hawser_host proto 72 src 10.1.0.1 mtu 1450",
		"10.3.0.0/24 via 10.1.0.1 dev hawser_host proto 72 src 10.1.0.1 mtu 1450",
		"unreachable 10.1.0.0/24 proto 72",
		"fd00:2::/112 via fe80::1 dev hawser_host proto 72 src fd00:1::1 metric 1024 mtu 1450",
		"unreachable fd00:1::/112 dev lo proto 72",
	} {
		if !strings.Contains(routes, want) {
			t.Errorf("no route %q in\n%s", want, routes)
		}
	}
	for path, want := range map[string]string{
		"net/ipv4/ip_forward":                     "1",
		"net/ipv6/conf/all/forwarding":            "1",
		"net/ipv4/conf/all/rp_filter":             "0",
		"net/ipv6/conf/eth0/accept_ra":            "2",
		"net/ipv4/conf/hawser_host/rp_filter":     "0",
		"net/ipv4/conf/hawser_host/accept_local":  "1",
		"net/ipv4/conf/hawser_net/accept_local":   "0",
		"net/ipv4/conf/hawser_vxlan/accept_local": "0",
		"net/ipv4/conf/hawser_vxlan/rp_filter":    "0",
		"net/ipv4/conf/hawser_net/forwarding":     "1",
		"net/ipv4/conf/all/send_redirects":        "0",
		"net/ipv4/conf/hawser_net/send_redirects": "0",
	} {
		if got := n.sysctl(t, path); got != want {
			t.Errorf("%s is %s, want %s", path, got, want)
		}
	}
	// An address of the node's own network that no pod has must not follow the default route.
	n.output(t, "ip", "route", "add", "default", "via", "192.0.2.2")
	for _, ip := range []string{"10.1.0.77", "fd00:1::77"} {
		var err error
		n.in(t, func() error { _, err = n.h.RouteGet(net.ParseIP(ip)); return nil })
		if err == nil {
			t.Errorf("there is a route to %s, which no pod has", ip)
		}
	}
}

func TestSetNodeNative(t *testing.T) {
	n := newNode(t)
	_, err := n.SetNode(tunnelNode())
	must(t, err)
	d, err := n.SetNode(nativeNode())
	must(t, err)
	if d.RouteMTU != 0 || d.TunnelIfIndex != 0 {
		t.Errorf("native mode gave %+v", d)
	}
	if _, err := n.h.LinkByName(TunnelDevice); err == nil {
		t.Error("the tunnel device survived the change to native routing")
	}
	routes := n.output(t, "ip", "route") + n.output(t, "ip", "-6", "route")
	for _, want := range []string{
		"10.2.0.0/24 via 192.0.2.2 dev eth0 proto 72 src 10.1.0.1",
		"fd00:3::/112 via 2001:db8::3 dev eth0 proto 72 src fd00:1::1 metric 1024",
	} {
		if !strings.Contains(routes, want) {
			t.Errorf("no route %q in\n%s", want, routes)
		}
	}
	if strings.Contains(routes, "mtu") {
		t.Errorf("native routes carry an MTU:\n%s", routes)
	}
}

// TestSetNodeWithoutEthernet: a device whose packets have no Ethernet header is refused by name, in
// every mode, before anything is changed.
func TestSetNodeWithoutEthernet(t *testing.T) {
	for name, desired := range map[string]datapath.Node{"tunnel": tunnelNode(), "native": nativeNode()} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			n.output(t, "ip", "tuntap", "add", "dev", "tun0", "mode", "tun")
			desired.Device = "tun0"
			_, err := n.SetNode(desired)
			if err == nil || !strings.Contains(err.Error(), "tun0") || !strings.Contains(err.Error(), "--devices") {
				t.Errorf("a device without Ethernet headers: %v", err)
			}
			if _, err := n.h.LinkByName(HostDevice); err == nil {
				t.Error("devices were made for a node that cannot be")
			}
		})
	}
}

func TestSetNodeFollowsPeersAndLeavesForeignRoutes(t *testing.T) {
	n := newNode(t)
	_, err := n.SetNode(tunnelNode())
	must(t, err)
	n.output(t, "ip", "route", "add", "198.51.100.0/24", "via", "192.0.2.2")
	n.output(t, "ip", "route", "add", "10.9.0.0/24", "via", "192.0.2.2")

	desired := tunnelNode()
	desired.Peers = desired.Peers[:1]
	desired.Peers[0].PodCIDRs = append(desired.Peers[0].PodCIDRs,
		netip.MustParsePrefix("10.4.0.0/24"), // new
		netip.MustParsePrefix("10.9.0.0/24"), // a foreign route is there
		netip.MustParsePrefix("0.0.0.0/0"),   // would take all traffic
		netip.MustParsePrefix("10.1.0.0/24")) // our own
	_, err = n.SetNode(desired)
	for _, want := range []string{"10.9.0.0/24", "not Hawser's", "0.0.0.0/0", "this node's pod network"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not say %q", err, want)
		}
	}
	routes := n.output(t, "ip", "route")
	for want, present := range map[string]bool{
		"10.2.0.0/24 via 10.1.0.1":      true,
		"10.3.0.0/24":                   false,
		"10.4.0.0/24 via 10.1.0.1":      true,
		"10.9.0.0/24 via 192.0.2.2":     true,
		"198.51.100.0/24 via 192.0.2.2": true,
		"default":                       false,
		"unreachable 10.1.0.0/24":       true,
	} {
		if strings.Contains(routes, want) != present {
			t.Errorf("route %q present: %v, want %v, in\n%s", want, !present, present, routes)
		}
	}
}

func TestNewInTheCurrentNamespace(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: netlink")
	}
	l, err := New(Config{}, nil)
	must(t, err)
	defer l.Close()
	if _, err := l.EndpointLinks(); err != nil {
		t.Error(err)
	}
	for _, cfg := range []Config{{NetNSFD: -1}, {NetNSFD: 9999}, {DeleteWindow: time.Hour}} {
		if l, err := New(cfg, nil); err == nil {
			l.Close()
			t.Errorf("no error for %+v", cfg)
		}
	}
}

func TestSetNodeRefuses(t *testing.T) {
	n := newNode(t)
	for name, test := range map[string]struct {
		change func(*datapath.Node)
		want   string
	}{
		"no router":                          {func(d *datapath.Node) { d.RouterIPv4, d.RouterIPv6 = netip.Addr{}, netip.Addr{} }, "no router address"},
		"swapped families":                   {func(d *datapath.Node) { d.RouterIPv4 = d.RouterIPv6 }, "is not IPv4"},
		"no device":                          {func(d *datapath.Node) { d.Tunnel, d.Device = false, "" }, "needs the device"},
		"unknown device":                     {func(d *datapath.Node) { d.Device = "nope0" }, "nope0"},
		"small MTU":                          {func(d *datapath.Node) { d.MTU = 576 }, "MTU 576"},
		"large MTU":                          {func(d *datapath.Node) { d.MTU = 9000 }, "larger than the 1500"},
		"MTU too small for IPv6 in a tunnel": {func(d *datapath.Node) { d.MTU = 1300 }, "below the 1280"},
	} {
		t.Run(name, func(t *testing.T) {
			desired := tunnelNode()
			test.change(&desired)
			_, err := n.SetNode(desired)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got error %v, want one saying %q", err, test.want)
			}
		})
	}
}

func TestMTUFollowsUnderlayFamily(t *testing.T) {
	n := newNode(t)
	eth := linkNamed(t, n.h, "eth0")
	addrs, err := n.h.AddrList(eth, unix.AF_INET)
	must(t, err)
	for _, a := range addrs {
		must(t, n.h.AddrDel(eth, &a))
	}
	d, err := n.SetNode(tunnelNode())
	must(t, err)
	if d.RouteMTU != 1430 {
		t.Errorf("route MTU over IPv6 is %d, want 1430", d.RouteMTU)
	}
}

// pod is a veth pair with its pod's end in a namespace of its own, as the CNI plugin makes it.
func (n *node) pod(t testing.TB, number int) datapath.Endpoint {
	t.Helper()
	return n.podIn(t, number, newNS(t))
}

func (n *node) podIn(t testing.TB, number int, ns netns.NsHandle) datapath.Endpoint {
	t.Helper()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = fmt.Sprintf("lxc%012x", number)
	mac := net.HardwareAddr{2, 0, 0, 0, byte(number >> 8), byte(number)}
	must(t, n.h.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: fmt.Sprintf("p%d", number), PeerNamespace: netlink.NsFd(ns), PeerHardwareAddr: mac}))
	link := linkNamed(t, n.h, attrs.Name)
	v4 := netip.AddrFrom4([4]byte{10, 1, byte(number >> 8), byte(number)})
	return datapath.Endpoint{
		ID: uint16(number), IfIndex: link.Attrs().Index, IfName: attrs.Name,
		MAC: mac, HostMAC: link.Attrs().HardwareAddr,
		IPv4: v4, IPv6: netip.MustParseAddr(fmt.Sprintf("fd00:1::%x", number)),
	}
}

func TestEnsureEndpoint(t *testing.T) {
	n := newNode(t)
	_, err := n.SetNode(tunnelNode())
	must(t, err)
	ep := n.pod(t, 5)
	links, err := n.EndpointLinks()
	must(t, err)
	if len(links) != 1 || links[0].Name != ep.IfName || links[0].Up || links[0].IfIndex != ep.IfIndex {
		t.Fatalf("links before: %+v", links)
	}
	must(t, n.EnsureEndpoint(ep))
	before := n.dump(t)
	for _, want := range []string{
		"10.1.0.5 dev lxc000000000005 proto 72 scope link src 10.1.0.1",
		"fd00:1::5 dev lxc000000000005 proto 72 src fd00:1::1",
		"10.1.0.5 dev lxc000000000005 lladdr 02:00:00:00:00:05 PERMANENT",
		"fd00:1::5 dev lxc000000000005 lladdr 02:00:00:00:00:05 PERMANENT",
	} {
		if !strings.Contains(before, want) {
			t.Errorf("%q is missing in\n%s", want, before)
		}
	}
	if got := n.sysctl(t, "net/ipv4/conf/"+ep.IfName+"/rp_filter"); got != "0" {
		t.Errorf("rp_filter is %s", got)
	}
	if got := n.sysctl(t, "net/ipv4/conf/"+ep.IfName+"/send_redirects"); got != "0" {
		t.Errorf("send_redirects is %s", got)
	}
	if strings.Contains(n.output(t, "ip", "-6", "addr", "show", "dev", ep.IfName), "inet6") {
		t.Error("the host side has an IPv6 address of its own")
	}
	links, err = n.EndpointLinks()
	must(t, err)
	if !links[0].Up {
		t.Error("the interface is not up")
	}

	// Again, and after a restart: nothing changes.
	must(t, n.EnsureEndpoint(ep))
	again := newLinks(t, n.ns)
	_, err = again.SetNode(tunnelNode())
	must(t, err)
	must(t, again.EnsureEndpoint(ep))
	if diff := cmp.Diff(before, n.dump(t)); diff != "" {
		t.Errorf("repeating changed the node (-before +after):\n%s", diff)
	}

	// Another router address: the endpoints' routes follow instead of vanishing with the old one.
	desired := tunnelNode()
	desired.RouterIPv4 = netip.MustParseAddr("10.1.0.254")
	desired.RouterIPv6 = netip.MustParseAddr("fd00:1::fe")
	_, err = again.SetNode(desired)
	must(t, err)
	routes := n.output(t, "ip", "route") + n.output(t, "ip", "-6", "route") + n.output(t, "ip", "addr")
	for want, present := range map[string]bool{
		"10.1.0.5 dev lxc000000000005 proto 72 scope link src 10.1.0.254": true,
		"fd00:1::5 dev lxc000000000005 proto 72 src fd00:1::fe":           true,
		"10.2.0.0/24 via 10.1.0.254 dev hawser_host":                      true,
		"10.1.0.1/32": false,
		"fd00:1::1/":  false,
	} {
		if strings.Contains(routes, want) != present {
			t.Errorf("%q present: %v, want %v, in\n%s", want, !present, present, routes)
		}
	}
}

func TestEnsureEndpointFaults(t *testing.T) {
	n := newNode(t)
	_, err := n.SetNode(tunnelNode())
	must(t, err)
	mac := net.HardwareAddr{2, 0, 0, 0, 0, 1}
	for name, ep := range map[string]datapath.Endpoint{
		"no index":   {ID: 1, MAC: mac},
		"no MAC":     {ID: 1, IfIndex: 1},
		"no such if": {ID: 1, IfIndex: 99999, MAC: mac, IPv4: netip.MustParseAddr("10.1.0.9")},
	} {
		if err := n.EnsureEndpoint(ep); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if routes := n.output(t, "ip", "route"); strings.Contains(routes, "10.1.0.9") {
		t.Errorf("a failed call left a route:\n%s", routes)
	}
}

func TestDeleteEndpoints(t *testing.T) {
	defer testenv.VerifyNone(t)
	n := newNode(t)
	_, err := n.SetNode(tunnelNode())
	must(t, err)
	empty := n.dump(t)
	n.output(t, "ip", "link", "add", "lxcbr0", "type", "bridge")
	n.output(t, "ip", "link", "del", "lxcbr0")

	var batches atomic.Int32
	done := make(chan int, 64)
	n.removed = func(size int) { batches.Add(1); done <- size }
	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan error, 1)
	go func() { stopped <- n.Run(ctx) }()

	const pods = 20
	ns := newNS(t)
	var eps []datapath.Endpoint
	for i := range pods {
		ep := n.podIn(t, i+2, ns)
		must(t, n.EnsureEndpoint(ep))
		eps = append(eps, ep)
	}
	for _, ep := range eps {
		must(t, n.DeleteEndpoint(ep.IfName, ep.IfIndex))
		must(t, n.DeleteEndpoint(ep.IfName, ep.IfIndex)) // twice is fine
	}
	if links, err := n.EndpointLinks(); err != nil || len(links) != 0 {
		t.Errorf("doomed interfaces are still listed: %v %v", links, err)
	}
	for total := 0; total < pods; {
		select {
		case size := <-done:
			total += size
		case <-time.After(30 * time.Second):
			t.Fatalf("%d of %d removed", total, pods)
		}
	}
	if n := batches.Load(); n > 3 {
		t.Errorf("%d removals for %d pods that went at once", n, pods)
	}
	if diff := cmp.Diff(empty, n.dump(t)); diff != "" {
		t.Errorf("left behind (-before +after):\n%s", diff)
	}

	// By name, unknown ones, and those queued when Run ends.
	ep := n.podIn(t, 2, ns)
	must(t, n.DeleteEndpoint(ep.IfName, 0))
	must(t, n.DeleteEndpoint("lxcdoesnotexist", 0))
	must(t, n.DeleteEndpoint("lxcdoesnotexist", 424242))
	cancel()
	must(t, <-stopped)
	if _, err := n.h.LinkByName(ep.IfName); err == nil {
		t.Error("Run ended without removing what was queued")
	}
}

func TestDeleteEndpointRemovesOnlyPods(t *testing.T) {
	n := newNode(t)
	eth := linkNamed(t, n.h, "eth0")
	if err := n.DeleteEndpoint("eth0", eth.Attrs().Index); err == nil {
		t.Error("no error for eth0")
	}
	// The index was taken over by another interface, as after a crash between two agents.
	must(t, n.DeleteEndpoint("lxc000000000001", eth.Attrs().Index))
	if err := n.Flush(); err == nil {
		t.Error("no error for a foreign index")
	}
	linkNamed(t, n.h, "eth0")

	n.output(t, "ip", "link", "add", "lxcbr0", "type", "bridge")
	if links, err := n.EndpointLinks(); err != nil || len(links) != 0 {
		t.Errorf("a bridge is taken for a pod: %v %v", links, err)
	}
}

// An address that goes to another pod before the interface of its first one is gone stays with the
// other.
func TestAddressMovesToAnotherPod(t *testing.T) {
	n := newNode(t)
	_, err := n.SetNode(tunnelNode())
	must(t, err)
	ns := newNS(t)
	old, next := n.podIn(t, 4, ns), n.podIn(t, 5, ns)
	must(t, n.EnsureEndpoint(old))
	must(t, n.DeleteEndpoint(old.IfName, old.IfIndex))
	next.IPv4, next.IPv6 = old.IPv4, old.IPv6
	must(t, n.EnsureEndpoint(next))
	for range 2 {
		for _, ip := range []netip.Addr{next.IPv4, next.IPv6} {
			routes, err := n.h.RouteGet(ip.AsSlice())
			if err != nil || len(routes) != 1 || routes[0].LinkIndex != next.IfIndex {
				t.Errorf("route to %s: %v, %v, want interface %d", ip, routes, err, next.IfIndex)
			}
		}
		must(t, n.Flush())
	}
}

func TestManyPeers(t *testing.T) {
	n := newNode(t)
	desired := tunnelNode()
	desired.ClusterCIDRs, desired.Peers = nil, nil
	const peers = 3*maxBatch + 1
	for i := range peers {
		desired.Peers = append(desired.Peers, datapath.Peer{
			Name: fmt.Sprint("node", i), IPv4: netip.MustParseAddr("192.0.2.9"),
			PodCIDRs: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 100, byte(i >> 8), byte(i)}), 32)},
		})
	}
	_, err := n.SetNode(desired)
	must(t, err)
	count := func() int { return strings.Count(n.output(t, "ip", "route"), "10.100.") }
	if got := count(); got != peers {
		t.Errorf("%d routes, want %d", got, peers)
	}
	desired.Peers = desired.Peers[:1]
	_, err = n.SetNode(desired)
	must(t, err)
	if got := count(); got != 1 {
		t.Errorf("%d routes, want 1", got)
	}
}

// An agent that dies between marking and removing leaves interfaces in the group; the next removal
// takes them along.
func TestDeleteAfterCrash(t *testing.T) {
	n := newNode(t)
	ns := newNS(t)
	a, b := n.podIn(t, 1, ns), n.podIn(t, 2, ns)
	must(t, errors.Join(n.rt.run(linkGroup(a.IfIndex, RemovalGroup))...))
	restarted := newLinks(t, n.ns)
	must(t, restarted.DeleteEndpoint(b.IfName, b.IfIndex))
	must(t, restarted.Flush())
	for _, ep := range []datapath.Endpoint{a, b} {
		if _, err := n.h.LinkByName(ep.IfName); err == nil {
			t.Errorf("%s is still there", ep.IfName)
		}
	}
}

// loadProgram loads "return 0" as a classifier through bpf(2), since this package links no loader.
func loadProgram(t testing.TB) int {
	t.Helper()
	insns := []uint64{0x00000000000000b7, 0x0000000000000095} // r0 = 0; exit
	license := []byte("GPL\x00")
	attr := struct {
		progType, insnCnt uint32
		insns, license    uint64
		logLevel, logSize uint32
		logBuf            uint64
		kernVersion       uint32
		flags             uint32
	}{
		progType: unix.BPF_PROG_TYPE_SCHED_CLS, insnCnt: 2,
		insns:   uint64(uintptr(unsafe.Pointer(&insns[0]))),
		license: uint64(uintptr(unsafe.Pointer(&license[0]))),
	}
	var fd uintptr
	errno := unix.EAGAIN
	// The verifier gives up when a signal is pending, such as the runtime's own (bpf(2)).
	for tries := 0; errno == unix.EAGAIN && tries < 20; tries++ {
		fd, _, errno = unix.Syscall(unix.SYS_BPF, unix.BPF_PROG_LOAD, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr))
	}
	runtime.KeepAlive(insns)
	runtime.KeepAlive(license)
	if errno != 0 {
		t.Fatalf("load program: %v", errno)
	}
	t.Cleanup(func() { unix.Close(int(fd)) })
	return int(fd)
}

// programID asks the kernel for the number of a program (BPF_OBJ_GET_INFO_BY_FD).
func programID(t testing.TB, fd int) int {
	t.Helper()
	info := make([]byte, 8)
	attr := struct {
		fd, len uint32
		info    uint64
	}{uint32(fd), 8, uint64(uintptr(unsafe.Pointer(&info[0])))}
	_, _, errno := unix.Syscall(unix.SYS_BPF, unix.BPF_OBJ_GET_INFO_BY_FD, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr))
	runtime.KeepAlive(info)
	if errno != 0 {
		t.Fatalf("program info: %v", errno)
	}
	return int(binary.NativeEndian.Uint32(info[4:]))
}

func TestFilters(t *testing.T) {
	n := newNode(t)
	d, err := n.SetNode(tunnelNode())
	must(t, err)
	one, two := loadProgram(t), loadProgram(t)
	for _, ingress := range []bool{true, false} {
		if id, err := n.FilterProgram(d.HostIfIndex, ingress); err != nil || id != 0 {
			t.Errorf("before: program %d, %v", id, err)
		}
		for _, fd := range []int{one, one, two} {
			must(t, n.ReplaceFilter(d.HostIfIndex, ingress, fd, "test"))
			if id, err := n.FilterProgram(d.HostIfIndex, ingress); err != nil || id != programID(t, fd) {
				t.Errorf("program is %d, want %d, %v", id, programID(t, fd), err)
			}
		}
	}
	if out := n.output(t, "tc", "filter", "show", "dev", HostDevice, "ingress"); strings.Count(out, "direct-action") != 1 {
		t.Errorf("want one filter, direct action:\n%s", out)
	}
	if err := n.ReplaceFilter(99999, true, one, "test"); err == nil {
		t.Error("no error for an interface that is not there")
	}
	if err := n.ReplaceFilter(d.HostIfIndex, true, 9999, "test"); err == nil {
		t.Error("no error for a descriptor that is no program")
	}

	// The tunnel device comes up with its program, and stays up over a restart.
	must(t, n.ReplaceFilter(d.TunnelIfIndex, false, one, "test"))
	if linkNamed(t, n.h, TunnelDevice).Attrs().Flags&net.FlagUp != 0 {
		t.Error("the tunnel is up with an egress program only")
	}
	must(t, n.ReplaceFilter(d.TunnelIfIndex, true, one, "test"))
	if linkNamed(t, n.h, TunnelDevice).Attrs().Flags&net.FlagUp == 0 {
		t.Error("the tunnel is down with its program")
	}
	_, err = newLinks(t, n.ns).SetNode(tunnelNode())
	must(t, err)
	if linkNamed(t, n.h, TunnelDevice).Attrs().Flags&net.FlagUp == 0 {
		t.Error("a restart took the tunnel down")
	}
}

func TestCleanUp(t *testing.T) {
	n := newNode(t)
	must(t, n.CleanUp()) // nothing there
	links := func() []string {
		list, err := n.h.LinkList()
		must(t, err)
		var out []string
		for _, l := range list {
			out = append(out, l.Attrs().Name)
		}
		slices.Sort(out)
		return out
	}
	before, routes := links(), n.output(t, "ip", "route")
	_, err := n.SetNode(tunnelNode())
	must(t, err)
	must(t, n.CleanUp())
	if diff := cmp.Diff(before, links()); diff != "" {
		t.Errorf("links (-before +after):\n%s", diff)
	}
	if diff := cmp.Diff(routes, n.output(t, "ip", "route")); diff != "" {
		t.Errorf("routes (-before +after):\n%s", diff)
	}
	if out := n.output(t, "nft", "list", "ruleset"); out != "" {
		t.Errorf("nftables:\n%s", out)
	}
	_, err = n.SetNode(tunnelNode())
	must(t, err)
}
