package datapath

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"
)

// Packet is a frame's headers, as far as they matter for policy.
type Packet struct {
	// L3 is "ipv4", "ipv6", "arp", or the EtherType as hexadecimal digits.
	L3  string     `json:"l3,omitempty"`
	Src netip.Addr `json:"src,omitzero"`
	Dst netip.Addr `json:"dst,omitzero"`
	// Proto is the IP protocol number, L4 its name where it has one here.
	Proto uint8  `json:"proto,omitempty"`
	L4    string `json:"l4,omitempty"`
	// SrcPort and DstPort are those of TCP, UDP and SCTP.
	SrcPort uint16 `json:"srcPort,omitempty"`
	DstPort uint16 `json:"dstPort,omitempty"`
	// TCPFlags is a list such as "SYN,ACK".
	TCPFlags string `json:"tcpFlags,omitempty"`
	// ICMPType and ICMPCode are those of ICMP and ICMPv6.
	ICMPType *uint8 `json:"icmpType,omitempty"`
	ICMPCode *uint8 `json:"icmpCode,omitempty"`
	// Fragment is set for every fragment but the first.
	Fragment bool `json:"fragment,omitempty"`
}

// transport returns the lower-case name of a packet's protocol, or its number.
func transport(proto uint8) string {
	if proto == ProtoAny {
		return "0" // a packet has one
	}
	return strings.ToLower(ProtoName(proto))
}

// ParsePacket reads the headers of an Ethernet frame, of which the end may be missing. It never
// fails: what can't be read is left out.
func ParsePacket(frame []byte) Packet {
	var p Packet
	if len(frame) < 14 {
		return p
	}
	etherType := binary.BigEndian.Uint16(frame[12:])
	b := frame[14:]
	switch etherType {
	case 0x0800:
		p.L3 = "ipv4"
		if len(b) < 20 {
			return p
		}
		p.Src, p.Dst = netip.AddrFrom4([4]byte(b[12:16])), netip.AddrFrom4([4]byte(b[16:20]))
		p.Proto = b[9]
		p.Fragment = binary.BigEndian.Uint16(b[6:])&0x1fff != 0
		if header := int(b[0]&0xf) * 4; header >= 20 && header <= len(b) {
			p.transport(b[header:])
		}
	case 0x86dd:
		p.L3 = "ipv6"
		if len(b) < 40 {
			return p
		}
		p.Src, p.Dst = netip.AddrFrom16([16]byte(b[8:24])), netip.AddrFrom16([16]byte(b[24:40]))
		next, rest := b[6], b[40:]
		for isExtension(next) && len(rest) >= 8 {
			size := (int(rest[1]) + 1) * 8
			if next == 44 {
				size = 8
				p.Fragment = binary.BigEndian.Uint16(rest[2:])&0xfff8 != 0
			}
			next, rest = rest[0], rest[min(size, len(rest)):]
			if p.Fragment {
				break
			}
		}
		p.Proto = next
		p.transport(rest)
	case 0x0806:
		p.L3 = "arp"
		if len(b) >= 28 {
			p.Src, p.Dst = netip.AddrFrom4([4]byte(b[14:18])), netip.AddrFrom4([4]byte(b[24:28]))
		}
	default:
		p.L3 = fmt.Sprintf("%04x", etherType)
	}
	return p
}

func isExtension(next uint8) bool {
	return next == 0 || next == 43 || next == 44 || next == 60
}

func (p *Packet) transport(b []byte) {
	p.L4 = transport(p.Proto)
	if p.Fragment {
		return
	}
	switch p.Proto {
	case ProtoTCP, ProtoUDP, ProtoSCTP:
		if len(b) >= 4 {
			p.SrcPort, p.DstPort = binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:])
		}
		if p.Proto == ProtoTCP && len(b) >= 14 {
			var set []string
			for i, flag := range []string{"FIN", "SYN", "RST", "PSH", "ACK", "URG", "ECE", "CWR"} {
				if b[13]&(1<<i) != 0 {
					set = append(set, flag)
				}
			}
			p.TCPFlags = strings.Join(set, ",")
		}
	case ProtoICMP, ProtoICMPv6:
		if len(b) >= 2 {
			t, c := b[0], b[1]
			p.ICMPType, p.ICMPCode = &t, &c
		}
	}
}

// String returns the packet in a few words.
func (p Packet) String() string {
	switch {
	case p.L3 == "":
		return "unreadable frame"
	case !p.Src.IsValid():
		return p.L3
	case p.L3 == "arp":
		return fmt.Sprintf("arp %s asks for %s", p.Src, p.Dst)
	}
	src, dst := p.Src.String(), p.Dst.String()
	if p.SrcPort != 0 || p.DstPort != 0 {
		src, dst = netip.AddrPortFrom(p.Src, p.SrcPort).String(), netip.AddrPortFrom(p.Dst, p.DstPort).String()
	}
	s := fmt.Sprintf("%s -> %s %s", src, dst, p.L4)
	if p.TCPFlags != "" {
		s += " " + p.TCPFlags
	}
	if p.ICMPType != nil {
		s += fmt.Sprintf(" type %d code %d", *p.ICMPType, *p.ICMPCode)
	}
	if p.Fragment {
		s += " fragment"
	}
	return s
}
