package ipam

import (
	"errors"
	"math/rand/v2"
	"net/netip"
	"testing"
)

// TestSingles compares single addresses that come, go and are held with a count by hand.
func TestSingles(t *testing.T) {
	t.Parallel()
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 1))
		m, err := New(Config{Assigned: IPv4})
		if err != nil {
			t.Fatal(err)
		}
		m.Open()
		ip := func() netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, byte(rng.IntN(12))}) }
		want, given := map[netip.Addr]bool{}, map[netip.Addr]string{}
		for step := range 200 {
			switch rng.IntN(6) {
			case 0:
				clear(want)
				for range rng.IntN(12) {
					want[ip()] = rng.IntN(4) > 0
				}
				stays := m.AssignSingles(want)
				lost := 0
				for a := range given {
					if _, ok := want[a]; !ok {
						lost++
					}
				}
				if len(stays) != lost {
					t.Fatalf("seed %d step %d: %v stay, want %d", seed, step, stays, lost)
				}
			case 1:
				a := ip()
				if held := m.Hold(a); held == (given[a] != "") {
					t.Fatalf("seed %d step %d: %s held: %v", seed, step, a, held)
				} else if _, ok := want[a]; held && ok {
					want[a] = false
				}
			case 2:
				a := ip()
				if err := m.Free(a); (err == nil) != (given[a] != "") {
					t.Fatalf("seed %d step %d: free %s: %v", seed, step, a, err)
				}
				delete(given, a)
			case 3:
				a := ip()
				err := m.Allocate(a, "x/y", "")
				if (err == nil) != (want[a] && given[a] == "") {
					t.Fatalf("seed %d step %d: take %s: %v", seed, step, a, err)
				}
				if err == nil {
					given[a] = "x/y"
				}
			default:
				free := 0
				for a, give := range want {
					if give && given[a] == "" {
						free++
					}
				}
				r, err := m.AllocateNext(IPv4, "a/b", "", false)
				if (err == nil) != (free > 0) || err != nil && !errors.Is(err, ErrExhausted) {
					t.Fatalf("seed %d step %d: %d are free: %v", seed, step, free, err)
				}
				if err == nil {
					if !want[r.IPv4.IP] || given[r.IPv4.IP] != "" {
						t.Fatalf("seed %d step %d: %s was given", seed, step, r.IPv4.IP)
					}
					given[r.IPv4.IP] = "a/b"
				}
			}
		}
	}
}

// TestSinglesRest: an address that was released is the last to be given again, also when others
// have come.
func TestSinglesRest(t *testing.T) {
	t.Parallel()
	m, err := New(Config{Assigned: Both})
	if err != nil {
		t.Fatal(err)
	}
	pool := map[netip.Addr]bool{}
	for _, text := range []string{"10.0.0.4", "10.0.0.8", "10.0.0.9", "fd00::1"} {
		pool[netip.MustParseAddr(text)] = true
	}
	used := netip.MustParseAddr("10.9.9.9") // of a pod of before, and not the node's any more
	pool[used] = false
	m.AssignSingles(pool)
	if err := m.Restore(used, "a/old"); err != nil {
		t.Fatal(err)
	}
	m.Open()
	first, err := m.AllocateNext(Both, "a/b", "", false)
	if err != nil || first.IPv6.IP != netip.MustParseAddr("fd00::1") {
		t.Fatal(first, err)
	}
	m.FreeOf(first.IPv4.IP, "a/other")
	if _, ok := m.Lookup(first.IPv4.IP); !ok {
		t.Error("somebody else freed an address")
	}
	m.FreeOf(first.IPv4.IP, "a/b")
	if err := m.Free(used); err != nil {
		t.Fatal(err)
	}
	pool[netip.MustParseAddr("10.0.0.1")] = true
	m.AssignSingles(pool)
	for i := range 4 {
		r, err := m.AllocateNext(IPv4, "a/b", "", false)
		if err != nil || (r.IPv4.IP == first.IPv4.IP) != (i == 3) {
			t.Errorf("%d: %+v, %v", i, r.IPv4, err)
		}
	}
	if r, err := m.AllocateNext(IPv4, "a/b", "", false); !errors.Is(err, ErrExhausted) {
		t.Errorf("%+v, %v", r.IPv4, err)
	}
	if len(m.CIDRs(Both)) != 0 || len(m.Prefixes()) != 6 {
		t.Errorf("%v, %v", m.CIDRs(Both), m.Prefixes())
	}
}
