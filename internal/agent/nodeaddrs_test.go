package agent

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-net/hawser/internal/testenv"
	"github.com/hawser-net/hawser/internal/testenv/controllers"
)

// connectsAt wants an echo server at an address to be reached, or not, in a while.
func connectsAt(t *testing.T, what string, from namespace, to string, want bool) {
	t.Helper()
	at := netip.MustParseAddrPort(to)
	controllers.Eventually(t, time.Minute, func() string {
		timeout := patient
		if !want {
			timeout = impatient
		}
		if err := once(from, at, timeout); (err == nil) != want {
			return fmt.Sprintf("%s: %s: %v; is to be reached: %v", what, at, err, want)
		}
		return ""
	})
}

// hostPortPod is a pod that serves port 80, and a port of its node.
func (c *kubeCluster) hostPortPod(n *machineNode, name string, port int32) *machinePod {
	c.t.Helper()
	o := c.object(n, name, map[string]string{"app": name}, corev1.ContainerPort{ContainerPort: 80, HostPort: port})
	p := n.attached(name, nil)
	o.Status.Phase, o.Status.PodIP = corev1.PodRunning, p.ip4.String()
	for _, at := range p.both(80) {
		serveEcho(c.t, p.ns, at)
		o.Status.PodIPs = append(o.Status.PodIPs, corev1.PodIP{IP: at.Addr().String()})
	}
	if _, err := c.client.Kube.CoreV1().Pods("default").UpdateStatus(c.t.Context(), o, metav1.UpdateOptions{}); err != nil {
		c.t.Fatal(err)
	}
	return p
}

// TestHostPorts: without kube-proxy replacement, too, clients outside find host ports, which
// kube-proxy knows nothing of: at all addresses of all devices, also those that come at run time,
// and across restarts; or where --nodeport-addresses says.
func TestHostPorts(t *testing.T) {
	t.Parallel()
	c := newKubeCluster(t)
	ns, near := twoNamespaces(t)
	far := testenv.NewNetNS(t)
	testenv.Connect(t, ns, "eth1", []string{"198.51.100.1/24", "2001:db8:1::1/64"}, far, "eth0", []string{"198.51.100.2/24", "2001:db8:1::2/64"})
	n := c.node(ns, "n1", "10.0.1.0/24", "fd00:1::/112")
	n.flags = append(n.flags, "--ipam", "kubernetes")
	n.start()
	connectsAt(t, "before there is a pod", far, "198.51.100.1:8080", false)
	web := c.hostPortPod(n, "web", 8080)
	atAll := func(when string) {
		t.Helper()
		for _, to := range []string{"192.0.2.1:8080", "[2001:db8::1]:8080"} {
			connectsAt(t, when+", by the first device", near, to, true)
		}
		for _, to := range []string{"198.51.100.1:8080", "[2001:db8:1::1]:8080"} {
			connectsAt(t, when+", by the second device", far, to, true)
		}
	}
	atAll("a pod with a host port")

	// An address, and a device, that come later.
	n.done("ip", "addr", "add", "198.51.100.77/24", "dev", "eth1")
	connectsAt(t, "a new address", far, "198.51.100.77:8080", true)
	later := testenv.NewNetNS(t)
	testenv.Connect(t, ns, "eth2", []string{"203.0.113.1/24"}, later, "eth0", []string{"203.0.113.2/24"})
	connectsAt(t, "a new device", later, "203.0.113.1:8080", true)
	n.kill()
	atAll("no agent runs")
	n.start()
	atAll("after a restart")
	connectsAt(t, "after a restart", later, "203.0.113.1:8080", true)
	n.done("ip", "addr", "del", "198.51.100.77/24", "dev", "eth1")
	n.done("ip", "addr", "add", "198.51.100.77/32", "dev", "lo")
	connectsAt(t, "an address of loopback", far, "198.51.100.77:8080", true)

	n.stop()
	n.flags = append(n.flags, "--nodeport-addresses", "203.0.113.0/24,2001:db8:1::/64")
	n.start()
	connectsAt(t, "in a range", later, "203.0.113.1:8080", true)
	connectsAt(t, "in a range of IPv6", far, "[2001:db8:1::1]:8080", true)
	connectsAt(t, "in no range", far, "198.51.100.1:8080", false)
	connectsAt(t, "in no range, by the first device", near, "192.0.2.1:8080", false)

	// Without the pod no packet is translated, and the devices are left alone.
	if err := web.del(); err != nil {
		t.Fatal(err)
	}
	if err := c.client.Kube.CoreV1().Pods("default").Delete(t.Context(), "web", metav1.DeleteOptions{GracePeriodSeconds: new(int64)}); err != nil {
		t.Fatal(err)
	}
	connectsAt(t, "the pod is gone", later, "203.0.113.1:8080", false)
	controllers.Eventually(t, time.Minute, func() string {
		for _, dev := range []string{"eth1", "eth2"} {
			for _, side := range []string{"ingress", "egress"} {
				if out := n.command("tc", "filter", "show", "dev", dev, side); out != "" {
					return fmt.Sprintf("%s of %s has %s", side, dev, out)
				}
			}
		}
		return ""
	})
	n.stop()
}
