package loader_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/testenv"
)

// A balancer's addresses, which the client outside takes for behind the first node.
var balancer4, balancer6 = netip.MustParseAddr("203.0.113.5"), netip.MustParseAddr("2001:db8::5")

// aroundSwitch connects two nodes and a client outside to one wire, so that each reaches the others
// without a third in between, and has both nodes serve clients outside.
func aroundSwitch(t testing.TB, n1, n2 *testNode) *testenv.NetNS {
	t.Helper()
	wire, outside := testenv.NewNetNS(t), testenv.NewNetNS(t)
	wh := wire.Netlink(t)
	bridge := &netlink.Bridge{LinkAttrs: named("br0")}
	must(t, wh.LinkAdd(bridge))
	must(t, wh.LinkSetUp(bridge))
	testenv.Connect(t, n1.ns, "eth0", n1.underlay(), wire, "p1", nil)
	testenv.Connect(t, n2.ns, "eth0", n2.underlay(), wire, "p2", nil)
	testenv.Connect(t, outside, "eth0", []string{"192.168.0.100/24", "fd99::100/64"}, wire, "p3", nil)
	for _, port := range []string{"p1", "p2", "p3"} {
		must(t, wh.LinkSetMaster(byName(t, wh, port), bridge))
	}
	for _, n := range []*testNode{n1, n2} {
		n.cfg.NodePort, n.cfg.TunnelPort, n.cfg.NativeIfIndex, n.cfg.NativeMTU = true, 8472, byName(t, n.h, "eth0").Attrs().Index, 1500
	}
	introduce(t, n1, n2)
	oh := outside.Netlink(t)
	eth0 := byName(t, oh, "eth0")
	addRoute(t, oh, eth0, netip.PrefixFrom(balancer4, 32).String(), n1.cfg.NodeIPv4)
	addRoute(t, oh, eth0, netip.PrefixFrom(balancer6, 128).String(), n1.cfg.NodeIPv6)
	return outside
}

// openDirect leads clients of the first node's port, and of the balancer's addresses, to backends,
// who answer directly if they are elsewhere. The second node knows of it as any node does: of the
// balancer's addresses, and of the port of any other node.
func openDirect(t testing.TB, n1, n2 *testNode, backends ...netip.Addr) (frontends []netip.AddrPort) {
	t.Helper()
	add := func(n *testNode, at netip.Addr, scope datapath.ServiceScope, proto uint8) {
		s := datapath.Service{
			ServiceFrontend: datapath.ServiceFrontend{Addr: netip.AddrPortFrom(at, outsidePort), Proto: proto, Scope: scope}, ID: 9,
			DSR: scope == datapath.ServiceExternal,
		}
		for _, a := range backends {
			if a.Is4() == at.Is4() {
				s.Backends = append(s.Backends, netip.AddrPortFrom(a, service))
			}
		}
		slices.SortFunc(s.Backends, netip.AddrPort.Compare)
		must(t, n.maps.UpsertService(s))
	}
	for _, proto := range []uint8{6, 17} {
		for _, at := range []netip.Addr{n1.cfg.NodeIPv4, n1.cfg.NodeIPv6, balancer4, balancer6} {
			add(n1, at, datapath.ServiceExternal, proto)
		}
		for _, at := range []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
			add(n2, at, datapath.ServiceRemoteNode, proto)
		}
		for _, at := range []netip.Addr{balancer4, balancer6} {
			add(n2, at, datapath.ServiceExternal, proto)
		}
	}
	for _, at := range []netip.Addr{n1.cfg.NodeIPv4, n1.cfg.NodeIPv6, balancer4, balancer6} {
		frontends = append(frontends, netip.AddrPortFrom(at, outsidePort))
	}
	return frontends
}

// serveNames answers in a namespace with the address of who asks: TCP after a line with a number,
// with that many bytes behind it; UDP with nothing more.
func serveNames(t testing.TB, ns *testenv.NetNS) {
	t.Helper()
	serveBy(t, ns, func(c net.Conn) {
		var size int
		if _, err := fmt.Fscanln(c, &size); err == nil {
			fmt.Fprintln(c, c.RemoteAddr())
			c.Write(make([]byte, size))
		}
	}, func(_ []byte, from netip.AddrPort) []byte {
		return []byte(netip.AddrPortFrom(from.Addr().Unmap(), from.Port()).String())
	})
}

// download asks serveNames for a number of bytes, and returns by whose address it was asked, in its
// eyes and in ours.
func download(ns *testenv.NetNS, to netip.AddrPort, size int, timeout time.Duration) (seen, own string, err error) {
	var c net.Conn
	err = ns.Do(func() (err error) { c, err = net.DialTimeout("tcp", to.String(), timeout); return err })
	if err != nil {
		return "", "", err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(max(timeout, time.Second)))
	if _, err := fmt.Fprintln(c, size); err != nil {
		return "", "", err
	}
	r := bufio.NewReader(c)
	if seen, err = r.ReadString('\n'); err != nil {
		return "", "", err
	}
	if n, err := io.CopyN(io.Discard, r, int64(size)); err != nil {
		return "", "", fmt.Errorf("after %d of %d bytes: %w", n, size, err)
	}
	return strings.TrimSpace(seen), c.LocalAddr().String(), nil
}

// asker is a socket that asks serveNames by datagrams.
type asker struct {
	c  *net.UDPConn
	to netip.AddrPort
}

func newAsker(t testing.TB, ns *testenv.NetNS, to netip.AddrPort) *asker {
	t.Helper()
	a := &asker{to: to}
	must(t, ns.Do(func() (err error) {
		a.c, err = net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(to))
		return err
	}))
	t.Cleanup(func() { a.c.Close() })
	return a
}

// ask sends a datagram of a size and returns by whose address it was asked, in its eyes.
func (a *asker) ask(size int, timeout time.Duration) (seen string, err error) {
	a.c.SetDeadline(time.Now().Add(timeout))
	if _, err := a.c.Write(make([]byte, size)); err != nil {
		return "", err
	}
	buf := make([]byte, 200)
	n, err := a.c.Read(buf)
	return string(buf[:n]), err
}

// received returns how many bytes have come to the node by its device.
func (n *testNode) received(t testing.TB) uint64 {
	t.Helper()
	return byName(t, n.h, "eth0").Attrs().Statistics.RxBytes
}

// TestDirect: a client outside that asks one node is served by a pod of another, which sees the
// client's own address, and whose answers do not pass the node that was asked.
func TestDirect(t *testing.T) {
	for name, tunnel := range map[string]bool{"tunnel": true, "native": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n1, n2 := newTestNode(t, 1, tunnel), newTestNode(t, 2, tunnel)
			outside := aroundSwitch(t, n1, n2)
			a, r := n1.pod(t, 1001, n2), n2.pod(t, 1003, n1)
			serveNames(t, a.ns)
			serveNames(t, r.ns)
			defer func() {
				if t.Failed() {
					metrics(t, n1, n2)
				}
			}()
			const timeout, size = 10 * time.Second, 2 << 20
			for _, to := range openDirect(t, n1, n2, r.addrs()...) {
				before := n1.received(t)
				seen, own, err := download(outside, to, size, timeout)
				if err != nil || seen != own {
					t.Errorf("%s: the pod sees %q, the client is %q: %v", to, seen, own, err)
				}
				// What passes are the client's acknowledgements.
				if n := n1.received(t) - before; n > size/4 {
					t.Errorf("%s: of an answer of %d bytes, %d came to the node that was asked", to, size, n)
				}
				u := newAsker(t, outside, to)
				own = u.c.LocalAddr().String()
				// The large ones find the flow known: they have no room for more, or are sent in
				// parts.
				for _, size := range []int{10, 1200, 1400, 1450, 4000, 10} {
					if seen, err := u.ask(size, timeout); err != nil || seen != own {
						t.Errorf("%s: datagram of %d bytes: the pod sees %q, the client is %q: %v", to, size, seen, own, err)
					}
				}
				// One that comes first and has no room for more is sent in the node's name.
				if _, err := newAsker(t, outside, to).ask(4000, timeout); err != nil {
					t.Errorf("%s: first datagram in parts: %v", to, err)
				}
			}
			flows := 0
			must(t, n1.maps.CT(func(e datapath.CTEntry) bool {
				if e.DSR {
					if flows++; e.ReversePackets != 0 || e.ForwardPackets < 3 || (e.Proto == 6 && !e.SeenReply) {
						t.Errorf("flow on the node that was asked: %+v", e)
					}
				}
				return true
			}))
			if flows != 8 {
				t.Errorf("%d flows are answered directly, want 8", flows)
			}

			// Policy evaluates the client, not the node in between.
			n2.enforce(t, r, 6)
			for _, to := range openDirect(t, n1, n2, r.addrs()...) {
				if _, _, err := download(outside, to, 1, 300*time.Millisecond); err == nil {
					t.Errorf("%s: a pod that lets nodes in let the world in", to)
				}
			}
			n2.enforce(t, r, 2)
			for _, to := range openDirect(t, n1, n2, r.addrs()...) {
				if seen, own, err := download(outside, to, 1, timeout); err != nil || seen != own {
					t.Errorf("%s: a pod that lets the world in sees %q, the client is %q: %v", to, seen, own, err)
				}
			}
			// So it does if rules name the client's address.
			const named = 1<<24 + 5
			for _, n := range []*testNode{n1, n2} {
				must(t, n.maps.UpsertIPCache([]datapath.IPCacheEntry{
					{Prefix: netip.MustParsePrefix("192.168.0.96/28"), Identity: named}, {Prefix: netip.MustParsePrefix("fd99::100/120"), Identity: named},
				}))
			}
			n2.enforce(t, r, named)
			for _, to := range openDirect(t, n1, n2, r.addrs()...) {
				if seen, own, err := download(outside, to, size, timeout); err != nil || seen != own {
					t.Errorf("%s: a pod that lets the client's network in sees %q, the client is %q: %v", to, seen, own, err)
				}
				u := newAsker(t, outside, to)
				for _, bytes := range []int{10, 1400, 4000, 10} {
					if seen, err := u.ask(bytes, timeout); err != nil || seen != u.c.LocalAddr().String() {
						t.Errorf("%s: datagram of %d bytes: a pod that lets the client's network in sees %q, the client is %q: %v", to, bytes, seen, u.c.LocalAddr(), err)
					}
				}
			}
			for _, n := range []*testNode{n1, n2} {
				must(t, n.maps.DeleteIPCache([]netip.Prefix{netip.MustParsePrefix("192.168.0.96/28"), netip.MustParsePrefix("fd99::100/120")}))
			}
			n2.enforce(t, r, 2)
			// A pod of the node itself, and a client that is a node, are as ever.
			for _, to := range openDirect(t, n1, n2, a.addrs()...) {
				if seen, own, err := download(outside, to, 1, timeout); err != nil || seen != own {
					t.Errorf("%s: a pod of the node sees %q, the client is %q: %v", to, seen, own, err)
				}
			}
			for _, to := range openDirect(t, n1, n2, r.addrs()...)[:2] {
				n2.enforce(t, r, 2, 6)
				if _, _, err := download(n2.ns, to, size, timeout); err != nil {
					t.Errorf("%s: the pod's node as the client: %v", to, err)
				}
			}
		})
	}
}
