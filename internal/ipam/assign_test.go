package ipam

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

// assigned returns an open IPAM with CIDRs by pool, as "pool=cidr,cidr".
func assigned(t testing.TB, families Families, pools ...string) *IPAM {
	t.Helper()
	m, err := New(Config{Assigned: families})
	if err != nil {
		t.Fatal(err)
	}
	if stays, err := m.Assign(blocks(pools...)); err != nil || len(stays) > 0 {
		t.Fatal(stays, err)
	}
	m.Open()
	return m
}

func blocks(pools ...string) map[string][]Block {
	out := map[string][]Block{}
	for _, text := range pools {
		name, list, _ := strings.Cut(text, "=")
		for _, c := range strings.Split(list, ",") {
			out[name] = append(out[name], Block{Prefix: netip.MustParsePrefix(c)})
		}
	}
	return out
}

func TestAssigned(t *testing.T) {
	m := assigned(t, Both, "default=10.0.0.0/30,fd00::/126", "edge=10.1.0.0/30,10.1.0.4/30,fd01::/126")
	take := func(owner, v4, v6 string) {
		t.Helper()
		r, err := m.AllocateFrom(Both, owner, Choice{v4, v6}, false)
		if err != nil || r.IPv4.Pool != v4 || r.IPv6.Pool != v6 {
			t.Fatalf("%+v, %v", r, err)
		}
		if m.PoolOf(r.IPv4.IP) != v4 || m.PoolOf(r.IPv6.IP) != v6 {
			t.Errorf("the addresses are of pools %q and %q", m.PoolOf(r.IPv4.IP), m.PoolOf(r.IPv6.IP))
		}
	}
	take("a/1", "edge", "default")
	take("a/2", "edge", "edge")
	take("a/3", "edge", "edge") // the second CIDR
	_, err := m.AllocateFrom(Both, "a/4", Choice{"default", "edge"}, false)
	if !errors.Is(err, ErrExhausted) || !strings.Contains(err.Error(), `pool "edge"`) || !strings.Contains(err.Error(), "fd01::/126") {
		t.Errorf("of an exhausted pool: %v", err)
	}
	if d := m.Demand(); d["edge"] != (Count{3, 3}) || d["default"] != (Count{1, 1}) {
		t.Errorf("who waits for an address counts in neither family: %+v", d)
	}
	if _, err := m.AllocateFrom(Both, "a/5", Choice{"other", "other"}, false); !errors.Is(err, ErrExhausted) || !strings.Contains(err.Error(), `no ipv6 pod CIDR of pool "other"`) {
		t.Errorf("of a pool that the node has nothing of: %v", err)
	}
	moved := m.Moved()
	if _, err := m.Assign(blocks("default=10.0.0.0/30,fd00::/126", "edge=10.1.0.0/30,10.1.0.4/30,fd01::/126,fd01::4/126")); err != nil {
		t.Fatal(err)
	}
	<-moved
	take("a/4", "default", "edge")
	if d := m.Demand(); d["edge"] != (Count{3, 3}) || d["default"] != (Count{1, 1}) || d["other"] != (Count{1, 1}) {
		t.Errorf("who has an address does not wait: %+v", d)
	}
	if m.RemoveUnused(pfx("10.0.0.0/30")) {
		t.Error("a CIDR in use was taken away")
	}
	if err := m.Release(ip("10.1.0.1"), "default"); !errors.Is(err, ErrInvalid) {
		t.Errorf("released from another pool: %v", err)
	}
	if err := m.Allocate(ip("10.0.0.2"), "x", "edge"); !errors.Is(err, ErrInvalid) {
		t.Errorf("allocated from another pool: %v", err)
	}

	// The CIDR that is not assigned any more stays as long as it is in use, and gives nothing out.
	stays, err := m.Assign(blocks("edge=10.1.0.0/30,10.1.0.4/30,fd01::/126,fd01::4/126"))
	if err != nil || fmt.Sprint(stays) != "[10.0.0.0/30 fd00::/126]" {
		t.Fatalf("%v stay, %v", stays, err)
	}
	if _, err := m.AllocateNext(IPv4, "a/6", "", false); !errors.Is(err, ErrExhausted) {
		t.Errorf("of a CIDR that is not assigned: %v", err)
	}
	if _, err := m.Assign(blocks("edge=10.0.0.0/29")); !errors.Is(err, ErrExists) {
		t.Errorf("a CIDR in use was given to another pool: %v", err)
	}
	for _, a := range m.Dump() {
		if err := m.Free(a.IP); err != nil {
			t.Fatal(err)
		}
	}
	if stays, err := m.Assign(nil); err != nil || len(stays) > 0 || len(m.CIDRs(Both)) > 0 {
		t.Errorf("%v stay, %v, and the node has %v", stays, err, m.CIDRs(Both))
	}
}

// TestEdges: a pool may allow a CIDR's outermost addresses; those given out survive that it does
// not any more, also over a restart.
func TestEdges(t *testing.T) {
	edge := func(first, last bool) map[string][]Block {
		return map[string][]Block{"default": {{Prefix: pfx("10.0.0.0/30"), AllowFirst: first, AllowLast: last}}}
	}
	for _, c := range []struct {
		first, last bool
		want        string
	}{{false, false, "[10.0.0.1 10.0.0.2]"}, {true, false, "[10.0.0.0 10.0.0.1 10.0.0.2]"}, {false, true, "[10.0.0.1 10.0.0.2 10.0.0.3]"}, {true, true, "[10.0.0.0 10.0.0.1 10.0.0.2 10.0.0.3]"}} {
		m := assigned(t, IPv4)
		if _, err := m.Assign(edge(!c.first, !c.last)); err != nil {
			t.Fatal(err)
		}
		if _, err := m.Assign(edge(c.first, c.last)); err != nil { // it is not in use yet
			t.Fatal(err)
		}
		var got []netip.Addr
		for {
			r, err := m.AllocateNext(IPv4, "x", "", false)
			if err != nil {
				break
			}
			got = append(got, r.IPv4.IP)
		}
		slices.SortFunc(got, netip.Addr.Compare)
		if b := edge(c.first, c.last)["default"][0]; fmt.Sprint(got) != c.want || Capacity(b) != len(got) {
			t.Errorf("first %t, last %t: %v, capacity %d; want %s", c.first, c.last, got, Capacity(b), c.want)
		}
	}
	// They are allowed while the CIDR is in use: the operator counts them at once.
	used := assigned(t, IPv4)
	for i, b := range []map[string][]Block{edge(false, false), edge(false, true), edge(true, true), edge(false, false), edge(true, true)} {
		if _, err := used.Assign(b); err != nil {
			t.Fatal(err)
		}
		if _, err := used.AllocateNext(IPv4, "x", "", false); (err != nil) != (i == 4) {
			t.Errorf("address %d: %v", i, err)
		}
	}
	m, err := New(Config{Assigned: IPv4})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.Assign(edge(false, false)); err != nil {
		t.Fatal(err)
	}
	if err := m.Restore(ip("10.0.0.0"), "of before"); err != nil {
		t.Errorf("the address of a pod of before: %v", err)
	}
	m.Open()
	if u := m.Usage(); u[0].Used != 1 || u[0].Capacity != 3 {
		t.Errorf("%+v", u)
	}
	for bits, want := range map[int]int{126: 2, 127: 2, 128: 1, 112: 65534, 64: 65534} {
		if got := Capacity(Block{Prefix: netip.PrefixFrom(ip("fd00::"), bits)}); got != want {
			t.Errorf("capacity of /%d: %d, want %d", bits, got, want)
		}
		if p := newPool("x", Block{Prefix: netip.PrefixFrom(ip("fd00::"), bits)}); p.capacity != want {
			t.Errorf("capacity of a pool of /%d: %d, want %d", bits, p.capacity, want)
		}
	}
}

// TestAssignedModel compares with an oracle that knows nothing but who has which address, while
// CIDRs come, go and change pools.
func TestAssignedModel(t *testing.T) {
	t.Parallel()
	all := []string{"10.0.0.0/30", "10.0.0.4/30", "10.0.0.0/29", "10.0.0.8/29", "10.0.1.0/32"}
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 1))
		m := assigned(t, IPv4)
		given := map[netip.Addr]string{}    // the pool in which it was given
		has := map[string]map[string]bool{} // what was assigned last, by pool
		inside := func(cidr string, a netip.Addr) bool { return netip.MustParsePrefix(cidr).Contains(a) }
		for step := range 200 {
			pool := []string{"default", "edge"}[r.IntN(2)]
			switch r.IntN(6) {
			case 0:
				want := map[string][]Block{}
				next := map[string]map[string]bool{}
				for _, cidr := range all {
					if to := []string{"", "default", "edge"}[r.IntN(3)]; to != "" {
						want[to] = append(want[to], Block{Prefix: netip.MustParsePrefix(cidr)})
						if next[to] == nil {
							next[to] = map[string]bool{}
						}
						next[to][cidr] = true
					}
				}
				_, _ = m.Assign(want) // some may overlap
				has = next
			case 1, 2:
				for a := range given { // any
					if err := m.Free(a); err != nil {
						t.Fatalf("seed %d, step %d: free %s: %v", seed, step, a, err)
					}
					delete(given, a)
					break
				}
			default:
				res, err := m.AllocateNext(IPv4, "x", pool, false)
				if err != nil {
					break
				}
				a := res.IPv4.IP
				if _, twice := given[a]; twice || res.IPv4.Pool != pool {
					t.Fatalf("seed %d, step %d: %s was given twice, or of pool %s and not %s", seed, step, a, res.IPv4.Pool, pool)
				}
				ok := false
				for cidr := range has[pool] {
					ok = ok || inside(cidr, a)
				}
				if !ok {
					t.Fatalf("seed %d, step %d: %s was given of pool %s, which has %v", seed, step, a, pool, has[pool])
				}
				given[a] = pool
			}
			used := 0
			cidrs := m.CIDRs(Both)
			for i, c := range cidrs {
				if slices.ContainsFunc(cidrs[:i], c.Overlaps) {
					t.Fatalf("seed %d, step %d: the node has overlapping CIDRs %v", seed, step, cidrs)
				}
			}
			for _, u := range m.Usage() {
				used += u.Used
				if u.Used > u.Capacity {
					t.Fatalf("seed %d, step %d: %+v", seed, step, u)
				}
			}
			if used != len(given) {
				t.Fatalf("seed %d, step %d: %d addresses are in use, want %d", seed, step, used, len(given))
			}
			for a, pool := range given {
				if m.PoolOf(a) != pool {
					t.Fatalf("seed %d, step %d: %s is of pool %q, it was given of %q", seed, step, a, m.PoolOf(a), pool)
				}
			}
		}
	}
}
