package main

import (
	"encoding/binary"
	"net/netip"
)

// mac is a hardware address.
type mac [6]byte

// Numbers of protocols and types that rows name.
const (
	protoHopByHop = 0
	protoICMP     = 1
	protoTCP      = 6
	protoUDP      = 17
	protoRouting  = 43
	protoFragment = 44
	protoGRE      = 47
	protoICMPv6   = 58
	protoDstOpts  = 60
	protoUnknown  = 253 // for experiments (RFC 3692)

	typeIPv4 = 0x0800
	typeARP  = 0x0806
	typeVLAN = 0x8100
	typeIPv6 = 0x86DD

	tcpSYN = 0x02
	tcpRST = 0x04
	tcpPSH = 0x08
	tcpACK = 0x10

	// moreFragments is a flag beside the offset of a fragment, here as in the IPv4 header.
	moreFragments = 0x2000
)

// ethernet puts a frame around a payload.
func ethernet(dst, src mac, typ uint16, payload []byte) []byte {
	b := append(append(make([]byte, 0, 14+len(payload)), dst[:]...), src[:]...)
	return append(binary.BigEndian.AppendUint16(b, typ), payload...)
}

// tagged puts 802.1Q tags into a frame, the first one outermost.
func tagged(frame []byte, tags ...uint16) []byte {
	b := append([]byte(nil), frame[:12]...)
	for _, t := range tags {
		b = binary.BigEndian.AppendUint16(b, typeVLAN)
		b = binary.BigEndian.AppendUint16(b, t)
	}
	return append(b, frame[12:]...)
}

// extension is an IPv6 extension header of 8 bytes: the 6 after its length, or for a fragment's all
// after the reserved byte.
type extension struct {
	proto byte
	rest  [6]byte
}

// header is an IP header of either family, by that of its addresses. What is zero gets the usual
// value.
type header struct {
	src, dst netip.Addr
	proto    byte
	ttl      byte
	id       uint32
	// fragment is the offset in units of 8 bytes, and moreFragments. With always set an IPv6 packet
	// carries a fragment header in any case.
	fragment uint16
	always   bool
	options  []byte      // of IPv4, a multiple of 4 bytes
	chain    []extension // of IPv6, in front of a fragment header
}

// packet is the header with what it carries.
func (h header) packet(payload []byte) []byte {
	if h.ttl == 0 {
		h.ttl = 64
	}
	if h.dst.Is4() {
		return h.packet4(payload)
	}
	return h.packet6(payload)
}

func (h header) packet4(payload []byte) []byte {
	n := 20 + len(h.options)
	b := make([]byte, n, n+len(payload))
	b[0] = 0x40 | byte(n/4)
	binary.BigEndian.PutUint16(b[2:], uint16(n+len(payload)))
	binary.BigEndian.PutUint16(b[4:], uint16(h.id))
	binary.BigEndian.PutUint16(b[6:], h.fragment)
	b[8], b[9] = h.ttl, h.proto
	src, dst := h.src.As4(), h.dst.As4()
	copy(b[12:], src[:])
	copy(b[16:], dst[:])
	copy(b[20:], h.options)
	binary.BigEndian.PutUint16(b[10:], checksum(0, b))
	return append(b, payload...)
}

func (h header) packet6(payload []byte) []byte {
	chain := h.chain
	if h.fragment != 0 || h.always {
		var f extension
		f.proto = protoFragment
		offset := h.fragment &^ moreFragments << 3
		if h.fragment&moreFragments != 0 {
			offset |= 1
		}
		binary.BigEndian.PutUint16(f.rest[:], offset)
		binary.BigEndian.PutUint32(f.rest[2:], h.id)
		chain = append(append([]extension(nil), chain...), f)
	}
	b := make([]byte, 40, 40+8*len(chain)+len(payload))
	b[0] = 0x60
	binary.BigEndian.PutUint16(b[4:], uint16(8*len(chain)+len(payload)))
	b[6], b[7] = h.proto, h.ttl
	src, dst := h.src.As16(), h.dst.As16()
	copy(b[8:], src[:])
	copy(b[24:], dst[:])
	if len(chain) > 0 {
		b[6] = chain[0].proto
	}
	for i, x := range chain {
		next := h.proto
		if i+1 < len(chain) {
			next = chain[i+1].proto
		}
		b = append(append(b, next, 0), x.rest[:]...)
	}
	return append(b, payload...)
}

// checksum is that of the Internet (RFC 1071) over b, on top of an earlier sum.
func checksum(sum uint32, b []byte) uint16 {
	for i := 0; i+1 < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	if len(b)%2 == 1 {
		sum += uint32(b[len(b)-1]) << 8
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// pseudo is the sum of the pseudo header of a transport protocol.
func pseudo(src, dst netip.Addr, proto byte, length int) uint32 {
	sum := uint32(proto) + uint32(length)
	for _, a := range [][]byte{src.AsSlice(), dst.AsSlice()} {
		for i := 0; i < len(a); i += 2 {
			sum += uint32(binary.BigEndian.Uint16(a[i:]))
		}
	}
	return sum
}

// udp is a datagram with its header.
func udp(src, dst netip.AddrPort, payload []byte) []byte {
	b := binary.BigEndian.AppendUint16(make([]byte, 0, 8+len(payload)), src.Port())
	b = binary.BigEndian.AppendUint16(b, dst.Port())
	b = binary.BigEndian.AppendUint16(b, uint16(8+len(payload)))
	b = append(append(b, 0, 0), payload...)
	sum := checksum(pseudo(src.Addr(), dst.Addr(), protoUDP, len(b)), b)
	if sum == 0 {
		sum = 0xffff // 0 would mean that there is none
	}
	binary.BigEndian.PutUint16(b[6:], sum)
	return b
}

// tcp is a segment with its header.
func tcp(src, dst netip.AddrPort, flags byte, seq, ack uint32, payload []byte) []byte {
	b := make([]byte, 20, 20+len(payload))
	binary.BigEndian.PutUint16(b, src.Port())
	binary.BigEndian.PutUint16(b[2:], dst.Port())
	binary.BigEndian.PutUint32(b[4:], seq)
	binary.BigEndian.PutUint32(b[8:], ack)
	b[12], b[13] = 5<<4, flags
	binary.BigEndian.PutUint16(b[14:], 1024)
	b = append(b, payload...)
	binary.BigEndian.PutUint16(b[16:], checksum(pseudo(src.Addr(), dst.Addr(), protoTCP, len(b)), b))
	return b
}

// icmpMessage is a message of ICMP or ICMPv6, by the family of its addresses: its type, code, the
// word after the checksum, and the rest.
func icmpMessage(src, dst netip.Addr, typ, code byte, word uint32, rest []byte) []byte {
	b := binary.BigEndian.AppendUint32([]byte{typ, code, 0, 0}, word)
	b = append(b, rest...)
	sum := uint32(0)
	if dst.Is6() {
		sum = pseudo(src, dst, protoICMPv6, len(b))
	}
	binary.BigEndian.PutUint16(b[2:], checksum(sum, b))
	return b
}

// icmpProto is the protocol of ICMP in a family.
func icmpProto(a netip.Addr) byte {
	if a.Is4() {
		return protoICMP
	}
	return protoICMPv6
}

// vxlan is the payload of a datagram to a tunnel port (RFC 7348): a frame under a number.
func vxlan(vni uint32, frame []byte) []byte {
	b := binary.BigEndian.AppendUint32([]byte{0x08, 0, 0, 0}, vni<<8)
	return append(b, frame...)
}

// gre is a packet in GRE with a key (RFC 2890).
func gre(key uint32, typ uint16, packet []byte) []byte {
	b := binary.BigEndian.AppendUint16([]byte{0x20, 0}, typ)
	return append(binary.BigEndian.AppendUint32(b, key), packet...)
}

// arp is a message for an address of IPv4 (RFC 826); op is 1 to ask and 2 to answer.
func arp(op uint16, fromMAC mac, from netip.Addr, toMAC mac, to netip.Addr) []byte {
	b := []byte{0, 1, 8, 0, 6, 4}
	b = binary.BigEndian.AppendUint16(b, op)
	b = append(append(b, fromMAC[:]...), from.AsSlice()...)
	return append(append(b, toMAC[:]...), to.AsSlice()...)
}

// udpPacket is a datagram in an IP packet.
func udpPacket(src, dst netip.AddrPort, payload []byte) []byte {
	return header{src: src.Addr(), dst: dst.Addr(), proto: protoUDP}.packet(udp(src, dst, payload))
}
