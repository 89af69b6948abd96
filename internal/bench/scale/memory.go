package scale

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/bench/child"
	"github.com/hawser-net/hawser/internal/bench/scale/report"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/k8s/identities"
	"github.com/hawser-net/hawser/internal/k8s/nodes"
	"github.com/hawser-net/hawser/internal/labels"
	"github.com/hawser-net/hawser/pkg/retry"
)

// podsAnIdentity is how many pods have the same labels in a cluster that is filled without agents,
// podsANode how many are on a node.
const podsAnIdentity, podsANode = 50, 100

// memory is scenario (d): what operator and agent need.
func (r *runner) memory(ctx context.Context, s *report.Scenario) (err error) {
	s.Text = fmt.Sprintf("A cluster grows to %v pods, %d on a node and %d with the same labels, and is left alone at each size. One operator and one agent, the programs "+
		"that are installed, observe all of it. At the last size both are started anew.", r.cfg.Sizes, podsANode, podsAnIdentity)
	s.Shared = "Nothing is shared. The agent has a namespace of its own, with a link that leads nowhere, and the kernel's programs and maps; the other nodes have no agents: " +
		"the harness writes their Nodes, CiliumNodes, Pods, identities and endpoints. Memory is what is resident (VmRSS); the kernel's maps are not part of it."
	s.Limits = []string{
		"operator: it keeps every Pod and every CiliumEndpoint in its caches, less what it does not need of them",
		"agent: an entry of its address cache a pod, and the revision of every object that it follows",
		"what is resident grows in steps and includes what the last collection has not returned: the difference between two sizes says more than either",
	}
	c, err := r.newCluster(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	g := &growing{r: r, c: c, namespaces: map[string]bool{}}
	if g.agent, err = c.newRealAgent(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, g.agent.close()) }()
	if g.operator, err = c.startOperator(r.cfg.leaseFlags()...); err != nil {
		return err
	}
	if _, err := c.awaitLeader(ctx, ""); err != nil {
		return err
	}
	if err := errors.Join(g.agent.start(), g.marker(ctx)); err != nil {
		return err
	}
	lines := []report.Line{{Name: "operator"}, {Name: "agent"}, {Name: "kube-apiserver"}}
	var before, now report.Variant
	for _, size := range append([]int{0}, r.cfg.Sizes...) {
		before = now
		now = report.Variant{Name: fmt.Sprintf("%d pods", size)}
		if err := g.to(ctx, size, &now); err != nil {
			return err
		}
		for i, name := range []string{"operator", "agent", "kube-apiserver"} {
			lines[i].Points = append(lines[i].Points, report.Point{X: float64(size), Y: now.Value(name + ", memory")})
		}
		if size > 0 {
			grown := float64(size - g.last)
			for _, name := range []string{"operator", "agent"} {
				const mib = 1 << 20
				now.Figure(name+", memory a pod more", (now.Value(name+", memory")-before.Value(name+", memory"))*mib/grown, "bytes", "")
			}
		}
		g.last = size
		s.Variants = append(s.Variants, now)
	}
	s.Plots = append(s.Plots, report.Plot{File: "memory.svg", Title: "Memory", X: "pods", Y: "MiB resident", Lines: lines})
	return g.restart(ctx, &s.Variants[len(s.Variants)-1])
}

// growing is one run of the scenario.
type growing struct {
	r          *runner
	c          *cluster
	agent      *realAgent
	operator   *child.Process
	last       int
	markers    int
	at         netip.Addr // the last marker's
	namespaces map[string]bool
}

// place says where the n-th pod is and what it is called.
func place(n int) (namespace, name string, node int, ip netip.Addr, app int) {
	node, app = n/podsANode, n/podsAnIdentity
	return fmt.Sprintf("ns-%02d", app%20), fmt.Sprintf("app-%05d-6d4cf56db6-%06d", app, n), node, podOf(node, 1+n%podsANode), app
}

// marker writes one more pod, after everything else, and waits until the agent has observed it: so
// it has observed all before, in their order.
func (g *growing) marker(ctx context.Context) error {
	g.markers++
	const ns = "marker"
	if err := g.c.namespace(ctx, ns, nil); err != nil {
		return err
	}
	ip := podOf(realNode-1, g.markers)
	set, err := g.set(ns, -1)
	if err != nil {
		return err
	}
	id := identity.ID(firstNumber)
	if g.markers == 1 {
		if err := g.identity(ctx, id, set); err != nil {
			return err
		}
	}
	pod, err := g.c.pod(ctx, ns, fmt.Sprintf("marker-%d", g.markers), nodeOf(realNode-1), appLabels(-1))
	if err != nil {
		return err
	}
	if err := g.c.endpoint(ctx, ns, pod.Name, pod.UID, hostOf(realNode-1), ip, id, set); err != nil {
		return err
	}
	g.at = ip
	return g.agent.knows(ctx, ip.String(), g.r.cfg.Timeout)
}

func appLabels(app int) map[string]string {
	return map[string]string{"app": fmt.Sprintf("app-%05d", app), "app.kubernetes.io/name": "shop", "app.kubernetes.io/component": "web"}
}

func (g *growing) set(namespace string, app int) (labels.Set, error) {
	all, err := labels.PodLabels(labels.Pod{
		Namespace: namespace, ServiceAccount: "default", Cluster: clusterName, Labels: appLabels(app),
		NamespaceLabels: map[string]string{"kubernetes.io/metadata.name": namespace},
	})
	set, _ := g.r.filter.Split(all)
	return set, err
}

func (g *growing) identity(ctx context.Context, id identity.ID, set labels.Set) error {
	return g.c.client.UrgentV2.Post().Resource(v2.ResourceIdentities).
		Body(&v2.CiliumIdentity{ObjectMeta: metav1.ObjectMeta{Name: id.String()}, SecurityLabels: identities.Key{Set: set}.GetAsMap()}).Do(ctx).Error()
}

// grow writes what a cluster of size pods has, beyond those that are there.
func (g *growing) grow(ctx context.Context, size int) error {
	from := g.last
	for n := from; n < size; n += podsAnIdentity {
		if ns, _, _, _, _ := place(n); !g.namespaces[ns] {
			g.namespaces[ns] = true
			if err := g.c.namespace(ctx, ns, nil); err != nil {
				return err
			}
		}
	}
	nodes := func(pods int) int { return (pods + podsANode - 1) / podsANode }
	apps := func(pods int) int { return (pods + podsAnIdentity - 1) / podsAnIdentity }
	if err := each(ctx, nodes(size)-nodes(from), func(ctx context.Context, i int) error { return g.c.node(ctx, nodes(from)+i) }); err != nil {
		return err
	}
	if err := each(ctx, apps(size)-apps(from), func(ctx context.Context, i int) error {
		app := apps(from) + i
		ns, _, _, _, _ := place(app * podsAnIdentity)
		set, err := g.set(ns, app)
		if err != nil {
			return err
		}
		return g.identity(ctx, firstNumber+1+identity.ID(app), set)
	}); err != nil {
		return err
	}
	return each(ctx, size-from, func(ctx context.Context, i int) error {
		ns, name, node, ip, app := place(from + i)
		set, err := g.set(ns, app)
		if err != nil {
			return err
		}
		pod, err := g.c.pod(ctx, ns, name, nodeOf(node), appLabels(app))
		if err != nil {
			return err
		}
		if i%1000 == 0 {
			g.r.progress(from+i, size, "pods")
		}
		return g.c.endpoint(ctx, ns, name, pod.UID, hostOf(node), ip, firstNumber+1+identity.ID(app), set)
	})
}

// node writes a node as its kubelet, its controller manager and its agent do.
func (c *cluster) node(ctx context.Context, n int) error {
	cidr := netip.PrefixFrom(podOf(n, 0), 24).String()
	node, err := c.client.Urgent.CoreV1().Nodes().Create(ctx, &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: nodeOf(n)}, Spec: corev1.NodeSpec{PodCIDR: cidr, PodCIDRs: []string{cidr}},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	return c.client.UrgentV2.Post().Resource(v2.ResourceNodes).Body(&v2.CiliumNode{
		ObjectMeta: metav1.ObjectMeta{
			Name: node.Name, OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}},
			Annotations: map[string]string{nodes.LabelFilterAnnotation: c.r.filter.Fingerprint()},
		},
		Spec: v2.NodeSpec{Addresses: []v2.NodeAddress{{Type: "InternalIP", IP: hostOf(n).String()}}, IPAM: v2.IPAMSpec{PodCIDRs: []string{cidr}}},
	}).Do(ctx).Error()
}

// to scales the cluster to a size and measures.
func (g *growing) to(ctx context.Context, size int, v *report.Variant) error {
	g.r.say("  %d pods", size)
	operator, err := g.operator.Usage()
	if err != nil {
		return err
	}
	agent, err := g.agent.proc.Usage()
	if err != nil {
		return err
	}
	if err := errors.Join(g.grow(ctx, size), g.marker(ctx)); err != nil {
		return err
	}
	return g.measure(ctx, v, operator, agent, float64(size-g.last))
}

// measure lets everything come to rest and notes what is used, and what was since two looks.
func (g *growing) measure(ctx context.Context, v *report.Variant, operator, agent child.Use, pods float64) error {
	g.rest(ctx)
	var rested []child.Use
	for _, p := range []*child.Process{g.operator, g.agent.proc, g.c.api} {
		u, err := p.Usage()
		if err != nil {
			return errors.Join(err, fmt.Errorf("%s: %s", p.Name, p.Tail()))
		}
		rested = append(rested, u)
	}
	g.rest(ctx)
	const mib = 1 << 20
	for i, p := range []struct {
		name string
		proc *child.Process
		was  child.Use
	}{{"operator", g.operator, operator}, {"agent", g.agent.proc, agent}, {"kube-apiserver", g.c.api, child.Use{}}} {
		u, err := p.proc.Usage()
		if err != nil {
			return err
		}
		v.Figure(p.name+", memory", float64(u.Memory)/mib, "MiB", "")
		v.Figure(p.name+", memory at most so far", float64(u.Peak)/mib, "MiB", "")
		if p.proc == g.c.api {
			continue
		}
		if pods > 0 {
			v.Figure(p.name+", processor time a pod more", (rested[i].CPU-p.was.CPU).Seconds()*1e6/pods, "µs", "")
		}
		v.Figure(p.name+", processors at rest", (u.CPU-rested[i].CPU).Seconds()/g.r.cfg.Quiet.Seconds(), "", "")
	}
	return nil
}

// rest waits for a quiet time.
func (g *growing) rest(ctx context.Context) {
	retry.Sleep(ctx, g.r.cfg.Quiet)
}

// restart restarts the programs at the size that was reached.
func (g *growing) restart(ctx context.Context, v *report.Variant) error {
	g.r.say("  both restarted")
	if err := errors.Join(g.agent.proc.Stop(20*time.Second), g.operator.Stop(20*time.Second)); err != nil {
		return err
	}
	began := time.Now()
	if err := g.agent.start(); err != nil {
		return err
	}
	if err := g.agent.knows(ctx, g.at.String(), g.r.cfg.Timeout); err != nil {
		return err
	}
	v.Figure("agent, started anew: knows all pods after", time.Since(began).Seconds(), "s", "")
	began = time.Now()
	var err error
	if g.operator, err = g.c.startOperator(g.r.cfg.leaseFlags()...); err != nil {
		return err
	}
	if _, err := g.c.awaitLeader(ctx, ""); err != nil {
		return err
	}
	v.Figure("operator, started anew: leads after", time.Since(began).Seconds(), "s", "")
	g.rest(ctx)
	g.rest(ctx)
	const mib = 1 << 20
	for name, p := range map[string]*child.Process{"operator": g.operator, "agent": g.agent.proc} {
		u, err := p.Usage()
		if err != nil {
			return errors.Join(err, fmt.Errorf("%s: %s", p.Name, p.Tail()))
		}
		v.Figure(name+", started anew: memory", float64(u.Memory)/mib, "MiB", "")
		v.Figure(name+", started anew: memory at most", float64(u.Peak)/mib, "MiB", "")
		v.Figure(name+", started anew: processor time", u.CPU.Seconds(), "s", "")
	}
	return nil
}
