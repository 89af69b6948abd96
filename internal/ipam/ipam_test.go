package ipam

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hawser-net/hawser/internal/testenv"
)

func TestMain(m *testing.M) { testenv.VerifyTestMain(m) }

func ip(s string) netip.Addr { return netip.MustParseAddr(s) }

func pfx(s string) netip.Prefix {
	if s == "" {
		return netip.Prefix{}
	}
	return netip.MustParsePrefix(s)
}

func open(t testing.TB, v4, v6 string) *IPAM {
	t.Helper()
	m, err := New(Config{IPv4CIDR: pfx(v4), IPv6CIDR: pfx(v6)})
	if err != nil {
		t.Fatal(err)
	}
	m.Open()
	return m
}

func TestWhatAPoolHolds(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		cidr        string
		n           int
		first, last string
	}{
		{"10.1.0.0/32", 1, "10.1.0.0", "10.1.0.0"},
		{"10.1.0.0/31", 2, "10.1.0.0", "10.1.0.1"},
		{"10.1.0.4/30", 2, "10.1.0.5", "10.1.0.6"},
		{"10.1.0.9/29", 6, "10.1.0.9", "10.1.0.14"}, // host bits are ignored
		{"10.1.2.0/24", 254, "10.1.2.1", "10.1.2.254"},
		{"10.1.0.0/16", 65534, "10.1.0.1", "10.1.255.254"},
		{"255.255.255.0/24", 254, "255.255.255.1", "255.255.255.254"},
		{"fd00::/128", 1, "fd00::", "fd00::"},
		{"fd00::/127", 2, "fd00::", "fd00::1"},
		{"fd00::100/120", 254, "fd00::101", "fd00::1fe"},
		{"fd00::/64", 65534, "fd00::1", "fd00::fffe"},
		{"fd00::/8", 65534, "fd00::1", "fd00::fffe"},
	} {
		t.Run(tt.cidr, func(t *testing.T) {
			t.Parallel()
			p := newPool(DefaultPool, Block{Prefix: pfx(tt.cidr)})
			seen := map[netip.Addr]bool{}
			var first, last netip.Addr
			for {
				i, ok := p.free()
				if !ok {
					break
				}
				p.take(i)
				last = p.addr(i)
				if back, ok := p.index(last); !ok || back != i {
					t.Fatalf("index(addr(%d)) = %d, %v", i, back, ok)
				}
				if seen[last] {
					t.Fatalf("%v given twice", last)
				}
				seen[last] = true
				if !first.IsValid() {
					first = last
				}
			}
			if len(seen) != tt.n || first != ip(tt.first) || last != ip(tt.last) || p.capacity != tt.n {
				t.Errorf("%d addresses %v-%v, capacity %d; want %d %v-%v", len(seen), first, last, p.capacity, tt.n, tt.first, tt.last)
			}
		})
	}
}

func TestRotation(t *testing.T) {
	t.Parallel()
	m := open(t, "10.0.0.0/28", "") // 14 addresses
	give := func() netip.Addr {
		t.Helper()
		r, err := m.AllocateNext(Both, "o", "", false)
		if err != nil {
			t.Fatal(err)
		}
		return r.IPv4.IP
	}
	for want := 1; want <= 40; want++ {
		got := give()
		if w := fmt.Sprintf("10.0.0.%d", (want-1)%14+1); got != ip(w) {
			t.Fatalf("allocation %d: %v, want %s", want, got, w)
		}
		if err := m.Release(got, ""); err != nil {
			t.Fatal(err)
		}
	}
}

func TestErrors(t *testing.T) {
	t.Parallel()
	used := map[netip.Addr]string{}
	m, err := New(Config{IPv4CIDR: pfx("10.0.0.0/29"), InUse: func(a netip.Addr) (string, bool) { u, ok := used[a]; return u, ok }})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.AllocateNext(Both, "a/b", "", false); !errors.Is(err, ErrNotOpen) {
		t.Errorf("AllocateNext before Open: %v", err)
	}
	if err := m.Allocate(ip("10.0.0.1"), "a/b", ""); !errors.Is(err, ErrNotOpen) {
		t.Errorf("Allocate before Open: %v", err)
	}
	if err := m.Restore(ip("10.0.0.1"), "a/old"); err != nil {
		t.Error(err)
	}
	if err := m.Restore(ip("10.0.0.1"), "a/other"); !errors.Is(err, ErrExists) || !strings.Contains(err.Error(), "a/old") {
		t.Errorf("second Restore: %v", err)
	}
	m.Open()
	if err := m.Restore(ip("10.0.0.2"), "a/old"); err == nil {
		t.Error("Restore after Open: no error")
	}
	if err := m.exclude(ip("10.0.0.2"), "gateway"); err != nil {
		t.Error(err)
	}
	if err := m.exclude(ip("192.0.2.1"), "elsewhere"); err != nil {
		t.Error(err)
	}
	if err := m.exclude(ip("10.0.0.1"), "gateway"); !errors.Is(err, ErrExists) {
		t.Errorf("Exclude of an allocated address: %v", err)
	}
	for _, tt := range []struct {
		ip   string
		pool string
		want error
		text string
	}{
		{"10.0.0.1", "", ErrExists, "a/old"},
		{"10.0.0.2", "default", ErrExists, "gateway"},
		{"10.0.0.0", "", ErrInvalid, "first or last"},
		{"10.0.0.7", "", ErrInvalid, "first or last"},
		{"10.0.0.8", "", ErrInvalid, "10.0.0.0/29"},
		{"::ffff:10.0.0.3", "", ErrInvalid, ""},
		{"fd00::1", "", ErrDisabled, "ipv6"},
		{"10.0.0.3", "blue", ErrInvalid, "blue"},
		{"10.0.0.3", "default", nil, ""},
	} {
		err := m.Allocate(ip(tt.ip), "a/new", tt.pool)
		if !errors.Is(err, tt.want) || err != nil && !strings.Contains(err.Error(), tt.text) {
			t.Errorf("Allocate(%s, %s): %v", tt.ip, tt.pool, err)
		}
	}
	if err := m.Allocate(netip.Addr{}, "", ""); !errors.Is(err, ErrInvalid) {
		t.Errorf("Allocate of nothing: %v", err)
	}
	if _, err := m.AllocateNext(IPv6, "", "", false); !errors.Is(err, ErrDisabled) {
		t.Errorf("AllocateNext(IPv6): %v", err)
	}
	if _, err := m.AllocateNext(Both, "", "blue", false); !errors.Is(err, ErrInvalid) {
		t.Errorf("AllocateNext(blue): %v", err)
	}
	used[ip("10.0.0.3")] = "endpoint 7"
	if err := m.Release(ip("10.0.0.3"), ""); !errors.Is(err, ErrInUse) || !strings.Contains(err.Error(), "endpoint 7") {
		t.Errorf("Release of a used address: %v", err)
	}
	if err := m.Free(ip("10.0.0.3")); err != nil {
		t.Error(err)
	}
	for _, s := range []string{"10.0.0.3", "10.0.0.2", "10.0.0.0"} {
		if err := m.Release(ip(s), ""); !errors.Is(err, ErrNotFound) {
			t.Errorf("Release(%s): %v", s, err)
		}
	}
	if err := m.Release(ip("10.9.0.1"), ""); !errors.Is(err, ErrInvalid) {
		t.Errorf("Release of a foreign address: %v", err)
	}
	for range 4 { // 6 less one restored, one excluded
		if _, err := m.AllocateNext(Both, "a/b", "", false); err != nil {
			t.Error(err)
		}
	}
	_, err = m.AllocateNext(Both, "a/b", "", false)
	if !errors.Is(err, ErrExhausted) || !strings.Contains(err.Error(), "all 5 ipv4 addresses of pod CIDR 10.0.0.0/29") {
		t.Errorf("exhausted: %v", err)
	}
	want := []Usage{{Family: IPv4, Pool: DefaultPool, CIDR: pfx("10.0.0.0/29"), Capacity: 5, Used: 5}}
	if diff := cmp.Diff(want, m.Usage(), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
		t.Error(diff)
	}
}

func TestConfig(t *testing.T) {
	t.Parallel()
	for _, cfg := range []Config{
		{},
		{IPv4CIDR: pfx("fd00::/64")},
		{IPv6CIDR: pfx("10.0.0.0/8")},
		{IPv4CIDR: pfx("10.0.0.0/7")},
		{IPv6CIDR: pfx("::ffff:10.0.0.0/112")},
		{IPv4CIDR: pfx("10.0.0.0/8"), Expiration: -1},
	} {
		if _, err := New(cfg); err == nil {
			t.Errorf("%+v: no error", cfg)
		}
	}
	for s, want := range map[string]Families{"": Both, "ipv4": IPv4, "ipv6": IPv6} {
		if f, err := ParseFamilies(s); f != want || err != nil {
			t.Errorf("ParseFamilies(%q) = %v, %v", s, f, err)
		}
	}
	if _, err := ParseFamilies("IPv4"); !errors.Is(err, ErrInvalid) {
		t.Errorf("ParseFamilies(IPv4): %v", err)
	}
}

func TestBothOrNone(t *testing.T) {
	t.Parallel()
	uuid := regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)
	m := open(t, "10.0.0.0/30", "fd00::/120")
	for range 2 {
		r, err := m.AllocateNext(Both, "o", "", true)
		if err != nil || r.IPv4 == nil || r.IPv6 == nil || r.IPv4.UUID == r.IPv6.UUID {
			t.Fatalf("%+v, %v", r, err)
		}
		if !uuid.MatchString(r.IPv4.UUID) {
			t.Errorf("UUID %s", r.IPv4.UUID)
		}
	}
	if _, err := m.AllocateNext(Both, "o", "", true); !errors.Is(err, ErrExhausted) {
		t.Errorf("third: %v", err)
	}
	if u := m.Usage(); u[0].Used != 2 || u[1].Used != 2 || len(m.expiring) != 4 {
		t.Errorf("usage %+v, %d expiring", u, len(m.expiring))
	}
	if r, err := m.AllocateNext(IPv6, "o", "", false); err != nil || r.IPv4 != nil {
		t.Errorf("IPv6 alone: %+v, %v", r, err)
	}
}

func TestRouter(t *testing.T) {
	t.Parallel()
	mk := func() *IPAM {
		m, err := New(Config{IPv4CIDR: pfx("10.0.0.0/24"), IPv6CIDR: pfx("fd00::/120")})
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	for name, tt := range map[string]struct {
		preferred    []netip.Addr
		want4, want6 string
	}{
		"none":                 {nil, "10.0.0.10", "fd00::1"},
		"both":                 {[]netip.Addr{ip("10.0.0.77"), ip("fd00::77")}, "10.0.0.77", "fd00::77"},
		"one":                  {[]netip.Addr{ip("fd00::77")}, "10.0.0.10", "fd00::77"},
		"taken":                {[]netip.Addr{ip("10.0.0.9")}, "10.0.0.10", "fd00::1"},
		"another CIDR":         {[]netip.Addr{ip("10.9.0.9"), {}}, "10.0.0.10", "fd00::1"},
		"the first that works": {[]netip.Addr{ip("10.0.0.9"), ip("10.0.0.5"), ip("10.0.0.6")}, "10.0.0.5", "fd00::1"},
	} {
		m := mk()
		if err := m.Restore(ip("10.0.0.9"), "a/b"); err != nil {
			t.Fatal(err)
		}
		r, err := m.AllocateRouter(tt.preferred...)
		if err != nil || r.IPv4.IP != ip(tt.want4) || r.IPv6.IP != ip(tt.want6) {
			t.Errorf("%s: %+v, %v", name, r, err)
			continue
		}
		m.Open()
		if err := m.Release(r.IPv4.IP, ""); !errors.Is(err, ErrInUse) {
			t.Errorf("%s: Release of the router: %v", name, err)
		}
		if a, ok := m.Lookup(r.IPv6.IP); !ok || a.Owner != RouterOwner {
			t.Errorf("%s: Lookup: %v", name, a)
		}
		if d := m.Dump(); len(d) != 3 || !d[0].IP.Less(d[1].IP) || !d[1].IP.Less(d[2].IP) {
			t.Errorf("%s: Dump: %v", name, d)
		}
	}
}

func TestExpiration(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		used := map[netip.Addr]bool{}
		m, err := New(Config{IPv4CIDR: pfx("10.0.0.0/24"), IPv6CIDR: pfx("fd00::/120"), InUse: func(a netip.Addr) (string, bool) {
			mu.Lock()
			defer mu.Unlock()
			return "endpoint 1", used[a]
		}})
		if err != nil {
			t.Fatal(err)
		}
		m.Open()
		ctx, cancel := context.WithCancelCause(t.Context())
		ended := make(chan error)
		go func() { ended <- m.Run(ctx) }()

		give := func(expire bool) Allocation {
			t.Helper()
			r, err := m.AllocateNext(IPv4, "a/b", "", expire)
			if err != nil {
				t.Fatal(err)
			}
			return *r.IPv4
		}
		lost, kept, inUse, plain := give(true), give(true), give(true), give(false)
		mu.Lock()
		used[inUse.IP] = true
		mu.Unlock()
		time.Sleep(5 * time.Minute)
		late := give(true)
		for _, tt := range []struct {
			ip   netip.Addr
			uuid string
			want error
		}{
			{kept.IP, "other", ErrExpiration},
			{kept.IP, "", ErrExpiration},
			{kept.IP, lost.UUID, ErrExpiration},
			{kept.IP, kept.UUID, nil},
			{kept.IP, kept.UUID, ErrExpiration}, // stopped already
			{plain.IP, "x", ErrExpiration},
			{ip("10.0.0.200"), "x", ErrNotFound},
		} {
			if err := m.StopExpiration(tt.ip, tt.uuid); !errors.Is(err, tt.want) {
				t.Errorf("StopExpiration(%v, %q): %v", tt.ip, tt.uuid, err)
			}
		}
		has := func(want ...Allocation) {
			t.Helper()
			synctest.Wait()
			var got []netip.Addr
			for _, a := range m.Dump() {
				got = append(got, a.IP)
			}
			var w []netip.Addr
			for _, a := range want {
				w = append(w, a.IP)
			}
			if fmt.Sprint(got) != fmt.Sprint(w) {
				t.Errorf("after %v: %v, want %v", time.Now(), got, w)
			}
		}
		time.Sleep(5*time.Minute - time.Second)
		has(lost, kept, inUse, plain, late)
		time.Sleep(time.Second)
		has(kept, inUse, plain, late)
		if err := m.StopExpiration(lost.IP, lost.UUID); !errors.Is(err, ErrNotFound) {
			t.Errorf("StopExpiration too late: %v", err)
		}
		time.Sleep(5 * time.Minute)
		has(kept, inUse, plain)

		// An address given back before it expires takes its expiration with it.
		again := give(true)
		if err := m.Release(again.IP, ""); err != nil {
			t.Error(err)
		}
		if err := m.Allocate(again.IP, "a/c", ""); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Hour)
		has(kept, inUse, plain, again)
		stop := errors.New("stop")
		cancel(stop)
		if err := <-ended; err != stop {
			t.Errorf("Run: %v", err)
		}
	})
}

// TestModel compares random operations with a naive model.
func TestModel(t *testing.T) {
	t.Parallel()
	for seed := range uint64(100) {
		r := rand.New(rand.NewPCG(seed, 3))
		m := open(t, "10.0.0.0/27", "fd00::/124") // 30 and 14
		owners := map[netip.Addr]string{}
		excluded := map[netip.Addr]bool{}
		any4 := func() netip.Addr { return ip(fmt.Sprintf("10.0.0.%d", r.IntN(34))) }
		any6 := func() netip.Addr { return ip(fmt.Sprintf("fd00::%x", r.IntN(18))) }
		count := func(f Families) (used, excl int) {
			for a := range owners {
				if familyOf(a) == f {
					used++
				}
			}
			for a := range excluded {
				if familyOf(a) == f {
					excl++
				}
			}
			return used, excl
		}
		usable := func(a netip.Addr) bool {
			return a.Is4() && a.As4()[3] >= 1 && a.As4()[3] <= 30 || a.Is6() && a.As16()[15] >= 1 && a.As16()[15] <= 14
		}
		for step := range 400 {
			owner := fmt.Sprint("ns/p", step)
			a := any4()
			if r.IntN(2) == 0 {
				a = any6()
			}
			switch op := r.IntN(10); {
			case op < 4:
				want := []Families{IPv4, IPv6, Both}[r.IntN(3)]
				u4, e4 := count(IPv4)
				u6, e6 := count(IPv6)
				full := want&IPv4 != 0 && u4+e4 == 30 || want&IPv6 != 0 && u6+e6 == 14
				res, err := m.AllocateNext(want, owner, "", false)
				if full != errors.Is(err, ErrExhausted) {
					t.Fatalf("seed %d step %d: %v, full %v", seed, step, err, full)
				}
				for _, got := range []*Allocation{res.IPv4, res.IPv6} {
					if got == nil {
						continue
					}
					if _, ok := owners[got.IP]; ok || excluded[got.IP] || !usable(got.IP) {
						t.Fatalf("seed %d step %d: %v given while taken or unusable", seed, step, got.IP)
					}
					owners[got.IP] = owner
				}
			case op < 6:
				_, taken := owners[a]
				want := usable(a) && !taken && !excluded[a]
				if err := m.Allocate(a, owner, ""); (err == nil) != want {
					t.Fatalf("seed %d step %d: Allocate(%v): %v", seed, step, a, err)
				} else if err == nil {
					owners[a] = owner
				}
			case op < 9:
				_, taken := owners[a]
				if err := m.Release(a, ""); (err == nil) != taken {
					t.Fatalf("seed %d step %d: Release(%v): %v", seed, step, a, err)
				}
				delete(owners, a)
			case r.IntN(8) == 0:
				_, taken := owners[a]
				if err := m.exclude(a, "x"); (err != nil) != taken {
					t.Fatalf("seed %d step %d: Exclude(%v): %v", seed, step, a, err)
				} else if err == nil && usable(a) {
					excluded[a] = true
				}
			}
			got := map[netip.Addr]string{}
			for _, al := range m.Dump() {
				got[al.IP] = al.Owner
			}
			if !maps.Equal(owners, got) {
				t.Fatalf("seed %d step %d: has %v, want %v", seed, step, got, owners)
			}
			for _, u := range m.Usage() {
				used, excl := count(u.Family)
				if total := map[Families]int{IPv4: 30, IPv6: 14}[u.Family]; u.Used != used || u.Capacity != total-excl {
					t.Fatalf("seed %d step %d: usage %+v, want %d of %d", seed, step, u, used, total-excl)
				}
			}
		}
	}
}

// TestConcurrent has many takers and givers; nothing is ever held by two.
func TestConcurrent(t *testing.T) {
	t.Parallel()
	m, err := New(Config{IPv4CIDR: pfx("10.0.0.0/26"), IPv6CIDR: pfx("fd00::/122"), Expiration: time.Microsecond})
	if err != nil {
		t.Fatal(err)
	}
	m.Open()
	ctx, cancel := context.WithCancel(t.Context())
	var run, wg sync.WaitGroup
	run.Go(func() { _ = m.Run(ctx) })
	var held sync.Map
	for g := range 8 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(g), 4))
			var mine []netip.Addr
			for range 500 {
				expire := r.IntN(3) == 0
				res, err := m.AllocateNext(Both, "o", "", expire)
				if err != nil && !errors.Is(err, ErrExhausted) {
					t.Error(err)
				}
				if err == nil {
					for _, a := range []*Allocation{res.IPv4, res.IPv6} {
						if expire && m.StopExpiration(a.IP, a.UUID) != nil {
							continue // it was released
						}
						if _, twice := held.LoadOrStore(a.IP, g); twice {
							t.Errorf("%v is held by two", a.IP)
						}
						mine = append(mine, a.IP)
					}
				}
				for len(mine) > 0 && r.IntN(5) > 1 {
					held.Delete(mine[0])
					if err := m.Release(mine[0], ""); err != nil {
						t.Error(err)
					}
					mine = mine[1:]
				}
			}
			for _, a := range mine {
				held.Delete(a)
				if err := m.Release(a, ""); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	cancel()
	run.Wait()
	m.expire(time.Now().Add(time.Hour))
	if d := m.Dump(); len(d) != 0 {
		t.Errorf("left over: %v", d)
	}
	for _, p := range slices.Concat(m.pools[0], m.pools[1]) {
		if p.count != 0 {
			t.Errorf("pool %v counts %d", p.cidr, p.count)
		}
	}
}

func BenchmarkAllocateNext(b *testing.B) {
	m := open(b, "10.0.0.0/16", "fd00::/64")
	for range 60_000 {
		if _, err := m.AllocateNext(Both, "o", "", false); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		r, err := m.AllocateNext(Both, "ns/pod", "", true)
		if err != nil {
			b.Fatal(err)
		}
		_, _ = m.Free(r.IPv4.IP), m.Free(r.IPv6.IP)
	}
}

// TestLocal: an address that the node itself has is given to no pod, also if it is asked for by
// name, and the others are all given.
func TestLocal(t *testing.T) {
	mine := map[netip.Addr]bool{ip("10.0.0.2"): true, ip("10.0.0.5"): true}
	m, err := New(Config{IPv4CIDR: netip.MustParsePrefix("10.0.0.0/29"), Local: func(a netip.Addr) bool { return mine[a] }})
	if err != nil {
		t.Fatal(err)
	}
	m.Open()
	if err := m.Allocate(ip("10.0.0.5"), "a/b", ""); !errors.Is(err, ErrExists) || !strings.Contains(err.Error(), "interface of the node") {
		t.Errorf("an address of the node by name: %v", err)
	}
	var got []string
	for {
		r, err := m.AllocateNext(IPv4, "a/b", "", false)
		if err != nil {
			if !errors.Is(err, ErrExhausted) {
				t.Error(err)
			}
			break
		}
		got = append(got, r.IPv4.IP.String())
	}
	if want := "[10.0.0.1 10.0.0.3 10.0.0.4 10.0.0.6]"; fmt.Sprint(got) != want {
		t.Errorf("given were %v, want %s", got, want)
	}
	if u := m.Usage(); len(u) != 1 || u[0].Used != 4 || u[0].Capacity != 4 {
		t.Errorf("usage %+v", u)
	}
}

// TestTake: an address from before a restart expires like one that is given now, unless it is
// confirmed.
func TestTake(t *testing.T) {
	m, err := New(Config{IPv4CIDR: netip.MustParsePrefix("10.0.0.0/29"), Expiration: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	m.Open()
	for _, a := range []struct{ ip, uuid string }{{"10.0.0.1", "one"}, {"10.0.0.2", "two"}, {"10.0.0.3", ""}} {
		if err := m.Take(ip(a.ip), "a/b", a.uuid); err != nil {
			t.Fatal(err)
		}
	}
	if err := m.Take(ip("10.0.0.1"), "a/c", "one"); !errors.Is(err, ErrExists) {
		t.Errorf("an address that is taken: %v", err)
	}
	if err := m.StopExpiration(ip("10.0.0.2"), "two"); err != nil {
		t.Error(err)
	}
	m.expire(time.Now().Add(2 * time.Minute))
	for a, want := range map[string]bool{"10.0.0.1": false, "10.0.0.2": true, "10.0.0.3": true} {
		if _, ok := m.Lookup(ip(a)); ok != want {
			t.Errorf("%s is given out: %t, want %t", a, ok, want)
		}
	}
}

// TestNone: a node without pods gives out no address, and has none itself.
func TestNone(t *testing.T) {
	t.Parallel()
	m, err := New(Config{None: true})
	if err != nil {
		t.Fatal(err)
	}
	m.Open()
	if _, err := m.AllocateNext(Both, "default/pod", "", true); !errors.Is(err, ErrDisabled) {
		t.Errorf("an address is given: %v", err)
	}
	ip := netip.MustParseAddr("10.0.0.1")
	if err := m.Allocate(ip, "default/pod", ""); !errors.Is(err, ErrDisabled) {
		t.Errorf("an address that is named is given: %v", err)
	}
	if err := m.Restore(ip, "default/pod"); err == nil {
		t.Error("an address of before is restored")
	}
	if r, err := m.AllocateRouter(ip); err != nil || r.IPv4 != nil || r.IPv6 != nil {
		t.Errorf("the node itself is given %+v, %v", r, err)
	}
	if len(m.CIDRs(Both)) != 0 || m.Families() != 0 {
		t.Errorf("the node has %v of %v", m.CIDRs(Both), m.Families())
	}
	if _, err := New(Config{None: true, IPv4CIDR: netip.MustParsePrefix("10.0.0.0/24")}); err == nil {
		t.Error("a node without pods has a pod CIDR")
	}
}

// TestRefuse has a node lose its pod CIDR: what is given out stays, and nothing new is given out
// until it is back.
func TestRefuse(t *testing.T) {
	t.Parallel()
	m, err := New(Config{IPv4CIDR: pfx("10.0.0.0/24"), IPv6CIDR: pfx("fd00::/120")})
	if err != nil {
		t.Fatal(err)
	}
	m.Open()
	had, err := m.AllocateNext(Both, "a", "", false)
	if err != nil {
		t.Fatal(err)
	}
	why := errors.New("it is another node's")
	m.Refuse(why)
	if r, err := m.AllocateNext(Both, "b", "", false); !errors.Is(err, ErrExhausted) || !errors.Is(err, why) {
		t.Errorf("given: %+v, %v", r, err)
	}
	other := netip.MustParseAddr("10.0.0.77")
	for name, err := range map[string]error{"allocate": m.Allocate(other, "b", ""), "take": m.Take(other, "b", "")} {
		if !errors.Is(err, why) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if a, ok := m.Lookup(had.IPv4.IP); !ok || a.Owner != "a" || m.Free(had.IPv4.IP) != nil {
		t.Errorf("what was given out: %+v, %t", a, ok)
	}
	m.Refuse(nil)
	if _, err := m.AllocateNext(Both, "b", "", false); err != nil {
		t.Error(err)
	}
}
