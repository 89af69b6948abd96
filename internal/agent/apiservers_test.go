package agent

import (
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/testenv"
	"github.com/hawser-net/hawser/internal/testenv/kubeapi"
)

// serverPolicies are the rules of egress of the pods of TestAPIServerOutside, by app.
var serverPolicies = map[string]string{
	"cidr":       "egress: [{toCIDR: [" + outside4 + "/32, " + outside6 + "/128]}]",
	"world":      "egress: [{toEntities: [world]}]",
	"api":        "egress: [{toEntities: [kube-apiserver]}]",
	"nodes":      "egress: [{toEntities: [remote-node]}]",
	"deny-world": "egress: [{toEntities: [all]}]\n  egressDeny: [{toEntities: [world]}]",
	"deny-cidr":  "egress: [{toEntities: [all]}]\n  egressDeny: [{toCIDR: [192.0.2.0/24, '2001:db8::/32']}]",
	"deny-api":   "egress: [{toEntities: [all]}]\n  egressDeny: [{toEntities: [kube-apiserver]}]",
}

// TestAPIServerOutside: an API server that is no node of the cluster, as clouds have it, is outside
// to rules by its address and kube-apiserver besides; when a node turns out to have the address it
// is that. Neither that nor a restart, after which it is not observed for a while, lets in or out
// what is denied both before and after.
func TestAPIServerOutside(t *testing.T) {
	t.Parallel()
	c := newKubeCluster(t)
	ns, outside := testenv.NewNetNS(t), testenv.NewNetNS(t)
	testenv.Connect(t, ns, "eth0", []string{node4 + "/24", node6 + "/64"}, outside, "eth0", []string{outside4 + "/24", outside6 + "/64"})
	// To a node nothing is masqueraded.
	for _, route := range []string{"ip route add " + pods4 + " via " + node4, "ip -6 route add " + pods6 + " via " + node6} {
		outside.Must(t, func() error {
			args := strings.Fields(route)
			if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
				return fmt.Errorf("%s: %w: %s", route, err, out)
			}
			return nil
		})
	}
	n := c.node(ns, "n1", pods4, pods6)
	m := &kubeapi.Muffler{Kinds: []string{"endpointslices"}}
	c.muffle(n, m)
	n.flags = append(n.flags, "--ipam", "kubernetes", "--node-delete-delay", "0s")
	var policies strings.Builder
	for app, rules := range serverPolicies {
		fmt.Fprintf(&policies, "apiVersion: cilium.io/v2\nkind: CiliumNetworkPolicy\nmetadata: {name: %s, namespace: default}\nspec:\n  endpointSelector: {matchLabels: {app: %s}}\n  %s\n---\n", app, app, rules)
	}
	policies.WriteString("apiVersion: cilium.io/v2\nkind: CiliumNetworkPolicy\nmetadata: {name: hook, namespace: default}\nspec: {endpointSelector: {matchLabels: {app: hook}}, ingress: [{fromCIDR: [192.0.2.128/25, '2001:db8::/32']}]}\n")
	n.policy("p.yaml", policies.String())
	n.start()
	pods := map[string]*machinePod{}
	for app := range serverPolicies {
		pods[app] = c.pod(n, app, map[string]string{"app": app})
	}
	hook := c.pod(n, "hook", map[string]string{"app": "hook"})
	for _, at := range hook.both(80) {
		serveEcho(t, hook.ns, at)
	}
	served := []netip.AddrPort{netip.AddrPortFrom(netip.MustParseAddr(outside4), 80), netip.AddrPortFrom(netip.MustParseAddr(outside6), 80)}
	for _, at := range served {
		serveEcho(t, outside, at)
	}
	expect := func(what string, calls bool, may ...string) {
		t.Helper()
		var probes sync.WaitGroup
		for app, pod := range pods {
			for _, at := range served {
				probes.Go(func() {
					wait, want := impatient, slices.Contains(may, app)
					if want {
						wait = 20 * time.Second
					}
					if err := once(pod.ns, at, wait); (err == nil) != want {
						t.Errorf("%s: %s to %s: %v", what, app, at, err)
					}
				})
			}
		}
		probes.Wait()
		for _, at := range hook.both(80) {
			if err := once(outside, at, patient); calls && err != nil {
				t.Errorf("%s: a webhook is not called: %v", what, err)
			}
			if !calls && once(outside, at, impatient) == nil {
				t.Errorf("%s: a node calls where only the outside may", what)
			}
		}
	}
	has := func(what string, is func(identity.ID) bool) {
		t.Helper()
		c.eventually(what, func() bool {
			for _, at := range served {
				list, err := n.client.IPs(t.Context(), netip.PrefixFrom(at.Addr(), at.Addr().BitLen()).String(), nil)
				if err != nil || len(list) != 1 || !is(identity.ID(list[0].Identity)) {
					return false
				}
			}
			return true
		})
	}
	isServer := func(want bool) func(identity.ID) bool {
		return func(id identity.ID) bool {
			got, err := n.client.Identity(t.Context(), fmt.Sprint(uint32(id)))
			return err == nil && id.IsOutside() && slices.Contains(got.Labels, "reserved:kube-apiserver") == want
		}
	}
	expect("not served there", true, "cidr", "world", "deny-api")

	ready := true
	slice := func(name, ip string, family discoveryv1.AddressType) {
		t.Helper()
		if _, err := c.client.Kube.DiscoveryV1().EndpointSlices("default").Create(t.Context(), &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: "kubernetes"}}, AddressType: family,
			Endpoints: []discoveryv1.Endpoint{{Addresses: []string{ip}, Conditions: discoveryv1.EndpointConditions{Ready: &ready}}},
		}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	slice("kubernetes", outside4, discoveryv1.AddressTypeIPv4)
	slice("kubernetes-6", outside6, discoveryv1.AddressTypeIPv6)
	has("the API servers are known", isServer(true))
	expect("served outside", true, "cidr", "world", "api")

	// From here on until the end it is an API server, whatever else it is.
	checks := []func(){c.never("deny-api", pods["deny-api"], served[0]), c.never("deny-api", pods["deny-api"], served[1])}
	if _, err := c.ciliumNodes().Create(t.Context(), &v2.CiliumNode{ObjectMeta: metav1.ObjectMeta{Name: "n9"}, Spec: v2.NodeSpec{
		Addresses: []v2.NodeAddress{{Type: "InternalIP", IP: outside4}, {Type: "InternalIP", IP: outside6}}, IPAM: v2.IPAMSpec{PodCIDRs: []string{"10.0.9.0/24", "fd00:9::/112"}},
	}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	has("a node has the address", func(id identity.ID) bool { return id == identity.KubeAPIServer })
	expect("served by a node", false, "api", "nodes", "deny-world", "deny-cidr")
	n.kill()
	n.start()
	expect("served by a node, after a restart", false, "api", "nodes", "deny-world", "deny-cidr")
	if err := c.ciliumNodes().Delete(t.Context(), "n9", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	has("no node has the address any more", isServer(true))
	expect("served outside again", true, "cidr", "world", "api")

	for _, app := range []string{"nodes", "deny-world", "deny-cidr"} {
		checks = append(checks, c.never(app, pods[app], served[0]), c.never(app, pods[app], served[1]))
	}
	m.On()
	n.kill()
	n.launch()
	n.serving(false)
	expect("after a restart, not observed", true, "cidr", "world", "api")
	m.Off()
	n.ready()
	has("the API servers are known again", isServer(true))
	expect("after a restart", true, "cidr", "world", "api")
	var all sync.WaitGroup // each waits for answers
	for _, check := range checks {
		all.Go(check)
	}
	all.Wait()

	for _, name := range []string{"kubernetes", "kubernetes-6"} {
		if err := c.client.Kube.DiscoveryV1().EndpointSlices("default").Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	has("no API server is known any more", isServer(false))
	expect("no longer served there", true, "cidr", "world", "deny-api")
	n.stop()
}
