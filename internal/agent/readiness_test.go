package agent

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-net/hawser/internal/k8s/pods"
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

// TestPodReadiness is the sections "Pod ready status" (option 2) and "Loose and Strict modes for pod readiness" of CFP-27752, with the rights of the chart.
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
	c.eventually("the objects of the pods", func() bool { return c.told(gated) == 0 && c.told(plain) == 0 && c.told(loose) == 0 })
	time.Sleep(300 * time.Millisecond)
	if status := c.gate("gated"); status == corev1.ConditionTrue {
		t.Error("the gate is open although nobody knows the pod's identity")
	}
	c.assign(gated, 4001, false)
	// Without the right to it nothing is written, and it is tried again.
	c.eventually("the object names the identity", func() bool { return c.told(gated) == 4001 })
	role, err := c.client.Kube.RbacV1().ClusterRoles().Get(t.Context(), "hawser-agent", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	role.Rules = append(role.Rules, rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"pods/status"}, Verbs: []string{"patch"}})
	if _, err := c.client.Kube.RbacV1().ClusterRoles().Update(t.Context(), role, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	c.eventually("the gate is open", func() bool { return c.gate("gated") == corev1.ConditionTrue })
	c.eventually("the loose one's object", func() bool { return c.told(loose) == 4001 })

	// Other labels: the others know the pod as before, so it stays ready.
	c.labelPod("gated", "tier", "gold")
	c.eventually("a temporary identity", func() bool { return gated.endpoint().Status.Identity.Temporary })
	time.Sleep(300 * time.Millisecond)
	if status := c.gate("gated"); status != corev1.ConditionTrue {
		t.Errorf("the gate is %q after a change of labels", status)
	}
	c.assign(gated, 4002, true)
	c.eventually("the new identity", gated.has(4002))

	// Somebody closes it; the agent restarts; the sandbox is made anew.
	closed := []byte(`{"status":{"conditions":[{"type":"` + string(pods.ReadinessGate) + `","status":"False"}]}}`)
	if _, err := c.client.Kube.CoreV1().Pods("default").Patch(t.Context(), "gated", "application/strategic-merge-patch+json", closed, metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
	c.eventually("the gate is open again", func() bool { return c.gate("gated") == corev1.ConditionTrue })
	n1.kill()
	n1.launch()
	n1.ready()
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
