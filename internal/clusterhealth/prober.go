package clusterhealth

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// Target is a node to probe.
type Target struct {
	// Name is unique among all targets.
	Name string
	// Node are the node's own addresses, Endpoint those of its health endpoint; the first of each
	// is the primary one.
	Node, Endpoint []netip.Addr
	// Answers means that the node has announced that it answers probes by HTTP. One of another
	// version need not.
	Answers bool
}

// Connectivity is the state of one kind of probe to one address.
type Connectivity struct {
	// Probed is when the last probe ended; zero if there was none yet.
	Probed time.Time
	// Latency is how long its answer took, if it had one.
	Latency time.Duration
	// Err is why it had none; empty if it had one.
	Err string
	// Since is when the present state began, working or not, as far as this process knows.
	Since time.Time
	// Unasked means that no answer was ever received this way, and that none was announced to be
	// available: an unanswered probe is no evidence of a network fault.
	Unasked bool
	// began is when the last probe was begun.
	began time.Time
	// answered means that a probe was answered at some time.
	answered bool
}

// Failing reports whether the last probe failed although an answer was expected.
func (c Connectivity) Failing() bool { return c.Err != "" && !c.Unasked }

// Path is the state of an address.
type Path struct {
	Addr netip.Addr
	ICMP Connectivity
	HTTP Connectivity
}

// Status is the state of a node.
type Status struct {
	Name           string
	Node, Endpoint []Path
}

// State is the state of a node, or of its health endpoint.
type State int

// The states. Unknown is that of a node that was not probed yet, or has no address, Silent that of
// one that answers no probes by HTTP, and never announced that it does: if only that way fails, an
// unreachable node cannot be distinguished from one that does not listen.
const (
	Unknown State = iota
	Reachable
	Silent
	Unreachable
)

// String returns the state's name.
func (s State) String() string {
	switch s {
	case Reachable:
		return "reachable"
	case Unreachable:
		return "unreachable"
	case Silent:
		return "silent"
	}
	return "unknown"
}

// StateOf returns the state that the addresses of a node, or of its health endpoint, are in
// together: one way to one of them that does not answer makes it unreachable. since is when the
// first of those that do not answer ceased to, as far as it is known; zero in other states.
func StateOf(paths []Path) (state State, since time.Time) {
	for _, p := range paths {
		for _, c := range []Connectivity{p.ICMP, p.HTTP} {
			switch {
			case c.Failing():
				state = Unreachable
				if since.IsZero() || c.Since.Before(since) {
					since = c.Since
				}
			case c.Probed.IsZero():
			case c.Unasked && c.Err != "":
				state = max(state, Silent)
			default:
				state = max(state, Reachable)
			}
		}
	}
	return state, since
}

// Config is what a [Prober] is made from.
type Config struct {
	// Targets returns the nodes to probe, this one among them. It is called at the beginning of
	// every round, and of every call of Statuses.
	Targets func() []Target
	// Echo and Get probe an address. They must return soon after their context ends.
	Echo, Get func(context.Context, netip.Addr) (time.Duration, error)
	// Interval is how long a round takes at least, a minute by default.
	Interval time.Duration
	// Rate is how many nodes are begun with in a second at most, 10 by default: a round through
	// 5,000 nodes takes 500 seconds.
	Rate float64
	// Timeout is how long an answer may take, 5 seconds by default.
	Timeout time.Duration
	// Now is the clock, time.Now by default.
	Now func() time.Time
}

func (c *Config) defaults() {
	c.Interval, c.Timeout, c.Rate = cmp.Or(c.Interval, time.Minute), cmp.Or(c.Timeout, 5*time.Second), cmp.Or(c.Rate, 10)
	if c.Now == nil {
		c.Now = time.Now
	}
}

// Prober probes nodes and knows what came of it.
type Prober struct {
	cfg Config

	mu    sync.Mutex
	known map[way]Connectivity
	round time.Duration // of the last one
}

// way is one way to an address: a kind of probe.
type way struct {
	addr netip.Addr
	http bool
}

// New returns a Prober that does nothing until Run.
func New(cfg Config) (*Prober, error) {
	if cfg.Targets == nil || cfg.Echo == nil || cfg.Get == nil {
		return nil, errors.New("clusterhealth: targets and both kinds of probes are needed")
	}
	cfg.defaults()
	if cfg.Interval < 0 || cfg.Timeout < 0 || cfg.Rate < 0 {
		return nil, fmt.Errorf("clusterhealth: interval %v, timeout %v and rate %v must not be negative", cfg.Interval, cfg.Timeout, cfg.Rate)
	}
	return &Prober{cfg: cfg, known: map[way]Connectivity{}, round: cfg.Interval}, nil
}

// Run probes until ctx ends, and returns nil then, after all probes have ended. It is called once.
func (p *Prober) Run(ctx context.Context) error {
	order := maphash.MakeSeed()
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		targets := p.cfg.Targets()
		// An order of this node's own: nodes that start together do not all ask the same one at the
		// same time. It is the same in each round, so that each target waits for a round and no
		// longer.
		slices.SortFunc(targets, func(a, b Target) int {
			return cmp.Or(cmp.Compare(maphash.String(order, a.Name), maphash.String(order, b.Name)), cmp.Compare(a.Name, b.Name))
		})
		round := p.begin(targets)
		step := round / time.Duration(max(len(targets), 1))
		next := time.NewTicker(step)
		for _, t := range targets {
			wg.Go(func() { p.probe(ctx, t) })
			select {
			case <-next.C:
			case <-ctx.Done():
				next.Stop()
				return nil
			}
		}
		if len(targets) == 0 {
			select {
			case <-next.C:
			case <-ctx.Done():
				next.Stop()
				return nil
			}
		}
		next.Stop()
	}
}

// begin drops addresses that no node has any more, and returns how long the round takes.
func (p *Prober) begin(targets []Target) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	wanted := map[netip.Addr]bool{}
	for _, t := range targets {
		for _, ip := range slices.Concat(t.Node, t.Endpoint) {
			wanted[ip] = true
		}
	}
	for w := range p.known {
		if !wanted[w.addr] {
			delete(p.known, w)
		}
	}
	p.round = max(p.cfg.Interval, time.Duration(float64(len(targets))/p.cfg.Rate*float64(time.Second)))
	return p.round
}

// probe tries all ways to a node, at once.
func (p *Prober) probe(ctx context.Context, t Target) {
	var wg sync.WaitGroup
	defer wg.Wait()
	for _, ip := range slices.Concat(t.Node, t.Endpoint) {
		for _, w := range []way{{ip, false}, {ip, true}} {
			wg.Go(func() { p.try(ctx, w) })
		}
	}
}

func (p *Prober) try(ctx context.Context, w way) {
	bounded, cancel := context.WithTimeout(ctx, p.cfg.Timeout)
	defer cancel()
	do := p.cfg.Echo
	if w.http {
		do = p.cfg.Get
	}
	began := p.cfg.Now()
	latency, err := do(bounded, w.addr)
	if ctx.Err() != nil {
		return // the agent ends: nothing was found out
	}
	c := Connectivity{Probed: p.cfg.Now(), Latency: latency, Since: began, began: began, answered: err == nil}
	if err != nil {
		c.Err, c.Latency = cmp.Or(err.Error(), "failed"), 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	old, ok := p.known[w]
	if ok && old.began.After(began) {
		return // a later one was faster: this has waited for an answer in vain
	}
	if ok && (old.Err != "") == (c.Err != "") {
		c.Since = old.Since
	}
	c.answered = c.answered || old.answered
	p.known[w] = c
}

// Statuses returns the state of each node, by name, and how long a round takes.
func (p *Prober) Statuses() ([]Status, time.Duration) {
	targets := p.cfg.Targets()
	p.mu.Lock()
	defer p.mu.Unlock()
	paths := func(ips []netip.Addr, answers bool) []Path {
		out := make([]Path, 0, len(ips))
		for _, ip := range ips {
			path := Path{Addr: ip, ICMP: p.known[way{ip, false}], HTTP: p.known[way{ip, true}]}
			path.HTTP.Unasked = !answers
			out = append(out, path)
		}
		return out
	}
	out := make([]Status, 0, len(targets))
	for _, t := range targets {
		answers := t.Answers || slices.ContainsFunc(t.Node, func(ip netip.Addr) bool { return p.known[way{ip, true}].answered })
		// An endpoint that is announced is there to answer.
		out = append(out, Status{Name: t.Name, Node: paths(t.Node, answers), Endpoint: paths(t.Endpoint, true)})
	}
	slices.SortFunc(out, func(a, b Status) int { return cmp.Compare(a.Name, b.Name) })
	return out, p.round
}
