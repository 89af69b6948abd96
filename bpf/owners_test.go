package bpf_test

import (
	"net/netip"
	"testing"

	"github.com/hawser-net/hawser/internal/datapath"
)

// inherit gives pod a's addresses, number and interface to a new pod, which admits no ingress and
// whose egress is not restricted.
func (n *node) inherit() {
	n.t.Helper()
	n.must(n.maps.DeleteEndpoint(n.ifA))
	n.a.Identity, n.a.RuleSet = 4000, 3
	n.a.PolicyGeneration += 100
	n.a.Incarnation += 100
	n.must(n.maps.InstallRuleSet(datapath.RuleSet{ID: 3, IngressEnforced: true, Entries: map[datapath.PolicyKey]datapath.PolicyEntry{}}))
	n.upsert(n.a)
}

// newJoined returns a node that pods' addresses are routed to by the network of nodes.
func newJoined(t *testing.T) *node {
	cfg := testConfig()
	cfg.NativeIfIndex = nativeIf
	return newNode(t, cfg)
}

// fromOtherNode has the stack give pod a what came from another node.
func (n *node) fromOtherNode(f frame) result { n.t.Helper(); return n.toABy(nativeIf, f) }

// TestAddressReuse: who gets an address gets none of its former owner's flows: an answer to these
// is none, and what the new owner sends opens flows of its own.
func TestAddressReuse(t *testing.T) {
	families(t, func(t *testing.T, v6 bool, a, b, r, w, router netip.Addr) {
		n := newJoined(t)
		n.allowAll()
		for _, row := range []struct {
			name string
			peer netip.Addr
		}{{"the world", w}, {"a pod of this node", b}, {"a pod of another node", r}} {
			for name, f := range protocols(v6) {
				n.a.RuleSet = setA
				n.upsert(n.a)
				send := n.toA
				switch row.peer {
				case b:
					send = n.fromB
				case r:
					send = n.fromOtherNode
				}
				f.src, f.dst = a, row.peer
				back := f.reply()
				if f.proto == tcp {
					back.tcpFlags = syn | ack
				}
				to, from := passes(out), passes(in)
				if row.peer == b {
					to, from = delivered(), delivered()
				}
				what := row.name + ", " + name
				n.expect(what+": opens", to, func() result { return n.fromA(f) })
				n.expect(what+": is answered", from, func() result { return send(back) })
				n.inherit()
				data := back
				if f.proto == tcp {
					data.tcpFlags = ack
				}
				refusal := dropped(datapath.ReasonPolicyDenied, in)
				if f.proto == icmp || f.proto == icmp6 {
					// An answer to an echo is evaluated as a message of its own.
					n.expect(what+": a late answer", refusal, func() result { return send(back) })
				} else {
					n.expect(what+": a late answer", refusal, func() result { return send(data) })
					fresh := back
					fresh.tcpFlags = syn
					n.expect(what+": a new connection", refusal, func() result { return send(fresh) })
				}
				report := frame{src: router, dst: a, proto: icmp, icmpType: 3, payload: inner(f)}
				if v6 {
					report.proto, report.icmpType = icmp6, 1
				}
				n.expect(what+": an error about it", dropped(datapath.ReasonUnknownRelated, in), func() result { return n.toA(report) })
				// The same ends, opened by the new owner, are a flow of its own.
				n.expect(what+": opened anew", to, func() result { return n.fromA(f) })
				n.expect(what+": answered anew", from, func() result { return send(back) })
			}
		}
	})
}

// TestAddressReuseInbound: a flow that was let in by its former owner is not let in by the next.
func TestAddressReuseInbound(t *testing.T) {
	families(t, func(t *testing.T, v6 bool, a, b, r, w, router netip.Addr) {
		for _, peer := range []netip.Addr{w, b} {
			n := newNode(t, testConfig())
			n.allowAll()
			f := frame{src: peer, dst: a, proto: tcp, sport: 5000, dport: 80, tcpFlags: syn}
			send, want := n.toA, passes(in)
			if peer == b {
				send, want = n.fromB, delivered()
			}
			n.expect("let in", want, func() result { return send(f) })
			n.inherit()
			f.tcpFlags = ack
			n.expect("not any more", dropped(datapath.ReasonPolicyDenied, in), func() result { return send(f) })
		}
	})
}

// TestEndpointKeepsFlows: what happens to an endpoint while it lives does not take its flows away.
func TestEndpointKeepsFlows(t *testing.T) {
	families(t, func(t *testing.T, v6 bool, a, b, r, w, router netip.Addr) {
		n := newNode(t, testConfig())
		n.rules(setA, allow(out, 0, 0, 0))
		f := frame{src: a, dst: w, proto: tcp, sport: 5000, dport: 443, tcpFlags: syn}
		n.expect("open", passes(out), func() result { return n.fromA(f) })
		for what, change := range map[string]func(*datapath.Endpoint){
			"a new generation":   func(e *datapath.Endpoint) { e.PolicyGeneration += 5 },
			"another identity":   func(e *datapath.Endpoint) { e.Identity++ },
			"another rule set":   func(e *datapath.Endpoint) { e.RuleSet = 5; e.PolicyGeneration++ },
			"another host's MAC": func(e *datapath.Endpoint) { e.HostMAC = bHost },
		} {
			n.rules(5, allow(out, 0, 0, 0))
			change(&n.a)
			n.upsert(n.a)
			n.expect(what, passes(in), func() result { return n.toA(f.reply()) })
		}
	})
}

// TestPeerComesHere: an address that was elsewhere when a flow was opened, and is a pod's of this
// node now, takes no part in the flow; and the other way round.
func TestPeerComesHere(t *testing.T) {
	families(t, func(t *testing.T, v6 bool, a, b, r, w, router netip.Addr) {
		n := newNode(t, testConfig())
		n.allowAll()
		n.must(n.maps.DeleteEndpoint(n.ifB))
		f := frame{src: a, dst: b, proto: udp, sport: 5000, dport: 53}
		n.expect("to an address elsewhere", passes(out), func() result { return n.fromA(f) })
		n.rules(setA, allow(out, 0, 0, 0))
		n.upsert(n.b)
		n.expect("who has it now is no answer", dropped(datapath.ReasonPolicyDenied, in), func() result { return n.fromB(f.reply()) })
		n.expect("asked here", delivered(), func() result { return n.fromA(f) })
		n.expect("answers", delivered(), func() result { return n.fromB(f.reply()) })
		n.must(n.maps.DeleteEndpoint(n.ifB))
		n.expect("who has it elsewhere is no answer either", dropped(datapath.ReasonPolicyDenied, in), func() result { return n.toA(f.reply()) })
	})
}

// TestPeerOpensNothing: a connection that has been answered is not opened by the side that
// answered: that may be another who has its address, on another node, and has the same identity.
func TestPeerOpensNothing(t *testing.T) {
	families(t, func(t *testing.T, v6 bool, a, b, r, w, router netip.Addr) {
		for _, proto := range []uint8{tcp, sctp} {
			n := newJoined(t)
			n.rules(setA, allow(out, 0, 0, 0))
			f := frame{src: a, dst: r, proto: proto, sport: 8080, dport: 443}.opens(true)
			back := f.reply().opens(true)
			n.expect("open", passes(out), func() result { return n.fromA(f) })
			n.expect("both open at once", passes(in), func() result { return n.fromOtherNode(back) })
			n.expect("opens once more", dropped(datapath.ReasonPolicyDenied, in), func() result { return n.fromOtherNode(back) })
			answer := f.reply()
			if proto == sctp {
				answer.payload = []byte{2, 0, 0, 20, 19: 0} // INIT ACK
			}
			n.expect("answers", passes(in), func() result { return n.fromOtherNode(answer) })
			n.rules(setA, allow(out, 0, 0, 0), allow(in, idR, proto, 8080))
			n.expect("opens where it may", passes(in), func() result { return n.fromOtherNode(back) })
		}
	})
}

// TestServiceChoiceOfFormerOwner: neither a client's successor nor a backend's gets what was chosen
// for them.
func TestServiceChoiceOfFormerOwner(t *testing.T) {
	families(t, func(t *testing.T, v6 bool, a, b, r, w, router netip.Addr) {
		n, vip := newServing(t, v6)
		n.publish(vip, udp, func(s *datapath.Service) { s.Affinity = 1000e9 }, netip.AddrPortFrom(b, 8053))
		f := frame{src: a, dst: vip, proto: udp, sport: 5000, dport: vipPort, ethSrc: aMAC, ethDst: aHost}
		ask := func() result { return n.fromABytes(withChecksum(f.bytes())) }
		n.expect("asks", delivered(), ask)
		n.publish(vip, udp, nil, netip.AddrPortFrom(r, 8053))
		n.expect("goes on", delivered(), ask)

		n.inherit()
		n.expect("the next owner asks a backend of now", passes(out), ask)

		// The backend's address is another pod's, which is no backend: one packet is lost and the
		// next goes to one that is.
		n.publish(vip, udp, nil, netip.AddrPortFrom(b, 8053))
		f.sport++
		n.expect("asks b", delivered(), ask)
		n.publish(vip, udp, nil, netip.AddrPortFrom(r, 8053))
		n.b.Incarnation, n.b.PolicyGeneration = 50, 50
		n.must(n.maps.DeleteEndpoint(n.ifB))
		n.upsert(n.b)
		n.expect("b is another", dropped(datapath.ReasonServiceChanging, out), ask)
		n.expect("asks a backend of now", passes(out), ask)
	})
}

// TestHairpinOfFormerOwner: what a pod has said to itself is not the next owner's.
func TestHairpinOfFormerOwner(t *testing.T) {
	families(t, func(t *testing.T, v6 bool, a, b, r, w, router netip.Addr) {
		n, vip := newServing(t, v6)
		n.publish(vip, udp, nil, netip.AddrPortFrom(a, 8053))
		f := frame{src: a, dst: vip, proto: udp, sport: 5000, dport: vipPort, ethSrc: aMAC, ethDst: aHost}
		n.expect("asks itself", delivered(), func() result { return n.fromABytes(withChecksum(f.bytes())) })
		lo4, lo6 := datapath.DefaultLoopbacks()
		lo := lo4
		if v6 {
			lo = lo6
		}
		answer := frame{src: a, dst: lo, proto: udp, sport: 8053, dport: 5000, ethSrc: aMAC, ethDst: aHost}
		n.expect("answers itself", delivered(), func() result { return n.fromABytes(withChecksum(answer.bytes())) })
		n.inherit()
		n.expect("the next owner does not", dropped(datapath.ReasonNoEndpoint, out), func() result {
			return n.fromABytes(withChecksum(answer.bytes()))
		})
	})
}
