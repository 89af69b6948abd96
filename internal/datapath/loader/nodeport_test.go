package loader_test

import (
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/testenv"
)

// outsidePort is the node port of the tests.
const outsidePort = 30080

// open leads clients of the node's port to backends, those outside of the cluster too.
func (n *testNode) open(t testing.TB, backends ...netip.Addr) {
	t.Helper()
	n.openAt(t, []netip.Addr{n.cfg.NodeIPv4, n.cfg.NodeIPv6}, backends...)
}

// openAt is open for some of the node's addresses.
func (n *testNode) openAt(t testing.TB, addrs []netip.Addr, backends ...netip.Addr) {
	t.Helper()
	for _, at := range addrs {
		for _, proto := range []uint8{6, 17} {
			s := datapath.Service{ServiceFrontend: datapath.ServiceFrontend{Addr: netip.AddrPortFrom(at, outsidePort), Proto: proto, Scope: datapath.ServiceExternal}, ID: 9}
			for _, a := range backends {
				if a.Is4() == at.Is4() {
					s.Backends = append(s.Backends, netip.AddrPortFrom(a, service))
				}
			}
			slices.SortFunc(s.Backends, netip.AddrPort.Compare)
			must(t, n.maps.UpsertService(s))
		}
	}
}

// echoNodePort is echo to the node's port, and wants the answer from there.
func echoNodePort(ns *testenv.NetNS, network string, at netip.Addr, size int, timeout time.Duration) error {
	return echoAt(ns, network, netip.AddrPortFrom(at, outsidePort), size, timeout)
}

// outsideOf makes a client beyond the wire between two nodes, on the second, whose own datapath has
// nothing to do with it; the first serves clients outside.
func outsideOf(t testing.TB, n1, n2 *testNode) *testenv.NetNS {
	t.Helper()
	outside := testenv.NewNetNS(t)
	testenv.Connect(t, n2.ns, "out0", []string{"172.16.0.1/24", "fd98::1/64"}, outside, "eth0", []string{"172.16.0.2/24", "fd98::2/64"})
	ch := outside.Netlink(t)
	eth0 := byName(t, ch, "eth0")
	must(t, ch.RouteAdd(&netlink.Route{LinkIndex: eth0.Attrs().Index, Gw: net.ParseIP("172.16.0.1")}))
	must(t, ch.RouteAdd(&netlink.Route{LinkIndex: eth0.Attrs().Index, Gw: net.ParseIP("fd98::1")}))
	under := byName(t, n1.h, "eth0")
	addRoute(t, n1.h, under, "172.16.0.0/24", n2.cfg.NodeIPv4)
	addRoute(t, n1.h, under, "fd98::/64", n2.cfg.NodeIPv6)
	n1.cfg.NodePort, n1.cfg.TunnelPort, n1.cfg.NativeIfIndex = true, 8472, under.Attrs().Index
	must(t, n1.loader.Configure(n1.cfg))
	return outside
}

// TestNodePort: a client outside reaches backends of the node, of another node and the node itself
// by the node's address and port.
func TestNodePort(t *testing.T) {
	for name, tunnel := range map[string]bool{"tunnel": true, "native": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n1, n2 := newTestNode(t, 1, tunnel), newTestNode(t, 2, tunnel)
			join(t, n1, n2)
			outside := outsideOf(t, n1, n2)
			a, r := n1.pod(t, 1001, n2), n2.pod(t, 1003, n1)
			for _, ns := range []*testenv.NetNS{a.ns, r.ns, n1.ns} {
				serve(t, ns)
			}
			defer func() {
				if t.Failed() {
					metrics(t, n1, n2)
				}
			}()
			reach := func(what string, want bool) {
				t.Helper()
				timeout := 10 * time.Second
				if !want {
					timeout = 300 * time.Millisecond
				}
				for _, at := range []netip.Addr{n1.cfg.NodeIPv4, n1.cfg.NodeIPv6} {
					for _, try := range []struct {
						network string
						size    int
					}{{"tcp", 10}, {"tcp", 1 << 20}, {"udp", 10}, {"udp", 1200}} {
						err := echoNodePort(outside, try.network, at, try.size, timeout)
						if (err == nil) != want {
							t.Errorf("%s: %s of %d bytes to %s: %v", what, try.network, try.size, at, err)
						}
						if !want && try.size > 10 {
							break
						}
					}
				}
			}
			n1.open(t, a.addrs()...)
			reach("a pod of the node", true)
			n1.enforce(t, a, 1003)
			reach("a pod of the node that refuses the world", false)
			n1.enforce(t, a, 2)
			reach("a pod of the node that lets the world in", true)
			n1.open(t, r.addrs()...)
			reach("a pod of another node", true)
			// The tunnel carries whose packet it is; without one, it is the node's that sent it on.
			client, other := uint32(2), uint32(6)
			if !tunnel {
				client, other = other, client
			}
			n2.enforce(t, r, other)
			reach("a pod of another node that refuses", false)
			n2.enforce(t, r, client)
			reach("a pod of another node that lets in", true)
			n1.open(t, n1.cfg.NodeIPv4, n1.cfg.NodeIPv6)
			reach("the node itself", true)
			// By an address that the programs know from the ipcache alone.
			further := []netip.Addr{ip("192.168.0.101"), ip("fd99::101")}
			for _, at := range further {
				addAddr(t, n1.h, byName(t, n1.h, "eth0"), at, at.BitLen())
				received(t, n1.h, at)
				must(t, n1.maps.UpsertIPCache([]datapath.IPCacheEntry{{Prefix: netip.PrefixFrom(at, at.BitLen()), Identity: 1}}))
			}
			n1.open(t, further...)
			for _, at := range []netip.Addr{n1.cfg.NodeIPv4, n1.cfg.NodeIPv6} {
				for _, size := range []int{10, 1 << 20} {
					if err := echoNodePort(outside, "tcp", at, size, 5*time.Second); err != nil {
						t.Errorf("the node itself, at another of its addresses: %d bytes to %s: %v", size, at, err)
					}
				}
			}
			n1.open(t)
			reach("no backend", false)
			// What is no service's goes on as if nothing were there.
			for _, at := range []netip.Addr{n1.cfg.NodeIPv4, n1.cfg.NodeIPv6} {
				if err := echo(outside, "tcp", at, 10, 5*time.Second); err != nil {
					t.Errorf("the node's own port: %v", err)
				}
			}
		})
	}
}
