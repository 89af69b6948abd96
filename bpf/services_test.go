package bpf_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/hawser-net/hawser/internal/datapath"
)

var vip4, vip6 = netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("fd96::10")

const vipPort = 5300

// vipOf returns the address of the tests' service in one family.
func vipOf(v6 bool) netip.Addr {
	if v6 {
		return vip6
	}
	return vip4
}

// newServing returns a node whose pods may send to all and receive from all, and the address of its
// service.
func newServing(t *testing.T, v6 bool) (n *node, vip netip.Addr) {
	t.Helper()
	n = newNode(t, testConfig())
	n.allowAll()
	return n, vipOf(v6)
}

// publish makes a frontend lead to backends.
func (n *node) publish(vip netip.Addr, proto uint8, change func(*datapath.Service), backends ...netip.AddrPort) {
	n.t.Helper()
	s := datapath.Service{ServiceFrontend: datapath.ServiceFrontend{Addr: netip.AddrPortFrom(vip, vipPort), Proto: proto}, ID: 7, Backends: backends}
	slices.SortFunc(s.Backends, netip.AddrPort.Compare)
	if change != nil {
		change(&s)
	}
	n.must(n.maps.UpsertService(s))
}

// withChecksum completes a frame's transport checksum; parsed from the bytes, so that it serves as
// oracle too.
func withChecksum(frame []byte) []byte {
	b := slices.Clone(frame)
	l3 := b[14:]
	var l4, pseudo []byte
	var proto byte
	if l3[0]>>4 == 4 {
		l4, proto = l3[int(l3[0]&15)*4:], l3[9]
		pseudo = slices.Clone(l3[12:20])
	} else {
		l4, proto = l3[40:], l3[6]
		pseudo = slices.Clone(l3[8:40])
	}
	pseudo = binary.BigEndian.AppendUint32(pseudo, uint32(len(l4)))
	pseudo = append(pseudo, 0, 0, 0, proto)
	off := map[byte]int{tcp: 16, udp: 6, icmp6: 2}[proto]
	if off == 0 {
		return b
	}
	l4[off], l4[off+1] = 0, 0
	sum := ^checksum(append(pseudo, l4...))
	if sum == 0 && proto == udp {
		sum = 0xffff
	}
	binary.BigEndian.PutUint16(l4[off:], sum)
	return b
}

func (n *node) fromABytes(in []byte) result {
	n.t.Helper()
	return n.run(n.loader.Program("from_pod"), n.ifA, 0, in)
}
func (n *node) fromBBytes(in []byte) result {
	n.t.Helper()
	return n.run(n.loader.Program("from_pod"), n.ifB, 0, in)
}

// TestService: a packet for a service goes to its backend with right checksums, policy evaluates
// the backend, and the reply comes from the service.
func TestService(t *testing.T) {
	families(t, func(t *testing.T, v6 bool, a, b, r, w, router netip.Addr) {
		n := newNode(t, testConfig())
		vip := vipOf(v6)
		for name, f := range protocols(v6) {
			if f.proto == icmp || f.proto == icmp6 {
				continue
			}
			to := netip.AddrPortFrom(b, 8053)
			if f.proto == sctp {
				to = netip.AddrPortFrom(b, vipPort)
			}
			n.publish(vip, f.proto, nil, to)
			f.src, f.dst, f.dport = a, vip, vipPort
			f.ethSrc, f.ethDst = aMAC, aHost
			n.rules(setA, allow(out, idB, f.proto, vipPort))
			n.rules(setB, allow(in, idA, f.proto, 0))
			if f.proto != sctp {
				n.expect(name+" allowed to the service's port only", dropped(datapath.ReasonPolicyDenied, out), func() result { return n.fromABytes(withChecksum(f.bytes())) })
			}
			n.rules(setA, allow(out, idB, f.proto, to.Port()))
			for range 3 {
				got := n.expect(name, delivered(), func() result { return n.fromABytes(withChecksum(f.bytes())) })
				expect := f
				expect.dst, expect.dport, expect.ethSrc, expect.ethDst, expect.ttl = b, to.Port(), bHost, bMAC, 63
				if !bytes.Equal(got.out, withChecksum(expect.bytes())) {
					t.Fatalf("%s: b gets\n%x, want\n%x", name, got.out, withChecksum(expect.bytes()))
				}
				reply := expect.reply()
				reply.ethSrc, reply.ethDst, reply.ttl = bMAC, bHost, 64
				got = n.expect(name+" reply", delivered(), func() result { return n.fromBBytes(withChecksum(reply.bytes())) })
				expect = f.reply()
				expect.ethSrc, expect.ethDst, expect.ttl = aHost, aMAC, 63
				if !bytes.Equal(got.out, withChecksum(expect.bytes())) {
					t.Fatalf("%s: a gets\n%x, want\n%x", name, got.out, withChecksum(expect.bytes()))
				}
			}
			// Without a backend, or without the service, the flow goes on; a new one does not.
			n.publish(vip, f.proto, nil)
			data := f
			if f.proto == tcp {
				data.tcpFlags = ack
			}
			n.expect(name+" goes on", delivered(), func() result { return n.fromABytes(withChecksum(data.bytes())) })
			f.sport++
			n.expect(name+" without a backend", refused(), func() result { return n.fromABytes(withChecksum(f.bytes())) })
			n.must(n.maps.DeleteService(datapath.ServiceFrontend{Addr: netip.AddrPortFrom(vip, vipPort), Proto: f.proto}))
			n.rules(setA, allow(out, 2, f.proto, vipPort))
			n.expect(name+" to what is no service", passes(out), func() result { return n.fromABytes(withChecksum(f.bytes())) })
		}
		for _, e := range n.flows() {
			if e.Dst.Addr() == b && (e.Service != netip.AddrPortFrom(vip, vipPort) || e.ForwardPackets != 4 || e.ReversePackets != 3) {
				t.Errorf("flow %+v", e)
			}
		}
		// A datagram without a checksum stays one.
		if !v6 {
			n.publish(vip, udp, nil, netip.AddrPortFrom(b, 8053))
			n.allowAll()
			f := frame{ethSrc: aMAC, ethDst: aHost, src: a, dst: vip, proto: udp, sport: 999, dport: vipPort}
			got := n.expect("without checksum", delivered(), func() result { return n.fromABytes(f.bytes()) })
			if got.out[14+20+6] != 0 || got.out[14+20+7] != 0 {
				t.Errorf("a checksum appeared: %x", got.out)
			}
		}
	})
}

// TestPortOfOtherNode: what a pod sends to a service's port of another node goes to a backend at
// once, with the pod's own identity; what it sends to that port of anybody else does not, a node of
// another cluster and an API server outside among them, and neither does what it sends to another
// port of the node.
func TestPortOfOtherNode(t *testing.T) {
	families(t, func(t *testing.T, v6 bool, a, b, r, w, router netip.Addr) {
		n := newNode(t, testConfig())
		const other, apiServer = 6, 7 // the identities of other nodes
		n.know(w)
		n.rules(setA, allow(out, idB, tcp, 8053), allow(out, other, tcp, 0), allow(out, apiServer, tcp, 0))
		n.rules(setB, allow(in, idA, tcp, 8053))
		to, anyone := netip.AddrPortFrom(b, 8053), netip.IPv4Unspecified()
		if v6 {
			anyone = netip.IPv6Unspecified()
		}
		f := frame{ethSrc: aMAC, ethDst: aHost, src: a, dst: w, proto: tcp, sport: 4444, dport: vipPort, tcpFlags: syn}
		n.expect("before there is a service", passes(out), func() result { return n.fromABytes(withChecksum(f.bytes())) })
		n.publish(anyone, tcp, func(s *datapath.Service) { s.Scope = datapath.ServiceRemoteNode }, to)
		f.sport++
		got := n.expect("to another node", delivered(), func() result { return n.fromABytes(withChecksum(f.bytes())) })
		expect := f
		expect.dst, expect.dport, expect.ethSrc, expect.ethDst, expect.ttl = b, to.Port(), bHost, bMAC, 63
		if !bytes.Equal(got.out, withChecksum(expect.bytes())) {
			t.Fatalf("b gets\n%x, want\n%x", got.out, withChecksum(expect.bytes()))
		}
		reply := expect.reply()
		reply.ethSrc, reply.ethDst, reply.ttl = bMAC, bHost, 64
		got = n.expect("its answer", delivered(), func() result { return n.fromBBytes(withChecksum(reply.bytes())) })
		expect = f.reply()
		expect.ethSrc, expect.ethDst, expect.ttl = aHost, aMAC, 63
		if !bytes.Equal(got.out, withChecksum(expect.bytes())) {
			t.Fatalf("a gets\n%x, want\n%x", got.out, withChecksum(expect.bytes()))
		}
		f.sport, f.dport = 4500, vipPort+1
		n.expect("to another port of it", passes(out), func() result { return n.fromABytes(withChecksum(f.bytes())) })
		f.sport, f.dport = 4501, vipPort
		n.must(n.maps.UpsertTunnelPeers([]datapath.TunnelPeer{{Addr: w, Node: 3, First: 65536, Last: 131071}}))
		n.expect("to a node of another cluster", passes(out), func() result { return n.fromABytes(withChecksum(f.bytes())) })
		f.sport++
		n.must(n.maps.DeleteTunnelPeers([]netip.Addr{w}))
		n.must(n.maps.UpsertIPCache([]datapath.IPCacheEntry{{Prefix: netip.PrefixFrom(w, w.BitLen()), Identity: apiServer}}))
		n.expect("to an API server outside", passes(out), func() result { return n.fromABytes(withChecksum(f.bytes())) })
		f.sport++
		n.must(n.maps.DeleteIPCache([]netip.Prefix{netip.PrefixFrom(w, w.BitLen())}))
		n.expect("to who is no node", dropped(datapath.ReasonPolicyDenied, out), func() result { return n.fromABytes(withChecksum(f.bytes())) })
	})
}

// TestServiceSpread: new flows go to all backends, those with affinity to one as long as it is one.
func TestServiceSpread(t *testing.T) {
	n := newNode(t, testConfig())
	n.allowAll()
	var backends []netip.AddrPort
	for i := range 5 {
		backends = append(backends, netip.AddrPortFrom(b4, uint16(8000+i)))
	}
	n.publish(vip4, udp, nil, backends...)
	sport := uint16(1000)
	try := func() uint16 {
		t.Helper()
		sport++
		f := frame{ethSrc: aMAC, ethDst: aHost, src: a4, dst: vip4, proto: udp, sport: sport, dport: vipPort}
		got := n.expect("spread", delivered(), func() result { return n.fromABytes(f.bytes()) })
		return binary.BigEndian.Uint16(got.out[14+20+2:])
	}
	seen := map[uint16]int{}
	for range 500 {
		seen[try()]++
	}
	for _, b := range backends {
		if c := seen[b.Port()]; c < 50 || c > 150 {
			t.Errorf("%d of 500 flows went to %s: %v", c, b, seen)
		}
	}
	sticky := func(s *datapath.Service) { s.Affinity = 2 * time.Second }
	n.publish(vip4, udp, sticky, backends...)
	first := try()
	for range 50 {
		if got := try(); got != first {
			t.Fatalf("with affinity to %d, then %d", first, got)
		}
	}
	rest := slices.DeleteFunc(slices.Clone(backends), func(b netip.AddrPort) bool { return b.Port() == first })
	n.publish(vip4, udp, sticky, rest...)
	second := try()
	if second == first {
		t.Error("affinity to a backend that is none any more")
	}
	n.publish(vip4, udp, sticky, backends...)
	for range 50 {
		if got := try(); got != second {
			t.Fatalf("with affinity to %d, then %d", second, got)
		}
	}
	time.Sleep(4 * time.Second)
	seen = map[uint16]int{}
	for range 20 { // one flow each time that affinity has run out
		n.must(n.maps.UpsertService(datapath.Service{
			ServiceFrontend: datapath.ServiceFrontend{Addr: netip.AddrPortFrom(vip4, vipPort), Proto: udp}, ID: uint32(100 + len(seen)*7 + int(sport)),
			Affinity: 2 * time.Second, Backends: backends,
		}))
		seen[try()]++
	}
	if len(seen) < 2 {
		t.Errorf("new clients all went to one backend: %v", seen)
	}
}

// TestServiceHairpin: a pod that is its own backend sees the loopback address, and the reply comes
// from the service; its own rules have no say.
func TestServiceHairpin(t *testing.T) {
	families(t, func(t *testing.T, v6 bool, a, b, r, w, router netip.Addr) {
		n := newNode(t, testConfig())
		vip, loopback := vip4, netip.MustParseAddr("169.254.42.1")
		if v6 {
			vip, loopback = vip6, netip.MustParseAddr("100::1")
		}
		n.publish(vip, tcp, nil, netip.AddrPortFrom(a, 8053))
		f := frame{ethSrc: aMAC, ethDst: aHost, src: a, dst: vip, proto: tcp, sport: 4000, dport: vipPort, tcpFlags: syn}
		got := n.expect("to itself", delivered(), func() result { return n.fromABytes(withChecksum(f.bytes())) })
		expect := f
		expect.src, expect.dst, expect.dport, expect.ethSrc, expect.ethDst, expect.ttl = loopback, a, 8053, aHost, aMAC, 63
		if !bytes.Equal(got.out, withChecksum(expect.bytes())) {
			t.Fatalf("a gets\n%x, want\n%x", got.out, withChecksum(expect.bytes()))
		}
		reply := expect.reply()
		reply.ethSrc, reply.ethDst, reply.ttl = aMAC, aHost, 64
		got = n.expect("reply", delivered(), func() result { return n.fromABytes(withChecksum(reply.bytes())) })
		expect = f.reply()
		expect.ethSrc, expect.ethDst, expect.ttl = aHost, aMAC, 63
		if !bytes.Equal(got.out, withChecksum(expect.bytes())) {
			t.Fatalf("a gets back\n%x, want\n%x", got.out, withChecksum(expect.bytes()))
		}
		// The loopback address belongs to no pod.
		n.rules(setA, allow(out, 0, 0, 0))
		stray := reply
		stray.dport++
		n.expect("to the loopback address", dropped(datapath.ReasonNoEndpoint, out), func() result { return n.fromABytes(withChecksum(stray.bytes())) })
	})
}

// TestServicePortConflict: a client may use one port for a backend directly, and for two services
// that lead to it; the flows stay apart.
func TestServicePortConflict(t *testing.T) {
	n := newNode(t, testConfig())
	n.allowAll()
	other := netip.MustParseAddr("10.96.0.11")
	n.publish(vip4, udp, nil, netip.AddrPortFrom(b4, 53))
	n.publish(other, udp, nil, netip.AddrPortFrom(b4, 53))
	f := frame{ethSrc: aMAC, ethDst: aHost, src: a4, dst: b4, proto: udp, sport: 4000, dport: 53}
	n.expect("directly", delivered(), func() result { return n.fromABytes(f.bytes()) })
	ports := map[uint16]netip.Addr{4000: b4}
	f.dport = vipPort
	for _, vip := range []netip.Addr{vip4, other, vip4, other} {
		f.dst = vip
		got := n.expect("through "+vip.String(), delivered(), func() result { return n.fromABytes(f.bytes()) })
		port := binary.BigEndian.Uint16(got.out[14+20:])
		if of, ok := ports[port]; ok && of != vip {
			t.Fatalf("port %d is that of %s already", port, of)
		}
		ports[port] = vip
	}
	if len(ports) != 3 {
		t.Errorf("ports %v", ports)
	}
	for port, vip := range ports {
		reply := frame{ethSrc: bMAC, ethDst: bHost, src: b4, dst: a4, proto: udp, sport: 53, dport: port}
		got := n.expect("reply", delivered(), func() result { return n.fromBBytes(reply.bytes()) })
		from := netip.AddrFrom4([4]byte(got.out[14+12 : 14+16]))
		if from != vip || binary.BigEndian.Uint16(got.out[14+20+2:]) != 4000 {
			t.Errorf("reply to port %d comes from %s, want %s: %x", port, from, vip, got.out)
		}
	}
}

// TestServiceThenDirect: a client with a flow through a service may open one directly, by the same
// port to the same backend; both go on, whichever ends first.
func TestServiceThenDirect(t *testing.T) {
	families(t, func(t *testing.T, v6 bool, a, b, r, w, router netip.Addr) {
		n := newNode(t, testConfig())
		n.allowAll()
		vip, l4, srcAt := vip4, 14+20, 14+12
		if v6 {
			vip, l4, srcAt = vip6, 14+40, 14+8
		}
		for proto, sport := range map[uint8]uint16{tcp: 4000, udp: 4001} {
			n.publish(vip, proto, nil, netip.AddrPortFrom(b, 8053))
			through := frame{ethSrc: aMAC, ethDst: aHost, src: a, dst: vip, proto: proto, sport: sport, dport: vipPort, tcpFlags: syn}
			direct := through
			direct.dst, direct.dport = b, 8053
			// exchange sends a packet and has the backend answer; it returns the port by which the
			// backend knows the client.
			exchange := func(what string, f frame, answer uint8) uint16 {
				t.Helper()
				got := n.expect(what, delivered(), func() result { return n.fromABytes(withChecksum(f.bytes())) })
				port := binary.BigEndian.Uint16(got.out[l4:])
				want := f
				want.sport, want.dst, want.dport, want.ethSrc, want.ethDst, want.ttl = port, b, 8053, bHost, bMAC, 63
				if !bytes.Equal(got.out, withChecksum(want.bytes())) {
					t.Fatalf("%s: b gets\n%x, want\n%x", what, got.out, withChecksum(want.bytes()))
				}
				reply := want.reply()
				reply.ethSrc, reply.ethDst, reply.ttl, reply.tcpFlags = bMAC, bHost, 64, answer
				got = n.expect(what+", answer", delivered(), func() result { return n.fromBBytes(withChecksum(reply.bytes())) })
				back := f.reply()
				back.ethSrc, back.ethDst, back.ttl, back.tcpFlags = aHost, aMAC, 63, answer
				if !bytes.Equal(got.out, withChecksum(back.bytes())) {
					t.Fatalf("%s: a gets\n%x from %x, want\n%x", what, got.out, got.out[srcAt:], withChecksum(back.bytes()))
				}
				return port
			}
			if p := exchange("through the service", through, syn|ack); p != sport {
				t.Errorf("the service's flow has port %d", p)
			}
			aside := exchange("directly", direct, syn|ack)
			if aside == sport {
				t.Fatal("two flows have the same ends")
			}
			through.tcpFlags, direct.tcpFlags = ack, ack
			for range 2 {
				if p := exchange("through the service, goes on", through, ack); p != sport {
					t.Errorf("the service's flow has port %d now", p)
				}
				if p := exchange("directly, goes on", direct, ack); p != aside {
					t.Errorf("the direct flow has port %d now, had %d", p, aside)
				}
			}
			through.tcpFlags = fin | ack
			exchange("through the service, ends", through, fin|ack)
			if p := exchange("directly, after the other's end", direct, ack); p != aside {
				t.Errorf("the direct flow has port %d now, had %d", p, aside)
			}
			// Forgotten: as after its time.
			n.must(n.maps.DeleteService(datapath.ServiceFrontend{Addr: netip.AddrPortFrom(vip, vipPort), Proto: proto}))
			_, err := n.maps.ForgetServiceFlows(t.Context(), func(datapath.ServiceFlow) bool { return true })
			n.must(err)
			if p := exchange("directly, after changes of services", direct, ack); p != aside {
				t.Errorf("the direct flow has port %d now, had %d", p, aside)
			}
		}
		for _, e := range n.flows() {
			if e.Service == e.Dst {
				t.Errorf("a flow through itself: %+v", e)
			}
		}
	})
}

// TestServiceImpostor: only the datapath sends from a service's address, and packets that claim to
// come from it do not change where the client's packets go.
func TestServiceImpostor(t *testing.T) {
	n := newNode(t, testConfig())
	n.allowAll()
	n.publish(vip4, udp, nil, netip.AddrPortFrom(b4, 53))
	f := frame{ethSrc: aMAC, ethDst: aHost, src: a4, dst: vip4, proto: udp, sport: 4000, dport: vipPort}
	n.expect("opens", delivered(), func() result { return n.fromABytes(f.bytes()) })
	n.expect("in the service's name", dropped(datapath.ReasonInvalidSourceIP, in), func() result { return n.toA(f.reply()) })
	n.expect("goes on", delivered(), func() result { return n.fromABytes(f.bytes()) })
}

// TestServiceForget: flows that no longer lead where they should choose anew.
func TestServiceForget(t *testing.T) {
	n := newNode(t, testConfig())
	n.allowAll()
	n.publish(vip4, udp, nil, netip.AddrPortFrom(b4, 53))
	f := frame{ethSrc: aMAC, ethDst: aHost, src: a4, dst: vip4, proto: udp, sport: 4000, dport: vipPort}
	n.expect("opens", delivered(), func() result { return n.fromABytes(f.bytes()) })
	n.publish(vip4, udp, nil, netip.AddrPortFrom(b4, 54))
	var seen []datapath.ServiceFlow
	forget := func(yes bool) {
		t.Helper()
		seen = nil
		count, err := n.maps.ForgetServiceFlows(t.Context(), func(f datapath.ServiceFlow) bool { seen = append(seen, f); return yes })
		n.must(err)
		if (count > 0) != yes {
			t.Errorf("%d flows forgotten", count)
		}
	}
	flow := datapath.ServiceFlow{
		Client: netip.AddrPortFrom(a4, 4000), Frontend: netip.AddrPortFrom(vip4, vipPort), Proto: udp, Backend: netip.AddrPortFrom(b4, 53),
	}
	forget(false)
	if !slices.Equal(seen, []datapath.ServiceFlow{flow}) {
		t.Errorf("flows %+v", seen)
	}
	reply := frame{ethSrc: bMAC, ethDst: bHost, src: b4, dst: a4, proto: udp, sport: 53, dport: 4000}
	n.expect("answer", delivered(), func() result { return n.fromBBytes(reply.bytes()) })
	got := n.expect("keeps its backend", delivered(), func() result { return n.fromABytes(f.bytes()) })
	if p := binary.BigEndian.Uint16(got.out[14+20+2:]); p != 53 {
		t.Errorf("went to port %d", p)
	}
	flow.Answered = true
	forget(true)
	if !slices.Equal(seen, []datapath.ServiceFlow{flow}) {
		t.Errorf("flows %+v", seen)
	}
	got = n.expect("a late answer", delivered(), func() result { return n.fromBBytes(reply.bytes()) })
	if from := addrAt(got.out, false, false); from != vip4 {
		t.Errorf("a late answer comes from %s", from)
	}
	got = n.expect("chooses anew", delivered(), func() result { return n.fromABytes(f.bytes()) })
	if p := binary.BigEndian.Uint16(got.out[14+20+2:]); p != 54 {
		t.Errorf("went to port %d", p)
	}
	// What has answered until now does so no more, even if it goes on to send.
	forget(false)
	next := flow
	next.Backend, next.Answered = netip.AddrPortFrom(b4, 54), false
	slices.SortFunc(seen, func(a, b datapath.ServiceFlow) int { return a.Backend.Compare(b.Backend) })
	if !slices.Equal(seen, []datapath.ServiceFlow{flow, next}) {
		t.Errorf("flows %+v", seen)
	}
	_, err := n.maps.ForgetServiceFlows(t.Context(), func(f datapath.ServiceFlow) bool { return f == flow })
	n.must(err)
	got = n.expect("an answer in a flow that has been forgotten", delivered(), func() result { return n.fromBBytes(reply.bytes()) })
	if from := addrAt(got.out, false, false); from != b4 {
		t.Errorf("it comes from %s", from)
	}
}

// TestServiceHalfClosed: a connection that one side has closed goes on when its backend leaves the
// service: the other side has more to send. One that both sides have closed, or one has reset, does
// not keep the client from a backend of now.
func TestServiceHalfClosed(t *testing.T) {
	families(t, func(t *testing.T, v6 bool, a, b, r, w, router netip.Addr) {
		for _, row := range []struct {
			name             string
			client, backend  uint8 // the flags by which each ends, 0 if it does not
			goesOn, answered bool
		}{
			{"open", 0, 0, true, true},
			{"closed by the client", fin | ack, 0, true, true},
			{"closed by the backend", 0, fin | ack, true, true},
			{"closed by both", fin | ack, fin | ack, false, true},
			{"reset", 0, rst, false, true},
			{"not answered", 0, 0, false, false},
		} {
			n, vip := newServing(t, v6)
			former, present := netip.AddrPortFrom(b, 53), netip.AddrPortFrom(b, 54)
			n.publish(vip, tcp, nil, former)
			f := frame{ethSrc: aMAC, ethDst: aHost, src: a, dst: vip, proto: tcp, sport: 4000, dport: vipPort}
			send := func(flags uint8) netip.AddrPort {
				t.Helper()
				f.tcpFlags = flags
				got := n.expect(row.name, delivered(), func() result { return n.fromABytes(withChecksum(f.bytes())) })
				l4 := map[bool]int{false: 14 + 20, true: 14 + 40}[v6]
				return netip.AddrPortFrom(addrAt(got.out, v6, true), binary.BigEndian.Uint16(got.out[l4+2:]))
			}
			answer := func(flags uint8) {
				t.Helper()
				g := frame{ethSrc: bMAC, ethDst: bHost, src: b, dst: a, proto: tcp, sport: 53, dport: 4000, tcpFlags: flags}
				n.expect(row.name+", answer", delivered(), func() result { return n.fromBBytes(withChecksum(g.bytes())) })
			}
			send(syn)
			if row.answered {
				answer(syn | ack)
				send(ack)
			}
			if row.client != 0 {
				send(row.client)
			}
			if row.backend != 0 {
				answer(row.backend)
			}
			n.publish(vip, tcp, nil, present)
			for range 2 {
				_, err := n.maps.ForgetServiceFlows(t.Context(), func(f datapath.ServiceFlow) bool { return f.Backend == former && !f.Answered })
				n.must(err)
			}
			want := present
			if row.goesOn {
				want = former
			}
			if to := send(ack); to != want {
				t.Errorf("%s: what follows goes to %s, want %s", row.name, to, want)
			}
		}
	})
}

// opens makes a packet one that opens a connection, or one that belongs to an open one.
func (f frame) opens(yes bool) frame {
	switch {
	case f.proto == sctp && yes:
		f.payload = []byte{1, 0, 0, 20, 19: 0} // INIT
	case f.proto == sctp:
		f.payload = []byte{0, 3, 0, 17, 19: 0} // DATA
	case yes:
		f.tcpFlags = syn
	default:
		f.tcpFlags = ack
	}
	return f
}

// TestServicePortReuse: a client that opens a connection with the ports of an earlier one gets a
// backend of now, or what has the address if there is no service any more: who has the address of a
// former backend by now may be anybody. As long as the backend is one, the connection is led there,
// and a connection that goes on stays where it is.
func TestServicePortReuse(t *testing.T) {
	families(t, func(t *testing.T, v6 bool, a, b, r, w, router netip.Addr) {
		for _, proto := range []uint8{tcp, sctp} {
			n := newJoined(t)
			n.allowAll()
			vip, anyone := vip4, netip.IPv4Unspecified()
			if v6 {
				vip, anyone = vip6, netip.IPv6Unspecified()
			}
			former, present := netip.AddrPortFrom(r, vipPort), netip.AddrPortFrom(b, vipPort)
			f := frame{src: a, dst: vip, proto: proto, sport: 5000, dport: vipPort, ethSrc: aMAC, ethDst: aHost}
			ask := func(what string, opens bool, want want) result {
				t.Helper()
				return n.expect(fmt.Sprintf("protocol %d: %s", proto, what), want, func() result { return n.fromABytes(withChecksum(f.opens(opens).bytes())) })
			}
			answer := func() {
				t.Helper()
				g := frame{src: r, dst: a, proto: proto, sport: vipPort, dport: f.sport}.opens(false)
				n.expect("is answered", passes(in), func() result { return n.fromOtherNode(g) })
			}
			n.publish(vip, proto, nil, former)
			ask("opens", true, passes(out))
			answer()
			ask("acknowledges", false, passes(out))
			n.publish(vip, proto, nil, former, present)
			for range 8 {
				ask("opens once more, to one that is a backend still", true, passes(out))
			}
			n.publish(vip, proto, nil, present)
			ask("goes on", false, passes(out))
			ask("opens by the same port", true, delivered())
			ask("goes on with the backend of now", false, delivered())

			// Without the service.
			f.sport++
			n.publish(vip, proto, nil, former)
			ask("opens", true, passes(out))
			answer()
			n.must(n.maps.DeleteService(datapath.ServiceFrontend{Addr: netip.AddrPortFrom(vip, vipPort), Proto: proto}))
			ask("goes on without the service", false, passes(out))
			got := ask("opens to what is no service", true, passes(out))
			if dst := addrAt(got.out, v6, true); dst != vip {
				t.Errorf("without a service the packet went to %s", dst)
			}

			// And without a backend.
			f.sport++
			n.publish(vip, proto, nil, former)
			ask("opens", true, passes(out))
			answer()
			n.publish(vip, proto, nil)
			ask("goes on without a backend", false, passes(out))
			ask("opens where there is no backend", true, refused())

			// A port of another node.
			f.sport, f.dst = f.sport+1, w
			n.know(w)
			port := func(s *datapath.Service) { s.Scope = datapath.ServiceRemoteNode }
			n.publish(anyone, proto, port, former)
			ask("opens by a port of another node", true, passes(out))
			answer()
			n.publish(anyone, proto, port, former, present)
			for range 8 {
				ask("opens once more by the port of another node", true, passes(out))
			}
			n.publish(anyone, proto, port, present)
			ask("opens by the port of another node", true, delivered())
		}
	})
}
