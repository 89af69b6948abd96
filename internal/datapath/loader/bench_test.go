package loader_test

import (
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/testenv"
)

// roundTrips sends one byte there and back n times over one TCP connection and returns the mean
// time.
func roundTrips(b testing.TB, from *testenv.NetNS, to netip.Addr, n int) time.Duration {
	b.Helper()
	var c net.Conn
	must(b, from.Do(func() (err error) {
		c, err = net.Dial("tcp", netip.AddrPortFrom(to, service).String())
		return err
	}))
	defer c.Close()
	buf := make([]byte, 1)
	start := time.Now()
	for range n {
		if _, err := c.Write(buf); err != nil {
			b.Fatal(err)
		}
		if _, err := c.Read(buf); err != nil {
			b.Fatal(err)
		}
	}
	return time.Since(start) / time.Duration(n)
}

// connections opens, uses and closes n TCP connections and returns the mean time of one.
func connections(b testing.TB, from *testenv.NetNS, to netip.Addr, n int) time.Duration {
	b.Helper()
	start := time.Now()
	must(b, from.Do(func() error {
		buf := make([]byte, 1)
		for range n {
			c, err := net.Dial("tcp", netip.AddrPortFrom(to, service).String())
			if err != nil {
				return err
			}
			if _, err = c.Write(buf); err == nil {
				_, err = c.Read(buf)
			}
			// No TIME_WAIT: the ports must last.
			c.(*net.TCPConn).SetLinger(0)
			c.Close()
			if err != nil {
				return err
			}
		}
		return nil
	}))
	return time.Since(start) / time.Duration(n)
}

// plainPod adds a namespace behind a veth pair to a node that routes without BPF.
func (n *testNode) plainPod(b testing.TB) (*testenv.NetNS, netip.Addr) {
	b.Helper()
	n.pods++
	ns := testenv.NewNetNS(b)
	h := ns.Netlink(b)
	name := fmt.Sprintf("lxc%d", n.pods)
	must(b, n.h.LinkAdd(&netlink.Veth{LinkAttrs: named(name), PeerName: "eth0", PeerNamespace: netlink.NsFd(ns.Fd())}))
	host, eth0, addr := byName(b, n.h, name), byName(b, h, "eth0"), ip("10.%d.0.%d", n.n, 9+n.pods)
	must(b, n.h.LinkSetUp(host))
	must(b, h.LinkSetUp(eth0))
	addAddr(b, h, eth0, addr, 32)
	addRoute(b, n.h, host, addr.String()+"/32", netip.Addr{})
	addRoute(b, h, eth0, n.cfg.RouterIPv4.String()+"/32", netip.Addr{})
	must(b, h.RouteAdd(&netlink.Route{LinkIndex: eth0.Attrs().Index, Gw: n.cfg.RouterIPv4.AsSlice()}))
	return ns, addr
}

// compare measures round trips and connections of ours and of the plain path in turns, so that the
// noise of the machine falls on both, and prints both with their ratio.
func compare(b *testing.B, ours *testenv.NetNS, to netip.Addr, plain *testenv.NetNS, plainTo netip.Addr) {
	for _, m := range []struct {
		name    string
		measure func(testing.TB, *testenv.NetNS, netip.Addr, int) time.Duration
	}{{"round-trip", roundTrips}, {"connection", connections}} {
		b.Run(m.name, func(b *testing.B) {
			var us, base time.Duration
			const rounds = 10
			for range rounds {
				base += m.measure(b, plain, plainTo, b.N/rounds+1)
				us += m.measure(b, ours, to, b.N/rounds+1)
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(float64(us.Nanoseconds())/rounds/1000, "µs")
			b.ReportMetric(float64(base.Nanoseconds())/rounds/1000, "µs/plain")
			b.ReportMetric(float64(us)/float64(base), "ratio")
		})
	}
}

// thousandRules gives a pod a rule set of 1,000 entries, one of which lets identity 1001 in.
func (n *testNode) thousandRules(b testing.TB, p *testPod) {
	rs := datapath.RuleSet{ID: p.ep.RuleSet, IngressEnforced: true, Entries: map[datapath.PolicyKey]datapath.PolicyEntry{}}
	for i := range 1000 {
		rs.Entries[datapath.PolicyKey{Direction: datapath.Ingress, Identity: uint32(1001 + i), Proto: 6, Port: service, PortBits: 16}] = datapath.PolicyEntry{Allow: true}
	}
	must(b, n.maps.InstallRuleSet(rs))
}

// BenchmarkSameNode: two pods of a node, beside routed veth pairs without BPF.
func BenchmarkSameNode(b *testing.B) {
	n := newTestNode(b, 1, false)
	must(b, n.loader.Configure(n.cfg))
	src, dst := n.pod(b, 1001), n.pod(b, 1002)
	n.thousandRules(b, dst)
	serve(b, dst.ns)

	bare := newTestNode(b, 3, false)
	plain, _ := bare.plainPod(b)
	server, plainTo := bare.plainPod(b)
	serve(b, server)
	compare(b, src.ns, dst.ep.IPv4, plain, plainTo)
}

// BenchmarkTwoNodes: pods of two nodes, through VXLAN and routed natively, beside routed veth pairs
// over a link of the same kind without BPF and without encapsulation.
func BenchmarkTwoNodes(b *testing.B) {
	n3, n4 := newTestNode(b, 3, false), newTestNode(b, 4, false)
	testenv.Connect(b, n3.ns, "eth0", []string{"192.168.0.3/24"}, n4.ns, "eth0", []string{"192.168.0.4/24"})
	addRoute(b, n3.h, byName(b, n3.h, "eth0"), "10.4.0.0/24", n4.cfg.NodeIPv4)
	addRoute(b, n4.h, byName(b, n4.h, "eth0"), "10.3.0.0/24", n3.cfg.NodeIPv4)
	plain, _ := n3.plainPod(b)
	server, plainTo := n4.plainPod(b)
	serve(b, server)
	for _, mode := range []string{"vxlan", "native"} {
		b.Run(mode, func(b *testing.B) {
			n1, n2 := newTestNode(b, 1, mode == "vxlan"), newTestNode(b, 2, mode == "vxlan")
			join(b, n1, n2)
			src, dst := n1.pod(b, 1001, n2), n2.pod(b, 1002, n1)
			n2.thousandRules(b, dst)
			serve(b, dst.ns)
			compare(b, src.ns, dst.ep.IPv4, plain, plainTo)
		})
	}
}
