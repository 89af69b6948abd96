package main

import (
	"fmt"
	"net/netip"
)

// onUnderlay is a machine on the underlay that is no node, with raw sockets.
const onUnderlay = "underlay"

// underlayRows are what a machine on the underlay tries.
func underlayRows() []row {
	var rows []row
	add := func(r row) {
		r.who = onUnderlay
		rows = append(rows, r)
	}
	for _, t := range tunnelEnds() {
		add(row{what: "vxlan to " + t.name, wanted: dropped, try: func(s *scene) (string, error) { return s.vxlanFromOutside(t) }})
		add(row{what: "gre to " + t.name, wanted: dropped, try: func(s *scene) (string, error) { return s.greFromOutside(t) }})
	}
	for _, c := range claims()[:4] {
		// Where the network routes pods' addresses, it is the network that says who has one.
		var when func(mode) bool
		if c.name == "of a remote pod" {
			when = mode.tunnel
		}
		for _, dst := range []string{"victim1", "n1", "victim2"} {
			what := fmt.Sprintf("source %s to %s", c.name, dst)
			if dst == "victim2" {
				what += " through n1"
			}
			known := ""
			if c.name == "of a remote pod" && dst == "n1" {
				known = "what pods send to nodes does not go through the tunnel, so their addresses come by the underlay; what is for the node itself no policy judges"
			}
			add(row{what: what, wanted: dropped, when: when, known: known, try: func(s *scene) (string, error) { return s.forgedFromOutside(c, dst) }})
		}
		add(row{what: fmt.Sprintf("source %s to victim1 in fragments", c.name), wanted: dropped, when: when,
			try: func(s *scene) (string, error) { return s.fragmentsFromOutside(c) }})
		add(row{what: fmt.Sprintf("source %s to victim1 with a VLAN tag", c.name), wanted: dropped, when: when,
			try: func(s *scene) (string, error) { return s.taggedFromOutside(c) }})
		add(row{what: fmt.Sprintf("source %s to n1 with two VLAN tags", c.name), wanted: dropped,
			try: func(s *scene) (string, error) { return s.hiddenFromOutside(c) }})
	}
	add(row{what: "ICMP error about a flow that is none", wanted: dropped, try: (*scene).strayError})
	return rows
}

func (s *scene) vxlanFromOutside(t tunnelEnd) (string, error) {
	victim, friend, n := s.pods[t.victim], s.pods[t.friend], s.nodes[t.node]
	inner := s.encapsulated(friend, friend.identity, victim)
	attack := toNode(s.external, n, func(k token) []byte {
		return udpPacket(s.at(s.external.addr, fromPort), netip.AddrPortFrom(t.addr(s), tunnelPort), inner(k))
	})
	reaches := control{"the external host to " + n.name, toNode(s.external, n, datagram(s.at(s.external.addr, fromPort), s.at(n.addr, nodePort))), n.server}
	return s.strike(victim.eth, attack, s.tunnelControls(victim, reaches)...)
}

func (s *scene) greFromOutside(t tunnelEnd) (string, error) {
	victim, n := s.pods[t.victim], s.nodes[t.node]
	inner := s.carriedGRE(victim)
	attack := toNode(s.external, n, func(k token) []byte {
		return header{src: s.is(s.external.addr), dst: t.addr(s), proto: protoGRE}.packet(inner(k))
	})
	return s.strike(victim.eth, attack, s.honest(s.external, s.pods["open"+t.node[1:]]), s.friendly(victim))
}

// forgedFromOutside claims another's address, towards a pod of the node, the node itself, or
// a pod of another node to which this one would have to send it on.
func (s *scene) forgedFromOutside(c claim, dst string) (string, error) {
	n1 := s.nodes["n1"]
	src := netip.AddrPortFrom(c.addr(s), fromPort)
	if dst == "n1" {
		attack := toNode(s.external, n1, datagram(src, s.at(n1.addr, nodePort)))
		honest := toNode(s.external, n1, datagram(s.at(s.external.addr, fromPort), s.at(n1.addr, nodePort)))
		return s.strike(n1.server, attack, control{"the external host to n1", honest, n1.server})
	}
	victim := s.pods[dst]
	attack := toNode(s.external, n1, datagram(src, s.at(victim.addr, toPort)))
	return s.strike(victim.eth, attack, s.honest(s.external, s.pods["open1"]), s.friendly(victim))
}

func (s *scene) fragmentsFromOutside(c claim) (string, error) {
	victim := s.pods["victim1"]
	frames := func(src netip.AddrPort, dst *pod) shot {
		return shot{s.external.eth, func(k token) (out [][]byte) {
			for _, b := range cut(src, s.at(dst.addr, toPort), k) {
				out = append(out, ethernet(dst.node.eth.mac, s.external.eth.mac, typeOf(b), b))
			}
			return out
		}}
	}
	open := s.pods["open1"]
	honest := control{"the external host to open1 in fragments", frames(s.at(s.external.addr, fromPort), open), open.eth}
	return s.strike(victim.eth, frames(netip.AddrPortFrom(c.addr(s), fromPort), victim), honest, s.friendly(victim))
}

func (s *scene) taggedFromOutside(c claim) (string, error) {
	victim := s.pods["victim1"]
	plain := toNode(s.external, victim.node, datagram(netip.AddrPortFrom(c.addr(s), fromPort), s.at(victim.addr, toPort)))
	attack := shot{s.external.eth, func(k token) [][]byte { return [][]byte{tagged(plain.frames(k)[0], 0)} }}
	return s.strike(victim.eth, attack, s.honest(s.external, s.pods["open1"]), s.friendly(victim))
}

// hiddenFromOutside is for a socket of the node, whose kernel takes off any number of tags that
// name no VLAN.
func (s *scene) hiddenFromOutside(c claim) (string, error) {
	n1 := s.nodes["n1"]
	plain := toNode(s.external, n1, datagram(netip.AddrPortFrom(c.addr(s), fromPort), s.at(n1.addr, nodePort)))
	attack := shot{s.external.eth, func(k token) [][]byte { return [][]byte{tagged(plain.frames(k)[0], 0, 0)} }}
	honest := toNode(s.external, n1, datagram(s.at(s.external.addr, fromPort), s.at(n1.addr, nodePort)))
	return s.strike(n1.server, attack, control{"the external host to n1", honest, n1.server})
}

func (s *scene) strayError() (string, error) {
	victim := s.pods["victim1"]
	src, dst := s.is(s.external.addr), s.is(victim.addr)
	attack := toNode(s.external, victim.node, func(k token) []byte {
		quoted := udpPacket(s.at(victim.addr, 50001), s.at(s.external.addr, 50002), k[:])
		typ := byte(3)
		if s.v6 {
			typ = 1
		}
		return header{src: src, dst: dst, proto: icmpProto(dst)}.packet(icmpMessage(src, dst, typ, 1, 0, quoted))
	})
	return s.strike(victim.eth, attack, s.honest(s.external, s.pods["open1"]), s.friendly(victim))
}
