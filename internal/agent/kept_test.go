package agent

import (
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-net/hawser/internal/testenv/controllers"
)

// TestKnownSinceCreation: how soon a node knows a pod of another one is counted from when the pod
// was created, however late its network is asked for; and not again when its object is made anew.
func TestKnownSinceCreation(t *testing.T) {
	t.Parallel()
	c := newKubeCluster(t)
	ns1, ns2 := twoNamespaces(t)
	n1, n2 := c.node(ns1, "n1", "10.0.1.0/24", "fd00:1::/112"), c.node(ns2, "n2", "10.0.2.0/24", "fd00:2::/112")
	for _, n := range []*machineNode{n1, n2} {
		n.flags = append(n.flags, "--ipam", "kubernetes", "--prometheus-serve-addr", "127.0.0.1:9962")
		n.start()
	}
	const name, late = "cilium_remote_endpoint_known_seconds", 5 * time.Second
	counted := func(pods float64) {
		t.Helper()
		controllers.Eventually(t, 2*time.Minute, func() string {
			if n := n2.metric(name + "_count"); n < pods {
				return fmt.Sprintf("n2 counts %v pods", n)
			}
			return ""
		})
		if n := n2.metric(name + "_count"); n != pods {
			t.Errorf("n2 counts %v pods, want %v", n, pods)
		}
	}
	created := time.Now()
	c.object(n1, "slow", map[string]string{"app": "web"})
	time.Sleep(late) // this is what is measured
	n1.attached("slow", nil)
	counted(1)
	took := time.Since(created) + time.Second
	if sum := n2.metric(name + "_sum"); sum < late.Seconds() || sum > took.Seconds() {
		t.Errorf("it took %v s; want %v to %v", sum, late, took)
	}
	before, err := c.endpoints().Get(t.Context(), "slow", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.endpoints().Delete(t.Context(), "slow", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c.eventually("the object is there again", func() bool {
		o, err := c.endpoints().Get(t.Context(), "slow", metav1.GetOptions{})
		return err == nil && o.UID != before.UID && o.Status.Identity != nil
	})
	c.pod(n1, "another", map[string]string{"app": "web"}) // is observed later
	counted(2)
}
