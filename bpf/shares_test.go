package bpf_test

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/hawser-net/hawser/internal/datapath/loader"
)

// flood sends count packets that differ in their ports through a program, each of which would open
// a flow.
func (n *node) flood(f frame, program *ebpf.Program, ifIndex, count int) {
	n.t.Helper()
	in := f.bytes()
	ports := 14 + 20
	if f.src.Is6() {
		ports = 14 + 40
	}
	n.must(n.ns.do(func() error {
		out := make([]byte, len(in)+64)
		for i := range count {
			binary.BigEndian.PutUint16(in[ports:], uint16(1024+i%60000))
			binary.BigEndian.PutUint16(in[ports+2:], uint16(1+i/60000))
			opts := &ebpf.RunOptions{Data: in, DataOut: out, Context: skbContext{IfIndex: uint32(ifIndex)}}
			if _, err := program.Run(opts); err != nil {
				return err
			}
		}
		return nil
	}))
}

// TestFlowFloodWithoutShares says what TestFlowFlood is about: without shares a flood takes
// everybody's flows.
func TestFlowFloodWithoutShares(t *testing.T) {
	const size, neighbours = 4096, 200 // of testMaps
	n := newNode(t, testConfig())
	n.rules(setA, allow(out, 0, 0, 0))
	n.rules(setB, allow(out, 0, 0, 0))
	n.must(n.maps.Replacements()["ct_accounts"].Put(uint32(n.a.ID), make([]byte, 20)))
	for i := range neighbours {
		n.fromB(frame{src: b4, dst: w4, proto: udp, sport: uint16(2000 + i), dport: 53})
	}
	n.flood(frame{src: a4, dst: w4, proto: udp, ethSrc: aMAC, ethDst: aHost}, n.loader.Program(loader.FromPod), n.ifA, 6*size)
	left := 0
	for _, f := range n.flows() {
		if f.SrcOwner == n.b.Incarnation {
			left++
		}
	}
	t.Logf("without shares a neighbour keeps %d of %d flows", left, neighbours)
	// An LRU map gives entries that were looked at another chance, so how many are left depends on
	// what it scans when.
	if left > neighbours*3/4 {
		t.Errorf("%d of %d flows survive a flood that nothing holds back", left, neighbours)
	}
}

// TestFlowFlood: a pod that opens more flows than conntrack holds evicts no other pod's flows, nor
// the service entries of those flows.
func TestFlowFlood(t *testing.T) {
	families(t, func(t *testing.T, v6 bool, a, b, r, w, router netip.Addr) {
		const size, neighbours = 4096, 200 // of testMaps
		n := newNode(t, testConfig())
		n.rules(setA, allow(out, 0, 0, 0))
		n.rules(setB, allow(out, 0, 0, 0))
		vip := vipOf(v6)
		n.publish(vip, udp, nil, netip.AddrPortFrom(r, 8053))
		mine := func(i int) frame {
			return frame{src: b, dst: w, proto: udp, sport: uint16(2000 + i), dport: 53}
		}
		ask := frame{src: b, dst: vip, proto: udp, sport: 1999, dport: vipPort, ethSrc: bMAC, ethDst: bHost}
		n.expect("through a service", passes(out), func() result { return n.fromBBytes(withChecksum(ask.bytes())) })
		for i := range neighbours {
			n.expect("open", passes(out), func() result { return n.fromB(mine(i)) })
		}
		flood := frame{src: a, dst: w, proto: udp, ethSrc: aMAC, ethDst: aHost}
		n.flood(flood, n.loader.Program(loader.FromPod), n.ifA, 3*size)
		lost := 0
		toB := func(f frame) result {
			f.ethSrc, f.ethDst = bHost, bMAC
			return n.run(n.loader.Program(loader.ToPod), n.ifB, 0, f.bytes())
		}
		for i := range neighbours {
			if toB(mine(i).reply()).action != actOK {
				lost++
			}
		}
		held, excess := 0, 0
		shares, err := n.maps.FlowShares()
		n.must(err)
		for _, s := range shares {
			if s.Endpoint == n.a.ID {
				excess = s.Excess
			}
		}
		for _, f := range n.flows() {
			if f.SrcOwner == n.a.Incarnation {
				held++
			}
		}
		t.Logf("a pod opened %d flows in a table of %d: it holds %d, its neighbour lost %d of %d", 3*size, size, held, lost, neighbours)
		if lost > 0 {
			t.Errorf("%d of %d of the neighbour's flows were lost", lost, neighbours)
		}
		if held > size/8+size/8 {
			t.Errorf("the pod holds %d flows of %d", held, size)
		}
		if excess < size {
			t.Errorf("%d flows were counted as excess", excess)
		}
		n.publish(vip, udp, nil, netip.AddrPortFrom(a, 8053))
		n.expect("the service's backend is remembered", passes(out), func() result { return n.fromBBytes(withChecksum(ask.bytes())) })

		// When its flows are gone, it has its share again; and so has who gets its number.
		n.inherit()
		if _, removed, err := n.maps.CollectCT(t.Context()); err != nil || removed != held {
			t.Errorf("removed %d flows of who is gone, %v; want %d", removed, err, held)
		}
		shares, err = n.maps.FlowShares()
		n.must(err)
		for _, s := range shares {
			want := map[uint16]int{0: 0, n.a.ID: 0, n.b.ID: neighbours + 2}[s.Endpoint]
			if s.Entries != want {
				t.Errorf("endpoint %d holds %d, want %d", s.Endpoint, s.Entries, want)
			}
		}
	})
}

// held counts the flows that belong to endpoint a, and to b.
func (n *node) held() (a, b int) {
	n.t.Helper()
	for _, f := range n.flows() {
		switch f.SrcOwner {
		case n.a.Incarnation:
			a++
		case n.b.Incarnation:
			b++
		}
	}
	return a, b
}

// TestShareOfSinglePod: a pod that needs more of conntrack than its share gets what no other holds,
// from sweep to sweep, and what it had to fight for within the excess is its own then. When its
// neighbours need it, it has to give it back; and what they hold stays theirs, whatever it opens.
func TestShareOfSinglePod(t *testing.T) {
	families(t, func(t *testing.T, v6 bool, a, b, r, w, router netip.Addr) {
		const size, want, neighbours = 4096, 1600, 500 // of testMaps
		n := newNode(t, testConfig())
		n.rules(setA, allow(out, 0, 0, 0))
		n.rules(setB, allow(out, 0, 0, 0))
		sweep := func() {
			t.Helper()
			_, _, err := n.maps.CollectCT(t.Context())
			n.must(err)
		}
		flood := frame{src: a, dst: w, proto: udp, ethSrc: aMAC, ethDst: aHost}
		// As a gateway's connections, which go on.
		for range 12 {
			n.flood(flood, n.loader.Program(loader.FromPod), n.ifA, want)
			sweep()
		}
		n.flood(flood, n.loader.Program(loader.FromPod), n.ifA, want)
		alone, _ := n.held()
		// Flows of the excess would displace each other; a flood of others in it, all of these.
		n.flood(frame{src: a, dst: r, proto: udp, ethSrc: aMAC, ethDst: aHost}, n.loader.Program(loader.FromPod), n.ifA, 6*size)
		after := 0
		for _, f := range n.flows() {
			if f.Dst.Addr() == w {
				after++
			}
		}
		t.Logf("a pod alone that has %d flows in a table of %d holds %d; %d of them after it has opened %d others", want, size, alone, after, 6*size)
		if alone < want || after < want*9/10 {
			t.Errorf("it holds %d of %d flows, %d after a flood", alone, want, after)
		}

		mine := func(i int) frame { return frame{src: b, dst: w, proto: udp, sport: uint16(2000 + i), dport: 53} }
		for i := range neighbours {
			n.expect("open", passes(out), func() result { return n.fromB(mine(i)) })
		}
		sweep()
		greedy, theirs := n.held()
		t.Logf("when a neighbour has opened %d flows, the pod holds %d", theirs, greedy)
		if greedy > size/2-neighbours || greedy < size/4 || theirs != neighbours {
			t.Errorf("the pod holds %d flows and its neighbour %d, of %d", greedy, theirs, size)
		}
		for range 3 {
			n.flood(flood, n.loader.Program(loader.FromPod), n.ifA, 6*size)
			sweep()
		}
		greedy, theirs = n.held()
		if theirs != neighbours || greedy > size/2-neighbours {
			t.Errorf("after a flood the pod holds %d flows and its neighbour %d of %d", greedy, theirs, neighbours)
		}
	})
}

// TestSharesLapse: counts that no agent has renewed for long limit no pod, so that new flows are
// possible without an agent.
func TestSharesLapse(t *testing.T) {
	n := newNode(t, testConfig())
	n.rules(setA, allow(out, 0, 0, 0))
	accounts := n.maps.Replacements()["ct_accounts"]
	account := struct{ Entries, Share, Counted, Excess, Slots uint32 }{Share: 1, Slots: 1}
	try := func(what string, counted, want uint32) {
		t.Helper()
		account.Entries, account.Counted, account.Excess = 100, counted, 0
		n.must(accounts.Put(uint32(n.a.ID), account))
		n.expect(what, passes(out), func() result {
			return n.fromA(frame{src: a4, dst: w4, proto: udp, sport: uint16(want + 1), dport: 53})
		})
		var after struct{ Entries, Share, Counted, Excess, Slots uint32 }
		n.must(accounts.Lookup(uint32(n.a.ID), &after))
		if after.Excess != want {
			t.Errorf("%s: %d entries in excess, want %d", what, after.Excess, want)
		}
	}
	n.must(accounts.Lookup(uint32(n.a.ID), &account))
	now := account.Counted
	account.Share, account.Slots = 1, 1
	try("counted now", now, 1)
	try("counted long ago", now-1000, 0)
}

// TestSharesOfOutsideClients: what is remembered of the services of clients outside is the
// backend's, for the programs as for the agent that counts, and goes with it.
func TestSharesOfOutsideClients(t *testing.T) {
	families(t, func(t *testing.T, v6 bool, a, b, r, w, router netip.Addr) {
		const clients = 20
		o := newOutside(t, v6, nil)
		o.pod = b
		o.rules(setB, allow(in, 0, 0, 0))
		o.serve(tcp, 9000, 80)
		for i := range clients {
			o.expect("a client", delivered(), func() result { return o.arrive(o.request(tcp, uint16(30000+i))) })
		}
		held := func(what string, pod int) {
			t.Helper()
			list, err := o.maps.FlowShares()
			o.must(err)
			got := map[uint16]int{}
			for _, s := range list {
				got[s.Endpoint] = s.Entries
			}
			if got[o.b.ID] != pod || got[0] != 0 {
				t.Errorf("%s: the backend holds %d entries and the node %d; want %d and none", what, got[o.b.ID], got[0], pod)
			}
		}
		held("counted by the programs", 2*clients)
		_, _, err := o.maps.CollectCT(t.Context())
		o.must(err)
		held("counted by the agent", 2*clients)
		o.must(o.maps.DeleteEndpoint(o.ifB))
		alive, _, err := o.maps.CollectCT(t.Context())
		o.must(err)
		if alive != 0 {
			t.Errorf("%d entries outlive the backend", alive)
		}
	})
}
