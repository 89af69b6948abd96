package loader_test

import (
	"net/netip"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/hawser-net/hawser/internal/datapath"
)

// TestNotForPods: pods do not reach the metadata service, also where a service leads there, and are
// told so at once; nor does a client outside by a node port. The node itself does, and pods reach
// all else. No part of netfilter is asked, so nobody who flushes its tables opens the way: here it
// has none at all. A pod whose own program somebody has taken off, which leaves under the node's
// address, does not get there either.
func TestNotForPods(t *testing.T) {
	n1, n2 := newTestNode(t, 1, false), newTestNode(t, 2, false)
	join(t, n1, n2)
	outside := outsideOf(t, n1, n2)
	a := n1.pod(t, 1001, n2)
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
			n1.openAt(t, []netip.Addr{n1.cfg.NodeIPv4, n1.cfg.NodeIPv6}[i:i+1], at)
			node := []netip.Addr{n1.cfg.NodeIPv4, n1.cfg.NodeIPv6}[i]
			for _, proto := range []uint8{6, 17} {
				must(t, n1.maps.UpsertService(datapath.Service{
					ServiceFrontend: datapath.ServiceFrontend{Addr: netip.AddrPortFrom([]netip.Addr{vip4, vip6}[i], 80), Proto: proto}, ID: 11,
					Backends: []netip.AddrPort{netip.AddrPortFrom(at, service)},
				}))
			}
			if refused {
				refusedAt(t, "a pod", a.ns, netip.AddrPortFrom(at, service))
				silentAt(t, "a pod by a service", a.ns, netip.AddrPortFrom([]netip.Addr{vip4, vip6}[i], 80))
				silentAt(t, "a client outside by a node port", outside, netip.AddrPortFrom(node, outsidePort))
				continue
			}
			if err := echo(a.ns, "tcp", at, 10, 10*time.Second); err != nil {
				t.Errorf("a pod at %s: %v", at, err)
			}
			if err := echoNodePort(outside, "tcp", node, 10, 10*time.Second); err != nil {
				t.Errorf("a client outside at the port of %s: %v", node, err)
			}
		}
	}
	ways(false)
	n1.cfg.NotForPods = metadata
	must(t, n1.loader.Configure(n1.cfg))
	before := n1.dropped(t, datapath.ReasonNotForPods)
	ways(true)
	if n := n1.dropped(t, datapath.ReasonNotForPods) - before; n < 12 {
		t.Errorf("%d packets were dropped as not for pods, want at least 12", n)
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
}
