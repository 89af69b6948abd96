package bpf_test

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/datapath/loader"
)

// nativeIf is the device towards other nodes in these tests, hostIf the node's own, and otherIf
// one towards another destination.
const nativeIf, otherIf, hostIf = 7, 9, 10

// unrouted is added to the interface that a packet came in by if this node's stack has not routed
// it.
const unrouted = 1 << 16

func tunnelConfig(nodePort bool) datapath.Config {
	cfg := testConfig()
	cfg.Tunnel, cfg.TunnelIfIndex, cfg.TunnelPort, cfg.NativeIfIndex, cfg.NodePort = true, 8, tunnelPort, nativeIf, nodePort
	return cfg
}

func nativeConfig(nodePort bool) datapath.Config {
	cfg := testConfig()
	cfg.NativeIfIndex, cfg.NativeMTU, cfg.NodePort = nativeIf, 1500, nodePort
	return cfg
}

// toNetdev returns the program where the node's packets leave, with the settings of tunnelConfig or
// nativeConfig.
func (n *node) toNetdev(tunnel, nodePort bool) *ebpf.Program {
	n.t.Helper()
	spec, err := loadNetdevTest()
	return n.testObject(spec, err, "to_netdev", func(c *overlayTestConfig) {
		c.NativeIfindex = nativeIf
		if nodePort {
			c.NodePort = 1
		}
		if !tunnel {
			c.Tunnel, c.TunnelIfindex, c.TunnelPort = 0, 0, 0
		}
	})
}

// others are addresses of other nodes: outside, in the network of pods, and of one of another
// cluster.
func others(v6 bool) (node, routerOf, foreign netip.Addr) {
	if v6 {
		return netip.MustParseAddr("fd99::2"), netip.MustParseAddr("fd00:2::1"), netip.MustParseAddr("fd98::3")
	}
	return otherNode, netip.MustParseAddr("10.2.0.1"), netip.MustParseAddr("192.168.9.3")
}

// TestTunnelFromPod: what a node takes apart as another node's never comes from a pod, wherever it
// is sent and however; pods may send each other whatever they like.
func TestTunnelFromPod(t *testing.T) {
	families(t, func(t *testing.T, v6 bool, a, b, r, w, router netip.Addr) {
		nodeAddr, foreignID := node4, uint32(remoteNode)
		if v6 {
			nodeAddr = node6
		}
		other, otherRouter, foreign := others(v6)
		for _, nodePort := range []bool{false, true} {
			n := newNode(t, tunnelConfig(nodePort))
			n.allowAll()
			n.must(n.maps.UpsertIPCache([]datapath.IPCacheEntry{
				{Prefix: netip.PrefixFrom(other, other.BitLen()), Identity: remoteNode},
				{Prefix: netip.PrefixFrom(otherRouter, otherRouter.BitLen()), Identity: remoteNode, TunnelEndpoint: otherNode},
				{Prefix: netip.PrefixFrom(foreign, foreign.BitLen()), Identity: foreignID},
			}))
			refused := dropped(datapath.ReasonTunnelNotFromNode, out)
			for _, to := range []struct {
				name string
				addr netip.Addr
			}{{"router", router}, {"node", nodeAddr}, {"other node", other}, {"other node's router", otherRouter}, {"another cluster's node", foreign}, {"world", w}} {
				f := frame{src: a, dst: to.addr, proto: udp, sport: 40000, dport: tunnelPort, payload: make([]byte, 64)}
				n.expect(to.name, refused, func() result { return n.fromA(f) })
				g := f
				g.options, g.atomic = 8, v6
				if v6 {
					g.ext = []byte{60, 0, 0, 1, 4, 0, 0, 0, 0}
				}
				n.expect(to.name+" behind other headers", refused, func() result { return n.fromA(g) })
				g = f
				g.more, g.fragID = true, 9
				n.expect(to.name+" in a fragment", refused, func() result { return n.fromA(g) })
				later := g
				later.more, later.fragOffset = false, 64
				n.expect(to.name+" in the fragment after", refused, func() result { return n.fromA(later) })
				later.fragID = 10
				n.expect(to.name+" in a fragment alone", dropped(datapath.ReasonFragmentUnknown, out), func() result { return n.fromA(later) })
				g = f
				g.proto, g.payload = gre, []byte{0x20, 0, 8, 0, 1, 2, 3, 4}
				n.expect(to.name+" by GRE", refused, func() result { return n.fromA(g) })
				g.more, g.fragID = true, 11
				n.expect(to.name+" by GRE in a fragment", refused, func() result { return n.fromA(g) })
				g.more, g.fragOffset = false, 64
				n.expect(to.name+" by GRE in the fragment after", refused, func() result { return n.fromA(g) })
				f.dport++
				n.expect(to.name+" at another port", want{map[bool]uint32{false: actOK, true: actRedirect}[to.addr == otherRouter], 0, out}, func() result { return n.fromA(f) })
			}
			f := frame{src: a, dst: b, proto: udp, sport: 40000, dport: tunnelPort}
			n.expect("a pod here", delivered(), func() result { return n.fromA(f) })
			f.dst = r
			n.expect("a pod elsewhere", redirected(out), func() result { return n.fromA(f) })
			if !nodePort {
				continue
			}
			// Whoever writes a service chooses its backends.
			vip := netip.MustParseAddr("10.96.0.1")
			if v6 {
				vip = netip.MustParseAddr("fd96::1")
			}
			for i, backend := range []netip.Addr{nodeAddr, router, other, otherRouter, foreign} {
				front := netip.AddrPortFrom(vip, uint16(1000+i))
				n.must(n.maps.UpsertService(datapath.Service{ServiceFrontend: datapath.ServiceFrontend{Addr: front, Proto: udp}, ID: uint32(100 + i),
					Backends: []netip.AddrPort{netip.AddrPortFrom(backend, tunnelPort)}}))
				f := frame{src: a, dst: vip, proto: udp, sport: 40001, dport: front.Port()}
				n.expect(fmt.Sprintf("through a service to %s", backend), refused, func() result { return n.fromA(f) })
			}
		}
		n := newNode(t, nativeConfig(true))
		n.allowAll()
		f := frame{src: a, dst: w, proto: gre}
		n.expect("GRE without a tunnel", dropped(datapath.ReasonTunnelNotFromNode, out), func() result { return n.fromA(f) })
	})
}

// TestTunnelThroughNodePort: a client outside does not get at a node's tunnel through a service
// whose backend is there, nor have answers sent there.
func TestTunnelThroughNodePort(t *testing.T) {
	families(t, func(t *testing.T, v6 bool, a, b, r, w, router netip.Addr) {
		n := newNode(t, tunnelConfig(true))
		n.allowAll()
		at := node4
		if v6 {
			at = node6
		}
		other, otherRouter, _ := others(v6)
		n.must(n.maps.UpsertIPCache([]datapath.IPCacheEntry{
			{Prefix: netip.PrefixFrom(other, other.BitLen()), Identity: remoteNode},
			{Prefix: netip.PrefixFrom(otherRouter, otherRouter.BitLen()), Identity: remoteNode, TunnelEndpoint: otherNode},
		}))
		open := func(port uint16, backend netip.AddrPort) {
			n.must(n.maps.UpsertService(datapath.Service{ServiceFrontend: datapath.ServiceFrontend{Addr: netip.AddrPortFrom(at, port), Proto: udp, Scope: datapath.ServiceExternal},
				ID: uint32(port), Backends: []netip.AddrPort{backend}}))
		}
		ask := func(f frame) func() result {
			f.ethDst, f.ethSrc = n.macA(), bMAC
			return func() result { return n.run(n.loader.Program(loader.FromNetdev), n.ifA, 0, f.bytes()) }
		}
		for i, backend := range []netip.Addr{at, router, other, otherRouter, w} {
			port := uint16(30001 + i)
			open(port, netip.AddrPortFrom(backend, tunnelPort))
			n.expect(fmt.Sprintf("backend %s", backend), dropped(datapath.ReasonTunnelNotFromNode, in), ask(frame{src: w, dst: at, proto: udp, sport: 40000, dport: port}))
		}
		open(30100, netip.AddrPortFrom(a, 53))
		f := frame{src: other, dst: at, proto: udp, sport: tunnelPort, dport: 30100}
		n.expect("a question", delivered(), ask(f))
		g := frame{src: a, dst: other, proto: udp, sport: 53, dport: tunnelPort}
		n.expect("its answer to the tunnel", dropped(datapath.ReasonTunnelNotFromNode, out), func() result { return n.fromA(g) })
	})
}

// TestTunnelPeers: the overlay takes packets of known nodes only, by either family, and each only
// with what it may say.
func TestTunnelPeers(t *testing.T) {
	families(t, func(t *testing.T, v6 bool, a, b, r, w, router netip.Addr) {
		n := newNode(t, tunnelConfig(true))
		n.allowAll()
		spec, err := loadOverlayTest()
		p := n.testObject(spec, err, "overlay_with_vni", func(c *overlayTestConfig) { c.NodePort = 1 })
		other6, otherRouter, foreign := others(true)
		_, otherRouter4, _ := others(false)
		if !v6 {
			otherRouter = otherRouter4
		}
		third, foreign4 := netip.MustParseAddr("192.168.0.3"), netip.MustParseAddr("192.168.9.3")
		n.must(n.maps.UpsertTunnelPeers([]datapath.TunnelPeer{
			{Addr: other6, Node: 2, First: 256, Last: 65535, Own: true},
			{Addr: third, Node: 3, First: 256, Last: 65535, Own: true},
			{Addr: foreign4, Node: 4, First: 5 << 16, Last: 6<<16 - 1},
			{Addr: foreign, Node: 4, First: 5 << 16, Last: 6<<16 - 1},
		}))
		theirs := netip.MustParseAddr("10.50.0.5")
		api := netip.MustParseAddr("10.2.0.7") // an address of the other node's that is more than a node's
		if v6 {
			theirs, api = netip.MustParseAddr("fd50::5"), netip.MustParseAddr("fd00:2::7")
		}
		n.must(n.maps.UpsertIPCache([]datapath.IPCacheEntry{
			{Prefix: netip.PrefixFrom(theirs, theirs.BitLen()), Identity: 5<<16 + 1, TunnelEndpoint: foreign4},
			{Prefix: netip.PrefixFrom(otherRouter, otherRouter.BitLen()), Identity: remoteNode, TunnelEndpoint: otherNode},
			{Prefix: netip.PrefixFrom(api, api.BitLen()), Identity: 7, TunnelEndpoint: otherNode},
			{Prefix: netip.PrefixFrom(netip.MustParseAddr("172.17.0.1"), 32), Identity: 1},
			{Prefix: netip.PrefixFrom(netip.MustParseAddr("fd17::1"), 128), Identity: 1},
		}))
		docker := netip.MustParseAddr("172.17.0.1")
		if v6 {
			docker = netip.MustParseAddr("fd17::1")
		}
		send := func(outer netip.Addr, vni uint32, f frame) func() result {
			f.ethSrc, f.ethDst = bMAC, bHost
			ctx := skbContext{IfIndex: uint32(n.ifA), Mark: vni}
			ctx.tunnelledFrom(outer)
			return func() result { return n.runAs(p, ctx, f.bytes()) }
		}
		unknown, lied, wrong := dropped(datapath.ReasonUnknownTunnelPeer, in), dropped(datapath.ReasonInvalidIdentity, in), dropped(datapath.ReasonInvalidSourceIP, in)
		sport := uint16(1000)
		for _, row := range []struct {
			name  string
			outer netip.Addr
			vni   uint32
			src   netip.Addr
			want  want
		}{
			{"a pod of a known node", otherNode, idR, r, delivered()},
			{"by the node's other address", other6, idR, r, delivered()},
			{"an address that is not known yet", otherNode, idR, w, delivered()},
			{"from a machine that is no node", netip.MustParseAddr("192.168.0.77"), idR, r, unknown},
			{"from one by IPv6", netip.MustParseAddr("fd99::77"), idR, r, unknown},
			{"from a pod", a4, idR, r, unknown},
			{"from this node", node4, idR, r, unknown},
			{"a pod behind another node", third, idR, r, wrong},
			{"another node's router", third, remoteNode, otherRouter, wrong},
			{"a pod of this node", otherNode, idB, b, wrong},
			{"this node", otherNode, remoteNode, router, wrong},
			{"this node by another address", otherNode, remoteNode, docker, wrong},
			{"another cluster's number from this one's", otherNode, 5<<16 + 1, w, lied},
			{"another cluster's pod", foreign4, 5<<16 + 1, theirs, delivered()},
			{"by its node's other address", foreign, 5<<16 + 1, theirs, delivered()},
			{"this cluster's number from another", foreign4, idR, theirs, lied},
			{"a third cluster's", foreign4, 6 << 16, theirs, lied},
			{"what is known without allocation, from another cluster", foreign4, 104, theirs, lied},
			{"the API server from another cluster", foreign4, 7, theirs, lied},
			{"a pod of this cluster from another", foreign4, 5<<16 + 1, r, wrong},
			{"a number of this node's only", otherNode, 1 << 24, r, lied},
			{"the unknown identity", otherNode, 0, r, lied},
		} {
			sport++
			n.expect(row.name, row.want, send(row.outer, row.vni, frame{src: row.src, dst: a, proto: udp, sport: sport, dport: 2}))
		}
		// Who is more than a node is so by an address that is the sender's.
		n.rules(setA, allow(in, 7, 0, 0))
		n.a.PolicyGeneration++
		n.upsert(n.a)
		n.expect("the API server's node", delivered(), send(other6, remoteNode, frame{src: api, dst: a, proto: udp, sport: 1, dport: 2}))
		n.must(n.maps.UpsertIPCache([]datapath.IPCacheEntry{{Prefix: netip.PrefixFrom(api, api.BitLen()), Identity: 7}}))
		n.expect("one who claims to be it", dropped(datapath.ReasonPolicyDenied, in), send(third, remoteNode, frame{src: api, dst: a, proto: udp, sport: 2, dport: 2}))

		// Nothing goes into the tunnel twice.
		nested := dropped(datapath.ReasonTunnelNotFromNode, in)
		f := frame{src: r, dst: router, proto: udp, sport: 1, dport: tunnelPort, payload: make([]byte, 64)}
		n.expect("for the tunnel again", nested, send(otherNode, idR, f))
		g := f
		g.more, g.fragID = true, 5
		n.expect("in a fragment", nested, send(otherNode, idR, g))
		g.more, g.fragOffset = false, 64
		n.expect("in the fragment after", nested, send(otherNode, idR, g))
		g.fragID = 6
		n.expect("in a fragment alone", dropped(datapath.ReasonFragmentUnknown, in), send(otherNode, idR, g))
		f.proto = gre
		n.expect("GRE for the node", nested, send(otherNode, remoteNode, f))
		f.proto, f.dport = udp, 53
		n.expect("something else for the node", passes(in), send(otherNode, idR, f))
	})
}

// TestStackSource: who sent what the stack hands to a pod, or wants sent to another node, by where
// it came in.
func TestStackSource(t *testing.T) {
	families(t, func(t *testing.T, v6 bool, a, b, r, w, router netip.Addr) {
		nodeAddr, docker, linkLocal := node4, netip.MustParseAddr("172.17.0.1"), netip.Addr{}
		if v6 {
			nodeAddr, docker, linkLocal = node6, netip.MustParseAddr("fd17::1"), netip.MustParseAddr("fe80::7")
		}
		other, _, _ := others(v6)
		const unknown, cidr = 0, 1<<24 + 5
		for name, cfg := range map[string]datapath.Config{
			"tunnel": tunnelConfig(false), "tunnel and services": tunnelConfig(true), "native": nativeConfig(false), "native and services": nativeConfig(true),
		} {
			cfg.HostIfIndex = hostIf
			n := newNode(t, cfg)
			block := netip.MustParseAddr("1.2.3.4")
			if v6 {
				block = netip.MustParseAddr("2607::1")
			}
			entries := []datapath.IPCacheEntry{
				{Prefix: netip.PrefixFrom(docker, docker.BitLen()), Identity: 1},
				{Prefix: netip.PrefixFrom(other, other.BitLen()), Identity: remoteNode},
				{Prefix: netip.PrefixFrom(block, block.BitLen()), Identity: cidr},
			}
			if !cfg.Tunnel {
				entries = append(entries, datapath.IPCacheEntry{Prefix: netip.PrefixFrom(r, r.BitLen()), Identity: idR})
			}
			n.must(n.maps.UpsertIPCache(entries))
			remotePod := uint32(idR)
			if cfg.Tunnel {
				remotePod = unknown
			}
			for i, row := range []struct {
				what     string
				src      netip.Addr
				by       int
				identity uint32 // unknown: dropped
			}{
				{"the node itself", router, 0, 1},
				{"the node itself by its other address", nodeAddr, 0, 1},
				{"the node itself by yet another", docker, 0, 1},
				{"the node's address from the network", nodeAddr, nativeIf, 2},
				{"the router's from the network", router, nativeIf, 2},
				{"another of the node's from the network", docker, nativeIf, 2},
				{"the router's from a bridge", router, otherIf, 2},
				{"sent on for a pod in the node's name", nodeAddr, n.ifB, idB},
				{"led back to the pod itself in the node's name", nodeAddr, n.ifA, 1},
				{"a local pod by the stack", b, n.ifB, idB},
				{"a local pod from the network", b, nativeIf, unknown},
				{"a local pod from a bridge", b, otherIf, unknown},
				{"a local pod by another's interface", b, n.ifA, unknown},
				{"a local pod from the node", b, 0, unknown},
				{"the pod itself from the network", a, nativeIf, unknown},
				{"a remote pod from the network", r, nativeIf, remotePod},
				{"a remote pod from a bridge", r, otherIf, unknown},
				{"a remote pod from the node", r, 0, unknown},
				{"a remote node from the node", other, 0, remoteNode},
				{"a remote node from the network", other, nativeIf, remoteNode},
				{"a remote node from a bridge", other, otherIf, 2},
				{"the world from the network", w, nativeIf, 2},
				{"the world from a bridge", w, otherIf, 2},
				{"an address that rules name, from a bridge", block, otherIf, cidr},
				{"a neighbour by its link-local address", linkLocal, nativeIf, 2},
			} {
				if !row.src.IsValid() {
					continue
				}
				f := frame{src: row.src, dst: a, proto: udp, sport: uint16(2000 + i), dport: 80}
				run := func() result { return n.toABy(row.by, f) }
				what := name + ": " + row.what
				if row.identity == unknown {
					n.rules(setA, allow(in, 0, 0, 0))
					n.expect(what, dropped(datapath.ReasonInvalidSourceIP, in), run)
				} else {
					n.rules(setA, allow(in, 0, 0, 0), deny(in, row.identity, 0, 0))
					n.expect(what+", denied", dropped(datapath.ReasonPolicyDeny, in), run)
					n.rules(setA, allow(in, row.identity, 0, 0))
					n.expect(what, passes(in), run)
				}
				if !cfg.Tunnel {
					continue
				}
				// The same towards a pod of another node.
				want := redirected(out)
				if row.identity == unknown {
					want = dropped(datapath.ReasonInvalidSourceIP, out)
				}
				f.dst = r
				ctx := skbContext{IfIndex: 1, IngressIfIndex: uint32(row.by)}
				if row.by == n.ifA && row.identity == 1 {
					continue // only a pod here is led back to itself
				}
				n.expect(what+", to another node", want, func() result { return n.runAs(n.loader.Program(loader.FromHost), ctx, f.bytes()) })
			}
			// The answer of a pod to another one for which the node has spoken belongs to that
			// one's flow.
			n.rules(setA, allow(in, idB, udp, 80))
			f := frame{src: nodeAddr, dst: a, proto: udp, sport: 9, dport: 80}
			n.expect(name+": asked in the node's name", passes(in), func() result { return n.toABy(n.ifB, f) })
			n.expect(name+": answered", passes(out), func() result { return n.fromA(f.reply()) })
		}
	})
}

// TestForgedFromNetwork: a packet from the network with the address of this node or of one of its
// pods is dropped, in any mode and for any destination.
func TestForgedFromNetwork(t *testing.T) {
	families(t, func(t *testing.T, v6 bool, a, b, r, w, router netip.Addr) {
		nodeAddr, docker := node4, netip.MustParseAddr("172.17.0.1")
		if v6 {
			nodeAddr, docker = node6, netip.MustParseAddr("fd17::1")
		}
		for name, cfg := range map[string]datapath.Config{
			"tunnel": tunnelConfig(false), "tunnel and services": tunnelConfig(true), "native": nativeConfig(false), "native and services": nativeConfig(true),
		} {
			n := newNode(t, cfg)
			n.allowAll()
			n.must(n.maps.UpsertIPCache([]datapath.IPCacheEntry{
				{Prefix: netip.PrefixFrom(docker, docker.BitLen()), Identity: 1}, {Prefix: netip.PrefixFrom(b, b.BitLen()), Identity: idB},
			}))
			ask := func(f frame, tci uint32) func() result {
				f.ethDst, f.ethSrc = n.macA(), bMAC
				return func() result {
					return n.runAs(n.loader.Program(loader.FromNetdev), skbContext{IfIndex: uint32(n.ifA), VlanTCI: tci}, f.bytes())
				}
			}
			send := func(packet []byte) func() result {
				return func() result {
					return n.runAs(n.loader.Program(loader.FromNetdev), skbContext{IfIndex: uint32(n.ifA)}, packet)
				}
			}
			forged := dropped(datapath.ReasonInvalidSourceIP, in)
			for _, to := range []netip.Addr{a, r, w, router, nodeAddr} {
				for what, src := range map[string]netip.Addr{"the node": nodeAddr, "the router": router, "a local pod": b, "the pod itself": a} {
					for proto, f := range protocols(v6) {
						f.src, f.dst = src, to
						n.expect(fmt.Sprintf("%s: %s in the name of %s to %s", name, proto, what, to), forged, ask(f, 0))
					}
					g := frame{src: src, dst: to, proto: 89}
					n.expect(fmt.Sprintf("%s: no known protocol in the name of %s to %s", name, what, to), forged, ask(g, 0))
					g = frame{src: src, dst: to, proto: udp, sport: 1, dport: 2, ethSrc: bMAC, ethDst: n.macA()}
					n.expect(fmt.Sprintf("%s: headers that are refused in the name of %s to %s", name, what, to), forged, send(g.refusedHeaders()))
					for _, everybody := range []string{"ff:ff:ff:ff:ff:ff", "33:33:00:00:00:01"} {
						g.ethDst = mac(everybody)
						n.expect(fmt.Sprintf("%s: to %s in the name of %s to %s", name, everybody, what, to), forged, send(g.bytes()))
					}
				}
			}
			for what, packet := range map[string][]byte{
				"headers that are refused": frame{src: w, dst: nodeAddr, proto: udp, ethSrc: bMAC, ethDst: n.macA()}.refusedHeaders(),
				"to everybody":             frame{src: w, dst: nodeAddr, proto: udp, ethSrc: bMAC, ethDst: mac("ff:ff:ff:ff:ff:ff")}.bytes(),
				"to another machine":       frame{src: nodeAddr, dst: w, proto: udp, ethSrc: bMAC, ethDst: aHost}.bytes(),
			} {
				n.expect(name+": "+what, passes(in), send(packet))
			}
			f := frame{src: docker, dst: a, proto: udp, sport: 1, dport: 2}
			n.expect(name+": another address of the node", forged, ask(f, 0))
			f.src = w
			n.expect(name+": the world", passes(in), ask(f, 0))
			f.src = r
			if cfg.Tunnel {
				n.expect(name+": a pod behind the tunnel", forged, ask(f, 0))
				f.dst = nodeAddr
				n.expect(name+": a pod behind the tunnel to the node itself", passes(in), ask(f, 0))
			}
			if v6 {
				// Two that have one address find out by asking.
				nd := solicitation(nodeAddr, a, a)
				n.expect(name+": neighbour discovery", passes(in), ask(nd, 0))
				// One that has the address answers everybody.
				nd.dst = netip.MustParseAddr("ff02::1")
				nd.ethDst, nd.ethSrc = mac("33:33:00:00:00:01"), bMAC
				n.expect(name+": neighbour discovery to everybody", passes(in), send(nd.bytes()))
			}
		}
	})
}

// TestTunnelPortOnTheWayOut: nothing that the node did not encapsulate itself goes to the tunnel's
// port by its device, whoever sent it.
func TestTunnelPortOnTheWayOut(t *testing.T) {
	families(t, func(t *testing.T, v6 bool, a, b, r, w, router netip.Addr) {
		nodeAddr := node4
		if v6 {
			nodeAddr = node6
		}
		other, _, _ := others(v6)
		for _, nodePort := range []bool{false, true} {
			n := newNode(t, tunnelConfig(nodePort))
			n.must(n.maps.UpsertIPCache([]datapath.IPCacheEntry{{Prefix: netip.PrefixFrom(other, other.BitLen()), Identity: remoteNode}}))
			program := n.toNetdev(true, nodePort)
			for by, who := range map[int]string{0: "the node", n.ifA: "a pod", nativeIf: "a client outside", otherIf: "a bridge",
				unrouted: "another namespace", unrouted + n.ifA: "another namespace that forwards"} {
				send := func(f frame) func() result {
					f.ethSrc, f.ethDst = aHost, bMAC
					return func() result {
						return n.runAs(program, skbContext{IfIndex: uint32(n.ifA), IngressIfIndex: uint32(by % unrouted), Mark: uint32(by / unrouted)}, f.bytes())
					}
				}
				for _, src := range []netip.Addr{nodeAddr, other, w} {
					refused := dropped(datapath.ReasonTunnelNotFromNode, out)
					if by >= unrouted && src == w {
						refused = passes(out) // the address is not of the cluster
					}
					f := frame{src: src, dst: other, proto: udp, sport: 40000, dport: tunnelPort, payload: make([]byte, 64)}
					n.expect(who, refused, send(f))
					g := f
					g.options, g.atomic = 8, v6
					if v6 {
						g.ext = []byte{60, 0, 0, 1, 4, 0, 0, 0, 0}
					}
					n.expect(who+" behind other headers", refused, send(g))
					g = f
					g.more, g.fragID = true, 9
					n.expect(who+" in a fragment", refused, send(g))
					f.dport++
					n.expect(who+" at another port", passes(out), send(f))
					f.dport, f.proto = tunnelPort, tcp
					n.expect(who+" by TCP", passes(out), send(f))
					if !v6 {
						continue
					}
					f.proto, f.ext = udp, []byte{60}
					for range 7 { // more than are followed
						f.ext = append(f.ext, 60, 0, 1, 4, 0, 0, 0, 0)
					}
					want := dropped(datapath.ReasonUnknownL4, out)
					if by == 0 || by >= unrouted && src == w {
						want = passes(out)
					}
					n.expect(who+" behind headers that are not understood", want, send(f))
				}
			}
		}
		n := newNode(t, nativeConfig(false))
		f := frame{src: nodeAddr, dst: other, proto: udp, sport: 40000, dport: tunnelPort, ethSrc: aHost, ethDst: bMAC}
		n.expect("without a tunnel", passes(out), func() result {
			return n.run(n.toNetdev(false, false), n.ifA, 0, f.bytes())
		})
	})
}

// TestPodSourceOnTheWayOut: without a tunnel other nodes believe whom a packet claims to be from.
// So no packet leaves the node's device with a pod's address unless that pod sent it.
func TestPodSourceOnTheWayOut(t *testing.T) {
	families(t, func(t *testing.T, v6 bool, a, b, r, w, router netip.Addr) {
		nodeAddr, far, block := node4, netip.MustParseAddr("10.3.0.9"), netip.MustParseAddr("1.2.3.4")
		if v6 {
			nodeAddr, far, block = node6, netip.MustParseAddr("fd00:3::9"), netip.MustParseAddr("2607::1")
		}
		other, _, foreign := others(v6)
		for _, nodePort := range []bool{false, true} {
			n := newNode(t, nativeConfig(nodePort))
			n.must(n.maps.UpsertIPCache([]datapath.IPCacheEntry{
				{Prefix: netip.PrefixFrom(r, r.BitLen()), Identity: idR}, {Prefix: netip.PrefixFrom(far, far.BitLen()), Identity: idR},
				{Prefix: netip.PrefixFrom(other, other.BitLen()), Identity: remoteNode}, {Prefix: netip.PrefixFrom(foreign, foreign.BitLen()), Identity: remoteNode},
				{Prefix: netip.PrefixFrom(block, block.BitLen()), Identity: 1<<24 + 5},
			}))
			program := n.toNetdev(false, nodePort)
			passed, forged := passes(out), dropped(datapath.ReasonInvalidSourceIP, out)
			for _, row := range []struct {
				what     string
				src, dst netip.Addr
				by       int
				want     want
			}{
				{"the node", nodeAddr, r, 0, passed},
				{"the node's router", router, r, 0, passed},
				{"a bridge in the node's name", nodeAddr, r, otherIf, passed},
				{"a process as a local pod", a, r, 0, forged},
				{"a process as a local pod to the world", a, w, 0, forged},
				{"a process as a remote pod", far, r, 0, forged},
				{"a process as another node", foreign, r, 0, passed},
				{"a pod's other one", b, r, n.ifA, forged},
				{"a pod as a remote one", far, r, n.ifA, forged},
				{"a bridge as a local pod", a, r, otherIf, forged},
				{"a bridge as a remote pod", far, r, otherIf, forged},
				{"a bridge as a remote pod to the world", far, w, otherIf, forged},
				{"a bridge as another node", foreign, r, otherIf, forged},
				{"a bridge as another node to a node", foreign, other, otherIf, passed},
				{"a bridge as the world", w, r, otherIf, passed},
				{"a bridge as an address that rules name", block, r, otherIf, passed},
				{"the network as a remote pod", far, r, nativeIf, passed},
				{"the network as another node", foreign, r, nativeIf, passed},
				{"another namespace as a local pod", a, r, unrouted, forged},
				{"another namespace as a remote pod", far, r, unrouted, forged},
				{"another namespace as another node", foreign, r, unrouted, forged},
				{"another namespace as a remote pod that came by the network", far, r, unrouted + nativeIf, forged},
				{"another namespace as a local pod that came from it", a, r, unrouted + n.ifA, forged},
				{"another namespace as itself", w, r, unrouted, passed},
			} {
				for _, proto := range []uint8{udp, tcp, gre, 89} {
					f := frame{src: row.src, dst: row.dst, proto: proto, sport: 40000, dport: 80, ethSrc: aHost, ethDst: bMAC}
					want := row.want
					if proto == gre && row.what == "a bridge in the node's name" {
						want = dropped(datapath.ReasonTunnelNotFromNode, out)
					}
					n.expect(fmt.Sprintf("%s by %d", row.what, proto), want, func() result {
						return n.runAs(program, skbContext{IfIndex: uint32(n.ifA), IngressIfIndex: uint32(row.by % unrouted), Mark: uint32(row.by / unrouted)}, f.bytes())
					})
				}
				f := frame{src: row.src, dst: row.dst, proto: udp, sport: 40000, dport: 80, ethSrc: aHost, ethDst: bMAC}
				n.expect(row.what+" with headers that are refused", row.want, func() result {
					return n.runAs(program, skbContext{IfIndex: uint32(n.ifA), IngressIfIndex: uint32(row.by % unrouted), Mark: uint32(row.by / unrouted)}, f.refusedHeaders())
				})
			}
		}
	})
}
