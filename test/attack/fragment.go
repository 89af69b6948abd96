package main

import (
	"math/rand/v2"
	"net/netip"
)

// Ports of the pod web1: it admits everybody to the first, and no one to the second.
const (
	webOpen   = 80
	webClosed = 81
)

// formRows are packets of root in a pod whose form is unusual: fragments, extension headers and
// options.
func formRows() []row {
	var rows []row
	add := func(what string, only int, try func(*scene) (string, error)) {
		rows = append(rows, row{who: inPod, what: what, wanted: dropped, only: only, try: try})
	}
	add("later fragment without a first", 0, func(s *scene) (string, error) {
		return s.pieces("open1", func(src, dst netip.AddrPort, k token) [][]byte { return cut(src, dst, k)[1:] })
	})
	add("first fragment too short for its ports", 0, func(s *scene) (string, error) {
		return s.pieces("open1", func(src, dst netip.AddrPort, k token) [][]byte { return tiny(src, dst, k, 0) })
	})
	add("first fragment too short for its TCP flags", 0, func(s *scene) (string, error) {
		return s.pieces("open1", func(src, dst netip.AddrPort, k token) [][]byte { return tiny(src, dst, k, 8) })
	})
	add("fragments to a victim", 0, func(s *scene) (string, error) { return s.pieces("victim1", cut) })
	add("later fragment beside a friend's first", 0, (*scene).borrowedFragment)
	add("overlapping fragments that change the port", 0, (*scene).overlap)
	for _, c := range chains() {
		if c.fit {
			add("port that is closed behind "+c.name, 6, func(s *scene) (string, error) { return s.hidden(header{chain: c.headers, always: c.fragment}) })
		} else {
			add("IPv6 with "+c.name, 6, func(s *scene) (string, error) { return s.odd(header{chain: c.headers, proto: c.proto}) })
		}
	}
	for _, o := range options4() {
		add("port that is closed behind "+o.name, 4, func(s *scene) (string, error) { return s.hidden(header{options: o.bytes}) })
	}
	add("source route through a pod to a victim", 0, (*scene).sourceRoute)
	return rows
}

// cut is a datagram in two fragments, both of which carry the token.
func cut(src, dst netip.AddrPort, k token) [][]byte {
	const first = 24 // bytes of the first: the header, the token, and four more
	body := make([]byte, first-8+4, first-8+4+len(k))
	copy(body, k[:])
	whole := udp(src, dst, append(body, k[:]...))
	h := header{src: src.Addr(), dst: dst.Addr(), proto: protoUDP, id: rand.Uint32(), fragment: moreFragments}
	later := h
	later.fragment = first / 8
	return [][]byte{h.packet(whole[:first]), later.packet(whole[first:])}
}

// tiny is a segment cut after some bytes of its header, so that the token is in the second
// fragment. Cut at 0, what comes first is empty.
func tiny(src, dst netip.AddrPort, k token, at int) [][]byte {
	whole := tcp(src, dst, tcpSYN, 1, 0, k[:])
	h := header{src: src.Addr(), dst: dst.Addr(), proto: protoTCP, id: rand.Uint32(), fragment: moreFragments}
	later := h
	rest := max(at, 8)
	later.fragment = uint16(rest / 8)
	return [][]byte{h.packet(whole[:at]), later.packet(whole[rest:])}
}

// pieces sends fragments to a pod. That fragments as such arrive is the control.
func (s *scene) pieces(dst string, attack func(src, dst netip.AddrPort, k token) [][]byte) (string, error) {
	evil, open, target := s.pods["evil1"], s.pods["open1"], s.pods[dst]
	whole := control{"evil1 to open1 in fragments", fragments(evil, func(k token) [][]byte {
		return cut(s.at(evil.addr, fromPort), s.at(open.addr, toPort), k)
	}), open.eth}
	return s.strike(target.eth, fragments(evil, func(k token) [][]byte {
		return attack(s.at(evil.addr, fromPort), s.at(target.addr, toPort), k)
	}), whole, s.friendly(s.pods["victim1"]))
}

// borrowedFragment sends a later fragment that fits the first of another sender.
func (s *scene) borrowedFragment() (string, error) {
	evil, friend, victim := s.pods["evil1"], s.pods["friend1"], s.pods["victim1"]
	theirs := func(k token) [][]byte { return cut(s.at(friend.addr, fromPort), s.at(victim.addr, toPort), k) }
	attack := fragments(evil, func(k token) [][]byte {
		packets := theirs(k)
		if err := friend.eth.send(ethernet(friend.gateway, friend.eth.mac, typeOf(packets[0]), cut(s.at(friend.addr, fromPort), s.at(victim.addr, toPort), token{})[0])); err != nil {
			return nil // the controls will show
		}
		mine := packets[1]
		if src := s.is(evil.addr); s.v6 {
			copy(mine[8:], src.AsSlice())
		} else {
			copy(mine[12:], src.AsSlice())
			mine[10], mine[11] = 0, 0
			sum := checksum(0, mine[:20])
			mine[10], mine[11] = byte(sum>>8), byte(sum)
		}
		return packets[1:]
	})
	whole := control{"friend1 to victim1 in fragments", fragments(friend, theirs), victim.eth}
	return s.strike(victim.eth, attack, whole)
}

// sockets opens both ports of web1.
func (s *scene) sockets() (open, closed *socket, err error) {
	web := s.pods["web1"]
	if open, err = openSocket(web.ns, netip.AddrPortFrom(netip.IPv6Unspecified(), webOpen)); err != nil {
		return nil, nil, err
	}
	if closed, err = openSocket(web.ns, netip.AddrPortFrom(netip.IPv6Unspecified(), webClosed)); err != nil {
		open.close()
	}
	return open, closed, err
}

// overlap sends a first fragment for the port that is open, then one for the other in its place,
// then the rest.
func (s *scene) overlap() (string, error) {
	evil, web := s.pods["evil1"], s.pods["web1"]
	open, closed, err := s.sockets()
	if err != nil {
		return "", err
	}
	defer open.close()
	defer closed.close()
	at := func(port uint16, k token) [][]byte { return cut(s.at(evil.addr, fromPort), s.at(web.addr, port), k) }
	attack := fragments(evil, func(k token) [][]byte {
		good, bad := at(webOpen, k), at(webClosed, k)
		for i := range bad { // the same datagram, as far as its receiver can see
			copyID(bad[i], good[0])
		}
		return [][]byte{good[0], bad[0], bad[1]}
	})
	whole := control{"evil1 to the open port of web1 in fragments", fragments(evil, func(k token) [][]byte { return at(webOpen, k) }), open}
	return s.strike(closed, attack, whole)
}

// copyID gives a fragment the identification of another.
func copyID(to, from []byte) {
	if to[0]>>4 == 6 {
		copy(to[44:48], from[44:48])
		return
	}
	copy(to[4:6], from[4:6])
	to[10], to[11] = 0, 0
	sum := checksum(0, to[:20])
	to[10], to[11] = byte(sum>>8), byte(sum)
}

// hidden sends a datagram for the port that is closed in a packet of a form in which one for the
// other port arrives.
func (s *scene) hidden(form header) (string, error) {
	evil, web := s.pods["evil1"], s.pods["web1"]
	open, closed, err := s.sockets()
	if err != nil {
		return "", err
	}
	defer open.close()
	defer closed.close()
	at := func(port uint16) shot {
		return outOf(evil, func(k token) []byte {
			h := form
			h.src, h.dst, h.proto = s.is(evil.addr), s.is(web.addr), protoUDP
			return h.packet(udp(s.at(evil.addr, fromPort), s.at(web.addr, port), k[:]))
		})
	}
	return s.strike(closed, at(webClosed), control{"the same to the open port", at(webOpen), open})
}

// odd sends a packet that the filter cannot judge.
func (s *scene) odd(form header) (string, error) {
	evil, open := s.pods["evil1"], s.pods["open1"]
	attack := outOf(evil, func(k token) []byte {
		h := form
		h.src, h.dst = s.is(evil.addr), s.is(open.addr)
		return h.packet(udp(s.at(evil.addr, fromPort), s.at(open.addr, toPort), k[:]))
	})
	return s.strike(open.eth, attack, s.plain(evil, open))
}

// padding fills an extension header of options (RFC 8200, section 4.2).
func padding(proto byte) extension { return extension{proto, [6]byte{1, 4}} }

// chain is a chain of extension headers. It is fit if a packet with it is to be judged as one
// without.
type chain struct {
	name     string
	headers  []extension
	fragment bool
	proto    byte
	fit      bool
}

func chains() []chain {
	destination, hop, routing := padding(protoDstOpts), padding(protoHopByHop), extension{protoRouting, [6]byte{0, 0}}
	return []chain{
		{name: "hop-by-hop options", headers: []extension{hop}, fit: true},
		{name: "destination options", headers: []extension{destination}, fit: true},
		{name: "a fragment header of a whole packet", fragment: true, fit: true},
		{name: "several headers", headers: []extension{hop, destination, destination}, fragment: true, fit: true},
		{name: "hop-by-hop options that are not first", headers: []extension{destination, hop}, proto: protoUDP},
		{name: "segments left in a routing header", headers: []extension{{protoRouting, [6]byte{0, 1}}}, proto: protoUDP},
		{name: "more headers than anybody needs", headers: []extension{destination, destination, destination, destination, destination, destination, destination}, proto: protoUDP},
		{name: "an unassigned header", headers: []extension{{protoUnknown, [6]byte{}}}, proto: protoUDP},
		{name: "an unassigned protocol", proto: protoUnknown},
		{name: "two fragment headers", headers: []extension{{protoFragment, [6]byte{0, 1}}, routing, {protoFragment, [6]byte{}}}, proto: protoUDP},
	}
}

// option4 are options of IPv4, a multiple of 4 bytes.
type option4 struct {
	name  string
	bytes []byte
}

// options4 are options that a packet may carry. In the last one, whoever takes the header for 20
// bytes long finds the open port.
func options4() []option4 {
	return []option4{
		{"a router alert", []byte{148, 4, 0, 0}},
		{"options that do nothing", []byte{1, 1, 1, 0}},
		{"an option that looks like the open port", []byte{0x9e, 4, 0, webOpen}},
	}
}

// sourceRoute asks a pod that is open to send on to a victim, by a route in the packet.
func (s *scene) sourceRoute() (string, error) {
	evil, open, victim := s.pods["evil1"], s.pods["open1"], s.pods["victim1"]
	attack := outOf(evil, func(k token) []byte {
		h := header{src: s.is(evil.addr), dst: s.is(open.addr), proto: protoUDP}
		dst := s.at(victim.addr, toPort)
		if s.v6 {
			// A routing header of type 0 (RFC 2460) with one segment left takes 24 bytes.
			body := append([]byte{protoUDP, 2, 0, 1, 0, 0, 0, 0}, s.is(victim.addr).AsSlice()...)
			h.proto = protoRouting
			return h.packet(append(body, udp(s.at(evil.addr, fromPort), dst, k[:])...))
		}
		h.options = append([]byte{131, 7, 4}, append(s.is(victim.addr).AsSlice(), 0)...) // loose source route (RFC 791)
		return h.packet(udp(s.at(evil.addr, fromPort), dst, k[:]))
	})
	return s.strike(victim.eth, attack, s.plain(evil, open), s.friendly(victim))
}
