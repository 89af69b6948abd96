package agent

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/hawser-net/hawser/api/rest"
)

// network makes or replaces a NetworkPolicy about the pods with a label app.
func (c *kubeCluster) network(name, app string, change func(*networkingv1.NetworkPolicySpec)) {
	c.t.Helper()
	np := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}, Spec: networkingv1.NetworkPolicySpec{
		PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"app": app}},
	}}
	change(&np.Spec)
	policies := c.client.Urgent.NetworkingV1().NetworkPolicies("default")
	_, err := policies.Create(c.t.Context(), np, metav1.CreateOptions{})
	if err != nil {
		_, err = policies.Update(c.t.Context(), np, metav1.UpdateOptions{})
	}
	if err != nil {
		c.t.Fatal(err)
	}
}

func (c *kubeCluster) noNetwork(name string) {
	c.t.Helper()
	if err := c.client.Urgent.NetworkingV1().NetworkPolicies("default").Delete(c.t.Context(), name, metav1.DeleteOptions{}); err != nil {
		c.t.Fatal(err)
	}
}

// toBlock allows egress to a block of addresses only.
func toBlock(cidr string, except ...string) func(*networkingv1.NetworkPolicySpec) {
	return func(s *networkingv1.NetworkPolicySpec) {
		s.PolicyTypes = []networkingv1.PolicyType{networkingv1.PolicyTypeEgress}
		s.Egress = []networkingv1.NetworkPolicyEgressRule{{To: []networkingv1.NetworkPolicyPeer{{IPBlock: &networkingv1.IPBlock{CIDR: cidr, Except: except}}}}}
	}
}

// TestKubernetesPolicies: what NetworkPolicy objects say holds for packets between pods of one node
// and of two: by address, by label and name of a port, over a restart, and no longer than they are
// there.
func TestKubernetesPolicies(t *testing.T) {
	t.Parallel()
	c := newKubeCluster(t)
	ns1, ns2 := twoNamespaces(t)
	n1, n2 := c.node(ns1, "n1", "10.0.1.0/24", "fd00:1::/112"), c.node(ns2, "n2", "10.0.2.0/24", "fd00:2::/112")
	for _, n := range []*machineNode{n1, n2} {
		n.flags = append(n.flags, "--ipam", "kubernetes")
		n.start()
	}
	client := c.pod(n1, "client", map[string]string{"app": "client"})
	near, far := c.pod(n1, "near", map[string]string{"app": "near"}), c.pod(n2, "far", map[string]string{"app": "far"})
	for _, p := range []*machinePod{near, far} {
		for _, port := range []uint16{80, 81} {
			for _, at := range p.both(port) {
				serveEcho(t, p.ns, at)
			}
		}
	}
	// expect waits until the client reaches exactly these.
	all := slices.Concat(near.both(80), far.both(80), near.both(81), far.both(81))
	expect := func(what string, want ...netip.AddrPort) {
		t.Helper()
		var wrong []string
		for end := time.Now().Add(20 * time.Second); ; {
			wrong = nil
			for _, to := range all {
				if err := ask(t, client.ns, to, 64, false, 250*time.Millisecond); (err == nil) != slices.Contains(want, to) {
					wrong = append(wrong, fmt.Sprintf("%s: %v", to, err))
				}
			}
			if len(wrong) == 0 {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("%s: not as expected: %s", what, strings.Join(wrong, "; "))
			}
		}
	}
	single := func(a netip.Addr) string { return netip.PrefixFrom(a, a.BitLen()).String() }
	near4, near6, far4, far6 := near.both(80)[0], near.both(80)[1], far.both(80)[0], far.both(80)[1]
	near4b, far4b, far6b := near.both(81)[0], far.both(81)[0], far.both(81)[1]

	expect("without a policy", all...)
	c.network("egress", "client", toBlock(single(far.ip4)))
	expect("a block of one pod's address", far4, far4b)
	c.network("egress", "client", toBlock("10.0.0.0/8", single(far.ip4)))
	expect("a block but that address", near4, near4b)
	c.network("more", "client", func(s *networkingv1.NetworkPolicySpec) {
		toBlock(single(far.ip4))(s)
		port := intstr.FromInt32(80)
		s.Egress[0].Ports = []networkingv1.NetworkPolicyPort{{Protocol: new(corev1.ProtocolTCP), Port: &port}, {Protocol: new(corev1.ProtocolUDP), Port: &port}}
	})
	expect("what one policy excepts another allows", near4, near4b, far4)
	c.network("six", "client", toBlock("fd00:2::/112"))
	expect("both families", near4, near4b, far4, far6, far6b)

	// The same from the other side.
	c.noNetwork("egress")
	c.noNetwork("more")
	c.noNetwork("six")
	expect("without any policy again", all...)
	fromBlock := func(cidr string) func(*networkingv1.NetworkPolicySpec) {
		return func(s *networkingv1.NetworkPolicySpec) {
			s.Ingress = []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{{IPBlock: &networkingv1.IPBlock{CIDR: cidr}}}}}
		}
	}
	c.network("near", "near", fromBlock(single(client.ip6)))
	c.network("far", "far", fromBlock(single(client.ip4)))
	expect("from the client's address of one family", near6, near.both(81)[1], far4, far4b)

	// An agent that starts again finds it so, and leaves it so.
	before := n2.audit()
	n2.kill()
	n2.launch()
	n2.ready()
	expect("after a restart", near6, near.both(81)[1], far4, far4b)
	n2.sameAudit(before, "after a restart")

	// People can see why.
	files, err := n2.client.PolicyFiles(t.Context())
	i := slices.IndexFunc(files, func(f rest.PolicyFile) bool { return f.Path == "k8s/NetworkPolicy/default/far" })
	if err != nil || i < 0 || files[i].State != rest.PolicyFileStateOk || !files[i].InForce || files[i].Policies[0].Rules != 1 {
		t.Errorf("the list of policies has %+v, %v", files, err)
	}
	for from, want := range map[string]rest.PolicyVerdict{client.ip4.String(): rest.PolicyVerdictAllowed, near.ip4.String(): rest.PolicyVerdictDenied} {
		trace, err := n2.client.TracePolicy(t.Context(), rest.TracePolicyParams{From: from, To: far.ip4.String(), DPort: "80"})
		if err != nil || trace.Verdict != want || len(trace.Ingress.Steps) == 0 {
			t.Errorf("a trace from %s says %+v, %v", from, trace, err)
		}
	}
	m, err := n2.client.Map(t.Context(), "policy")
	if err != nil || !slices.ContainsFunc(m.Cache, func(e rest.BPFMapEntry) bool { return e.Policy.Block == single(client.ip4) }) {
		t.Errorf("no row of the kernel's policy shows the block: %+v, %v", m, err)
	}
	c.noNetwork("near")
	c.noNetwork("far")
	expect("without any policy at the end", all...)
	n1.stop()
	n2.stop()
}
