package loader_test

import (
	"fmt"
	"net/netip"
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

// passAll puts a filter of somebody's on the way out of a device, which lets everything pass and makes tc_index what the mark says.
func passAll(t *testing.T, h *netlink.Handle, device string, priority, mark uint16) {
	t.Helper()
	const tcClassID = 72 // struct __sk_buff
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.SchedCLS, License: "GPL",
		Instructions: asm.Instructions{
			asm.Mov.Imm(asm.R2, int32(mark)),
			asm.StoreMem(asm.R1, tcClassID, asm.R2, asm.Word),
			asm.Mov.Imm(asm.R0, 0), // TC_ACT_OK
			asm.Return(),
		},
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

// TestForeignMarks: tc_index goes with a packet from one network namespace to another, and to the fragments that it is cut into. Who may write it in a container that is no
// pod is no more believed for it: neither in the node's name to another's tunnel, nor in a pod's without one.
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
				// The kernel cuts what comes through the bridge in other pieces, which do not remember by which interface they came.
				must(t, n1.h.LinkSetMTU(byName(t, n1.h, "eth0"), 1400))
				must(t, n2.h.LinkSetMTU(byName(t, n2.h, "eth0"), 1400))
			}
			a, far := n1.pod(t, 1001, n2), n1.pod(t, 1003, n2)
			r, open := n2.pod(t, 1002, n1), n2.pod(t, 1009, n1)
			n2.enforce(t, r, 1001, 1003, 6)
			spoof := []netip.Addr{a.ep.IPv4, a.ep.IPv6}
			veth := stranger(t, n1, "veth", 78, spoof...)
			bridged := stranger(t, n1, "port", 79, spoof...)
			bridge(t, n1, "port", 79)
			// The network of the containers is translated, as others do it for theirs; and connections are tracked.
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

// TestOthersFilterOnTunnel: somebody's filter on the way into the tunnel, which lets everything pass and by that takes the programs' marks off, stops nothing.
func TestOthersFilterOnTunnel(t *testing.T) {
	for _, underlay6 := range []bool{false, true} {
		t.Run(fmt.Sprintf("underlay6=%v", underlay6), func(t *testing.T) {
			n1, n2 := newTestNode(t, 1, true), newTestNode(t, 2, true)
			n1.underlay6, n2.underlay6 = underlay6, underlay6
			for _, n := range []*testNode{n1, n2} {
				passAll(t, n.h, "hawser_vxlan", 2, 0)
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
