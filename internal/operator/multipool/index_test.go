package multipool

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hawser-net/hawser/internal/ipam"
	"github.com/hawser-net/hawser/internal/k8s/ippools"
	"github.com/hawser-net/hawser/internal/operator/pool"
)

func ranges(list ...string) (out []netip.Prefix) {
	for _, text := range list {
		out = append(out, netip.MustParsePrefix(text))
	}
	return out
}

// pool4 is a pool of IPv4 blocks of /28, which have 14 addresses for pods.
func pool4(name string, list ...string) ippools.Pool {
	return ippools.Pool{Name: name, IPv4: ippools.Family{Ranges: ranges(list...), Bits: 28}}
}

func testIndex(t testing.TB, migrate bool, pools ...ippools.Pool) *index {
	t.Helper()
	b := newIndex("default", migrate)
	for _, p := range pools {
		if _, err := b.setPool(p); err != nil {
			t.Fatal(err)
		}
	}
	return b
}

// aged makes a node that asks for n IPv4 addresses of pool default, if n is not 0.
func aged(name string, age, n int) node {
	out := node{name: name, uid: name, created: time.Unix(int64(age), 0), version: "1"}
	if n > 0 {
		out.requested = []request{{pool: "default", needed: [2]int{n, 0}}}
	}
	return out
}

func (n node) with(pool string, cidrs ...string) node {
	n.allocated = append(slices.Clone(n.allocated), allocation{pool: pool, cidrs: cidrs})
	return n
}

// startTime is when tests begin.
var startTime = time.Unix(1<<30, 0)

// fault is what the status of the node says.
func (a answer) fault() string { return strings.Join(a.faults, "; ") }

// shown is what a node is to have, as text.
func (a answer) shown() string {
	var out []string
	for _, x := range a.allocated {
		out = append(out, x.pool+" "+strings.Join(x.cidrs, ","))
	}
	return strings.Join(out, "; ")
}

func TestReconcile(t *testing.T) {
	wide := ippools.Pool{Name: "default", IPv4: ippools.Family{Ranges: ranges("10.0.0.0/24"), Bits: 28}, IPv6: ippools.Family{Ranges: ranges("fd00::/112"), Bits: 124}}
	t.Run("as many blocks as are needed, of both families", func(t *testing.T) {
		b := testIndex(t, false, wide)
		n := aged("a", 1, 0)
		n.requested = []request{{"default", [2]int{15, 8}}}
		a := b.reconcile(n, startTime)
		if a.shown() != "default 10.0.0.0/28,10.0.0.16/28,fd00::/124" || a.fault() != "" || !a.changed {
			t.Errorf("%+v", a)
		}
		b.wrote("a", len(a.faults) == 0)
		n.allocated, n.version = a.allocated, "2"
		if !b.agrees(n) {
			t.Error("something is left to do")
		}
		n.requested[0].needed[0] = 29
		if b.agrees(n) {
			t.Error("nothing is left to do, and more is asked for")
		}
		if a := b.reconcile(n, startTime); a.shown() != "default 10.0.0.0/28,10.0.0.16/28,fd00::/124,10.0.0.32/28" {
			t.Errorf("grown: %s", a.shown())
		}
	})
	t.Run("outermost addresses count if the pool allows them", func(t *testing.T) {
		p := wide
		p.AllowFirst, p.AllowLast = true, true
		a := testIndex(t, false, p).reconcile(aged("a", 1, 16), startTime)
		if a.shown() != "default 10.0.0.0/28" || !a.allocated[0].allowFirst || !a.allocated[0].allowLast {
			t.Errorf("%+v", a)
		}
	})
	t.Run("what is missing is said", func(t *testing.T) {
		b := testIndex(t, false, pool4("default", "10.0.0.0/28"))
		n := aged("a", 1, 0)
		n.requested = []request{{"blue", [2]int{3, 0}}, {"default", [2]int{15, 2}}}
		a := b.reconcile(n, startTime)
		for _, want := range []string{
			"there is no CiliumPodIPPool blue, of which 3 IPv4 addresses are asked for; create it",
			"CiliumPodIPPool default has no IPv6 range, and 2 addresses are asked for; add one",
			`pool "default": the node needs 15 IPv4 addresses and has 14: no free block of addresses: all 1 block of /28 in 10.0.0.0/28 are held; add a range`,
		} {
			if !strings.Contains(a.fault(), want) {
				t.Errorf("%q is not in %q", want, a.fault())
			}
		}
		if a.shown() != "default 10.0.0.0/28" {
			t.Errorf("what there is was not given: %s", a.shown())
		}
		if _, err := b.setPool(pool4("default", "10.0.0.0/28", "10.9.0.0/28")); err != nil {
			t.Fatal(err)
		}
		n.requested = n.requested[1:]
		n.requested[0].needed[1] = 0
		if a := b.reconcile(n, startTime); a.shown() != "default 10.0.0.0/28,10.9.0.0/28" || a.fault() != "" {
			t.Errorf("the pool has grown: %s, %q", a.shown(), a.fault())
		}
	})
	t.Run("a write whose outcome is unknown", func(t *testing.T) {
		b := testIndex(t, false, pool4("default", "10.0.0.0/27"))
		n := aged("a", 1, 8)
		if a := b.reconcile(n, startTime); a.shown() != "default 10.0.0.0/28" {
			t.Fatal(a.shown())
		}
		n.requested = nil // the agent asks for nothing any more, in the object of the same version
		if a := b.reconcile(n, startTime); a.shown() != "default 10.0.0.0/28" || a.released {
			t.Errorf("the write may still arrive, and its block is given away: %s", a.shown())
		}
		n.version = "2"
		if a := b.reconcile(n, startTime); a.shown() != "" || a.released {
			t.Errorf("the write may have arrived, and have been edited away, and its block does not rest: %s", a.shown())
		}
		if a := b.reconcile(n, startTime.Add(pool.Quarantine)); a.shown() != "" || !a.released {
			t.Errorf("the write cannot arrive any more, and its block stays recorded: %s", a.shown())
		}
	})
	t.Run("a pool that lost a range", func(t *testing.T) {
		b := testIndex(t, false, pool4("default", "10.0.0.0/27"), pool4("blue", "10.1.0.0/28"))
		n := aged("a", 1, 8).with("default", "10.0.0.0/28")
		if a := b.reconcile(n, startTime); a.fault() != "" || a.changed {
			t.Fatalf("%+v", a)
		}
		// The range is now another pool's.
		for _, p := range []ippools.Pool{pool4("default", "10.0.0.16/28"), pool4("blue", "10.0.0.0/28")} {
			if _, err := b.setPool(p); err != nil {
				t.Fatal(err)
			}
		}
		if b.agrees(n) {
			t.Error("nothing is left to do")
		}
		a := b.reconcile(n, startTime)
		if a.shown() != "default 10.0.0.0/28,10.0.0.16/28" || !strings.Contains(a.fault(), `pool "default" does not have 10.0.0.0/28 (any more)`) {
			t.Errorf("%s, %q", a.shown(), a.fault())
		}
		other := aged("b", 2, 0)
		other.requested = []request{{"blue", [2]int{1, 0}}}
		if a := b.reconcile(other, startTime); a.shown() != "" || !strings.Contains(a.fault(), "all 1 block of /28 in 10.0.0.0/28 are held") {
			t.Errorf("a block in use was given of its new pool: %s, %q", a.shown(), a.fault())
		}
		n.allocated, n.version = []allocation{{pool: "default", cidrs: []string{"10.0.0.16/28"}}}, "3"
		if a := b.reconcile(n, startTime); a.fault() != "" || a.released {
			t.Errorf("handed back: %+v", a)
		}
		if a := b.reconcile(other, startTime); a.shown() != "" || !strings.Contains(a.fault(), "or wait: what nodes handed back in the last 2m0s is not given yet") {
			t.Errorf("what was handed back did not rest: %s, %q", a.shown(), a.fault())
		}
		if a := b.reconcile(other, startTime.Add(pool.Quarantine)); a.shown() != "blue 10.0.0.0/28" {
			t.Errorf("%s, %q", a.shown(), a.fault())
		}
	})
	t.Run("a pool that is invalid", func(t *testing.T) {
		b := testIndex(t, false)
		n := aged("a", 1, 15).with("default", "10.0.0.0/28")
		b.restore([]node{n})
		if !b.faultyPool("default", errors.New("maskSize is wrong")) || b.faultyPool("default", errors.New("maskSize is wrong")) {
			t.Error("what is new")
		}
		a := b.reconcile(n, startTime)
		if want := `pool "default": the node needs 15 IPv4 addresses, and what there is of the pool is not known: maskSize is wrong`; a.fault() != want || a.changed {
			t.Errorf("%q, %s", a.fault(), a.shown())
		}
		if _, err := b.setPool(pool4("default", "10.0.0.0/28")); err != nil {
			t.Fatal(err)
		}
		b.faultyPool("default", errors.New("still wrong"))
		if a := b.reconcile(n, startTime); !strings.Contains(a.fault(), "are held") || !strings.Contains(a.fault(), "what counts is its last good version: still wrong") {
			t.Errorf("%q", a.fault())
		}
		if changed, err := b.setPool(pool4("default", "10.0.0.0/28")); !changed || err != nil || strings.Contains(b.reconcile(n, startTime).fault(), "wrong") {
			t.Errorf("good again: %t, %v, %q", changed, err, b.reconcile(n, startTime).fault())
		}
	})
}

func TestReconcileConflicts(t *testing.T) {
	t.Run("who had it first keeps what two have", func(t *testing.T) {
		b := testIndex(t, false, pool4("default", "10.0.0.0/26"))
		first, second := aged("a", 2, 1).with("default", "10.0.0.0/28"), aged("b", 1, 1).with("default", "10.0.0.0/28")
		if a := b.reconcile(first, startTime); a.fault() != "" || a.changed {
			t.Fatal(a.fault())
		}
		a := b.reconcile(second, startTime)
		if a.shown() != "default 10.0.0.0/28,10.0.0.16/28" || a.disputed != "10.0.0.0/28" || !strings.Contains(a.fault(), "10.0.0.0/28 overlaps 10.0.0.0/28 of node a, which had it first") {
			t.Errorf("%+v", a)
		}
		if a := b.reconcile(first, startTime); a.fault() != "" || a.changed {
			t.Errorf("who had it first: %+v", a)
		}
		second.allocated, second.disputed, second.version = a.allocated, a.disputed, "2"
		// Another operator goes by the mark, not by the age.
		b = testIndex(t, false, pool4("default", "10.0.0.0/26"))
		b.restore([]node{first, second})
		if a := b.reconcile(first, startTime); a.fault() != "" || a.changed {
			t.Errorf("after a restart: %+v", a)
		}
		// Who had it first hands it back: it is the other's, and never a third's.
		first.allocated, first.requested, first.version = nil, nil, "3"
		b.reconcile(first, startTime)
		third := aged("c", 3, 40)
		if a := b.reconcile(third, startTime.Add(pool.Quarantine)); a.shown() != "default 10.0.0.32/28,10.0.0.48/28" || !strings.Contains(a.fault(), "are held or in dispute") {
			t.Errorf("a third was given %s, %q", a.shown(), a.fault())
		}
		if a := b.reconcile(second, startTime.Add(pool.Quarantine)); a.disputed != "" || a.fault() != "" || !a.changed {
			t.Errorf("the only one that has it: %+v", a)
		}
	})
	t.Run("a node that has a block of its own and one around it", func(t *testing.T) {
		b := testIndex(t, false, pool4("default", "10.0.0.0/26"))
		nodes := []node{aged("a", 1, 14).with("default", "10.0.0.0/28"), aged("b", 2, 14).with("default", "10.0.0.16/28"), aged("c", 3, 14).with("default", "10.0.0.32/28")}
		b.restore(nodes)
		greedy := aged("a", 1, 28).with("default", "10.0.0.0/28", "10.0.0.0/26")
		a := b.reconcile(greedy, startTime)
		if a.shown() != "default 10.0.0.0/28,10.0.0.0/26" || a.disputed != "10.0.0.0/26" || !strings.Contains(a.fault(), "10.0.0.0/26 overlaps 10.0.0.0/28, which the node has, too") {
			t.Errorf("%s, %q, %q", a.shown(), a.disputed, a.fault())
		}
		for _, n := range nodes[1:] {
			if !b.agrees(n) {
				t.Errorf("%s lost something", n.name)
			}
		}
		if a := b.reconcile(aged("d", 4, 1), startTime); a.shown() != "" {
			t.Errorf("a block was given that a node has: %s", a.shown())
		}
	})
	t.Run("a node that is gone, and comes back as another object", func(t *testing.T) {
		b := testIndex(t, false, pool4("default", "10.0.0.0/28"))
		n := aged("a", 1, 1).with("default", "10.0.0.0/28")
		b.restore([]node{n})
		if b.forget("a", startTime) {
			t.Error("its block is free at once")
		}
		b.forget("a", startTime.Add(pool.Quarantine/2)) // looking again does not begin anew
		if a := b.reconcile(aged("b", 2, 1), startTime.Add(pool.Quarantine/2)); a.shown() != "" {
			t.Errorf("its block was given at once: %s", a.shown())
		}
		again := n
		again.uid, again.created, again.version = "a2", n.created.Add(time.Hour), "9"
		if a := b.reconcile(again, startTime.Add(pool.Quarantine/2)); a.fault() != "" || a.changed {
			t.Errorf("made again: %+v", a)
		}
		if b.forget("a", startTime.Add(pool.Quarantine)); b.nodes["a"] == nil {
			t.Error("gone at once")
		}
		if a := b.reconcile(aged("b", 2, 1), startTime.Add(2*pool.Quarantine)); a.shown() != "default 10.0.0.0/28" || b.nodes["a"] != nil {
			t.Errorf("gone for long: %s, %q", a.shown(), a.fault())
		}
	})
	t.Run("a block that was edited away", func(t *testing.T) {
		b := testIndex(t, false, pool4("default", "10.0.0.0/28"))
		n, thief := aged("a", 2, 1).with("default", "10.0.0.0/28"), aged("b", 1, 1).with("default", "10.0.0.0/28")
		b.restore([]node{n})
		without := aged("a", 2, 0)
		without.version = "2"
		b.reconcile(without, startTime)
		if a := b.reconcile(thief, startTime); a.disputed != "10.0.0.0/28" {
			t.Errorf("who took it: %+v", a)
		}
		n.version = "3" // the agent writes it again
		if a := b.reconcile(n, startTime.Add(pool.Quarantine/2)); a.fault() != "" || a.changed {
			t.Errorf("whose it was: %+v", a)
		}
		if a := b.reconcile(thief, startTime.Add(2*pool.Quarantine)); a.disputed != "10.0.0.0/28" {
			t.Errorf("who took it: %+v", a)
		}
	})
}

func TestReconcileInput(t *testing.T) {
	t.Run("nodes of cluster-pool", func(t *testing.T) {
		old := aged("a", 1, 0)
		old.podCIDRs = []string{"10.0.0.0/28"}
		for _, migrate := range []bool{false, true} {
			b := testIndex(t, migrate, pool4("default", "10.0.0.0/27"))
			b.restore([]node{old})
			if a := b.reconcile(old, startTime); a.changed || a.fault() != "" || !b.agrees(old) {
				t.Errorf("an agent that does not ask for pools: %+v", a)
			}
			if a := b.reconcile(aged("b", 2, 8), startTime); a.shown() != "default 10.0.0.16/28" {
				t.Errorf("another node was given %s", a.shown())
			}
			now := aged("a", 1, 8)
			now.podCIDRs, now.version = old.podCIDRs, "2"
			a := b.reconcile(now, startTime)
			if migrate && (a.shown() != "default 10.0.0.0/28" || len(a.podCIDRs) > 0 || a.fault() != "") {
				t.Errorf("migrated: %+v", a)
			}
			if !migrate && (!strings.Contains(a.fault(), "--"+migrateFlag) || len(a.podCIDRs) != 1) {
				t.Errorf("not migrated: %+v", a)
			}
		}
	})
	t.Run("a node that asks for too much", func(t *testing.T) {
		p := pool4("default", "10.0.0.0/16")
		p.IPv4.Bits = 32
		a := testIndex(t, false, p).reconcile(aged("a", 1, 5000), startTime)
		if len(a.allocated[0].cidrs) != maxBlocks || !strings.Contains(a.fault(), "the node has 512 IPv4 blocks already") {
			t.Errorf("%d blocks, %q", len(a.allocated[0].cidrs), a.fault())
		}
	})
	t.Run("text that is no CIDR", func(t *testing.T) {
		b := testIndex(t, false, pool4("default", "10.0.0.0/27"))
		if a := b.reconcile(aged("a", 1, 1).with("default", "none"), startTime); !strings.Contains(a.fault(), `"none" is not a CIDR`) || a.shown() != "default none,10.0.0.0/28" {
			t.Errorf("%s, %q", a.shown(), a.fault())
		}
	})
}

// inFlight is a write whose outcome the operator does not know.
type inFlight struct {
	name string
	uid  string
	over string // the version that it replaces
	a    answer
}

// server is what the API server has, and what is still on its way there.
type server struct {
	nodes  map[string]*node
	uses   map[string]map[string]bool // blocks in use, by node; also of nodes whose object is gone
	flying []inFlight
	clock  int
	now    time.Time
	// forged are the CIDRs of nodes that overlap others since another writer than the operator
	// wrote them, as "node CIDR".
	forged map[string]bool
	// unseen are nodes that were written by another client since the operator looked at them.
	unseen map[string]bool
	// offered are the blocks that the operator has given, as "node version CIDR".
	offered map[string]bool
}

// has returns what a node has by its object, or uses without.
func (s *server) has(name string) (out []netip.Prefix) {
	if n := s.nodes[name]; n != nil {
		for _, x := range n.allocated {
			out = append(out, ranges(x.cidrs...)...)
		}
	}
	for c, used := range s.uses[name] {
		if used {
			out = append(out, netip.MustParsePrefix(c))
		}
	}
	return out
}

// forge notes what a node has since another writer than the operator wrote it, and another has,
// too.
func (s *server) forge(name string) {
	s.unseen[name] = true
	for _, p := range s.has(name) {
		if s.hasOther(name, p) != "" {
			s.forged[name+" "+p.String()] = true
		}
	}
}

// hasOther returns which other node has something of a block.
func (s *server) hasOther(name string, p netip.Prefix) string {
	for other := range s.uses {
		if other != name && slices.ContainsFunc(s.has(other), p.Overlaps) {
			return other
		}
	}
	return ""
}

// heal has the agent of a node write what its pods use and the object does not have, if need be
// into a new object.
func (s *server) heal(name string) *node {
	n := s.nodes[name]
	if n == nil {
		n = &node{name: name, uid: fmt.Sprint("u", s.clock), created: time.Unix(int64(s.clock), 0)}
		s.nodes[name] = n
	}
	var missing []string
	for c, used := range s.uses[name] {
		if used && !strings.Contains(fmt.Sprint(n.allocated), c) {
			missing = append(missing, c)
		}
	}
	slices.Sort(missing)
	if len(missing) > 0 {
		n.allocated = append(n.allocated, allocation{pool: "default", cidrs: missing})
	}
	return n
}

// judge checks an answer of the operator: it takes nothing from the node, and gives nothing that
// another has.
func (s *server) judge(live node, a answer, fail func(string, ...any)) {
	before, after := live.all(), node{allocated: a.allocated}.all()
	for _, c := range before {
		if !slices.Contains(after, c) {
			fail("%s lost %s", live.name, c)
		}
	}
	for _, c := range after {
		key := live.name + " " + live.version + " " + c
		if slices.Contains(before, c) || s.offered[key] {
			continue
		}
		s.offered[key] = true
		switch other := s.hasOther(live.name, netip.MustParsePrefix(c)); {
		case s.unseen[other]: // it cannot know
			s.forged[live.name+" "+c] = true
		case other != "":
			fail("%s is given %s, and %s has it", live.name, c, other)
		}
	}
}

// all are the CIDRs of a node's pools.
func (n node) all() (out []string) {
	for _, x := range n.allocated {
		out = append(out, x.cidrs...)
	}
	return out
}

func (s *server) list() []node {
	var out []node
	for _, n := range s.nodes {
		out = append(out, n.copied())
	}
	return out
}

func (n node) copied() node {
	n.requested, n.podCIDRs = slices.Clone(n.requested), slices.Clone(n.podCIDRs)
	n.allocated = slices.Clone(n.allocated)
	for i := range n.allocated {
		n.allocated[i].cidrs = slices.Clone(n.allocated[i].cidrs)
	}
	return n
}

// apply does a write, if the object is as it was when it was decided.
func (s *server) apply(w inFlight) bool {
	n := s.nodes[w.name]
	if n == nil || n.uid != w.uid || n.version != w.over {
		return false
	}
	n.allocated, n.podCIDRs, n.disputed = w.a.allocated, w.a.podCIDRs, w.a.disputed
	*n = n.copied()
	s.clock++
	n.version = fmt.Sprint(s.clock)
	return true
}

// TestWorld plays agents that ask for addresses, use blocks and hand them back, people that change
// pools, nodes that come and go, and operators that restart, with writes that are lost, or arrive
// late, or whose answer is lost. A client writes what others have into objects and what is in use
// out of them, deletes objects whose pods stay, and puts the server back to what it was; the agents
// write again what their pods use, within the time that blocks are in quarantine. The operator
// never takes anything and never gives what another node has or uses; no two nodes have the same
// but by such an edit, and then one of them is marked, unless it was the first. At the end a naive
// count says who should have what.
func TestWorld(t *testing.T) {
	t.Parallel()
	for seed := range uint64(300) {
		world(t, rand.New(rand.NewPCG(seed, 3)), seed)
	}
}

// simulation is the world of [TestWorld] with one seed.
type simulation struct {
	t       *testing.T
	r       *rand.Rand
	seed    uint64
	pools   map[string]ippools.Pool
	b       *index
	s       *server
	history map[string][]node // what each node was, the oldest first
	log     []string
	calm    bool // no write is lost or late any more
}

func world(t *testing.T, r *rand.Rand, seed uint64) {
	w := &simulation{t: t, r: r, seed: seed, history: map[string][]node{}}
	w.pools = map[string]ippools.Pool{"default": w.draw("default"), "edge": w.draw("edge")}
	w.b = w.fresh()
	w.s = &server{nodes: map[string]*node{}, uses: map[string]map[string]bool{}, now: startTime, forged: map[string]bool{}, unseen: map[string]bool{}, offered: map[string]bool{}}
	for range 200 {
		w.step()
		disjoint(w.s, w.fail)
	}
	w.converge()
	disjoint(w.s, w.fail)
	marked(w.s, w.fail)
	w.checkServed()
}

func (w *simulation) note(args ...any) { w.log = append(w.log, fmt.Sprint(args...)) }

func (w *simulation) fail(format string, args ...any) {
	w.t.Helper()
	w.t.Fatalf("seed %d: %s\n%s", w.seed, fmt.Sprintf(format, args...), strings.Join(w.log, "\n"))
}

// draw returns a pool of some ranges.
func (w *simulation) draw(name string) ippools.Pool {
	places := []string{"10.0.0.0/26", "10.0.0.64/27", "10.0.1.0/27", "10.0.0.0/25"} // the last overlaps the first two
	var list []string
	for _, p := range places[:3] {
		if w.r.IntN(2) == 0 {
			list = append(list, p)
		}
	}
	if w.r.IntN(5) == 0 || len(list) == 0 {
		list = places[3:]
	}
	p := pool4(name, list...)
	p.IPv4.Bits = 28 + w.r.IntN(2)
	return p
}

// fresh returns the index of an operator that starts.
func (w *simulation) fresh() *index {
	b := newIndex("default", true)
	for _, p := range w.pools {
		if _, err := b.setPool(p); err != nil {
			w.t.Fatal(err)
		}
	}
	return b
}

// reconcile has the operator look at a node, if a view of it that may be old shows a need.
func (w *simulation) reconcile(name string, view *node) {
	s := w.s
	live := s.nodes[name]
	if live == nil {
		w.b.forget(name, s.now)
		return
	}
	if view != nil && w.b.agrees(*view) {
		return
	}
	a := w.b.reconcile(live.copied(), s.now)
	delete(s.unseen, name)
	s.judge(live.copied(), a, w.fail)
	if !a.changed {
		w.b.wrote(name, len(a.faults) == 0)
		return
	}
	write := inFlight{name, live.uid, live.version, a}
	switch what := w.r.IntN(6); {
	case what == 0 && !w.calm:
		w.note("lost ", name, " ", a.shown())
	case what == 1 && !w.calm:
		s.flying = append(s.flying, write)
		w.note("on its way ", name, " ", a.shown())
	case what == 2 && !w.calm:
		s.apply(write)
		w.note("written, answer lost ", name, " ", a.shown())
	default:
		if s.apply(write) {
			w.b.wrote(name, len(a.faults) == 0)
		}
		w.note("written ", name, " ", a.shown())
	}
	w.history[name] = append(w.history[name], s.nodes[name].copied())
}

// edit notes that a node is as a client wrote it.
func (w *simulation) edit(n *node) {
	s := w.s
	s.clock++
	n.version = fmt.Sprint(s.clock)
	w.history[n.name] = append(w.history[n.name], n.copied())
}

// agentsRewrite has the agents write what their pods use, as they do within seconds.
func (w *simulation) agentsRewrite() {
	s := w.s
	for _, name := range slices.Sorted(maps.Keys(s.uses)) {
		n := s.heal(name)
		w.edit(n)
		s.forge(name)
	}
}

// step does one random thing.
func (w *simulation) step() {
	s := w.s
	s.clock++
	name := fmt.Sprint("n", w.r.IntN(5))
	n := s.nodes[name]
	switch op := w.r.IntN(29); {
	case n == nil && s.uses[name] != nil: // its agent makes it again
		w.edit(s.heal(name))
		s.forge(name)
		w.note("made again ", name, " ", s.nodes[name].allocated)
	case op == 24: // time passes
		w.agentsRewrite()
		s.now = s.now.Add(time.Duration(w.r.IntN(int(2 * pool.Quarantine))))
		w.note("later")
	case op == 25 && n != nil: // a client writes what others may have into the object
		c := []string{"10.0.0.0/28", "10.0.0.16/28", "10.0.0.64/29", "10.0.0.0/26", "10.0.1.0/27"}[w.r.IntN(5)]
		if !slices.Contains(n.all(), c) {
			n.allocated = append(n.allocated, allocation{pool: []string{"default", "edge"}[w.r.IntN(2)], cidrs: []string{c}})
			w.edit(n)
			s.forge(name)
			w.note("forged ", name, " ", c)
		}
	case op == 26 && n != nil: // a client removes a block from it
		if len(n.allocated) > 0 {
			n.allocated = n.allocated[1:]
			w.edit(n)
			w.note("taken ", name)
		}
	case op == 27 && n != nil: // a client deletes the object, the pods stay
		delete(s.nodes, name)
		w.note("object deleted ", name)
	case op == 28: // the server goes back to what it was, but for the nodes that are new
		for _, name := range slices.Sorted(maps.Keys(s.nodes)) {
			if h := w.history[name]; len(h) > 0 && s.nodes[name].uid == h[len(h)/2].uid {
				old := h[len(h)/2].copied()
				s.nodes[name] = &old
			}
		}
		s.flying = nil
		w.agentsRewrite()
		w.note("put back")
	case op < 3 && n == nil:
		n = &node{name: name, uid: fmt.Sprint("u", s.clock), created: time.Unix(int64(s.clock), 0)}
		s.nodes[name], s.uses[name] = n, map[string]bool{}
		w.edit(n)
		w.note("create ", name)
	case op < 4 && n != nil:
		delete(s.nodes, name)
		delete(s.uses, name)
		w.note("delete ", name)
	case op < 5:
		w.note("restart")
		w.agentsRewrite()
		s.flying = nil // who leads no more sends nothing: see election.Fence
		w.b = w.fresh()
		w.b.restore(s.list())
		clear(s.unseen)
	case op < 7:
		p := w.draw([]string{"default", "edge"}[w.r.IntN(2)])
		w.pools[p.Name] = p
		if _, err := w.b.setPool(p); err != nil {
			w.fail("%v", err)
		}
		w.note("pool ", p.Name, " ", p.IPv4)
	case op < 11 && n != nil: // the agent asks
		n.requested = nil
		for _, p := range []string{"default", "edge"} {
			if v := w.r.IntN(40); v > 0 {
				n.requested = append(n.requested, request{p, [2]int{v, 0}})
			}
		}
		w.edit(n)
		w.note("asks ", name, " ", n.requested)
	case op < 14 && n != nil: // pods come and go
		for _, x := range n.allocated {
			for _, c := range x.cidrs {
				// What is in dispute gives no new addresses.
				s.uses[name][c] = w.r.IntN(2) == 0 && (s.uses[name][c] || !strings.Contains(n.disputed, c))
			}
		}
	case op < 17 && n != nil: // the agent hands a block back
		for i, x := range n.allocated {
			for j, c := range x.cidrs {
				if !s.uses[name][c] {
					n.allocated[i].cidrs = slices.Delete(n.allocated[i].cidrs, j, j+1)
					delete(s.forged, name+" "+c)
					w.edit(n)
					w.note("hands back ", name, " ", c)
					break
				}
			}
		}
	case op < 18 && len(s.flying) > 0:
		i := w.r.IntN(len(s.flying))
		w.note("arrives ", s.flying[i].name, " ", s.apply(s.flying[i]))
		s.flying = slices.Delete(s.flying, i, i+1)
	default:
		var view *node
		if h := w.history[name]; len(h) > 0 && w.r.IntN(2) == 0 {
			view = &h[w.r.IntN(len(h))]
		}
		w.reconcile(name, view)
	}
}

// converge has everything arrive and every node be looked at until nothing is left to do.
func (w *simulation) converge() {
	s := w.s
	w.calm, s.flying = true, nil
	w.agentsRewrite()
	for range 20 {
		s.now = s.now.Add(pool.Quarantine)
		for name := range w.history {
			var view *node
			if n := s.nodes[name]; n != nil {
				c := n.copied()
				view = &c
			}
			w.reconcile(name, view)
		}
	}
}

// checkServed checks that who lacks something lacks it because no block of the pool is free, and
// has that in its status.
func (w *simulation) checkServed() {
	s := w.s
	var held []netip.Prefix
	for _, n := range s.nodes {
		good, _ := n.blocks("")
		for _, o := range good {
			held = append(held, o.prefix)
		}
	}
	for name, n := range s.nodes {
		for _, q := range n.requested {
			p, has := w.pools[q.pool], 0
			good, _ := n.blocks("")
			for _, o := range good {
				if o.pool == q.pool && p.Covers(o.prefix) && !slices.Contains(strings.Split(n.disputed, ","), o.prefix.String()) {
					has += ipam.Capacity(ipam.Block{Prefix: o.prefix})
				}
			}
			if has < q.needed[0] && free(p, held) {
				w.fail("%s needs %d addresses of %s and has %d, and a block is free", name, q.needed[0], q.pool, has)
			}
			if a := w.b.reconcile(n.copied(), s.now); has < q.needed[0] && a.fault() == "" {
				w.fail("%s needs %d addresses of %s and has %d, and this is not reported", name, q.needed[0], q.pool, has)
			}
		}
	}
}

// free looks at every block of a pool.
func free(p ippools.Pool, held []netip.Prefix) bool {
	for _, r := range p.IPv4.Ranges {
		for a := r.Addr(); r.Contains(a); {
			block := netip.PrefixFrom(a, p.IPv4.Bits)
			if !slices.ContainsFunc(held, block.Overlaps) {
				return true
			}
			for range 1 << (32 - p.IPv4.Bits) {
				a = a.Next()
			}
		}
	}
	return false
}

// disjoint checks that no two nodes have the same by the operator.
func disjoint(s *server, fail func(string, ...any)) {
	for name, n := range s.nodes {
		for other, o := range s.nodes {
			for _, x := range n.all() {
				for _, y := range o.all() {
					if name < other && netip.MustParsePrefix(x).Overlaps(netip.MustParsePrefix(y)) && !s.forged[name+" "+x] && !s.forged[other+" "+y] {
						fail("%s has %s and %s has %s", name, x, other, y)
					}
				}
			}
		}
	}
}

// marked checks that of what is not marked as in dispute no two are alike, and that what is marked
// is.
func marked(s *server, fail func(string, ...any)) {
	clear, marks := map[netip.Prefix]string{}, map[netip.Prefix]string{}
	for name, n := range s.nodes {
		good, _ := n.blocks("")
		for _, o := range good {
			if slices.Contains(strings.Split(n.disputed, ","), o.prefix.String()) {
				marks[o.prefix] = name
				continue
			}
			for p, other := range clear {
				if p.Overlaps(o.prefix) {
					fail("%s has %s and %s has %s, and neither is marked", name, o.prefix, other, p)
				}
			}
			clear[o.prefix] = name
		}
	}
	for p, name := range marks {
		if !slices.ContainsFunc(slices.Collect(maps.Keys(clear)), p.Overlaps) {
			fail("%s of %s is marked, and no other node has it", p, name)
		}
	}
}
