package clusterpool

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func config(v4, v6 string) Config {
	c := Defaults()
	c.quarantine = 0
	if v4 != "" {
		c.IPv4 = []string{v4}
	}
	if v6 != "" {
		c.IPv6 = []string{v6}
	}
	return c
}

func testIndex(t testing.TB, c Config) *index {
	t.Helper()
	b, err := c.index()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// aged returns a node that is age seconds younger than the first.
func aged(name string, age int, cidrs ...string) node {
	return node{name: name, uid: "uid-" + name, created: time.Unix(int64(1000+age), 0), cidrs: cidrs}
}

func TestValidate(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		config Config
		want   []string // in the error; none for a good one
	}{
		{"nothing", config("", ""), []string{"give at least one range"}},
		{"IPv4", config("10.0.0.0/8", ""), nil},
		{"both", config("10.0.0.0/8", "fd00::/104"), nil},
		{"as in a ConfigMap", config("10.0.0.0/16 10.2.0.0/16", ""), nil},
		{"no CIDR", config("10.0.0.0", ""), []string{`--cluster-pool-ipv4-cidr: "10.0.0.0" is not a CIDR`}},
		{"other family", config("fd00::/104", "10.0.0.0/8"), []string{"fd00::/104 is not an IPv4 range", "10.0.0.0/8 is not an IPv6 range"}},
		{"a family that is off", func() Config { c := config("10.0.0.0/16", "nonsense"); c.EnableIPv6 = false; return c }(), nil},
		{"only of a family that is off", func() Config { c := config("", "fd00::/104"); c.EnableIPv6 = false; return c }(), []string{"give at least one range"}},
		{"too small", config("10.0.0.0/25", "fd00::/120"), []string{"--cluster-pool-ipv4-cidr: 10.0.0.0/25 is smaller", "--cluster-pool-ipv6-cidr: fd00::/120 is smaller"}},
	} {
		err := tt.config.Validate()
		if len(tt.want) == 0 && err != nil {
			t.Errorf("%s: %v", tt.name, err)
		}
		for _, want := range tt.want {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v; want %q", tt.name, err, want)
			}
		}
	}
}

func TestReconcile(t *testing.T) {
	t.Parallel()
	type step struct {
		node   node
		want   []string // podCIDRs
		faults []string // parts of the faults, in order
		// displaced and released are what the answer says.
		displaced []string
		released  bool
	}
	const v4, v6 = "10.0.0.0/22", "fd00::/110"
	for _, tt := range []struct {
		name    string
		config  Config
		restore []node
		steps   []step
	}{
		{"both families", config(v4, v6), nil, []step{
			{node: aged("a", 0), want: []string{"10.0.0.0/24", "fd00::/112"}},
			{node: aged("b", 1), want: []string{"10.0.1.0/24", "fd00::1:0/112"}},
			{node: aged("a", 0, "10.0.0.0/24", "fd00::/112"), want: []string{"10.0.0.0/24", "fd00::/112"}},
		}},
		{"one family is missing", config(v4, v6), nil, []step{
			{node: aged("a", 0, "10.0.3.0/24"), want: []string{"10.0.3.0/24", "fd00::/112"}},
			{node: aged("b", 1, "fd00::3:0/112"), want: []string{"fd00::3:0/112", "10.0.0.0/24"}},
		}},
		{"a family that is not served is left alone", config(v4, ""), nil, []step{
			{node: aged("a", 0, "fd00::/112"), want: []string{"fd00::/112", "10.0.0.0/24"}},
			{node: aged("b", 1, "fd00::/112"), want: []string{"fd00::/112", "10.0.1.0/24"}, faults: []string{"fd00::/112 overlaps fd00::/112 of node a"}},
		}},
		{"a block of a family that is not served any more is free when its node has it no more", config(v4, ""), []node{aged("a", 0, "10.0.0.0/24", "fd00::/112")}, []step{
			{node: aged("a", 0, "10.0.0.0/24", "nonsense"), want: []string{"10.0.0.0/24", "nonsense"}, faults: []string{`"nonsense" is not a CIDR`}},
			{node: aged("b", 1, "10.0.1.0/24", "fd00::/112"), want: []string{"10.0.1.0/24", "fd00::/112"}, faults: []string{"fd00::/112 overlaps fd00::/112 of node a"}},
			{node: aged("a", 0, "10.0.0.0/24"), want: []string{"10.0.0.0/24"}, released: true},
			{node: aged("b", 1, "10.0.1.0/24", "fd00::/112"), want: []string{"10.0.1.0/24", "fd00::/112"}},
		}},
		{"what was given and did not arrive is given again", config(v4, ""), nil, []step{
			{node: aged("a", 0), want: []string{"10.0.0.0/24"}},
			{node: aged("b", 1), want: []string{"10.0.1.0/24"}},
			{node: aged("a", 0), want: []string{"10.0.0.0/24"}},
		}},
		{"claimed before given", config(v4, ""), []node{aged("c", 5, "10.0.0.0/24"), aged("d", 6)}, []step{
			{node: aged("a", 7), want: []string{"10.0.1.0/24"}},
			{node: aged("d", 6), want: []string{"10.0.2.0/24"}},
			{node: aged("c", 5, "10.0.0.0/24"), want: []string{"10.0.0.0/24"}},
		}},
		{"the older keeps it, in whatever order they are listed", config(v4, ""), []node{aged("young", 5, "10.0.0.0/24"), aged("old", 1, "10.0.0.0/24")}, []step{
			{node: aged("young", 5, "10.0.0.0/24"), want: []string{"10.0.0.0/24"}, faults: []string{"10.0.0.0/24 overlaps 10.0.0.0/24 of node old"}},
			{node: aged("old", 1, "10.0.0.0/24"), want: []string{"10.0.0.0/24"}},
			{node: aged("young", 5), want: []string{"10.0.1.0/24"}},
		}},
		{"of one age the first name keeps it", config(v4, ""), []node{aged("b", 1, "10.0.0.0/24"), aged("a", 1, "10.0.0.0/24")}, []step{
			{node: aged("b", 1, "10.0.0.0/24"), want: []string{"10.0.0.0/24"}, faults: []string{"of node a"}},
		}},
		{"an older node that turns up takes it", config(v4, ""), nil, []step{
			{node: aged("young", 5), want: []string{"10.0.0.0/24"}},
			{node: aged("old", 1, "10.0.0.0/23"), want: []string{"10.0.0.0/23"}, displaced: []string{"young"}},
			{node: aged("young", 5, "10.0.0.0/24"), want: []string{"10.0.0.0/24"}, faults: []string{"of node old"}},
			{node: aged("new", 9), want: []string{"10.0.2.0/24"}},
		}},
		{"older than one of two is not enough", config(v4, ""), []node{aged("old", 1, "10.0.0.0/24"), aged("young", 9, "10.0.1.0/24")}, []step{
			{node: aged("mid", 5, "10.0.0.0/23"), want: []string{"10.0.0.0/23"}, faults: []string{"10.0.0.0/23 overlaps 10.0.0.0/24 of node old"}},
			{node: aged("young", 9, "10.0.1.0/24"), want: []string{"10.0.1.0/24"}},
		}},
		{"exhausted", config("10.0.0.0/24", ""), nil, []step{
			{node: aged("a", 0), want: []string{"10.0.0.0/24"}},
			{node: aged("b", 1), faults: []string{"no IPv4 addresses for this node: no free block of addresses: all 1 block of /24 in 10.0.0.0/24 are held; add a range to --cluster-pool-ipv4-cidr"}},
			{node: aged("a", 0, "10.9.0.0/24"), want: []string{"10.9.0.0/24"}, released: true},
			{node: aged("b", 1), want: []string{"10.0.0.0/24"}},
		}},
		{"one family exhausted", config("10.0.0.0/24", v6), nil, []step{
			{node: aged("a", 0), want: []string{"10.0.0.0/24", "fd00::/112"}},
			{node: aged("b", 1), want: []string{"fd00::1:0/112"}, faults: []string{"no IPv4 addresses"}},
		}},
		{"no CIDR", config(v4, ""), nil, []step{
			{node: aged("a", 0, "10.0.0.0"), want: []string{"10.0.0.0"}, faults: []string{`"10.0.0.0" is not a CIDR`}},
		}},
		{"its own overlap", config(v4, ""), nil, []step{
			{node: aged("a", 0, "10.0.0.0/24", "10.0.0.0/25"), want: []string{"10.0.0.0/24", "10.0.0.0/25"}, faults: []string{"remove one of them"}},
		}},
		{"outside of the ranges", config(v4, ""), nil, []step{
			{node: aged("a", 0, "192.168.0.0/25"), want: []string{"192.168.0.0/25"}},
		}},
		{"host bits", config(v4, ""), nil, []step{
			{node: aged("a", 0, "10.0.0.1/24"), want: []string{"10.0.0.1/24"}},
			{node: aged("b", 1), want: []string{"10.0.1.0/24"}},
		}},
		{"created anew", config(v4, ""), nil, []step{
			{node: aged("a", 0), want: []string{"10.0.0.0/24"}},
			{node: node{name: "a", uid: "other", created: time.Unix(5000, 0)}, want: []string{"10.0.0.0/24"}},
		}},
		{"created anew, with what its agent uses", config(v4, ""), []node{aged("b", 1, "10.0.0.0/24")}, []step{
			{node: aged("a", 9, "10.0.3.0/24"), want: []string{"10.0.3.0/24"}},
			{node: node{name: "b", uid: "other", created: time.Unix(5000, 0), cidrs: []string{"10.0.0.0/24"}}, want: []string{"10.0.0.0/24"}},
			{node: node{name: "a", uid: "other", created: time.Unix(5000, 0), cidrs: []string{"10.0.2.0/24"}}, want: []string{"10.0.2.0/24"}, released: true},
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			b := testIndex(t, tt.config)
			b.restore(tt.restore)
			for i, s := range tt.steps {
				a := b.reconcile(s.node, time.Unix(9000, 0))
				if diff := cmp.Diff(s.want, a.cidrs, cmpopts.EquateEmpty()); diff != "" {
					t.Errorf("step %d: podCIDRs (-want +got):\n%s", i, diff)
				}
				if len(a.faults) != len(s.faults) {
					t.Errorf("step %d: faults %q, want %q", i, a.faults, s.faults)
				} else {
					for j, f := range s.faults {
						if !strings.Contains(a.faults[j], f) {
							t.Errorf("step %d: fault %q, want %q", i, a.faults[j], f)
						}
					}
				}
				if a.released != s.released || !slices.Equal(a.displaced, s.displaced) {
					t.Errorf("step %d: released %t, displaced %v; want %t, %v", i, a.released, a.displaced, s.released, s.displaced)
				}
			}
		})
	}
}

// TestDeletedWhilePodsRun has the object of a node be deleted, whose pods run, and be made anew, in
// a range that is full: no other node is given its block, until it has been gone for long.
func TestDeletedWhilePodsRun(t *testing.T) {
	t.Parallel()
	cfg := config("10.0.0.0/24", "")
	cfg.quarantine = time.Minute
	b, at := testIndex(t, cfg), time.Unix(9000, 0)
	if a := b.reconcile(aged("a", 0), at); !slices.Equal(a.cidrs, []string{"10.0.0.0/24"}) {
		t.Fatal(a)
	}
	if b.forget("a", at) {
		t.Error("free at once")
	}
	waits := func(at time.Time) {
		t.Helper()
		if a := b.reconcile(aged("b", 1), at); len(a.cidrs) > 0 || len(a.faults) != 1 {
			t.Errorf("another node: %+v", a)
		}
	}
	waits(at.Add(50 * time.Second))
	anew := node{name: "a", uid: "other", created: time.Unix(8000, 0)}
	if a := b.reconcile(anew, at.Add(50*time.Second)); !slices.Equal(a.cidrs, []string{"10.0.0.0/24"}) || a.released {
		t.Errorf("made anew: %+v", a)
	}
	waits(at.Add(time.Hour))
	b.forget("a", at.Add(time.Hour))
	if b.forget("a", at.Add(time.Hour+50*time.Second)) {
		t.Error("free early")
	}
	if a := b.reconcile(aged("b", 1), at.Add(time.Hour+time.Minute)); !a.released || !slices.Equal(a.cidrs, []string{"10.0.0.0/24"}) {
		t.Errorf("after a while: %+v", a)
	}
}

// TestWorld plays nodes, people and operators that restart, with writes that are lost or arrive
// late, and checks after every step that no address is given to two nodes, and at the end that all
// is as it should be.
func TestWorld(t *testing.T) {
	t.Parallel()
	for seed := range uint64(400) {
		world(t, rand.New(rand.NewPCG(seed, 2)), seed)
	}
}

type server map[string]*node

func (s server) list() []node {
	var out []node
	for _, n := range s {
		c := *n
		c.cidrs = slices.Clone(n.cidrs)
		out = append(out, c)
	}
	return out
}

func world(t *testing.T, r *rand.Rand, seed uint64) {
	cfg := config("10.0.0.0/21", "fd00::/109") // eight blocks of each
	cfg.quarantine = 10 * time.Second
	b := testIndex(t, cfg)
	srv := server{}
	history := map[string][]node{} // what a cache may still show of a node
	clock := 0
	now := func() time.Time { return time.Unix(int64(clock), 0) }
	// deleted are nodes without an object, whose pods may run, with what they had, as long as the
	// operator runs that knows of it.
	deleted := map[string]node{}
	var log []string
	remember := func(n *node) {
		c := *n
		c.cidrs = slices.Clone(n.cidrs)
		history[n.name] = append(history[n.name], c)
	}
	reconcile := func(name string, view *node) {
		live := srv[name]
		if live == nil {
			b.forget(name, now())
			return
		}
		if view != nil && b.agrees(*view) {
			return
		}
		a := b.reconcile(*live, now())
		if slices.Equal(a.cidrs, live.cidrs) {
			return
		}
		if r.IntN(4) == 0 { // the request is lost
			log = append(log, fmt.Sprint("lost ", name, a.cidrs))
			return
		}
		live.cidrs = slices.Clone(a.cidrs)
		remember(live)
		for gone, had := range deleted {
			if clock < int(had.created.Unix())+10 && slices.ContainsFunc(live.cidrs, func(c string) bool { return slices.Contains(had.cidrs, c) }) {
				t.Fatalf("seed %d: %s has %v of %s, which was deleted a moment ago\n%s", seed, name, live.cidrs, gone, strings.Join(log, "\n"))
			}
		}
		log = append(log, fmt.Sprint("wrote ", name, a.cidrs))
		if r.IntN(4) != 0 { // else the answer is lost
			b.wrote(name, len(a.faults) == 0)
		}
	}
	for range 120 {
		clock++
		name := fmt.Sprint("n", r.IntN(10))
		switch op := r.IntN(20); {
		case op < 5 && srv[name] == nil:
			n := &node{name: name, uid: fmt.Sprint(clock), created: time.Unix(int64(clock), 0)}
			srv[name] = n
			delete(deleted, name)
			remember(n)
			log = append(log, "create "+name)
		case op < 6 && srv[name] != nil:
			deleted[name] = node{cidrs: srv[name].cidrs, created: now()}
			delete(srv, name)
			log = append(log, "delete "+name)
		case op < 7:
			log = append(log, "restart")
			b = testIndex(t, cfg)
			b.restore(srv.list())
			clear(deleted)
		default:
			var view *node
			if h := history[name]; len(h) > 0 && r.IntN(2) == 0 {
				view = &h[r.IntN(len(h))]
			}
			reconcile(name, view)
		}
		disjoint(t, seed, srv, log)
	}
	// Let it converge, with a cache that is up to date.
	for range 60 {
		clock++
		for name := range history {
			reconcile(name, srv[name])
		}
	}
	disjoint(t, seed, srv, log)
	served := 0
	for name, n := range srv {
		good, _ := parse(n.cidrs)
		if len(good) == 2 {
			served++
		}
		if len(good) == 2 != b.agrees(*n) {
			t.Fatalf("seed %d: %s has %v, the index agrees: %t\n%s", seed, name, n.cidrs, b.agrees(*n), strings.Join(log, "\n"))
		}
	}
	if want := min(8, len(srv)); served != want {
		t.Fatalf("seed %d: %d of %d nodes are served, want %d\n%s", seed, served, len(srv), want, strings.Join(log, "\n"))
	}
}

func disjoint(t *testing.T, seed uint64, srv server, log []string) {
	t.Helper()
	seen := map[netip.Prefix]string{}
	for name, n := range srv {
		good, _ := parse(n.cidrs)
		for _, p := range good {
			if other, ok := seen[p]; ok {
				t.Fatalf("seed %d: %s and %s both have %s\n%s", seed, name, other, p, strings.Join(log, "\n"))
			}
			seen[p] = name
		}
	}
}
