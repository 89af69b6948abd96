package loader_test

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/testenv"
)

// vlan is a VLAN of the device eth0 of a namespace: its device is in another, or in the same, and
// has addresses as setUp gives them. Kernels need not have such devices, so programs in front of
// all others put the tags on and take them off.
func vlan(t *testing.T, parent, in *testenv.NetNS, subnet, n int) {
	t.Helper()
	h := parent.Netlink(t)
	must(t, h.LinkAdd(&netlink.Veth{LinkAttrs: named("trunk"), PeerName: "vlan", PeerNamespace: netlink.NsFd(in.Fd())}))
	eth0, trunk := byName(t, h, "eth0"), byName(t, h, "trunk")
	must(t, h.LinkSetUp(trunk))
	setUp(t, in.Netlink(t), "vlan", subnet, n)
	const vlanPresent, tagged, id = 20, 0x0081, 100 // struct __sk_buff, ETH_P_8021Q in network byte order
	redirect := func(to netlink.Link) asm.Instructions {
		return asm.Instructions{asm.Mov.Imm(asm.R1, int32(to.Attrs().Index)), asm.Mov.Imm(asm.R2, 0), asm.FnRedirect.Call(), asm.Return()}
	}
	out := append(asm.Instructions{asm.Mov.Imm(asm.R2, tagged), asm.Mov.Imm(asm.R3, id), asm.FnSkbVlanPush.Call()}, redirect(eth0)...)
	back := append(asm.Instructions{
		asm.LoadMem(asm.R2, asm.R1, vlanPresent, asm.Word), asm.Mov.Imm(asm.R0, -1), asm.JNE.Imm(asm.R2, 0, "tagged"), asm.Return(), // TCX_NEXT
		asm.FnSkbVlanPop.Call().WithSymbol("tagged"),
	}, redirect(trunk)...)
	for at, instructions := range map[netlink.Link]asm.Instructions{trunk: out, eth0: back} {
		program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "GPL", Instructions: instructions})
		must(t, err)
		t.Cleanup(func() { program.Close() })
		must(t, parent.Do(func() error {
			l, err := link.AttachTCX(link.TCXOptions{Interface: at.Attrs().Index, Program: program, Attach: ebpf.AttachTCXIngress, Anchor: link.Head()})
			if err == nil {
				t.Cleanup(func() { l.Close() })
			}
			return err
		}))
	}
}

// setUp brings a device up with the addresses 192.168.s.n/24 and fds::n/64 of a subnet.
func setUp(t *testing.T, h *netlink.Handle, name string, subnet, n int) {
	t.Helper()
	link := byName(t, h, name)
	must(t, h.LinkSetUp(link))
	must(t, h.LinkSetUp(byName(t, h, "lo")))
	addAddr(t, h, link, ip("192.168.%d.%d", subnet, n), 24)
	addAddr(t, h, link, ip("fd%d::%d", subnet, n), 64)
}

// macvlan makes an interface of its own hardware address, in a namespace, that sends by the device
// eth0 of another.
func macvlan(t *testing.T, parent *netlink.Handle, in *testenv.NetNS, subnet, n int, spoof ...netip.Addr) {
	t.Helper()
	attrs := named("macvlan")
	attrs.ParentIndex, attrs.Namespace = byName(t, parent, "eth0").Attrs().Index, netlink.NsFd(in.Fd())
	must(t, parent.LinkAdd(&netlink.Macvlan{LinkAttrs: attrs, Mode: netlink.MACVLAN_MODE_BRIDGE}))
	h := in.Netlink(t)
	setUp(t, h, "macvlan", subnet, n)
	for _, s := range spoof {
		addAddr(t, h, byName(t, h, "lo"), s, s.BitLen())
	}
}

// TestChildrenOfNativeDevice: what others send by the nodes' device, in a VLAN or under a hardware
// address of their own, is theirs: a machine that is no node gets what is for its port 8472. But
// none of them can send as a node to another's tunnel, or as a pod without one; nor can a pod in a
// VLAN.
func TestChildrenOfNativeDevice(t *testing.T) {
	for _, tunnel := range []bool{true, false} {
		t.Run(fmt.Sprintf("tunnel=%v", tunnel), func(t *testing.T) {
			n1, n2 := newTestNode(t, 1, tunnel), newTestNode(t, 2, tunnel)
			join(t, n1, n2)
			a, far, r := n1.pod(t, 1001, n2), n1.pod(t, 1003, n2), n2.pod(t, 1002, n1)
			open := n2.pod(t, 1009, n1)
			n2.enforce(t, r, 1, 6, 1001, 1003)
			defer func() {
				if t.Failed() {
					metrics(t, n1, n2)
				}
			}()
			spoof := []netip.Addr{a.ep.IPv4, a.ep.IPv6}
			if tunnel {
				spoof = []netip.Addr{n1.cfg.NodeIPv4, n1.cfg.NodeIPv6}
			}
			// A VLAN of the node itself, and a container with an interface on the nodes' wire; each
			// with a machine at the other end.
			container, tagged, wired := testenv.NewNetNS(t), testenv.NewNetNS(t), testenv.NewNetNS(t)
			vlan(t, n1.ns, n1.ns, 50, 1)
			vlan(t, n2.ns, tagged, 50, 2)
			macvlan(t, n1.h, container, 51, 1, spoof...)
			macvlan(t, n2.h, wired, 51, 2)
			vlan(t, a.ns, a.ns, 52, 1)
			for i, dst := range []string{"0.0.0.0/0", "::/0"} {
				_, to, err := net.ParseCIDR(dst)
				must(t, err)
				h := container.Netlink(t)
				via := []netip.Addr{ip("192.168.51.3"), ip("fd51::3")}[i]
				must(t, h.RouteAdd(&netlink.Route{LinkIndex: byName(t, h, "macvlan").Attrs().Index, Dst: to, Gw: via.AsSlice()}))
				// Its router is the other node.
				addAddr(t, n2.h, byName(t, n2.h, "eth0"), via, via.BitLen())
			}

			// There is a host in the pod's VLAN.
			pod := a.ns.Netlink(t)
			for _, dst := range []string{"192.168.52.2", "fd52::2"} {
				must(t, pod.NeighAdd(&netlink.Neigh{
					LinkIndex: byName(t, pod, "vlan").Attrs().Index, IP: net.ParseIP(dst), State: netlink.NUD_PERMANENT,
					HardwareAddr: byName(t, n2.h, "eth0").Attrs().HardwareAddr,
				}))
			}

			for i := range 2 {
				for what, way := range map[string]struct {
					from, to *testenv.NetNS
					at       netip.Addr
				}{
					"a VLAN":    {n1.ns, tagged, []netip.Addr{ip("192.168.50.2"), ip("fd50::2")}[i]},
					"a macvlan": {container, wired, []netip.Addr{ip("192.168.51.2"), ip("fd51::2")}[i]},
				} {
					other := &victim{t: t}
					must(t, way.to.Do(func() (err error) {
						other.c, err = net.ListenPacket("udp", netip.AddrPortFrom(way.at, 8472).String())
						return err
					}))
					defer other.c.Close()
					for _, size := range []int{0, 4000} {
						last := fmt.Sprintf("%d more by %s", size, what)
						other.until(last, func() {
							datagram(t, way.from, netip.Addr{}, netip.AddrPortFrom(way.at, 8472), append([]byte(last), make([]byte, size)...))
						})
					}
				}
			}

			v, vopen, before := newVictim(t, r), newVictim(t, open), uint64(0)
			for i, to := range r.addrs() {
				inner := []netip.Addr{ip("10.1.0.99"), ip("fd00:1::99")}[i]
				node := []netip.Addr{n2.cfg.NodeIPv4, n2.cfg.NodeIPv6}[i]
				forged := func(ns *testenv.NetNS, src netip.Addr) {
					if tunnel {
						datagram(t, ns, src, netip.AddrPortFrom(node, 8472), vxlan(0x08, 1003, inner, to, fmt.Sprintf("forged as %s", src)))
					} else {
						datagram(t, ns, src, netip.AddrPortFrom(to, forgedPort), []byte(fmt.Sprintf("forged as %s", src)))
					}
				}
				control := func(when string) {
					vopen.until(when, func() {
						datagram(t, container, netip.Addr{}, netip.AddrPortFrom(open.addrs()[i], forgedPort), []byte(when))
					})
				}
				control(fmt.Sprintf("before %d", i))
				forged(container, spoof[i])
				control(fmt.Sprintf("after %d", i))
				unknown := n1.dropped(t, datapath.ReasonUnknownL3)
				datagram(t, a.ns, netip.Addr{}, netip.AddrPortFrom([]netip.Addr{ip("192.168.52.2"), ip("fd52::2")}[i], 8472),
					vxlan(0x08, 1003, inner, to, "forged in a pod's VLAN"))
				if got := n1.dropped(t, datapath.ReasonUnknownL3); got == unknown {
					t.Error("what a pod sends in a VLAN was not dropped")
				}
				last := fmt.Sprintf("honest %d", i)
				seen := v.until(last, func() { datagram(t, far.ns, netip.Addr{}, netip.AddrPortFrom(to, forgedPort), []byte(last)) })
				if len(seen) > 0 {
					t.Errorf("the pod %s got %q", to, seen)
				}
				reason := datapath.ReasonInvalidSourceIP
				if tunnel {
					reason = datapath.ReasonTunnelNotFromNode
				}
				if got := n1.dropped(t, reason); got <= before {
					t.Errorf("what the container has sent as %s was not dropped", spoof[i])
				} else {
					before = got
				}
			}
		})
	}
}

// TestHiddenFromNode: a tag of VLAN 0 on a frame that is for the nodes' own network, where the
// kernel takes it off, hides no packet from the program. Whoever shares the nodes' wire sends by it
// neither as the node to another's tunnel, nor without one as a pod. Nor does it by a checksum that
// is left to the device to write over the source.
func TestHiddenFromNode(t *testing.T) {
	for _, tunnel := range []bool{true, false} {
		t.Run(fmt.Sprintf("tunnel=%v", tunnel), func(t *testing.T) {
			t.Parallel()
			n1, n2 := newTestNode(t, 1, tunnel), newTestNode(t, 2, tunnel)
			join(t, n1, n2)
			far, r := n1.pod(t, 1003, n2), n2.pod(t, 1002, n1)
			n2.enforce(t, r, 1003)
			container := testenv.NewNetNS(t)
			macvlan(t, n1.h, container, 51, 1)
			to, own := byName(t, n2.h, "eth0").Attrs().HardwareAddr, byName(t, container.Netlink(t), "macvlan").Attrs().HardwareAddr
			forged := udpFrame(to, own, netip.AddrPortFrom(far.ep.IPv4, 4444), netip.AddrPortFrom(r.ep.IPv4, forgedPort), []byte("forged"))
			if tunnel {
				data := vxlan(0x08, 1003, ip("10.1.0.99"), r.ep.IPv4, "forged")
				forged = udpFrame(to, own, netip.AddrPortFrom(n1.cfg.NodeIPv4, 4444), netip.AddrPortFrom(n2.cfg.NodeIPv4, 8472), data)
			}
			behind := func(tag ...byte) []byte { return slices.Concat(forged[:12], tag, forged[12:]) }
			v := newVictim(t, r)
			sendFrame(t, container, "macvlan", behind(0x81, 0, 0, 0))
			sendFrame(t, container, "macvlan", behind(0x88, 0xa8, 0xe0, 0)) // with a priority
			sendFrame(t, container, "macvlan", behind(0x81, 0, 0, 0, 0x81, 0, 0, 5))
			sendFrame(t, container, "macvlan", behind(0x81, 0, 0, 5)) // another network's
			const source = ethLen + 12
			copy(forged[source:], []byte{192, 168, 51, 1})
			sendPartial(t, container, "macvlan", forged, source, 2)
			seen := v.until("honest", func() { datagram(t, far.ns, netip.Addr{}, netip.AddrPortFrom(r.ep.IPv4, forgedPort), []byte("honest")) })
			if len(seen) > 0 {
				t.Errorf("the pod got %q", seen)
			}
			if got := n1.dropped(t, datapath.ReasonUnknownL3); got != 3 {
				t.Errorf("%d frames were dropped for their tags, want 3", got)
			}
			if got := n1.dropped(t, datapath.ReasonMalformed); got != 1 {
				t.Errorf("%d frames were dropped for their checksum, want one", got)
			}
		})
	}
}
