package main

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os/exec"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/datapath/maps"
	"github.com/hawser-net/hawser/internal/sandbox/machine"
)

// inPod is root in a pod, with raw sockets.
const inPod = "pod"

// podRows are what root in a pod with raw sockets tries.
func podRows() []row {
	var rows []row
	add := func(r row) {
		r.who = inPod
		rows = append(rows, r)
	}
	for _, t := range tunnelEnds() {
		add(row{what: "vxlan to " + t.name, wanted: dropped, try: func(s *scene) (string, error) { return s.vxlanFromPod(t) }})
		add(row{what: "gre to " + t.name, wanted: dropped, try: func(s *scene) (string, error) { return s.greFromPod(t) }})
	}
	add(row{what: "gre to a pod", wanted: dropped, try: (*scene).greToPod})
	for _, t := range tunnelEnds()[:2] {
		add(row{what: "vxlan through a service whose backend is " + t.name, wanted: dropped, try: func(s *scene) (string, error) { return s.vxlanThroughService(t) }})
	}
	// With the replacement kube-proxy is not there.
	add(row{what: "vxlan through kube-proxy to another node", wanted: dropped, when: mode.plain, try: (*scene).vxlanThroughKubeProxy})
	for _, c := range claims() {
		for _, dst := range []string{"open1", "open2"} {
			add(row{what: fmt.Sprintf("source %s to %s", c.name, dst), wanted: dropped, only: c.only,
				try: func(s *scene) (string, error) { return s.forgedFromPod(c, dst) }})
		}
	}
	add(row{what: "hardware address of another pod", wanted: dropped, try: (*scene).foreignMAC})
	add(row{what: "frame straight to the hardware address of a victim", wanted: dropped, try: (*scene).straightToVictim})
	for _, tags := range [][]uint16{{0}, {5}, {5, 6}} {
		add(row{what: fmt.Sprintf("VLAN tags %v", tags), wanted: dropped, try: func(s *scene) (string, error) { return s.vlan(tags) }})
	}
	add(row{what: "claim a pod's address by ARP", wanted: dropped, only: 4, try: func(s *scene) (string, error) {
		return s.spoofARP(s.pods["friend1"].addr[0])
	}})
	add(row{what: "claim the router's address by ARP", wanted: dropped, only: 4, try: func(s *scene) (string, error) {
		return s.spoofARP(s.nodes["n1"].router[0])
	}})
	add(row{what: "claim a pod's address by neighbour advertisement", wanted: dropped, only: 6, try: func(s *scene) (string, error) {
		return s.spoofND(136, s.pods["friend1"].addr[1])
	}})
	add(row{what: "claim the router's address by neighbour advertisement", wanted: dropped, only: 6, try: func(s *scene) (string, error) {
		return s.spoofND(136, s.nodes["n1"].router[1])
	}})
	add(row{what: "router advertisement", wanted: dropped, only: 6, try: func(s *scene) (string, error) { return s.spoofND(134, netip.Addr{}) }})
	add(row{what: "redirect of a victim's traffic", wanted: dropped, try: (*scene).redirect})
	for _, victim := range []string{"friend1", "friend2"} {
		add(row{what: "ICMP error to " + victim + " that quotes its flow with another", wanted: dropped,
			try: func(s *scene) (string, error) { return s.foreignError(victim) }})
	}
	return rows
}

// tunnelEnd is an address at which some node undoes an encapsulation, and what could be won there:
// a victim of that node, and a friend of the victim's elsewhere, as whom to come.
type tunnelEnd struct {
	name           string
	node           string
	router         bool
	victim, friend string
}

func (t tunnelEnd) addr(s *scene) netip.Addr {
	if t.router {
		return s.is(s.nodes[t.node].router)
	}
	return s.is(s.nodes[t.node].addr)
}

func tunnelEnds() []tunnelEnd {
	return []tunnelEnd{
		{"the own node", "n1", false, "victim1", "friend2"},
		{"another node", "n2", false, "victim2", "friend1"},
		{"the own router address", "n1", true, "victim1", "friend2"},
		{"another node's router address", "n2", true, "victim2", "friend1"},
	}
}

// innerMAC stands in frames within the tunnel: no receiver looks at it.
var innerMAC = mac{2, 0, 0, 0, 0, 1}

// encapsulated is the payload of a tunnel packet: a datagram in its frame, in the name of an
// identity.
func (s *scene) encapsulated(as *pod, identity uint32, victim *pod) func(token) []byte {
	return func(k token) []byte {
		b := udpPacket(s.at(as.addr, fromPort), s.at(victim.addr, toPort), k[:])
		return vxlan(identity, ethernet(innerMAC, innerMAC, typeOf(b), b))
	}
}

// byNode is the control that packets of a node pass the tunnel: n3, in the name of its own pod.
func (s *scene) byNode(victim *pod) control {
	n3, friend := s.nodes["n3"], s.pods["friend3"]
	inner := s.encapsulated(friend, friend.identity, victim)
	return control{"n3 to " + victim.name + " by the tunnel", toNode(&n3.place, victim.node, func(k token) []byte {
		// Nodes are joined by IPv4, whatever is carried.
		return udpPacket(netip.AddrPortFrom(n3.addr[0], fromPort), netip.AddrPortFrom(victim.node.addr[0], tunnelPort), inner(k))
	}), victim.eth}
}

// tunnelControls are those of an attack on the tunnel that may win a victim.
func (s *scene) tunnelControls(victim *pod, more ...control) []control {
	if s.mode.tunnel() {
		more = append(more, s.byNode(victim))
	}
	return append(more, s.friendly(victim))
}

func (s *scene) vxlanFromPod(t tunnelEnd) (string, error) {
	evil, victim, friend := s.pods["evil1"], s.pods[t.victim], s.pods[t.friend]
	inner := s.encapsulated(friend, friend.identity, victim)
	attack := outOf(evil, func(k token) []byte {
		return udpPacket(s.at(evil.addr, fromPort), netip.AddrPortFrom(t.addr(s), tunnelPort), inner(k))
	})
	return s.strike(victim.eth, attack, s.tunnelControls(victim, s.reaches(evil, s.nodes[t.node], t.addr(s)))...)
}

// carriedGRE is a packet of a client outside for a pod, as one node hands it to another.
func (s *scene) carriedGRE(victim *pod) func(token) []byte {
	return func(k token) []byte {
		b := udpPacket(s.at(s.external.addr, fromPort), s.at(victim.addr, toPort), k[:])
		return gre(uint32(toPort)<<16|fromPort, typeOf(b), b)
	}
}

func (s *scene) greFromPod(t tunnelEnd) (string, error) {
	evil, victim := s.pods["evil1"], s.pods[t.victim]
	inner := s.carriedGRE(victim)
	attack := outOf(evil, func(k token) []byte {
		return header{src: s.is(evil.addr), dst: t.addr(s), proto: protoGRE}.packet(inner(k))
	})
	return s.strike(victim.eth, attack, s.reaches(evil, s.nodes[t.node], t.addr(s)), s.friendly(victim))
}

func (s *scene) greToPod() (string, error) {
	evil, open := s.pods["evil1"], s.pods["open1"]
	inner := s.carriedGRE(open)
	attack := outOf(evil, func(k token) []byte {
		return header{src: s.is(evil.addr), dst: s.is(open.addr), proto: protoGRE}.packet(inner(k))
	})
	return s.strike(open.eth, attack, s.plain(evil, open))
}

// vxlanThroughService has a service lead to the tunnel's port. Without Kubernetes an agent has no
// services, so their rows are written here.
func (s *scene) vxlanThroughService(t tunnelEnd) (string, error) {
	evil, victim, friend, n := s.pods["evil1"], s.pods[t.victim], s.pods[t.friend], s.nodes[t.node]
	cluster := pair{netip.MustParseAddr("10.96.0.99"), netip.MustParseAddr("fd00:96::99")}
	cfg := maps.Defaults()
	cfg.Dir = s.mapDir(s.nodes["n1"])
	m, err := maps.Open(cfg)
	if err != nil {
		return "", err
	}
	defer m.Close()
	front := map[uint16]uint16{53: tunnelPort, 54: nodePort}
	for port, backend := range front {
		f := datapath.ServiceFrontend{Addr: s.at(cluster, port), Proto: protoUDP}
		if err := m.UpsertService(datapath.Service{ServiceFrontend: f, ID: 1, Backends: []netip.AddrPort{s.at(n.addr, backend)}}); err != nil {
			return "", err
		}
		defer m.DeleteService(f)
	}
	// A flow keeps its backend, so each row has its own.
	source := s.at(evil.addr, uint16(20000+rand.IntN(10000)))
	through := func(port uint16, payload func(token) []byte) shot {
		return outOf(evil, func(k token) []byte { return udpPacket(source, s.at(cluster, port), payload(k)) })
	}
	service := control{"evil1 through a service", through(54, func(k token) []byte { return k[:] }), n.server}
	return s.strike(victim.eth, through(53, s.encapsulated(friend, friend.identity, victim)), s.tunnelControls(victim, service)...)
}

// kubeProxy are rules like kube-proxy's for a service, which send what they lead to a backend on in
// the node's name: port 53 leads to the tunnel of a node, port 54 to its socket.
func kubeProxy(service, backend pair) string {
	var lead strings.Builder
	for from, to := range map[uint16]uint16{53: tunnelPort, 54: nodePort} {
		fmt.Fprintf(&lead, "ip daddr %s udp dport %d dnat ip to %s\n", service[0], from, netip.AddrPortFrom(backend[0], to))
		fmt.Fprintf(&lead, "ip6 daddr %s udp dport %d dnat ip6 to %s\n", service[1], from, netip.AddrPortFrom(backend[1], to))
	}
	return "table inet kube {\nchain enter { type nat hook prerouting priority -100\n" + lead.String() +
		"}\nchain leave { type nat hook postrouting priority 90\nct status dnat masquerade\n}\n}\n"
}

// vxlanThroughKubeProxy has a service of kube-proxy's lead to another node's tunnel.
func (s *scene) vxlanThroughKubeProxy() (string, error) {
	evil, victim, friend, n1, n2 := s.pods["evil1"], s.pods["victim2"], s.pods["friend1"], s.nodes["n1"], s.nodes["n2"]
	cluster := pair{netip.MustParseAddr("10.96.0.98"), netip.MustParseAddr("fd00:96::98")}
	if err := n1.nft(kubeProxy(cluster, n2.addr)); err != nil {
		return "", err
	}
	defer n1.nft("delete table inet kube")
	source := s.at(evil.addr, uint16(20000+rand.IntN(10000)))
	through := func(port uint16, payload func(token) []byte) shot {
		return outOf(evil, func(k token) []byte { return udpPacket(source, s.at(cluster, port), payload(k)) })
	}
	service := control{"evil1 through kube-proxy", through(54, func(k token) []byte { return k[:] }), n2.server}
	return s.strike(victim.eth, through(53, s.encapsulated(friend, friend.identity, victim)), s.tunnelControls(victim, service)...)
}

// nft has nftables read commands.
func (p *place) nft(commands string) error {
	return machine.InNamespace(p.path, func() error {
		nft := exec.Command("nft", "-f", "-")
		nft.Stdin = strings.NewReader(commands)
		if out, err := nft.CombinedOutput(); err != nil {
			return fmt.Errorf("nft: %w: %s", err, out)
		}
		return nil
	})
}

// claim is a source address that is not the pod's own.
type claim struct {
	name string
	only int
	addr func(*scene) netip.Addr
}

func claims() []claim {
	fixed := func(v4, v6 string) func(*scene) netip.Addr {
		return func(s *scene) netip.Addr {
			if s.v6 {
				return netip.MustParseAddr(v6)
			}
			return netip.MustParseAddr(v4)
		}
	}
	return []claim{
		{"of a local pod", 0, func(s *scene) netip.Addr { return s.is(s.pods["friend1"].addr) }},
		{"of a remote pod", 0, func(s *scene) netip.Addr { return s.is(s.pods["friend2"].addr) }},
		{"of the own node", 0, func(s *scene) netip.Addr { return s.is(s.nodes["n1"].addr) }},
		{"of the own router", 0, func(s *scene) netip.Addr { return s.is(s.nodes["n1"].router) }},
		{"of another node", 0, func(s *scene) netip.Addr { return s.is(s.nodes["n2"].addr) }},
		{"of a machine outside", 0, func(s *scene) netip.Addr { return s.is(s.external.addr) }},
		{"of loopback", 0, fixed("127.0.0.1", "::1")},
		{"unspecified", 0, fixed("0.0.0.0", "::")},
		{"of multicast", 0, fixed("224.0.0.1", "ff02::1")},
		{"link-local", 0, fixed("169.254.0.1", "fe80::1")},
		{"mapped from IPv4", 6, fixed("", "::ffff:10.244.1.1")},
	}
}

func (s *scene) forgedFromPod(c claim, dst string) (string, error) {
	evil, open := s.pods["evil1"], s.pods[dst]
	attack := outOf(evil, datagram(netip.AddrPortFrom(c.addr(s), fromPort), s.at(open.addr, toPort)))
	return s.strike(open.eth, attack, s.plain(evil, open))
}

func (s *scene) foreignMAC() (string, error) {
	evil, open := s.pods["evil1"], s.pods["open1"]
	attack := shot{evil.eth, func(k token) [][]byte {
		b := udpPacket(s.at(evil.addr, fromPort), s.at(open.addr, toPort), k[:])
		return [][]byte{ethernet(evil.gateway, s.pods["friend1"].eth.mac, typeOf(b), b)}
	}}
	return s.strike(open.eth, attack, s.plain(evil, open))
}

func (s *scene) straightToVictim() (string, error) {
	evil, victim := s.pods["evil1"], s.pods["victim1"]
	attack := shot{evil.eth, func(k token) [][]byte {
		b := udpPacket(s.at(evil.addr, fromPort), s.at(victim.addr, toPort), k[:])
		return [][]byte{ethernet(victim.eth.mac, evil.eth.mac, typeOf(b), b)}
	}}
	return s.strike(victim.eth, attack, s.plain(evil, s.pods["open1"]), s.friendly(victim))
}

func (s *scene) vlan(tags []uint16) (string, error) {
	evil, open := s.pods["evil1"], s.pods["open1"]
	plain := s.plain(evil, open)
	attack := shot{evil.eth, func(k token) [][]byte { return [][]byte{tagged(plain.shot.frames(k)[0], tags...)} }}
	return s.strike(open.eth, attack, plain)
}

// poisoned says whether the node, or a neighbour of the pod, takes the adversary for who has the
// address.
func (s *scene) poisoned(addr netip.Addr) (bool, error) {
	evil := s.pods["evil1"]
	found := false
	for _, p := range []*place{&evil.node.place, &s.pods["victim1"].place, &s.pods["friend1"].place} {
		err := machine.WithNetlink(p.path, func(h *netlink.Handle) error {
			list, err := h.NeighList(0, netlink.FAMILY_ALL)
			for _, n := range list {
				if ip, ok := netip.AddrFromSlice(n.IP); ok && ip.Unmap() == addr && len(n.HardwareAddr) == 6 && mac(n.HardwareAddr) == evil.eth.mac {
					found = true
				}
			}
			return err
		})
		if err != nil {
			return false, err
		}
	}
	return found, nil
}

// spoof sends a claim for an address; it must reach no pod and change nothing.
func (s *scene) spoof(addr netip.Addr, attack shot) (string, error) {
	evil, friend, victim := s.pods["evil1"], s.pods["friend1"], s.pods["victim1"]
	got, err := s.strike(friend.eth, attack, s.plain(evil, s.pods["open1"]), s.plain(friend, victim), s.honest(s.external, s.pods["open1"]))
	if err != nil || got != dropped || !addr.IsValid() {
		return got, err
	}
	if bad, err := s.poisoned(addr); err != nil || bad {
		return "believed", err
	}
	return dropped, nil
}

func (s *scene) spoofARP(addr netip.Addr) (string, error) {
	evil := s.pods["evil1"]
	all := mac{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	return s.spoof(addr, shot{evil.eth, func(k token) [][]byte {
		ask := append(arp(1, evil.eth.mac, addr, mac{}, addr), k[:]...)
		say := append(arp(2, evil.eth.mac, addr, evil.gateway, s.nodes["n1"].router[0]), k[:]...)
		return [][]byte{ethernet(all, evil.eth.mac, typeARP, ask), ethernet(all, evil.eth.mac, typeARP, say), ethernet(evil.gateway, evil.eth.mac, typeARP, say)}
	}})
}

// discoveryOptions are an option of neighbour discovery (RFC 4861) with the adversary's hardware
// address, and one unknown with the token.
func discoveryOptions(typ byte, hardware mac, k token) []byte {
	b := append([]byte{typ, 1}, hardware[:]...)
	return append(append(append(b, 253, 2), k[:]...), 0, 0)
}

// spoofND sends a message of neighbour discovery: an advertisement of a neighbour (136) or of a
// router (134), to everybody and to one.
func (s *scene) spoofND(typ byte, addr netip.Addr) (string, error) {
	evil, friend := s.pods["evil1"], s.pods["friend1"]
	src := s.is(evil.addr)
	if typ == 134 {
		src = netip.MustParseAddr("fe80::1") // routers speak from such
	}
	return s.spoof(addr, shot{evil.eth, func(k token) (out [][]byte) {
		for _, dst := range []netip.Addr{netip.MustParseAddr("ff02::1"), friend.addr[1]} {
			var body []byte
			word := uint32(0x20000000) // override
			if typ == 136 {
				body = append(addr.AsSlice(), discoveryOptions(2, evil.eth.mac, k)...)
			} else {
				word = 0x40000708
				body = append(make([]byte, 8), discoveryOptions(1, evil.eth.mac, k)...)
			}
			b := header{src: src, dst: dst, proto: protoICMPv6, ttl: 255}.packet(icmpMessage(src, dst, typ, 0, word, body))
			to := evil.gateway
			if dst.IsMulticast() {
				to = mac{0x33, 0x33, 0, 0, 0, 1}
			}
			out = append(out, ethernet(to, evil.eth.mac, typeIPv6, b))
		}
		return out
	}})
}

func (s *scene) redirect() (string, error) {
	evil, open, other := s.pods["evil1"], s.pods["open1"], s.pods["friend1"]
	src, dst := s.is(evil.addr), s.is(open.addr)
	attack := outOf(evil, func(k token) []byte {
		quoted := udpPacket(s.at(open.addr, fromPort), s.at(other.addr, toPort), k[:])
		if s.v6 {
			body := append(append(src.AsSlice(), other.addr[1].AsSlice()...), discoveryOptions(2, evil.eth.mac, k)...)
			return header{src: src, dst: dst, proto: protoICMPv6, ttl: 255}.packet(icmpMessage(src, dst, 137, 0, 0, body))
		}
		return header{src: src, dst: dst, proto: protoICMP}.packet(icmpMessage(src, dst, 5, 1, binary.BigEndian.Uint32(src.AsSlice()), quoted))
	})
	return s.strike(open.eth, attack, s.plain(evil, open))
}

// foreignError informs a sender that what it sends to another does not arrive.
func (s *scene) foreignError(victim string) (string, error) {
	evil, friend := s.pods["evil1"], s.pods[victim]
	peer := s.pods["victim"+friend.node.name[1:]]
	src, dst := s.is(evil.addr), s.is(friend.addr)
	attack := outOf(evil, func(k token) []byte {
		quoted := udpPacket(s.at(friend.addr, fromPort), s.at(peer.addr, toPort), k[:])
		typ, code := byte(3), byte(4) // of a packet that is too large
		word := uint32(576)
		if s.v6 {
			typ, code, word = 2, 0, 1280
		}
		return header{src: src, dst: dst, proto: icmpProto(dst)}.packet(icmpMessage(src, dst, typ, code, word, quoted))
	})
	return s.strike(friend.eth, attack, s.plain(friend, peer), s.plain(evil, friend))
}
