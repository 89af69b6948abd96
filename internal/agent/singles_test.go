package agent

import (
	"fmt"
	"strings"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/testenv"
)

// give writes addresses into a node's object, as whoever looks after them does.
func (c *kubeCluster) give(name string, ips ...string) {
	c.t.Helper()
	c.eventually("the pool of "+name+" is written", func() bool {
		o, err := c.ciliumNodes().Get(c.t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return false
		}
		if o.Spec.IPAM.Pool == nil {
			o.Spec.IPAM.Pool = v2.AllocationMap{}
		}
		for _, ip := range ips {
			o.Spec.IPAM.Pool[ip] = v2.AllocationIP{Resource: "if-1"}
		}
		_, err = c.ciliumNodes().Update(c.t.Context(), o, metav1.UpdateOptions{})
		return err == nil
	})
}

// TestKubernetesSingles has pods of two nodes have single addresses of their CiliumNodes: nodes
// wait for the first, pods for more, they reach each other by policy, an agent that is killed loses
// none, and an unused one is released.
func TestKubernetesSingles(t *testing.T) {
	t.Parallel()
	c := newKubeCluster(t)
	c.grant("node-status", rbacv1.PolicyRule{APIGroups: []string{"cilium.io"}, Resources: []string{"ciliumnodes/status"}, Verbs: []string{"patch"}})
	ns := [2]*testenv.NetNS{}
	ns[0], ns[1] = twoNamespaces(t)
	var nodes [2]*machineNode
	for i := range nodes {
		// The network leads to each address that is assigned.
		ns[i].Must(t, func() error {
			return run("ip", "route", "add", fmt.Sprintf("10.6%d.0.0/24", 1-i), "via", fmt.Sprint("192.0.2.", 2-i))
		})
		n := c.node(ns[i], fmt.Sprint("n", i+1))
		n.flags = append(n.flags, "--enable-ipv6=false", "--ipam", "crd", "--routing-mode", "native", "--ipv4-native-routing-cidr", "10.60.0.0/15",
			"--ipam-cilium-node-update-rate", "1s")
		n.launch()
		nodes[i] = n
	}
	n1, n2 := nodes[0], nodes[1]
	c.give("n1", "10.60.0.7", "10.60.0.9", "10.60.0.77")
	c.give("n2", "10.61.0.4", "10.61.0.200")
	n1.ready()
	n2.ready()
	client := c.podWith(n1, "client", map[string]string{"app": "client"}, nil)
	other := c.podWith(n1, "other", map[string]string{"app": "other"}, nil)
	web := c.podWith(n2, "web", map[string]string{"app": "web"}, nil)
	c.policy("web", map[string]string{"app": "web"}, map[string]string{"app": "client"})
	to := web.both(80)[0]
	serveEcho(t, web.ns, to)
	reaches(t, "at first", client.ns, to, 1000)
	c.eventually("no other pod reaches it", func() bool { return once(other.ns, to, 300*time.Millisecond) != nil })
	// All three of n1 are in use: a pod waits, and has its address when there is one.
	c.annotated(n1, "late", nil, nil)
	late, done := n1.newPod("late", nil), make(chan error, 1)
	go func() { done <- late.add() }()
	c.eventually("the status says who uses which", func() bool {
		o, err := c.ciliumNodes().Get(t.Context(), "n1", metav1.GetOptions{})
		return err == nil && len(o.Status.IPAM.Used) == 3 && o.Status.IPAM.Used[client.ip4.String()] == v2.AllocationIP{Owner: "default/client", Resource: "if-1"}
	})
	c.give("n1", "10.60.0.100", "10.60.0.101")
	if err := <-done; err != nil {
		t.Fatalf("a pod that waits for an address: %v", err)
	}
	if late.ip4.String() != "10.60.0.100" && late.ip4.String() != "10.60.0.101" {
		t.Errorf("it has %s", late.ip4)
	}

	n1.kill()
	n1.start()
	reaches(t, "after a restart", client.ns, to, 1000)
	for _, p := range []*machinePod{client, other, late} {
		if got := p.endpoint().Status.Networking.Addressing[0].IPv4; got != p.ip4.String() {
			t.Errorf("%s has %s after a restart, it was %s", p.name, got, p.ip4)
		}
	}

	// An unused one is released, one that is used is not.
	o, err := c.ciliumNodes().Get(t.Context(), "n1", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	spare := ""
	for ip := range o.Spec.IPAM.Pool {
		if _, used := o.Status.IPAM.Used[ip]; !used {
			spare = ip
		}
	}
	if spare == "" || len(o.Status.IPAM.Used) != 4 {
		t.Fatalf("used: %v", o.Status.IPAM.Used)
	}
	c.eventually("two are marked", func() bool {
		o, err := c.ciliumNodes().Get(t.Context(), "n1", metav1.GetOptions{})
		if err != nil {
			return false
		}
		o.Status.IPAM.ReleaseIPs = map[string]v2.IPReleaseStatus{spare: v2.IPMarkedForRelease, client.ip4.String(): v2.IPMarkedForRelease}
		_, err = c.ciliumNodes().UpdateStatus(t.Context(), o, metav1.UpdateOptions{})
		return err == nil
	})
	c.eventually("the agent answers", func() bool {
		o, err := c.ciliumNodes().Get(t.Context(), "n1", metav1.GetOptions{})
		return err == nil && o.Status.IPAM.ReleaseIPs[spare] == v2.IPReadyForRelease && o.Status.IPAM.ReleaseIPs[client.ip4.String()] == v2.IPDoNotRelease
	})
	c.annotated(n1, "last", nil, nil)
	if err := n1.newPod("last", nil).add(); err == nil || !strings.Contains(err.Error(), "of CiliumNode n1 says if the operator cannot assign more") {
		t.Errorf("a pod for which there is no address: %v", err)
	}
}
