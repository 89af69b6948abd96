package loader_test

import (
	"encoding/binary"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/datapath/link"
	"github.com/hawser-net/hawser/internal/testenv"
)

// dropInvalid has netfilter drop what its connection tracking takes for invalid, as kube-proxy with
// iptables and firewalls do.
const dropInvalid = "table inet kube {\nchain forward { type filter hook forward priority 0\nct state invalid drop\n}\n}\n"

// TestOneSidedConnections: netfilter sees one direction of some connections, as the programs give
// packets from other nodes to pods at once, and pods' packets take the stack. Neither what drops
// invalid packets nor masquerading harms these.
func TestOneSidedConnections(t *testing.T) {
	for _, mode := range []struct {
		name                string
		tunnel, masquerades bool
	}{{"tunnel", true, true}, {"native", false, true}, {"not masqueraded", false, false}} {
		t.Run(mode.name, func(t *testing.T) {
			t.Parallel()
			n1, n2 := newTestNode(t, 1, mode.tunnel), newTestNode(t, 2, mode.tunnel)
			join(t, n1, n2)
			outside := outsideOf(t, n1, n2)
			a, b := n1.pod(t, 1001, n2), n2.pod(t, 1002, n1)
			for _, ns := range []*testenv.NetNS{n1.ns, n2.ns, a.ns, b.ns, outside} {
				serve(t, ns)
			}
			for _, n := range []*testNode{n1, n2} {
				links, err := link.New(link.Config{NetNSFD: n.ns.Fd()}, slog.New(slog.DiscardHandler))
				must(t, err)
				t.Cleanup(links.Close)
				_, err = links.SetNode(datapath.Node{
					Device: "eth0", RouterIPv4: n.cfg.RouterIPv4, RouterIPv6: n.cfg.RouterIPv6, Tunnel: mode.tunnel, TunnelPort: n.cfg.TunnelPort,
					KubeProxy: true, Masquerade4: mode.masquerades, Masquerade6: mode.masquerades, MasqueradePorts: datapath.PortRange{First: 61000, Last: 61999},
					PodCIDRs:     []netip.Prefix{netip.MustParsePrefix(fmt.Sprintf("10.%d.0.0/24", n.n)), netip.MustParsePrefix(fmt.Sprintf("fd00:%d::/64", n.n))},
					ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("192.168.0.0/24"), netip.MustParsePrefix("fd00::/16"), netip.MustParsePrefix("fd99::/64")},
				})
				must(t, err)
				must(t, n.ns.Do(func() error { return nft(dropInvalid) }))
			}
			defer func() {
				if t.Failed() {
					metrics(t, n1, n2)
				}
			}()
			try := func(what string, networks []string, from *testenv.NetNS, to ...netip.Addr) {
				t.Helper()
				for _, at := range to {
					for _, network := range networks {
						c, err := connectFrom(t, from, network, 0, netip.AddrPortFrom(at, service))
						for i := 0; i < 3 && err == nil; i++ { // the first to come from the pod is the reply to a SYN
							err = echoed(c, fmt.Sprint(what, i))
						}
						if err != nil {
							t.Errorf("%s: %s to %s: %v", what, network, at, err)
						}
					}
				}
			}
			tcp, both := []string{"tcp"}, []string{"tcp", "udp"}
			try("pod to pod", both, a.ns, b.addrs()...)
			try("pod to another node", tcp, a.ns, n2.cfg.NodeIPv4, n2.cfg.NodeIPv6)
			try("another node to pod", both, n2.ns, a.addrs()...)
			try("node to its pod", both, n1.ns, a.addrs()...)
			try("pod to its node", tcp, a.ns, n1.cfg.RouterIPv4, n1.cfg.RouterIPv6)
			if mode.tunnel {
				return
			}
			try("client outside to pod", both, outside, a.addrs()...)
			// A rule that names the client changes how its packets come to the pod.
			for _, prefix := range []string{"172.16.0.0/24", "fd98::/64"} {
				must(t, n1.maps.UpsertIPCache([]datapath.IPCacheEntry{{Prefix: netip.MustParsePrefix(prefix), Identity: 1<<24 | 1}}))
			}
			try("named client outside to pod", both, outside, a.addrs()...)
			for _, prefix := range []string{"172.16.0.0/24", "fd98::/64"} {
				must(t, n1.maps.UpsertIPCache([]datapath.IPCacheEntry{{Prefix: netip.MustParsePrefix(prefix), Identity: 7}}))
			}
			try("API server outside to pod", both, outside, a.addrs()...)
			// A pod's packet of no connection is not translated: it must not leave under its
			// address.
			if mode.masquerades {
				for _, n := range []*testNode{n1, n2} { // on their own, our rules see to that
					must(t, n.ns.Do(func() error { return nft("delete table inet kube") }))
				}
				for i, to := range []netip.Addr{ip("172.16.0.2"), ip("fd98::2")} {
					if seen := strays(t, a.ns, a.addrs()[i], outside, to); seen {
						t.Errorf("a packet of no connection leaves under the pod's address to %s", to)
					}
				}
			}
		})
	}
}

// strays reports whether a SYN-ACK of no connection, from a pod, comes to a host under the pod's
// address before a connection of the pod, opened after it, does.
func strays(t *testing.T, pod *testenv.NetNS, from netip.Addr, host *testenv.NetNS, to netip.Addr) (seen bool) {
	t.Helper()
	family := map[bool]string{true: "ip4:tcp", false: "ip6:tcp"}[to.Is4()]
	var listener, sender net.PacketConn
	must(t, host.Do(func() (err error) { listener, err = net.ListenPacket(family, to.String()); return err }))
	defer listener.Close()
	must(t, pod.Do(func() (err error) { sender, err = net.ListenPacket(family, from.String()); return err }))
	defer sender.Close()
	segment := make([]byte, 20)
	binary.BigEndian.PutUint16(segment, 1234)
	binary.BigEndian.PutUint16(segment[2:], 4321)
	segment[12], segment[13], segment[14] = 5<<4, 0x12, 1
	pseudo := slices.Concat(from.AsSlice(), to.AsSlice(), []byte{0, 6, 0, 20})
	binary.BigEndian.PutUint16(segment[16:], ^onesSum(append(pseudo, segment...)))
	_, err := sender.WriteTo(segment, &net.IPAddr{IP: to.AsSlice()})
	must(t, err)
	c, err := connectFrom(t, pod, "tcp", 0, netip.AddrPortFrom(to, service))
	must(t, err)
	c.Close()
	listener.SetReadDeadline(time.Now().Add(5 * time.Second))
	buf := make([]byte, 1500)
	for {
		_, at, err := listener.ReadFrom(buf)
		must(t, err)
		if netip.MustParseAddr(at.String()) != from {
			return seen // the connection, in the node's name
		}
		seen = true
	}
}
