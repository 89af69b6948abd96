package loader_test

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/testenv"
)

// TestOtherDevices: a client outside that comes by another device than the one that joins the nodes finds services at all addresses of the node, and is
// answered by that device. Who claims there to be a node counts as anybody, and who claims to be a pod is not heard.
func TestOtherDevices(t *testing.T) {
	for name, tunnel := range map[string]bool{"tunnel": true, "native": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n1, n2 := newTestNode(t, 1, tunnel), newTestNode(t, 2, tunnel)
			join(t, n1, n2)
			a, r := n1.pod(t, 1001, n2), n2.pod(t, 1003, n1)
			// It has addresses of the other node's and of its pod's.
			client := stranger(t, n1, "eth1", 7, ip("192.168.0.2"), ip("fd99::2"), r.ep.IPv4, r.ep.IPv6)
			eth1 := byName(t, n1.h, "eth1").Attrs().Index
			n1.cfg.NodePort, n1.cfg.OtherIfIndexes = true, []int{eth1}
			must(t, n1.loader.Configure(n1.cfg))
			for _, ns := range []*testenv.NetNS{a.ns, r.ns, n1.ns} {
				serve(t, ns)
			}
			defer func() {
				if t.Failed() {
					metrics(t, n1, n2)
				}
			}()
			addrs := []netip.Addr{ip("192.168.7.1"), ip("fd7::1"), n1.cfg.NodeIPv4, n1.cfg.NodeIPv6}
			reach := func(what string, want bool, networks ...string) {
				t.Helper()
				patience := 10 * time.Second
				if !want {
					patience = 300 * time.Millisecond
				}
				for _, at := range addrs {
					for _, try := range []struct {
						network string
						size    int
					}{{"tcp", 10}, {"tcp", 1 << 20}, {"udp", 10}, {"udp", 1200}} {
						if len(networks) > 0 && !slices.Contains(networks, try.network) {
							continue
						}
						err := echoNodePort(client, try.network, at, try.size, patience)
						if (err == nil) != want {
							t.Errorf("%s: %s of %d bytes to %s: %v", what, try.network, try.size, at, err)
						}
						if !want && try.size > 10 {
							break
						}
					}
				}
			}
			n1.openAt(t, addrs, a.addrs()...)
			reach("a pod of the node", true)
			n1.enforce(t, a, 6, 1003)
			reach("a pod of the node that refuses the world", false)
			n1.enforce(t, a, 2)
			reach("a pod of the node that lets the world in", true)
			n1.openAt(t, addrs, r.addrs()...)
			reach("a pod of another node", true)
			n1.openAt(t, addrs, n1.cfg.NodeIPv4, n1.cfg.NodeIPv6)
			// A UDP server on all addresses answers from that which is nearest to the client, whoever it was asked as.
			reach("the node itself", true, "tcp")
			n1.openAt(t, addrs)
			for _, at := range addrs {
				refusedAt(t, "nobody", client, netip.AddrPortFrom(at, outsidePort))
			}
			// What is no service's goes on as if nothing were there.
			for _, at := range addrs[:2] {
				if err := echo(client, "tcp", at, 10, 5*time.Second); err != nil {
					t.Errorf("the node's own port: %v", err)
				}
			}

			// Forged sources. The pod lets in nodes and the other pod, then the world.
			v := newVictim(t, a)
			frontend := func(at netip.Addr) netip.AddrPort { return netip.AddrPortFrom(at, forgedPort) }
			for i, at := range addrs[:2] {
				must(t, n1.maps.UpsertService(datapath.Service{
					ServiceFrontend: datapath.ServiceFrontend{Addr: frontend(at), Proto: 17, Scope: datapath.ServiceOutside}, ID: 10,
					Backends: []netip.AddrPort{netip.AddrPortFrom(a.addrs()[i], forgedPort)},
				}))
			}
			lies := func() {
				for _, src := range []netip.Addr{ip("192.168.0.2"), ip("fd99::2"), r.ep.IPv4, r.ep.IPv6} {
					to := addrs[0]
					if src.Is6() {
						to = addrs[1]
					}
					datagram(t, client, src, frontend(to), []byte("from "+src.String()))
				}
			}
			honest := func(last string) func() {
				return func() { datagram(t, client, ip("192.168.7.2"), frontend(addrs[0]), []byte(last)) }
			}
			n1.enforce(t, a, 6, 1003)
			before := n1.dropped(t, datapath.ReasonInvalidSourceIP)
			lies()
			n1.enforce(t, a, 2)
			if seen := v.until("one", honest("one")); len(seen) > 0 {
				t.Errorf("whom the pod does not let in is heard, by claiming to be somebody else: %q", seen)
			}
			if got := n1.dropped(t, datapath.ReasonInvalidSourceIP); got < before+2 {
				t.Errorf("%d packets were dropped that claim to be a pod's", got-before)
			}
			lies()
			if seen := v.until("two", honest("two")); len(seen) == 0 {
				t.Error("nothing of what claims to be a node's is heard as the world's, so that what is not heard above proves nothing")
			}
		})
	}
}
