package loader_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/testenv"
)

const forgedPort = 9999

// victim records which datagrams have come. Datagrams keep their order on a path, so a forged one
// has not come if an honest one that was sent after it has.
type victim struct {
	t *testing.T
	c net.PacketConn
}

func newVictim(t *testing.T, p *testPod) *victim {
	t.Helper()
	v := &victim{t: t}
	must(t, p.ns.Do(func() (err error) {
		v.c, err = net.ListenPacket("udp", fmt.Sprintf(":%d", forgedPort))
		return err
	}))
	t.Cleanup(func() { v.c.Close() })
	return v
}

// until returns what comes until the text last does, which the caller sends, and sends again if it
// is lost.
func (v *victim) until(last string, send func()) (seen []string) {
	v.t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	buf := make([]byte, 1500)
	for time.Now().Before(deadline) {
		send()
		v.c.SetReadDeadline(time.Now().Add(time.Second))
		for {
			n, _, err := v.c.ReadFrom(buf)
			if err != nil {
				break
			}
			got := strings.TrimRight(string(buf[:n]), "\x00") // what makes it large
			if got == last {
				return seen
			}
			seen = append(seen, got)
		}
	}
	v.t.Fatalf("%q has not come", last)
	return nil
}

// datagram sends a text from an address, which the namespace must have.
func datagram(t *testing.T, ns *testenv.NetNS, src netip.Addr, dst netip.AddrPort, what []byte) {
	t.Helper()
	must(t, ns.Do(func() error {
		c, err := net.DialUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(src, 0)), net.UDPAddrFromAddrPort(dst))
		if err != nil {
			return err
		}
		defer c.Close()
		c.Write(what) // an earlier ICMP error, for a closed port, may be reported here
		return nil
	}))
}

// vxlan is a datagram that carries a datagram, as a node would send it.
func vxlan(flags byte, vni uint32, src, dst netip.Addr, what string) []byte {
	udp := make([]byte, 8, 8+len(what))
	binary.BigEndian.PutUint16(udp, 4444)
	binary.BigEndian.PutUint16(udp[2:], forgedPort)
	binary.BigEndian.PutUint16(udp[4:], uint16(8+len(what)))
	udp = append(udp, what...)
	pseudo := append(append(src.AsSlice(), dst.AsSlice()...), 0, 17, udp[4], udp[5])
	binary.BigEndian.PutUint16(udp[6:], ^onesSum(append(pseudo, udp...)))
	b := []byte{flags, 0, 0, 0, byte(vni >> 16), byte(vni >> 8), byte(vni), 0}
	b = append(b, 2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2)
	if src.Is4() {
		ip := make([]byte, 20)
		ip[0], ip[8], ip[9] = 0x45, 64, 17
		binary.BigEndian.PutUint16(ip[2:], uint16(20+len(udp)))
		copy(ip[12:], src.AsSlice())
		copy(ip[16:], dst.AsSlice())
		binary.BigEndian.PutUint16(ip[10:], ^onesSum(ip))
		b = append(append(b, 0x08, 0), ip...)
	} else {
		ip := make([]byte, 40)
		ip[0], ip[6], ip[7] = 0x60, 17, 64
		binary.BigEndian.PutUint16(ip[4:], uint16(len(udp)))
		copy(ip[8:], src.AsSlice())
		copy(ip[24:], dst.AsSlice())
		b = append(append(b, 0x86, 0xdd), ip...)
	}
	return append(b, udp...)
}

func onesSum(b []byte) uint16 {
	if len(b)%2 == 1 {
		b = append(b, 0)
	}
	var sum uint32
	for i := 0; i < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	return uint16(sum)
}

// outsideHost is a host on a network of the node that is no node itself. It also has the addresses
// that it is to forge.
func outsideHost(t *testing.T, n *testNode, device string, subnet int, spoof ...netip.Addr) *testenv.NetNS {
	t.Helper()
	ns := testenv.NewNetNS(t)
	testenv.Connect(t, n.ns, device, []string{fmt.Sprintf("192.168.%d.1/24", subnet), fmt.Sprintf("fd%d::1/64", subnet)},
		ns, "eth0", []string{fmt.Sprintf("192.168.%d.2/24", subnet), fmt.Sprintf("fd%d::2/64", subnet)})
	h := ns.Netlink(t)
	lo, eth0 := byName(t, h, "lo"), byName(t, h, "eth0")
	for _, a := range spoof {
		addAddr(t, h, lo, a, a.BitLen())
	}
	for _, dst := range []string{"10.0.0.0/8", "192.168.0.0/24", "fd00::/16", "fd99::/64"} {
		via := ip("192.168.%d.1", subnet)
		if dst[0] == 'f' {
			via = ip("fd%d::1", subnet)
		}
		_, to, err := net.ParseCIDR(dst)
		must(t, err)
		must(t, h.RouteAdd(&netlink.Route{LinkIndex: eth0.Attrs().Index, Dst: to, Gw: via.AsSlice(), Priority: 1}))
	}
	return ns
}

// bridge makes the node's end of an outside host's network a port of a bridge, which has its
// addresses then.
func bridge(t *testing.T, n *testNode, device string, subnet int) {
	t.Helper()
	must(t, n.h.LinkAdd(&netlink.Bridge{LinkAttrs: named("bridge")}))
	bridge, port := byName(t, n.h, "bridge"), byName(t, n.h, device)
	must(t, n.h.LinkSetMaster(port, bridge))
	must(t, n.h.LinkSetUp(bridge))
	for _, cidr := range []string{fmt.Sprintf("192.168.%d.1/24", subnet), fmt.Sprintf("fd%d::1/64", subnet)} {
		addr, err := netlink.ParseAddr(cidr)
		must(t, err)
		must(t, n.h.AddrDel(port, addr))
		addr.Flags = unix.IFA_F_NODAD
		must(t, n.h.AddrAdd(bridge, addr))
	}
}

// TestNoTunnelForPods: root in a pod, and a machine that is no node, send what a node would unwrap,
// to every address of every node, and reach no pod.
func TestNoTunnelForPods(t *testing.T) {
	for _, nodePort := range []bool{false, true} {
		t.Run(fmt.Sprintf("nodeport=%v", nodePort), func(t *testing.T) {
			n1, n2 := newTestNode(t, 1, true), newTestNode(t, 2, true)
			n1.cfg.NodePort, n2.cfg.NodePort = nodePort, nodePort
			join(t, n1, n2)
			a, b, ok := n1.pod(t, 1001, n2), n1.pod(t, 1002, n2), n1.pod(t, 1003, n2)
			r, far := n2.pod(t, 1002, n1), n2.pod(t, 1003, n1)
			n1.enforce(t, b, 1003)
			n2.enforce(t, r, 1003)
			outside := outsideHost(t, n1, "under", 77)
			for _, row := range []struct {
				name   string
				victim *testPod
				honest *testPod // whom the victim admits
				node   *testNode
			}{{"own node", b, ok, n1}, {"other node", r, far, n2}} {
				v := newVictim(t, row.victim)
				for i, to := range row.victim.addrs() {
					inner := []netip.Addr{ip("10.3.0.99"), ip("fd00:3::99")}[i]
					for _, outer := range []netip.Addr{row.node.cfg.RouterIPv4, row.node.cfg.NodeIPv4, row.node.cfg.RouterIPv6, row.node.cfg.NodeIPv6} {
						at := netip.AddrPortFrom(outer, 8472)
						for _, flags := range []byte{0x08, 0x88, 0x0c, 0x00} {
							datagram(t, a.ns, netip.Addr{}, at, vxlan(flags, 1003, inner, to, fmt.Sprintf("from a pod to %s", outer)))
							datagram(t, outside, netip.Addr{}, at, vxlan(flags, 1003, inner, to, fmt.Sprintf("from outside to %s", outer)))
						}
					}
					last := fmt.Sprintf("honest %d", i)
					seen := v.until(last, func() {
						datagram(t, row.honest.ns, netip.Addr{}, netip.AddrPortFrom(to, forgedPort), []byte(last))
					})
					if len(seen) > 0 {
						t.Errorf("%s, %s: the pod got %q", row.name, to, seen)
					}
				}
			}
			if got := n1.dropped(t, datapath.ReasonTunnelNotFromNode); got < 64 {
				t.Errorf("%d of the pod's packets were dropped for what they are, want all 64", got)
			}
			// They may wait for the neighbour's address.
			testenv.Eventually(t, 20*time.Second, func() string {
				if n1.dropped(t, datapath.ReasonUnknownTunnelPeer) == 0 {
					return "the kernel has unwrapped none of the outside host's packets: nothing was tried"
				}
				return ""
			})
		})
	}
}

// asKubeProxy has netfilter lead two services of a node's to another, as kube-proxy does, and the
// packets leave in the node's name: 10.96.0.9 and fd00:96::9 port 53 to the other's tunnel, port 54
// to its socket.
func asKubeProxy(t *testing.T, n, other *testNode) {
	t.Helper()
	var nat string
	for from, to := range map[int]int{53: 8472, 54: forgedPort} {
		nat += fmt.Sprintf("ip daddr 10.96.0.9 udp dport %d dnat ip to %s:%d\n", from, other.cfg.NodeIPv4, to)
		nat += fmt.Sprintf("ip6 daddr fd00:96::9 udp dport %d dnat ip6 to [%s]:%d\n", from, other.cfg.NodeIPv6, to)
	}
	rules := "table inet kube {\nchain pre { type nat hook prerouting priority -100\n" + nat + "}\nchain out { type nat hook output priority -100\n" + nat +
		"}\nchain post { type nat hook postrouting priority srcnat\nct status dnat masquerade\n}\n}\n"
	must(t, n.ns.Do(func() error { return nft(rules) }))
	for _, service := range []string{"10.96.0.9/32", "fd00:96::9/128"} {
		via := other.cfg.NodeIPv4
		if service[0] == 'f' {
			via = other.cfg.NodeIPv6
		}
		addRoute(t, n.h, byName(t, n.h, "eth0"), service, via)
	}
}

// nft has nftables read commands in the namespace of the thread.
func nft(commands string) error {
	c := exec.Command("nft", "-f", "-")
	c.Stdin = strings.NewReader(commands)
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("nft: %w: %s", err, out)
	}
	return nil
}

// TestTunnelWithNodeAddress: packets for another node's tunnel that leave under this node's
// address, but were not encapsulated by it, do not get there: neither a pod's, nor those of a
// client outside, that kube-proxy leads there, nor those of a process of the node. What the node
// encapsulates does, over either family.
func TestTunnelWithNodeAddress(t *testing.T) {
	for _, nodePort := range []bool{false, true} {
		for _, underlay6 := range []bool{false, true} {
			t.Run(fmt.Sprintf("nodeport=%v,underlay6=%v", nodePort, underlay6), func(t *testing.T) {
				n1, n2 := newTestNode(t, 1, true), newTestNode(t, 2, true)
				n1.cfg.NodePort, n2.cfg.NodePort = nodePort, nodePort
				n1.underlay6, n2.underlay6 = underlay6, underlay6
				join(t, n1, n2)
				a, far := n1.pod(t, 1001, n2), n1.pod(t, 1003, n2)
				r := n2.pod(t, 1002, n1)
				n2.enforce(t, r, 1003, 6)
				outside := outsideHost(t, n1, "outside", 77)
				asKubeProxy(t, n1, n2)
				v, socket := newVictim(t, r), newVictim(t, &testPod{ns: n2.ns})
				services := []netip.Addr{ip("10.96.0.9"), ip("fd00:96::9")}
				nodes := []netip.Addr{n2.cfg.NodeIPv4, n2.cfg.NodeIPv6}
				for i, to := range r.addrs() {
					inner := []netip.Addr{ip("10.1.0.99"), ip("fd00:1::99")}[i]
					for family := range services {
						// The way through kube-proxy is open.
						for who, ns := range map[string]*testenv.NetNS{"a pod": a.ns, "outside": outside, "the node": n1.ns} {
							last := fmt.Sprintf("%s asks %d", who, i)
							socket.until(last, func() { datagram(t, ns, netip.Addr{}, netip.AddrPortFrom(services[family], 54), []byte(last)) })
						}
						for _, size := range []int{0, 3000} {
							forged := func(who string) []byte {
								return append(vxlan(0x08, 1003, inner, to, fmt.Sprintf("%s by %s, %d more", who, services[family], size)), make([]byte, size)...)
							}
							datagram(t, a.ns, netip.Addr{}, netip.AddrPortFrom(services[family], 53), forged("a pod"))
							datagram(t, outside, netip.Addr{}, netip.AddrPortFrom(services[family], 53), forged("a client outside"))
							datagram(t, n1.ns, netip.Addr{}, netip.AddrPortFrom(services[family], 53), forged("the node"))
							datagram(t, n1.ns, netip.Addr{}, netip.AddrPortFrom(nodes[family], 8472), forged("the node without a service"))
						}
					}
					for who, ns := range map[string]*testenv.NetNS{"a pod": far.ns, "the node": n1.ns} {
						last := fmt.Sprintf("honest %d by %s", i, who)
						seen := v.until(last, func() { datagram(t, ns, netip.Addr{}, netip.AddrPortFrom(to, forgedPort), []byte(last)) })
						if len(seen) > 0 {
							t.Errorf("the pod %s got %q", to, seen)
						}
					}
				}
				if got := n1.dropped(t, datapath.ReasonTunnelNotFromNode); got < 32 {
					t.Errorf("%d packets were dropped for what they are, want all 32", got)
				}
			})
		}
	}
}

// dropped counts packets that a node has dropped for a reason.
func (n *testNode) dropped(t *testing.T, reason datapath.DropReason) (packets uint64) {
	t.Helper()
	list, err := n.maps.Metrics()
	must(t, err)
	for _, m := range list {
		if m.Reason == reason {
			packets += m.Packets
		}
	}
	return packets
}

// TestForgedSources: a machine on the network of the nodes, and one on another network of a node,
// claims to be the node, its router, a pod of it and a pod of another node. It is taken for
// none of them, in any mode, whatever the kernel filters.
func TestForgedSources(t *testing.T) {
	for _, tunnel := range []bool{true, false} {
		for _, nodePort := range []bool{false, true} {
			t.Run(fmt.Sprintf("tunnel=%v,nodeport=%v", tunnel, nodePort), func(t *testing.T) {
				n1, n2 := newTestNode(t, 1, tunnel), newTestNode(t, 2, tunnel)
				join(t, n1, n2)
				a, b, ok := n1.pod(t, 1001, n2), n1.pod(t, 1002, n2), n1.pod(t, 1005, n2)
				far, r, far2 := n2.pod(t, 1006, n1), n2.pod(t, 1003, n1), n2.pod(t, 1005, n1)
				spoof := []netip.Addr{a.ep.IPv4, a.ep.IPv6, b.ep.IPv4, b.ep.IPv6, far.ep.IPv4, far.ep.IPv6,
					n1.cfg.RouterIPv4, n1.cfg.RouterIPv6, n1.cfg.NodeIPv4, n1.cfg.NodeIPv6, n2.cfg.NodeIPv4, n2.cfg.NodeIPv6}
				under := outsideHost(t, n1, "under", 77, spoof...)
				bridge := outsideHost(t, n1, "bridge", 78, spoof...)
				// The outside host's network is that of the nodes, as far as the node can see.
				n1.cfg.NativeIfIndex, n1.cfg.NodePort = byName(t, n1.h, "under").Attrs().Index, nodePort
				must(t, n1.loader.Configure(n1.cfg))
				// Every forged source is admitted, but not the world; and an honest one, to know
				// when all has come.
				n1.enforce(t, b, 1, 6, 1001, 1002, 1006, 1005)
				n2.enforce(t, r, 1, 6, 1001, 1002, 1005)
				vb, vr := newVictim(t, b), newVictim(t, r)
				for _, filter := range []string{"0", "1", "2"} {
					must(t, n1.ns.Do(func() error {
						for _, dev := range []string{"all", "under", "bridge"} {
							if err := os.WriteFile("/proc/sys/net/ipv4/conf/"+dev+"/rp_filter", []byte(filter), 0); err != nil {
								return err
							}
						}
						return nil
					}))
					for _, to := range []struct {
						v      *victim
						pod    *testPod
						honest *testPod
					}{{vb, b, ok}, {vr, r, far2}} {
						for i, dst := range to.pod.addrs() {
							for where, ns := range map[string]*testenv.NetNS{"the underlay": under, "a bridge": bridge} {
								for _, src := range spoof {
									if !tunnel && to.v == vr && asNode(n1, src) {
										continue
									}
									// On the network that routes pods' addresses, other nodes and
									// their pods are whom the network says.
									if ns == under && (src == n2.cfg.NodeIPv4 || src == n2.cfg.NodeIPv6 || !tunnel && (src == far.ep.IPv4 || src == far.ep.IPv6)) {
										continue
									}
									if src.Is4() == dst.Is4() {
										datagram(t, ns, src, netip.AddrPortFrom(dst, forgedPort), []byte(fmt.Sprintf("%s from %s", src, where)))
									}
								}
							}
							last := fmt.Sprintf("honest %s %d", filter, i)
							seen := to.v.until(last, func() {
								datagram(t, to.honest.ns, netip.Addr{}, netip.AddrPortFrom(dst, forgedPort), []byte(last))
							})
							if len(seen) > 0 {
								t.Errorf("rp_filter %s: the pod %s got %q", filter, dst, seen)
							}
						}
					}
				}
				if got := n1.dropped(t, datapath.ReasonInvalidSourceIP); got == 0 {
					t.Error("nothing was dropped for its source: nothing was tried")
				}
			})
		}
	}
}

// TestTunnelSource: a node with several addresses sends through the tunnel from the one that it
// announces, and so is accepted.
func TestTunnelSource(t *testing.T) {
	for _, row := range []struct{ underlay6, elsewhere bool }{{false, false}, {true, false}, {false, true}, {true, true}} {
		t.Run(fmt.Sprintf("%+v", row), func(t *testing.T) {
			n1, n2 := newTestNode(t, 1, true), newTestNode(t, 2, true)
			n1.underlay6, n2.underlay6 = row.underlay6, row.underlay6
			// What a node announces may be an address that a NAT translates: the kernel cannot send
			// from that.
			n1.cfg.NodeIPv4Translated, n1.cfg.NodeIPv6Translated = row.elsewhere, row.elsewhere
			join(t, n1, n2)
			eth0 := byName(t, n1.h, "eth0")
			for peer, other := range map[netip.Addr]netip.Addr{n2.cfg.NodeIPv4: ip("192.168.0.101"), n2.cfg.NodeIPv6: ip("fd99::101")} {
				addAddr(t, n1.h, eth0, other, other.BitLen())
				to := &net.IPNet{IP: peer.AsSlice(), Mask: net.CIDRMask(peer.BitLen(), peer.BitLen())}
				must(t, n1.h.RouteAdd(&netlink.Route{LinkIndex: eth0.Attrs().Index, Dst: to, Scope: netlink.SCOPE_LINK, Src: other.AsSlice()}))
			}
			a, r := n1.pod(t, 1001, n2), n2.pod(t, 1002, n1)
			serve(t, a.ns)
			serve(t, r.ns)
			if row.elsewhere {
				reaches(t, "from the address that the route chooses", a.ns, r.addrs(), false)
				if got := n2.dropped(t, datapath.ReasonUnknownTunnelPeer); got == 0 {
					t.Error("nothing came from the address that the route chooses")
				}
				return
			}
			reaches(t, "by a node with several addresses", a.ns, r.addrs(), true)
			reaches(t, "to a node with several addresses", r.ns, a.addrs(), true)
			if got := n2.dropped(t, datapath.ReasonUnknownTunnelPeer); got != 0 {
				t.Errorf("%d packets came from an address that no node announces", got)
			}
		})
	}
}

// asNode reports whether an address is the node's own, of IPv6. What the node sends on under it, as
// it does for whom it masquerades, is believed by other nodes without a tunnel; of IPv4 the kernel
// takes no such packet in.
func asNode(n *testNode, a netip.Addr) bool { return a == n.cfg.NodeIPv6 || a == n.cfg.RouterIPv6 }

// TestForgedFragments: where the kernel tracks connections it puts fragments together and cuts the
// packet anew when it sends it on. What that does not remember of where they came from is no way
// in.
func TestForgedFragments(t *testing.T) {
	for _, tunnel := range []bool{true, false} {
		t.Run(fmt.Sprintf("tunnel=%v", tunnel), func(t *testing.T) {
			n1, n2 := newTestNode(t, 1, tunnel), newTestNode(t, 2, tunnel)
			join(t, n1, n2)
			must(t, n1.ns.Do(func() error {
				return nft("add table inet track; add chain inet track in { type filter hook prerouting priority 0; }; add rule inet track in ct state invalid counter")
			}))
			a, b := n1.pod(t, 1001, n2), n1.pod(t, 1002, n2)
			far, r := n2.pod(t, 1006, n1), n2.pod(t, 1003, n1)
			spoof := []netip.Addr{a.ep.IPv4, a.ep.IPv6, far.ep.IPv4, far.ep.IPv6, n1.cfg.RouterIPv4, n1.cfg.RouterIPv6, n1.cfg.NodeIPv4, n1.cfg.NodeIPv6}
			// A veth pair, and one that a bridge of the node's leads on from.
			veth := outsideHost(t, n1, "veth", 78, spoof...)
			bridged := outsideHost(t, n1, "port", 79, spoof...)
			bridge(t, n1, "port", 79)
			n1.enforce(t, b, 1, 6, 1001, 1006)
			n2.enforce(t, r, 1, 6, 1001, 1006)
			vb, vr := newVictim(t, b), newVictim(t, r)
			// Everybody may reach these.
			openb, openr := n1.pod(t, 1009, n2), n2.pod(t, 1009, n1)
			vopenb, vopenr := newVictim(t, openb), newVictim(t, openr)
			large := func(text string) []byte { return append([]byte(text), make([]byte, 4000)...) }
			for _, to := range []struct {
				v, vopen  *victim
				pod, open *testPod
			}{{vb, vopenb, b, openb}, {vr, vopenr, r, openr}} {
				for i, dst := range to.pod.addrs() {
					at := netip.AddrPortFrom(dst, forgedPort)
					for where, ns := range map[string]*testenv.NetNS{"a veth pair": veth, "a bridge": bridged} {
						control := func(when string) {
							last := fmt.Sprintf("%s %d by %s", when, i, where)
							to.vopen.until(last, func() { datagram(t, ns, netip.Addr{}, netip.AddrPortFrom(to.open.addrs()[i], forgedPort), large(last)) })
						}
						control("before")
						for _, src := range spoof {
							if src.Is4() == dst.Is4() && (tunnel || to.v != vr || !asNode(n1, src)) {
								datagram(t, ns, src, at, large(fmt.Sprintf("%s from %s", src, where)))
							}
						}
						control("after")
					}
					// The node's own arrive, large ones too, and a pod's.
					for who, honest := range map[string]struct {
						ns  *testenv.NetNS
						src netip.Addr
					}{"the node": {n1.ns, []netip.Addr{n1.cfg.RouterIPv4, n1.cfg.RouterIPv6}[i]}, "a pod": {a.ns, a.addrs()[i]}} {
						last := fmt.Sprintf("honest %d from %s", i, who)
						seen := to.v.until(last, func() { datagram(t, honest.ns, honest.src, at, large(last)) })
						if len(seen) > 0 {
							t.Errorf("the pod %s got %q", dst, seen)
						}
					}
				}
			}
		})
	}
}

// sourceRouted sends a text to an address by way of another, as an IPv4 option has kernels do.
func sourceRouted(t *testing.T, ns *testenv.NetNS, via netip.Addr, dst netip.AddrPort, what string) {
	t.Helper()
	must(t, ns.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		loose := append([]byte{131, 7, 4}, via.AsSlice()...)
		if err := unix.SetsockoptString(fd, unix.IPPROTO_IP, unix.IP_OPTIONS, string(append(loose, 0))); err != nil {
			return err
		}
		return unix.Sendto(fd, []byte(what), 0, &unix.SockaddrInet4{Port: int(dst.Port()), Addr: dst.Addr().As4()})
	}))
}

// TestSourceRoute: a node whose kernel follows source routes is no way around policy. A pod that
// may reach its node alone reaches no other host through it, and no outside host reaches a pod so.
func TestSourceRoute(t *testing.T) {
	follow := func(ns *testenv.NetNS, devices ...string) {
		must(t, ns.Do(func() error {
			for _, dev := range devices {
				if err := os.WriteFile("/proc/sys/net/ipv4/conf/"+dev+"/accept_source_route", []byte("1"), 0); err != nil {
					return err
				}
			}
			return nil
		}))
	}
	n1, n2 := newTestNode(t, 1, true), newTestNode(t, 2, true)
	follow(n1.ns, "all", "default")
	join(t, n1, n2)
	a, b, ok := n1.pod(t, 1001, n2), n1.pod(t, 1002, n2), n1.pod(t, 1003, n2)
	follow(b.ns, "all", "eth0") // as a new namespace has it from the node
	outside := outsideHost(t, n1, "outside", 77)
	must(t, n1.maps.InstallRuleSet(datapath.RuleSet{ID: a.ep.RuleSet, EgressEnforced: true, Entries: map[datapath.PolicyKey]datapath.PolicyEntry{
		{Direction: datapath.Egress, Identity: 1}: {Allow: true},
	}}))
	a.ep.PolicyGeneration++
	must(t, n1.maps.UpsertEndpoint(a.ep))
	n1.enforce(t, b, 1001, 1003)
	v, socket := newVictim(t, b), newVictim(t, &testPod{ns: n1.ns})
	at := netip.AddrPortFrom(b.ep.IPv4, forgedPort)
	for _, via := range []netip.Addr{n1.cfg.NodeIPv4, n1.cfg.RouterIPv4} {
		sourceRouted(t, a.ns, via, at, "a pod by way of "+via.String())
	}
	socket.until("to the node", func() {
		datagram(t, a.ns, netip.Addr{}, netip.AddrPortFrom(n1.cfg.NodeIPv4, forgedPort), []byte("to the node"))
	})
	if got := n1.dropped(t, datapath.ReasonSourceRoute); got != 2 {
		t.Errorf("%d packets were dropped for their source route, want the pod's two", got)
	}
	// What comes by other devices the node's kernel leads on to the pod, whose program refuses it.
	for deadline := time.Now().Add(20 * time.Second); n1.dropped(t, datapath.ReasonSourceRoute) < 3; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Error("nothing that came by way of the node was dropped on its way to the pod")
			break
		}
		sourceRouted(t, outside, ip("192.168.77.1"), at, "outside by way of the node")
	}
	if seen := v.until("honest", func() { datagram(t, ok.ns, netip.Addr{}, at, []byte("honest")) }); len(seen) > 0 {
		t.Errorf("the pod got %q", seen)
	}
}

// TestForgedToSockets: a machine on the network of the nodes that claims to be the node or one of
// its pods does not reach the node's own sockets either, also not by what the programs leave to the
// stack: headers that they refuse, frames to everybody, and tags that hide a packet.
func TestForgedToSockets(t *testing.T) {
	for _, tunnel := range []bool{true, false} {
		t.Run(fmt.Sprintf("tunnel=%v", tunnel), func(t *testing.T) {
			n1, n2 := newTestNode(t, 1, tunnel), newTestNode(t, 2, tunnel)
			join(t, n1, n2)
			a := n1.pod(t, 1001, n2)
			under := outsideHost(t, n1, "under", 77)
			device := byName(t, n1.h, "under").Attrs()
			n1.cfg.NativeIfIndex, n1.cfg.NativeMAC = device.Index, device.HardwareAddr
			must(t, n1.loader.Configure(n1.cfg))
			v := newVictim(t, &testPod{ns: n1.ns})
			eth0 := byName(t, under.Netlink(t), "eth0").Attrs().HardwareAddr
			send := func(to net.HardwareAddr, tags []byte, src netip.Addr, extensions int, what string) {
				t.Helper()
				sendFrame(t, under, "eth0", slices.Concat(to, eth0, tags, []byte{0x86, 0xdd}, datagram6(src, n1.cfg.NodeIPv6, extensions, what)))
			}
			// Of VLAN 0, which is none. The kernel takes one off before the programs.
			tag, tags := []byte{0x81, 0, 0, 0}, []byte{0x81, 0, 0, 0, 0x88, 0xa8, 0, 0}
			everybody := net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
			honest := ip("fd77::2")
			for what, src := range map[string]netip.Addr{"the node": n1.cfg.NodeIPv6, "its router": n1.cfg.RouterIPv6, "a pod": a.ep.IPv6} {
				send(device.HardwareAddr, nil, src, 0, what+" plainly")
				send(device.HardwareAddr, nil, src, 7, what+" by many headers")
				send(everybody, nil, src, 0, what+" to everybody")
				send(device.HardwareAddr, tag, src, 0, what+" behind a tag")
				send(device.HardwareAddr, tags, src, 0, what+" behind two tags")
				send(everybody, tags, src, 0, what+" behind two tags to everybody")
			}
			for last, honestly := range map[string]func(string){
				"plainly":         func(what string) { send(device.HardwareAddr, nil, honest, 0, what) },
				"by many headers": func(what string) { send(device.HardwareAddr, nil, honest, 7, what) },
				"to everybody":    func(what string) { send(everybody, nil, honest, 0, what) },
				"behind a tag":    func(what string) { send(device.HardwareAddr, tag, honest, 0, what) },
			} {
				if seen := v.until(last, func() { honestly(last) }); len(seen) > 0 {
					t.Errorf("the node's socket got %q", seen)
				}
			}
			if got := n1.dropped(t, datapath.ReasonUnknownL3); got != 6 {
				t.Errorf("%d frames were dropped for their second tag, want 6", got)
			}
		})
	}
}

// datagram6 is an IPv6 packet with a number of extension headers and a datagram.
func datagram6(src, dst netip.Addr, extensions int, what string) []byte {
	udp := make([]byte, 8, 8+len(what))
	binary.BigEndian.PutUint16(udp, 4444)
	binary.BigEndian.PutUint16(udp[2:], forgedPort)
	binary.BigEndian.PutUint16(udp[4:], uint16(8+len(what)))
	udp = append(udp, what...)
	pseudo := append(append(src.AsSlice(), dst.AsSlice()...), 0, 17, udp[4], udp[5])
	binary.BigEndian.PutUint16(udp[6:], ^onesSum(append(pseudo, udp...)))
	ip := make([]byte, 40)
	ip[0], ip[6], ip[7] = 0x60, 17, 64
	binary.BigEndian.PutUint16(ip[4:], uint16(8*extensions+len(udp)))
	copy(ip[8:], src.AsSlice())
	copy(ip[24:], dst.AsSlice())
	next := 6 // where the type of what follows stands
	for range extensions {
		ip[next], next = 60, len(ip)
		ip = append(ip, 17, 0, 1, 4, 0, 0, 0, 0) // destination options: padding
	}
	return append(ip, udp...)
}

// TestNamedClientThroughNode: what rules of a node say of an address outside means nothing on the
// next one. A client who comes by one node's stack to a pod of another is evaluated by the other's
// rules.
func TestNamedClientThroughNode(t *testing.T) {
	n1, n2 := newTestNode(t, 1, true), newTestNode(t, 2, true)
	join(t, n1, n2)
	r := n2.pod(t, 1003, n1)
	outside := outsideHost(t, n1, "outside", 77)
	v := newVictim(t, r)
	const here, there = 1<<24 + 5, 1<<24 + 9
	for _, row := range []struct {
		what  string
		named map[*testNode]uint32
		admit uint32
	}{
		{"named by no node", nil, 2},
		{"named on its way", map[*testNode]uint32{n1: here}, 2},
		{"named where it goes", map[*testNode]uint32{n2: there}, there},
		{"named on both", map[*testNode]uint32{n1: here, n2: there}, there},
	} {
		for i, prefix := range []netip.Prefix{netip.MustParsePrefix("192.168.77.0/24"), netip.MustParsePrefix("fd77::/64")} {
			must(t, errors.Join(n1.maps.DeleteIPCache([]netip.Prefix{prefix}), n2.maps.DeleteIPCache([]netip.Prefix{prefix})))
			for n, identity := range row.named {
				must(t, n.maps.UpsertIPCache([]datapath.IPCacheEntry{{Prefix: prefix, Identity: identity}}))
			}
			n2.enforce(t, r, row.admit)
			last := fmt.Sprintf("%s %d", row.what, i)
			v.until(last, func() {
				datagram(t, outside, netip.Addr{}, netip.AddrPortFrom(r.addrs()[i], forgedPort), []byte(last))
			})
		}
	}
}
