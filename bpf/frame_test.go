package bpf_test

import (
	"encoding/binary"
	"net"
	"net/netip"
)

// frame describes a packet; bytes builds it. What is zero gets a sensible value.
type frame struct {
	ethSrc, ethDst net.HardwareAddr
	src, dst       netip.Addr
	proto          uint8
	sport, dport   uint16
	tcpFlags       uint8 // default ACK
	icmpType       uint8
	icmpID         uint16
	ttl            uint8  // default 64
	options        int    // bytes of IPv4 options
	ext            []byte // IPv6 extension headers; ext[0] is the type of the first
	fragID         uint32
	fragOffset     uint16 // in bytes, a multiple of 8
	more           bool
	atomic         bool   // IPv6: a fragment header on a whole packet
	payload        []byte // after the transport header, or of a later fragment
	etherType      uint16 // default by family
}

const (
	tcp, udp, sctp, icmp, icmp6 = 6, 17, 132, 1, 58
	fin, syn, rst, ack          = 1, 2, 4, 16
)

func (f frame) transport() []byte {
	if f.fragOffset > 0 {
		return append([]byte(nil), f.payload...)
	}
	var b []byte
	switch f.proto {
	case tcp:
		b = make([]byte, 20)
		b[12] = 5 << 4
		b[13] = f.tcpFlags
		if f.tcpFlags == 0 {
			b[13] = ack
		}
	case udp:
		b = make([]byte, 8)
		binary.BigEndian.PutUint16(b[4:], uint16(8+len(f.payload)))
	case sctp:
		b = make([]byte, 12)
	case icmp, icmp6:
		b = make([]byte, 8)
		b[0] = f.icmpType
		binary.BigEndian.PutUint16(b[4:], f.icmpID)
	default:
		b = make([]byte, 8)
	}
	if f.proto == tcp || f.proto == udp || f.proto == sctp {
		binary.BigEndian.PutUint16(b, f.sport)
		binary.BigEndian.PutUint16(b[2:], f.dport)
	}
	return append(b, f.payload...)
}

// network returns the packet from its IP header on.
func (f frame) network() []byte {
	l4 := f.transport()
	ttl := f.ttl
	if ttl == 0 {
		ttl = 64
	}
	if f.src.Is4() {
		ip := make([]byte, 20+f.options)
		ip[0] = 4<<4 | uint8(len(ip)/4)
		for i := 20; i < len(ip); i++ {
			ip[i] = 1 // no operation
		}
		binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)+len(l4)))
		binary.BigEndian.PutUint16(ip[4:], uint16(f.fragID))
		frag := f.fragOffset / 8
		if f.more {
			frag |= 0x2000
		}
		binary.BigEndian.PutUint16(ip[6:], frag)
		ip[8], ip[9] = ttl, f.proto
		copy(ip[12:], f.src.AsSlice())
		copy(ip[16:], f.dst.AsSlice())
		binary.BigEndian.PutUint16(ip[10:], ^checksum(ip))
		return append(ip, l4...)
	}
	next, rest := f.proto, l4
	if f.more || f.fragOffset > 0 || f.atomic {
		h := make([]byte, 8)
		h[0] = next
		frag := f.fragOffset
		if f.more {
			frag |= 1
		}
		binary.BigEndian.PutUint16(h[2:], frag)
		binary.BigEndian.PutUint32(h[4:], f.fragID)
		next, rest = 44, append(h, rest...)
	}
	if len(f.ext) > 0 {
		e := append([]byte(nil), f.ext[1:]...)
		// The last header of the chain names what follows.
		at := 0
		for at+(int(e[at+1])+1)*8 < len(e) {
			at += (int(e[at+1]) + 1) * 8
		}
		e[at] = next
		next, rest = f.ext[0], append(e, rest...)
	}
	ip := make([]byte, 40)
	ip[0] = 6 << 4
	binary.BigEndian.PutUint16(ip[4:], uint16(len(rest)))
	ip[6], ip[7] = next, ttl
	copy(ip[8:], f.src.AsSlice())
	copy(ip[24:], f.dst.AsSlice())
	return append(ip, rest...)
}

func (f frame) bytes() []byte {
	b := make([]byte, 14)
	copy(b, f.ethDst)
	copy(b[6:], f.ethSrc)
	et := f.etherType
	if et == 0 {
		et = 0x0800
		if f.src.Is6() {
			et = 0x86dd
		}
	}
	binary.BigEndian.PutUint16(b[12:], et)
	return append(b, f.network()...)
}

// withOptions returns the frame with these IPv4 options, whose number is a multiple of 4.
func (f frame) withOptions(options ...byte) []byte {
	f.options = len(options)
	b := f.bytes()
	copy(b[14+20:], options)
	b[14+10], b[14+11] = 0, 0
	binary.BigEndian.PutUint16(b[14+10:], ^checksum(b[14:14+20+len(options)]))
	return b
}

// refusedHeaders returns the frame with what the programs refuse between the headers of network and
// transport and the stack may take: a source route, or seven extension headers.
func (f frame) refusedHeaders() []byte {
	if f.src.Is4() {
		return f.withOptions(131, 7, 4, 9, 9, 9, 9, 0)
	}
	f.ext = []byte{60}
	for range 7 {
		f.ext = append(f.ext, 60, 0, 0, 0, 0, 0, 0, 0)
	}
	return f.bytes()
}

// reply returns the packet that answers f.
func (f frame) reply() frame {
	f.src, f.dst = f.dst, f.src
	f.sport, f.dport = f.dport, f.sport
	switch {
	case f.proto == icmp && f.icmpType == 8:
		f.icmpType = 0
	case f.proto == icmp6 && f.icmpType == 128:
		f.icmpType = 129
	}
	if f.tcpFlags == syn {
		f.tcpFlags = syn | ack
	}
	return f
}

// checksum returns the ones' complement sum; of a correct header it is 0xffff.
func checksum(b []byte) uint16 {
	var sum uint32
	for ; len(b) >= 2; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
	}
	if len(b) == 1 {
		sum += uint32(b[0]) << 8
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return uint16(sum)
}

func arp(ethSrc, sender net.HardwareAddr, op uint16, from, to netip.Addr) []byte {
	b := make([]byte, 42)
	copy(b, []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff})
	copy(b[6:], ethSrc)
	binary.BigEndian.PutUint16(b[12:], 0x0806)
	copy(b[14:], []byte{0, 1, 8, 0, 6, 4})
	binary.BigEndian.PutUint16(b[20:], op)
	copy(b[22:], sender)
	copy(b[28:], from.AsSlice())
	copy(b[38:], to.AsSlice())
	return b
}
