package agent

import (
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hawser-net/hawser/api/rest"
	"github.com/hawser-net/hawser/internal/k8s/pods"
	"github.com/hawser-net/hawser/internal/testenv"
)

// seenFrom opens TCP connections to servers outside, of both families, and returns the addresses
// that these see.
func seenFrom(t testing.TB, from, outside namespace) [2]string {
	t.Helper()
	var out [2]string
	for i, at := range []string{outside4, outside6} {
		var l net.Listener
		if err := outside.Do(func() (err error) { l, err = net.Listen("tcp", net.JoinHostPort(at, "0")); return err }); err != nil {
			t.Fatal(err)
		}
		seen := make(chan string, 1)
		go func() {
			defer close(seen)
			if c, err := l.Accept(); err == nil {
				seen <- netip.MustParseAddrPort(c.RemoteAddr().String()).Addr().Unmap().String()
				c.Close()
			}
		}()
		err := from.Do(func() error {
			c, err := net.DialTimeout("tcp", l.Addr().String(), 20*time.Second)
			if err == nil {
				c.Close()
			}
			return err
		})
		if err != nil {
			t.Errorf("to %s: %v", at, err)
			l.Close()
		}
		out[i] = <-seen
		l.Close()
	}
	return out
}

// TestSkipMasquerade: packets of pods leave the cluster under the pods' own addresses if the pods'
// namespace says so, from the first one on, over restarts of the agent, and no longer than the pods
// live.
func TestSkipMasquerade(t *testing.T) {
	t.Parallel()
	c := newKubeCluster(t)
	ns, outside := testenv.NewNetNS(t), testenv.NewNetNS(t)
	testenv.Connect(t, ns, "eth0", []string{node4 + "/24", node6 + "/64"}, outside, "eth0", []string{outside4 + "/24", outside6 + "/64"})
	for _, r := range [][2]string{{"10.0.1.0/24", node4}, {"fd00:1::/112", node6}} {
		outside.Must(t, func() error { return run("ip", "route", "add", r[0], "via", r[1]) })
	}
	n := c.node(ns, "n1", "10.0.1.0/24", "fd00:1::/112")
	n.flags = append(n.flags, "--ipam", "kubernetes")
	annotate := func(name, value string) {
		t.Helper()
		body := `{"metadata":{"annotations":{"` + pods.SkipMasquerade + `":` + value + `}}}`
		if _, err := c.client.Kube.CoreV1().Namespaces().Patch(t.Context(), name, types.MergePatchType, []byte(body), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
		// The watch delivers; what it has delivered is in the answer to a request for an address.
		c.eventually("the agent knows the annotation", func() bool {
			got, err := n.client.AllocateIP(t.Context(), rest.AllocateIPParams{Owner: name + "/probe"})
			if err != nil {
				return false
			}
			for _, ip := range []string{got.Address.IPv4, got.Address.IPv6} {
				if err := n.client.ReleaseIP(t.Context(), ip, "default"); err != nil {
					t.Error(err)
				}
			}
			return got.IPv4.SkipMasquerade == (value == `"true"`) && got.IPv6.SkipMasquerade == got.IPv4.SkipMasquerade
		})
	}
	n.start()
	nodes := [2]string{node4, node6}
	own := func(p *machinePod) [2]string { return [2]string{p.ip4.String(), p.ip6.String()} }
	expect := func(when string, p *machinePod, want [2]string) {
		t.Helper()
		if got := seenFrom(t, p.ns, outside); got != want {
			t.Errorf("%s: pod %s is seen as %v, want %v", when, p.name, got, want)
		}
	}
	before := c.pod(n, "before", nil)
	expect("without the annotation", before, nodes)
	// A pod cannot choose for itself.
	o, err := c.client.Kube.CoreV1().Pods("default").Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "chooser", Namespace: "default", Annotations: map[string]string{pods.SkipMasquerade: "true"}},
		Spec:       corev1.PodSpec{NodeName: n.name, Containers: []corev1.Container{{Name: "c", Image: "none"}}, AutomountServiceAccountToken: new(bool)},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	expect("with the annotation at the pod", n.attached(o.Name, nil), nodes)
	annotate("default", `"perhaps"`)
	c.eventually("an annotation that is neither true nor false is logged", func() bool { return strings.Contains(n.logText(), "neither true nor false") })

	annotate("default", `"true"`)
	plain := c.pod(n, "plain", nil)
	expect("annotated", plain, own(plain))
	expect("a pod that was there", before, nodes)
	// Between pods nothing changes, and what is in the kernel is the node's own doing.
	for _, to := range before.both(80) {
		serveEcho(t, before.ns, to)
		c.passing("pod to pod", plain, to)
	}
	n.kill()
	n.start()
	expect("after the agent was killed", plain, own(plain))
	expect("after the agent was killed", before, nodes)
	ns.Must(t, func() error { return run("nft", "flush", "set", "inet", "hawser", "unmasqueraded4") })
	n.stop()
	n.start()
	expect("repaired at the start", plain, own(plain))

	// Its addresses go to a pod for which it does not count any more.
	annotate("default", `null`)
	expect("of before", plain, own(plain))
	if err := plain.del(); err != nil {
		t.Fatal(err)
	}
	for _, set := range []string{"unmasqueraded4", "unmasqueraded6"} {
		c.eventually("no exception is left in "+set, func() bool {
			return !strings.Contains(n.command("nft", "list", "set", "inet", "hawser", set), "elements")
		})
	}
	last := c.pod(n, "last", nil)
	expect("without the annotation again", last, nodes)

	// The property of the plugin, which cannot come later.
	id := last.endpoint().ID
	code, text := n.call(http.MethodPatch, "/endpoint/"+strconv.Itoa(id), `{"state":"","properties":{"property-skip-masquerade-v4":true}}`)
	if code != http.StatusBadRequest || !strings.Contains(text, "cannot change") {
		t.Errorf("a pod that is there is excepted from masquerading: %d %s", code, text)
	}
	n.stop()
}
