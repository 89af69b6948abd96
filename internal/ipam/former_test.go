package ipam

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

// TestFormer: an address that others know as a former pod's is given to nobody, also if nothing
// else is free, but to that pod itself; and when it is forgotten it comes after what was free.
func TestFormer(t *testing.T) {
	t.Parallel()
	m := open(t, "10.0.0.0/29", "fd00::/125") // six of each
	reserve := func(at, pod string, same, want bool) {
		t.Helper()
		if got := m.Reserve(ip(at), pod, same); got != want {
			t.Errorf("reserve %s: %t", at, got)
		}
	}
	if err := m.Allocate(ip("10.0.0.2"), "a/restored", ""); err != nil {
		t.Fatal(err)
	}
	reserve("10.0.0.1", "a/gone", false, true)
	reserve("10.0.0.2", "a/gone", false, false) // it is here
	reserve("10.0.0.3", "a/back", true, true)
	reserve("10.0.0.0", "a/gone", false, false)
	reserve("192.0.2.1", "a/gone", false, false)
	reserve("fd00::1", "a/back", true, true)
	if d := m.Demand()[DefaultPool]; d != (Count{3, 1}) {
		t.Errorf("reserved addresses are in use: %+v", d)
	}
	var reserved []string
	for _, a := range m.Dump() {
		if a.Reserved {
			reserved = append(reserved, a.IP.String()+" "+a.Owner)
		}
	}
	if want := "[10.0.0.1 former pod a/gone 10.0.0.3 former pod a/back fd00::1 former pod a/back]"; fmt.Sprint(reserved) != want {
		t.Errorf("reserved are %v, want %s", reserved, want)
	}
	var got []netip.Addr
	take := func(f Families, owner string) error {
		r, err := m.AllocateNext(f, owner, "", true)
		if err == nil && f&IPv4 != 0 {
			got = append(got, r.IPv4.IP)
		}
		return err
	}
	for range 3 {
		if err := take(IPv4, "a/back"); err != nil {
			t.Fatal(err)
		}
	}
	if want := "[10.0.0.4 10.0.0.5 10.0.0.6]"; fmt.Sprint(got) != want {
		t.Errorf("given were %v, want %s", got, want)
	}
	err := take(IPv4, "a/new")
	if !errors.Is(err, ErrExhausted) || !strings.Contains(err.Error(), "2 of them are of pods that are not on this node any more") {
		t.Errorf("only reserved addresses are free: %v", err)
	}
	// Others get it in no other way.
	for _, owner := range []string{"a/new", "former pod a/back", ""} {
		if err := m.Take(ip("10.0.0.3"), owner, "uuid"); !errors.Is(err, ErrExists) {
			t.Errorf("taken by %q: %v", owner, err)
		}
	}
	if err := m.Take(ip("10.0.0.1"), "a/gone", "uuid"); !errors.Is(err, ErrExists) {
		t.Errorf("taken by a pod of the name of one that is gone: %v", err)
	}
	if err := m.Release(ip("10.0.0.3"), ""); !errors.Is(err, ErrInUse) || !strings.Contains(err.Error(), "former pod a/back") {
		t.Errorf("released: %v", err)
	}
	if m.FreeOf(ip("10.0.0.3"), "a/back") || m.Hold(ip("10.0.0.3")) {
		t.Error("a reserved address is given back to its cloud")
	}
	// The pod itself has it again; and when it goes nobody else does.
	if r, err := m.AllocateNext(IPv4, "a/back", "", true); err != nil || r.IPv4.IP != ip("10.0.0.3") || r.IPv4.UUID == "" || r.IPv4.Reserved {
		t.Errorf("the pod that had it gets %+v, %v", r.IPv4, err)
	}
	if err := take(IPv4, "a/back"); !errors.Is(err, ErrExhausted) {
		t.Errorf("it is given twice: %v", err)
	}
	if err := m.Release(ip("10.0.0.3"), ""); err != nil {
		t.Fatal(err)
	}
	if err := take(IPv4, "a/new"); !errors.Is(err, ErrExhausted) {
		t.Errorf("given to another after the pod that had it has gone again: %v", err)
	}
	if err := m.Take(ip("10.0.0.3"), "a/back", ""); err != nil {
		t.Errorf("taken by the pod that had it: %v", err)
	}
	m.Forget(ip("10.0.0.3")) // it stays the pod's
	if a, ok := m.Lookup(ip("10.0.0.3")); !ok || a.Owner != "a/back" || a.Reserved {
		t.Errorf("forgotten while it is used: %+v, %t", a, ok)
	}
	m.Forget(ip("10.0.0.1"))
	if r, err := m.AllocateNext(IPv4, "a/new", "", false); err != nil || r.IPv4.IP != ip("10.0.0.1") {
		t.Errorf("after it is forgotten: %+v, %v", r.IPv4, err)
	}
	if left := m.Reserved(); len(left) != 1 || left[0] != ip("fd00::1") {
		t.Errorf("reserved are still %v", left)
	}
	// Of both families or of none: what was had again for nothing is reserved as before.
	for range 5 {
		if err := take(IPv6, "a/fill"); err != nil {
			t.Fatal(err)
		}
	}
	if err := take(Both, "a/back"); !errors.Is(err, ErrExhausted) {
		t.Errorf("both families: %v", err)
	}
	if a, _ := m.Lookup(ip("fd00::1")); !a.Reserved {
		t.Errorf("of a pod that got no IPv4 address: %+v", a)
	}
	for _, u := range m.Usage() {
		if u.Used != 6 || u.Capacity != 6 {
			t.Errorf("%+v", u)
		}
	}
}

// TestFormerComeLast: reserved addresses that are forgotten at once are not the next ones: others
// may not have observed it.
func TestFormerComeLast(t *testing.T) {
	t.Parallel()
	m := open(t, "10.0.0.0/24", "")
	var former []netip.Addr
	for _, at := range []string{"10.0.0.9", "10.0.0.3", "10.0.0.1", "10.0.0.40"} {
		former = append(former, ip(at))
		m.Reserve(ip(at), "a/b", false)
		m.Forget(ip(at))
	}
	for i := range 254 {
		r, err := m.AllocateNext(IPv4, "x", "", false)
		if err != nil {
			t.Fatal(err)
		}
		if i < 200 && slices.Contains(former, r.IPv4.IP) {
			t.Fatalf("address %d is %s", i, r.IPv4.IP)
		}
	}
}

// TestFormerSingles: what a cloud assigned stays the node's while it is reserved.
func TestFormerSingles(t *testing.T) {
	t.Parallel()
	m := assigned(t, IPv4)
	of := func(list ...string) map[netip.Prefix]bool {
		out := map[netip.Prefix]bool{}
		for _, text := range list {
			out[netip.PrefixFrom(ip(text), 32)] = true
		}
		return out
	}
	m.AssignAddresses(of("10.0.0.7", "10.0.0.9"))
	if !m.Reserve(ip("10.0.0.7"), "a/gone", false) {
		t.Fatal("not reserved")
	}
	if stays := m.AssignAddresses(of("10.0.0.9")); fmt.Sprint(stays) != "[10.0.0.7]" {
		t.Errorf("%v stay", stays)
	}
	if r, err := m.AllocateNext(IPv4, "a/new", "", false); err != nil || r.IPv4.IP != ip("10.0.0.9") {
		t.Errorf("%+v, %v", r.IPv4, err)
	}
	if _, err := m.AllocateNext(IPv4, "a/new", "", false); !errors.Is(err, ErrExhausted) {
		t.Errorf("%v", err)
	}
	m.Forget(ip("10.0.0.7"))
	if u := m.Usage(); u[0].Used != 1 {
		t.Errorf("%+v", u)
	}
}

// TestFormerOfNewAddresses: what becomes assignable is reserved before anybody can get it, if
// objects give it to a pod; what was assignable before is not, whoever had it.
func TestFormerOfNewAddresses(t *testing.T) {
	t.Parallel()
	single := func(list ...string) map[netip.Prefix]bool {
		out := map[netip.Prefix]bool{}
		for _, text := range list {
			text, held := strings.CutPrefix(text, "-")
			out[netip.PrefixFrom(ip(text), 32)] = !held
		}
		return out
	}
	block := func(cidr string, edges, drained bool) map[string][]Block {
		return map[string][]Block{DefaultPool: {{Prefix: pfx(cidr), AllowFirst: edges, AllowLast: edges, Drained: drained}}}
	}
	blocks := func(want map[string][]Block) func(*IPAM) {
		return func(m *IPAM) { _, _ = m.Assign(want) }
	}
	singles := func(list ...string) func(*IPAM) {
		return func(m *IPAM) { m.AssignAddresses(single(list...)) }
	}
	for name, c := range map[string]struct {
		before, after func(*IPAM)
		named, want   string
	}{
		"a CIDR":                        {blocks(nil), blocks(block("10.0.0.0/29", false, false)), "10.0.0.1 10.0.0.3", "[10.0.0.1 10.0.0.3]"},
		"another CIDR's":                {blocks(nil), blocks(block("10.0.0.0/29", false, false)), "10.0.1.1", "[]"},
		"a CIDR that the node has":      {blocks(block("10.0.0.0/29", false, false)), blocks(block("10.0.0.0/29", false, false)), "10.0.0.3", "[]"},
		"a CIDR that was drained":       {blocks(block("10.0.0.0/29", false, true)), blocks(block("10.0.0.0/29", false, false)), "10.0.0.3", "[10.0.0.3]"},
		"a CIDR that is drained":        {blocks(nil), blocks(block("10.0.0.0/29", false, true)), "10.0.0.3", "[]"},
		"the ends of a CIDR":            {blocks(block("10.0.0.0/29", false, false)), blocks(block("10.0.0.0/29", true, false)), "10.0.0.0 10.0.0.3 10.0.0.7", "[10.0.0.0 10.0.0.7]"},
		"an address":                    {singles("10.0.0.1"), singles("10.0.0.1", "10.0.0.2"), "10.0.0.1 10.0.0.2", "[10.0.0.2]"},
		"an address that is permitted":  {singles("10.0.0.1", "-10.0.0.2"), singles("10.0.0.1", "10.0.0.2"), "10.0.0.1 10.0.0.2", "[10.0.0.2]"},
		"an address that is held":       {singles("10.0.0.1"), singles("10.0.0.1", "-10.0.0.2"), "10.0.0.2", "[]"},
		"an address given, assigned":    {singles("10.0.0.9"), singles("10.0.0.9", "10.0.0.2"), "10.0.0.9 10.0.0.2", "[10.0.0.2]"},
		"an address whose pool changed": {singles("10.0.0.1", "10.0.0.3"), singles("10.0.0.3"), "10.0.0.3", "[]"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := assigned(t, IPv4)
			c.before(m)
			m.ReserveNew(func(fresh func(netip.Addr) bool) (out []NamedPod) {
				for text := range strings.FieldsSeq(c.named) {
					if a := ip(text); fresh(a) {
						out = append(out, NamedPod{IP: a, Pod: "a/gone"})
					}
				}
				return out
			})
			c.after(m)
			got := m.Reserved()
			slices.SortFunc(got, netip.Addr.Compare)
			if fmt.Sprint(got) != c.want {
				t.Errorf("reserved are %v, want %s", got, c.want)
			}
			for {
				r, err := m.AllocateNext(IPv4, "a/new", "", false)
				if err != nil {
					break
				}
				if slices.Contains(got, r.IPv4.IP) {
					t.Errorf("%s is given while others know it as a former pod's", r.IPv4.IP)
				}
			}
			for _, ip := range got {
				m.Forget(ip)
			}
			for range got {
				if _, err := m.AllocateNext(IPv4, "a/new", "", false); err != nil {
					t.Errorf("after it is forgotten: %v", err)
				}
			}
		})
	}
}

// TestAssignable: an address is one that may be given out as long as its CIDR is not drained and it
// is not held, whether or not somebody has it.
func TestAssignable(t *testing.T) {
	t.Parallel()
	m := assigned(t, Both)
	check := func(want string) {
		t.Helper()
		var got []string
		for _, text := range []string{"10.0.0.0", "10.0.0.1", "10.0.0.7", "10.0.1.1", "fd00::1", "192.0.2.1"} {
			if m.Assignable(ip(text)) {
				got = append(got, text)
			}
		}
		if fmt.Sprint(got) != want {
			t.Errorf("assignable are %v, want %s", got, want)
		}
	}
	check("[]")
	want := map[string][]Block{"a": {{Prefix: pfx("10.0.0.0/29"), AllowLast: true}, {Prefix: pfx("10.0.1.0/29"), Drained: true}, {Prefix: pfx("fd00::/120")}}}
	if _, err := m.Assign(want); err != nil {
		t.Fatal(err)
	}
	check("[10.0.0.1 10.0.0.7 fd00::1]")
	if err := m.Allocate(ip("10.0.0.1"), "a/b", ""); err != nil {
		t.Fatal(err)
	}
	check("[10.0.0.1 10.0.0.7 fd00::1]")
	want["a"][0].Drained, want["a"][1].Drained = true, false
	if _, err := m.Assign(want); err != nil {
		t.Fatal(err)
	}
	check("[10.0.1.1 fd00::1]")
}
