package loader_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/testenv"
)

// The marks of bpf/lib/forward.h.
const (
	encapsulated = 0x4857
	sentByPod    = 0x4858
)

// passAll puts a foreign filter on the way out of a device, which lets everything pass and
// makes tc_index what the mark says.
func passAll(t *testing.T, h *netlink.Handle, device string, priority, mark uint16) {
	t.Helper()
	passAs(t, h, device, priority, mark, nil)
}

// passAs is passAll, and makes the frames' source a hardware address.
func passAs(t *testing.T, h *netlink.Handle, device string, priority, mark uint16, source net.HardwareAddr) {
	t.Helper()
	const tcClassID = 72 // struct __sk_buff
	instructions := asm.Instructions{
		asm.Mov.Imm(asm.R2, int32(mark)),
		asm.StoreMem(asm.R1, tcClassID, asm.R2, asm.Word),
	}
	if source != nil {
		instructions = append(instructions,
			asm.LoadImm(asm.R2, int64(binary.LittleEndian.Uint64(append(bytes.Clone(source), 0, 0))), asm.DWord),
			asm.StoreMem(asm.RFP, -8, asm.R2, asm.DWord),
			asm.Mov.Imm(asm.R2, 6), // where the source is, behind the destination
			asm.Mov.Reg(asm.R3, asm.RFP), asm.Add.Imm(asm.R3, -8),
			asm.Mov.Imm(asm.R4, 6), asm.Mov.Imm(asm.R5, 0),
			asm.FnSkbStoreBytes.Call(),
		)
	}
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.SchedCLS, License: "GPL",
		Instructions: append(instructions, asm.Mov.Imm(asm.R0, 0), asm.Return()), // TC_ACT_OK
	})
	must(t, err)
	defer program.Close()
	f := &tcFilters{h: h}
	index := byName(t, h, device).Attrs().Index
	must(t, f.clsact(index))
	must(t, h.FilterReplace(&netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{LinkIndex: index, Parent: side(false), Handle: 7, Priority: priority, Protocol: unix.ETH_P_ALL},
		Fd:          program.FD(), Name: "pass_all", DirectAction: true,
	}))
}

// TestForeignMarks: tc_index goes with a packet from one network namespace to another, and to the
// fragments that it is cut into. Who may write it in a container that is no pod is no more believed
// for it: neither in the node's name to another's tunnel, nor in a pod's without one.
func TestForeignMarks(t *testing.T) {
	for _, way := range []struct {
		tunnel, underlay6 bool
		mark              uint16
	}{{true, false, encapsulated}, {true, true, encapsulated}, {false, false, encapsulated}, {false, false, sentByPod}} {
		t.Run(fmt.Sprintf("%+v", way), func(t *testing.T) {
			tunnel, mark := way.tunnel, way.mark
			n1, n2 := newTestNode(t, 1, tunnel), newTestNode(t, 2, tunnel)
			n1.underlay6, n2.underlay6 = way.underlay6, way.underlay6
			join(t, n1, n2)
			if !way.underlay6 {
				// The kernel cuts what comes through the bridge in other pieces, which do not
				// remember by which interface they came.
				must(t, n1.h.LinkSetMTU(byName(t, n1.h, "eth0"), 1400))
				must(t, n2.h.LinkSetMTU(byName(t, n2.h, "eth0"), 1400))
			}
			a, far := n1.pod(t, 1001, n2), n1.pod(t, 1003, n2)
			r, open := n2.pod(t, 1002, n1), n2.pod(t, 1009, n1)
			n2.enforce(t, r, 1001, 1003, 6)
			spoof := []netip.Addr{a.ep.IPv4, a.ep.IPv6}
			veth := outsideHost(t, n1, "veth", 78, spoof...)
			bridged := outsideHost(t, n1, "port", 79, spoof...)
			bridge(t, n1, "port", 79)
			// The network of the containers is translated, as others do it for theirs; and
			// connections are tracked.
			must(t, n1.ns.Do(func() error {
				return nft("table inet others {\nchain post { type nat hook postrouting priority srcnat\n" +
					"ip saddr { 192.168.78.0/24, 192.168.79.0/24 } masquerade\nip6 saddr { fd78::/64, fd79::/64 } masquerade\n}\n}\n")
			}))
			containers := map[string]*testenv.NetNS{"a veth pair": veth, "a bridge": bridged}
			for _, ns := range containers {
				passAll(t, ns.Netlink(t), "eth0", 1, mark)
			}
			v, socket, vopen := newVictim(t, r), newVictim(t, &testPod{ns: n2.ns}), newVictim(t, open)
			nodes := []netip.Addr{n2.cfg.NodeIPv4, n2.cfg.NodeIPv6}
			for i, to := range r.addrs() {
				for where, ns := range containers {
					for _, size := range []int{0, 4000} {
						more := make([]byte, size)
						text := func(what string) []byte {
							return append([]byte(fmt.Sprintf("%s by %s, %d more", what, where, size)), more...)
						}
						control := func(when string) {
							last := string(text(when)[:len(text(when))-size])
							socket.until(last, func() { datagram(t, ns, netip.Addr{}, netip.AddrPortFrom(nodes[i], forgedPort), text(when)) })
							vopen.until(last, func() { datagram(t, ns, netip.Addr{}, netip.AddrPortFrom(open.addrs()[i], forgedPort), text(when)) })
						}
						control("before")
						if tunnel {
							inner := []netip.Addr{ip("10.1.0.99"), ip("fd00:1::99")}[i]
							datagram(t, ns, netip.Addr{}, netip.AddrPortFrom(nodes[i], 8472),
								append(vxlan(0x08, 1003, inner, to, string(text("forged")[:len(text("forged"))-size])), more...))
						} else {
							datagram(t, ns, spoof[i], netip.AddrPortFrom(to, forgedPort), text("forged"))
						}
						control("after")
					}
				}
				for _, size := range []int{0, 4000} {
					for who, ns := range map[string]*testenv.NetNS{"a pod": far.ns, "the node": n1.ns} {
						last := fmt.Sprintf("honest %d from %s, %d more", i, who, size)
						seen := v.until(last, func() {
							datagram(t, ns, netip.Addr{}, netip.AddrPortFrom(to, forgedPort), append([]byte(last), make([]byte, size)...))
						})
						if len(seen) > 0 {
							t.Errorf("the pod %s got %q", to, seen)
						}
					}
				}
			}
			reason := datapath.ReasonInvalidSourceIP
			if tunnel {
				reason = datapath.ReasonTunnelNotFromNode
			}
			// Without a tunnel the kernel finds one too large.
			if got := n1.dropped(t, reason); got < 7 {
				t.Errorf("%d packets were dropped for what they are, want all", got)
			}
		})
	}
}

// ip2 is an address of the family, 0 for IPv4.
func ip2(family int, v4, v6 string) netip.Addr {
	return netip.MustParseAddr([]string{v4, v6}[family])
}

// behindOptions sends a datagram with so many bytes of destination options before it, of a kind to
// be ignored; 0 or a multiple of 8 from 16.
func behindOptions(t *testing.T, ns *testenv.NetNS, src netip.Addr, dst netip.AddrPort, size int, data []byte) {
	t.Helper()
	must(t, ns.Do(func() error {
		d := net.Dialer{LocalAddr: net.UDPAddrFromAddrPort(netip.AddrPortFrom(src, 0)), Control: func(_, _ string, c syscall.RawConn) (err error) {
			if size == 0 {
				return nil
			}
			options := []byte{0, byte(size/8 - 1)}
			for left := size - 2; left > 0; left = size - len(options) {
				const ignored = 0x1e // RFC 4727
				options = append(append(options, ignored, byte(min(left, 255)-2)), make([]byte, min(left, 255)-2)...)
			}
			return errors.Join(c.Control(func(fd uintptr) {
				err = unix.SetsockoptString(int(fd), unix.SOL_IPV6, unix.IPV6_DSTOPTS, string(options))
			}), err)
		}}
		c, err := d.Dial("udp", dst.String())
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = c.Write(data)
		return err
	}))
}

// TestMarksOfMacvlan: who has rights in a network namespace with an interface on the nodes' wire
// chooses all that a frame shows of itself: its mark, its source's hardware address, and the number
// of the interface by which it came into that namespace, which may be a pod's here. None of it lets
// that sender pass for the node in another's tunnel, or without one for a pod; nor do headers that
// are not understood. Packets from its own addresses pass.
func TestMarksOfMacvlan(t *testing.T) {
	for _, tunnel := range []bool{true, false} {
		t.Run(fmt.Sprintf("tunnel=%v", tunnel), func(t *testing.T) {
			n1, n2 := newTestNode(t, 1, tunnel), newTestNode(t, 2, tunnel)
			join(t, n1, n2)
			a, far, r := n1.pod(t, 1001, n2), n1.pod(t, 1003, n2), n2.pod(t, 1002, n1)
			open := n2.pod(t, 1009, n1)
			n2.enforce(t, r, 1001, 1003, 6)
			defer func() {
				if t.Failed() {
					metrics(t, n1, n2)
				}
			}()
			mark, reason := uint16(sentByPod), datapath.ReasonInvalidSourceIP
			spoof := []netip.Addr{a.ep.IPv4, a.ep.IPv6}
			if tunnel {
				mark, reason = encapsulated, datapath.ReasonTunnelNotFromNode
				spoof = []netip.Addr{n1.cfg.NodeIPv4, n1.cfg.NodeIPv6}
			}
			container, behind := testenv.NewNetNS(t), testenv.NewNetNS(t)
			macvlan(t, n1.h, container, 51, 1, spoof...)
			inside, further := container.Netlink(t), behind.Netlink(t)
			passAs(t, inside, "macvlan", 1, mark, n1.cfg.NativeMAC)
			// What the container forwards came in by an interface with the number of the pod's.
			port := named("port")
			port.Index = a.ep.IfIndex
			must(t, inside.LinkAdd(&netlink.Veth{LinkAttrs: port, PeerName: "eth0", PeerNamespace: netlink.NsFd(behind.Fd())}))
			setUp(t, inside, "port", 53, 1)
			setUp(t, further, "eth0", 53, 2)
			must(t, container.Do(func() error {
				return errors.Join(
					os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0),
					os.WriteFile("/proc/sys/net/ipv6/conf/all/forwarding", []byte("1"), 0),
					os.WriteFile("/proc/sys/net/ipv4/conf/all/rp_filter", []byte("0"), 0),
					os.WriteFile("/proc/sys/net/ipv4/conf/port/rp_filter", []byte("0"), 0),
				)
			}))
			for i, dst := range []string{"0.0.0.0/0", "::/0"} {
				_, to, err := net.ParseCIDR(dst)
				must(t, err)
				via := ip2(i, "192.168.51.3", "fd51::3")
				must(t, inside.RouteAdd(&netlink.Route{LinkIndex: byName(t, inside, "macvlan").Attrs().Index, Dst: to, Gw: via.AsSlice()}))
				// Its router is the other node, and answers who uses the node's hardware address.
				addAddr(t, n2.h, byName(t, n2.h, "eth0"), via, via.BitLen())
				must(t, inside.NeighAdd(&netlink.Neigh{
					LinkIndex: byName(t, inside, "macvlan").Attrs().Index, IP: via.AsSlice(), State: netlink.NUD_PERMANENT,
					HardwareAddr: byName(t, n2.h, "eth0").Attrs().HardwareAddr,
				}))
				gateway := ip2(i, "192.168.53.1", "fd53::1")
				must(t, further.RouteAdd(&netlink.Route{LinkIndex: byName(t, further, "eth0").Attrs().Index, Dst: to, Gw: gateway.AsSlice()}))
				addAddr(t, further, byName(t, further, "lo"), ip2(i, "192.168.53.9", "fd53::9"), spoof[i].BitLen())
			}
			v, vopen, before := newVictim(t, r), newVictim(t, open), uint64(0)
			for i, to := range r.addrs() {
				node := []netip.Addr{n2.cfg.NodeIPv4, n2.cfg.NodeIPv6}[i]
				inner := []netip.Addr{ip("10.1.0.99"), ip("fd00:1::99")}[i]
				for _, ns := range []*testenv.NetNS{container, behind} {
					who := "the container"
					if ns == behind {
						who = "who is behind it"
						lo := byName(t, inside, "lo")
						must(t, inside.AddrDel(lo, &netlink.Addr{IPNet: &net.IPNet{IP: spoof[i].AsSlice(), Mask: net.CIDRMask(spoof[i].BitLen(), spoof[i].BitLen())}}))
						addAddr(t, further, byName(t, further, "lo"), spoof[i], spoof[i].BitLen())
					}
					for _, headers := range []int{0, 600} {
						if headers != 0 && to.Is4() {
							continue
						}
						what := fmt.Sprintf("forged by %s with %d bytes of headers", who, headers)
						dst, data := netip.AddrPortFrom(to, forgedPort), []byte(what)
						if tunnel {
							dst, data = netip.AddrPortFrom(node, 8472), vxlan(0x08, 1003, inner, to, what)
						}
						behindOptions(t, ns, spoof[i], dst, headers, data)
						// What went before has arrived or been dropped when this arrives.
						last := fmt.Sprintf("own after %s", what)
						own := ip2(i, "192.168.51.1", "fd51::1")
						if ns == behind {
							own = ip2(i, "192.168.53.9", "fd53::9")
						}
						vopen.until(last, func() { datagram(t, ns, own, netip.AddrPortFrom(open.addrs()[i], forgedPort), []byte(last)) })
						got := n1.dropped(t, reason) + n1.dropped(t, datapath.ReasonUnknownL4)
						// Without a tunnel the other node is who does not understand headers.
						if got == before && (headers == 0 || tunnel) {
							t.Errorf("what %s as %s was not dropped", what, spoof[i])
						}
						before = got
					}
				}
				last := fmt.Sprintf("honest %d", i)
				seen := v.until(last, func() { datagram(t, far.ns, netip.Addr{}, netip.AddrPortFrom(to, forgedPort), []byte(last)) })
				if len(seen) > 0 {
					t.Errorf("the pod %s got %q", to, seen)
				}
			}
		})
	}
}

// TestForeignFilterOnTunnel: a foreign filter on the way into the tunnel, which lets everything
// pass and by that takes one of the programs' marks off, stops nothing; nor does a firewall's rule
// that sets priorities and so takes off the other.
func TestForeignFilterOnTunnel(t *testing.T) {
	for _, underlay6 := range []bool{false, true} {
		for _, filter := range []bool{true, false} {
			t.Run(fmt.Sprintf("underlay6=%v,filter=%v", underlay6, filter), func(t *testing.T) {
				n1, n2 := newTestNode(t, 1, true), newTestNode(t, 2, true)
				n1.underlay6, n2.underlay6 = underlay6, underlay6
				for _, n := range []*testNode{n1, n2} {
					if filter {
						passAll(t, n.h, "hawser_vxlan", 2, 0)
					} else {
						must(t, n.ns.Do(func() error {
							return nft("table inet others {\nchain post { type filter hook postrouting priority 0\nmeta priority set 1:2\n}\n}\n")
						}))
					}
				}
				join(t, n1, n2)
				a, r := n1.pod(t, 1001, n2), n2.pod(t, 1002, n1)
				serve(t, a.ns)
				serve(t, r.ns)
				reaches(t, "to a pod of another node", a.ns, r.addrs(), true)
				reaches(t, "back", r.ns, a.addrs(), true)
				reaches(t, "from a node", n1.ns, r.addrs(), true)
			})
		}
	}
}
