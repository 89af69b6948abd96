package agent

import (
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-net/hawser/internal/k8s/pods"
	"github.com/hawser-net/hawser/pkg/kvstore/kvstoretest"
)

// gate returns the condition of a pod's readiness gate, "" if it has none.
func (c *kubeCluster) gate(name string) corev1.ConditionStatus {
	c.t.Helper()
	o, err := c.client.Kube.CoreV1().Pods("default").Get(c.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	for _, cond := range o.Status.Conditions {
		if cond.Type == pods.ReadinessGate {
			return cond.Status
		}
	}
	return ""
}

// allowGates gives agents the right to write readiness gates, as the chart does with strict
// readiness.
func (c *kubeCluster) allowGates() {
	c.t.Helper()
	role, err := c.client.Kube.RbacV1().ClusterRoles().Get(c.t.Context(), "hawser-agent", metav1.GetOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	role.Rules = append(role.Rules, rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"pods/status"}, Verbs: []string{"patch"}})
	if _, err := c.client.Kube.RbacV1().ClusterRoles().Update(c.t.Context(), role, metav1.UpdateOptions{}); err != nil {
		c.t.Fatal(err)
	}
}

// gated makes a pod with the readiness gate and attaches it.
func (c *kubeCluster) gated(n *machineNode, name string, labels map[string]string) *machinePod {
	c.t.Helper()
	if _, err := c.client.Kube.CoreV1().Pods("default").Create(c.t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
		Spec: corev1.PodSpec{
			NodeName: n.name, Containers: []corev1.Container{{Name: "c", Image: "none"}}, AutomountServiceAccountToken: new(bool),
			ReadinessGates: []corev1.PodReadinessGate{{ConditionType: pods.ReadinessGate}},
		},
	}, metav1.CreateOptions{}); err != nil {
		c.t.Fatal(err)
	}
	return n.attached(name, nil)
}

// gateHistory follows the condition of a pod's readiness gate from now on. What it returns reports
// the states so far.
func (c *kubeCluster) gateHistory(pod string) func() []corev1.ConditionStatus {
	c.t.Helper()
	w, err := c.client.Kube.CoreV1().Pods("default").Watch(c.t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=" + pod})
	if err != nil {
		c.t.Fatal(err)
	}
	var mu sync.Mutex
	var seen []corev1.ConditionStatus
	var wg sync.WaitGroup
	c.t.Cleanup(func() { w.Stop(); wg.Wait() })
	wg.Go(func() {
		for ev := range w.ResultChan() {
			o, ok := ev.Object.(*corev1.Pod)
			if !ok {
				continue
			}
			for _, cond := range o.Status.Conditions {
				if cond.Type == pods.ReadinessGate {
					mu.Lock()
					seen = append(seen, cond.Status)
					mu.Unlock()
				}
			}
		}
	})
	return func() []corev1.ConditionStatus {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(seen)
	}
}

// TestPodReadinessWithStore is "Loose and Strict modes for pod readiness" of CFP-27752 where the
// nodes observe each other's pods by a key-value store: what objects say of a pod, or that there
// are none, does not matter. A gate stays closed while the store does not know the pod, however
// much Kubernetes knows.
func TestPodReadinessWithStore(t *testing.T) {
	t.Parallel()
	for name, flags := range map[string][]string{
		"identities are objects":   {"--identity-allocation-mode", "crd"},
		"identities are keys":      {"--identity-allocation-mode", "kvstore"},
		"no objects of endpoints":  {"--identity-allocation-mode", "kvstore", "--disable-endpoint-crd"},
		"the operator makes them":  {"--identity-allocation-mode", "kvstore", "--disable-endpoint-crd", "--operator-manage-cid"},
		"slices without endpoints": {"--identity-allocation-mode", "kvstore", "--disable-endpoint-crd", "--enable-cilium-endpoint-slice"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newKubeCluster(t)
			store := kvstoretest.StartEtcd(t)
			ns, _ := twoNamespaces(t)
			n := c.node(ns, "n1", "10.0.1.0/24", "fd00:1::/112")
			c.allowGates()
			n.flags = append(n.flags, "--ipam", "kubernetes", "--pod-readiness", "strict", "--kvstore", "etcd", "--kvstore-opt", "etcd.address="+store.Endpoint())
			n.flags = append(n.flags, flags...)
			n.start()
			assign := func(*machinePod) {}
			if slices.Contains(flags, "--operator-manage-cid") {
				file := n.path("root.yaml")
				if err := os.WriteFile(file, []byte("endpoints: ['"+store.Endpoint()+"']\n"), 0o600); err != nil {
					t.Fatal(err)
				}
				operator := newKeyMaker(t, file)
				assign = func(p *machinePod) { operator.make(p) }
			}
			open := func(name string) func() bool {
				return func() bool { return c.gate(name) == corev1.ConditionTrue }
			}
			closed := func(when, name string) {
				t.Helper()
				for end := time.Now().Add(time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
					if open(name)() {
						t.Fatalf("%s: the gate of %s is open, and no other node knows it", when, name)
					}
				}
			}
			web := c.gated(n, "web", map[string]string{"app": "web"})
			if slices.Contains(flags, "--operator-manage-cid") {
				closed("no identity", "web")
				assign(web)
			}
			c.eventually("the gate is open", open("web"))

			store.Stop()
			late := c.gated(n, "late", map[string]string{"app": "web"}) // an ID that is known
			if !slices.Contains(flags, "--disable-endpoint-crd") {
				c.eventually("Kubernetes knows the pod", func() bool { return c.publishedID(late) > 0 })
			}
			closed("the store is away", "late")
			store.Start()
			c.eventually("the gate is open when the store is back", open("late"))
			if !open("web")() {
				t.Error("the gate of the pod that was there is closed")
			}

			// A restart closes no gate, not for a moment either.
			history := c.gateHistory("web")
			n.kill()
			n.start()
			after := c.gated(n, "after", map[string]string{"app": "web"})
			c.eventually("the agent looks after gates again", open(after.name))
			if h := history(); slices.Contains(h, corev1.ConditionFalse) {
				t.Errorf("the gate of a pod that all know was %v over a restart", h)
			}

			// Another sandbox, with other addresses, which the store does not have.
			store.Stop()
			if err := web.del(); err != nil {
				t.Fatal(err)
			}
			web.renew()
			if err := web.add(); err != nil {
				t.Fatal(err)
			}
			c.eventually("the gate is closed for a sandbox that no node knows", func() bool { return c.gate("web") == corev1.ConditionFalse })
			store.Start()
			c.eventually("the gate is open for it", open("web"))
			n.stop()
		})
	}
}

// TestPodReadiness is the sections "Pod ready status" (option 2) and "Loose and Strict modes for
// pod readiness" of CFP-27752, with the rights of the chart.
func TestPodReadiness(t *testing.T) {
	t.Parallel()
	c := newKubeCluster(t)
	c.readOnlyIdentities()
	ns1, ns2 := twoNamespaces(t)
	n1, n2 := c.node(ns1, "n1", "10.0.1.0/24", "fd00:1::/112"), c.node(ns2, "n2", "10.0.2.0/24", "fd00:2::/112")
	n1.flags = append(n1.flags, "--ipam", "kubernetes", "--operator-manage-cid", "--pod-readiness", "strict")
	n2.flags = append(n2.flags, "--ipam", "kubernetes", "--operator-manage-cid")
	n1.start()
	n2.start()
	object := func(n *machineNode, name string, gated bool) *machinePod {
		o := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": "web"}},
			Spec:       corev1.PodSpec{NodeName: n.name, Containers: []corev1.Container{{Name: "c", Image: "none"}}, AutomountServiceAccountToken: new(bool)},
		}
		if gated {
			o.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: "other.example/gate"}, {ConditionType: pods.ReadinessGate}}
		}
		if _, err := c.client.Kube.CoreV1().Pods("default").Create(t.Context(), o, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		return n.attached(name, nil)
	}
	gated, plain, loose := object(n1, "gated", true), object(n1, "plain", false), object(n2, "loose", true)
	c.eventually("the objects of the pods", func() bool {
		return c.publishedID(gated) == 0 && c.publishedID(plain) == 0 && c.publishedID(loose) == 0
	})
	time.Sleep(300 * time.Millisecond)
	if status := c.gate("gated"); status == corev1.ConditionTrue {
		t.Error("the gate is open although no node knows the pod's identity")
	}
	c.assign(gated, 4001, false)
	// Without the right to it nothing is written, and it is tried again.
	c.eventually("the object names the identity", func() bool { return c.publishedID(gated) == 4001 })
	c.allowGates()
	c.eventually("the gate is open", func() bool { return c.gate("gated") == corev1.ConditionTrue })
	c.eventually("the loose one's object", func() bool { return c.publishedID(loose) == 4001 })

	// Other labels: the others know the pod as before, so it stays ready.
	c.labelPod("gated", "tier", "gold")
	c.eventually("a temporary identity", func() bool { return gated.endpoint().Status.Identity.Temporary })
	time.Sleep(300 * time.Millisecond)
	if status := c.gate("gated"); status != corev1.ConditionTrue {
		t.Errorf("the gate is %q after a change of labels", status)
	}
	c.assign(gated, 4002, true)
	c.eventually("the new identity", gated.has(4002))

	// A client closes it; the agent restarts; the sandbox is made anew.
	closed := []byte(`{"status":{"conditions":[{"type":"` + string(pods.ReadinessGate) + `","status":"False"}]}}`)
	if _, err := c.client.Kube.CoreV1().Pods("default").Patch(t.Context(), "gated", "application/strategic-merge-patch+json", closed, metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
	c.eventually("the gate is open again", func() bool { return c.gate("gated") == corev1.ConditionTrue })
	history := c.gateHistory("gated")
	n1.kill()
	n1.launch()
	n1.ready()
	// A gate that opens after the restart shows that gates are looked after again.
	second := c.gated(n1, "second", map[string]string{"app": "web"})
	c.eventually("the gate of another pod is open", func() bool { return c.gate(second.name) == corev1.ConditionTrue })
	if h := history(); slices.Contains(h, corev1.ConditionFalse) {
		t.Errorf("the gate of a pod that all know was %v over a restart", h)
	}
	if err := gated.del(); err != nil {
		t.Fatal(err)
	}
	gated.renew()
	if err := gated.add(); err != nil {
		t.Fatal(err)
	}
	c.eventually("the gate is open for the new sandbox", func() bool { return c.gate("gated") == corev1.ConditionTrue })
	for _, name := range []string{"plain", "loose"} {
		if status := c.gate(name); status != "" {
			t.Errorf("%s has the condition %s", name, status)
		}
	}
	n1.stop()
	n2.stop()
}
