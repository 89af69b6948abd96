package agent

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	raw "github.com/hawser-net/hawser/api/rest"
	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/api/v2alpha1"
	"github.com/hawser-net/hawser/internal/k8s/ippools"
	"github.com/hawser-net/hawser/internal/operator/multipool"
	"github.com/hawser-net/hawser/internal/testenv"
	"github.com/hawser-net/hawser/internal/testenv/controllers"
)

// grantPools gives agents the right that the chart gives them with ipam.mode multi-pool.
func (c *kubeCluster) grantPools() {
	c.t.Helper()
	c.grant("pools", rbacv1.PolicyRule{APIGroups: []string{"cilium.io"}, Resources: []string{v2alpha1.ResourcePodIPPools}, Verbs: []string{"get", "list", "watch"}})
}

// grant gives agents a right.
func (c *kubeCluster) grant(name string, rule rbacv1.PolicyRule) {
	c.t.Helper()
	rbac := c.client.Kube.RbacV1()
	if _, err := rbac.ClusterRoles().Create(c.t.Context(), &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: []rbacv1.PolicyRule{rule}}, metav1.CreateOptions{}); err != nil {
		c.t.Fatal(err)
	}
	if _, err := rbac.ClusterRoleBindings().Create(c.t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
		Subjects: []rbacv1.Subject{{Kind: "Group", APIGroup: rbacv1.GroupName, Name: "system:serviceaccounts"}},
	}, metav1.CreateOptions{}); err != nil {
		c.t.Fatal(err)
	}
}

// runPools runs the operator's part that assigns CIDRs until the test ends, or stop is called.
func (c *kubeCluster) runPools(cfg multipool.Config) (stop func()) {
	c.t.Helper()
	return controllers.Run(c.t, c.Config, func(ctx context.Context, m manager.Manager, log *slog.Logger) error {
		return multipool.Setup(ctx, m, cfg, prometheus.NewRegistry(), log)
	})
}

// annotated makes the object of a pod with annotations.
func (c *kubeCluster) annotated(n *machineNode, name string, labels, annotations map[string]string) {
	c.t.Helper()
	if _, err := c.client.Kube.CoreV1().Pods("default").Create(c.t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", Labels: labels, Annotations: annotations},
		Spec: corev1.PodSpec{
			NodeName: n.name, ServiceAccountName: "default", Containers: []corev1.Container{{Name: "c", Image: "none"}}, AutomountServiceAccountToken: new(bool),
		},
	}, metav1.CreateOptions{}); err != nil {
		c.t.Fatal(err)
	}
}

// podWith makes it and attaches the pod.
func (c *kubeCluster) podWith(n *machineNode, name string, labels, annotations map[string]string) *machinePod {
	c.t.Helper()
	c.annotated(n, name, labels, annotations)
	return n.attached(name, nil)
}

func within(t *testing.T, p *machinePod, v4, v6 string) {
	t.Helper()
	if !netip.MustParsePrefix(v4).Contains(p.ip4) || !netip.MustParsePrefix(v6).Contains(p.ip6) {
		t.Errorf("%s has %s and %s, want addresses of %s and %s", p.name, p.ip4, p.ip6, v4, v6)
	}
}

// TestKubernetesMultiPool has pods of two nodes have addresses of two pools, which reach each other
// by policy, also from CIDRs that come later; agents and operator restart, a range is taken from a
// pool, and what is unused is handed back.
func TestKubernetesMultiPool(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"tunnel", "native"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			multiPool(t, mode)
		})
	}
}

func multiPool(t *testing.T, mode string) {
	c := newKubeCluster(t)
	c.grantPools()
	ns1, ns2 := twoNamespaces(t)
	cfg := multipool.Defaults()
	cfg.Create = "default=ipv4-cidrs:10.10.0.0/24;ipv4-mask-size:29;ipv6-cidrs:fd00:10::/112;ipv6-mask-size:125," +
		"edge=ipv4-cidrs:10.20.0.0/24;ipv4-mask-size:29;ipv6-cidrs:fd00:20::/112;ipv6-mask-size:125"
	stop := c.runPools(cfg)
	n1, n2 := c.node(ns1, "n1"), c.node(ns2, "n2")
	for _, n := range []*machineNode{n1, n2} {
		n.flags = append(n.flags, "--ipam", "multi-pool", "--ipam-multi-pool-pre-allocation", "default=2", "--routing-mode", mode)
		n.start()
	}
	edge := map[string]string{ippools.PoolAnnotation: "edge"}
	client := c.podWith(n1, "client", map[string]string{"app": "client"}, nil)
	other := c.podWith(n1, "other", map[string]string{"app": "other"}, nil)
	web := c.podWith(n2, "web", map[string]string{"app": "web"}, edge)
	within(t, client, "10.10.0.0/24", "fd00:10::/112")
	within(t, web, "10.20.0.0/24", "fd00:20::/112")
	c.policy("web", map[string]string{"app": "web"}, map[string]string{"app": "client"})
	for _, to := range web.both(80) {
		serveEcho(t, web.ns, to)
	}
	verdicts := func(when string, clients ...*machinePod) {
		t.Helper()
		for _, to := range web.both(80) {
			for _, p := range clients {
				reaches(t, when+": "+p.name, p.ns, to, 1400)
			}
			c.eventually("no other pod reaches the server, "+when, func() bool { return once(other.ns, to, 300*time.Millisecond) != nil })
		}
	}
	verdicts("at first", client)

	// More pods than a CIDR has addresses for: the node gets another one, and the other node knows
	// it.
	var more []*machinePod
	for i := range 7 {
		more = append(more, c.podWith(n1, fmt.Sprint("more-", i), map[string]string{"app": "client"}, nil))
	}
	last := more[len(more)-1]
	if cidr := netip.PrefixFrom(client.ip4, 29).Masked(); cidr.Contains(last.ip4) {
		t.Errorf("%s and %s are of one CIDR", client.ip4, last.ip4)
	}
	verdicts("from a CIDR that came later", client, last)

	// A pool that no node has.
	c.annotated(n1, "lost", nil, map[string]string{ippools.PoolAnnotation: "none"})
	if err := n1.newPod("lost", nil).add(); err == nil || !strings.Contains(err.Error(), "for which the annotation ipam.cilium.io/ip-pool asks") {
		t.Errorf("a pod that asks for a pool that does not exist: %v", err)
	}

	// The agent and the operator restart, also while the API server is away.
	before := n1.cidrs(c)
	stop()
	n1.kill()
	n1.start()
	stop = c.runPools(cfg)
	verdicts("after a restart", client, last)
	if after := n1.cidrs(c); after != before {
		t.Errorf("after a restart the node has %q, it had %q", after, before)
	}

	// Another node claims what n1 has, and its part of it.
	forged := &v2.CiliumNode{ObjectMeta: metav1.ObjectMeta{Name: "n3"}, Spec: v2.NodeSpec{Addresses: []v2.NodeAddress{{Type: "InternalIP", IP: "192.0.2.77"}}}}
	forged.Spec.IPAM.Pools.Allocated = []v2.IPAMPoolAllocation{{Pool: "default", CIDRs: []string{
		netip.PrefixFrom(client.ip4, 29).Masked().String(), netip.PrefixFrom(last.ip4, 30).Masked().String(), netip.PrefixFrom(client.ip6, 125).Masked().String(),
	}}}
	if _, err := c.ciliumNodes().Create(t.Context(), forged, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	c.eventually("the status of who claims it says whose it is", func() bool {
		n, err := c.ciliumNodes().Get(t.Context(), "n3", metav1.GetOptions{})
		return err == nil && strings.Count(n.Status.IPAM.OperatorStatus.Error, "of node n1, which had it first") == 3
	})
	c.eventually("n2 refuses the claim", func() bool {
		return strings.Contains(n2.logText(), "node n3 claims pod network")
	})
	verdicts("while another node claims its CIDRs", client, last)
	if err := c.ciliumNodes().Delete(t.Context(), "n3", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}

	// A CIDR whose range is taken from the pool stays with its pods, and is given to no pod.
	pool := &v2alpha1.CiliumPodIPPool{}
	alpha, err := c.client.For(v2alpha1.SchemeGroupVersion(), v2alpha1.AddToScheme)
	if err != nil {
		t.Fatal(err)
	}
	if err := alpha.Get().Resource(v2alpha1.ResourcePodIPPools).Name("edge").Do(t.Context()).Into(pool); err != nil {
		t.Fatal(err)
	}
	pool.Spec.IPv4.CIDRs, pool.Spec.IPv6.CIDRs = []string{"10.21.0.0/24"}, []string{"fd00:21::/112"}
	if err := alpha.Put().Resource(v2alpha1.ResourcePodIPPools).Name("edge").Body(pool).Do(t.Context()).Error(); err != nil {
		t.Fatal(err)
	}
	c.eventually("the node's status says that its CIDR is not the pool's any more", func() bool {
		n, err := c.ciliumNodes().Get(t.Context(), "n2", metav1.GetOptions{})
		return err == nil && strings.Contains(n.Status.IPAM.OperatorStatus.Error, `pool "edge" does not have `)
	})
	c.eventually("no new address of it is given", func() bool {
		st, err := n2.client.Health(t.Context(), false)
		return err == nil && strings.Contains(st.IPAM.Status, "(no new ones)")
	})
	within(t, c.podWith(n2, "late", nil, edge), "10.21.0.0/24", "fd00:21::/112")
	verdicts("after the pool has lost its range", client, last)

	// What is unused is released.
	for _, p := range append(more, web) {
		if err := p.del(); err != nil {
			t.Fatal(err)
		}
	}
	controllers.Eventually(t, 3*time.Minute, func() string {
		if has := n2.cidrs(c); strings.Contains(has, "10.20.") || strings.Contains(has, "fd00:20:") {
			return "n2 has " + has
		}
		if has := n1.cidrs(c); strings.Count(has, "10.10.") != 1 || strings.Count(has, "fd00:10:") != 1 {
			return "n1 has " + has
		}
		return ""
	})
	c.eventually("the status is well again", func() bool {
		n, err := c.ciliumNodes().Get(t.Context(), "n2", metav1.GetOptions{})
		return err == nil && n.Status.IPAM.OperatorStatus.Error == ""
	})

	// Without an API server the pods keep their addresses.
	n1.stop()
	stop()
	c.Stop()
	n1.launch()
	n1.serving(false)
	if got := client.endpoint().Status.Networking.Addressing[0].IPv4; got != client.ip4.String() {
		t.Errorf("the pod has %s after a restart without the API server, it was %s", got, client.ip4)
	}
}

// cidrs are those that the node has by its object.
func (n *machineNode) cidrs(c *kubeCluster) string {
	n.t.Helper()
	o, err := c.ciliumNodes().Get(context.Background(), n.name, metav1.GetOptions{})
	if err != nil {
		n.t.Fatal(err)
	}
	var out []string
	for _, a := range o.Spec.IPAM.Pools.Allocated {
		out = append(out, a.CIDRs...)
	}
	return strings.Join(out, " ")
}

// TestKubernetesPoolMigration has a node go from cluster-pool to multi-pool without an address
// changing.
func TestKubernetesPoolMigration(t *testing.T) {
	t.Parallel()
	c := newKubeCluster(t)
	c.grantPools()
	ns1, _ := twoNamespaces(t)
	n := c.node(ns1, "n1")
	base := append(n.flags, "--enable-ipv6=false")
	n.flags = append(base, "--ipam", "cluster-pool")
	n.launch()
	c.eventually("the node has a CIDR of cluster-pool", func() bool {
		o, err := c.ciliumNodes().Get(t.Context(), "n1", metav1.GetOptions{})
		if err != nil {
			return false
		}
		o.Spec.IPAM.PodCIDRs = []string{"10.7.3.0/24"}
		_, err = c.ciliumNodes().Update(t.Context(), o, metav1.UpdateOptions{})
		return err == nil
	})
	n.ready()
	p := c.pod(n, "p", map[string]string{"app": "p"})
	n.stop()
	n.flags = append(base, "--ipam", "multi-pool")
	n.launch() // before the operator: the pod's node must not wait for it
	n.serving(false)
	cfg := multipool.Defaults()
	cfg.Create, cfg.Migrate = "default=ipv4-cidrs:10.7.0.0/16;ipv4-mask-size:24", true
	c.runPools(cfg)
	c.eventually("the node's CIDR is one of the default pool", func() bool {
		o, err := c.ciliumNodes().Get(t.Context(), "n1", metav1.GetOptions{})
		return err == nil && len(o.Spec.IPAM.PodCIDRs) == 0 && n.cidrs(c) == "10.7.3.0/24" && o.Status.IPAM.OperatorStatus.Error == ""
	})
	if got := p.endpoint().Status.Networking.Addressing[0].IPv4; got != p.ip4.String() {
		t.Errorf("the pod has %s, it was %s", got, p.ip4)
	}
	if q := c.pod(n, "q", nil); !netip.MustParsePrefix("10.7.3.0/24").Contains(q.ip4) {
		t.Errorf("a new pod has %s", q.ip4)
	}
}

// TestKubernetesPoolChoice: pools that select pods, one with a single family, one whose pods are
// not masqueraded, and pods that must be meant by a pool.
func TestKubernetesPoolChoice(t *testing.T) {
	t.Parallel()
	c := newKubeCluster(t)
	c.grantPools()
	ns, outside := testenv.NewNetNS(t), testenv.NewNetNS(t)
	testenv.Connect(t, ns, "eth0", []string{node4 + "/24", node6 + "/64"}, outside, "eth0", []string{outside4 + "/24", outside6 + "/64"})
	for _, r := range [][2]string{{"10.31.0.0/24", node4}, {"fd00:31::/112", node6}} {
		outside.Must(t, func() error { return run("ip", "route", "add", r[0], "via", r[1]) })
	}
	pools, err := c.client.For(v2alpha1.SchemeGroupVersion(), v2alpha1.AddToScheme)
	if err != nil {
		t.Fatal(err)
	}
	pool := func(name, v4, v6 string, change func(*v2alpha1.CiliumPodIPPool)) {
		t.Helper()
		o := &v2alpha1.CiliumPodIPPool{ObjectMeta: metav1.ObjectMeta{Name: name}}
		o.Spec.IPv4 = &v2alpha1.IPv4PoolSpec{CIDRs: []string{v4}, MaskSize: 28}
		if v6 != "" {
			o.Spec.IPv6 = &v2alpha1.IPv6PoolSpec{CIDRs: []string{v6}, MaskSize: 124}
		}
		if change != nil {
			change(o)
		}
		if err := pools.Post().Resource(v2alpha1.ResourcePodIPPools).Body(o).Do(t.Context()).Error(); err != nil {
			t.Fatal(err)
		}
	}
	selecting := func(app v2.LabelValue) *v2.LabelSelector {
		return &v2.LabelSelector{MatchLabels: map[string]v2.LabelValue{"app": app}}
	}
	pool("default", "10.30.0.0/24", "fd00:30::/112", nil)
	pool("plain", "10.31.0.0/24", "fd00:31::/112", func(o *v2alpha1.CiliumPodIPPool) {
		o.Annotations = map[string]string{ippools.SkipMasqueradeAnnotation: "true"}
		o.Spec.PodSelector = selecting("plain")
	})
	pool("four", "10.32.0.0/24", "", func(o *v2alpha1.CiliumPodIPPool) { o.Spec.PodSelector = selecting("four") })
	c.runPools(multipool.Defaults())
	n := c.node(ns, "n1")
	n.flags = append(n.flags, "--ipam", "multi-pool")
	n.start()

	normal := c.podWith(n, "normal", map[string]string{"app": "normal"}, nil)
	within(t, normal, "10.30.0.0/24", "fd00:30::/112")
	if got := seenFrom(t, normal.ns, outside); got != [2]string{node4, node6} {
		t.Errorf("a pod of the default pool is seen as %v, want the node", got)
	}
	plain := c.podWith(n, "plain", map[string]string{"app": "plain"}, nil)
	within(t, plain, "10.31.0.0/24", "fd00:31::/112")
	if got := seenFrom(t, plain.ns, outside); got != [2]string{plain.ip4.String(), plain.ip6.String()} {
		t.Errorf("a pod of a pool without masquerading is seen as %v", got)
	}
	within(t, c.podWith(n, "four", map[string]string{"app": "four"}, map[string]string{ippools.RequireAnnotation: "false"}), "10.32.0.0/24", "fd00:30::/112")
	refused := func(name, want string, annotations map[string]string) {
		t.Helper()
		c.annotated(n, name, nil, annotations)
		if err := n.newPod(name, nil).add(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want %s", name, err, want)
		}
	}
	refused("unmet", "no pool of addresses is meant for the pod", map[string]string{ippools.RequireAnnotation: "true"})
	if code, body := n.call("POST", "/ipam?owner=default/unmet", ""); code != 502 || !strings.Contains(body, "no pool of addresses is meant for the pod") {
		t.Errorf("an address for a pod that must be meant by a pool: %d %s", code, body)
	}
	refused("half", "CiliumPodIPPool four has no IPv6 range", map[string]string{ippools.PoolAnnotation: "four"})

	// Addresses that were requested in the name of another pod are not this pod's.
	got, err := n.client.AllocateIP(t.Context(), raw.AllocateIPParams{Owner: "default/other", Pool: "plain"})
	if err != nil {
		t.Fatal(err)
	}
	c.annotated(n, "thief", nil, nil)
	code, body := n.call("PUT", "/endpoint/cilium-local:0", jsonOf(t, map[string]any{
		"container-id": "thief-1", "interface-name": "eth0", "interface-index": 1, "mac": "02:00:00:00:00:01", "host-mac": "02:00:00:00:00:02", "container-interface-name": "eth0",
		"k8s-namespace": "default", "k8s-pod-name": "thief", "addressing": map[string]any{"ipv4": got.Address.IPv4}, "state": "waiting-for-identity",
	}), "Content-Type", "application/json")
	if code != 409 || !strings.Contains(body, `of pool \"plain\"`) {
		t.Errorf("an endpoint with an address of another pool: %d %s", code, body)
	}
}

// policy lets a server be reached by one kind of pods only.
func (c *kubeCluster) policy(name string, selects, from map[string]string) {
	c.t.Helper()
	match := func(m map[string]string) map[string]any { return map[string]any{"matchLabels": m} }
	alpha, err := c.client.For(v2.SchemeGroupVersion(), v2.AddToScheme)
	if err != nil {
		c.t.Fatal(err)
	}
	if err := alpha.Post().Namespace("default").Resource(v2.ResourceNetworkPolicies).Body([]byte(jsonOf(c.t, map[string]any{
		"apiVersion": "cilium.io/v2", "kind": "CiliumNetworkPolicy", "metadata": map[string]any{"name": name},
		"spec": map[string]any{"endpointSelector": match(selects), "ingress": []any{map[string]any{"fromEndpoints": []any{match(from)}}}},
	}))).Do(c.t.Context()).Error(); err != nil {
		c.t.Fatal(err)
	}
}
