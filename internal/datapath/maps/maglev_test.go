package maps

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/hawser-net/hawser/internal/datapath"
)

const cells = datapath.MaxMaglevBackends

// someBackends are sorted, none twice, of either family.
func someBackends(r *rand.Rand, n int) []netip.AddrPort {
	all := make(map[netip.AddrPort]bool)
	for len(all) < n {
		a := netip.AddrFrom4([4]byte{10, 0, byte(r.IntN(4)), byte(r.IntN(256))})
		if r.IntN(4) == 0 {
			a = netip.AddrFrom16([16]byte{0: 0xfd, 14: byte(r.IntN(256)), 15: byte(r.IntN(256))})
		}
		all[netip.AddrPortFrom(a, uint16(8080+r.IntN(2)))] = true
	}
	var out []netip.AddrPort
	for b := range all {
		out = append(out, b)
	}
	slices.SortFunc(out, netip.AddrPort.Compare)
	return out
}

// cellOwners names the backend of each cell, which does not depend on how the backends are counted.
func cellOwners(backends []netip.AddrPort) []netip.AddrPort {
	var out []netip.AddrPort
	for _, i := range maglev(backends, cells) {
		out = append(out, backends[i])
	}
	return out
}

// TestMaglevBalance: of any backends, each has nearly its share of the cells.
func TestMaglevBalance(t *testing.T) {
	for seed := range uint64(8) {
		r := rand.New(rand.NewPCG(seed, 2))
		for _, n := range []int{1, 2, 3, 5, 10, 50, 160} {
			backends := someBackends(r, n)
			count := make(map[netip.AddrPort]int)
			for _, b := range cellOwners(backends) {
				count[b]++
			}
			share := float64(cells) / float64(n)
			for _, b := range backends {
				if d := float64(count[b])/share - 1; d > 0.03 || d < -0.03 {
					t.Errorf("seed %d: of %d backends %s has %d cells, %+.1f %% of its share", seed, n, b, count[b], 100*d)
				}
			}
		}
	}
	if maglev(nil, cells) != nil {
		t.Error("cells without backends")
	}
	if got := maglev(someBackends(rand.New(rand.NewPCG(1, 1)), 13), 13); len(got) != 13 || len(slices.Compact(slices.Sorted(slices.Values(got)))) != 13 {
		t.Errorf("as many backends as cells: %v", got)
	}
}

// TestMaglevDisruption: when a backend comes or goes, cells that are, and were, others' mostly stay
// with them.
func TestMaglevDisruption(t *testing.T) {
	for seed := range uint64(8) {
		r := rand.New(rand.NewPCG(seed, 3))
		for _, n := range []int{2, 3, 10, 50, 100} {
			all := someBackends(r, n)
			gone := r.IntN(n)
			fewer := slices.Delete(slices.Clone(all), gone, gone+1)
			before, after := cellOwners(all), cellOwners(fewer)
			moved := 0
			for i := range before {
				if before[i] != all[gone] && before[i] != after[i] {
					moved++
				}
			}
			// The paper's figure 12: a few per cent of the table, besides the share of the backend
			// itself.
			if limit := cells * 4 / 100; moved > limit {
				t.Errorf("seed %d: of %d backends one goes, and %d cells of others change, more than %d", seed, n, moved, limit)
			}
		}
	}
}

func BenchmarkMaglev(b *testing.B) {
	backends := someBackends(rand.New(rand.NewPCG(1, 1)), 100)
	for b.Loop() {
		maglev(backends, cells)
	}
}
