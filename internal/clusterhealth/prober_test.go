package clusterhealth

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func addr(n int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)})
}

// network is what fake probes go through: addresses that are dead swallow them.
type network struct {
	mu     sync.Mutex
	dead   map[netip.Addr]bool
	began  map[netip.Addr][]time.Time
	open   int // probes under way
	most   int
	starts []time.Time // of probes to nodes
}

func (n *network) probe(ctx context.Context, to netip.Addr) (time.Duration, error) {
	n.mu.Lock()
	n.began[to] = append(n.began[to], time.Now())
	n.starts = append(n.starts, time.Now())
	n.open++
	n.most = max(n.most, n.open)
	dead := n.dead[to]
	n.mu.Unlock()
	defer func() {
		n.mu.Lock()
		n.open--
		n.mu.Unlock()
	}()
	if dead {
		<-ctx.Done()
		return 0, errors.New("no answer")
	}
	time.Sleep(time.Millisecond)
	return time.Millisecond, nil
}

func cluster(n int) ([]Target, *network) {
	var targets []Target
	for i := range n {
		targets = append(targets, Target{Name: fmt.Sprintf("c/n%05d", i), Node: []netip.Addr{addr(i)}, Endpoint: []netip.Addr{addr(1<<20 + i)}})
	}
	return targets, &network{dead: map[netip.Addr]bool{}, began: map[netip.Addr][]time.Time{}}
}

func prober(t *testing.T, targets func() []Target, n *network) *Prober {
	t.Helper()
	p, err := New(Config{Targets: targets, Echo: n.probe, Get: n.probe})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// unreachable is what of a node does not answer, and since when the node itself does not.
func unreachable(s Status) (node, endpoint bool, since time.Time) {
	n, since := StateOf(s.Node)
	e, _ := StateOf(s.Endpoint)
	return n == Unreachable, e == Unreachable, since
}

// TestRounds: every node is probed once in a round, whether or not others are dead; who is dead is
// named, with the time.
func TestRounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		targets, n := cluster(30)
		p := prober(t, func() []Target {
			n.mu.Lock()
			defer n.mu.Unlock()
			return append([]Target(nil), targets...)
		}, n)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- p.Run(ctx) }()
		time.Sleep(70 * time.Second)
		all, _ := p.Statuses()
		for _, s := range all {
			if node, ep, _ := unreachable(s); node || ep || s.Node[0].ICMP.Probed.IsZero() || s.Node[0].HTTP.Latency != time.Millisecond {
				t.Errorf("all answer: %+v", s)
			}
		}

		// Half of them die, node 3 only as a node.
		cut := time.Now()
		n.mu.Lock()
		for i := range 15 {
			n.dead[addr(i)] = true
			n.dead[addr(1<<20+i)] = i != 3
		}
		n.mu.Unlock()
		time.Sleep(130 * time.Second)
		all, _ = p.Statuses()
		for i, s := range all {
			node, ep, since := unreachable(s)
			if node != (i < 15) || ep != (i < 15 && i != 3) {
				t.Errorf("%s: node unreachable %v, endpoint %v", s.Name, node, ep)
			}
			if i < 15 && (since.Before(cut) || since.After(cut.Add(61*time.Second))) {
				t.Errorf("%s is unreachable since %v, it is since %v", s.Name, since, cut)
			}
		}
		// Unreachable nodes delayed no probe of others: each was probed each round, in both ways.
		n.mu.Lock()
		for i := range 30 {
			if got := len(n.began[addr(i)]); got < 2*3 || got > 2*5 {
				t.Errorf("node %d was probed %d times in 200 s", i, got)
			}
		}
		n.mu.Unlock()
		since := all[0].Node[0].ICMP.Since

		// One comes back, one is gone, one is new.
		n.mu.Lock()
		delete(n.dead, addr(1))
		targets = append(targets[:29:29], Target{Name: "c/new", Node: []netip.Addr{addr(99)}})
		n.mu.Unlock()
		time.Sleep(130 * time.Second)
		all, _ = p.Statuses()
		if node, _, _ := unreachable(all[2]); all[0].Name != "c/n00000" && all[0].Name != "c/new" || node && all[2].Name == "c/n00001" {
			t.Errorf("the node that came back: %+v", all[2])
		}
		for _, s := range all {
			switch s.Name {
			case "c/n00000":
				if !s.Node[0].ICMP.Since.Equal(since) {
					t.Errorf("it is unreachable since %v, before it was since %v", s.Node[0].ICMP.Since, since)
				}
			case "c/n00001":
				if node, _, _ := unreachable(s); node {
					t.Errorf("it has come back: %+v", s)
				}
			case "c/n00029":
				t.Error("a node that is gone is listed")
			case "c/new":
				if s.Node[0].ICMP.Probed.IsZero() {
					t.Errorf("the new node was not probed: %+v", s)
				}
			}
		}
		p.mu.Lock()
		if _, ok := p.known[way{addr(29), false}]; ok {
			t.Error("what was known of a node that is gone is kept")
		}
		p.mu.Unlock()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// TestLoadOfManyNodes: with 5,000 nodes, all dead, no more than the rate is begun with in any
// second, and probes under way are few.
func TestLoadOfManyNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		targets, n := cluster(5000)
		for _, tt := range targets {
			n.dead[tt.Node[0]], n.dead[tt.Endpoint[0]] = true, true
		}
		p := prober(t, func() []Target { return append([]Target(nil), targets...) }, n)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- p.Run(ctx) }()
		time.Sleep(510 * time.Second)
		_, round := p.Statuses()
		cancel()
		<-done
		if round != 500*time.Second {
			t.Errorf("a round takes %v", round)
		}
		if len(n.began) != 10000 {
			t.Errorf("%d of 10,000 addresses were probed in a round", len(n.began))
		}
		// Four probes a node: two addresses, two ways.
		const perNode = 4
		if limit := perNode * (10*5 + 2); n.most > limit {
			t.Errorf("%d probes were under way at a time, at most %d may be", n.most, limit)
		}
		seconds := map[int64]int{}
		for _, at := range n.starts {
			seconds[at.Unix()]++
		}
		for s, begun := range seconds {
			if begun > perNode*11 {
				t.Errorf("%d probes were begun in second %d", begun, s)
			}
		}
	})
}

// TestAlone: without any node to probe nothing happens, until there is one.
func TestAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		targets, n := cluster(0)
		p := prober(t, func() []Target { return targets }, n)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- p.Run(ctx) }()
		time.Sleep(90 * time.Second)
		if len(n.starts) != 0 {
			t.Errorf("%d probes without a node", len(n.starts))
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	if _, err := New(Config{}); err == nil {
		t.Error("a prober of nothing is made")
	}
}

// TestSilentNodes: a node that never answered by HTTP, nor said that it does, is not taken for one
// that cannot be reached. One that did is, and so is one whose echo replies are missing.
func TestSilentNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		targets := []Target{
			{Name: "announced", Node: []netip.Addr{addr(1)}, Answers: true}, {Name: "old", Node: []netip.Addr{addr(2)}},
			{Name: "dead", Node: []netip.Addr{addr(3)}}, {Name: "turned off", Node: []netip.Addr{addr(4), addr(5)}},
		}
		n := &network{dead: map[netip.Addr]bool{addr(3): true}, began: map[netip.Addr][]time.Time{}}
		closed := map[netip.Addr]bool{addr(1): true, addr(2): true, addr(3): true, addr(5): true}
		p, err := New(Config{Targets: func() []Target { return slices.Clone(targets) }, Echo: n.probe, Get: func(ctx context.Context, to netip.Addr) (time.Duration, error) {
			n.mu.Lock()
			defer n.mu.Unlock()
			if closed[to] {
				return 0, errors.New("connection refused")
			}
			return time.Millisecond, nil
		}})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- p.Run(ctx) }()
		want := func(what string, states map[string]State) {
			t.Helper()
			time.Sleep(130 * time.Second)
			all, _ := p.Statuses()
			for _, s := range all {
				if got, since := StateOf(s.Node); got != states[s.Name] || (got == Unreachable) == since.IsZero() {
					t.Errorf("%s: %s is %s since %v, want %s", what, s.Name, got, since, states[s.Name])
				}
			}
		}
		// One address of the last does not answer, although the other does.
		want("at first", map[string]State{"announced": Unreachable, "old": Silent, "dead": Unreachable, "turned off": Unreachable})
		n.mu.Lock()
		closed = map[netip.Addr]bool{addr(4): true, addr(5): true}
		n.mu.Unlock()
		want("all but the last answer", map[string]State{"announced": Reachable, "old": Reachable, "dead": Unreachable, "turned off": Unreachable})
		n.mu.Lock()
		closed[addr(2)] = true
		n.mu.Unlock()
		want("one that has answered", map[string]State{"announced": Reachable, "old": Unreachable, "dead": Unreachable, "turned off": Unreachable})
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
