package bpf_test

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/hawser-net/hawser/internal/datapath"
)

// TestServiceConsistent: a client's flow meets the same backend by whichever of a service's
// addresses it comes, which stand for those of other nodes; all backends get some; and when one
// goes, the others' clients mostly stay.
func TestServiceConsistent(t *testing.T) {
	n := newNode(t, testConfig())
	n.allowAll()
	var backends []netip.AddrPort
	for i := range 7 {
		backends = append(backends, netip.AddrPortFrom(b4, uint16(8000+i)))
	}
	one, two, fewer, kept := vip4, netip.MustParseAddr("10.96.0.11"), netip.MustParseAddr("10.96.0.12"), netip.MustParseAddr("10.96.0.13")
	consistent := func(s *datapath.Service) { s.Maglev = true }
	n.publish(one, udp, consistent, slices.Clone(backends)...)
	n.publish(two, udp, consistent, slices.Clone(backends)...)
	n.publish(fewer, udp, consistent, backends[1:]...)
	n.publish(kept, udp, func(s *datapath.Service) { s.Maglev, s.Affinity = true, time.Second }, slices.Clone(backends)...)
	choice := func(vip netip.Addr, sport uint16) uint16 {
		t.Helper()
		f := frame{ethSrc: aMAC, ethDst: aHost, src: a4, dst: vip, proto: udp, sport: sport, dport: vipPort}
		got := n.expect("to "+vip.String(), delivered(), func() result { return n.fromABytes(f.bytes()) })
		return binary.BigEndian.Uint16(got.out[14+20+2:])
	}
	seen := map[uint16]int{}
	moved := 0
	first := choice(kept, 999)
	for sport := uint16(1000); sport < 1300; sport++ {
		b := choice(one, sport)
		seen[b]++
		if other := choice(two, sport); other != b {
			t.Fatalf("the flow of port %d goes to %d by one address, and to %d by another", sport, b, other)
		}
		if other := choice(fewer, sport); b != 8000 && other != b {
			moved++
		} else if other == 8000 {
			t.Fatal("to a backend that is none")
		}
	}
	if len(seen) != len(backends) {
		t.Errorf("only some backends are chosen: %v", seen)
	}
	if moved > 30 {
		t.Errorf("of 300 flows %d moved although their backend stayed", moved)
	}
	// A client with affinity has one backend for all its flows, by its address, not by what was
	// remembered.
	waitTick()
	waitTick()
	for sport := uint16(2000); sport < 2010; sport++ {
		if b := choice(kept, sport); b != first {
			t.Errorf("with affinity to %d, then to %d", first, b)
		}
	}
}
