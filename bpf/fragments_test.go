package bpf_test

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/datapath/loader"
)

// way is how packets come to a program: which it is, by what interface, and between what hardware
// addresses.
type way struct {
	program        *ebpf.Program
	ifIndex        int
	ethSrc, ethDst []byte
}

// ways returns how the node has what pod a sends, what pod b sends, what the stack has for each,
// and what comes by the network.
func (n *node) ways() (fromA, fromB, toA, toB, outside way) {
	n.t.Helper()
	from, to := n.loader.Program(loader.FromPod), n.loader.Program(loader.ToPod)
	return way{from, n.ifA, aMAC, aHost}, way{from, n.ifB, bMAC, bHost}, way{to, n.ifA, aHost, aMAC}, way{to, n.ifB, bHost, bMAC},
		way{n.loader.Program(loader.FromNetdev), n.ifA, bMAC, n.macA()}
}

func (n *node) by(w way, f frame) result {
	n.t.Helper()
	f.ethSrc, f.ethDst = w.ethSrc, w.ethDst
	return n.run(w.program, w.ifIndex, 0, f.bytes())
}

// pieces returns the first and the last fragment of a datagram.
func pieces(src, dst netip.Addr, dport uint16, id uint32) (first, later frame) {
	first = frame{src: src, dst: dst, proto: udp, sport: 5000, dport: dport, fragID: id, more: true, payload: make([]byte, 64)}
	later = first
	later.fragOffset, later.more = 64, false
	return first, later
}

// floodFragments sends as many first fragments that differ in their identification.
func (n *node) floodFragments(w way, f frame, count int) {
	n.t.Helper()
	f.ethSrc, f.ethDst = w.ethSrc, w.ethDst
	in := f.bytes()
	n.must(n.ns.do(func() error {
		out := make([]byte, len(in)+64)
		for i := range count {
			if f.src.Is6() {
				binary.BigEndian.PutUint32(in[14+40+4:], uint32(i))
			} else {
				binary.BigEndian.PutUint16(in[14+4:], uint16(i))
			}
			if _, err := w.program.Run(&ebpf.RunOptions{Data: in, DataOut: out, Context: skbContext{IfIndex: uint32(w.ifIndex)}}); err != nil {
				return err
			}
		}
		return nil
	}))
}

// ageFragments has all that is remembered of fragments be older by as many ticks.
func (n *node) ageFragments(ticks uint32) {
	n.t.Helper()
	const seen = 36 // the offset of the tick in struct frag_value
	var key, value []byte
	fragments := n.maps.Replacements()["fragments"]
	for it := fragments.Iterate(); it.Next(&key, &value); {
		binary.NativeEndian.PutUint32(value[seen:], binary.NativeEndian.Uint32(value[seen:])-ticks)
		n.must(fragments.Put(key, value))
	}
}

// TestFragmentFlood: whoever sends first fragments without end keeps no neighbour's datagrams from
// being put together.
func TestFragmentFlood(t *testing.T) {
	families(t, func(t *testing.T, v6 bool, a, b, r, w, router netip.Addr) {
		const size, at, rounds = 4096, 8, 10 // size of testMaps
		cfg := testConfig()
		cfg.NodePort, cfg.NativeIfIndex = true, 1
		n := newNode(t, cfg)
		n.allowAll()
		fromA, fromB, toA, toB, outside := n.ways()
		self := node4
		if v6 {
			self = node6
		}
		for _, row := range []struct {
			name         string
			flood        way
			src, dst     netip.Addr
			mine         way
			mySrc, myDst netip.Addr
		}{
			{name: "a pod, and what a neighbour sends", flood: fromA, src: a, dst: w, mine: fromB, mySrc: b, myDst: w},
			{name: "a pod, and what a neighbour is sent from outside", flood: fromA, src: a, dst: w, mine: toB, mySrc: w, myDst: b},
			{name: "a pod at a neighbour, and what that sends", flood: fromA, src: a, dst: b, mine: fromB, mySrc: b, myDst: w},
			{name: "a pod at a neighbour, and what that is sent", flood: fromA, src: a, dst: b, mine: toB, mySrc: w, myDst: b},
			{name: "outside at a pod, and what a neighbour is sent", flood: toA, src: w, dst: a, mine: toB, mySrc: w, myDst: b},
			{name: "outside at a pod, and what it sends", flood: toB, src: w, dst: b, mine: fromB, mySrc: b, myDst: w},
			{name: "outside at the node, and what a pod is sent", flood: outside, src: w, dst: self, mine: toB, mySrc: w, myDst: b},
		} {
			lost := 0
			for round := range rounds {
				id := uint32(10000 + round*at)
				for i := range uint32(at) {
					first, _ := pieces(row.mySrc, row.myDst, 53, id+i)
					if n.by(row.mine, first).action == actDrop {
						t.Fatalf("%s: a first fragment is dropped%s", row.name, n.dump())
					}
				}
				first, _ := pieces(row.src, row.dst, 53, 0)
				n.floodFragments(row.flood, first, size+size/8)
				for i := range uint32(at) {
					_, later := pieces(row.mySrc, row.myDst, 53, id+i)
					if n.by(row.mine, later).action == actDrop {
						lost++
					}
				}
			}
			t.Logf("%s: %d of %d lost", row.name, lost, rounds*at)
			if lost > 0 {
				t.Errorf("%s: %d of %d of the neighbour's datagrams were lost", row.name, lost, rounds*at)
			}
		}
	})
}

// TestFragmentFloodOfOnePeer: a peer that sends first fragments without end to a pod takes an
// eighth of the pod's places here, so it keeps few others out.
func TestFragmentFloodOfOnePeer(t *testing.T) {
	families(t, func(t *testing.T, v6 bool, a, b, r, w, router netip.Addr) {
		n := newNode(t, testConfig())
		n.allowAll()
		_, _, toA, _, _ := n.ways()
		flood, _ := pieces(w, a, 53, 0)
		const peers = 64
		lost := 0
		for peer, i := w, 0; i < peers; i++ {
			peer = peer.Next()
			first, later := pieces(peer, a, 53, uint32(5000+i))
			n.expect("the first", passes(in), func() result { return n.by(toA, first) })
			n.floodFragments(toA, flood, 256)
			if n.by(toA, later).action == actDrop {
				lost++
			}
		}
		t.Logf("%d of %d peers lost a datagram", lost, peers)
		if lost > peers/4 {
			t.Errorf("%d of %d peers lost a datagram", lost, peers)
		}
	})
}

// TestFragmentsGetOld: a first fragment from long ago is not taken for that of a datagram with the
// same identification.
func TestFragmentsGetOld(t *testing.T) {
	families(t, func(t *testing.T, v6 bool, a, b, r, w, router netip.Addr) {
		n := newNode(t, testConfig())
		n.allowAll()
		first, later := pieces(a, b, 80, 1000)
		n.expect("the first", delivered(), func() result { return n.fromA(first) })
		n.expect("the rest", delivered(), func() result { return n.fromA(later) })
		n.ageFragments(57)
		n.expect("the rest of another", dropped(datapath.ReasonFragmentUnknown, out), func() result { return n.fromA(later) })
		n.expect("a first once more", delivered(), func() result { return n.fromA(first) })
		n.expect("its rest", delivered(), func() result { return n.fromA(later) })
	})
}

// TestFragmentsOfOthers: a datagram whose place another has taken is lost, and never taken for that
// other.
func TestFragmentsOfOthers(t *testing.T) {
	families(t, func(t *testing.T, v6 bool, a, b, r, w, router netip.Addr) {
		n := newNode(t, testConfig())
		n.rules(setA, allow(out, 0, udp, 80))
		n.rules(setB, allow(in, 0, 0, 0))
		const id = 1000
		open, openRest := pieces(a, b, 80, id)
		displaced := 0
		for i := range uint32(1024) {
			n.expect("to the open port", delivered(), func() result { return n.fromA(open) })
			closed, closedRest := pieces(a, b, 81, id+1+i)
			n.expect("to the closed port", dropped(datapath.ReasonPolicyDenied, out), func() result { return n.fromA(closed) })
			before := n.count(datapath.ReasonFragmentUnknown, out)
			switch got := n.fromA(openRest).action; {
			case got == actDrop && n.count(datapath.ReasonFragmentUnknown, out) == before+1:
				displaced++
			case got != actRedirect:
				t.Fatalf("the rest for the open port: action %d%s", got, n.dump())
			}
			n.expect("the rest for the closed port", dropped(datapath.ReasonPolicyDenied, out), func() result { return n.fromA(closedRest) })
		}
		if displaced == 0 || displaced > 512 {
			t.Errorf("%d of 1024 datagrams took the place of another", displaced)
		}

		n.expect("to the open port", delivered(), func() result { return n.fromA(open) })
		n.inherit()
		n.rules(3, allow(out, 0, 0, 0))
		n.expect("the rest, of who has the address now", dropped(datapath.ReasonFragmentUnknown, out), func() result { return n.fromA(openRest) })
	})
}

// TestFragmentsFull: where there is no room for more, what is remembered stays, and what is not is
// lost.
func TestFragmentsFull(t *testing.T) {
	families(t, func(t *testing.T, v6 bool, a, b, r, w, router netip.Addr) {
		n := newNode(t, testConfig())
		n.allowAll()
		first, later := pieces(b, w, 53, 1000)
		n.expect("the first", passes(out), func() result { return n.fromB(first) })
		fragments := n.maps.Replacements()["fragments"]
		key, value := make([]byte, fragments.KeySize()), make([]byte, fragments.ValueSize())
		for i := uint32(1); ; i++ {
			binary.NativeEndian.PutUint32(key, 1<<20+i)
			if err := fragments.Put(key, value); errors.Is(err, unix.E2BIG) {
				break
			} else {
				n.must(err)
			}
		}
		n.expect("the rest", passes(out), func() result { return n.fromB(later) })
		first, later = pieces(a, w, 53, 1000)
		n.expect("another's first", passes(out), func() result { return n.fromA(first) })
		n.expect("another's rest", dropped(datapath.ReasonFragmentUnknown, out), func() result { return n.fromA(later) })
		if _, _, err := n.maps.CollectCT(t.Context()); err != nil {
			t.Fatal(err)
		}
		n.expect("another's first after a collection", passes(out), func() result { return n.fromA(first) })
		n.expect("another's rest", passes(out), func() result { return n.fromA(later) })
		_, later = pieces(b, w, 53, 1000)
		n.expect("what was remembered, after a collection", passes(out), func() result { return n.fromB(later) })
	})
}
