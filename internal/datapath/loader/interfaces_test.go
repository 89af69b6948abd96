package loader_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/datapath/link"
	"github.com/hawser-net/hawser/internal/datapath/loader"
	"github.com/hawser-net/hawser/internal/testenv"
)

// vpc is the network of a cloud: a router with a wire to each interface. It leads to an interface
// what is for addresses that are assigned to it, and takes of IPv4 only what is from these.
type vpc struct {
	ns *testenv.NetNS
	h  *netlink.Handle
}

func newVPC(t testing.TB) *vpc {
	v := &vpc{ns: testenv.NewNetNS(t)}
	v.h = v.ns.Netlink(t)
	v.sysctl(t, "net/ipv4/ip_forward", "1")
	v.sysctl(t, "net/ipv6/conf/all/forwarding", "1")
	v.sysctl(t, "net/ipv4/conf/all/rp_filter", "0")
	v.sysctl(t, "net/ipv4/conf/default/rp_filter", "1")
	return v
}

func (v *vpc) sysctl(t testing.TB, path, value string) {
	t.Helper()
	must(t, v.ns.Do(func() error { return os.WriteFile("/proc/sys/"+path, []byte(value), 0) }))
}

// gateways are the router's addresses in subnet k.
func gateways(k int) (v4, v6 netip.Addr) { return ip("10.200.%d.1", k), ip("fd00:200:%d::1", k) }

// wire attaches an interface, in subnet k, to a node, as a cloud does: it is down, and has the
// address that the operating system gives it.
func (v *vpc) wire(t testing.TB, ns *testenv.NetNS, name string, k int) net.HardwareAddr {
	t.Helper()
	mac := v.bare(t, ns, name, k)
	h := ns.Netlink(t)
	addAddr(t, h, byName(t, h, name), ip("10.200.%d.4", k), 32)
	return mac
}

// bare is wire without an address.
func (v *vpc) bare(t testing.TB, ns *testenv.NetNS, name string, k int) net.HardwareAddr {
	t.Helper()
	h := ns.Netlink(t)
	attrs := named(name)
	attrs.HardwareAddr = net.HardwareAddr{2, 0, 0, 0, 2, byte(k)}
	far := fmt.Sprintf("wire%d", k)
	must(t, h.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: far, PeerNamespace: netlink.NsFd(v.ns.Fd())}))
	wire := byName(t, v.h, far)
	v4, v6 := gateways(k)
	addAddr(t, v.h, wire, v4, 32)
	addAddr(t, v.h, wire, v6, 128)
	must(t, v.h.LinkSetUp(wire))
	return attrs.HardwareAddr
}

// assign leads addresses to the interface in subnet k, and from it.
func (v *vpc) assign(t testing.TB, k int, addrs ...netip.Addr) {
	t.Helper()
	wire := byName(t, v.h, fmt.Sprintf("wire%d", k)).Attrs().Index
	for _, a := range addrs {
		must(t, v.h.RouteReplace(&netlink.Route{LinkIndex: wire, Scope: netlink.SCOPE_LINK, Dst: netlink.NewIPNet(a.AsSlice())}))
		must(t, v.h.NeighSet(&netlink.Neigh{LinkIndex: wire, IP: a.AsSlice(), HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 2, byte(k)}, State: netlink.NUD_PERMANENT}))
	}
}

// machine is one that is no node, in subnet k, with whatever addresses it likes; the cloud has
// assigned it the first two alone.
func (v *vpc) machine(t testing.TB, k int, addrs ...netip.Addr) *testenv.NetNS {
	t.Helper()
	ns := testenv.NewNetNS(t)
	v.bare(t, ns, "eth0", k)
	v.assign(t, k, addrs[:2]...)
	h := ns.Netlink(t)
	eth0 := byName(t, h, "eth0")
	must(t, h.LinkSetUp(eth0))
	for _, a := range addrs {
		addAddr(t, h, eth0, a, a.BitLen())
	}
	v4, v6 := gateways(k)
	wire := byName(t, v.h, fmt.Sprintf("wire%d", k)).Attrs().HardwareAddr
	for _, gw := range []netip.Addr{v4, v6} {
		addRoute(t, h, eth0, "", gw)
		// The router answers no question of an address that is not assigned.
		must(t, h.NeighSet(&netlink.Neigh{LinkIndex: eth0.Attrs().Index, IP: gw.AsSlice(), HardwareAddr: wire, State: netlink.NUD_PERMANENT}))
	}
	return ns
}

// cloudNode is a node whose pods have addresses of its interfaces.
type cloudNode struct {
	*testNode
	vpc   *vpc
	links *link.Links
	ifs   *link.Interfaces
	want  []datapath.Interface
}

// node makes node n, whose native device is in subnet n.
func (v *vpc) node(t testing.TB, n byte) *cloudNode {
	t.Helper()
	c := &cloudNode{testNode: newTestNode(t, n, false), vpc: v}
	c.cfg.NativeMAC = v.bare(t, c.ns, "eth0", int(n))
	v.assign(t, int(n), c.cfg.NodeIPv4, c.cfg.NodeIPv6)
	eth0 := byName(t, c.h, "eth0")
	must(t, c.h.LinkSetUp(eth0))
	addAddr(t, c.h, eth0, c.cfg.NodeIPv4, 32)
	addAddr(t, c.h, eth0, c.cfg.NodeIPv6, 128)
	v4, v6 := gateways(int(n))
	addRoute(t, c.h, eth0, "", v4)
	addRoute(t, c.h, eth0, "", v6)
	c.cfg.NativeIfIndex, c.cfg.Interfaces = eth0.Attrs().Index, true
	c.start(t)
	return c
}

// start is what an agent does that begins.
func (c *cloudNode) start(t testing.TB) {
	t.Helper()
	var err error
	c.links, err = link.New(link.Config{NetNSFD: c.ns.Fd()}, slog.New(slog.DiscardHandler))
	must(t, err)
	t.Cleanup(c.links.Close)
	_, err = c.links.SetNode(c.desired())
	must(t, err)
	must(t, c.loader.Configure(c.cfg))
	c.ifs = link.NewInterfaces(c.links, c.loader, nil)
}

func (c *cloudNode) desired() datapath.Node {
	return datapath.Node{
		Device: "eth0", RouterIPv4: c.cfg.RouterIPv4, RouterIPv6: c.cfg.RouterIPv6, Interfaces: true,
		Masquerade4: true, PodCIDRs: []netip.Prefix{netip.MustParsePrefix(fmt.Sprintf("10.%d.0.0/24", c.n))},
	}
}

// iface is a wanted interface, in subnet k, of the pods.
func (c *cloudNode) iface(number, k int, pods ...*testPod) datapath.Interface {
	v4, v6 := gateways(k)
	i := datapath.Interface{
		MAC: net.HardwareAddr{2, 0, 0, 0, 2, byte(k)}, Number: number,
		Subnets: []datapath.Subnet{
			{CIDR: netip.PrefixFrom(v4, 24).Masked(), Gateway: v4}, {CIDR: netip.PrefixFrom(v6, 64).Masked(), Gateway: v6},
		},
		VPCCIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("192.168.0.0/24")},
	}
	for _, p := range pods {
		for _, a := range p.addrs() {
			i.Pods = append(i.Pods, netip.PrefixFrom(a, a.BitLen()))
		}
	}
	return i
}

// own assigns pods' addresses to the interface in subnet k.
func (c *cloudNode) own(t testing.TB, k int, pods ...*testPod) {
	t.Helper()
	c.vpc.assign(t, k, ip("10.200.%d.4", k))
	for _, p := range pods {
		c.vpc.assign(t, k, p.addrs()...)
	}
}

// set has the node's interfaces be these, all of which must be there.
func (c *cloudNode) set(t testing.TB, want ...datapath.Interface) {
	t.Helper()
	c.want = want
	states, err := c.ifs.Set(want)
	must(t, err)
	for _, s := range states {
		must(t, s.Err)
	}
}

// knows introduces nodes to each other, as the store does.
func knows(t testing.TB, a, b *cloudNode) {
	t.Helper()
	for _, p := range [][2]*cloudNode{{a, b}, {b, a}} {
		var entries []datapath.IPCacheEntry
		for _, addr := range []netip.Addr{p[1].cfg.NodeIPv4, p[1].cfg.NodeIPv6} {
			entries = append(entries, datapath.IPCacheEntry{Prefix: netip.PrefixFrom(addr, addr.BitLen()), Identity: 6})
		}
		must(t, p[0].maps.UpsertIPCache(entries))
	}
}

// TestInterfacesOfACloud: pods with addresses of several interfaces, and of the node's own, reach
// each other, nodes, and the world by their policies; the network takes only what is from addresses
// of the interface that it comes by.
func TestInterfacesOfACloud(t *testing.T) {
	v := newVPC(t)
	n1, n2 := v.node(t, 1), v.node(t, 2)
	knows(t, n1, n2)
	a, b, e := n1.pod(t, 1001, n2.testNode), n1.pod(t, 1002, n2.testNode), n1.pod(t, 1004, n2.testNode)
	r := n2.pod(t, 1003, n1.testNode)
	v.wire(t, n1.ns, "ens1", 11)
	v.wire(t, n1.ns, "ens2", 12)
	v.wire(t, n2.ns, "ens1", 21)
	n1.own(t, 11, a)
	n1.own(t, 12, b)
	n1.own(t, 1, e)
	n2.own(t, 21, r)
	n1.set(t, n1.iface(0, 1, e), n1.iface(1, 11, a), n1.iface(2, 12, b))
	n2.set(t, n2.iface(1, 21, r))
	world := v.machine(t, 50, ip("198.51.100.7"), ip("fd07::7"))
	mate := v.machine(t, 51, ip("10.99.0.7"), ip("fd07::8"))
	for _, ns := range []*testenv.NetNS{a.ns, b.ns, e.ns, r.ns, n1.ns, n2.ns, world} {
		serve(t, ns)
	}
	defer func() {
		if t.Failed() {
			metrics(t, n1.testNode, n2.testNode)
		}
	}()
	outside := []netip.Addr{ip("198.51.100.7"), ip("fd07::7")}
	for name, p := range map[string]*testPod{"ens1": a, "ens2": b, "eth0": e} {
		reaches(t, "the other node's pod to one of "+name, r.ns, p.addrs(), true)
		reaches(t, "a pod of "+name+" to the other node's", p.ns, r.addrs(), true)
		reaches(t, "the other node to a pod of "+name, n2.ns, p.addrs(), true)
		reaches(t, "its node to a pod of "+name, n1.ns, p.addrs(), true)
		reaches(t, "a pod of "+name+" to the world", p.ns, outside, true)
	}
	reaches(t, "a to b", a.ns, b.addrs(), true)
	reaches(t, "its node to the other's pod", n1.ns, r.addrs(), true)
	// Masquerading leaves the network of the cloud out.
	for to, want := range map[netip.Addr]netip.Addr{r.ep.IPv4: a.ep.IPv4, ip("198.51.100.7"): n1.cfg.NodeIPv4, ip("fd07::7"): a.ep.IPv6} {
		ns := world
		if to == r.ep.IPv4 {
			ns = r.ns
		}
		if got := seenBy(t, ns, a.ns, to); got != want {
			t.Errorf("%s sees %s, want %s", to, got, want)
		}
	}

	n1.enforce(t, a, 1003)
	reaches(t, "the other node's pod, let in", r.ns, a.addrs(), true)
	reaches(t, "the other node, refused", n2.ns, a.addrs(), false)
	reaches(t, "a machine of the network, refused", mate, a.addrs(), false)
	n1.enforce(t, a, 6)
	reaches(t, "the other node's pod, refused", r.ns, a.addrs(), false)
	reaches(t, "the other node, let in", n2.ns, a.addrs(), true)
	n1.enforce(t, a, 2)
	reaches(t, "a machine of the network, let in", mate, a.addrs(), true)
	reaches(t, "the other node, refused", n2.ns, a.addrs(), false)
}

// seenBy returns under which address a client is seen by who listens at to.
func seenBy(t *testing.T, server, client *testenv.NetNS, to netip.Addr) (seen netip.Addr) {
	t.Helper()
	at := netip.AddrPortFrom(to, 7777)
	var l net.Listener
	must(t, server.Do(func() (err error) { l, err = net.Listen("tcp", at.String()); return err }))
	defer l.Close()
	var c net.Conn
	must(t, client.Do(func() (err error) { c, err = net.DialTimeout("tcp", at.String(), 10*time.Second); return err }))
	defer c.Close()
	s, err := l.Accept()
	must(t, err)
	defer s.Close()
	return s.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap()
}

// TestInterfacesHotPlug: an interface comes and goes while others carry packets, which lose none,
// and an agent that starts finds all as it was. Nothing reaches a pod that its policy refuses, from
// the first packet on.
func TestInterfacesHotPlug(t *testing.T) {
	v := newVPC(t)
	n1, n2 := v.node(t, 1), v.node(t, 2)
	knows(t, n1, n2)
	a, b, r := n1.pod(t, 1001, n2.testNode), n1.pod(t, 1002, n2.testNode), n2.pod(t, 1003, n1.testNode)
	v.wire(t, n1.ns, "ens1", 11)
	v.wire(t, n2.ns, "ens1", 21)
	n1.own(t, 11, a)
	n2.own(t, 21, r)
	n1.enforce(t, b, 1003)
	world := v.machine(t, 50, ip("198.51.100.7"), ip("fd07::7"))
	n2.set(t, n2.iface(1, 21, r))
	states, err := n1.ifs.Set([]datapath.Interface{n1.iface(1, 11, a), n1.iface(2, 12, b)})
	must(t, err)
	if states[0].Err != nil || !errors.Is(states[1].Err, datapath.ErrNoInterface) {
		t.Fatalf("%+v", states)
	}
	ctx, cancel := context.WithCancel(t.Context())
	run := make(chan error, 1)
	ready := make(chan bool, 64)
	go func() {
		run <- n1.ifs.Run(ctx, func(states []datapath.InterfaceState, err error) { ready <- err == nil && states[1].Err == nil })
	}()
	is := func(want bool) {
		t.Helper()
		for deadline := time.After(20 * time.Second); ; {
			select {
			case got := <-ready:
				if got == want {
					return
				}
			case <-deadline:
				t.Fatalf("the interface is not ready (%v) after 20 s", want)
			}
		}
	}
	is(false)

	serve(t, a.ns)
	serve(t, r.ns)
	var lost atomic.Int64
	traffic, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for traffic.Err() == nil {
			for _, to := range a.addrs() {
				if err := echo(r.ns, "tcp", to, 2000, 20*time.Second); err != nil && traffic.Err() == nil {
					lost.Add(1)
					t.Errorf("while the other comes and goes: %v", err)
				}
			}
		}
	}()
	// Who is refused sends all the time; b is at the far end, whoever comes first.
	victim := newVictim(t, b)
	flood := make(chan struct{})
	go func() {
		defer close(flood)
		for traffic.Err() == nil {
			datagram(t, world, ip("198.51.100.7"), netip.AddrPortFrom(b.ep.IPv4, forgedPort), []byte("refused"))
			datagram(t, world, ip("fd07::7"), netip.AddrPortFrom(b.ep.IPv6, forgedPort), []byte("refused"))
			time.Sleep(time.Millisecond)
		}
	}()
	for round := range 3 {
		v.wire(t, n1.ns, fmt.Sprintf("plugged%d", round), 12)
		n1.own(t, 12, b)
		is(true)
		last := fmt.Sprintf("let in %d", round)
		seen := victim.until(last, func() {
			for _, p := range []struct{ src, dst netip.Addr }{{r.ep.IPv4, b.ep.IPv4}, {r.ep.IPv6, b.ep.IPv6}} {
				datagram(t, r.ns, p.src, netip.AddrPortFrom(p.dst, forgedPort), []byte(last))
			}
		})
		for _, s := range seen {
			if s == "refused" {
				t.Fatalf("round %d: who is refused has reached the pod: %q", round, seen)
			}
		}
		must(t, n1.h.LinkDel(byName(t, n1.h, fmt.Sprintf("plugged%d", round))))
		is(false)
	}

	// An agent after this one. Meanwhile all goes on.
	cancel()
	must(t, <-run)
	n1.start(t)
	n1.set(t, n1.iface(1, 11, a))
	stop()
	<-done
	<-flood
	reaches(t, "after another agent", r.ns, a.addrs(), true)
	if rows, err := n1.maps.Interfaces(); err != nil || len(rows) != 1 {
		t.Errorf("believed: %v, %v", rows, err)
	}
}

// TestForgedOnInterfaces: who claims, by an interface of the cloud, to be this node or its pods is
// dropped, also if sent by an interface that is not the cloud's, or not yet; and nothing
// leaves that claims to be another.
func TestForgedOnInterfaces(t *testing.T) {
	v := newVPC(t)
	n1, n2 := v.node(t, 1), v.node(t, 2)
	knows(t, n1, n2)
	a, b, r := n1.pod(t, 1001, n2.testNode), n1.pod(t, 1002, n2.testNode), n2.pod(t, 1003, n1.testNode)
	v.wire(t, n1.ns, "ens1", 11)
	v.wire(t, n1.ns, "ens2", 12)
	v.wire(t, n2.ns, "ens1", 21)
	n1.own(t, 11, a)
	n1.own(t, 12, b)
	n2.own(t, 21, r)
	liars := []netip.Addr{n1.cfg.NodeIPv4, n1.cfg.NodeIPv6, b.ep.IPv4, b.ep.IPv6, r.ep.IPv4, n2.cfg.NodeIPv4}
	outlaw := v.machine(t, 50, append([]netip.Addr{ip("198.51.100.7"), ip("fd07::7")}, liars...)...)
	n1.set(t, n1.iface(1, 11, a), n1.iface(2, 12, b))
	n2.set(t, n2.iface(1, 21, r))
	victim := newVictim(t, a)
	n1.enforce(t, a, 1, 6, 1002, 1003)
	to := func(src netip.Addr) netip.AddrPort {
		if src.Is4() {
			return netip.AddrPortFrom(a.ep.IPv4, forgedPort)
		}
		return netip.AddrPortFrom(a.ep.IPv6, forgedPort)
	}
	count := 0
	// honest sends what is let in, until it comes, and returns what else has come before. On a busy
	// machine it sends more than once, and the rest of that comes later.
	honest := func() []string {
		const text = "honest "
		count++
		last := fmt.Sprint(text, count)
		seen := victim.until(last, func() { datagram(t, r.ns, r.ep.IPv4, to(r.ep.IPv4), []byte(last)) })
		return slices.DeleteFunc(seen, func(s string) bool { return strings.HasPrefix(s, text) })
	}
	lie := func(srcs ...netip.Addr) {
		for _, src := range srcs {
			datagram(t, outlaw, src, to(src), []byte("from "+src.String()))
		}
	}
	quiet := func(what string) {
		t.Helper()
		// Sent by another way than the honest ones: none is on its way any more after these.
		time.Sleep(50 * time.Millisecond)
		if seen := honest(); len(seen) > 0 {
			t.Errorf("%s: %q", what, seen)
		}
	}

	// The network refuses it.
	lie(liars...)
	quiet("the network lets forged sources pass")
	// A network that does not: the node refuses what cannot be, and believes the rest, as of any
	// network that routes pods' addresses.
	v.sysctl(t, "net/ipv4/conf/wire50/rp_filter", "0")
	forged := n1.dropped(t, datapath.ReasonInvalidSourceIP)
	lie(liars[:4]...)
	quiet("what claims to be of the node or its pod gets through")
	if got := n1.dropped(t, datapath.ReasonInvalidSourceIP) - forged; got != 4 {
		t.Errorf("%d packets were dropped for their source, want 4", got)
	}
	lie(r.ep.IPv4)
	if seen := honest(); len(seen) == 0 {
		time.Sleep(100 * time.Millisecond)
		if seen = honest(); len(seen) == 0 {
			t.Error("nothing that is forged comes at all: what is dropped above proves nothing")
		}
	}

	// By another interface than the one of the address: the same is believed, and the same refused.
	v.assign(t, 12, a.addrs()...)
	lie(liars[:4]...)
	lie(ip("198.51.100.7"))
	quiet("by another interface")
	v.assign(t, 11, a.addrs()...)

	// An interface that is added by hand, to which the attacker sends. With and without an address,
	// up, and with former programs: it leads to no node or pod.
	v.wire(t, n1.ns, "hand", 13)
	must(t, n1.h.LinkSetUp(byName(t, n1.h, "hand")))
	v.assign(t, 13, a.addrs()...)
	byHand := func(what string) {
		t.Helper()
		n1.enforce(t, a, 1, 6, 1002, 1003)
		lie(liars...)
		time.Sleep(50 * time.Millisecond)
		v.assign(t, 11, a.addrs()...)
		quiet(what)
		v.assign(t, 13, a.addrs()...)
		n1.enforce(t, a, 2, 1003)
		victim.until("from "+n2.cfg.NodeIPv4.String(), func() { lie(n2.cfg.NodeIPv4) })
		time.Sleep(50 * time.Millisecond)
		v.assign(t, 11, a.addrs()...)
		honest() // and what was sent more than once
		v.assign(t, 13, a.addrs()...)
	}
	byHand("by an interface that is not the cloud's")
	_, err := n1.ifs.Set([]datapath.Interface{n1.iface(1, 11, a), n1.iface(2, 12, b), n1.iface(3, 13)})
	must(t, err)
	n1.set(t, n1.iface(1, 11, a), n1.iface(2, 12, b))
	byHand("by an interface that was the cloud's")
	v.assign(t, 11, a.addrs()...)
	n1.enforce(t, a, 1, 6, 1002, 1003)

	// What leaves. A process of the node binds an address of a pod's, which the rules lead by that
	// pod's interface.
	far := newVictim(t, r)
	at := func(a netip.Addr) netip.AddrPort { return netip.AddrPortFrom(a, forgedPort) }
	forged = n1.dropped(t, datapath.ReasonInvalidSourceIP)
	asPod(t, n1.ns, a.ep.IPv4, at(r.ep.IPv4), "as a")
	asPod(t, n1.ns, a.ep.IPv6, at(r.ep.IPv6), "as a")
	asPod(t, n1.ns, b.ep.IPv4, at(r.ep.IPv4), "as b")
	if seen := far.until("as myself", func() { datagram(t, a.ns, a.ep.IPv4, at(r.ep.IPv4), []byte("as myself")) }); len(seen) > 0 {
		t.Errorf("a process has sent as a pod: %q", seen)
	}
	if got := n1.dropped(t, datapath.ReasonInvalidSourceIP) - forged; got != 3 {
		t.Errorf("%d packets were dropped as they left, want 3", got)
	}
}

// asPod sends a text from an address that the namespace does not have.
func asPod(t *testing.T, ns *testenv.NetNS, src netip.Addr, dst netip.AddrPort, what string) {
	t.Helper()
	d := net.Dialer{LocalAddr: net.UDPAddrFromAddrPort(netip.AddrPortFrom(src, 0)), Control: func(_, _ string, c syscall.RawConn) (err error) {
		level, option := unix.SOL_IP, unix.IP_TRANSPARENT
		if src.Is6() {
			level, option = unix.SOL_IPV6, unix.IPV6_TRANSPARENT
		}
		return errors.Join(c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), level, option, 1) }), err)
	}}
	must(t, ns.Do(func() error {
		c, err := d.Dial("udp", dst.String())
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = c.Write([]byte(what))
		return err
	}))
}

// TestInterfacesKilled: an agent that ends anywhere between an interface's coming and its being
// ready leaves none that is believed without programs, or up by its doing without them; the next
// one does the rest.
func TestInterfacesKilled(t *testing.T) {
	v := newVPC(t)
	n1 := v.node(t, 1)
	a := n1.pod(t, 1001)
	mac := v.wire(t, n1.ns, "ens1", 11)
	n1.own(t, 11, a)
	ens1 := byName(t, n1.h, "ens1").Attrs().Index
	all := t
	for fault := range 7 {
		t.Run(fmt.Sprint(fault), func(t *testing.T) {
			f := &endingFilters{tcFilters: &tcFilters{h: n1.h}, left: 1000}
			n1.testNode.loader = newLoader(all, n1.testNode, f)
			n1.start(all)
			f.left = fault
			n1.ifs = link.NewInterfaces(n1.links, n1.loader, nil)
			_, err := n1.ifs.Set([]datapath.Interface{n1.iface(1, 11, a)})
			rows, rerr := n1.maps.Interfaces()
			must(t, rerr)
			f.left = 1000
			in, err1 := f.FilterProgram(ens1, true)
			out, err2 := f.FilterProgram(ens1, false)
			must(t, errors.Join(err1, err2))
			up := byName(t, n1.h, "ens1").Attrs().Flags&net.FlagUp != 0
			t.Logf("ended after %d calls: %v; programs %d and %d, up %v, believed %v", fault, err, in, out, up, rows)
			if both := in != 0 && out != 0; !both && (up || len(rows) > 0) {
				t.Errorf("without programs it is up (%v) or believed (%v)", up, rows)
			}
			if err == nil && (!up || len(rows) != 1) {
				t.Errorf("no error, and not ready")
			}
			// As it was.
			must(t, n1.h.LinkDel(byName(t, n1.h, "ens1")))
			v.wire(t, n1.ns, "ens1", 11)
			n1.own(t, 11, a)
			ens1 = byName(t, n1.h, "ens1").Attrs().Index
			for _, row := range rows {
				must(t, n1.loader.DetachInterface(row))
			}
		})
	}
	_ = mac
	n1.start(t)
	n1.set(t, n1.iface(1, 11, a))
	// The programs are detached: they come back, as the native device's do.
	must(t, n1.h.QdiscDel(clsact(ens1)))
	if n, err := n1.loader.ReattachNode(ens1); n != 2 || err != nil {
		t.Errorf("%d programs put back, %v", n, err)
	}
	// Pinned rows of an interface that went while no agent ran keep none from starting.
	must(t, n1.h.LinkDel(byName(t, n1.h, "ens1")))
	next := newLoader(t, n1.testNode, &tcFilters{h: n1.h})
	must(t, next.Configure(n1.cfg))
	if rows, err := n1.maps.Interfaces(); err != nil || len(rows) != 0 {
		t.Errorf("an interface that is gone is believed: %v, %v", rows, err)
	}
	if err := next.AttachInterface(1<<30, mac); err == nil {
		t.Error("an interface that does not exist has programs")
	}
	cfg := n1.cfg
	cfg.Interfaces = false
	must(t, next.Configure(cfg))
	if err := next.AttachInterface(n1.cfg.NativeIfIndex, mac); err == nil || !strings.Contains(err.Error(), "know of no interfaces") {
		t.Errorf("without interfaces configured: %v", err)
	}
}

func newLoader(t testing.TB, n *testNode, f loader.Filters) *loader.Loader {
	l := loader.New(n.maps, f, slog.New(slog.DiscardHandler))
	t.Cleanup(func() { l.Close() })
	return l
}

// endingFilters fail from some call on, as if the agent had ended there.
type endingFilters struct {
	*tcFilters
	left int
}

func (f *endingFilters) spend() error {
	if f.left--; f.left < 0 {
		return unix.EINTR
	}
	return nil
}

func (f *endingFilters) ReplaceFilter(ifIndex int, ingress bool, progFD int, name string) error {
	if err := f.spend(); err != nil {
		return err
	}
	return f.tcFilters.ReplaceFilter(ifIndex, ingress, progFD, name)
}

func (f *endingFilters) FilterProgram(ifIndex int, ingress bool) (int, error) {
	if err := f.spend(); err != nil {
		return 0, err
	}
	return f.tcFilters.FilterProgram(ifIndex, ingress)
}

// TestInterfaceForgotten: an interface that is none of the cloud's any more has none of its
// programs, and the native device keeps its own; an interface that is only faulty keeps them. That
// an agent without a cloud comes after one with is the same.
func TestInterfaceForgotten(t *testing.T) {
	v := newVPC(t)
	n1 := v.node(t, 1)
	a := n1.pod(t, 1001)
	v.wire(t, n1.ns, "ens1", 11)
	n1.own(t, 11, a)
	ens1 := byName(t, n1.h, "ens1").Attrs().Index
	var refuse error
	programs := func(what string, ifIndex, want int) {
		t.Helper()
		got := 0
		for _, ingress := range []bool{true, false} {
			id, err := n1.links.FilterProgram(ifIndex, ingress)
			must(t, err)
			if id != 0 {
				got++
			}
		}
		if got != want {
			t.Errorf("%s: %d programs, want %d", what, got, want)
		}
	}
	n1.testNode.loader = newLoader(t, n1.testNode, realFilters{n1, &refuse})
	must(t, n1.loader.Configure(n1.cfg))
	n1.ifs = link.NewInterfaces(n1.links, n1.loader, nil)
	for _, attempt := range []string{"first", "again"} {
		n1.set(t, n1.iface(1, 11, a))
		programs(attempt, ens1, 2)
		n1.set(t)
		programs(attempt+", forgotten", ens1, 0)
		programs(attempt+", the native device", n1.cfg.NativeIfIndex, 2)
	}
	n1.set(t, n1.iface(1, 11, a))
	must(t, n1.loader.DetachInterface(ens1))
	programs("faulty", ens1, 2)
	n1.set(t)
	programs("faulty, then none of the cloud's", ens1, 0)
	n1.set(t, n1.iface(1, 11, a))
	refuse = errors.New("busy")
	if _, err := n1.ifs.Set(nil); err == nil {
		t.Error("that programs stay is no error")
	}
	programs("not taken off", ens1, 2)
	refuse = nil
	n1.set(t)
	programs("taken off at the next attempt", ens1, 0)
	n1.set(t, n1.iface(1, 11, a))
	must(t, n1.h.LinkDel(byName(t, n1.h, "ens1")))
	n1.set(t)
	if rows, err := n1.maps.Interfaces(); err != nil || len(rows) != 0 {
		t.Errorf("of an interface that is gone: %v, %v", rows, err)
	}

	v.wire(t, n1.ns, "ens1", 11)
	n1.own(t, 11, a)
	ens1 = byName(t, n1.h, "ens1").Attrs().Index
	n1.set(t, n1.iface(1, 11, a))
	programs("another", ens1, 2)
	n1.cfg.Interfaces = false
	must(t, n1.loader.Configure(n1.cfg))
	programs("without a cloud", ens1, 0)
	programs("without a cloud, the native device", n1.cfg.NativeIfIndex, 2)
}

// realFilters are those of the node's links, whichever these are by then. With an error nothing is
// taken off.
type realFilters struct {
	*cloudNode
	refuse *error
}

func (f realFilters) ReplaceFilter(ifIndex int, ingress bool, progFD int, name string) error {
	return f.links.ReplaceFilter(ifIndex, ingress, progFD, name)
}

func (f realFilters) FilterProgram(ifIndex int, ingress bool) (int, error) {
	return f.links.FilterProgram(ifIndex, ingress)
}

func (f realFilters) RemoveFiltersOn(ifIndex int, names ...string) error {
	if *f.refuse != nil {
		return *f.refuse
	}
	return f.links.RemoveFiltersOn(ifIndex, names...)
}

// TestOthersBesideInterfaces: which devices besides the cloud's are for clients outside is known
// only when the cloud's interfaces are; no program is loaded anew or replaced for that.
func TestOthersBesideInterfaces(t *testing.T) {
	v := newVPC(t)
	n1 := v.node(t, 1)
	a := n1.pod(t, 1001)
	v.wire(t, n1.ns, "ens1", 11)
	n1.own(t, 11, a)
	f := &tcFilters{h: n1.h}
	n1.testNode.loader = newLoader(t, n1.testNode, f)
	n1.cfg.NodePort, n1.cfg.OtherIfIndexes = true, []int{byName(t, n1.h, "ens1").Attrs().Index} // the system has given it an address
	must(t, n1.loader.Configure(n1.cfg))
	before, replaced := n1.loader.Program(loader.FromPod), f.replaced
	n1.ifs = link.NewInterfaces(n1.links, n1.loader, nil)
	n1.set(t, n1.iface(1, 11, a))
	if n := f.replaced - replaced; n != 2 {
		t.Errorf("%d programs are put on for an interface, want 2", n)
	}
	replaced, n1.cfg.OtherIfIndexes = f.replaced, nil
	must(t, n1.loader.Configure(n1.cfg))
	if f.replaced != replaced || n1.loader.Program(loader.FromPod) != before {
		t.Errorf("%d programs are replaced because an interface is the cloud's", f.replaced-replaced)
	}
}
