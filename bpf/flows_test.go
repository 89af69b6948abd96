package bpf_test

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/datapath/loader"
)

// TestPolicyRecheck: a flow lives as long as its permission. A new generation has it evaluated
// again, in the direction in which it was opened, whichever way the packet goes.
func TestPolicyRecheck(t *testing.T) {
	families(t, func(t *testing.T, v6 bool, a, b, r, w, router netip.Addr) {
		n := newNode(t, testConfig())
		generation := uint32(1)
		flip := func(ep *datapath.Endpoint) {
			generation++
			ep.PolicyGeneration = generation
			n.upsert(*ep)
		}
		for name, f := range protocols(v6) {
			f.src, f.dst = a, b
			mid := f
			if f.proto == tcp {
				mid.tcpFlags = ack
			}
			open := func() {
				t.Helper()
				n.rules(setA, allow(out, idB, f.proto, port(f)))
				n.rules(setB, allow(in, idA, f.proto, port(f)))
				n.expect(name+" opens", delivered(), func() result { return n.fromA(f) })
				n.expect(name+" is answered", delivered(), func() result { return n.fromB(f.reply()) })
			}
			open()
			// Rules change, and allow the flow still.
			flip(&n.a)
			flip(&n.b)
			n.expect(name+" allowed still", delivered(), func() result { return n.fromA(mid) })
			n.expect(name+" reply allowed still", delivered(), func() result { return n.fromB(f.reply()) })
			// Without a new generation, the rules are not evaluated again.
			n.rules(setA)
			n.rules(setB)
			n.expect(name+" not asked", delivered(), func() result { return n.fromA(mid) })
			// The source's rules forbid it now; the reply finds that out.
			flip(&n.a)
			n.expect(name+" reply after revocation", dropped(datapath.ReasonPolicyDenied, out), func() result { return n.fromB(f.reply()) })
			n.expect(name+" after revocation", dropped(datapath.ReasonPolicyDenied, out), func() result { return n.fromA(mid) })
			open()
			// The destination's rules forbid it now.
			n.rules(setB, deny(in, idA, 0, 0))
			flip(&n.b)
			n.expect(name+" after denial", dropped(datapath.ReasonPolicyDeny, in), func() result { return n.fromA(mid) })
			open()
			// The source's identity has changed, without a new generation.
			n.rules(setB)
			ea := n.a
			ea.Identity = idA + 1
			n.upsert(ea)
			n.expect(name+" with another identity", dropped(datapath.ReasonPolicyDenied, in), func() result { return n.fromA(mid) })
			n.upsert(n.a)
			// An answer that was under way when the flow was refused must not open it from the
			// other side, which may do so by its own rules.
			n.rules(setB, allow(out, 0, 0, 0))
			flip(&n.b)
			n.expect(name+" refused again", dropped(datapath.ReasonPolicyDenied, in), func() result { return n.fromA(mid) })
			n.expect(name+" answer under way", dropped(datapath.ReasonPolicyDenied, in), func() result { return n.fromB(f.reply()) })
			n.expect(name+" refused after it", dropped(datapath.ReasonPolicyDenied, in), func() result { return n.fromA(mid) })
		}
	})
}

// TestRemoteFlow: only the local side evaluates; the stack's path and the pod's path share the
// flow.
func TestRemoteFlow(t *testing.T) {
	families(t, func(t *testing.T, v6 bool, a, b, r, w, router netip.Addr) {
		n := newNode(t, testConfig())
		f := frame{src: a, dst: w, proto: tcp, sport: 5000, dport: 443, tcpFlags: syn}
		n.rules(setA, allow(out, 2, tcp, 443))
		n.expect("open", passes(out), func() result { return n.fromA(f) })
		n.expect("reply", passes(in), func() result { return n.toA(f.reply()) })
		unasked := f.reply()
		unasked.dport++
		n.expect("not a reply", dropped(datapath.ReasonPolicyDenied, in), func() result { return n.toA(unasked) })
		// Opened from outside.
		g := frame{src: w, dst: a, proto: tcp, sport: 6000, dport: 80, tcpFlags: syn}
		n.rules(setA, allow(in, 2, tcp, 80))
		n.expect("open from outside", passes(in), func() result { return n.toA(g) })
		n.expect("answer", passes(out), func() result { return n.fromA(g.reply()) })
		n.a.PolicyGeneration++
		n.upsert(n.a)
		n.expect("answer after a change", passes(out), func() result { return n.fromA(g.reply()) })
		n.rules(setA)
		n.a.PolicyGeneration++
		n.upsert(n.a)
		n.expect("answer after revocation", dropped(datapath.ReasonPolicyDenied, in), func() result { return n.fromA(g.reply()) })
		n.expect("the first flow too", dropped(datapath.ReasonPolicyDenied, out), func() result { return n.toA(f.reply()) })
	})
}

// TestEchoDirections: a ping and a ping the other way with the same id are two flows.
func TestEchoDirections(t *testing.T) {
	n := newNode(t, testConfig())
	n.rules(setA, allow(out, idB, icmp, 8))
	n.rules(setB, allow(in, idA, icmp, 8))
	ping := frame{src: a4, dst: b4, proto: icmp, icmpType: 8, icmpID: 9}
	back := frame{src: b4, dst: a4, proto: icmp, icmpType: 8, icmpID: 9}
	n.expect("answer before the question", dropped(datapath.ReasonPolicyDenied, out), func() result { return n.fromB(ping.reply()) })
	n.expect("ping", delivered(), func() result { return n.fromA(ping) })
	n.expect("ping the other way", dropped(datapath.ReasonPolicyDenied, out), func() result { return n.fromB(back) })
	n.expect("answer", delivered(), func() result { return n.fromB(ping.reply()) })
	// Without an id the two have the same ends.
	ping.icmpID, back.icmpID = 0, 0
	n.expect("ping without an id", delivered(), func() result { return n.fromA(ping) })
	n.expect("ping the other way without an id", dropped(datapath.ReasonPolicyDenied, out), func() result { return n.fromB(back) })
	n.expect("unsolicited echo reply", dropped(datapath.ReasonPolicyDenied, out), func() result { return n.fromA(back.reply()) })
	n.expect("answer without an id", delivered(), func() result { return n.fromB(ping.reply()) })
	// Types are evaluated one by one; those that are no echo are never tracked.
	n.rules(setA, allow(out, idB, icmp, 13))
	n.rules(setB, allow(in, idA, icmp, 13))
	stamp := frame{src: a4, dst: b4, proto: icmp, icmpType: 13, icmpID: 9}
	n.expect("timestamp", delivered(), func() result { return n.fromA(stamp) })
	stamp.icmpType = 14
	stamp.src, stamp.dst = b4, a4
	n.expect("timestamp reply", dropped(datapath.ReasonPolicyDenied, out), func() result { return n.fromB(stamp) })
	redirect := frame{src: a4, dst: b4, proto: icmp, icmpType: 5}
	n.expect("redirect", dropped(datapath.ReasonUnsupportedNDP, out), func() result { return n.fromA(redirect) })
}

// TestExpiry: an idle flow is forgotten after its time, and collected.
func TestExpiry(t *testing.T) {
	t.Parallel()
	cfg := testConfig()
	cfg.CTTimeouts = datapath.CTTimeouts{TCP: time.Hour, TCPSyn: time.Nanosecond, TCPFin: time.Nanosecond, Any: time.Nanosecond}
	n := newNode(t, cfg)
	n.allowAll()
	u := frame{src: a4, dst: b4, proto: udp, sport: 1, dport: 2}
	s := frame{src: a4, dst: b4, proto: tcp, sport: 3, dport: 4, tcpFlags: syn}
	established := frame{src: a4, dst: b4, proto: tcp, sport: 5, dport: 6, tcpFlags: syn}
	closed := frame{src: a4, dst: b4, proto: tcp, sport: 7, dport: 8, tcpFlags: syn}
	n.fromA(u)
	n.fromA(s)
	n.fromA(established)
	n.fromB(established.reply())
	n.fromA(closed)
	n.fromB(closed.reply())
	n.fromA(frame{src: a4, dst: b4, proto: tcp, sport: 7, dport: 8, tcpFlags: rst})
	if got := len(n.flows()); got != 4 {
		t.Fatalf("%d flows, want 4", got)
	}
	waitTick()
	n.rules(setA)
	n.rules(setB)
	n.expect("expired, replied to", dropped(datapath.ReasonPolicyDenied, out), func() result { return n.fromB(u.reply()) })
	n.expect("established lives on", delivered(), func() result { return n.fromB(established.reply()) })
	alive, removed, err := n.maps.CollectCT(t.Context())
	n.must(err)
	if alive != 1 || removed != 3 {
		t.Errorf("collected %d, left %d; want 3 and 1", removed, alive)
	}
	if list := n.flows(); len(list) != 1 || list[0].Src.Port() != 5 {
		t.Errorf("left: %+v", list)
	}
}

// TestTCPStates: the lifetime follows the connection.
func TestTCPStates(t *testing.T) {
	n := newNode(t, testConfig())
	n.allowAll()
	f := frame{src: a4, dst: b4, proto: tcp, sport: 3, dport: 4, tcpFlags: syn}
	forward := func(flags uint8) { g := f; g.tcpFlags = flags; n.fromA(g) }
	backward := func(flags uint8) { g := f.reply(); g.tcpFlags = flags; n.fromB(g) }
	check := func(what string, expires time.Duration, closing bool) {
		t.Helper()
		list := n.flows()
		if len(list) != 1 {
			t.Fatalf("%s: %d flows", what, len(list))
		}
		if d := list[0].Expires - expires; d > 2*time.Second || d < -5*time.Second || list[0].Closing != closing {
			t.Errorf("%s: expires in %s, want %s; closing %t, want %t", what, list[0].Expires, expires, list[0].Closing, closing)
		}
	}
	def := datapath.DefaultCTTimeouts()
	forward(syn)
	check("SYN", def.TCPSyn, false)
	backward(syn | ack)
	check("SYN ACK", def.TCP, false)
	forward(fin | ack)
	check("half closed", def.TCP, true)
	backward(fin | ack)
	check("closed", def.TCPFin, true)
	forward(syn)
	check("opened again", def.TCPSyn, false)
	backward(rst | ack)
	check("refused", def.TCPFin, true)
}

// TestForgedReset: a reset that does not end a connection does not have it forgotten. Who sends one
// knows no more than its ends.
func TestForgedReset(t *testing.T) {
	families(t, func(t *testing.T, v6 bool, a, b, r, w, router netip.Addr) {
		cfg := testConfig()
		cfg.CTTimeouts = datapath.CTTimeouts{TCP: time.Hour, TCPSyn: time.Hour, TCPFin: time.Nanosecond, Any: time.Hour}
		n := newNode(t, cfg)
		n.rules(setA, allow(out, 0, 0, 0))
		for name, goesOn := range map[string]bool{"from the client": true, "from the server": false} {
			f := frame{src: a, dst: w, proto: tcp, sport: 5000, dport: 443, tcpFlags: syn}
			if !goesOn {
				f.sport++
			}
			data := f.reply()
			data.tcpFlags = ack
			n.expect("open", passes(out), func() result { return n.fromA(f) })
			n.expect("answer", passes(in), func() result { return n.toA(f.reply()) })
			forged := f.reply()
			forged.tcpFlags = rst
			n.expect("forged", passes(in), func() result { return n.toA(forged) })
			f.tcpFlags = ack
			if goesOn {
				n.expect(name+", it goes on", passes(out), func() result { return n.fromA(f) })
			} else {
				n.expect(name+", it goes on", passes(in), func() result { return n.toA(data) })
			}
			waitTick()
			n.expect(name+", and on", passes(in), func() result { return n.toA(data) })
			// A reset that ends it does.
			n.expect("a reset", passes(in), func() result { return n.toA(forged) })
			last := forged
			last.tcpFlags = fin | ack
			n.expect("under way", passes(in), func() result { return n.toA(last) })
			waitTick()
			n.expect("ended", dropped(datapath.ReasonPolicyDenied, in), func() result { return n.toA(data) })
		}
	})
}

// inner returns what an ICMP error about f quotes: its header and 8 bytes more.
func inner(f frame) []byte {
	b := f.network()
	if f.src.Is4() {
		return b[:28]
	}
	return b[:48]
}

// quotedHeader is extension headers of a packet, as in frame.ext, and why an ICMP error about it is
// dropped, if it is.
type quotedHeader struct {
	ext    []byte
	reason datapath.DropReason
}

func quotedHeaders() map[string]quotedHeader {
	options := func(next byte) []byte { return []byte{next, 0, 1, 4, 0, 0, 0, 0} }
	routing := func(next, left byte) []byte { return []byte{next, 0, 4, left, 0, 0, 0, 0} }
	many := []byte{60}
	for range 7 {
		many = append(many, options(60)...)
	}
	return map[string]quotedHeader{
		"hop-by-hop options":        {ext: append([]byte{0}, options(0)...)},
		"options for its end":       {ext: append([]byte{60, 0, 1, 1, 12}, make([]byte, 12)...)},
		"a route that it has taken": {ext: append([]byte{43}, routing(0, 0)...)},
		"all of these":              {ext: slices.Concat([]byte{0}, options(43), routing(60, 0), options(0))},
		"a route to take":           {append([]byte{43}, routing(0, 1)...), datapath.ReasonUnknownRelated},
		"hop-by-hop options twice":  {slices.Concat([]byte{0}, options(0), options(0)), datapath.ReasonMalformed},
		"more than any packet has":  {many, datapath.ReasonUnknownRelated},
	}
}

// TestRelated: an ICMP error passes if it is about a flow that is known, and is for its sender.
func TestRelated(t *testing.T) {
	families(t, func(t *testing.T, v6 bool, a, b, r, w, router netip.Addr) {
		n := newNode(t, testConfig())
		proto, unreachable, other := uint8(icmp), uint8(3), netip.MustParseAddr("9.9.9.9")
		if v6 {
			proto, unreachable, other = icmp6, 1, netip.MustParseAddr("2607::9")
		}
		for name, f := range protocols(v6) {
			n.rules(setA, allow(out, 0, f.proto, port(f)))
			n.rules(setB, allow(in, 0, f.proto, port(f)))
			f.src, f.dst = a, w
			report := frame{src: w, dst: a, proto: proto, icmpType: unreachable, payload: inner(f)}
			fromRouter := report
			fromRouter.src = other
			n.expect(name+" unknown flow", dropped(datapath.ReasonUnknownRelated, in), func() result { return n.toA(report) })
			n.expect(name+" open", passes(out), func() result { return n.fromA(f) })
			n.expect(name+" from the destination", passes(in), func() result { return n.toA(report) })
			n.expect(name+" from a router on the way", passes(in), func() result { return n.toA(fromRouter) })
			wrong := report
			aside := f
			aside.dst = other
			wrong.payload = inner(aside)
			n.expect(name+" about another flow", dropped(datapath.ReasonUnknownRelated, in), func() result { return n.toA(wrong) })
			cut := report
			cut.payload = cut.payload[:len(cut.payload)-1]
			n.expect(name+" quoting too little", dropped(datapath.ReasonMalformed, in), func() result { return n.toA(cut) })

			if v6 && f.proto != icmp6 {
				// A router that has no room for a piece of a datagram quotes the piece.
				piece := f
				piece.more, piece.fragID = true, 9
				report.payload = piece.network()[:56]
				n.expect(name+" about the first piece", passes(in), func() result { return n.toA(report) })
				piece.payload, piece.fragOffset = make([]byte, 16), 1232
				report.payload = piece.network()[:56]
				n.expect(name+" about a later piece", dropped(datapath.ReasonUnknownRelated, in), func() result { return n.toA(report) })
				report.payload = report.payload[:44]
				n.expect(name+" quoting half a header", dropped(datapath.ReasonMalformed, in), func() result { return n.toA(report) })
				for what, c := range quotedHeaders() {
					quoted := f
					quoted.ext = c.ext
					report.payload = quoted.network()[:48+len(c.ext)-1]
					want := dropped(c.reason, in)
					if c.reason == 0 {
						want = passes(in)
					}
					n.expect(name+" about one with "+what, want, func() result { return n.toA(report) })
					report.payload = report.payload[:len(report.payload)-1]
					if c.reason == 0 {
						n.expect(name+" quoting too little of one with "+what, dropped(datapath.ReasonMalformed, in), func() result { return n.toA(report) })
					}
				}
				piece.ext, piece.fragOffset = []byte{0, 0, 0, 1, 4, 0, 0, 0, 0}, 0
				report.payload = piece.network()[:64]
				n.expect(name+" about the first piece of one with hop-by-hop options", passes(in), func() result { return n.toA(report) })
				report.payload = inner(f)
			}

			// Between pods: b refuses what a sent; a has no business refusing a's own.
			f.dst = b
			n.expect(name+" to b", delivered(), func() result { return n.fromA(f) })
			refusal := frame{src: b, dst: a, proto: proto, icmpType: unreachable, payload: inner(f)}
			n.expect(name+" refused by b", delivered(), func() result { return n.fromB(refusal) })
			foreign := frame{src: b, dst: a, proto: proto, icmpType: unreachable}
			f.dst = w
			foreign.payload = inner(f)
			n.expect(name+" b speaks of what was not sent to it", dropped(datapath.ReasonUnknownRelated, out), func() result { return n.fromB(foreign) })
			f.dst = b
			f.sport++
			f.icmpID++
			refusal.payload = inner(f)
			n.expect(name+" b makes it up", dropped(datapath.ReasonUnknownRelated, out), func() result { return n.fromB(refusal) })
			stolen := frame{src: b, dst: a, proto: proto, icmpType: unreachable, payload: inner(frame{src: w, dst: b, proto: udp})}
			n.expect(name+" not for the sender", dropped(datapath.ReasonUnknownRelated, out), func() result { return n.fromB(stolen) })
		}
		// An error is no way around a revocation.
		f := protocols(v6)["udp"]
		f.src, f.dst = a, w
		n.rules(setA)
		n.a.PolicyGeneration++
		n.upsert(n.a)
		report := frame{src: w, dst: a, proto: proto, icmpType: unreachable, payload: inner(f)}
		n.expect("after revocation", dropped(datapath.ReasonPolicyDenied, out), func() result { return n.toA(report) })
	})
}

// TestPolicyKeyClasses: any protocol, port ranges as prefixes, one identity against any.
func TestPolicyKeyClasses(t *testing.T) {
	n := newNode(t, testConfig())
	n.rules(setB, allow(in, 0, 0, 0))
	portRange := entry{PolicyKey: datapath.PolicyKey{Direction: out, Identity: idB, Proto: tcp, Port: 8000, PortBits: 11}} // 8000-8031
	try := func(name string, proto uint8, dport uint16, w want) {
		t.Helper()
		n.a.PolicyGeneration++
		n.upsert(n.a)
		n.expect(name, w, func() result { return n.fromA(frame{src: a4, dst: b4, proto: proto, sport: 9, dport: dport}) })
	}
	denied, denyRule := dropped(datapath.ReasonPolicyDenied, out), dropped(datapath.ReasonPolicyDeny, out)
	n.rules(setA, portRange)
	try("below the range", tcp, 7999, denied)
	try("start of the range", tcp, 8000, delivered())
	try("end of the range", tcp, 8031, delivered())
	try("above the range", tcp, 8032, denied)
	try("another protocol", udp, 8000, denied)
	n.rules(setA, portRange, deny(out, idB, tcp, 8001))
	try("port in the range, denied", tcp, 8001, denyRule)
	try("its neighbour", tcp, 8002, delivered())
	n.rules(setA, allow(out, 0, 0, 0), deny(out, idB, tcp, 0))
	try("any allowed, one identity's protocol denied", tcp, 1, denyRule)
	try("any allowed", udp, 1, delivered())
	n.rules(setA, allow(out, idB, 0, 0), deny(out, 0, udp, 53))
	try("one allowed, any denied", udp, 53, denyRule)
	try("one allowed", udp, 54, delivered())
	n.must(n.maps.InstallRuleSet(datapath.RuleSet{ID: setA, IngressEnforced: true}))
	try("not enforced", udp, 53, delivered())
	n.must(n.maps.InstallRuleSet(datapath.RuleSet{ID: setA, Entries: map[datapath.PolicyKey]datapath.PolicyEntry{
		{Direction: out, Identity: idB, Proto: udp}: {Deny: true}}}))
	try("not enforced, denied", udp, 53, denyRule)
	try("not enforced, another protocol", tcp, 53, delivered())
}

// TestEncapsulation: a packet for another node leaves with the sender's identity in the VNI.
func TestEncapsulation(t *testing.T) {
	families(t, func(t *testing.T, v6 bool, a, b, r, w, router netip.Addr) {
		n := newNode(t, testConfig())
		n.allowAll()
		spec, err := loadEncapTest()
		p := n.testObject(spec, err, "encap_seen", nil)
		f := frame{src: a, dst: r, proto: tcp, sport: 1, dport: 2, tcpFlags: syn, ethSrc: aMAC, ethDst: aHost}
		check := func(name string, outcome datapath.Outcome, vni, remote4, remote6 uint32) {
			t.Helper()
			got := n.run(p, n.ifA, 0, f.bytes())
			if cb := got.ctx.CB; cb[0] != uint32(outcome) || cb[1] != vni || cb[2] != remote4 || cb[3] != remote6 {
				t.Errorf("%s: control block %x", name, cb)
			}
			// It comes from the address that this node announces, whichever the route would have
			// chosen.
			from := map[bool]uint32{remote4 != 0: 0xC0A80001, remote6 != 0: 0x01000000}[true]
			if got.ctx.Mark != from {
				t.Errorf("%s: sent from %x, want %x", name, got.ctx.Mark, from)
			}
		}
		check("remote pod", datapath.OutcomeOverlay, idA, 0xC0A80002, 0)
		ea := n.a
		ea.Identity = 1<<24 | 0x10005
		n.upsert(ea)
		check("temporary identity", datapath.OutcomeOverlay, 5, 0xC0A80002, 0)
		n.upsert(n.a)
		n.must(n.maps.UpsertIPCache([]datapath.IPCacheEntry{{Prefix: netip.PrefixFrom(r, r.BitLen()), Identity: idR,
			TunnelEndpoint: netip.MustParseAddr("fd99::2")}}))
		check("underlay of IPv6", datapath.OutcomeOverlay, idA, 0, 0x000099fd)
		n.must(n.maps.UpsertIPCache([]datapath.IPCacheEntry{{Prefix: netip.PrefixFrom(r, r.BitLen()), Identity: idR}}))
		check("no tunnel to it", datapath.OutcomeStack, 0, 0, 0)
		f.dst = w
		check("world", datapath.OutcomeStack, 0, 0, 0)
	})
}

// TestFromOverlay: the VNI is the identity, if a peer may have it.
func TestFromOverlay(t *testing.T) {
	families(t, func(t *testing.T, v6 bool, a, b, r, w, router netip.Addr) {
		cfg := testConfig()
		cfg.TunnelIfIndex = 1
		n := newNode(t, cfg)
		spec, err := loadOverlayTest()
		p := n.testObject(spec, err, "overlay_with_vni", nil)
		f := frame{src: r, dst: a, proto: tcp, sport: 1, dport: 2, tcpFlags: syn, ethSrc: bMAC, ethDst: bHost}
		run := func(vni uint32) func() result {
			return func() result { return n.run(p, n.ifA, vni, f.bytes()) }
		}
		for vni, identity := range map[uint32]uint32{
			idR: idR, 1: 6, 6: 6, 2: 2, 9: 2, 10: 2, 3: 3, 4: 4, 5: 5, 7: 7, 8: 8, 100: 100, 112: 112, 128: 128, 255: 255, 256: 256, 65535: 65535,
		} {
			n.rules(setA, allow(in, identity, tcp, 2))
			n.expect("allowed", delivered(), run(vni))
			n.rules(setA)
			n.a.PolicyGeneration++
			n.upsert(n.a)
			n.expect("revoked", dropped(datapath.ReasonPolicyDenied, in), run(vni))
		}
		n.rules(setA, allow(in, 0, 0, 0))
		for _, vni := range []uint32{0, 11, 14, 99, 65536, 1<<24 - 1} {
			n.expect("invalid identity", dropped(datapath.ReasonInvalidIdentity, in), run(vni))
		}
		// A node that is known as more than a node.
		n.must(n.maps.UpsertIPCache([]datapath.IPCacheEntry{{Prefix: netip.PrefixFrom(r, r.BitLen()), Identity: 7, TunnelEndpoint: otherNode}}))
		n.rules(setA, allow(in, 7, tcp, 2))
		n.a.PolicyGeneration++
		n.upsert(n.a)
		n.expect("the API server's node", delivered(), run(6))

		n.rules(setA, allow(in, 0, 0, 0))
		got := n.expect("delivered", delivered(), run(idR))
		expect := f
		expect.ethSrc, expect.ethDst, expect.ttl = aHost, aMAC, 63
		if string(got.out) != string(expect.bytes()) {
			t.Errorf("a gets\n%x, want\n%x", got.out, expect.bytes())
		}
		f.dst = router
		n.expect("for the host", passes(in), run(idR))
		f.dst = w
		n.expect("for an address that is no endpoint's", dropped(datapath.ReasonNoEndpoint, in), run(idR))
		f.dst, f.src = a, router
		n.expect("in this node's name", dropped(datapath.ReasonInvalidSourceIP, in), run(idR))
		plain := n.loader.Program(loader.FromOverlay)
		n.expect("without metadata", dropped(datapath.ReasonUnknownTunnelPeer, in), func() result { return n.run(plain, n.ifA, 0, f.bytes()) })
	})
}

// TestOverlayReplyBeforeUpdate: a pod of another node has opened a flow, and this node knows no
// more of its address than the network it lies in. The reply belongs to the flow all the same; what
// the pod here opens by itself is evaluated by what is known.
func TestOverlayReplyBeforeUpdate(t *testing.T) {
	families(t, func(t *testing.T, v6 bool, a, b, r, w, router netip.Addr) {
		n := newNode(t, testConfig())
		spec, err := loadOverlayTest()
		p := n.testObject(spec, err, "overlay_with_vni", nil)
		const unmanaged = 3
		network, _ := r.Prefix(r.BitLen() - 8)
		n.must(n.maps.DeleteIPCache([]netip.Prefix{netip.PrefixFrom(r, r.BitLen())}))
		n.must(n.maps.UpsertIPCache([]datapath.IPCacheEntry{{Prefix: network, Identity: unmanaged}}))
		n.rules(setA, allow(in, idR, tcp, 2))
		f := frame{src: r, dst: a, proto: tcp, sport: 1, dport: 2, tcpFlags: syn, ethSrc: bMAC, ethDst: bHost}
		n.expect("opens", delivered(), func() result { return n.run(p, n.ifA, idR, f.bytes()) })
		answer := frame{src: a, dst: r, proto: tcp, sport: 2, dport: 1, tcpFlags: syn | ack}
		n.expect("is answered", passes(out), func() result { return n.fromA(answer) })
		own := frame{src: a, dst: r, proto: tcp, sport: 3, dport: 1, tcpFlags: syn}
		n.expect("opened here", dropped(datapath.ReasonPolicyDenied, out), func() result { return n.fromA(own) })
		// The update comes, and says otherwise: the flow has another owner now.
		n.must(n.maps.UpsertIPCache([]datapath.IPCacheEntry{{Prefix: netip.PrefixFrom(r, r.BitLen()), Identity: idB}}))
		n.expect("answer to another", dropped(datapath.ReasonPolicyDenied, in), func() result { return n.fromA(answer) })
	})
}

// TestFromHost: the host's packets for other nodes' pods are encapsulated, and no other source is
// taken for the host.
func TestFromHost(t *testing.T) {
	families(t, func(t *testing.T, v6 bool, a, b, r, w, router netip.Addr) {
		cfg := testConfig()
		cfg.Tunnel, cfg.TunnelIfIndex, cfg.TunnelPort, cfg.HostIfIndex = true, 1, tunnelPort, hostIf
		n := newNode(t, cfg)
		run := func(f frame) func() result {
			return func() result { return n.run(n.loader.Program(loader.FromHost), n.ifA, 0, f.bytes()) }
		}
		f := frame{src: router, dst: r, proto: tcp, sport: 1, dport: 2}
		n.expect("to a remote pod", redirected(out), run(f))
		f.dst = w
		n.expect("to an address without a tunnel endpoint", dropped(datapath.ReasonNoTunnel, out), run(f))
		f.dst = router
		n.expect("to itself", passes(out), run(f))
		f.etherType = 0x0806
		n.expect("not IP", passes(out), run(f))
	})
}

// TestFromNetdev: native routing delivers what the cluster sends, and leaves the rest to the stack.
func TestFromNetdev(t *testing.T) {
	families(t, func(t *testing.T, v6 bool, a, b, r, w, router netip.Addr) {
		cfg := testConfig()
		cfg.NativeIfIndex = nativeIf
		n := newNode(t, cfg)
		n.must(n.maps.UpsertIPCache([]datapath.IPCacheEntry{{Prefix: netip.PrefixFrom(r, r.BitLen()), Identity: idR}}))
		run := func(f frame) func() result {
			return func() result {
				// Frames to the interface's own address count as for the host.
				return n.run(n.loader.Program(loader.FromNetdev), n.ifA, 0, f.bytes())
			}
		}
		f := frame{src: r, dst: a, proto: tcp, sport: 1, dport: 2, ethDst: n.macA(), ethSrc: bMAC}
		n.expect("not allowed", dropped(datapath.ReasonPolicyDenied, in), run(f))
		n.rules(setA, allow(in, idR, tcp, 2))
		n.expect("allowed", delivered(), run(f))
		f.src = w
		n.expect("from outside", passes(in), run(f))
		f.src, f.dst = r, w
		n.expect("for others", passes(in), run(f))
		f.src, f.dst = b, a
		n.must(n.maps.UpsertIPCache([]datapath.IPCacheEntry{{Prefix: netip.PrefixFrom(b, b.BitLen()), Identity: idB}}))
		n.expect("in a local pod's name", dropped(datapath.ReasonInvalidSourceIP, in), run(f))
	})
}

// TestBlocks: a rule about a block of addresses holds for whoever has one of them, a local pod,
// another node's, the node itself or the world; it adds to what the peer's identity is allowed, and
// its denies win.
func TestBlocks(t *testing.T) {
	families(t, func(t *testing.T, v6 bool, a, b, r, w, router netip.Addr) {
		const block = datapath.BlockScope << 24
		n := newNode(t, testConfig())
		around := func(addr netip.Addr, bits int) netip.Prefix { return netip.PrefixFrom(addr, bits).Masked() }
		single := func(addr netip.Addr) netip.Prefix { return around(addr, addr.BitLen()) }
		n.must(n.maps.UpsertBlocks([]datapath.Block{{Prefix: around(w, 0), Identity: block + 1}}))
		sport := uint16(20000)
		send := func(dst netip.Addr) func() result {
			sport++
			f := frame{src: a, dst: dst, proto: tcp, sport: sport, dport: 443, tcpFlags: syn}
			return func() result { return n.fromA(f) }
		}
		n.rules(setB, allow(in, 0, 0, 0))
		everyone := map[string]netip.Addr{"remote pod": r, "world": w, "node": router}
		for name, dst := range everyone {
			n.rules(setA)
			n.expect(name+" without a rule", dropped(datapath.ReasonPolicyDenied, out), send(dst))
			n.rules(setA, allow(out, block+1, tcp, 443))
			n.expect(name+" in the block", passes(out), send(dst))
			n.rules(setA, allow(out, block+1, tcp, 80))
			n.expect(name+" at another port", dropped(datapath.ReasonPolicyDenied, out), send(dst))
			n.rules(setA, allow(out, 0, 0, 0), deny(out, block+1, tcp, 443))
			n.expect(name+" denied", dropped(datapath.ReasonPolicyDeny, out), send(dst))
			n.rules(setA, allow(out, 0, tcp, 443), allow(out, block+1, tcp, 80))
			n.expect(name+" allowed as anyone", passes(out), send(dst))
			// Exceptions are blocks of their own, to which the rule does not speak.
			n.must(n.maps.UpsertBlocks([]datapath.Block{{Prefix: single(dst), Identity: block + 2}}))
			n.rules(setA, allow(out, block+1, tcp, 443))
			n.expect(name+" excepted", dropped(datapath.ReasonPolicyDenied, out), send(dst))
			n.rules(setA, allow(out, block+1, tcp, 443), allow(out, block+2, tcp, 443))
			n.expect(name+" in both", passes(out), send(dst))
			n.must(n.maps.DeleteBlocks([]netip.Prefix{single(dst)}))
			n.rules(setA, allow(out, block+2, tcp, 443))
			n.expect(name+" in no such block", dropped(datapath.ReasonPolicyDenied, out), send(dst))
		}
		// A local pod is evaluated by both sides, each by the other's address.
		n.must(n.maps.UpsertBlocks([]datapath.Block{{Prefix: single(a), Identity: block + 3}, {Prefix: single(b), Identity: block + 4}}))
		n.rules(setA, allow(out, block+4, tcp, 443))
		n.rules(setB, allow(in, block+3, tcp, 443))
		n.expect("local pod", delivered(), send(b))
		n.rules(setB, allow(in, block+4, tcp, 443))
		n.expect("local pod by its own address", dropped(datapath.ReasonPolicyDenied, in), send(b))
		n.rules(setB, allow(in, block+3, tcp, 443))
		n.rules(setA, allow(out, block+3, tcp, 443))
		n.expect("from its own address", dropped(datapath.ReasonPolicyDenied, out), send(b))

		// A flow that is evaluated again is evaluated by the addresses of its opening, also by its
		// answers.
		n.rules(setA, allow(out, block+4, tcp, 443))
		open := frame{src: a, dst: b, proto: tcp, sport: 7, dport: 443, tcpFlags: syn}
		n.expect("open", delivered(), func() result { return n.fromA(open) })
		for _, ep := range []*datapath.Endpoint{&n.a, &n.b} {
			ep.PolicyGeneration++
			n.upsert(*ep)
		}
		n.expect("answer", delivered(), func() result { return n.fromB(open.reply()) })
		n.rules(setB)
		n.b.PolicyGeneration++
		n.upsert(n.b)
		n.expect("answer after revocation", dropped(datapath.ReasonPolicyDenied, in), func() result { return n.fromB(open.reply()) })

		// From outside, at the stack's door.
		n.rules(setA, allow(in, block+1, tcp, 80))
		g := frame{src: w, dst: a, proto: tcp, sport: 6000, dport: 80, tcpFlags: syn}
		n.expect("from the world", passes(in), func() result { return n.toA(g) })
		n.must(n.maps.UpsertBlocks([]datapath.Block{{Prefix: single(w), Identity: block + 5}}))
		g.sport++
		n.expect("from an excepted address", dropped(datapath.ReasonPolicyDenied, in), func() result { return n.toA(g) })
	})
}
