package agent

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-net/hawser/api/rest"
)

// TestFullServices: a service with more frontends than the kernel has room for keeps no agent that
// starts from being in sync, and no policy from being in force for the former pods.
func TestFullServices(t *testing.T) {
	t.Parallel()
	c := newKubeCluster(t)
	ns, _ := twoNamespaces(t)
	n := c.node(ns, "n1", "10.0.1.0/24", "fd00:1::/112")
	n.flags = append(n.flags, "--ipam", "kubernetes", "--bpf-lb-map-max", "32")
	n.start()
	web, client := c.pod(n, "web", map[string]string{"app": "web"}), c.pod(n, "client", map[string]string{"app": "client"})
	to := web.both(80)[0]
	serveEcho(t, web.ns, to)
	c.passing("without a policy", client, to)
	flood := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "flood", Namespace: "default"}}
	for i := range 16 {
		flood.Spec.ExternalIPs = append(flood.Spec.ExternalIPs, fmt.Sprintf("198.51.100.%d", i+1))
		flood.Spec.Ports = append(flood.Spec.Ports, corev1.ServicePort{Name: fmt.Sprintf("p%d", i), Port: int32(1000 + i)})
	}
	if _, err := c.client.Kube.CoreV1().Services("default").Create(t.Context(), flood, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	c.eventually("the map is full", func() bool { return strings.Contains(n.logText(), "kernel map is full") })
	n.kill()
	n.start()
	c.network("web", "web", fromApp("none"))
	c.eventually("a policy of after the restart", func() bool { return once(client.ns, to, impatient) != nil })
	c.eventually("the status says what is missing", func() bool {
		st, err := n.client.Health(t.Context(), false)
		return err == nil && slices.ContainsFunc(st.Parts, func(p rest.PartStatus) bool {
			return p.Name == "services" && p.State == rest.StateWarning && strings.Contains(p.Msg, "--bpf-lb-map-max")
		})
	})
	n.stop()
}
