package agent

import (
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/testenv"
)

// plug connects the eth0 of a namespace to a port of a switch. Whoever is plugged in with an
// address has the hardware address of who had it before.
func plug(t *testing.T, ns, hub *testenv.NetNS, port string, number int) {
	t.Helper()
	testenv.Connect(t, ns, "eth0", []string{fmt.Sprintf("192.0.2.%d/24", number), fmt.Sprintf("2001:db8::%d/64", number)}, hub, port, nil)
	for _, c := range []struct {
		ns   *testenv.NetNS
		args string
	}{
		{ns, fmt.Sprintf("link set eth0 address 02:00:00:00:00:%02x", number)},
		{hub, "link set " + port + " master br0"},
	} {
		c.ns.Must(t, func() error {
			if out, err := exec.Command("ip", strings.Fields(c.args)...).CombinedOutput(); err != nil {
				return fmt.Errorf("ip %s: %w: %s", c.args, err, out)
			}
			return nil
		})
	}
}

// TestReboot: a node is rebooted, so that nothing is left of it but the objects of its pods, by
// which all others know their addresses. The first pod that starts then has no rights, and must not
// pass for the one that had its address.
func TestReboot(t *testing.T) {
	t.Parallel()
	c := newKubeCluster(t)
	hub, ns1, ns2 := testenv.NewNetNS(t), testenv.NewNetNS(t), testenv.NewNetNS(t)
	hub.Must(t, func() error {
		return exec.Command("ip", "link", "add", "br0", "up", "type", "bridge", "mcast_snooping", "0").Run()
	})
	plug(t, ns1, hub, "p1", 1)
	plug(t, ns2, hub, "p2", 2)
	n1, n2 := c.node(ns1, "n1", "10.0.1.0/24", "fd00:1::/112"), c.node(ns2, "n2", "10.0.2.0/24", "fd00:2::/112")
	options := []string{"--ipam", "kubernetes", "--routing-mode", "native"}
	c.network("web", "web", fromApps("friend"))
	for _, n := range []*machineNode{n1, n2} {
		n.flags = append(n.flags, options...)
		n.start()
	}
	web := c.pod(n2, "web", map[string]string{"app": "web"})
	friend, old := c.pod(n1, "friend", map[string]string{"app": "friend"}), c.pod(n1, "old", map[string]string{"app": "old"})
	for _, to := range web.both(80) {
		serveEcho(t, web.ns, to)
		c.passing("who is let in", friend, to)
		c.blocked("who is not", old, to)
	}
	stale := map[netip.Addr]bool{friend.ip4: true, friend.ip6: true, old.ip4: true, old.ip6: true}
	var cep *v2.CiliumEndpoint
	c.eventually("the friend's object", func() bool {
		var err error
		cep, err = c.endpoints().Get(t.Context(), "friend", metav1.GetOptions{})
		return err == nil && cep.Status.Identity != nil
	})
	n1.kill() // or it would delete what follows
	const more = 40
	for i := range more {
		o := &v2.CiliumEndpoint{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("former-", i), Namespace: "default"}, Status: *cep.Status.DeepCopy()}
		pair := o.Status.Networking.Addressing[0]
		pair.IPv4, pair.IPv6 = fmt.Sprintf("10.0.1.%d", 20+i), fmt.Sprintf("fd00:1::%x", 20+i)
		stale[netip.MustParseAddr(pair.IPv4)], stale[netip.MustParseAddr(pair.IPv6)] = true, true
		if _, err := c.endpoints().Create(t.Context(), o, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	// A pod that another CNI plugin attached, before and after.
	other := c.object(n1, "other", map[string]string{"app": "other"})
	other.Status.Phase, other.Status.PodIP, other.Status.PodIPs = corev1.PodRunning, "10.0.1.200", []corev1.PodIP{{IP: "10.0.1.200"}, {IP: "fd00:1::200"}}
	if _, err := c.client.Kube.CoreV1().Pods("default").UpdateStatus(t.Context(), other, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	c.eventually("the other node knows all of them", func() bool {
		list, err := n2.client.IPs(t.Context(), fmt.Sprintf("10.0.1.%d/32", 20+more-1), nil)
		return err == nil && len(list) == 1 && list[0].Identity == int(cep.Status.Identity.ID)
	})
	c.object(n1, "intruder", map[string]string{"app": "intruder"})

	n1.done("ip", "link", "del", "eth0")
	ns1 = testenv.NewNetNS(t)
	plug(t, ns1, hub, "p3", 1)
	n1 = nodeIn(t, ns1, "n1", "", "")
	c.reach(n1)
	n1.flags = append(n1.flags, options...)
	n1.launch()
	n1.serving(false)
	intruder := n1.attached("intruder", nil)
	passed := 0
	left := -1
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); {
		for _, to := range web.both(80) {
			if err := once(intruder.ns, to, 50*time.Millisecond); err == nil {
				passed++
			}
		}
		if list, err := c.endpoints().List(t.Context(), metav1.ListOptions{}); left < 0 && err == nil {
			left = len(list.Items)
		}
	}
	t.Logf("the first pod after the reboot has %s and %s; %d objects were there soon after its start", intruder.ip4, intruder.ip6, left)
	if passed > 0 {
		t.Errorf("a pod that may not was let in %d times", passed)
	}
	for _, ip := range []netip.Addr{intruder.ip4, intruder.ip6} {
		if stale[ip] {
			t.Errorf("it was given %s, by which the other node knows a former pod", ip)
		}
	}
	reserved := func(want ...string) {
		t.Helper()
		testenv.Eventually(t, time.Minute, func() string {
			st, err := n1.client.Health(t.Context(), false)
			if err != nil {
				return err.Error()
			}
			now := []string{}
			for ip, owner := range st.IPAM.Allocations {
				if former, ok := strings.CutPrefix(owner, "former pod default/"); ok {
					now = append(now, ip+" "+former)
				}
			}
			slices.Sort(now)
			if diff := cmp.Diff(want, now, cmpopts.EquateEmpty()); diff != "" {
				return "reserved addresses (-want +got):\n" + diff
			}
			return ""
		})
	}
	gone := func(pod string) {
		t.Helper()
		_ = c.endpoints().Delete(t.Context(), pod, metav1.DeleteOptions{}) // as the garbage collector does
		if err := c.client.Kube.CoreV1().Pods("default").Delete(t.Context(), pod, *metav1.NewDeleteOptions(0)); err != nil {
			t.Fatal(err)
		}
	}
	// What is reserved is what objects name: of a pod that is here still until it runs again, or is
	// deleted.
	want := []string{"10.0.1.200 other", "fd00:1::200 other"}
	for _, p := range []*machinePod{friend, old} {
		want = append(want, p.ip4.String()+" "+p.name, p.ip6.String()+" "+p.name)
	}
	slices.Sort(want)
	reserved(want...)
	gone("old")
	friend = n1.attached("friend", nil)
	reserved("10.0.1.200 other", "fd00:1::200 other")
	gone("other")
	reserved()
	for _, to := range web.both(80) {
		c.passing("who is let in, after the reboot", friend, to)
		c.blocked("who is not, after the reboot", intruder, to)
	}
	n1.stop()
	n2.stop()
}
