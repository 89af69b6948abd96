package main

import (
	"bytes"
	"encoding/binary"
	"net"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
)

var (
	a4, b4 = netip.MustParseAddrPort("10.0.0.1:1234"), netip.MustParseAddrPort("10.0.0.2:80")
	a6, b6 = netip.MustParseAddrPort("[fd00::1]:1234"), netip.MustParseAddrPort("[fd00::2]:80")
)

// TestHeaders reads headers back with other people's code.
func TestHeaders(t *testing.T) {
	b := header{src: a4.Addr(), dst: b4.Addr(), proto: protoUDP, id: 7, fragment: 3 | moreFragments, options: []byte{1, 1, 1, 0}}.packet([]byte("payload"))
	h, err := ipv4.ParseHeader(b)
	if err != nil {
		t.Fatal(err)
	}
	if h.Len != 24 || h.TotalLen != len(b) || h.ID != 7 || h.FragOff != 3 || h.Flags != ipv4.MoreFragments || h.TTL != 64 || h.Protocol != protoUDP ||
		!h.Src.Equal(net.IPv4(10, 0, 0, 1)) || !h.Dst.Equal(net.IPv4(10, 0, 0, 2)) {
		t.Errorf("IPv4 header: %+v", h)
	}
	if sum := checksum(0, b[:24]); sum != 0 {
		t.Errorf("the sum over an IPv4 header with its checksum is %#x, want 0", sum)
	}

	b = header{src: a6.Addr(), dst: b6.Addr(), proto: protoUDP, id: 7, fragment: 3 | moreFragments, chain: []extension{padding(protoHopByHop)}}.packet([]byte("payload"))
	h6, err := ipv6.ParseHeader(b)
	if err != nil {
		t.Fatal(err)
	}
	if h6.NextHeader != protoHopByHop || h6.PayloadLen != len(b)-40 || h6.HopLimit != 64 || !h6.Src.Equal(a6.Addr().AsSlice()) {
		t.Errorf("IPv6 header: %+v", h6)
	}
	want := []byte{protoFragment, 0, 1, 4, 0, 0, 0, 0, protoUDP, 0, 0, 3<<3 | 1, 0, 0, 0, 7}
	if got := b[40:56]; !bytes.Equal(got, want) {
		t.Errorf("IPv6 extension headers are %x, want %x", got, want)
	}
}

// TestTransportChecksums: the sum over a datagram with its checksum and pseudo header is 0 (RFC
// 768, RFC 9293).
func TestTransportChecksums(t *testing.T) {
	for _, ends := range [][2]netip.AddrPort{{a4, b4}, {a6, b6}} {
		src, dst := ends[0], ends[1]
		for _, payload := range []string{"", "odd", "even"} {
			d := udp(src, dst, []byte(payload))
			if sum := checksum(pseudo(src.Addr(), dst.Addr(), protoUDP, len(d)), d); sum != 0 {
				t.Errorf("UDP %q from %s: %#x", payload, src, sum)
			}
			s := tcp(src, dst, tcpSYN, 1, 2, []byte(payload))
			if sum := checksum(pseudo(src.Addr(), dst.Addr(), protoTCP, len(s)), s); sum != 0 {
				t.Errorf("TCP %q from %s: %#x", payload, src, sum)
			}
		}
	}
}

func TestICMP(t *testing.T) {
	v4 := icmpMessage(a4.Addr(), b4.Addr(), 3, 4, 1280, []byte("quoted"))
	m, err := icmp.ParseMessage(protoICMP, v4)
	if err != nil {
		t.Fatal(err)
	}
	if e, ok := m.Body.(*icmp.DstUnreach); m.Type != ipv4.ICMPTypeDestinationUnreachable || m.Code != 4 || !ok || string(e.Data) != "quoted" {
		t.Errorf("message of ICMP: %+v", m)
	}
	if sum := checksum(0, v4); sum != 0 {
		t.Errorf("sum over ICMP: %#x", sum)
	}
	b := icmpMessage(a6.Addr(), b6.Addr(), 2, 0, 1280, []byte("quoted"))
	if sum := checksum(pseudo(a6.Addr(), b6.Addr(), protoICMPv6, len(b)), b); sum != 0 {
		t.Errorf("sum over ICMPv6: %#x", sum)
	}
}

func TestEncapsulation(t *testing.T) {
	if got, want := vxlan(0x123456, []byte("frame")), append([]byte{8, 0, 0, 0, 0x12, 0x34, 0x56, 0}, "frame"...); !bytes.Equal(got, want) {
		t.Errorf("VXLAN: %x, want %x", got, want)
	}
	if got, want := gre(5, typeIPv6, []byte("packet")), append([]byte{0x20, 0, 0x86, 0xDD, 0, 0, 0, 5}, "packet"...); !bytes.Equal(got, want) {
		t.Errorf("GRE: %x, want %x", got, want)
	}
	f := ethernet(mac{1}, mac{2}, typeIPv4, []byte("packet"))
	if got := tagged(f, 5, 6); binary.BigEndian.Uint32(got[12:]) != typeVLAN<<16|5 || binary.BigEndian.Uint32(got[16:]) != typeVLAN<<16|6 || !bytes.Equal(got[20:], f[12:]) {
		t.Errorf("tags: %x", got)
	}
}

// TestCut: fragments put together are the datagram, and each carries the token.
func TestCut(t *testing.T) {
	k := newToken()
	for _, ends := range [][2]netip.AddrPort{{a4, b4}, {a6, b6}} {
		src, dst := ends[0], ends[1]
		header := 20
		if src.Addr().Is6() {
			header = 48
		}
		var whole []byte
		for i, b := range cut(src, dst, k) {
			if !bytes.Contains(b, k[:]) {
				t.Errorf("fragment %d from %s has no token", i, src)
			}
			whole = append(whole, b[header:]...)
		}
		if sum := checksum(pseudo(src.Addr(), dst.Addr(), protoUDP, len(whole)), whole); sum != 0 || int(binary.BigEndian.Uint16(whole[4:])) != len(whole) {
			t.Errorf("fragments from %s make no datagram: sum %#x, length %d of %d", src, sum, binary.BigEndian.Uint16(whole[4:]), len(whole))
		}
	}
}

func TestTally(t *testing.T) {
	var n tally
	seen, other := newToken(), newToken()
	n.watch(seen)
	n.watch(other)
	n.look(append([]byte("before"), seen[:]...))
	n.look(append(seen[:], "after"...))
	if got := n.of(seen); got.count != 2 || !strings.HasPrefix(string(got.first), "before") {
		t.Errorf("seen %d times, first in %q", got.count, got.first)
	}
	if got := n.of(other); got.count != 0 {
		t.Errorf("another token was seen %d times", got.count)
	}
	n.forget(seen)
	n.look(seen[:])
	if got := n.of(seen); got.count != 0 {
		t.Errorf("a token that is forgotten was seen %d times", got.count)
	}
}

func TestDescribe(t *testing.T) {
	for want, f := range map[string][]byte{
		"10.0.0.1:1234 > 10.0.0.2:80 proto 17":   ethernet(mac{}, mac{}, typeIPv4, udpPacket(a4, b4, nil)),
		"[fd00::1]:1234 > [fd00::2]:80 proto 17": ethernet(mac{}, mac{}, typeIPv6, udpPacket(a6, b6, nil)),
		"frame of type 0x0806, 14 bytes":         ethernet(mac{}, mac{}, typeARP, nil),
		"3 bytes":                                {1, 2, 3},
	} {
		if got := describe(f); got != want {
			t.Errorf("%x is %q, want %q", f, got, want)
		}
	}
}
