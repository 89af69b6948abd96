package main

import (
	"net/netip"
)

// asNode is a node of the cluster whose root is hostile: n3.
const asNode = "node"

// nodeRows are what a hostile node tries.
func nodeRows() []row {
	var rows []row
	add := func(r row) {
		r.who = asNode
		rows = append(rows, r)
	}
	claims := []struct {
		name string
		addr func(*scene) netip.Addr
	}{
		{"a pod of the receiver", func(s *scene) netip.Addr { return s.is(s.pods["friend1"].addr) }},
		{"a pod of a third node", func(s *scene) netip.Addr { return s.is(s.pods["friend2"].addr) }},
		{"the receiver's router", func(s *scene) netip.Addr { return s.is(s.nodes["n1"].router) }},
		{"the receiver", func(s *scene) netip.Addr { return s.is(s.nodes["n1"].addr) }},
	}
	for _, c := range claims {
		add(row{what: "vxlan in the name of " + c.name, wanted: dropped, when: mode.tunnel, try: func(s *scene) (string, error) {
			return s.fromNode(s.pods["victim1"], c.addr(s), s.pods["friend3"].identity)
		}})
	}
	add(row{what: "vxlan in the name of the receiver, as host", wanted: dropped, when: mode.tunnel, try: func(s *scene) (string, error) {
		return s.fromNode(s.pods["victim1"], s.is(s.nodes["n1"].router), 1)
	}})
	for _, id := range []struct {
		name   string
		number uint32
	}{{"unknown", 0}, {"an unassigned reserved number", 50}, {"a cluster that is not connected", 7<<16 | 1000}} {
		add(row{what: "vxlan with the identity of " + id.name, wanted: dropped, when: mode.tunnel, try: func(s *scene) (string, error) {
			return s.fromNode(s.pods["open1"], s.is(s.pods["friend3"].addr), id.number)
		}})
	}
	add(row{what: "vxlan to a pod of a third node through n1", wanted: dropped, when: mode.tunnel, try: func(s *scene) (string, error) {
		return s.bounce()
	}})
	// Where the network routes pods' addresses, only the node itself knows its own.
	for _, c := range []int{0, 2, 3} {
		add(row{what: "source of " + claims[c].name, wanted: dropped, try: func(s *scene) (string, error) {
			victim, n3 := s.pods["victim1"], s.nodes["n3"]
			attack := toNode(&n3.place, victim.node, datagram(netip.AddrPortFrom(claims[c].addr(s), fromPort), s.at(victim.addr, toPort)))
			return s.strike(victim.eth, attack, s.honest(s.external, s.pods["open1"]), s.friendly(victim))
		}})
	}
	return rows
}

// fromNode sends a datagram by the tunnel, from an address and with an identity.
func (s *scene) fromNode(victim *pod, src netip.Addr, identity uint32) (string, error) {
	n3 := s.nodes["n3"]
	attack := toNode(&n3.place, victim.node, func(k token) []byte {
		b := udpPacket(netip.AddrPortFrom(src, fromPort), s.at(victim.addr, toPort), k[:])
		return udpPacket(netip.AddrPortFrom(n3.addr[0], fromPort), netip.AddrPortFrom(victim.node.addr[0], tunnelPort),
			vxlan(identity, ethernet(innerMAC, innerMAC, typeOf(b), b)))
	})
	return s.strike(victim.eth, attack, s.byNode(victim))
}

// bounce has one node pass on what is for another.
func (s *scene) bounce() (string, error) {
	n3, n1, open, friend := s.nodes["n3"], s.nodes["n1"], s.pods["open2"], s.pods["friend3"]
	inner := s.encapsulated(friend, friend.identity, open)
	attack := toNode(&n3.place, n1, func(k token) []byte {
		return udpPacket(netip.AddrPortFrom(n3.addr[0], fromPort), netip.AddrPortFrom(n1.addr[0], tunnelPort), inner(k))
	})
	return s.strike(open.eth, attack, s.byNode(open), s.byNode(s.pods["open1"]))
}
