package bpf_test

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/datapath/loader"
)

// outside is a node that sends clients outside on to the other node's pod, in its own name.
type outside struct {
	*node
	v6           bool
	client, pod  netip.Addr
	frontend, as netip.Addr
	device       net.HardwareAddr
	l4           int // where the transport begins in a frame
}

func newOutside(t *testing.T, v6 bool, change func(*datapath.Config)) *outside {
	t.Helper()
	cfg := testConfig()
	cfg.NodePort, cfg.NativeIfIndex, cfg.NativeMTU = true, 7, 1500
	if change != nil {
		change(&cfg)
	}
	o := &outside{node: newNode(t, cfg), v6: v6, client: w4, pod: r4, frontend: netip.MustParseAddr("203.0.113.5"), as: node4, l4: 14 + 20}
	if v6 {
		o.client, o.pod, o.frontend, o.as, o.l4 = w6, r6, netip.MustParseAddr("2001:db8::5"), node6, 14+40
	}
	o.device = o.macA()
	o.must(o.maps.UpsertIPCache([]datapath.IPCacheEntry{{Prefix: netip.PrefixFrom(o.pod, o.pod.BitLen()), Identity: idR}}))
	return o
}

// serve leads clients of the frontend's port to the pod's.
func (o *outside) serve(proto uint8, port, target uint16) {
	o.t.Helper()
	o.must(o.maps.UpsertService(datapath.Service{
		ServiceFrontend: datapath.ServiceFrontend{Addr: netip.AddrPortFrom(o.frontend, port), Proto: proto, Scope: datapath.ServiceExternal},
		ID:              7, Backends: []netip.AddrPort{netip.AddrPortFrom(o.pod, target)},
	}))
}

// arrive runs a packet as if it had come by the node's device.
func (o *outside) arrive(f frame) result {
	o.t.Helper()
	f.ethDst, f.ethSrc = o.device, mac("02:00:00:00:00:77")
	return o.run(o.loader.Program(loader.FromNetdev), o.ifA, 0, withChecksum(f.bytes()))
}

// ask sends a client's packet, which must be sent on in the node's name; it returns the port.
func (o *outside) ask(what string, f frame) uint16 {
	o.t.Helper()
	r := o.expect(what, redirected(in), func() result { return o.arrive(f) })
	if src := addrAt(r.out, o.v6, false); src != o.as {
		o.t.Fatalf("%s: sent on in the name of %s", what, src)
	}
	return binary.BigEndian.Uint16(r.out[o.l4:])
}

// answered sends the backend's answer to a port of the node and wants the client to get it.
func (o *outside) answered(what string, port uint16, f frame) {
	o.t.Helper()
	answer := frame{src: o.pod, dst: o.as, proto: f.proto, sport: f.dport, dport: port, tcpFlags: syn | ack}
	r := o.expect(what, redirected(in), func() result { return o.arrive(answer) })
	want := netip.AddrPortFrom(f.src, f.sport)
	if got := netip.AddrPortFrom(addrAt(r.out, o.v6, true), binary.BigEndian.Uint16(r.out[o.l4+2:])); got != want {
		o.t.Errorf("%s: went to %s, want %s", what, got, want)
	}
	if from := addrAt(r.out, o.v6, false); from != o.frontend {
		o.t.Errorf("%s: came from %s", what, from)
	}
}

// addrAt returns the source or destination of a frame.
func addrAt(b []byte, v6, dst bool) netip.Addr {
	at, n := 14+12, 4
	if v6 {
		at, n = 14+8, 16
	}
	if dst {
		at += n
	}
	a, _ := netip.AddrFromSlice(b[at : at+n])
	return a
}

func (o *outside) request(proto uint8, sport uint16) frame {
	return frame{src: o.client, dst: o.frontend, proto: proto, sport: sport, dport: 9000, tcpFlags: syn}
}

// TestClientWithNodeAddress: who asks a service from outside has no address of this node, also none
// that the programs know by the ipcache only.
func TestClientWithNodeAddress(t *testing.T) {
	families(t, func(t *testing.T, v6 bool, a, b, r, w, router netip.Addr) {
		o := newOutside(t, v6, nil)
		bridge, own := netip.MustParseAddr("172.17.0.1"), node4
		if v6 {
			bridge, own = netip.MustParseAddr("fd17::1"), node6
		}
		const host = 1
		o.must(o.maps.UpsertIPCache([]datapath.IPCacheEntry{{Prefix: netip.PrefixFrom(bridge, bridge.BitLen()), Identity: host}}))
		o.serve(udp, 9000, 9000)
		o.ask("a client", o.request(udp, 40000))
		for _, src := range []netip.Addr{bridge, own, a, router} {
			f := o.request(udp, 40001)
			f.src = src
			o.expect("as "+src.String(), dropped(datapath.ReasonInvalidSourceIP, in), func() result { return o.arrive(f) })
		}
	})
}

// TestMartianClients: no client has an address that no packet on a network can have. The stack
// would drop what comes from one. A service with source ranges does not take one without an address
// for the node, whose address is within them.
func TestMartianClients(t *testing.T) {
	families(t, func(t *testing.T, v6 bool, a, b, r, w, router netip.Addr) {
		o := newOutside(t, v6, nil)
		o.serve(udp, 9000, 9000)
		o.ask("a client", o.request(udp, 40000))
		martians := []string{"0.0.0.0", "0.0.0.1", "127.0.0.1", "127.9.9.9", "224.0.0.1", "239.255.255.255", "255.255.255.255"}
		clients := []string{"1.0.0.1", "126.255.255.255", "128.0.0.1", "223.255.255.255", "240.0.0.1", "255.255.255.254"}
		if v6 {
			martians = []string{"::", "::1", "ff02::1", "ff0e::1"}
			clients = []string{"::2", "::1:0:1", "1::", "fd00:9::1", "2000::"}
		}
		for i, src := range martians {
			f := o.request(udp, 40001+uint16(i))
			f.src = netip.MustParseAddr(src)
			o.expect("as "+src, dropped(datapath.ReasonInvalidSourceIP, in), func() result { return o.arrive(f) })
		}
		for i, src := range clients {
			f := o.request(udp, 41001+uint16(i))
			f.src = netip.MustParseAddr(src)
			o.ask("as "+src, f)
		}
		o.must(o.maps.UpsertService(datapath.Service{
			ServiceFrontend: datapath.ServiceFrontend{Addr: netip.AddrPortFrom(o.frontend, 9001), Proto: udp, Scope: datapath.ServiceExternal},
			ID:              8, Backends: []netip.AddrPort{netip.AddrPortFrom(o.pod, 9001)},
			LimitSources: true, Sources: []netip.Prefix{netip.PrefixFrom(o.as, o.as.BitLen())},
		}))
		f := o.request(udp, 42000)
		f.dport, f.src = 9001, netip.MustParseAddr(martians[0])
		o.expect("for a service with ranges", dropped(datapath.ReasonInvalidSourceIP, in), func() result { return o.arrive(f) })
		f.src = w
		o.expect("out of its ranges", dropped(datapath.ReasonSourceRange, in), func() result { return o.arrive(f) })
	})
}

// TestMasqueradeSilentClient: a client that receives data keeps receiving it although it sends
// nothing; and where only the client sends, it keeps its port.
func TestMasqueradeSilentClient(t *testing.T) {
	families(t, func(t *testing.T, v6 bool, a, b, r, w, router netip.Addr) {
		o := newOutside(t, v6, func(c *datapath.Config) {
			c.CTTimeouts = datapath.CTTimeouts{TCP: 4 * time.Second, TCPSyn: 4 * time.Second, TCPFin: 4 * time.Second, Any: 4 * time.Second}
		})
		f := o.request(udp, 40000)
		other := o.request(udp, 40001)
		o.serve(udp, 9000, 9000)
		port, otherPort := o.ask("first", f), o.ask("another", other)
		for i := range 5 {
			waitTick()
			o.answered(fmt.Sprintf("answer %d", i), port, f)
			if p := o.ask("the talker", other); p != otherPort {
				t.Errorf("the talker has port %d now, had %d", p, otherPort)
			}
		}
		if p := o.ask("the silent one", f); p != port {
			t.Errorf("the silent one has port %d now, had %d", p, port)
		}
		o.answered("the talker's answer", otherPort, other)
		// Once both are silent, it ends for both.
		for range 3 {
			waitTick()
		}
		late := frame{src: o.pod, dst: o.as, proto: udp, sport: 9000, dport: port}
		o.expect("after its time", passes(in), func() result { return o.arrive(late) })
		_, _, err := o.maps.CollectCT(t.Context())
		o.must(err)
		if n := o.bound(); n != 0 {
			t.Errorf("%d ports are bound", n)
		}
	})
}

// bound counts the ports in the map.
func (o *outside) bound() (n int) {
	o.t.Helper()
	m := o.maps.Replacements()["masquerade"]
	var k, v []byte
	for it := m.Iterate(); it.Next(&k, &v); {
		n++
	}
	return n
}

// TestMasqueradeFull: a port in use is given to no other flow, of any client; free ones are found;
// and without any, packets are dropped and counted.
func TestMasqueradeFull(t *testing.T) {
	families(t, func(t *testing.T, v6 bool, a, b, r, w, router netip.Addr) {
		const first, count = 62000, 40
		o := newOutside(t, v6, func(c *datapath.Config) {
			c.MasqueradePorts = datapath.PortRange{First: first, Last: first + count - 1}
		})
		o.serve(udp, 9000, 9000)
		ports := map[uint16]frame{}
		full := 0
		for i := range uint16(20 * count) {
			f := o.request(udp, 20000+i)
			got := o.arrive(f)
			if got.action == actDrop {
				full++
				continue
			}
			port := binary.BigEndian.Uint16(got.out[o.l4:])
			if _, ok := ports[port]; ok || port < first || port >= first+count {
				t.Fatalf("port %d a second time, or out of range", port)
			}
			ports[port] = f
		}
		if len(ports) != count {
			t.Errorf("%d of %d ports were found by %d flows", len(ports), count, 20*count)
		}
		if n := o.count(datapath.ReasonNoPort, in); int(n) != full {
			t.Errorf("%d packets were counted, %d dropped", n, full)
		}
		for port, f := range ports {
			if p := o.ask("goes on", f); p != port {
				t.Errorf("a flow in use was moved from port %d to %d", port, p)
			}
			o.answered("answer", port, f)
		}
		// Another backend has ports of its own.
		other := r4.Next()
		if v6 {
			other = r6.Next()
		}
		o.must(o.maps.UpsertIPCache([]datapath.IPCacheEntry{{Prefix: netip.PrefixFrom(other, other.BitLen()), Identity: idR}}))
		o.pod = other
		o.serve(udp, 9000, 9000)
		o.ask("to another backend", o.request(udp, 50000))
	})
}

// TestMasqueradeClosed: where ports are scarce, that of a connection which the backend has reset,
// or both sides have closed, serves the next after a silence. One that goes on, or that only one
// side has closed, keeps its own; and a client's reset frees nothing, as others can forge it to be
// sent what the backend still has for the client.
func TestMasqueradeClosed(t *testing.T) {
	families(t, func(t *testing.T, v6 bool, a, b, r, w, router netip.Addr) {
		const first, count = 62000, 32
		o := newOutside(t, v6, func(c *datapath.Config) {
			c.MasqueradePorts = datapath.PortRange{First: first, Last: first + count - 1}
		})
		o.serve(tcp, 9000, 9000)
		flows := map[uint16]frame{}
		for i := uint16(0); len(flows) < count; i++ {
			f := o.request(tcp, 20000+i)
			got := o.arrive(f)
			if got.action == actDrop {
				continue // has found none by lot
			}
			port := binary.BigEndian.Uint16(got.out[o.l4:])
			flows[port] = f
			o.answered("handshake", port, f)
		}
		sends := func(port uint16, flags uint8) {
			t.Helper()
			f := flows[port]
			f.tcpFlags = flags
			if p := o.ask("a packet of a known flow", f); p != port {
				t.Errorf("flow of port %d is at %d now", port, p)
			}
		}
		replies := func(port uint16, flags uint8) {
			t.Helper()
			f := frame{src: o.pod, dst: o.as, proto: tcp, sport: 9000, dport: port, tcpFlags: flags}
			o.expect("an answer", redirected(in), func() result { return o.arrive(f) })
		}
		keeps := map[string]uint16{}
		ended := map[uint16]bool{}
		for port := range flows {
			switch {
			case keeps["goes on"] == 0:
				keeps["goes on"] = port
			case keeps["closed by the client"] == 0:
				keeps["closed by the client"] = port
				sends(port, fin|ack)
			case keeps["closed by the backend"] == 0:
				keeps["closed by the backend"] = port
				replies(port, fin|ack)
			case keeps["reset by the client"] == 0:
				keeps["reset by the client"] = port
				sends(port, rst)
			default:
				ended[port] = true
				if port%2 == 0 {
					replies(port, rst|ack)
				} else {
					sends(port, fin|ack)
					replies(port, fin|ack)
				}
			}
		}
		later := o.request(tcp, 50000)
		o.expect("right after the ends", dropped(datapath.ReasonNoPort, in), func() result { return o.arrive(later) })
		waitTick()
		waitTick()
		next := map[uint16]frame{}
		for i := range uint16(20 * count) {
			f := o.request(tcp, 50000+i)
			got := o.arrive(f)
			if got.action == actDrop {
				continue
			}
			port := binary.BigEndian.Uint16(got.out[o.l4:])
			if !ended[port] || next[port].sport != 0 {
				t.Fatalf("a new flow has port %d, which is another's", port)
			}
			next[port] = f
			o.answered("handshake of the next", port, f)
		}
		if len(next) != len(ended) {
			t.Errorf("%d of %d ports of ended connections were bound again", len(next), len(ended))
		}
		for what, port := range keeps {
			f := flows[port]
			f.tcpFlags = ack
			if p := o.ask(what, f); p != port {
				t.Errorf("%s: has port %d now, had %d", what, p, port)
			}
		}
		// What is still under way of the old flow does not go out in the new one's name.
		for port := range next {
			f := flows[port]
			f.tcpFlags = ack
			if got := o.arrive(f); got.action != actDrop {
				t.Errorf("a late packet left by port %d, all of which are bound", binary.BigEndian.Uint16(got.out[o.l4:]))
			}
			o.answered("after a late packet", port, next[port])
			break
		}
		if n := o.bound(); n != count {
			t.Errorf("%d ports are bound, of %d", n, count)
		}
	})
}

// TestMasqueradeFill says how many new flows to one backend are refused, by how many of the ports
// are taken.
func TestMasqueradeFill(t *testing.T) {
	o := newOutside(t, false, nil)
	o.serve(udp, 9000, 9000)
	total := datapath.DefaultMasqueradePorts().Count()
	open := func(i int) bool {
		f := o.request(udp, uint16(i%60000+1))
		f.src = netip.AddrFrom4([4]byte{1, 1, byte(i / 250), byte(i % 250)})
		return o.arrive(f).action == actRedirect
	}
	next := 0
	for _, percent := range []int{50, 75, 90, 95} {
		for o.bound() < total*percent/100 {
			for range total*percent/100 - o.bound() {
				open(next)
				next++
			}
		}
		refused := 0
		const tries = 40
		for range tries {
			if !open(next) {
				refused++
			}
			next++
		}
		t.Logf("%d %% taken: %d of %d refused", percent, refused, tries)
		if refused > 2 {
			t.Errorf("%d %% of the ports taken: %d of %d new flows find none", percent, refused, tries)
		}
	}
}

// TestMasqueradeGreedyClient: a client that takes all ports towards a backend that it can get
// leaves other clients some.
func TestMasqueradeGreedyClient(t *testing.T) {
	families(t, func(t *testing.T, v6 bool, a, b, r, w, router netip.Addr) {
		const first, count = 62000, 640
		o := newOutside(t, v6, func(c *datapath.Config) {
			c.MasqueradePorts = datapath.PortRange{First: first, Last: first + count - 1}
		})
		o.serve(udp, 9000, 9000)
		refused := 0
		for i := 0; refused < 64; i++ { // each of these has tried 128 ports
			if o.arrive(o.request(udp, uint16(1024+i))).action == actDrop {
				refused++
			}
		}
		got, peer := o.bound(), w
		served, same := 0, 0
		const clients = 32
		for range clients {
			peer = peer.Next()
			f := o.request(udp, 5000)
			f.src = peer
			if o.arrive(f).action == actRedirect {
				served++
			} else {
				same++
			}
		}
		t.Logf("a client took %d of %d ports; %d of %d others found one, %d did not", got, count, served, clients, same)
		if got < count*3/4 || got > count*3/4+count/64 {
			t.Errorf("a client got %d of %d ports", got, count)
		}
		if same > clients/4 {
			t.Errorf("%d of %d other clients found no port", same, clients)
		}
	})
}

// TestMasqueradeShare: a client that has used up its share of entries leaves others room,
// and has room again when its flows have ended.
func TestMasqueradeShare(t *testing.T) {
	families(t, func(t *testing.T, v6 bool, a, b, r, w, router netip.Addr) {
		o := newOutside(t, v6, func(c *datapath.Config) {
			c.CTTimeouts = datapath.CTTimeouts{TCP: time.Hour, TCPSyn: time.Hour, TCPFin: time.Hour, Any: 4 * time.Second}
		})
		o.serve(tcp, 9000, 9000)
		o.serve(udp, 9000, 9000)
		accounts := o.maps.Replacements()["masquerade_accounts"]
		sum := func() (n uint32) {
			var key, value uint32
			for it := accounts.Iterate(); it.Next(&key, &value); {
				n += value
			}
			o.must(accounts.Lookup(uint32(0), &value))
			return n
		}
		const flows = 20
		for i := range uint16(flows) {
			o.ask("datagram", o.request(udp, 20000+i))
			o.ask("connection", o.request(tcp, 20000+i))
		}
		counted := func(what string, want uint32) {
			t.Helper()
			if got := sum(); got != want || int(want) != o.bound() {
				t.Errorf("%s: %d entries were counted of %d, want %d", what, got, o.bound(), want)
			}
		}
		counted("lent", 2*flows)
		_, _, err := o.maps.CollectCT(t.Context())
		o.must(err)
		counted("counted by the agent", 2*flows)
		for range 6 {
			waitTick()
		}
		_, _, err = o.maps.CollectCT(t.Context())
		o.must(err)
		counted("datagrams have ended", flows)

		// As if the client had used up its share.
		var key, value, account uint32
		for it := accounts.Iterate(); it.Next(&key, &value); {
			if value > 0 {
				account = key
			}
		}
		o.must(accounts.Put(account, o.maps.MasqueradeShare()))
		o.expect("one more", dropped(datapath.ReasonNoPort, in), func() result { return o.arrive(o.request(tcp, 30000)) })
		o.ask("one that it has", o.request(tcp, 20000))
		other := o.request(tcp, 30000)
		other.src = w.Next()
		o.ask("another client's", other)
		_, _, err = o.maps.CollectCT(t.Context())
		o.must(err)
		o.ask("one more after a count", o.request(tcp, 30001))
	})
}

// TestMasqueradeForgedReply: what claims to be a backend's answer has come by the way that leads to
// the backend: a pod's of another node by the tunnel, if there is one, and those of pods and nodes
// by no other device than the one that connects the nodes. Backends outside answer by any device.
func TestMasqueradeForgedReply(t *testing.T) {
	families(t, func(t *testing.T, v6 bool, a, b, r, w, router netip.Addr) {
		forged := dropped(datapath.ReasonInvalidSourceIP, in)
		t.Run("tunnel", func(t *testing.T) {
			o := newOutside(t, v6, func(c *datapath.Config) { c.Tunnel, c.TunnelIfIndex, c.TunnelPort = true, 8, tunnelPort })
			o.as = router
			o.know(otherNode)
			o.must(o.maps.UpsertIPCache([]datapath.IPCacheEntry{{Prefix: netip.PrefixFrom(r, r.BitLen()), Identity: idR, TunnelEndpoint: otherNode}}))
			o.serve(udp, 9000, 9000)
			f := o.request(udp, 40000)
			f.ethDst, f.ethSrc = o.device, mac("02:00:00:00:00:77")
			r := o.expect("a client", redirected(in), func() result { return o.arrive(f) })
			answer := frame{src: o.pod, dst: o.as, proto: udp, sport: 9000, dport: binary.BigEndian.Uint16(r.out[o.l4:])}
			o.expect("an answer past the tunnel", forged, func() result { return o.arrive(answer) })
		})
		for name, native := range map[string]bool{"the nodes' device": true, "another device": false} {
			t.Run(name, func(t *testing.T) {
				ns, err := sharedNamespace() // a test run's device is an interface of this
				if err != nil {
					t.Fatal(err)
				}
				program := loader.FromDevice
				o := newOutside(t, v6, func(c *datapath.Config) {
					c.OtherIfIndexes = []int{9}
					if native {
						program, c.NativeIfIndex = loader.FromNetdev, ns.ifA
					}
				})
				prefix := netip.PrefixFrom(o.pod, o.pod.BitLen())
				by := func(f frame) result {
					f.ethDst, f.ethSrc = o.device, mac("02:00:00:00:00:77")
					return o.run(o.loader.Program(program), o.ifA, 0, withChecksum(f.bytes()))
				}
				o.serve(udp, 9000, 9000)
				f := o.request(udp, 40000)
				port := binary.BigEndian.Uint16(o.expect("a client", redirected(in), func() result { return by(f) }).out[o.l4:])
				answer := frame{src: o.pod, dst: o.as, proto: udp, sport: 9000, dport: port}
				for what, identity := range map[string]uint32{"a pod": idR, "a node": 6, "the world": 0, "an address that rules name": 1 << 24} {
					o.must(o.maps.DeleteIPCache([]netip.Prefix{prefix}))
					if identity != 0 {
						o.must(o.maps.UpsertIPCache([]datapath.IPCacheEntry{{Prefix: prefix, Identity: identity}}))
					}
					want := redirected(in)
					if !native && (identity == idR || identity == 6) {
						want = forged
					}
					o.expect(what, want, func() result { return by(answer) })
				}
			})
		}
	})
}

// TestMasqueradePortReuse: a client outside that opens a connection with the ports of an earlier
// one is led to a backend of now.
func TestMasqueradePortReuse(t *testing.T) {
	families(t, func(t *testing.T, v6 bool, a, b, r, w, router netip.Addr) {
		o := newOutside(t, v6, nil)
		o.rules(setB, allow(in, 0, 0, 0))
		o.serve(tcp, 9000, 9000)
		f := o.request(tcp, 40000)
		o.answered("answer", o.ask("opens", f), f)
		o.pod = b
		o.serve(tcp, 9000, 9000)
		f.tcpFlags = ack
		o.ask("goes on", f)
		f.tcpFlags = syn
		got := o.expect("opens by the same port", delivered(), func() result { return o.arrive(f) })
		if dst := addrAt(got.out, v6, true); dst != b {
			t.Errorf("the new connection went to %s", dst)
		}
	})
}

// TestMasqueradeRangeChanged: a client whose flow has a port outside of a new range gets another,
// and answers, with its next packet.
func TestMasqueradeRangeChanged(t *testing.T) {
	families(t, func(t *testing.T, v6 bool, a, b, r, w, router netip.Addr) {
		var cfg datapath.Config
		o := newOutside(t, v6, func(c *datapath.Config) {
			c.MasqueradePorts = datapath.PortRange{First: 61000, Last: 61999}
			cfg = *c
		})
		for _, proto := range []uint8{udp, tcp} {
			o.serve(proto, 9000, 9000)
			f := o.request(proto, 40000)
			o.answered("before", o.ask("before", f), f)
			cfg.MasqueradePorts = datapath.PortRange{First: 62000, Last: 62999}
			o.must(o.loader.Configure(cfg))
			f.tcpFlags = ack
			port := o.ask("afterwards", f)
			if port < 62000 || port > 62999 {
				t.Errorf("protocol %d: sent on from port %d", proto, port)
			}
			o.answered("afterwards", port, f)
			if again := o.ask("once more", f); again != port {
				t.Errorf("protocol %d: sent on from port %d, then from %d", proto, port, again)
			}
			cfg.MasqueradePorts = datapath.PortRange{First: 61000, Last: 61999}
			o.must(o.loader.Configure(cfg))
		}
	})
}

// TestMasqueradeFormerBackend: whoever has the address of a former backend on another node answers
// its clients no longer than answers to what they sent may be in flight. One that answers a
// connection, as a backend that drains does, goes on.
func TestMasqueradeFormerBackend(t *testing.T) {
	families(t, func(t *testing.T, v6 bool, a, b, r, w, router netip.Addr) {
		for _, proto := range []uint8{udp, tcp} {
			o := newOutside(t, v6, nil)
			former := netip.AddrPortFrom(o.pod, 9000)
			o.serve(proto, 9000, 9000)
			f, unanswered := o.request(proto, 40000), o.request(proto, 40001)
			port, silent := o.ask("asks", f), o.ask("asks, and gets no answer yet", unanswered)
			o.answered("answer", port, f)
			kept := o.pod
			o.pod = o.pod.Next()
			o.must(o.maps.UpsertIPCache([]datapath.IPCacheEntry{{Prefix: netip.PrefixFrom(o.pod, o.pod.BitLen()), Identity: idR}}))
			o.serve(proto, 9000, 9000)
			sweep := func() {
				t.Helper()
				_, err := o.maps.ForgetServiceFlows(t.Context(), func(flow datapath.ServiceFlow) bool {
					return flow.Backend == former && (proto == udp || !flow.Answered)
				})
				o.must(err)
			}
			sweep()
			next := o.pod
			o.pod = kept
			if proto == udp {
				o.answered("in flight", port, f)
			}
			o.pod = next
			if proto == udp {
				o.answered("of a backend of now", o.ask("chooses anew", f), f)
			}
			sweep()
			refused := dropped(datapath.ReasonUnknownRelated, in)
			late := func(port uint16) func() result {
				return func() result {
					return o.arrive(frame{src: kept, dst: o.as, proto: proto, sport: 9000, dport: port, tcpFlags: syn | ack})
				}
			}
			o.expect("an answer to nothing", refused, late(silent))
			if proto == udp {
				o.expect("the next owner of the address", refused, late(port))
				continue
			}
			o.pod = kept
			o.answered("a connection that goes on", port, f)
		}
	})
}

// TestFrontendDeleted: a connection of a client outside goes on when its frontend is deleted, as a
// pod's does; another one, also with the same ports, is for whoever has the port by then.
func TestFrontendDeleted(t *testing.T) {
	families(t, func(t *testing.T, v6 bool, a, b, r, w, router netip.Addr) {
		for name, pod := range map[string]netip.Addr{"of another node": r, "of this node": b} {
			o := newOutside(t, v6, nil)
			o.rules(setB, allow(in, 0, 0, 0))
			o.pod = pod
			here := pod == b
			o.serve(tcp, 9000, 9000)
			f := o.request(tcp, 40000)
			goesOn := func(what string) {
				t.Helper()
				want := redirected(in)
				if here {
					want = delivered()
				}
				got := o.expect(name+": "+what, want, func() result { return o.arrive(f) })
				if dst := addrAt(got.out, v6, true); dst != pod {
					t.Errorf("%s: %s: went to %s", name, what, dst)
				}
			}
			if here {
				goesOn("opens")
			} else {
				o.answered("answer", o.ask("opens", f), f)
			}
			f.tcpFlags = ack
			goesOn("acknowledges")
			o.must(o.maps.DeleteService(datapath.ServiceFrontend{Addr: netip.AddrPortFrom(o.frontend, 9000), Proto: tcp, Scope: datapath.ServiceExternal}))
			goesOn("without the frontend")
			other := o.request(tcp, 40001)
			o.expect(name+": another connection", passes(in), func() result { return o.arrive(other) })
			f.tcpFlags = syn
			o.expect(name+": opens anew", passes(in), func() result { return o.arrive(f) })
			f.tcpFlags = ack
			o.expect(name+": what follows", passes(in), func() result { return o.arrive(f) })
		}
	})
}

// TestMasqueradeShareOfEnded: a client that has used up its share of entries reuses those of its
// own flows that have ended, without an agent that removes them; it never takes another client's.
func TestMasqueradeShareOfEnded(t *testing.T) {
	families(t, func(t *testing.T, v6 bool, a, b, r, w, router netip.Addr) {
		const first, count = 62000, 12 // too few to divide among groups
		o := newOutside(t, v6, func(c *datapath.Config) {
			c.MasqueradePorts = datapath.PortRange{First: first, Last: first + count - 1}
			c.CTTimeouts = datapath.CTTimeouts{TCP: time.Hour, TCPSyn: time.Hour, TCPFin: time.Hour, Any: 4 * time.Second}
		})
		o.serve(tcp, 9000, 9000)
		o.serve(udp, 9000, 9000)
		accounts := o.maps.Replacements()["masquerade_accounts"]
		fill := func() { // as if all clients had as many as they may have
			t.Helper()
			for i := range accounts.MaxEntries() {
				o.must(accounts.Put(i, o.maps.MasqueradeShare()))
			}
		}
		for i := range uint16(count / 2) {
			o.ask("datagram", o.request(udp, 20000+i))
			o.ask("connection", o.request(tcp, 20000+i))
		}
		fill()
		full := dropped(datapath.ReasonNoPort, in)
		o.expect("while all go on", full, func() result { return o.arrive(o.request(udp, 30000)) })
		for range 4 {
			waitTick()
		}
		other := o.request(udp, 30000)
		other.src = w.Next() // whose hash is another
		o.expect("another client, whose entries these are not", full, func() result { return o.arrive(other) })
		for i := range uint16(count / 2) {
			o.ask("a datagram when others have ended", o.request(udp, 30000+i))
		}
		o.expect("as many as have ended", full, func() result { return o.arrive(o.request(udp, 31000)) })
		o.expect("a connection, of which none has ended", full, func() result { return o.arrive(o.request(tcp, 31000)) })
		if n := o.bound(); n != count {
			t.Errorf("%d entries, want %d", n, count)
		}
	})
}

// TestMasqueradeSockets: a port that a socket of the node has is not lent, nor is a frontend's; one
// that is lent stays lent if it becomes a frontend's.
func TestMasqueradeSockets(t *testing.T) {
	families(t, func(t *testing.T, v6 bool, a, b, r, w, router netip.Addr) {
		const first = 63000
		o := newOutside(t, v6, func(c *datapath.Config) {
			c.MasqueradePorts = datapath.PortRange{First: first, Last: first + 2}
		})
		// The namespace is shared by all tests: the families have sockets of their own.
		listen := map[bool]string{false: "0.0.0.0", true: "[::]"}[v6]
		family := map[bool]string{false: "4", true: "6"}[v6]
		o.must(o.ns.do(func() error {
			l, err := net.Listen("tcp"+family, fmt.Sprintf("%s:%d", listen, first))
			if err != nil {
				return err
			}
			t.Cleanup(func() { l.Close() })
			c, err := net.ListenPacket("udp"+family, fmt.Sprintf("%s:%d", listen, first+1))
			if err != nil {
				return err
			}
			t.Cleanup(func() { c.Close() })
			return nil
		}))
		o.must(o.maps.UpsertService(datapath.Service{
			ServiceFrontend: datapath.ServiceFrontend{Addr: netip.AddrPortFrom(o.as, first+2), Proto: tcp, Scope: datapath.ServiceExternal}, ID: 9,
		}))
		for proto, free := range map[uint8][]uint16{tcp: {first + 1}, udp: {first, first + 2}} {
			o.serve(proto, 9000, 9000)
			got := map[uint16]frame{}
			for i := range uint16(10) {
				f := o.request(proto, 20000+i)
				if r := o.arrive(f); r.action == actRedirect {
					got[binary.BigEndian.Uint16(r.out[o.l4:])] = f
				}
			}
			if len(got) != len(free) {
				t.Errorf("protocol %d: ports %v, want %v", proto, got, free)
			}
			for _, port := range free {
				if _, ok := got[port]; !ok {
					t.Errorf("protocol %d: port %d was not found", proto, port)
				}
			}
			for port, f := range got {
				o.must(o.maps.UpsertService(datapath.Service{
					ServiceFrontend: datapath.ServiceFrontend{Addr: netip.AddrPortFrom(o.as, port), Proto: proto, Scope: datapath.ServiceExternal}, ID: 10,
				}))
				o.answered("of a port that is a frontend's by now", port, f)
			}
		}
	})
}

// TestSCTP: no SCTP packet leaves with another port than its checksum covers: it keeps its ports,
// or is dropped by name.
func TestSCTP(t *testing.T) {
	families(t, func(t *testing.T, v6 bool, a, b, r, w, router netip.Addr) {
		o := newOutside(t, v6, nil)
		drop := dropped(datapath.ReasonSCTPPort, in)
		o.serve(sctp, 9000, 9000)
		f := o.request(sctp, 40000)
		for range 2 {
			if port := o.ask("sent on", f); port != f.sport {
				t.Errorf("sent on from port %d", port)
			}
			o.answered("sent on", f.sport, f)
		}
		// Another client of the same port cannot be told apart.
		twin := f
		twin.src = f.src.Next()
		o.expect("a twin", drop, func() result { return o.arrive(twin) })
		twin.sport++
		if port := o.ask("of another port", twin); port != twin.sport {
			t.Errorf("sent on from port %d", port)
		}
		o.serve(sctp, 9001, 9000)
		g := f
		g.dport, g.sport = 9001, 40007
		o.expect("to another port", drop, func() result { return o.arrive(g) })

		// Of pods: through a service of another port, and where two flows have the same ends.
		n, vip := newServing(t, v6)
		drop = dropped(datapath.ReasonSCTPPort, out)
		n.publish(vip, sctp, nil, netip.AddrPortFrom(b, 8053))
		p := frame{ethSrc: aMAC, ethDst: aHost, src: a, dst: vip, proto: sctp, sport: 4000, dport: vipPort}
		n.expect("a pod, to another port", drop, func() result { return n.fromA(p) })
		if list := n.flows(); len(list) != 0 {
			t.Errorf("remembered: %+v", list)
		}
		direct := p
		direct.dst = b
		n.publish(vip, sctp, nil, netip.AddrPortFrom(b, vipPort))
		n.expect("directly", delivered(), func() result { return n.fromA(direct) })
		n.expect("the same ends through a service", drop, func() result { return n.fromA(p) })
		n.publish(vip, sctp, nil, netip.AddrPortFrom(a, vipPort))
		p.sport = 4001
		n.expect("to itself", delivered(), func() result { return n.fromA(p) })
	})
}

// TestForgedIntoService: a segment to a backend with the ports of a client's established connection
// through a service does not take the translation off that connection: what the backend sends next
// would have the client reset it.
func TestForgedIntoService(t *testing.T) {
	families(t, func(t *testing.T, v6 bool, a, b, r, w, router netip.Addr) {
		o := newOutside(t, v6, nil)
		o.rules(setB, allow(in, 0, 0, 0))
		o.pod = b
		o.serve(tcp, 9000, 9000)
		f := o.request(tcp, 40000)
		direct := f
		direct.dst, direct.ethSrc, direct.ethDst = b, bHost, bMAC
		answer := frame{ethSrc: bMAC, ethDst: bHost, src: b, dst: f.src, proto: tcp, sport: 9000, dport: f.sport, tcpFlags: syn | ack}
		toB := func() result { return o.run(o.loader.Program(loader.ToPod), o.ifB, 0, direct.bytes()) }
		answered := func(what string, from netip.Addr) {
			t.Helper()
			want := redirected(out)
			if from == b {
				want = passes(out)
			}
			got := o.expect(what, want, func() result { return o.fromBBytes(withChecksum(answer.bytes())) })
			if src := addrAt(got.out, v6, false); src != from {
				t.Errorf("%s: the answer comes from %s, want %s", what, src, from)
			}
		}
		o.expect("opens", delivered(), func() result { return o.arrive(f) })
		answered("the service answers", o.frontend)
		f.tcpFlags, answer.tcpFlags = ack, ack
		for _, flags := range []uint8{ack, syn, rst, fin | ack} {
			direct.tcpFlags = flags
			o.expect(fmt.Sprintf("a forged segment with flags %#x", flags), dropped(datapath.ReasonTupleInUse, in), toB)
			answered("the service goes on", o.frontend)
			o.expect("the client goes on", delivered(), func() result { return o.arrive(f) })
		}
		// Another port is another connection, and one that has ended is none.
		direct.tcpFlags = syn
		direct.sport++
		o.expect("a connection of its own", passes(in), toB)
		direct.sport--
		f.tcpFlags, answer.tcpFlags = fin|ack, fin|ack
		o.expect("the client ends", delivered(), func() result { return o.arrive(f) })
		answered("the service ends", o.frontend)
		o.expect("directly, afterwards", passes(in), toB)
		answer.tcpFlags = syn | ack
		answered("directly, answered", b)
	})
}
