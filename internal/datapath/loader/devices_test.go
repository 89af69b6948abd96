package loader_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink"

	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/datapath/loader"
	"github.com/hawser-net/hawser/internal/testenv"
)

// TestOtherDevices: a client outside that comes by another device than the one that joins the nodes
// finds services at all addresses of the node, and is answered by that device. Who claims there to
// be a node counts as anybody, and packets that claim to be a pod's are dropped.
func TestOtherDevices(t *testing.T) {
	for name, tunnel := range map[string]bool{"tunnel": true, "native": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n1, n2 := newTestNode(t, 1, tunnel), newTestNode(t, 2, tunnel)
			join(t, n1, n2)
			a, r := n1.pod(t, 1001, n2), n2.pod(t, 1003, n1)
			// It has addresses of the other node's and of its pod's.
			client := outsideHost(t, n1, "eth1", 7, ip("192.168.0.2"), ip("fd99::2"), r.ep.IPv4, r.ep.IPv6)
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
				timeout := 10 * time.Second
				if !want {
					timeout = 300 * time.Millisecond
				}
				for _, at := range addrs {
					for _, try := range []struct {
						network string
						size    int
					}{{"tcp", 10}, {"tcp", 1 << 20}, {"udp", 10}, {"udp", 1200}} {
						if len(networks) > 0 && !slices.Contains(networks, try.network) {
							continue
						}
						err := echoNodePort(client, try.network, at, try.size, timeout)
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
			// Its answers come by that device.
			server := outsideHost(t, n1, "eth2", 8)
			n1.cfg.OtherIfIndexes = append(n1.cfg.OtherIfIndexes, byName(t, n1.h, "eth2").Attrs().Index)
			must(t, n1.loader.Configure(n1.cfg))
			serve(t, server)
			n1.openAt(t, addrs, ip("192.168.8.2"), ip("fd8::2"))
			reach("a machine outside, behind a third device", true)
			n1.openAt(t, addrs, n1.cfg.NodeIPv4, n1.cfg.NodeIPv6)
			// A UDP server on all addresses answers from that which is nearest to the client,
			// whoever it was asked as.
			reach("the node itself", true, "tcp")
			n1.openAt(t, addrs)
			for _, at := range addrs {
				refusedAt(t, "no backend", client, netip.AddrPortFrom(at, outsidePort))
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
					ServiceFrontend: datapath.ServiceFrontend{Addr: frontend(at), Proto: 17, Scope: datapath.ServiceExternal}, ID: 10,
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
			forged, refused := n1.dropped(t, datapath.ReasonInvalidSourceIP), n1.dropped(t, datapath.ReasonPolicyDenied)
			lies()
			// All have been evaluated before the rules change.
			testenv.Eventually(t, time.Minute, func() string {
				pods, nodes := n1.dropped(t, datapath.ReasonInvalidSourceIP)-forged, n1.dropped(t, datapath.ReasonPolicyDenied)-refused
				if pods < 2 || nodes < 2 {
					return fmt.Sprintf("%d packets were dropped that claim to be a pod's, and %d that claim to be a node's, want 2 of each", pods, nodes)
				}
				return ""
			})
			n1.enforce(t, a, 2)
			if seen := v.until("one", honest("one")); len(seen) > 0 {
				t.Errorf("a source that the pod does not admit gets through with a forged address: %q", seen)
			}
			lies()
			if seen := v.until("two", honest("two")); len(seen) == 0 {
				t.Error("nothing of what claims to be a node's gets through as the world's, so that what is dropped above proves nothing")
			}
		})
	}
}

// refusingFilters refuses all programs on one interface, as where another qdisc is at the hooks.
type refusingFilters struct {
	*tcFilters
	ifIndex int
}

func (f *refusingFilters) ReplaceFilter(ifIndex int, ingress bool, progFD int, name string) error {
	if ifIndex == f.ifIndex {
		return errors.New("another qdisc is at the hooks")
	}
	return f.tcFilters.ReplaceFilter(ifIndex, ingress, progFD, name)
}

// TestOtherDevicesKeepFilters: a device by which no node or pod is reached and that cannot have
// the programs does not make the node unhealthy, and is logged once; foreign programs that
// are there stay until their owner removes them.
func TestOtherDevicesKeepFilters(t *testing.T) {
	testenv.RequireRoot(t)
	h := testenv.NewNetNS(t).Netlink(t)
	for _, name := range []string{"eth0", "eth1", "eth2"} {
		must(t, h.LinkAdd(&netlink.Veth{LinkAttrs: named(name), PeerName: "far_" + name}))
	}
	index := func(name string) int { return byName(t, h, name).Attrs().Index }
	filters := &refusingFilters{tcFilters: &tcFilters{h: h}, ifIndex: index("eth1")}
	theirs, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "foreign", Type: ebpf.SchedCLS, License: "GPL", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, -1), asm.Return()},
	})
	must(t, err)
	t.Cleanup(func() { theirs.Close() })
	must(t, filters.ReplaceFilter(index("eth2"), true, theirs.FD(), "theirs"))
	on := func(name string, ingress bool) int {
		t.Helper()
		id, err := filters.FilterProgram(index(name), ingress)
		must(t, err)
		return id
	}
	before := on("eth2", true)

	var log bytes.Buffer
	l := loader.New(smallMaps(t, ""), filters, slog.New(slog.NewTextHandler(&log, nil)))
	t.Cleanup(func() { l.Close() })
	cfg := datapath.Config{RouterIPv4: ip("10.1.0.1"), NativeIfIndex: index("eth0"), OtherIfIndexes: []int{index("eth1"), index("eth2")}, NodePort: true, NetNSCookie: 1}
	must(t, l.Configure(cfg))
	reattach := func(what string, ifIndex, want int) {
		t.Helper()
		if n, err := l.ReattachNode(ifIndex); n != want || err != nil {
			t.Errorf("%s: %d put back, %v, want %d", what, n, err, want)
		}
	}
	for range 3 {
		reattach("nothing changed", 0, 0)
		reattach("nothing changed at a device", index("eth1"), 0)
		must(t, l.Configure(cfg))
	}
	logged := func(what string, want ...int) {
		t.Helper()
		for i, name := range []string{"eth1", "eth2"} {
			if n := strings.Count(log.String(), fmt.Sprintf("ifindex=%d ", index(name))); n != want[i] {
				t.Errorf("%s: %s is logged %d times, want %d:\n%s", what, name, n, want[i], &log)
			}
		}
	}
	logged("at first", 1, 1)
	if now := on("eth2", true); now != before {
		t.Errorf("the foreign program %d was replaced by %d", before, now)
	}
	if on("eth2", false) == 0 || on("eth0", true) == 0 || on("eth0", false) == 0 {
		t.Error("what has room is not there")
	}

	// As soon as there is room the programs come.
	filters.ifIndex = 0
	reattach("a device that can have them", index("eth1"), 2)
	must(t, h.QdiscDel(clsact(index("eth2"))))
	reattach("a device whose other programs went", index("eth2"), 2)
	filters.ifIndex = index("eth1")
	must(t, h.QdiscDel(clsact(index("eth1"))))
	reattach("a device that cannot have them again", 0, 0)
	logged("again", 2, 1)

	// The device of the cluster is another matter.
	filters.ifIndex = index("eth0")
	must(t, h.QdiscDel(clsact(index("eth0"))))
	if _, err := l.ReattachNode(0); err == nil {
		t.Error("no error though the programs are missing at the device of the cluster")
	}
}

func clsact(ifIndex int) *netlink.Clsact {
	return &netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: ifIndex, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT}}
}
