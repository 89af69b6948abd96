package bpf_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"

	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/datapath/loader"
)

const (
	in  = datapath.Ingress
	out = datapath.Egress
)

// protocols are the transports, each as a frame to complete with addresses.
func protocols(v6 bool) map[string]frame {
	ping := frame{proto: icmp, icmpType: 8, icmpID: 77}
	if v6 {
		ping = frame{proto: icmp6, icmpType: 128, icmpID: 77}
	}
	return map[string]frame{
		"tcp":  {proto: tcp, sport: 40000, dport: 80, tcpFlags: syn},
		"udp":  {proto: udp, sport: 40000, dport: 53, payload: []byte("hello")},
		"sctp": {proto: sctp, sport: 40000, dport: 9000},
		"ping": ping,
	}
}

func port(f frame) uint16 {
	if f.proto == icmp || f.proto == icmp6 {
		return uint16(f.icmpType)
	}
	return f.dport
}

func families(t *testing.T, fn func(t *testing.T, v6 bool, a, b, r, w, router netip.Addr)) {
	t.Helper()
	t.Run("ipv4", func(t *testing.T) { t.Parallel(); fn(t, false, a4, b4, r4, w4, router4) })
	t.Run("ipv6", func(t *testing.T) { t.Parallel(); fn(t, true, a6, b6, r6, w6, router6) })
}

// TestLocal: two pods of one node, every family and protocol.
func TestLocal(t *testing.T) {
	families(t, func(t *testing.T, v6 bool, a, b, r, w, router netip.Addr) {
		n := newNode(t, testConfig())
		for name, f := range protocols(v6) {
			f.src, f.dst = a, b
			n.rules(setA)
			n.rules(setB)
			n.expect(name+" without rules", dropped(datapath.ReasonPolicyDenied, out), func() result { return n.fromA(f) })
			n.rules(setA, allow(out, idB, f.proto, port(f)))
			n.expect(name+" egress allowed only", dropped(datapath.ReasonPolicyDenied, in), func() result { return n.fromA(f) })
			n.rules(setB, allow(in, idA, f.proto, port(f)), deny(in, 0, 0, 0))
			n.expect(name+" ingress denied", dropped(datapath.ReasonPolicyDeny, in), func() result { return n.fromA(f) })
			n.rules(setB, allow(in, idA, f.proto, port(f)))
			got := n.expect(name+" allowed", delivered(), func() result { return n.fromA(f) })

			// The packet as b gets it: other hardware addresses, one hop less, nothing else.
			expect := f
			expect.ethSrc, expect.ethDst, expect.ttl = bHost, bMAC, 63
			if !bytes.Equal(got.out, expect.bytes()) {
				t.Errorf("%s: b gets\n%x, want\n%x", name, got.out, expect.bytes())
			}
			n.expect(name+" reply", delivered(), func() result { return n.fromB(f.reply()) })
			other := f.reply()
			if f.proto == icmp || f.proto == icmp6 {
				other = f
				other.src, other.dst = b, a
			} else {
				other.sport++
			}
			n.expect(name+" not a reply", dropped(datapath.ReasonPolicyDenied, out), func() result { return n.fromB(other) })
		}
		for _, e := range n.flows() {
			if e.Src.Addr() != a || e.Dst.Addr() != b || e.SrcIdentity != idA || e.DstIdentity != idB || !e.SeenReply ||
				e.ForwardPackets != 1 || e.ReversePackets != 1 || e.SrcGeneration != 1 || e.DstGeneration != 1 || e.Expires <= 0 {
				t.Errorf("flow %+v", e)
			}
			ports := protocols(v6)[map[uint8]string{tcp: "tcp", udp: "udp", sctp: "sctp", icmp: "ping", icmp6: "ping"}[e.Proto]]
			if e.Src.Port() != ports.sport+ports.icmpID || e.Dst.Port() != ports.dport {
				t.Errorf("ports of flow %+v", e)
			}
		}
		if got := len(n.flows()); got != 4 {
			t.Errorf("%d flows, want 4", got)
		}
	})
}

// TestReservedAddresses: 240.0.0.0/4 is reserved, but networks use it, for pods and for others, as
// Linux lets them. Only its last address is broadcast.
func TestReservedAddresses(t *testing.T) {
	t.Parallel()
	n := newNode(t, testConfig())
	n.allowAll()
	n.b.IPv4 = netip.MustParseAddr("240.0.1.2")
	n.upsert(n.b)
	f := frame{src: a4, dst: n.b.IPv4, proto: udp, sport: 1, dport: 2}
	n.expect("to a pod of the node", delivered(), func() result { return n.fromA(f) })
	n.expect("its answer", delivered(), func() result { return n.fromB(f.reply()) })
	back := frame{src: netip.MustParseAddr("255.255.255.254"), dst: n.b.IPv4, proto: udp, sport: 3, dport: 4, ethSrc: bHost, ethDst: bMAC}
	n.expect("from outside", passes(in), func() result { return n.run(n.loader.Program(loader.ToPod), n.ifB, 0, back.bytes()) })
	for dst, want := range map[string]want{
		"223.255.255.255": passes(out), "224.0.0.0": dropped(datapath.ReasonMulticast, out), "239.255.255.255": dropped(datapath.ReasonMulticast, out),
		"240.0.0.0": passes(out), "255.255.255.254": passes(out), "255.255.255.255": dropped(datapath.ReasonMulticast, out),
	} {
		f.dst = netip.MustParseAddr(dst)
		n.expect("to "+dst, want, func() result { return n.fromA(f) })
	}
}

// TestICMPUnderPolicy: what package datapath says of the types of messages that policy decides
// about is what the programs do.
func TestICMPUnderPolicy(t *testing.T) {
	families(t, func(t *testing.T, v6 bool, a, b, r, w, router netip.Addr) {
		n := newNode(t, testConfig())
		f := frame{src: a, dst: w, proto: icmp, payload: make([]byte, 64)}
		if v6 {
			f.proto = icmp6
		}
		for typ := range 256 {
			f.icmpType, f.icmpID = uint8(typ), uint16(typ)
			n.rules(setA)
			denied := n.fromA(f).action
			rule := allow(out, 0, f.proto, uint16(typ))
			rule.PortBits = 16
			n.rules(setA, rule)
			allowed := n.fromA(f).action
			if decided, want := denied != allowed, datapath.ICMPUnderPolicy(v6, uint8(typ)); decided != want {
				t.Errorf("type %d: without a rule %d, with one %d; policy decides by the table: %v", typ, denied, allowed, want)
			}
		}
	})
}

// TestSpoofing: a pod is who its interface says, or its packets are dropped.
func TestSpoofing(t *testing.T) {
	families(t, func(t *testing.T, v6 bool, a, b, r, w, router netip.Addr) {
		n := newNode(t, testConfig())
		n.allowAll()
		good := frame{src: a, dst: b, proto: udp, sport: 1, dport: 2}
		for _, row := range []struct {
			name   string
			change func(*frame)
			want   want
		}{
			{"honest", func(f *frame) {}, delivered()},
			{"hardware address of b", func(f *frame) { f.ethSrc, f.ethDst = bMAC, aHost }, dropped(datapath.ReasonInvalidSourceMAC, out)},
			{"address of b", func(f *frame) { f.src = b }, dropped(datapath.ReasonInvalidSourceIP, out)},
			{"address of the router", func(f *frame) { f.src = router }, dropped(datapath.ReasonInvalidSourceIP, out)},
			{"address of no endpoint", func(f *frame) { f.src = w }, dropped(datapath.ReasonInvalidSourceIP, out)},
			{"to a multicast hardware address", func(f *frame) { f.ethSrc, f.ethDst = aMAC, mac("01:00:5e:00:00:01") }, dropped(datapath.ReasonMulticast, out)},
			{"time used up, which the stack reports", func(f *frame) { f.ttl = 1 }, want{actOK, datapath.ReasonTTLExceeded, in}},
			{"no transport we know", func(f *frame) { f.proto = 89 }, dropped(datapath.ReasonUnknownL4, out)},
			{"not IP", func(f *frame) { f.etherType = 0x88cc }, dropped(datapath.ReasonUnknownL3, out)},
		} {
			f := good
			row.change(&f)
			n.expect(row.name, row.want, func() result { return n.fromA(f) })
		}
		multicast, unspecified := netip.MustParseAddr("224.0.0.251"), netip.MustParseAddr("0.0.0.0")
		if v6 {
			multicast, unspecified = netip.MustParseAddr("ff02::fb"), netip.MustParseAddr("::")
		}
		f := good
		f.dst = multicast
		n.expect("multicast", dropped(datapath.ReasonMulticast, out), func() result { return n.fromA(f) })
		f = good
		f.src = unspecified
		n.expect("unspecified source", dropped(datapath.ReasonInvalidSourceIP, out), func() result { return n.fromA(f) })
		n.must(n.maps.DeleteEndpoint(n.ifA))
		n.expect("no endpoint", dropped(datapath.ReasonNoEndpoint, out), func() result { return n.fromA(good) })
	})
}

// TestSingleFamily: a pod without an address of a family cannot speak or be spoken to in it.
func TestSingleFamily(t *testing.T) {
	n := newNode(t, testConfig())
	n.allowAll()
	a := n.a
	a.IPv6 = netip.Addr{}
	n.upsert(a)
	f := frame{src: netip.MustParseAddr("::"), dst: b6, proto: udp, sport: 1, dport: 2}
	n.expect("from ::", dropped(datapath.ReasonInvalidSourceIP, out), func() result { return n.fromA(f) })
	f.src, f.dst = w6, netip.MustParseAddr("::")
	n.expect("to ::", dropped(datapath.ReasonMalformed, in), func() result { return n.toA(f) })
	f.src, f.dst = netip.AddrFrom16(a4.As16()), b6
	n.expect("mapped source", dropped(datapath.ReasonMalformed, out), func() result { return n.fromA(f) })
	f.src, f.dst = a6, netip.AddrFrom16(b4.As16())
	n.expect("mapped destination", dropped(datapath.ReasonMalformed, out), func() result { return n.fromA(f) })
}

// TestDestinations: who is behind an address that is not a pod's of this node.
func TestDestinations(t *testing.T) {
	families(t, func(t *testing.T, v6 bool, a, b, r, w, router netip.Addr) {
		for _, dual := range []bool{false, true} {
			cfg := testConfig()
			cfg.DualStackWorld = dual
			n := newNode(t, cfg)
			world := uint32(2)
			host := node4
			cidr, inner := netip.MustParsePrefix("1.0.0.0/8"), netip.MustParsePrefix("1.1.0.0/16")
			if v6 {
				host = node6
				cidr, inner = netip.MustParsePrefix("2600::/12"), netip.MustParsePrefix("2606::/48")
			}
			if dual {
				world = 9
				if v6 {
					world = 10
				}
			}
			try := func(name string, dst netip.Addr, identity uint32) {
				t.Helper()
				f := frame{src: a, dst: dst, proto: tcp, sport: 5, dport: 443, tcpFlags: syn}
				n.rules(setA, allow(out, identity+1, 0, 0))
				n.expect(name+" as another", dropped(datapath.ReasonPolicyDenied, out), func() result { return n.fromA(f) })
				n.rules(setA, allow(out, identity, 0, 0))
				n.expect(name, passes(out), func() result { return n.fromA(f) })
			}
			try("world", w, world)
			try("router", router, 1)
			try("node", host, 1)
			try("remote pod", r, idR)
			n.must(n.maps.UpsertIPCache([]datapath.IPCacheEntry{{Prefix: cidr, Identity: 1<<24 + 5}}))
			try("prefix", w, 1<<24+5)
			n.must(n.maps.UpsertIPCache([]datapath.IPCacheEntry{{Prefix: inner, Identity: 1<<24 + 6}}))
			try("longer prefix", w, 1<<24+6)
			n.must(n.maps.UpsertIPCache([]datapath.IPCacheEntry{{Prefix: netip.PrefixFrom(w, w.BitLen()), Identity: 1<<24 + 7}}))
			try("address", w, 1<<24+7)
			n.must(n.maps.DeleteIPCache([]netip.Prefix{netip.PrefixFrom(w, w.BitLen()), inner, cidr}))
			// Everything of one family says nothing about the other.
			all := netip.MustParsePrefix("::/0")
			if v6 {
				all = netip.MustParsePrefix("0.0.0.0/0")
			}
			n.must(n.maps.UpsertIPCache([]datapath.IPCacheEntry{{Prefix: all, Identity: 1<<24 + 8}}))
			try("the other family's default", w, world)
			if v6 {
				try("the host's link-local address", netip.MustParseAddr("fe80::1"), 1)
			}
		}
	})
}

// TestToPod: what the stack hands over, by the identity behind its source.
func TestToPod(t *testing.T) {
	families(t, func(t *testing.T, v6 bool, a, b, r, w, router netip.Addr) {
		for _, tunnel := range []bool{false, true} {
			cfg := testConfig()
			cfg.NativeIfIndex = nativeIf
			if tunnel {
				cfg.Tunnel, cfg.TunnelIfIndex, cfg.TunnelPort = true, 1, tunnelPort
			}
			n := newNode(t, cfg)
			for _, row := range []struct {
				name     string
				src      netip.Addr
				identity uint32
			}{{"host", router, 1}, {"pod of this node", b, idB}, {"world", w, 2}, {"remote pod", r, idR}} {
				f := frame{src: row.src, dst: a, proto: tcp, sport: 5, dport: 80, tcpFlags: syn}
				if tunnel && row.src == r {
					n.rules(setA, allow(in, 0, 0, 0))
					n.expect(row.name+" past the tunnel", dropped(datapath.ReasonInvalidSourceIP, in), func() result { return n.toA(f) })
					continue
				}
				n.rules(setA, allow(in, row.identity+1, 0, 0))
				by := 0
				switch row.src {
				case b:
					by = n.ifB
				case r:
					by = nativeIf
				}
				n.expect(row.name+" not allowed", dropped(datapath.ReasonPolicyDenied, in), func() result { return n.toABy(by, f) })
				n.rules(setA, allow(in, row.identity, 0, 0))
				n.expect(row.name, passes(in), func() result { return n.toABy(by, f) })
			}
			f := frame{src: w, dst: b, proto: tcp, sport: 5, dport: 80}
			n.expect("for another", dropped(datapath.ReasonNoEndpoint, in), func() result { return n.toA(f) })
		}
	})
}

// TestReadiness: an endpoint without rules, or with rules that could not be installed, is cut off,
// even for flows that were allowed.
func TestReadiness(t *testing.T) {
	families(t, func(t *testing.T, v6 bool, a, b, r, w, router netip.Addr) {
		n := newNode(t, testConfig())
		n.allowAll()
		f := frame{src: a, dst: b, proto: tcp, sport: 5, dport: 80, tcpFlags: syn}
		n.expect("ready", delivered(), func() result { return n.fromA(f) })
		for _, row := range []struct {
			name   string
			change func(*datapath.Endpoint)
			reason datapath.DropReason
		}{
			{"locked", func(e *datapath.Endpoint) { e.Locked = true }, datapath.ReasonEndpointLocked},
			{"no rule set", func(e *datapath.Endpoint) { e.RuleSet = 0 }, datapath.ReasonNoRuleSet},
		} {
			ea, eb := n.a, n.b
			row.change(&ea)
			n.upsert(ea)
			n.expect(row.name+" source", dropped(row.reason, out), func() result { return n.fromA(f) })
			n.expect(row.name+" source, reply", dropped(row.reason, in), func() result { return n.fromB(f.reply()) })
			n.expect(row.name+" from the stack", dropped(row.reason, in), func() result {
				return n.toA(frame{src: router, dst: a, proto: tcp, sport: 5, dport: 80})
			})
			n.upsert(n.a)
			row.change(&eb)
			n.upsert(eb)
			n.expect(row.name+" destination", dropped(row.reason, in), func() result { return n.fromA(f) })
			n.upsert(n.b)
		}
		// A number without content must not let anything pass either.
		ea := n.a
		ea.RuleSet, ea.PolicyGeneration = 99, 2
		n.upsert(ea)
		n.expect("rule set not installed", dropped(datapath.ReasonNoRuleSet, out), func() result { return n.fromA(f) })
	})
}

// TestARP: ARP requests for the gateway are answered, those for any other address are not.
func TestARP(t *testing.T) {
	n := newNode(t, testConfig())
	run := func(b []byte) func() result {
		return func() result { return n.run(n.loader.Program(loader.FromPod), n.ifA, 0, b) }
	}
	got := n.expect("request for the gateway", redirected(out), run(arp(aMAC, aMAC, 1, a4, router4)))
	reply := arp(aHost, aHost, 2, router4, a4)
	copy(reply, aMAC)
	copy(reply[32:], aMAC)
	if !bytes.Equal(got.out, reply) {
		t.Errorf("reply\n%x, want\n%x", got.out, reply)
	}
	for _, row := range []struct {
		name string
		in   []byte
		want want
	}{
		{"for another pod", arp(aMAC, aMAC, 1, a4, b4), dropped(datapath.ReasonUnsupportedNDP, out)},
		{"gratuitous", arp(aMAC, aMAC, 1, a4, a4), dropped(datapath.ReasonUnsupportedNDP, out)},
		{"a reply", arp(aMAC, aMAC, 2, a4, router4), dropped(datapath.ReasonUnsupportedNDP, out)},
		{"in b's name", arp(aMAC, aMAC, 1, b4, router4), dropped(datapath.ReasonInvalidSourceIP, out)},
		{"with b's frame address", arp(bMAC, aMAC, 1, a4, router4), dropped(datapath.ReasonInvalidSourceMAC, out)},
		{"with b's hardware address", arp(aMAC, bMAC, 1, a4, router4), dropped(datapath.ReasonInvalidSourceMAC, out)},
		{"short", arp(aMAC, aMAC, 1, a4, router4)[:40], dropped(datapath.ReasonMalformed, out)},
	} {
		n.expect(row.name, row.want, run(row.in))
	}
}

func solicitation(src, dst, target netip.Addr) frame {
	payload := append([]byte(nil), target.AsSlice()...)
	payload = append(payload, 1, 1)
	payload = append(payload, aMAC...)
	return frame{
		ethSrc: aMAC, ethDst: mac("33:33:ff:00:00:01"), src: src, dst: dst,
		proto: icmp6, icmpType: 135, ttl: 255, payload: payload,
	}
}

// TestNeighbourDiscovery: as TestARP, for IPv6.
func TestNeighbourDiscovery(t *testing.T) {
	n := newNode(t, testConfig())
	node := netip.MustParseAddr("ff02::1:ff00:1")
	linkLocal := netip.MustParseAddr("fe80::aa")
	for _, row := range []struct {
		name string
		f    frame
	}{
		{"multicast", solicitation(a6, node, router6)},
		{"unicast", solicitation(a6, router6, router6)},
		{"from the link-local address", solicitation(linkLocal, node, router6)},
		{"without option", func() frame { f := solicitation(a6, router6, router6); f.payload = f.payload[:16]; return f }()},
	} {
		got := n.expect(row.name, redirected(out), func() result { return n.fromA(row.f) })
		wantND := frame{ethSrc: aHost, ethDst: aMAC, src: router6, dst: row.f.src, proto: icmp6, icmpType: 136, ttl: 255,
			payload: append(append(append([]byte(nil), router6.AsSlice()...), 2, 1), aHost...)}.bytes()
		wantND[14+40+4] = 0xe0
		sum := append(append(append([]byte(nil), router6.AsSlice()...), row.f.src.AsSlice()...), 0, 0, 0, 32, 0, 0, 0, 58)
		binary.BigEndian.PutUint16(wantND[14+40+2:], ^checksum(append(sum, wantND[14+40:]...)))
		if !bytes.Equal(got.out, wantND) {
			t.Errorf("%s: advertisement\n%x, want\n%x", row.name, got.out, wantND)
		}
	}
	for _, row := range []struct {
		name string
		f    frame
		want want
	}{
		{"for another pod", solicitation(a6, node, b6), dropped(datapath.ReasonUnsupportedNDP, out)},
		{"duplicate address detection", solicitation(netip.MustParseAddr("::"), node, a6), dropped(datapath.ReasonUnsupportedNDP, out)},
		{"in b's name", solicitation(b6, node, router6), dropped(datapath.ReasonInvalidSourceIP, out)},
		{"through a router", func() frame { f := solicitation(a6, node, router6); f.ttl = 254; return f }(), dropped(datapath.ReasonMalformed, out)},
		{"cut off", func() frame { f := solicitation(a6, node, router6); f.payload = f.payload[:12]; return f }(), dropped(datapath.ReasonMalformed, out)},
		{"router solicitation", func() frame { f := solicitation(a6, node, router6); f.icmpType = 133; return f }(), dropped(datapath.ReasonUnsupportedNDP, out)},
		{"router advertisement", func() frame { f := solicitation(a6, node, router6); f.icmpType = 134; return f }(), dropped(datapath.ReasonUnsupportedNDP, out)},
		{"redirect", func() frame { f := solicitation(a6, b6, router6); f.icmpType = 137; return f }(), dropped(datapath.ReasonUnsupportedNDP, out)},
		{"listener report", func() frame {
			f := solicitation(a6, netip.MustParseAddr("ff02::16"), router6)
			f.icmpType = 143
			return f
		}(), dropped(datapath.ReasonMulticast, out)},
	} {
		n.expect(row.name, row.want, func() result { return n.fromA(row.f) })
	}
}

// TestTruncated: a packet cut anywhere is dropped, not read past its end, and none is taken for
// another.
func TestTruncated(t *testing.T) {
	families(t, func(t *testing.T, v6 bool, a, b, r, w, router netip.Addr) {
		n := newNode(t, testConfig())
		n.allowAll()
		for name, f := range protocols(v6) {
			f.src, f.dst, f.ethSrc, f.ethDst = a, b, aMAC, aHost
			whole := f.bytes()
			for size := minFrame(v6); size < len(whole); size++ {
				r := n.run(n.loader.Program(loader.FromPod), n.ifA, 0, whole[:size])
				if r.action != actDrop {
					t.Errorf("%s cut to %d of %d bytes: action %d", name, size, len(whole), r.action)
				}
			}
			// Bytes after the packet are padding; a length that leaves no room for the transport
			// lies.
			n.expect(name+" padded", delivered(), func() result {
				return n.run(n.loader.Program(loader.FromPod), n.ifA, 0, append(bytes.Clone(whole), 0, 0, 0, 0))
			})
			short := bytes.Clone(whole)
			if v6 {
				binary.BigEndian.PutUint16(short[14+4:], 4)
			} else {
				binary.BigEndian.PutUint16(short[14+2:], 24)
			}
			n.expect(name+" with a short length", dropped(datapath.ReasonMalformed, out), func() result {
				return n.run(n.loader.Program(loader.FromPod), n.ifA, 0, short)
			})
		}
		for _, version := range []byte{0, 3, 5, 7, 15} {
			bad := frame{src: a, dst: b, proto: udp, ethSrc: aMAC, ethDst: aHost}.bytes()
			bad[14] = bad[14]&0xf | version<<4
			n.expect(fmt.Sprintf("version %d", version), dropped(datapath.ReasonMalformed, out), func() result {
				return n.run(n.loader.Program(loader.FromPod), n.ifA, 0, bad)
			})
		}
	})
}

// TestOptionsAndExtensions: headers between network and transport are walked, within reason.
func TestOptionsAndExtensions(t *testing.T) {
	n := newNode(t, testConfig())
	n.rules(setA, allow(out, idB, tcp, 80))
	n.rules(setB, allow(in, idA, tcp, 80))
	for _, options := range []int{4, 20, 40} {
		for dport, w := range map[uint16]want{80: delivered(), 81: dropped(datapath.ReasonPolicyDenied, out)} {
			f := frame{src: a4, dst: b4, proto: tcp, sport: 7, dport: dport, options: options}
			n.expect(fmt.Sprintf("%d bytes of options, port %d", options, dport), w, func() result { return n.fromA(f) })
		}
	}
	for what, row := range map[string]struct {
		options []byte
		want    want
	}{
		"loose source route":             {[]byte{131, 7, 4, 10, 1, 0, 11, 0}, dropped(datapath.ReasonSourceRoute, out)},
		"strict source route":            {[]byte{137, 7, 4, 10, 1, 0, 11, 0}, dropped(datapath.ReasonSourceRoute, out)},
		"source route at its end":        {[]byte{131, 7, 8, 10, 1, 0, 11, 0}, dropped(datapath.ReasonSourceRoute, out)},
		"source route behind others":     {[]byte{1, 7, 7, 4, 0, 0, 0, 0, 1, 137, 3, 4}, dropped(datapath.ReasonSourceRoute, out)},
		"source route in the last byte":  {[]byte{1, 1, 1, 131}, dropped(datapath.ReasonSourceRoute, out)},
		"record of the route":            {[]byte{7, 7, 4, 0, 0, 0, 0, 0}, delivered()},
		"what looks like one in another": {[]byte{7, 7, 8, 131, 7, 4, 137, 0}, delivered()},
		"what looks like one at the end": {[]byte{0, 131, 7, 4}, delivered()},
		"an option of no length":         {[]byte{7, 0, 131, 7}, dropped(datapath.ReasonMalformed, out)},
		"an option longer than all":      {[]byte{7, 200, 131, 7}, delivered()},
	} {
		f := frame{ethSrc: aMAC, ethDst: aHost, src: a4, dst: b4, proto: tcp, sport: 7, dport: 80}
		n.expect(what, row.want, func() result { return n.fromABytes(f.withOptions(row.options...)) })
	}
	hop := []byte{0, 0, 0, 1, 4, 0, 0, 0, 0} // type, then 8 bytes
	dest := func(next byte, blocks int) []byte {
		b := make([]byte, 8*blocks)
		b[0], b[1] = next, byte(blocks-1)
		return b
	}
	many := append([]byte{60}, dest(60, 1)...)
	for range 4 {
		many = append(many, dest(60, 1)...)
	}
	tooMany := append(append([]byte(nil), many...), append(dest(60, 1), dest(60, 1)...)...)
	segments := []byte{43, 0, 0, 0, 1, 0, 0, 0, 0}
	noSegments := []byte{43, 0, 0, 0, 0, 0, 0, 0, 0}
	for _, row := range []struct {
		name string
		ext  []byte
		want want
	}{
		{"hop-by-hop", hop, delivered()},
		{"destination options of 200 bytes", append([]byte{60}, dest(0, 25)...), delivered()},
		{"five headers", many, delivered()},
		{"seven headers", tooMany, dropped(datapath.ReasonUnknownL4, out)},
		{"too long", append([]byte{60}, dest(0, 80)...), dropped(datapath.ReasonUnknownL4, out)},
		{"routing header, no segments left", noSegments, delivered()},
		{"routing header, segments left", segments, dropped(datapath.ReasonUnknownL4, out)},
		{"hop-by-hop second", append(append([]byte{60}, dest(0, 1)...), dest(0, 1)...), dropped(datapath.ReasonMalformed, out)},
	} {
		f := frame{src: a6, dst: b6, proto: tcp, sport: 7, dport: 80, ext: row.ext}
		n.expect(row.name, row.want, func() result { return n.fromA(f) })
		if row.want.action == actRedirect {
			f.dport = 81
			n.expect(row.name+", other port", dropped(datapath.ReasonPolicyDenied, out), func() result { return n.fromA(f) })
		}
	}
	f := frame{src: a6, dst: b6, proto: tcp, sport: 7, dport: 80, ext: hop}
	whole := f
	whole.ethSrc, whole.ethDst = aMAC, aHost
	for size := minFrame(true); size < len(whole.bytes()); size++ {
		if r := n.run(n.loader.Program(loader.FromPod), n.ifA, 0, whole.bytes()[:size]); r.action != actDrop {
			t.Errorf("extension header cut to %d bytes: action %d", size, r.action)
		}
	}
}

// TestFragments: later fragments go the way of the first, and nowhere without it.
func TestFragments(t *testing.T) {
	families(t, func(t *testing.T, v6 bool, a, b, r, w, router netip.Addr) {
		n := newNode(t, testConfig())
		for name, f := range protocols(v6) {
			f.src, f.dst = a, b
			n.rules(setA, allow(out, idB, f.proto, port(f)))
			n.rules(setB, allow(in, idA, f.proto, port(f)))
			first := f
			first.more, first.fragID = true, 1000+uint32(f.proto)
			first.payload = make([]byte, 64)
			later := first
			later.fragOffset, later.more = 64, false
			n.expect(name+" later fragment too early", dropped(datapath.ReasonFragmentUnknown, out), func() result { return n.fromA(later) })
			n.expect(name+" first fragment", delivered(), func() result { return n.fromA(first) })
			n.expect(name+" later fragment", delivered(), func() result { return n.fromA(later) })
			later.fragID++
			n.expect(name+" fragment of another packet", dropped(datapath.ReasonFragmentUnknown, out), func() result { return n.fromA(later) })
			later.fragID--
			later.src, later.dst = b, a
			n.expect(name+" fragment the other way", dropped(datapath.ReasonFragmentUnknown, out), func() result { return n.fromB(later) })
			tiny := first
			tiny.fragID += 500
			cut := tiny
			cut.ethSrc, cut.ethDst = aMAC, aHost
			raw := cut.bytes()
			size := 14 + 20 + 4
			if v6 {
				size = 14 + 40 + 8 + 4
				binary.BigEndian.PutUint16(raw[14+4:], 12)
			} else {
				binary.BigEndian.PutUint16(raw[14+2:], 24)
			}
			n.expect(name+" first fragment without its header", dropped(datapath.ReasonMalformed, out), func() result {
				return n.run(n.loader.Program(loader.FromPod), n.ifA, 0, raw[:size])
			})
		}
		if v6 {
			f := frame{src: a, dst: b, proto: icmp6, icmpType: 128, icmpID: 5, atomic: true}
			n.rules(setA, allow(out, 0, 0, 0))
			n.rules(setB, allow(in, 0, 0, 0))
			n.expect("atomic fragment", delivered(), func() result { return n.fromA(f) })
		}
	})
}
