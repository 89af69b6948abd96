package loader_test

import (
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/testenv"
)

// TestNotForPods: pods do not reach the metadata service, also where a service leads there, and are
// refused at once; nor does a client outside by a node port. The node itself does, and pods reach
// all else. Outside is also who comes by a device that does not join the nodes. No part of
// netfilter is used, so flushing its tables does not open the way: here it has none at all. A pod
// whose own program was detached, and which leaves under the node's address, does not get there
// either, also by a device on top of the node's.
func TestNotForPods(t *testing.T) {
	n1, n2 := newTestNode(t, 1, false), newTestNode(t, 2, false)
	join(t, n1, n2)
	outside := outsideOf(t, n1, n2)
	a := n1.pod(t, 1001, n2)
	aside := outsideHost(t, n1, "eth1", 7)
	asides := []netip.Addr{ip("192.168.7.1"), ip("fd7::1")}
	n1.cfg.OtherIfIndexes = []int{byName(t, n1.h, "eth1").Attrs().Index}
	must(t, n1.loader.Configure(n1.cfg))
	metadata := []netip.Addr{ip("169.254.169.254"), ip("fd00:ec2::254")}
	elsewhere := []netip.Addr{ip("192.0.2.9"), ip("fd00:ec2::9")}
	for i, at := range slices.Concat(metadata, elsewhere) {
		addAddr(t, n2.h, byName(t, n2.h, "lo"), at, at.BitLen())
		via := []netip.Addr{n2.cfg.NodeIPv4, n2.cfg.NodeIPv6}[i%2]
		must(t, n1.h.RouteAdd(&netlink.Route{LinkIndex: byName(t, n1.h, "eth0").Attrs().Index, Dst: netlink.NewIPNet(at.AsSlice()), Gw: via.AsSlice()}))
	}
	serve(t, n2.ns)
	defer func() {
		if t.Failed() {
			metrics(t, n1, n2)
		}
	}()
	ways := func(refused bool) {
		t.Helper()
		for _, at := range slices.Concat(metadata, elsewhere) {
			if err := echo(n1.ns, "tcp", at, 10, 10*time.Second); err != nil {
				t.Errorf("the node itself at %s: %v", at, err)
			}
		}
		for _, at := range elsewhere {
			if err := echo(a.ns, "tcp", at, 10, 10*time.Second); err != nil {
				t.Errorf("a pod at %s: %v", at, err)
			}
		}
		for i, at := range metadata {
			n1.openAt(t, []netip.Addr{[]netip.Addr{n1.cfg.NodeIPv4, n1.cfg.NodeIPv6}[i], asides[i]}, at)
			node := []netip.Addr{n1.cfg.NodeIPv4, n1.cfg.NodeIPv6}[i]
			for _, proto := range []uint8{6, 17} {
				must(t, n1.maps.UpsertService(datapath.Service{
					ServiceFrontend: datapath.ServiceFrontend{Addr: netip.AddrPortFrom([]netip.Addr{vip4, vip6}[i], 80), Proto: proto}, ID: 11,
					Backends: []netip.AddrPort{netip.AddrPortFrom(at, service)},
				}))
			}
			if refused {
				refusedAt(t, "a pod", a.ns, netip.AddrPortFrom(at, service))
				before := messages(t, a.ns)
				silentAt(t, "a pod by a service", a.ns, netip.AddrPortFrom([]netip.Addr{vip4, vip6}[i], 80))
				if after := messages(t, a.ns); after != before {
					t.Errorf("a pod is answered in a name that it has not asked: ICMP %s, before %s", after, before)
				}
				silentAt(t, "a client at another device", aside, netip.AddrPortFrom(asides[i], outsidePort))
				silentAt(t, "a client outside by a node port", outside, netip.AddrPortFrom(node, outsidePort))
				continue
			}
			if err := echo(a.ns, "tcp", at, 10, 10*time.Second); err != nil {
				t.Errorf("a pod at %s: %v", at, err)
			}
			if err := echoNodePort(outside, "tcp", node, 10, 10*time.Second); err != nil {
				t.Errorf("a client outside at the port of %s: %v", node, err)
			}
			if err := echoNodePort(aside, "tcp", asides[i], 10, 10*time.Second); err != nil {
				t.Errorf("a client at another device: %s: %v", asides[i], err)
			}
		}
	}
	ways(false)
	n1.cfg.NotForPods = metadata
	must(t, n1.loader.Configure(n1.cfg))
	before := n1.dropped(t, datapath.ReasonNotForPods)
	ways(true)
	if n := n1.dropped(t, datapath.ReasonNotForPods) - before; n < 16 {
		t.Errorf("%d packets were dropped as not for pods, want at least 16", n)
	}

	// What netfilter has masqueraded is the node's by its source, where the pod's program is
	// missing.
	must(t, n1.h.QdiscDel(clsact(a.ep.IfIndex)))
	n1.ns.Must(t, func() error {
		return exec.Command("nft", "add table ip nat; add chain ip nat post { type nat hook postrouting priority 100; }; add rule ip nat post oifname eth0 masquerade").Run()
	})
	if err := echo(a.ns, "tcp", elsewhere[0], 10, 10*time.Second); err != nil {
		t.Errorf("a pod without its program at another address: %v", err)
	}
	silentAt(t, "a pod without its program", a.ns, netip.AddrPortFrom(metadata[0], service))

	// A device on top of the node's sends under a hardware address and from a network of its own.
	for n, node := range []*testNode{n1, n2} {
		macvlan(t, node.h, node.ns, 50, n+1)
	}
	n1.ns.Must(t, func() error { return exec.Command("nft", "add rule ip nat post oifname macvlan masquerade").Run() })
	for _, at := range []netip.Addr{elsewhere[0], metadata[0]} {
		must(t, n1.h.RouteReplace(&netlink.Route{LinkIndex: byName(t, n1.h, "macvlan").Attrs().Index, Dst: netlink.NewIPNet(at.AsSlice()), Gw: net.ParseIP("192.168.50.2")}))
	}
	if err := echo(a.ns, "tcp", elsewhere[0], 10, 10*time.Second); err != nil {
		t.Errorf("a pod without its program by another device at another address: %v", err)
	}
	silentAt(t, "a pod without its program by another device", a.ns, netip.AddrPortFrom(metadata[0], service))
}

// TestLoopbackIsNotForPods: what listens at 127.0.0.1 of a node is for the node alone, also where
// another program has the kernel accept packets for it from outside, as kube-proxy and plugins for
// host ports do: root in a pod, which sends them out, does not get there, itself or by a service.
func TestLoopbackIsNotForPods(t *testing.T) {
	n1, n2 := newTestNode(t, 1, false), newTestNode(t, 2, false)
	join(t, n1, n2)
	a := n1.pod(t, 1001, n2)
	own := ip("127.0.0.1")
	serve(t, n1.ns)
	for _, ns := range []*testenv.NetNS{n1.ns, a.ns} {
		ns.Must(t, func() error { return os.WriteFile("/proc/sys/net/ipv4/conf/all/route_localnet", []byte("1"), 0) })
	}
	h := a.ns.Netlink(t)
	must(t, h.AddrDel(byName(t, h, "lo"), &netlink.Addr{IPNet: &net.IPNet{IP: own.AsSlice(), Mask: net.CIDRMask(8, 32)}}))
	addRoute(t, h, byName(t, h, "eth0"), "127.0.0.1/32", n1.cfg.RouterIPv4)
	must(t, n1.maps.UpsertService(datapath.Service{
		ServiceFrontend: datapath.ServiceFrontend{Addr: netip.AddrPortFrom(vip4, 80), Proto: 6}, ID: 11, Backends: []netip.AddrPort{netip.AddrPortFrom(own, service)},
	}))
	for _, at := range []netip.Addr{own, n1.cfg.NodeIPv4} {
		if err := echo(n1.ns, "tcp", at, 10, 10*time.Second); err != nil {
			t.Errorf("the node itself at %s: %v", at, err)
		}
	}
	before := n1.dropped(t, datapath.ReasonNotForPods)
	if err := echo(a.ns, "tcp", n1.cfg.NodeIPv4, 10, 10*time.Second); err != nil {
		t.Errorf("a pod at the node's address: %v", err)
	}
	if err := echo(a.ns, "tcp", own, 10, time.Second); err == nil {
		t.Errorf("a pod is answered from the node's %s", own)
	}
	silentAt(t, "a pod by a service", a.ns, netip.AddrPortFrom(vip4, 80))
	if n := n1.dropped(t, datapath.ReasonNotForPods) - before; n < 2 {
		t.Errorf("%d packets were dropped as not for pods, want at least 2", n)
	}
}

// messages is how many messages of ICMP a namespace has got: the values of InMsgs and InErrors.
func messages(t *testing.T, ns *testenv.NetNS) (out string) {
	t.Helper()
	ns.Must(t, func() error {
		text, err := os.ReadFile("/proc/thread-self/net/snmp")
		for line := range strings.Lines(string(text)) {
			if fields := strings.Fields(line); fields[0] == "Icmp:" {
				out = strings.Join(fields[1:3], " ")
			}
		}
		return err
	})
	return out
}
