package sandbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
)

// ReachOptions narrow down and tune Reach.
type ReachOptions struct {
	// From and To are names of pods or "world"; all if empty.
	From, To []string
	// Protocols to probe; all if empty.
	Protocols []Protocol
	// DenyTimeout is how long to wait for an answer that the policies forbid, 750 ms if 0.
	// AllowTimeout is how long to wait for one that they allow, 5 s if 0.
	DenyTimeout, AllowTimeout time.Duration
}

// Probe is one attempt to reach one server, and its outcome.
type Probe struct {
	From     string     `json:"from"`
	To       string     `json:"to"`
	Protocol Protocol   `json:"protocol"`
	Address  netip.Addr `json:"address"`
	Port     uint16     `json:"port,omitempty"` // absent for ICMP
	Reached  bool       `json:"reached"`
	Expected bool       `json:"expected"` // what the policies say
	// Rule names the reason for the expectation.
	Rule string `json:"rule,omitempty"`
	// Error is set if the attempt failed in a way that a drop does not explain, such as a reset, or
	// the answer of another server.
	Error string `json:"error,omitempty"`
}

// AsExpected reports whether the network did what the policies say. Who is denied gets no answer at
// all: any other failure shows that packets have passed.
func (p Probe) AsExpected() bool { return p.Reached == p.Expected && p.Error == "" }

// Matrix is the outcome of Reach.
type Matrix struct {
	Sources    []string `json:"sources"`
	Targets    []string `json:"targets"`
	Probes     []Probe  `json:"probes"`
	Reached    int      `json:"reached"`
	Denied     int      `json:"denied"`
	Unexpected int      `json:"unexpected"`
	Took       Duration `json:"took"`
}

// party is a source or target of probes.
type party struct {
	name      string
	netns     string
	namespace string            // of Kubernetes; empty for the world
	labels    map[string]string // of the pod; nil for the world
	node      string
	addrs     []netip.Addr
	ports     []uint16
}

// maxProbes bounds the probes in flight: each holds a thread for as long as it waits.
const maxProbes = 256

// Reach probes every ordered pair of pods, and the world, with real TCP connections, UDP datagrams
// and ICMP echo requests over IPv4 and IPv6, sent from inside their namespaces, and compares what
// gets through with what the policies in PolicyDir allow.
func (s *Sandbox) Reach(ctx context.Context, opt ReachOptions) (*Matrix, error) {
	opt.DenyTimeout = cmp.Or(opt.DenyTimeout, 750*time.Millisecond)
	opt.AllowTimeout = cmp.Or(opt.AllowTimeout, 5*time.Second)
	if len(opt.Protocols) == 0 {
		opt.Protocols = []Protocol{TCP, UDP, ICMP}
	}
	st, err := s.running()
	if err != nil {
		return nil, err
	}
	parties := s.parties(st)
	for _, name := range append(slices.Clone(opt.From), opt.To...) {
		if !slices.ContainsFunc(parties, func(p party) bool { return p.name == name }) {
			return nil, fmt.Errorf("no pod %q in sandbox %q: there are %s, and %s", name, s.cfg.Name, podNames(st), worldName)
		}
	}
	expected, err := newExpectations(s.PolicyDir(), st.EnablePolicy, parties)
	if err != nil {
		return nil, err
	}

	m := &Matrix{Sources: []string{}, Targets: []string{}}
	began := time.Now()
	chosen := func(names []string, p party) bool { return len(names) == 0 || slices.Contains(names, p.name) }
	var netns []string // of the source of each probe
	for _, from := range parties {
		if chosen(opt.From, from) {
			m.Sources = append(m.Sources, from.name)
		}
		if chosen(opt.To, from) {
			m.Targets = append(m.Targets, from.name)
		}
		for _, to := range parties {
			if from.name == to.name || !chosen(opt.From, from) || !chosen(opt.To, to) {
				continue
			}
			for _, proto := range opt.Protocols {
				ports := to.ports
				if proto == ICMP {
					ports = []uint16{0}
				}
				for _, port := range ports {
					for _, addr := range to.addrs {
						p := Probe{From: from.name, To: to.name, Protocol: proto, Address: addr, Port: port}
						p.Expected, p.Rule = expected.expect(from, to, proto, addr, port)
						m.Probes = append(m.Probes, p)
						netns = append(netns, from.netns)
					}
				}
			}
		}
	}

	var workers errgroup.Group
	workers.SetLimit(maxProbes)
	for i := range m.Probes {
		workers.Go(func() error {
			p := &m.Probes[i]
			timeout := opt.AllowTimeout
			if !p.Expected {
				timeout = opt.DenyTimeout
			}
			err := probe(ctx, netns[i], p.Protocol, netip.AddrPortFrom(p.Address, p.Port), p.To, timeout)
			p.Reached = err == nil
			if err != nil && !errors.Is(err, errNoAnswer) {
				p.Error = err.Error()
			}
			return nil
		})
	}
	_ = workers.Wait() // each probe has its own
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	for _, p := range m.Probes {
		if p.Reached {
			m.Reached++
		} else {
			m.Denied++
		}
		if !p.AsExpected() {
			m.Unexpected++
		}
	}
	m.Took = Duration(time.Since(began))
	return m, nil
}

// parties lists the pods, and the world last.
func (s *Sandbox) parties(st *state) []party {
	var out []party
	for _, p := range st.Pods {
		q := party{
			name: p.Name, netns: s.netns("pod-" + p.Name), namespace: p.Namespace, node: p.Node,
			labels: p.Labels, ports: p.Ports,
		}
		if q.labels == nil {
			q.labels = map[string]string{}
		}
		for _, a := range []netip.Addr{p.IPv4, p.IPv6} {
			if a.IsValid() {
				q.addrs = append(q.addrs, a)
			}
		}
		out = append(out, q)
	}
	host := worldHost()
	world := party{name: worldName, netns: s.netns(worldName), addrs: []netip.Addr{host.IPv4}, ports: []uint16{worldPort}}
	if st.IPv6 {
		world.addrs = append(world.addrs, host.IPv6)
	}
	return append(out, world)
}
