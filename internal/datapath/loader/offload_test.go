package loader_test

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"
	"unsafe"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/testenv"
)

const ethLen, ipv4Len, ipv6Len = 14, 20, 40

// sendFrame sends a frame past the stack of a namespace.
func sendFrame(t *testing.T, ns *testenv.NetNS, device string, frame []byte) {
	t.Helper()
	sendPartial(t, ns, device, frame, 0, 0)
}

// sendPartial is sendFrame, and unless start is 0 leaves a checksum to a device: the complement of
// the sum of all from start on, to be written at an offset from there.
func sendPartial(t *testing.T, ns *testenv.NetNS, device string, frame []byte, start, offset int) {
	t.Helper()
	header := make([]byte, 10) // struct virtio_net_hdr
	if start != 0 {
		header[0] = unix.VIRTIO_NET_HDR_F_NEEDS_CSUM
	}
	binary.NativeEndian.PutUint16(header[6:], uint16(start))
	binary.NativeEndian.PutUint16(header[8:], uint16(offset))
	must(t, ns.Do(func() error {
		dev, err := net.InterfaceByName(device)
		if err != nil {
			return err
		}
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1); err != nil {
			return err
		}
		to := &unix.SockaddrLinklayer{Ifindex: dev.Index, Protocol: binary.NativeEndian.Uint16(frame[12:]), Halen: 6}
		copy(to.Addr[:], frame[:6])
		// A program that drops the frame as it leaves shows.
		if err := unix.Sendto(fd, slices.Concat(header, frame), 0, to); err != unix.ENOBUFS {
			return err
		}
		return nil
	}))
}

// withoutChecksums has the kernel complete checksums before a device gets a packet, as network
// cards do.
func withoutChecksums(t *testing.T, ns *testenv.NetNS, device string) {
	t.Helper()
	value := struct{ cmd, data uint32 }{unix.ETHTOOL_STXCSUM, 0}
	request := struct {
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte
	}{data: unsafe.Pointer(&value)}
	copy(request.name[:], device)
	must(t, ns.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&request))); errno != 0 {
			return errno
		}
		return nil
	}))
}

// udpFrame is a datagram without a checksum, in its frame.
func udpFrame(dst, src net.HardwareAddr, from, to netip.AddrPort, payload []byte) []byte {
	l4 := binary.BigEndian.AppendUint16(nil, from.Port())
	l4 = binary.BigEndian.AppendUint16(l4, to.Port())
	l4 = binary.BigEndian.AppendUint16(l4, uint16(8+len(payload)))
	return ipFrame(dst, src, from.Addr(), to.Addr(), unix.IPPROTO_UDP, slices.Concat(l4, []byte{0, 0}, payload))
}

// ipFrame is an IP packet in its frame.
func ipFrame(dst, src net.HardwareAddr, from, to netip.Addr, proto byte, payload []byte) []byte {
	if from.Is6() {
		ip := make([]byte, ipv6Len)
		ip[0], ip[6], ip[7] = 0x60, proto, 64
		binary.BigEndian.PutUint16(ip[4:], uint16(len(payload)))
		copy(ip[8:], from.AsSlice())
		copy(ip[24:], to.AsSlice())
		return slices.Concat(dst, src, []byte{0x86, 0xdd}, ip, payload)
	}
	ip := make([]byte, ipv4Len)
	ip[0], ip[8], ip[9] = 0x45, 64, proto
	binary.BigEndian.PutUint16(ip[2:], uint16(ipv4Len+len(payload)))
	copy(ip[12:], from.AsSlice())
	copy(ip[16:], to.AsSlice())
	binary.BigEndian.PutUint16(ip[10:], ^onesSum(ip))
	return slices.Concat(dst, src, []byte{0x08, 0}, ip, payload)
}

// completingTo appends what makes the sum from an even offset on come out as a value.
func completingTo(frame []byte, start int, value uint16) []byte {
	if (len(frame)-start)%2 == 1 {
		frame = append(frame, 0)
	}
	sum := onesSum(frame[start:])
	filler := uint32(^value) + uint32(^sum)
	return binary.BigEndian.AppendUint16(frame, uint16(filler+filler>>16))
}

// masquerading gives what a node's pods send out of it the node's address.
func (n *testNode) masquerading(t *testing.T) {
	t.Helper()
	must(t, n.ns.Do(func() error {
		return nft(fmt.Sprintf("table inet masq {\nchain post { type nat hook postrouting priority srcnat\nip saddr 10.%d.0.0/24 oifname eth0 masquerade\n}\n}\n", n.n))
	}))
}

// TestForgedByChecksum: root in a pod has the kernel write a checksum where the packet has a port
// or an address, which happens after the last program. It opens no way into another node's tunnel,
// and without a tunnel none to be another pod.
func TestForgedByChecksum(t *testing.T) {
	t.Run("the tunnel's port", func(t *testing.T) {
		t.Parallel()
		n1, n2 := newTestNode(t, 1, true), newTestNode(t, 2, true)
		join(t, n1, n2)
		n1.masquerading(t)
		withoutChecksums(t, n1.ns, "eth0")
		a, far, r := n1.pod(t, 1001, n2), n1.pod(t, 1003, n2), n2.pod(t, 1002, n1)
		n2.enforce(t, r, 1003)
		v, socket := newVictim(t, r), newVictim(t, &testPod{ns: n2.ns})
		const field = ethLen + ipv4Len + 2 // UDP's destination port
		from, to := netip.AddrPortFrom(a.ep.IPv4, 4444), netip.AddrPortFrom(n2.cfg.NodeIPv4, forgedPort)
		forged := udpFrame(a.ep.HostMAC, a.ep.MAC, from, to, append(vxlan(0x08, 1003, ip("10.1.0.99"), r.ep.IPv4, "forged"), 0, 0))
		sendPartial(t, a.ns, "eth0", completingTo(forged[:len(forged)-2], field, 8472), field, 0)
		// What went before has arrived or been dropped when these arrive, one of which has its own
		// checksum left to the device.
		socket.until("a checksum", func() {
			frame := udpFrame(a.ep.HostMAC, a.ep.MAC, from, to, []byte("a checksum"))
			pseudo := slices.Concat(frame[ethLen+12:ethLen+20], []byte{0, 17}, frame[ethLen+ipv4Len+4:ethLen+ipv4Len+6])
			binary.BigEndian.PutUint16(frame[ethLen+ipv4Len+6:], onesSum(pseudo))
			sendPartial(t, a.ns, "eth0", frame, ethLen+ipv4Len, 6)
		})
		seen := v.until("honest", func() { datagram(t, far.ns, netip.Addr{}, netip.AddrPortFrom(r.ep.IPv4, forgedPort), []byte("honest")) })
		if len(seen) > 0 {
			t.Errorf("the pod got %q", seen)
		}
		if got := n1.dropped(t, datapath.ReasonMalformed); got != 1 {
			t.Errorf("%d packets were dropped as malformed, want one", got)
		}
	})
	t.Run("the source", func(t *testing.T) {
		t.Parallel()
		n1, n2 := newTestNode(t, 1, false), newTestNode(t, 2, false)
		join(t, n1, n2)
		withoutChecksums(t, n1.ns, "eth0")
		a, far, r := n1.pod(t, 1001, n2), n1.pod(t, 1003, n2), n2.pod(t, 1002, n1)
		n2.enforce(t, r, 1003)
		v := newVictim(t, r)
		// The sum of all from the source on is written to the source's last word.
		const start, field = ethLen + 8, ethLen + 8 + 14
		forged := slices.Concat(a.ep.HostMAC, a.ep.MAC, []byte{0x86, 0xdd}, datagram6(far.ep.IPv6, r.ep.IPv6, 0, "forged"))
		as := binary.BigEndian.Uint16(forged[field:])
		copy(forged[field:], a.ep.IPv6.AsSlice()[14:])
		forged[ethLen+5] += 2 // what follows the datagram does not count in its own checksum
		sendPartial(t, a.ns, "eth0", completingTo(forged, start, as), start, field-start)
		seen := v.until("honest", func() { datagram(t, far.ns, netip.Addr{}, netip.AddrPortFrom(r.ep.IPv6, forgedPort), []byte("honest")) })
		if len(seen) > 0 {
			t.Errorf("the pod got %q", seen)
		}
		if got := n1.dropped(t, datapath.ReasonMalformed); got != 1 {
			t.Errorf("%d packets were dropped as malformed, want one", got)
		}
	})
}

// TestMisplacedChecksum: of what a pod leaves to a device, that passes which is written where the
// transport has its checksum, or behind what the programs read of it, where a tunnel of the pod's
// has another packet.
func TestMisplacedChecksum(t *testing.T) {
	t.Parallel()
	n := newTestNode(t, 1, true)
	must(t, n.loader.Configure(n.cfg))
	a, b, want := n.pod(t, 1001), n.pod(t, 1002), uint64(0)
	quoted := func(from, to netip.Addr) []byte {
		return udpFrame(nil, nil, netip.AddrPortFrom(from, 1), netip.AddrPortFrom(to, 2), make([]byte, 8))[2:]
	}
	for i, l4 := range []int{ethLen + ipv4Len, ethLen + ipv6Len} {
		from, to, icmp, request, unreachable := a.addrs()[i], b.addrs()[i], byte(unix.IPPROTO_ICMP), byte(8), byte(3)
		if i == 1 {
			icmp, request, unreachable = unix.IPPROTO_ICMPV6, 128, 1
		}
		tcp, udp, sctp := make([]byte, 30), []byte{0, 7, 0, 7, 0, 30, 29: 0}, []byte{0, 7, 0, 7, 29: 0}
		tcp[1], tcp[3], tcp[12], tcp[13] = 7, 7, 5<<4, 2
		for _, row := range []struct {
			what      string
			proto     byte
			transport []byte
			own       int // the checksum's place, 0 if there is none to be left
			behind    int // from where on nothing is read, 0 if all is
		}{
			{"TCP", unix.IPPROTO_TCP, tcp, 16, 0},
			{"UDP", unix.IPPROTO_UDP, udp, 6, 8},
			{"SCTP", unix.IPPROTO_SCTP, sctp, 8, 0},
			{"an echo", icmp, slices.Concat([]byte{request, 0, 0, 0, 0, 1}, make([]byte, 20)), 2 * i, 6},
			{"an error", icmp, slices.Concat([]byte{unreachable, 0, 0, 0, 0, 0, 0, 0}, quoted(to, from)), 2 * i, 0},
		} {
			frame := ipFrame(a.ep.HostMAC, a.ep.MAC, from, to, row.proto, row.transport)
			leave := func(at int, what string) {
				const first = 20 // the kernel sums up from no earlier
				sendPartial(t, a.ns, "eth0", frame, first, at-first)
				testenv.Eventually(t, 10*time.Second, func() string {
					if got := n.dropped(t, datapath.ReasonMalformed); got != want {
						return fmt.Sprintf("%s of %s, a checksum %s: %d packets were dropped, want %d", row.what, from, what, got, want)
					}
					return ""
				})
			}
			if row.own > 0 {
				leave(l4+row.own, "in its own place")
			}
			for _, at := range []int{l4 - 8, l4 - 4, l4 - 1, l4, l4 + 2, l4 + 5, l4 + row.own - 1, l4 + row.own + 1, l4 + 8, len(frame) - 2} {
				if row.own > 0 && at == l4+row.own {
					continue
				}
				if row.behind == 0 || at < l4+row.behind {
					want++
				}
				leave(at, fmt.Sprintf("at %d, where the transport begins at %d", at, l4))
			}
		}
	}
	first := udpFrame(a.ep.HostMAC, a.ep.MAC, netip.AddrPortFrom(a.ep.IPv4, 7), netip.AddrPortFrom(b.ep.IPv4, 7), make([]byte, 8))
	later := slices.Clone(first)
	first[ethLen+6], later[ethLen+7] = 0x20, 2 // more follow; 16 bytes further on
	testenv.Eventually(t, 10*time.Second, func() string {
		sendFrame(t, a.ns, "eth0", first) // who sends the fragments is known by the first
		sendPartial(t, a.ns, "eth0", later, ethLen+ipv4Len, 8)
		if n.dropped(t, datapath.ReasonMalformed) == want {
			return "a later fragment that leaves a checksum to a device passes"
		}
		return ""
	})
}

// TestTunnelOfPods: two pods have a tunnel of their own. What they send in it leaves its checksum
// to a device far behind the outer header, and passes, whether the node's device makes checksums or
// not; and so does what they send without.
func TestTunnelOfPods(t *testing.T) {
	for _, tunnel := range []bool{true, false} {
		for _, offload := range []bool{true, false} {
			t.Run(fmt.Sprintf("tunnel=%v,offload=%v", tunnel, offload), func(t *testing.T) {
				t.Parallel()
				n1, n2 := newTestNode(t, 1, tunnel), newTestNode(t, 2, tunnel)
				join(t, n1, n2)
				if !offload {
					withoutChecksums(t, n1.ns, "eth0")
				}
				a, r := n1.pod(t, 1001, n2), n2.pod(t, 1002, n1)
				for i, name := range []string{"over4", "over6"} {
					for k, p := range []*testPod{a, r} {
						h, other := p.ns.Netlink(t), []*testPod{r, a}[k]
						must(t, h.LinkAdd(&netlink.Vxlan{
							LinkAttrs: named(name), VxlanId: 7, Port: 4789 + i, SrcAddr: p.addrs()[i].AsSlice(), Group: other.addrs()[i].AsSlice(),
							UDPCSum: true,
						}))
						must(t, h.LinkSetMTU(byName(t, h, name), 1300))
						setUp(t, h, name, 60+i, 1+k)
						received(t, h, ip("fd%d::%d", 60+i, 1+k))
					}
				}
				serve(t, r.ns)
				reaches(t, "without a tunnel of theirs", a.ns, r.addrs(), true)
				reaches(t, "by a tunnel over IPv4", a.ns, []netip.Addr{ip("192.168.60.2"), ip("fd60::2")}, true)
				reaches(t, "by a tunnel over IPv6", a.ns, []netip.Addr{ip("192.168.61.2"), ip("fd61::2")}, true)
				if got := n1.dropped(t, datapath.ReasonMalformed) + n2.dropped(t, datapath.ReasonMalformed); got != 0 {
					t.Errorf("%d packets were dropped as malformed", got)
				}
			})
		}
	}
}
