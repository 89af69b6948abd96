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
				stays := m.AssignAddresses(prefixes(want))
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

// TestSinglesQuarantine: an address that was released is the last to be given again, also when
// others have come.
func TestSinglesQuarantine(t *testing.T) {
	t.Parallel()
	m, err := New(Config{Assigned: Both})
	if err != nil {
		t.Fatal(err)
	}
	pool := map[netip.Addr]bool{}
	for _, text := range []string{"10.0.0.4", "10.0.0.8", "10.0.0.9", "fd00::1"} {
		pool[netip.MustParseAddr(text)] = true
	}
	used := netip.MustParseAddr("10.9.9.9") // of a former pod, and not the node's any more
	pool[used] = false
	m.AssignAddresses(prefixes(pool))
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
		t.Error("another owner freed an address")
	}
	m.FreeOf(first.IPv4.IP, "a/b")
	if err := m.Free(used); err != nil {
		t.Fatal(err)
	}
	pool[netip.MustParseAddr("10.0.0.1")] = true
	m.AssignAddresses(prefixes(pool))
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

// prefixes are addresses as AssignAddresses takes them.
func prefixes(want map[netip.Addr]bool) map[netip.Prefix]bool {
	out := map[netip.Prefix]bool{}
	for ip, give := range want {
		out[netip.PrefixFrom(ip, ip.BitLen())] = give
	}
	return out
}

// TestPrefixes: addresses of prefixes that come, go and are held beside single ones, compared with
// a count by hand. Nothing is given twice, of a prefix that is held, or that the node has no more;
// the lowest prefix is given out of first, and what was released is used last.
func TestPrefixes(t *testing.T) {
	t.Parallel()
	all := []netip.Prefix{netip.MustParsePrefix("fd00:0:0:0:a::/126"), netip.MustParsePrefix("fd00:0:0:0:b::/126"), netip.MustParsePrefix("fd00:0:0:0:c::9/128")}
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 2))
		m, err := New(Config{Assigned: Both})
		if err != nil {
			t.Fatal(err)
		}
		m.Open()
		want, given := map[netip.Prefix]bool{}, map[netip.Addr]bool{}
		of := func(ip netip.Addr) (p netip.Prefix, ok bool) {
			for p := range want {
				if p.Contains(ip) {
					return p, true
				}
			}
			return p, false
		}
		pick := func() netip.Addr {
			p := all[rng.IntN(len(all))]
			if ip := p.Addr().Next(); !p.IsSingleIP() && rng.IntN(2) == 0 {
				return ip
			} else if !p.IsSingleIP() {
				return ip.Next()
			}
			return p.Addr()
		}
		for step := range 300 {
			switch rng.IntN(6) {
			case 0:
				clear(want)
				for _, p := range all {
					if rng.IntN(3) > 0 {
						want[p] = rng.IntN(3) > 0
					}
				}
				stays := m.AssignAddresses(want)
				lost := 0
				for ip := range given {
					if _, ok := of(ip); !ok {
						lost++
					}
				}
				if len(stays) != lost {
					t.Fatalf("seed %d step %d: %v stay, want %d", seed, step, stays, lost)
				}
			case 1:
				ip := pick()
				p, ok := of(ip)
				held := m.Hold(ip)
				if held != (!given[ip] && (!ok || p.IsSingleIP())) {
					t.Fatalf("seed %d step %d: %s held: %v", seed, step, ip, held)
				} else if held && ok {
					want[p] = false
				}
			case 2:
				ip := pick()
				if err := m.Free(ip); (err == nil) != given[ip] {
					t.Fatalf("seed %d step %d: free %s: %v", seed, step, ip, err)
				}
				delete(given, ip)
			case 3:
				ip := pick()
				p, _ := of(ip)
				if err := m.Allocate(ip, "x/y", ""); (err == nil) != (want[p] && !given[ip]) {
					t.Fatalf("seed %d step %d: take %s: %v", seed, step, ip, err)
				} else if err == nil {
					given[ip] = true
				}
			default:
				lowest, free := netip.Prefix{}, 0
				for _, p := range all {
					n := 2
					if p.IsSingleIP() {
						n = 1
					}
					for ip := range given {
						if p.Contains(ip) {
							n--
						}
					}
					if !want[p] {
						n = 0
					}
					if free == 0 && n > 0 {
						lowest = p
					}
					free += n
				}
				r, err := m.AllocateNext(IPv6, "a/b", "", false)
				if (err == nil) != (free > 0) || err != nil && !errors.Is(err, ErrExhausted) {
					t.Fatalf("seed %d step %d: %d are free: %v", seed, step, free, err)
				}
				if err == nil {
					if given[r.IPv6.IP] || !lowest.Contains(r.IPv6.IP) {
						t.Fatalf("seed %d step %d: %s was given, want one of %s", seed, step, r.IPv6.IP, lowest)
					}
					given[r.IPv6.IP] = true
				}
			}
			used := 0
			for _, u := range m.Usage() {
				used += u.Used
			}
			if used != len(given) || len(m.CIDRs(Both)) != 0 {
				t.Fatalf("seed %d step %d: %d are given, %d counted; other nodes are to lead to %v", seed, step, len(given), used, m.CIDRs(Both))
			}
		}
	}
	// One as EC2 assigns it: most of it is out of reach, and nothing is listed.
	m, err := New(Config{Assigned: Both})
	if err != nil {
		t.Fatal(err)
	}
	large := netip.MustParsePrefix("fd00:0:0:0:a::/80")
	m.AssignAddresses(map[netip.Prefix]bool{large: true})
	if err := m.Restore(large.Addr().Next(), "a/old"); err != nil {
		t.Fatal(err)
	}
	m.Open()
	r, err := m.AllocateNext(IPv6, "a/b", "", false)
	if err != nil || r.IPv6.IP != large.Addr().Next().Next() {
		t.Errorf("%+v, %v", r.IPv6, err)
	}
	if err := m.Free(large.Addr().Next()); err != nil {
		t.Error(err)
	}
	if r, err = m.AllocateNext(IPv6, "a/c", "", false); err != nil || r.IPv6.IP == large.Addr().Next() {
		t.Errorf("%+v, %v: what was released has not rested", r.IPv6, err)
	}
	if got := m.Prefixes(); len(got) != 1 || got[0] != large {
		t.Errorf("addresses of pods are of %v", got)
	}
}
