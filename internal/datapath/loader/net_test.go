package loader_test

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/datapath/link"
	"github.com/hawser-net/hawser/internal/datapath/loader"
	"github.com/hawser-net/hawser/internal/datapath/maps"
	"github.com/hawser-net/hawser/internal/testenv"
)

// testNode is a real node: a namespace with an underlay address, a tunnel device, a host device,
// and programs on maps of its own.
type testNode struct {
	ns      *testenv.NetNS
	h       *netlink.Handle
	maps    *maps.Maps
	loader  *loader.Loader
	cfg     datapath.Config
	n       byte
	pods    byte
	tunnels bool
	// underlay6 says that the tunnel to this node goes by IPv6.
	underlay6 bool
}

// testPod is a namespace behind a veth pair whose host side runs the programs.
type testPod struct {
	ns *testenv.NetNS
	ep datapath.Endpoint
}

func ip(format string, args ...any) netip.Addr {
	return netip.MustParseAddr(fmt.Sprintf(format, args...))
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func addAddr(t testing.TB, h *netlink.Handle, link netlink.Link, a netip.Addr, bits int) {
	t.Helper()
	addr := &netlink.Addr{IPNet: &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(bits, a.BitLen())}}
	if a.Is6() {
		addr.Flags = unix.IFA_F_NODAD
	}
	must(t, h.AddrAdd(link, addr))
}

// received waits until the kernel receives at an address. It makes an IPv6 address without whoever
// adds it waiting, also without detection of duplicates: until then it drops what comes for it.
func received(t testing.TB, h *netlink.Handle, a netip.Addr) {
	t.Helper()
	for began := time.Now(); ; time.Sleep(testenv.Breath(began)) {
		routes, err := h.RouteGet(a.AsSlice())
		if err == nil && len(routes) > 0 && routes[0].Type == unix.RTN_LOCAL {
			return
		}
		if time.Since(began) > 20*time.Second {
			t.Fatalf("the kernel does not receive at %s: %v, %v", a, routes, err)
		}
	}
}

func addRoute(t testing.TB, h *netlink.Handle, link netlink.Link, dst string, via netip.Addr) {
	t.Helper()
	r := &netlink.Route{LinkIndex: link.Attrs().Index}
	if dst != "" {
		_, n, err := net.ParseCIDR(dst)
		must(t, err)
		r.Dst = n
	}
	if via.IsValid() {
		r.Gw, r.Flags = via.AsSlice(), int(netlink.FLAG_ONLINK)
	} else {
		r.Scope = netlink.SCOPE_LINK
	}
	must(t, h.RouteAdd(r))
}

func byName(t testing.TB, h *netlink.Handle, name string) netlink.Link {
	t.Helper()
	link, err := h.LinkByName(name)
	must(t, err)
	return link
}

func named(name string) netlink.LinkAttrs {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	return attrs
}

func smallMaps(t testing.TB, dir string) *maps.Maps {
	t.Helper()
	testenv.RequireRoot(t)
	c := maps.Defaults()
	// Conntrack holds several times what the busiest test opens: an LRU map that is nearly full
	// displaces entries between a request and its reply.
	c.Dir, c.CTEntries, c.PolicyEntries, c.IPCacheEntries, c.IPCachePrefixes = dir, 32768, 4096, 1024, 128
	m, err := maps.Open(c)
	must(t, err)
	t.Cleanup(func() { m.Close() })
	return m
}

// newTestNode makes node n, with addresses 192.168.0.n and 10.n.0.1.
func newTestNode(t testing.TB, n byte, tunnel bool) *testNode {
	t.Helper()
	node := &testNode{n: n, tunnels: tunnel, ns: testenv.NewNetNS(t), maps: smallMaps(t, "")}
	node.h = node.ns.Netlink(t)
	must(t, node.h.LinkAdd(&netlink.Veth{LinkAttrs: named("hawser_host"), PeerName: "hawser_net"}))
	host := byName(t, node.h, "hawser_host")
	must(t, node.h.LinkSetARPOff(host))
	must(t, node.h.LinkSetUp(host))
	must(t, node.h.LinkSetUp(byName(t, node.h, "hawser_net")))
	node.cfg = datapath.Config{
		Tunnel: tunnel, RouterIPv4: ip("10.%d.0.1", n), RouterIPv6: ip("fd00:%d::1", n),
		NodeIPv4: ip("192.168.0.%d", n), NodeIPv6: ip("fd99::%d", n),
		HostIfIndex: host.Attrs().Index, HostMAC: host.Attrs().HardwareAddr,
	}
	must(t, node.ns.Do(func() (err error) { node.cfg.NetNSCookie, err = link.NetNSCookie(); return err }))
	if tunnel {
		node.cfg.TunnelPort = 8472
	}
	addAddr(t, node.h, host, node.cfg.RouterIPv4, 32)
	addAddr(t, node.h, host, node.cfg.RouterIPv6, 128)
	if tunnel {
		must(t, node.h.LinkAdd(&netlink.Vxlan{LinkAttrs: named("hawser_vxlan"), FlowBased: true, Learning: false, Port: 8472}))
		vxlan := byName(t, node.h, "hawser_vxlan")
		node.cfg.TunnelIfIndex = vxlan.Attrs().Index
	}
	must(t, node.ns.Do(func() error {
		return errors.Join(
			os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0),
			os.WriteFile("/proc/sys/net/ipv6/conf/all/forwarding", []byte("1"), 0),
			os.WriteFile("/proc/sys/net/ipv4/conf/all/rp_filter", []byte("0"), 0),
			os.WriteFile("/proc/sys/net/ipv4/conf/default/rp_filter", []byte("0"), 0),
			os.WriteFile("/proc/sys/net/ipv4/conf/hawser_host/accept_local", []byte("1"), 0),
		)
	}))
	node.loader = loader.New(node.maps, &tcFilters{h: node.h}, slog.New(slog.DiscardHandler))
	t.Cleanup(func() { node.loader.Close() })
	return node
}

// end is where the tunnel to the node ends.
func (n *testNode) end() netip.Addr {
	if n.underlay6 {
		return n.cfg.NodeIPv6
	}
	return n.cfg.NodeIPv4
}

// join connects two nodes and introduces each to the other.
func join(t testing.TB, a, b *testNode) {
	t.Helper()
	testenv.Connect(t, a.ns, "eth0", a.underlay(), b.ns, "eth0", b.underlay())
	introduce(t, a, b)
}

// underlay returns the node's addresses towards others.
func (n *testNode) underlay() []string {
	return []string{n.cfg.NodeIPv4.String() + "/24", n.cfg.NodeIPv6.String() + "/64"}
}

// introduce makes two connected nodes known to each other.
func introduce(t testing.TB, a, b *testNode) {
	t.Helper()
	for _, p := range [][2]*testNode{{a, b}, {b, a}} {
		me, peer := p[0], p[1]
		eth0 := byName(t, me.h, "eth0")
		me.cfg.NativeIfIndex, me.cfg.NativeMAC = eth0.Attrs().Index, eth0.Attrs().HardwareAddr
		must(t, me.loader.Configure(me.cfg))
		entries := []datapath.IPCacheEntry{
			{Prefix: netip.PrefixFrom(peer.cfg.NodeIPv4, 32), Identity: 6},
			{Prefix: netip.PrefixFrom(peer.cfg.NodeIPv6, 128), Identity: 6},
			{Prefix: netip.PrefixFrom(peer.cfg.RouterIPv4, 32), Identity: 6},
			{Prefix: netip.PrefixFrom(peer.cfg.RouterIPv6, 128), Identity: 6},
		}
		pods4, pods6 := fmt.Sprintf("10.%d.0.0/24", peer.n), fmt.Sprintf("fd00:%d::/64", peer.n)
		if me.tunnels {
			entries[2].TunnelEndpoint, entries[3].TunnelEndpoint = peer.end(), peer.end()
			must(t, me.h.LinkSetUp(byName(t, me.h, "hawser_vxlan")))
			host := byName(t, me.h, "hawser_host")
			for dst, src := range map[string]netip.Addr{pods4: me.cfg.RouterIPv4, pods6: me.cfg.RouterIPv6} {
				_, n, _ := net.ParseCIDR(dst)
				must(t, me.h.RouteAdd(&netlink.Route{LinkIndex: host.Attrs().Index, Dst: n, Scope: netlink.SCOPE_LINK, Src: src.AsSlice(), MTU: 1400}))
			}
		} else {
			addRoute(t, me.h, eth0, pods4, peer.cfg.NodeIPv4)
			addRoute(t, me.h, eth0, pods6, peer.cfg.NodeIPv6)
		}
		must(t, me.maps.UpsertIPCache(entries))
		var peers []datapath.TunnelPeer
		for _, a := range []netip.Addr{peer.cfg.NodeIPv4, peer.cfg.NodeIPv6} {
			peers = append(peers, datapath.TunnelPeer{Addr: a, Node: uint32(peer.n), First: 256, Last: 65535, Own: true})
		}
		must(t, me.maps.UpsertTunnelPeers(peers))
	}
}

// pod adds a pod with the identity, known to all the other nodes.
func (n *testNode) pod(t testing.TB, identity uint32, others ...*testNode) *testPod {
	t.Helper()
	n.pods++
	p := &testPod{ns: testenv.NewNetNS(t)}
	h := p.ns.Netlink(t)
	name := fmt.Sprintf("lxc%d", n.pods)
	must(t, n.h.LinkAdd(&netlink.Veth{LinkAttrs: named(name), PeerName: "eth0", PeerNamespace: netlink.NsFd(p.ns.Fd())}))
	host, eth0 := byName(t, n.h, name), byName(t, h, "eth0")
	p.ep = datapath.Endpoint{
		ID: uint16(n.pods), IfIndex: host.Attrs().Index, IfName: name,
		MAC: eth0.Attrs().HardwareAddr, HostMAC: host.Attrs().HardwareAddr,
		IPv4: ip("10.%d.0.%d", n.n, 9+n.pods), IPv6: ip("fd00:%d::%d", n.n, 9+n.pods),
		Identity: identity, RuleSet: datapath.RuleSetID(n.pods), PolicyGeneration: 1, Incarnation: uint32(n.pods),
	}
	must(t, n.maps.InstallRuleSet(datapath.RuleSet{ID: p.ep.RuleSet}))
	must(t, n.maps.UpsertEndpoint(p.ep))
	must(t, n.loader.AttachEndpoint(p.ep.IfIndex))
	must(t, n.h.LinkSetUp(host))
	for _, a := range p.ep.Addresses() {
		addRoute(t, n.h, host, netip.PrefixFrom(a, a.BitLen()).String(), netip.Addr{})
		must(t, n.h.NeighAdd(&netlink.Neigh{LinkIndex: host.Attrs().Index, IP: a.AsSlice(), HardwareAddr: p.ep.MAC, State: netlink.NUD_PERMANENT}))
	}

	must(t, h.LinkSetUp(eth0))
	addAddr(t, h, eth0, p.ep.IPv4, 32)
	addAddr(t, h, eth0, p.ep.IPv6, 128)
	received(t, h, p.ep.IPv6)
	addRoute(t, h, eth0, netip.PrefixFrom(n.cfg.RouterIPv4, 32).String(), netip.Addr{})
	addRoute(t, h, eth0, netip.PrefixFrom(n.cfg.RouterIPv6, 128).String(), netip.Addr{})
	mtu := 1400
	for _, via := range []netip.Addr{n.cfg.RouterIPv4, n.cfg.RouterIPv6} {
		must(t, h.RouteAdd(&netlink.Route{LinkIndex: eth0.Attrs().Index, Gw: via.AsSlice(), MTU: mtu}))
	}
	for _, other := range others {
		for _, a := range p.ep.Addresses() {
			e := datapath.IPCacheEntry{Prefix: netip.PrefixFrom(a, a.BitLen()), Identity: identity}
			if n.tunnels {
				e.TunnelEndpoint = n.end()
			}
			must(t, other.maps.UpsertIPCache([]datapath.IPCacheEntry{e}))
		}
	}
	return p
}

// enforce gives a pod rules: peers that may reach it, and nothing about whom it may reach.
func (n *testNode) enforce(t testing.TB, p *testPod, peers ...uint32) {
	t.Helper()
	rs := datapath.RuleSet{ID: p.ep.RuleSet, IngressEnforced: true, Entries: map[datapath.PolicyKey]datapath.PolicyEntry{}}
	for _, peer := range peers {
		rs.Entries[datapath.PolicyKey{Direction: datapath.Ingress, Identity: peer}] = datapath.PolicyEntry{Allow: true}
	}
	must(t, n.maps.InstallRuleSet(rs))
	p.ep.PolicyGeneration++
	must(t, n.maps.UpsertEndpoint(p.ep))
}

const service = 8080

// serveBy answers in a namespace on the service port until the test ends: tcp has each connection,
// and udp returns the answer to a datagram.
func serveBy(t testing.TB, ns *testenv.NetNS, tcp func(net.Conn), udp func(data []byte, from netip.AddrPort) []byte) {
	t.Helper()
	var l net.Listener
	var u *net.UDPConn
	must(t, ns.Do(func() (err error) {
		if l, err = net.Listen("tcp", fmt.Sprintf(":%d", service)); err != nil {
			return err
		}
		u, err = net.ListenUDP("udp", &net.UDPAddr{Port: service})
		return err
	}))
	done := make(chan struct{}, 2)
	go func() {
		defer func() { done <- struct{}{} }()
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { defer c.Close(); tcp(c) }()
		}
	}()
	go func() {
		defer func() { done <- struct{}{} }()
		buf := make([]byte, 65536)
		for {
			n, from, err := u.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			u.WriteToUDPAddrPort(udp(buf[:n], from), from)
		}
	}()
	t.Cleanup(func() { l.Close(); u.Close(); <-done; <-done })
}

// serve answers in a namespace: TCP and UDP on the service port send back what they get.
func serve(t testing.TB, ns *testenv.NetNS) {
	t.Helper()
	serveBy(t, ns, func(c net.Conn) { io.Copy(c, c) }, func(data []byte, _ netip.AddrPort) []byte { return data })
}

// echo sends size bytes by a protocol and waits for them to come back.
func echo(ns *testenv.NetNS, network string, to netip.Addr, size int, timeout time.Duration) error {
	var c net.Conn
	err := ns.Do(func() (err error) {
		c, err = net.DialTimeout(network, netip.AddrPortFrom(to, service).String(), timeout)
		return err
	})
	if err != nil {
		return err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(max(timeout, time.Second)))
	if timeout < time.Second {
		c.SetDeadline(time.Now().Add(timeout))
	}
	sent := make(chan error, 1)
	go func() { _, err := c.Write(make([]byte, size)); sent <- err }()
	got, want := 0, size
	buf := make([]byte, 65536)
	for got < want {
		n, err := c.Read(buf)
		if err != nil {
			c.Close()
			<-sent
			return fmt.Errorf("after %d of %d bytes: %w", got, want, err)
		}
		got += n
	}
	return <-sent
}

// reaches tries every family and protocol, small and large, and wants all to go or none.
func reaches(t *testing.T, what string, from *testenv.NetNS, to []netip.Addr, want bool) {
	t.Helper()
	timeout := 10 * time.Second
	if !want {
		timeout = 300 * time.Millisecond
	}
	for _, a := range to {
		for _, try := range []struct {
			network string
			size    int
		}{{"tcp", 10}, {"tcp", 3 << 20}, {"udp", 10}, {"udp", 8000}} {
			err := echo(from, try.network, a, try.size, timeout)
			if (err == nil) != want {
				t.Errorf("%s: %s of %d bytes to %s: %v", what, try.network, try.size, a, err)
			}
			if !want && try.size > 10 {
				break
			}
		}
	}
}

func (p *testPod) addrs() []netip.Addr { return p.ep.Addresses() }

func metrics(t *testing.T, nodes ...*testNode) {
	t.Helper()
	for _, n := range nodes {
		list, err := n.maps.Metrics()
		must(t, err)
		for _, m := range list {
			t.Logf("node %d: %s %s %d packets %d bytes", n.n, m.Reason, m.Direction, m.Packets, m.Bytes)
		}
	}
}

// TestTwoNodes: pods of two nodes and the nodes themselves, over real devices.
func TestTwoNodes(t *testing.T) {
	for name, tunnel := range map[string]bool{"tunnel": true, "native": false} {
		t.Run(name, func(t *testing.T) {
			n1, n2 := newTestNode(t, 1, tunnel), newTestNode(t, 2, tunnel)
			join(t, n1, n2)
			a, b, r := n1.pod(t, 1001, n2), n1.pod(t, 1002, n2), n2.pod(t, 1003, n1)
			for _, ns := range []*testenv.NetNS{a.ns, b.ns, r.ns, n1.ns, n2.ns} {
				serve(t, ns)
			}
			host1 := []netip.Addr{n1.cfg.RouterIPv4, n1.cfg.RouterIPv6}
			defer func() {
				if t.Failed() {
					metrics(t, n1, n2)
				}
			}()
			reaches(t, "a to b", a.ns, b.addrs(), true)
			reaches(t, "a to r", a.ns, r.addrs(), true)
			reaches(t, "r to a", r.ns, a.addrs(), true)
			reaches(t, "a to its node", a.ns, host1, true)
			// A UDP server on all addresses answers from the router's, so this is TCP only.
			for _, addr := range []netip.Addr{n1.cfg.NodeIPv4, n1.cfg.NodeIPv6} {
				if err := echo(a.ns, "tcp", addr, 10, 10*time.Second); err != nil {
					t.Errorf("a to its node's underlay address %s: %v", addr, err)
				}
			}
			reaches(t, "a's node to a", n1.ns, a.addrs(), true)
			reaches(t, "the other node to a", n2.ns, a.addrs(), true)

			n1.enforce(t, b, 1003)
			reaches(t, "a to b, refused", a.ns, b.addrs(), false)
			reaches(t, "r to b, allowed", r.ns, b.addrs(), true)
			reaches(t, "the node to b, refused", n1.ns, b.addrs(), false)
			n1.enforce(t, b, 1001, 1)
			reaches(t, "a to b, allowed again", a.ns, b.addrs(), true)
			reaches(t, "r to b, refused now", r.ns, b.addrs(), false)
			reaches(t, "the node to b, allowed", n1.ns, b.addrs(), true)
			n2.enforce(t, r, 1001, 6)
			reaches(t, "a to r, allowed", a.ns, r.addrs(), true)
			reaches(t, "b to r, refused", b.ns, r.addrs(), false)
			reaches(t, "the other node to r, allowed", n1.ns, r.addrs(), true)
			n2.enforce(t, r, 1002)
			reaches(t, "the other node to r, refused", n1.ns, r.addrs(), false)
		})
	}
}
