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

// roundTrips sends one byte there and back n times over one TCP connection and returns the mean time.
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

// plainPods makes two namespaces behind veth pairs of a third that routes between them, without BPF.
func plainPods(b testing.TB) (*testenv.NetNS, *testenv.NetNS, netip.Addr) {
	n := newTestNode(b, 9, false)
	one, two := testenv.NewNetNS(b), testenv.NewNetNS(b)
	for i, ns := range []*testenv.NetNS{one, two} {
		h := ns.Netlink(b)
		name := fmt.Sprintf("lxc%d", i)
		must(b, n.h.LinkAdd(&netlink.Veth{LinkAttrs: named(name), PeerName: "eth0", PeerNamespace: netlink.NsFd(ns.Fd())}))
		host, eth0, addr := byName(b, n.h, name), byName(b, h, "eth0"), ip("10.9.0.%d", 10+i)
		must(b, n.h.LinkSetUp(host))
		must(b, h.LinkSetUp(eth0))
		addAddr(b, h, eth0, addr, 32)
		addRoute(b, n.h, host, addr.String()+"/32", netip.Addr{})
		addRoute(b, h, eth0, "10.9.0.1/32", netip.Addr{})
		must(b, h.RouteAdd(&netlink.Route{LinkIndex: eth0.Attrs().Index, Gw: net.IPv4(10, 9, 0, 1)}))
	}
	serve(b, two)
	return one, two, ip("10.9.0.11")
}

// BenchmarkSameNode prints a round trip and a connection between two pods of a node, with a rule set of
// 1,000 entries, beside a routed veth pair without BPF in the same run.
func BenchmarkSameNode(b *testing.B) {
	n := newTestNode(b, 1, false)
	must(b, n.loader.Configure(n.cfg))
	src, dst := n.pod(b, 1001), n.pod(b, 1002)
	rs := datapath.RuleSet{ID: dst.ep.RuleSet, IngressEnforced: true, Entries: map[datapath.PolicyKey]datapath.PolicyEntry{}}
	for i := range 1000 {
		rs.Entries[datapath.PolicyKey{Direction: datapath.Ingress, Identity: uint32(1001 + i), Proto: 6, Port: service, PortBits: 16}] = datapath.PolicyEntry{}
	}
	must(b, n.maps.InstallRuleSet(rs))
	serve(b, dst.ns)
	plain, _, plainTo := plainPods(b)
	for name, measure := range map[string]func(testing.TB, *testenv.NetNS, netip.Addr, int) time.Duration{
		"round-trip": roundTrips, "connection": connections,
	} {
		b.Run(name, func(b *testing.B) {
			var ours, base time.Duration
			// In turns, so that the noise of the machine falls on both.
			const rounds = 10
			for range rounds {
				base += measure(b, plain, plainTo, b.N/rounds+1)
				ours += measure(b, src.ns, dst.ep.IPv4, b.N/rounds+1)
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(float64(ours.Nanoseconds())/rounds/1000, "µs")
			b.ReportMetric(float64(base.Nanoseconds())/rounds/1000, "µs/plain")
			b.ReportMetric(float64(ours)/float64(base), "ratio")
		})
	}
}
