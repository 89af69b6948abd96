package pool

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func prefixes(text ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, s := range text {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

func newPool(t testing.TB, bits int, ranges ...string) *Pool {
	t.Helper()
	p, err := New(prefixes(ranges...), bits)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestAllocate(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		bits   int
		ranges []string
		claims []string
		want   []string // the blocks that come, in order, until none is left
	}{
		{"in order", 26, []string{"10.0.0.0/24"}, nil, []string{"10.0.0.0/26", "10.0.0.64/26", "10.0.0.128/26", "10.0.0.192/26"}},
		{"range by range", 31, []string{"10.0.0.8/30", "10.0.0.0/30"}, nil, []string{"10.0.0.8/31", "10.0.0.10/31", "10.0.0.0/31", "10.0.0.2/31"}},
		{"a range as large as a block", 24, []string{"10.0.0.0/24"}, nil, []string{"10.0.0.0/24"}},
		{"the end of the family", 25, []string{"255.255.255.0/24"}, nil, []string{"255.255.255.0/25", "255.255.255.128/25"}},
		{"all of IPv4", 1, []string{"0.0.0.0/0"}, nil, []string{"0.0.0.0/1", "128.0.0.0/1"}},
		{"around what is held", 26, []string{"10.0.0.0/24"}, []string{"10.0.0.64/26"}, []string{"10.0.0.0/26", "10.0.0.128/26", "10.0.0.192/26"}},
		{"around smaller ones", 26, []string{"10.0.0.0/24"}, []string{"10.0.0.0/28", "10.0.0.100/32"}, []string{"10.0.0.128/26", "10.0.0.192/26"}},
		{"around a larger one", 26, []string{"10.0.0.0/24"}, []string{"10.0.0.0/25"}, []string{"10.0.0.128/26", "10.0.0.192/26"}},
		{"within a larger one", 26, []string{"10.0.0.0/24"}, []string{"10.0.0.0/8"}, nil},
		{"unmoved by others", 25, []string{"10.0.0.0/24"}, []string{"192.0.2.0/24"}, []string{"10.0.0.0/25", "10.0.0.128/25"}},
		{"IPv6", 112, []string{"fd00::/110"}, []string{"fd00::1:0/112"}, []string{"fd00::/112", "fd00::2:0/112", "fd00::3:0/112"}},
		{"host bits in a range", 25, []string{"10.0.0.77/24"}, nil, []string{"10.0.0.0/25", "10.0.0.128/25"}},
		{"no range", 24, nil, nil, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p := newPool(t, tt.bits, tt.ranges...)
			for _, c := range tt.claims {
				if err := p.Claim("before", netip.MustParsePrefix(c)); err != nil {
					t.Fatal(err)
				}
			}
			var got []netip.Prefix
			for {
				block, err := p.Allocate("node")
				if errors.Is(err, ErrExhausted) {
					break
				}
				if err != nil {
					t.Fatal(err)
				}
				got = append(got, block)
			}
			if diff := cmp.Diff(prefixes(tt.want...), got, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
				t.Errorf("blocks (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(got, p.Holds("node"), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }), cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("held (-allocated +held):\n%s", diff)
			}
		})
	}
}

func TestReleasedBlockIsQuarantined(t *testing.T) {
	t.Parallel()
	p := newPool(t, 26, "10.0.0.0/24")
	take := func(owner, want string) {
		t.Helper()
		if got, err := p.Allocate(owner); err != nil || got.String() != want {
			t.Fatalf("allocated %s, %v; want %s", got, err, want)
		}
	}
	take("a", "10.0.0.0/26")
	p.Release("a")
	take("b", "10.0.0.64/26")
	take("c", "10.0.0.128/26")
	take("d", "10.0.0.192/26")
	take("e", "10.0.0.0/26")
	if _, err := p.Allocate("f"); !errors.Is(err, ErrExhausted) || !strings.Contains(err.Error(), "all 4 blocks of /26 in 10.0.0.0/24 are held") {
		t.Errorf("a full pool says: %v", err)
	}
	if !p.ReleaseOne("c", netip.MustParsePrefix("10.0.0.128/26")) || p.ReleaseOne("c", netip.MustParsePrefix("10.0.0.128/26")) {
		t.Error("a block is released once")
	}
	if p.ReleaseOne("d", netip.MustParsePrefix("10.0.0.0/26")) {
		t.Error("the block of another owner was released")
	}
	take("f", "10.0.0.128/26")
}

func TestClaim(t *testing.T) {
	t.Parallel()
	p := newPool(t, 24, "10.0.0.0/16")
	for _, tt := range []struct {
		owner, prefix, held, by string
	}{
		{"a", "10.0.1.0/24", "", ""},
		{"a", "10.0.1.0/24", "", ""}, // again
		{"b", "10.0.1.0/24", "10.0.1.0/24", "a"},
		{"b", "10.0.1.7/24", "10.0.1.0/24", "a"}, // host bits do not hide it
		{"b", "10.0.1.128/25", "10.0.1.0/24", "a"},
		{"b", "10.0.0.0/8", "10.0.1.0/24", "a"},
		{"a", "10.0.0.0/23", "10.0.1.0/24", "a"},
		{"b", "10.0.2.0/24", "", ""},
		{"b", "172.16.0.0/12", "", ""},
	} {
		err := p.Claim(tt.owner, netip.MustParsePrefix(tt.prefix))
		var taken *TakenError
		switch {
		case tt.by == "" && err != nil:
			t.Errorf("%s claims %s: %v", tt.owner, tt.prefix, err)
		case tt.by != "" && !errors.As(err, &taken):
			t.Errorf("%s claims %s: %v; it is held by %s", tt.owner, tt.prefix, err, tt.by)
		case tt.by != "" && (taken.Owner != tt.by || taken.Held.String() != tt.held):
			t.Errorf("%s claims %s: refused for %s of %s; want %s of %s", tt.owner, tt.prefix, taken.Held, taken.Owner, tt.held, tt.by)
		}
	}
	if p.Len() != 3 {
		t.Errorf("%d prefixes are held, want 3", p.Len())
	}
	if err := p.Claim("a", netip.Prefix{}); err == nil {
		t.Error("no prefix at all was claimed")
	}
}

func TestAvoid(t *testing.T) {
	t.Parallel()
	p := newPool(t, 28, "10.0.0.0/26")
	other, err := p.Share(prefixes("10.0.0.0/25"), 26, nil)
	if err != nil {
		t.Fatal(err)
	}
	p.Avoid(prefixes("10.0.0.40/32", "10.0.0.0/29", "10.0.0.0/28", "10.0.0.8/30", "10.9.0.0/16"))
	for text, want := range map[string]bool{"10.0.0.0/30": true, "10.0.0.0/24": true, "10.0.0.16/28": false, "10.0.0.32/28": true, "10.9.3.0/24": true, "10.10.0.0/16": false} {
		if got := p.Avoids(netip.MustParsePrefix(text)); got != want {
			t.Errorf("avoids %s: %t, want %t", text, got, want)
		}
	}
	for _, want := range []string{"10.0.0.16/28", "10.0.0.48/28"} {
		if got, err := p.Allocate("a"); err != nil || got.String() != want {
			t.Errorf("%s, %v; want %s", got, err, want)
		}
	}
	if _, err := p.Allocate("a"); !errors.Is(err, ErrExhausted) || !strings.Contains(err.Error(), "are held or in dispute") {
		t.Errorf("%v", err)
	}
	if got, err := other.Allocate("b"); err != nil || got.String() != "10.0.0.64/26" {
		t.Errorf("the pool that shares it: %s, %v", got, err)
	}
	if err := p.Claim("c", netip.MustParsePrefix("10.0.0.0/28")); err != nil {
		t.Errorf("a claim: %v", err)
	}
	p.Avoid(nil)
	if got, err := p.Allocate("a"); err != nil || got.String() != "10.0.0.32/28" {
		t.Errorf("%s, %v", got, err)
	}
}

func TestValidate(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		ranges []string
		bits   int
		want   string // in the error; "" for none
	}{
		{[]string{"10.0.0.0/8", "172.16.0.0/12"}, 24, ""},
		{nil, 24, ""},
		{[]string{"10.0.0.0/24"}, 24, ""},
		{[]string{"10.0.0.0/25"}, 24, "10.0.0.0/25 is smaller than a block of /24"},
		{[]string{"10.0.0.0/8"}, 33, "blocks of /33 do not exist"},
		{[]string{"10.0.0.0/8"}, 0, "/0"},
		{[]string{"10.0.0.0/8", "fd00::/64"}, 24, "fd00::/64 is of another family"},
		{[]string{"10.0.0.0/8", "10.1.0.0/16"}, 24, "10.1.0.0/16 overlaps 10.0.0.0/8"},
		{[]string{"::ffff:10.0.0.0/104"}, 120, "write it as IPv4"},
	} {
		err := Validate(prefixes(tt.ranges...), tt.bits)
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%v in blocks of /%d: %v; want %q", tt.ranges, tt.bits, err, tt.want)
		}
	}
	if _, err := New([]netip.Prefix{{}}, 24); err == nil {
		t.Error("a range that is not valid was taken")
	}
}

// model is the same thing without any cleverness.
type model struct {
	ranges []netip.Prefix
	bits   int
	held   map[netip.Prefix]string
}

func (m model) overlap(p netip.Prefix) bool {
	for h := range m.held {
		if h.Overlaps(p) {
			return true
		}
	}
	return false
}

// free counts the free blocks, one by one.
func (m model) free() int {
	n := 0
	for _, r := range m.ranges {
		for b := netip.PrefixFrom(r.Addr(), m.bits); b.IsValid() && r.Contains(b.Addr()); b = netip.PrefixFrom(last(b).Next(), m.bits) {
			if !m.overlap(b) {
				n++
			}
			if !last(b).Next().IsValid() {
				break
			}
		}
	}
	return n
}

// TestHistory has random histories agree with the model, and nothing held ever overlap.
func TestHistory(t *testing.T) {
	t.Parallel()
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 1))
		ranges := prefixes("10.0.0.0/26", "10.0.1.0/28", "255.255.255.224/27")
		bits := 28 + r.IntN(3)
		if bits > 28 {
			ranges = append(ranges, prefixes("10.0.2.128/29")[0])
			ranges[3] = netip.PrefixFrom(ranges[3].Addr(), min(29, bits))
		}
		p, err := New(ranges, bits)
		if err != nil {
			t.Fatal(err)
		}
		m := model{ranges, bits, map[netip.Prefix]string{}}
		var log []string
		for range 200 {
			owner := fmt.Sprint("n", r.IntN(6))
			switch op := r.IntN(10); {
			case op < 5:
				block, err := p.Allocate(owner)
				log = append(log, fmt.Sprint("allocate ", owner, block, err))
				if wantErr := m.free() == 0; wantErr != (err != nil) {
					t.Fatalf("seed %d: %d blocks are free, allocation says %v\n%s", seed, m.free(), err, strings.Join(log, "\n"))
				}
				if err != nil {
					continue
				}
				inside := slices.ContainsFunc(ranges, func(r netip.Prefix) bool { return r.Overlaps(block) && r.Bits() <= block.Bits() })
				if block.Bits() != bits || !inside || block.Masked() != block || m.overlap(block) {
					t.Fatalf("seed %d: allocated %s\n%s", seed, block, strings.Join(log, "\n"))
				}
				m.held[block] = owner
			case op < 8:
				base := ranges[r.IntN(len(ranges))]
				a := base.Addr().As4()
				a[3] += byte(r.IntN(64))
				claim := netip.PrefixFrom(netip.AddrFrom4(a), 25+r.IntN(8)).Masked()
				err := p.Claim(owner, claim)
				log = append(log, fmt.Sprint("claim ", owner, claim, err))
				if want := m.held[claim] == owner || !m.overlap(claim); want != (err == nil) {
					t.Fatalf("seed %d: claim of %s by %s: %v\n%s", seed, claim, owner, err, strings.Join(log, "\n"))
				}
				if err == nil {
					m.held[claim] = owner
				}
			case op < 9:
				p.Release(owner)
				log = append(log, "release "+owner)
				for h, o := range m.held {
					if o == owner {
						delete(m.held, h)
					}
				}
			default:
				if hold := p.Holds(owner); len(hold) > 0 {
					one := hold[r.IntN(len(hold))]
					log = append(log, fmt.Sprint("release ", owner, one))
					if !p.ReleaseOne(owner, one) {
						t.Fatalf("seed %d: %s does not hold %s", seed, owner, one)
					}
					delete(m.held, one)
				}
			}
			if p.Len() != len(m.held) {
				t.Fatalf("seed %d: %d prefixes are held, want %d\n%s", seed, p.Len(), len(m.held), strings.Join(log, "\n"))
			}
			wide := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, byte(r.IntN(3)), byte(r.IntN(256))}), 20+r.IntN(13))
			want := 0
			for h := range m.held {
				if h.Overlaps(wide) {
					want++
				}
			}
			if got := p.Overlapping(wide); len(got) != want || slices.ContainsFunc(got, func(h Holding) bool { return m.held[h.Prefix] != h.Owner || !h.Prefix.Overlaps(wide) }) {
				t.Fatalf("seed %d: %v overlap %s, want %d\n%s", seed, got, wide, want, strings.Join(log, "\n"))
			}
			for i := 1; i < len(p.taken); i++ {
				if p.taken[i-1].prefix.Overlaps(p.taken[i].prefix) || !p.taken[i-1].prefix.Addr().Less(p.taken[i].prefix.Addr()) {
					t.Fatalf("seed %d: %v and %v are both held\n%s", seed, p.taken[i-1], p.taken[i], strings.Join(log, "\n"))
				}
			}
		}
	}
}

// TestHugeRange divides a range that no table of blocks would fit.
func TestHugeRange(t *testing.T) {
	t.Parallel()
	p := newPool(t, 112, "fd00::/48")
	if p.Capacity() != 1<<64 {
		t.Errorf("capacity %g, want 2^64", p.Capacity())
	}
	seen := map[netip.Prefix]bool{}
	for i := range 5000 {
		b, err := p.Allocate(fmt.Sprint("n", i))
		if err != nil || seen[b] {
			t.Fatalf("block %d: %s, %v", i, b, err)
		}
		seen[b] = true
	}
}

func BenchmarkAllocate(b *testing.B) {
	for b.Loop() {
		p := newPool(b, 24, "10.0.0.0/10")
		for i := range 16384 {
			if _, err := p.Allocate(fmt.Sprint(i)); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.ReportMetric(16384*float64(b.N)/b.Elapsed().Seconds(), "blocks/s")
}
