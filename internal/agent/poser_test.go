package agent

import (
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestPodNamesAnotherUID: a pod whose annotation names another one's UID, as those of static pods
// do, keeps no node from learning what that one is.
func TestPodNamesAnotherUID(t *testing.T) {
	t.Parallel()
	c := newKubeCluster(t)
	ns, _ := twoNamespaces(t)
	n := c.node(ns, "n1", "10.0.1.0/24", "fd00:1::/112")
	n.flags = append(n.flags, "--ipam", "kubernetes")
	n.start()
	victim := c.pod(n, "victim", map[string]string{"app": "friend"})
	c.eventually("the victim's object", func() bool { return c.publishedID(victim) > 0 })
	o, err := c.client.Kube.CoreV1().Pods("default").Get(t.Context(), "victim", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	evil := c.podWith(n, "evil", map[string]string{"app": "evil"}, map[string]string{"kubernetes.io/config.hash": string(o.UID)})
	c.labelPod("evil", "tier", "gold") // it is looked at once more
	c.eventually("the other's labels", func() bool { return slices.Contains(evil.endpoint().Status.Identity.Labels, "k8s:tier=gold") })
	c.labelPod("victim", "app", "denied")
	c.eventually("other nodes learn the victim's new labels", func() bool {
		o, err := c.endpoints().Get(t.Context(), "victim", metav1.GetOptions{})
		return err == nil && o.Status.Identity != nil && slices.Contains(o.Status.Identity.Labels, "k8s:app=denied")
	})
	n.stop()
}
