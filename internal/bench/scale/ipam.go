package scale

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/bench/child"
	"github.com/hawser-net/hawser/internal/bench/scale/report"
	"github.com/hawser-net/hawser/internal/k8s"
	"github.com/hawser-net/hawser/internal/sandbox/cloud/aws"
	"github.com/hawser-net/hawser/pkg/retry"
)

const (
	// nodesASubnet is how many nodes share a subnet of 4,091 addresses: none runs dry if each node
	// has all that its type can have, 46 with those of the interfaces.
	nodesASubnet = 80
	// pool is how many addresses a node has in advance of pods: the default of Cilium.
	pool = 8
	// instanceType holds 42 addresses of pods on three interfaces.
	instanceType = "m5.xlarge"
	// nodeTakes is how many pods a node takes, as kubelet's maxPods says: it can have as many
	// addresses, and those in advance.
	nodeTakes = 3*14 - pool
)

// ipam is the scenario of nodes that get their addresses from a cloud.
func (r *runner) ipam(ctx context.Context, s *report.Scenario) error {
	s.Text = fmt.Sprintf("%d nodes come at once to a cloud that allows %g requests a second. An operator makes each of them a network interface with %d addresses. "+
		"When does a node have them? Then %d pods come at %g a second: how long does a pod wait for its address, how often is the cloud asked, and what does it cost when all have what they need?",
		r.cfg.IPAMNodes, r.cfg.IPAMRate, pool, r.cfg.IPAMPods, r.cfg.IPAMPodRate)
	s.Shared = "The cloud is that of internal/sandbox/cloud/aws, in the process of the harness, which the operator asks by AWS's own SDK; it is as slow as a real one (100 ms a request) and " +
		"throttles by one bucket, where EC2 has several. There are no agents: the harness writes the CiliumNodes, gives pods " +
		"the addresses that it reads there, and says once a second which are used. No kubelet writes the status of a pod."
	s.Limits = []string{
		"what the cloud allows: an interface takes three calls (make, attach, keep it from outliving its instance), and as many addresses as the node needs come with the first of them",
		"an operator for which the cloud allows less than it is set to by --limit-ipam-api-qps finds out by refusals, and pauses",
		"a pod that finds an address which was assigned in advance waits for nothing; one that does not waits for a call, and that for its turn among those of all nodes",
	}
	plot := report.Plot{File: "ipam.svg", Title: "Nodes that have their addresses", X: "seconds since the operator's start", Y: "nodes"}
	var errs []error
	for _, v := range []struct {
		name string
		qps  float64
	}{{"within what the cloud allows", r.cfg.IPAMRate * 0.9}, {"asked for twice as much", r.cfg.IPAMRate * 2}} {
		out := report.Variant{Name: v.name}
		line := report.Line{Name: v.name}
		points, err := r.ipamAt(ctx, v.qps, &out)
		if err != nil {
			out.Error = err.Error()
			errs = append(errs, fmt.Errorf("%s: %w", v.name, err))
		}
		line.Points = points
		s.Variants = append(s.Variants, out)
		plot.Lines = append(plot.Lines, line)
	}
	s.Plots = append(s.Plots, plot)
	return errors.Join(errs...)
}

// allotting is one run of the scenario.
type allotting struct {
	c     *cluster
	v     *report.Variant
	cloud *aws.Cloud

	mu   sync.Mutex
	full map[string]time.Time // nodes that have their addresses, and since when
	all  chan struct{}
	want int

	nodes  map[string]*allotted
	waited []float64 // seconds of each pod
}

// ipamAt measures an operator that asks qps times a second.
func (r *runner) ipamAt(ctx context.Context, qps float64, v *report.Variant) (points []report.Point, err error) {
	r.say("  %d nodes, %g requests a second allowed, %g wanted", r.cfg.IPAMNodes, r.cfg.IPAMRate, qps)
	g := &allotting{v: v, cloud: aws.New(), full: map[string]time.Time{}, nodes: map[string]*allotted{}, all: make(chan struct{}), want: r.cfg.IPAMNodes}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	server := &http.Server{Handler: g.cloud, ReadHeaderTimeout: time.Minute}
	served := make(chan struct{})
	go func() { _ = server.Serve(l); close(served) }()
	defer func() { err = errors.Join(err, server.Close()); <-served }()

	with := *r // with an operator that finds the cloud
	with.cfg.Operator = slices.Concat([]string{"/usr/bin/env", "AWS_ENDPOINT_URL=http://" + l.Addr().String(), "AWS_REGION=eu-test-1", "AWS_ACCESS_KEY_ID=scale",
		"AWS_SECRET_ACCESS_KEY=scale", "AWS_EC2_METADATA_DISABLED=true"}, r.cfg.Operator)
	if g.c, err = with.newCluster(ctx); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, g.c.close()) }()
	if err := g.populate(ctx, r.cfg.IPAMNodes); err != nil {
		return nil, err
	}
	g.cloud.Latency(100 * time.Millisecond)
	g.cloud.Throttle(r.cfg.IPAMRate, r.cfg.IPAMRate)
	return g.measure(ctx, &with, qps)
}

// populate makes the cloud's instances, and what their agents would write.
func (g *allotting) populate(ctx context.Context, nodes int) error {
	vpc := netip.MustParsePrefix("10.0.0.0/8")
	g.cloud.AddVPC("vpc", vpc)
	g.cloud.AddGroup("sg", "vpc", nil)
	for i := range nodes {
		subnet := fmt.Sprintf("subnet-%d", i/nodesASubnet)
		if i%nodesASubnet == 0 {
			n := i / nodesASubnet
			g.cloud.AddSubnet(subnet, "vpc", "eu-test-1a", netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(n / 16), byte(n % 16 * 16), 0}), 20), nil)
		}
		if _, err := g.cloud.AddInstance(instanceOf(i), instanceType, subnet, []string{"sg"}, nil); err != nil {
			return err
		}
	}
	return each(ctx, nodes, func(ctx context.Context, i int) error {
		first := 1
		o := &v2.CiliumNode{ObjectMeta: metav1.ObjectMeta{Name: nodeOf(i)}}
		o.Spec.InstanceID, o.Spec.ENI.InstanceType, o.Spec.ENI.FirstInterfaceIndex = instanceOf(i), instanceType, &first
		return g.c.client.UrgentV2.Post().Resource(v2.ResourceNodes).Body(o).Do(ctx).Error()
	})
}

func instanceOf(i int) string { return fmt.Sprintf("i-%017x", i) }

// measure starts the operator, and looks until all nodes have their addresses, and on.
func (g *allotting) measure(ctx context.Context, r *runner, qps float64) (points []report.Point, err error) {
	ctx, cancel := context.WithCancel(ctx)
	var following sync.WaitGroup
	defer following.Wait()
	defer cancel()
	following.Go(func() { _ = g.follow(ctx) })
	before, err := g.c.traffic(ctx)
	if err != nil {
		return nil, err
	}
	alone := Config{Lease: collectLease}
	began, stretch := time.Now(), g.c.startLoad()
	operator, err := g.c.startOperator(append([]string{"--ipam=eni", "--enable-ipv6=false", fmt.Sprintf("--limit-ipam-api-qps=%g", qps), "--limit-ipam-api-burst=20",
		"--set-cilium-is-up-condition=false", "--remove-cilium-node-taints=false", "--nodes-gc-interval=1h"}, alone.leaseFlags()...)...)
	if err != nil {
		return nil, err
	}
	select {
	case <-g.all:
	case <-operator.Done():
		return nil, fmt.Errorf("the operator ended: %w: %s", operator.Err(), operator.Tail())
	case <-time.After(r.cfg.Timeout):
		return nil, fmt.Errorf("after %v %d of %d nodes have their addresses: %s", r.cfg.Timeout, len(g.times(began)), g.want, operator.Tail())
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	took := time.Since(began)
	g.v.Processors = stretch.end(g.c)
	calls := g.cloud.Calls()
	after, err := g.c.traffic(ctx)
	if err != nil {
		return nil, err
	}
	used, err := operator.Usage()
	if err != nil {
		return nil, err
	}
	times := g.times(began)
	n := float64(g.want)
	g.v.Figure("nodes", n, "", "")
	g.v.Figure("a node has its addresses, p50", report.Quantile(times, 0.5), "s", "since the operator's start")
	g.v.Figure("a node has its addresses, p99", report.Quantile(times, 0.99), "s", "")
	g.v.Figure("all nodes have them", took.Seconds(), "s", fmt.Sprintf("%.0f s at least: three calls each", 3*n/min(qps, r.cfg.IPAMRate)))
	total := 0
	for _, action := range slices.Sorted(maps.Keys(calls)) {
		total += calls[action]
		if !strings.HasPrefix(action, "Describe") {
			g.v.Figure(action+", a node", float64(calls[action])/n, "", "refused ones count")
		}
	}
	g.v.Figure("requests to the cloud, a node", float64(total)/n, "", "those that describe count")
	g.v.Figure("requests to the cloud a second", float64(total)/took.Seconds(), "", fmt.Sprintf("%g are answered", r.cfg.IPAMRate))
	g.v.Figure("writes of CiliumNodes, a node", after.Since(before).Sum(v2.ResourceNodes)/n, "", "")
	g.v.Figure("operator, memory at most", float64(used.Peak)/(1<<20), "MiB", "")
	g.v.Figure("operator, processor time a node", used.CPU.Seconds()/n*1000, "ms", "")
	for k, t := range times {
		points = append(points, report.Point{X: t, Y: float64(k + 1)})
	}
	if err := g.pods(ctx, r); err != nil {
		return points, err
	}
	if err := g.rest(ctx, r.cfg.IPAMRest, operator); err != nil {
		return points, err
	}
	return points, g.evaluate(ctx)
}

// rest measures what is asked of a cloud when no node needs anything.
func (g *allotting) rest(ctx context.Context, watch time.Duration, operator *child.Process) error {
	before, busy := g.cloud.Calls(), g.c.processorTime()["operators"]
	if !retry.Sleep(ctx, watch) {
		return context.Cause(ctx)
	}
	n := 0
	for action, k := range g.cloud.Calls() {
		n += k - before[action]
	}
	g.v.Figure("requests to the cloud a minute at rest", float64(n)/watch.Minutes(), "", fmt.Sprintf("seen for %v", watch))
	g.v.Figure("operator, processors at rest", (g.c.processorTime()["operators"]-busy).Seconds()/watch.Seconds(), "", "")
	used, err := operator.Usage()
	if err == nil {
		g.v.Figure("operator, memory at rest", float64(used.Memory)/(1<<20), "MiB", "")
	}
	return err
}

// follow notes when nodes have their addresses.
func (g *allotting) follow(ctx context.Context) error {
	return k8s.Follow(ctx, k8s.Kind(g.c.client.V2, v2.ResourceNodes, ""), k8s.Options[*v2.CiliumNode]{}, k8s.Handler[*v2.CiliumNode]{
		Upsert: func(o *v2.CiliumNode) {
			g.mu.Lock()
			defer g.mu.Unlock()
			n := g.node(o.Name)
			n.pool = make(map[string]bool, len(o.Spec.IPAM.Pool))
			for a := range o.Spec.IPAM.Pool {
				n.pool[a] = true
			}
			g.give(n)
			if len(o.Spec.IPAM.Pool) < pool {
				return
			}
			if _, had := g.full[o.Name]; had {
				return
			}
			if g.full[o.Name] = time.Now(); len(g.full) == g.want {
				close(g.all)
			}
		},
		Delete: func(k8s.Key) {},
	})
}

// times are those at which nodes had their addresses, in seconds, ascending.
func (g *allotting) times(began time.Time) []float64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	var out []float64
	for _, t := range g.full {
		out = append(out, t.Sub(began).Seconds())
	}
	slices.Sort(out)
	return out
}

// evaluate compares the cloud with what nodes have got, in both directions.
func (g *allotting) evaluate(ctx context.Context) error {
	var all v2.CiliumNodeList
	if err := g.c.client.UrgentV2.Get().Resource(v2.ResourceNodes).Do(ctx).Into(&all); err != nil {
		return err
	}
	assigned, loose := map[string]string{}, []string(nil)
	for _, i := range g.cloud.View().Interfaces {
		if i.Instance == "" {
			loose = append(loose, i.ID)
		}
		for _, a := range i.Addresses {
			assigned[a.String()] = i.Instance + " " + i.ID
		}
	}
	var wrong []string
	for _, n := range all.Items {
		for a, x := range n.Spec.IPAM.Pool {
			if at := assigned[a]; at != n.Spec.InstanceID+" "+x.Resource {
				wrong = append(wrong, fmt.Sprintf("%s has %s, which is assigned to %q", n.Name, a, at))
			}
			delete(assigned, a)
		}
	}
	slices.Sort(wrong)
	g.v.Check("each address in a CiliumNode is assigned to an interface of its instance", false, wrong)
	g.v.Check("each address that the cloud has assigned is in a CiliumNode", false, slices.Sorted(maps.Keys(assigned)))
	g.v.Check("no interface is left unattached", false, loose)
	return nil
}
