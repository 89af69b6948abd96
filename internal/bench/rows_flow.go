package bench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/hawser-net/hawser/internal/bench/child"
)

// manyRules returns policies of about n rules: those of app=server let app=client in at the ports
// from flowPort on, those of app=client let it out to them.
func manyRules(n int) string {
	const perEntry = 40
	var s strings.Builder
	for _, side := range []struct{ name, subject, direction, peers, peer string }{
		{"server", "server", "ingress", "fromEndpoints", "client"},
		{"client", "client", "egress", "toEndpoints", "server"},
	} {
		fmt.Fprintf(&s, "---\napiVersion: cilium.io/v2\nkind: CiliumNetworkPolicy\nmetadata: {name: many-%s, namespace: default}\nspec:\n", side.name)
		fmt.Fprintf(&s, "  endpointSelector: {matchLabels: {app: %s}}\n  %s:\n", side.subject, side.direction)
		for first := 0; first < n; first += perEntry {
			fmt.Fprintf(&s, "  - %s: [{matchLabels: {app: %s}}]\n    toPorts:\n    - ports:\n", side.peers, side.peer)
			for i := first; i < min(first+perEntry, n); i++ {
				// Every other port, so that they cannot be put together to ranges.
				fmt.Fprintf(&s, "      - {port: \"%d\", protocol: TCP}\n", flowPort+2*i)
			}
		}
	}
	return s.String()
}

// checkRules makes sure that the nodes' kernels hold rule sets of that size.
func (r *testbed) checkRules(ctx context.Context, n int) error {
	for _, node := range r.nodes {
		err := child.Poll(ctx, 10*time.Second, 20*time.Millisecond, func() error {
			k, err := node.kernel()
			if err != nil {
				return err
			}
			defer k.Close()
			sets, err := k.RuleSets()
			if err != nil {
				return err
			}
			largest := 0
			for _, s := range sets {
				largest = max(largest, len(s.Entries))
			}
			if largest < n {
				return fmt.Errorf("the largest rule set of %s has %d entries, not %d", node.name, largest, n)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// plainPath makes two namespaces with one or two routers between them: the way that packets of pods
// go, by the kernel alone.
func (b *bencher) plainPath(name string, routers int) (p path, remove func() error, err error) {
	p, _, remove, err = b.plainNetwork(name, routers)
	return p, remove, err
}

// vxlanPath is a plainPath with two routers that have the kernel's VXLAN device between them: what
// encapsulation costs without policy.
func (b *bencher) vxlanPath(name string) (p path, remove func() error, err error) {
	p, all, remove, err := b.plainNetwork(name, 2)
	if err != nil {
		return p, remove, err
	}
	for i := 1; i <= 2; i++ {
		router := all[i]
		attrs := netlink.NewLinkAttrs()
		attrs.Name = "vxlan"
		err = errors.Join(err, router.h.LinkAdd(&netlink.Vxlan{
			LinkAttrs: attrs, VxlanId: 42, Port: 8472, SrcAddr: net.IPv4(198, 18, 1, byte(i)), Group: net.IPv4(198, 18, 1, byte(3-i)),
		}), router.up("vxlan", fmt.Sprintf("198.19.0.%d/24", i)))
	}
	// The segments of the two ends must fit.
	err = errors.Join(err, all[0].setMTU("right", 1450), all[3].setMTU("left", 1450),
		all[1].replaceRoute("198.18.2.0/24", "198.19.0.2"), all[2].replaceRoute("198.18.0.0/24", "198.19.0.1"))
	if err != nil {
		return p, remove, errors.Join(err, remove())
	}
	return p, remove, nil
}

// plainNetwork also returns the namespaces, from the client to the server.
func (b *bencher) plainNetwork(name string, routers int) (p path, all []*namespace, remove func() error, err error) {
	remove = func() error {
		var errs []error
		for _, n := range all {
			errs = append(errs, n.remove())
		}
		return errors.Join(errs...)
	}
	for i := range routers + 2 {
		n, err := b.newNamespace(fmt.Sprintf("%s-plain-%d", name, i))
		if err != nil {
			return p, nil, remove, errors.Join(err, remove())
		}
		all = append(all, n)
	}
	last := len(all) - 1
	for i := range last {
		left, right := all[i], all[i+1]
		err = errors.Join(err, veth(left, "right", right, "left"),
			left.up("right", fmt.Sprintf("198.18.%d.1/24", i)), right.up("left", fmt.Sprintf("198.18.%d.2/24", i)))
	}
	for i, n := range all {
		for j := range last {
			switch {
			case j < i-1:
				err = errors.Join(err, n.route(fmt.Sprintf("198.18.%d.0/24", j), fmt.Sprintf("198.18.%d.1", i-1)))
			case j > i:
				err = errors.Join(err, n.route(fmt.Sprintf("198.18.%d.0/24", j), fmt.Sprintf("198.18.%d.2", i)))
			}
		}
		err = errors.Join(err, n.forward())
	}
	if err != nil {
		return p, nil, remove, errors.Join(err, remove())
	}
	to := netip.AddrFrom4([4]byte{198, 18, byte(last - 1), 2})
	return path{client: all[0], server: all[last], to: to}, all, remove, nil
}

// flowGoals are the goals of round trips, connections and streams, as ratios.
type flowGoals struct{ rr, crr, stream [2]float64 }

// measureFlows measures two paths in turn and adds the rows.
// If brief, only what is on one processor, and the stream. label goes before the names.
func (b *bencher) measureFlows(ctx context.Context, row, label, baseline string, ours, plain path, goals flowGoals, brief bool) error {
	rounds := pick(b, 11, 5)
	each := pick(b, 400*time.Millisecond, 200*time.Millisecond)
	type latency func(path, time.Duration, where) ([]time.Duration, error)
	for _, kind := range []struct {
		name string
		run  latency
		goal [2]float64
	}{{"TCP_RR", path.roundTrips, goals.rr}, {"TCP_CRR", path.connections, goals.crr}} {
		at := placements()
		if brief {
			at = at[:1]
		}
		for _, w := range at {
			var p50, tail pairs
			for round := range rounds {
				if err := ctx.Err(); err != nil {
					return err
				}
				first, second := ours, plain
				if round%2 == 1 {
					first, second = plain, ours
				}
				t1, err := kind.run(first, each, w)
				if err != nil {
					return fmt.Errorf("%s, %s: %w", kind.name, w.name, err)
				}
				t2, err := kind.run(second, each, w)
				if err != nil {
					return fmt.Errorf("%s, %s: %w", kind.name, w.name, err)
				}
				if round%2 == 1 {
					t1, t2 = t2, t1
				}
				p50.add(us(median(t1)), us(median(t2)))
				tail.add(us(p99(t1)), us(p99(t2)))
			}
			f := Figure{Row: row, Unit: "us", BaselineName: baseline, First: kind.goal[0], Far: kind.goal[1], GoalOfRatio: true}
			f.Name = fmt.Sprintf("%s%s p50, %s", label, kind.name, w.name)
			b.add(p50.fill(f))
			if brief {
				continue
			}
			f.Name, f.First, f.Far = fmt.Sprintf("%s p99, %s", kind.name, w.name), 0, 0
			b.add(tail.fill(f))
		}
	}
	all := placements()
	w := all[len(all)-1]
	var streams pairs
	for round := range rounds {
		if err := ctx.Err(); err != nil {
			return err
		}
		first, second := ours, plain
		if round%2 == 1 {
			first, second = plain, ours
		}
		g1, err1 := first.stream(each, w)
		g2, err2 := second.stream(each, w)
		if err := errors.Join(err1, err2); err != nil {
			return fmt.Errorf("stream: %w", err)
		}
		if round%2 == 1 {
			g1, g2 = g2, g1
		}
		streams.add(g1, g2)
	}
	b.add(streams.fill(Figure{Row: row, Name: label + "TCP stream, " + w.name, Unit: "Gbit/s", BaselineName: baseline,
		First: goals.stream[0], Far: goals.stream[1], GoalOfRatio: true, Higher: true}))
	return nil
}

const flowRules = 1000

func (b *bencher) sameNode(ctx context.Context, r *testbed) (err error) {
	ours, err := r.flowPods(ctx, r.nodes[0], r.nodes[0])
	if err != nil {
		return err
	}
	plain, remove, err := b.plainPath("rr", 1)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, remove()) }()
	return b.measureFlows(ctx, "rr", "", "two veth pairs and a router between them, no BPF", ours, plain,
		flowGoals{rr: [2]float64{1.05, 0.95}, crr: [2]float64{1.10, 0.95}}, false)
}

func (b *bencher) twoNodes(ctx context.Context, r *testbed) (err error) {
	ours, err := r.flowPods(ctx, r.nodes[0], r.nodes[1])
	if err != nil {
		return err
	}
	plain, remove, err := b.plainPath("vxlan", 2)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, remove()) }()
	const baseline = "the same path by two routers, not encapsulated, no BPF"
	err = b.measureFlows(ctx, "vxlan", "", baseline, ours, plain,
		flowGoals{rr: [2]float64{1.4, 1.1}, crr: [2]float64{1.5, 1.15}, stream: [2]float64{0.8, 0.95}}, false)
	if err != nil {
		return err
	}
	kernel, removeKernel, err := b.vxlanPath("vxlan-kernel")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, removeKernel()) }()
	return b.measureFlows(ctx, "vxlan", "kernel's VXLAN alone: ", baseline, kernel, plain, flowGoals{}, true)
}

// bigTCP compares two pairs of nodes with native routing, of which one has BIG TCP.
func (b *bencher) bigTCP(ctx context.Context) (err error) {
	native := []string{"--routing-mode", "native"}
	var paths [2]path
	for i, flags := range [][]string{append(native, "--enable-ipv4-big-tcp"), native} {
		r, err2 := b.newTestbed(ctx, 2)
		if err2 != nil {
			return err2
		}
		defer func() { err = errors.Join(err, r.close()) }()
		if paths[i], err = r.flowPods(ctx, r.nodes[0], r.nodes[1], flags...); err != nil {
			return err
		}
	}
	return b.measureFlows(ctx, "bigtcp", "", "the same agents without --enable-ipv4-big-tcp", paths[0], paths[1], flowGoals{}, true)
}

// flowPods starts the agents, with more flags, with many rules and a client and a server, and waits
// until they reach each other as the rules say.
func (r *testbed) flowPods(ctx context.Context, client, server *node, more ...string) (path, error) {
	if err := r.writePolicy("many.yaml", manyRules(flowRules)); err != nil {
		return path{}, err
	}
	if err := r.startAgents(ctx, more...); err != nil {
		return path{}, err
	}
	c, err := client.addPod("client", "client")
	if err != nil {
		return path{}, err
	}
	s, err := server.addPod("server", "server")
	if err != nil {
		return path{}, err
	}
	p := path{client: c.ns, server: s.ns, to: s.ipv4}
	if err := r.checkRules(ctx, flowRules); err != nil {
		return p, err
	}
	// Across nodes, each observes the other's pods a little later.
	if err := p.answers(ctx); err != nil {
		return p, err
	}
	return p, p.refuses(flowPort + 1)
}

// answers waits until the client reaches the server.
func (p path) answers(ctx context.Context) error {
	err := child.Poll(ctx, 20*time.Second, 50*time.Millisecond, func() error {
		_, err := p.roundTrips(time.Millisecond, placements()[0])
		return err
	})
	if err != nil {
		return fmt.Errorf("the client does not reach the server: %w", err)
	}
	return nil
}
