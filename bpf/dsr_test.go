package bpf_test

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/datapath/loader"
)

const (
	gre         = 47
	directPort  = 30080 // where clients outside ask
	backendPort = 8053
	directMTU   = 1500
	remoteNode  = 6 // the identity of other nodes
	routerMAC   = "0a:00:00:00:00:fe"
	clientPort  = 40000
)

// pair is two nodes: asked, which clients outside ask, and serving, which has the backend.
type pair struct {
	asked, serving      *node
	tunnel, v6          bool
	client, at, backend netip.Addr // at is the address that clients ask
	carrier             netip.Addr // whose packets carry others
	sport               uint16     // by which the client asks
	overlay             func(vni uint32, in []byte) result
}

// newPair returns two nodes of which the first leads clients of its port to the other's pod, which
// answers them itself.
func newPair(t *testing.T, tunnel, v6 bool) *pair {
	t.Helper()
	p := &pair{tunnel: tunnel, v6: v6, sport: clientPort, client: w4, at: node4, backend: r4, carrier: node4}
	if tunnel {
		p.carrier = router4
	}
	if v6 {
		p.client, p.at, p.backend, p.carrier = w6, node6, r6, node6
		if tunnel {
			p.carrier = router6
		}
	}
	cfg := testConfig()
	cfg.NodePort, cfg.NativeIfIndex, cfg.NativeMTU, cfg.Tunnel = true, 7, directMTU, tunnel
	if tunnel {
		cfg.TunnelIfIndex, cfg.TunnelPort = 8, 8472
	}
	p.asked = newNode(t, cfg)
	cfg.NodeIPv4, cfg.NodeIPv6 = otherNode, netip.MustParseAddr("fd99::2")
	cfg.RouterIPv4, cfg.RouterIPv6 = netip.MustParseAddr("10.2.0.1"), netip.MustParseAddr("fd00:2::1")
	p.serving = newNode(t, cfg)
	p.serving.must(p.serving.maps.DeleteIPCache([]netip.Prefix{netip.PrefixFrom(r4, 32), netip.PrefixFrom(r6, 128)}))
	b := &p.serving.b
	b.IPv4, b.IPv6, b.Identity = r4, r6, idR
	p.serving.upsert(*b)
	p.serving.rules(setB, allow(in, 2, 0, 0))
	p.serving.know(node4, node6)
	if !tunnel {
		p.asked.must(p.asked.maps.UpsertIPCache([]datapath.IPCacheEntry{{Prefix: netip.PrefixFrom(r4, 32), Identity: idR}, {Prefix: netip.PrefixFrom(r6, 128), Identity: idR}}))
	}
	for _, proto := range []uint8{tcp, udp, sctp} {
		to := p.to(proto)
		p.asked.must(p.asked.maps.UpsertService(datapath.Service{
			ServiceFrontend: datapath.ServiceFrontend{Addr: netip.AddrPortFrom(p.at, directPort), Proto: proto, Scope: datapath.ServiceExternal},
			ID:              7, Backends: []netip.AddrPort{to}, DSR: true,
		}))
		p.publish(proto)
	}
	spec, err := loadOverlayTest()
	program := p.serving.testObject(spec, err, "overlay_with_vni", func(c *overlayTestConfig) {
		c.NodePort, c.NativeIfindex = 1, 7
		c.Router4.B, c.Router6.B, c.Node4.B, c.Node6.B = cfg.RouterIPv4.As16(), cfg.RouterIPv6.As16(), cfg.NodeIPv4.As16(), cfg.NodeIPv6.As16()
	})
	p.overlay = func(vni uint32, in []byte) result { return p.serving.run(program, p.serving.ifA, vni, in) }
	return p
}

// know has the node know the addresses of another.
func (n *node) know(addrs ...netip.Addr) {
	n.t.Helper()
	for _, a := range addrs {
		n.must(n.maps.UpsertIPCache([]datapath.IPCacheEntry{{Prefix: netip.PrefixFrom(a, a.BitLen()), Identity: remoteNode}}))
		n.must(n.maps.UpsertTunnelPeers([]datapath.TunnelPeer{{Addr: a, Node: 3, First: 256, Last: 65535, Own: true}}))
	}
}

// publish has the serving node know the port as that of any other node.
func (p *pair) publish(proto uint8) {
	anyone := netip.IPv4Unspecified()
	if p.v6 {
		anyone = netip.IPv6Unspecified()
	}
	p.serving.must(p.serving.maps.UpsertService(datapath.Service{
		ServiceFrontend: datapath.ServiceFrontend{Addr: netip.AddrPortFrom(anyone, directPort), Proto: proto, Scope: datapath.ServiceRemoteNode},
		ID:              7, Backends: []netip.AddrPort{p.to(proto)},
	}))
}

// to is the backend. SCTP has no port translated.
func (p *pair) to(proto uint8) netip.AddrPort {
	if proto == sctp {
		return netip.AddrPortFrom(p.backend, directPort)
	}
	return netip.AddrPortFrom(p.backend, backendPort)
}

func (p *pair) ask(in []byte) result {
	p.asked.t.Helper()
	return p.asked.run(p.asked.loader.Program(loader.FromNetdev), p.asked.ifA, 0, in)
}

// arrive puts a packet that the asked node has sent on into the serving node.
func (p *pair) arrive(in []byte, vni uint32) result {
	p.serving.t.Helper()
	if p.tunnel {
		return p.overlay(vni, in)
	}
	return p.serving.run(p.serving.loader.Program(loader.FromNetdev), p.serving.ifA, 0, in)
}

// carried returns the packet that carries another from a node to the backend.
func (p *pair) carried(inner []byte, from netip.Addr, sport uint16, proto uint8) []byte {
	f := frame{ethDst: p.asked.macA(), ethSrc: mac(routerMAC), src: from, dst: p.backend, proto: gre, payload: inner[14:]}
	out := f.bytes()
	l4, kind := 14+20, uint16(0x0800)
	if p.v6 {
		l4, kind = 14+40, 0x86dd
	} else {
		out[14+6] = 0x40
		out[14+10], out[14+11] = 0, 0
		binary.BigEndian.PutUint16(out[14+10:], ^checksum(out[14:14+20]))
	}
	binary.BigEndian.PutUint16(out[l4:], 0x2000)
	binary.BigEndian.PutUint16(out[l4+2:], kind)
	binary.BigEndian.PutUint16(out[l4+4:], p.to(proto).Port())
	binary.BigEndian.PutUint16(out[l4+6:], sport)
	return out
}

// request is a packet of the client.
func (p *pair) request(proto uint8) frame {
	return frame{ethDst: p.asked.macA(), ethSrc: mac(routerMAC), src: p.client, dst: p.at, proto: proto, sport: p.sport, dport: directPort, tcpFlags: syn}
}

func (n *node) same(what string, got, want []byte) {
	n.t.Helper()
	if !bytes.Equal(got, want) {
		n.t.Fatalf("%s:\n%x, want\n%x", what, got, want)
	}
}

// TestDirect: clients outside are answered by the node of the backend, in both modes of routing.
func TestDirect(t *testing.T) {
	for name, tunnel := range map[string]bool{"tunnel": true, "native": false} {
		for family, v6 := range map[string]bool{"ipv4": false, "ipv6": true} {
			t.Run(name+" "+family, func(t *testing.T) {
				t.Parallel()
				p := newPair(t, tunnel, v6)
				testDirectFlow(t, p)
				testDirectNamed(t, p)
				testDirectErrors(t, p)
				testDirectRefused(t, p)
				testDirectFallback(t, p)
			})
		}
	}
}

// testDirectFlow: what a client asks one node goes, as it came, within a packet to the node of the
// backend, which gives it to the backend in the client's name and answers in the frontend's; the
// rest of the flow goes plainly.
func testDirectFlow(t *testing.T, p *pair) {
	t.Helper()
	p.sport += 100
	for _, proto := range []uint8{tcp, udp, sctp} {
		f := p.request(proto)
		first := withChecksum(f.bytes())
		got := p.asked.expect("asked", redirected(in), func() result { return p.ask(first) })
		p.asked.same("sent on", got.out, p.carried(first, p.carrier, p.sport, proto))
		got = p.serving.expect("arrives", delivered(), func() result { return p.arrive(got.out, remoteNode) })
		want := f
		want.dst, want.dport, want.ethSrc, want.ethDst, want.ttl = p.backend, p.to(proto).Port(), bHost, bMAC, 63
		p.serving.same("the backend gets", got.out, withChecksum(want.bytes()))

		reply := want.reply()
		reply.ethSrc, reply.ethDst, reply.ttl = bMAC, bHost, 64
		got = p.serving.expect("answer", redirected(out), func() result { return p.serving.fromBBytes(withChecksum(reply.bytes())) })
		answer := f.reply()
		answer.ethSrc, answer.ethDst, answer.ttl = bMAC, bHost, 63
		p.serving.same("the client gets", got.out, withChecksum(answer.bytes()))

		// A connection under way is sent on plainly; of the rest each packet carries the address.
		f.tcpFlags, f.payload = ack, []byte("question")
		next := withChecksum(f.bytes())
		got = p.asked.expect("goes on", redirected(in), func() result { return p.ask(next) })
		plain := f
		plain.dst, plain.dport = p.backend, p.to(proto).Port()
		plain.ttl = 64
		if !p.tunnel {
			plain.ttl = 63
		}
		vni := uint32(remoteNode)
		if proto == tcp {
			vni = 2
			p.asked.same("sent on plainly", got.out, withChecksum(plain.bytes()))
		} else {
			plain.ttl = 64
			p.asked.same("sent on again", got.out, p.carried(next, p.carrier, p.sport, proto))
		}
		want.tcpFlags, want.payload, want.ttl = ack, f.payload, plain.ttl-1
		got = p.serving.expect("arrives too", delivered(), func() result { return p.arrive(got.out, vni) })
		p.serving.same("the backend gets that too", got.out, withChecksum(want.bytes()))
	}
	for _, n := range []*node{p.asked, p.serving} {
		for _, e := range n.flows() {
			if !e.DSR || e.Service != netip.AddrPortFrom(p.at, directPort) || e.Src != netip.AddrPortFrom(p.client, p.sport) || e.SrcIdentity != 2 ||
				(e.Proto == tcp && !e.SeenReply) || e.ForwardPackets != 2 {
				t.Errorf("flow %+v", e)
			}
		}
	}
}

// testDirectNamed: a client whom rules name by a prefix, on the node that was asked, on that of the
// backend or on both, is answered directly as any other, and evaluated by what the prefix may.
func testDirectNamed(t *testing.T, p *pair) {
	t.Helper()
	const world, named = 2, 1<<24 + 5
	prefix, _ := p.client.Prefix(p.client.BitLen() - 8)
	admit := func(identity uint32) {
		p.serving.rules(setB, allow(in, identity, 0, 0))
		p.serving.b.PolicyGeneration++
		p.serving.upsert(p.serving.b)
	}
	for what, nodes := range map[string][]*node{"where it asks": {p.asked}, "at the backend": {p.serving}, "on both": {p.asked, p.serving}} {
		p.sport += 100
		identity := uint32(world)
		for _, n := range nodes {
			n.must(n.maps.UpsertIPCache([]datapath.IPCacheEntry{{Prefix: prefix, Identity: named}}))
			if n == p.serving {
				identity = named
			}
		}
		admit(identity)
		for _, proto := range []uint8{tcp, udp} {
			f := p.request(proto)
			first := withChecksum(f.bytes())
			got := p.asked.expect("asked, named "+what, redirected(in), func() result { return p.ask(first) })
			p.asked.same("sent on, named "+what, got.out, p.carried(first, p.carrier, p.sport, proto))
			p.serving.expect("arrives, named "+what, delivered(), func() result { return p.arrive(got.out, remoteNode) })
			f.tcpFlags = ack
			vni := uint32(remoteNode)
			if proto == tcp {
				vni = world
			}
			next := withChecksum(f.bytes())
			got = p.asked.expect("goes on, named "+what, redirected(in), func() result { return p.ask(next) })
			p.serving.expect("arrives too, named "+what, delivered(), func() result { return p.arrive(got.out, vni) })
		}
		for _, n := range nodes {
			n.must(n.maps.DeleteIPCache([]netip.Prefix{prefix}))
		}
	}
	admit(world)
}

// testDirectRefused: only nodes can have a pod answer in the name of others, and only in that of
// services.
func testDirectRefused(t *testing.T, p *pair) {
	t.Helper()
	p.sport += 100
	n := p.serving
	f := p.request(tcp)
	from := func(inner frame, carrier netip.Addr) []byte {
		return p.carried(withChecksum(inner.bytes()), carrier, inner.sport, tcp)
	}
	drop := func(what string, reason datapath.DropReason, vni uint32, in []byte) {
		t.Helper()
		n.expect(what, dropped(reason, 0), func() result { return p.arrive(in, vni) })
	}
	if p.tunnel {
		drop("a pod of another node", datapath.ReasonUnknownL4, idR, from(f, p.carrier))
		drop("the world", datapath.ReasonUnknownL4, 2, from(f, p.client))
	} else {
		// The stack delivers it, if at all, and then to_pod does not understand it.
		n.expect("who is no node", passes(in), func() result { return p.arrive(from(f, p.client), 0) })
		f := frame{src: p.client, dst: p.backend, proto: gre}
		f.ethSrc, f.ethDst = bHost, bMAC
		n.expect("who is no node, at the pod", dropped(datapath.ReasonUnknownL4, in), func() result {
			return n.run(n.loader.Program(loader.ToPod), n.ifB, 0, f.bytes())
		})
	}
	other := f
	other.dport++
	drop("of no service", datapath.ReasonNoBackend, remoteNode, from(other, p.carrier))
	other = f
	other.dst = p.client
	drop("of no node", datapath.ReasonNoBackend, remoteNode, from(other, p.carrier))
	for what, a := range map[string][2]netip.Addr{"a node": {node4, node6}, "a pod of the node": {a4, a6}, "the node itself": {n.nodeAddrs()[0], n.nodeAddrs()[1]}} {
		other = f
		if other.src = a[0]; p.v6 {
			other.src = a[1]
		}
		drop("in the name of "+what, datapath.ReasonInvalidSourceIP, remoteNode, from(other, p.carrier))
	}
	broken := from(f, p.carrier)
	l4 := 14 + 20
	if p.v6 {
		l4 = 14 + 40
	}
	broken[l4] = 0x30 // a sequence number, too
	drop("another form", datapath.ReasonUnknownL4, remoteNode, broken)
	broken = from(f, p.carrier)
	broken[l4+3]++
	drop("of another kind", datapath.ReasonUnknownL4, remoteNode, broken)
	within := f
	within.more, within.fragID = true, 5
	drop("a fragment", datapath.ReasonUnknownL4, remoteNode, p.carried(within.bytes(), p.carrier, p.sport, tcp))
	n.rules(setB, allow(in, remoteNode, 0, 0))
	drop("for nodes only", datapath.ReasonPolicyDenied, remoteNode, from(f, p.carrier))
	n.rules(setB, allow(in, 2, 0, 0))
	n.b.PolicyGeneration++
	n.upsert(n.b)
	n.expect("the client", delivered(), func() result { return p.arrive(from(f, p.carrier), remoteNode) })
	n.expect("the client again", delivered(), func() result { return p.arrive(from(f, p.carrier), remoteNode) })

	// The same client, by another node: its plain packets would be those of the first.
	other = f
	other.dst = netip.MustParseAddr("192.168.0.3")
	if p.v6 {
		other.dst = netip.MustParseAddr("fd99::3")
	}
	n.know(other.dst)
	drop("a second flow of the same ends", datapath.ReasonNoPort, remoteNode, from(other, p.carrier))
	other.sport++
	n.expect("one of another port", delivered(), func() result { return p.arrive(from(other, p.carrier), remoteNode) })
	// A port may be replaced on the way, and answers go to the client's own.
	other.sport++
	got := n.expect("with a port replaced", delivered(), func() result {
		return p.arrive(p.carried(withChecksum(other.bytes()), p.carrier, 50000, tcp), remoteNode)
	})
	want := other
	want.sport, want.dst, want.dport, want.ethSrc, want.ethDst, want.ttl = 50000, p.backend, backendPort, bHost, bMAC, 63
	n.same("the backend gets", got.out, withChecksum(want.bytes()))
	reply := want.reply()
	reply.ethSrc, reply.ethDst, reply.ttl = bMAC, bHost, 64
	got = n.expect("answer", redirected(out), func() result { return n.fromBBytes(withChecksum(reply.bytes())) })
	answer := other.reply()
	answer.ethSrc, answer.ethDst, answer.ttl = bMAC, bHost, 63
	n.same("the client gets", got.out, withChecksum(answer.bytes()))
}

// nodeAddrs returns the serving node's addresses towards others.
func (n *node) nodeAddrs() [2]netip.Addr {
	return [2]netip.Addr{otherNode, netip.MustParseAddr("fd99::2")}
}

// testDirectFallback: a flow whose first packet cannot carry the address is sent on in the node's
// name, for good, and so is one of a client who is a node; one whose packet has carried it stays as
// it is.
func testDirectFallback(t *testing.T, p *pair) {
	t.Helper()
	p.sport += 100
	room := directMTU - 20 - 8 // for UDP's data, in IPv4
	if p.v6 {
		room -= 20
	}
	carrierRoom := 8 + 20
	if p.v6 {
		carrierRoom = 8 + 40
	}
	src := func(b []byte) netip.Addr {
		if p.v6 {
			return netip.AddrFrom16([16]byte(b[14+8 : 14+24]))
		}
		return netip.AddrFrom4([4]byte(b[14+12 : 14+16]))
	}
	proto := func(b []byte) uint8 {
		if p.v6 {
			return b[14+6]
		}
		return b[14+9]
	}
	send := func(what string, f frame, wantProto uint8, wantSrc netip.Addr) {
		t.Helper()
		got := p.asked.expect(what, redirected(in), func() result { return p.ask(f.bytes()) })
		if proto(got.out) != wantProto || src(got.out) != wantSrc {
			t.Errorf("%s: sent on as protocol %d from %s, want %d from %s", what, proto(got.out), src(got.out), wantProto, wantSrc)
		}
	}
	large, small := p.request(udp), p.request(udp)
	large.payload, small.payload = make([]byte, room), make([]byte, room-carrierRoom)
	if p.tunnel {
		send("a large datagram in the tunnel", large, gre, p.carrier)
	} else {
		send("a large datagram", large, udp, p.carrier)
		send("a small one after it", small, udp, p.carrier)
		large.sport, small.sport = 4000, 4000
		send("a small one", small, gre, p.carrier)
		send("a large one after it", large, udp, p.client)
		one := small
		one.payload, one.sport = make([]byte, room-carrierRoom+1), 4001
		send("one byte too many", one, udp, p.carrier)
	}
	part, whole := p.request(udp), p.request(udp)
	part.more, part.fragID, part.payload, part.sport, whole.sport = true, 77, make([]byte, 64), 4002, 4002
	if !p.v6 { // the fragment header stands where the protocol is looked for
		send("a part of a datagram", part, udp, p.carrier)
		send("a whole one after it", whole, udp, p.carrier)
		part.sport, whole.sport = 4003, 4003
		send("a whole one", whole, gre, p.carrier)
		send("a part after it", part, udp, p.client)
	}
	// In the middle of a connection the other node knows the flow; what has room carries it
	// nevertheless.
	seg := p.request(tcp)
	seg.tcpFlags, seg.sport = ack, 4004
	send("a connection that came by another node", seg, gre, p.carrier)
	seg.sport, seg.payload = 4005, make([]byte, room-12)
	if !p.tunnel {
		send("a full segment of such a one", seg, tcp, p.client)
	}
	// Nodes, and backends of whom nothing is known, as ever.
	p.asked.know(p.client)
	f := p.request(udp)
	f.sport = 4006
	send("a node as client", f, udp, p.carrier)
	p.asked.must(p.asked.maps.DeleteIPCache([]netip.Prefix{netip.PrefixFrom(p.client, p.client.BitLen()), netip.PrefixFrom(p.backend, p.backend.BitLen())}))
	f.sport = 4007
	at := p.at
	send("a backend out there", f, udp, at)
}

// testDirectErrors: what the client, or a router on the way to it, has to say of an answer comes to
// the node that was asked, and goes on to the backend as if about what that has sent.
func testDirectErrors(t *testing.T, p *pair) {
	t.Helper()
	p.sport += 100
	f := p.request(udp)
	first := withChecksum(f.bytes())
	got := p.asked.expect("asked", redirected(in), func() result { return p.ask(first) })
	p.serving.expect("arrives", delivered(), func() result { return p.arrive(got.out, remoteNode) })
	proto, kind := uint8(icmp), uint8(3)
	if p.v6 {
		proto, kind = icmp6, 2
	}
	answer := f.reply()
	router := netip.MustParseAddr("9.9.9.9")
	if p.v6 {
		router = netip.MustParseAddr("2607::9")
	}
	quotes := map[string]func(frame) []byte{"whole": inner}
	if p.v6 {
		quotes["in pieces"] = func(f frame) []byte {
			f.more, f.fragID = true, 9
			return f.network()[:40+8+8]
		}
		quotes["with options"] = func(f frame) []byte {
			f.ext = append([]byte{0, 60, 0, 1, 4, 0, 0, 0, 0}, 0, 0, 1, 4, 0, 0, 0, 0)
			return f.network()[:40+8+8+8]
		}
	}
	for what, quote := range quotes {
		report := frame{ethDst: p.asked.macA(), ethSrc: mac(routerMAC), src: router, dst: p.at, proto: proto, icmpType: kind, payload: quote(answer)}
		got = p.asked.expect("a router's error, sent "+what, redirected(in), func() result { return p.ask(withChecksum(report.bytes())) })
		if p.tunnel {
			got = p.serving.expect("at the backend's node, sent "+what, delivered(), func() result { return p.arrive(got.out, 2) })
		} else {
			// The network leads it to the stack, which leads it to the pod.
			in := got.out
			got = p.serving.expect("at the backend's node, sent "+what, passes(datapath.Ingress), func() result {
				return p.serving.run(p.serving.loader.Program(loader.ToPod), p.serving.ifB, 0, in)
			})
		}
		about := answer
		about.src, about.sport = p.backend, backendPort
		if !bytes.Contains(got.out, quote(about)) {
			t.Errorf("sent %s the backend gets\n%x, want\n%x", what, got.out, quote(about))
		}
		if sum := withChecksum(got.out); p.v6 && !bytes.Equal(sum, got.out) {
			t.Errorf("sent %s the backend gets a wrong checksum:\n%x, want\n%x", what, got.out, sum)
		}
	}
}
