package agent

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/yaml"

	"github.com/hawser-net/hawser/api/rest"
	v2 "github.com/hawser-net/hawser/api/v2"
	policystatus "github.com/hawser-net/hawser/internal/operator/policies"
	"github.com/hawser-net/hawser/internal/testenv/controllers"
)

// reporters runs what of the operator reports of policies, until the test ends.
func (c *kubeCluster) reporters() (stop func()) {
	c.t.Helper()
	return controllers.Run(c.t, c.Config, func(_ context.Context, m manager.Manager, log *slog.Logger) error {
		return policystatus.Setup(m, false, log)
	})
}

// cilium makes a CiliumNetworkPolicy of the namespace default, for the pods with an app.
func (c *kubeCluster) cilium(name, app, sections string) {
	c.t.Helper()
	text := fmt.Sprintf("{apiVersion: cilium.io/v2, kind: CiliumNetworkPolicy, metadata: {name: %s, namespace: default}, spec: {endpointSelector: {matchLabels: {app: %s}}, %s}}",
		name, app, sections)
	body, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		c.t.Fatal(err)
	}
	err = c.client.UrgentV2.Post().Namespace("default").Resource("ciliumnetworkpolicies").Body(body).Do(c.t.Context()).Error()
	if err != nil {
		c.t.Fatal(err)
	}
}

// TestRefusedPolicies: of policies that cannot be enforced as they are written no packet passes
// that what is understood of them does not grant, in the directions that they name and no other;
// what is understood is granted, and what is to be denied is; over a restart of the agent without
// an API server too. Condition, Event, the list of policies and a trace say so.
func TestRefusedPolicies(t *testing.T) {
	t.Parallel()
	c := newKubeCluster(t)
	ns1, ns2 := twoNamespaces(t)
	n1, n2 := c.node(ns1, "n1", "10.0.1.0/24", "fd00:1::/112"), c.node(ns2, "n2", "10.0.2.0/24", "fd00:2::/112")
	for _, n := range []*machineNode{n1, n2} {
		n.flags = append(n.flags, "--ipam", "kubernetes")
		n.start()
	}
	app := func(n *machineNode, name, app string) *machinePod {
		return c.pod(n, name, map[string]string{"app": app})
	}
	web, names, open := app(n1, "web", "web"), app(n1, "names", "names"), app(n1, "open", "open")
	friend, far, evil := app(n1, "friend", "friend"), app(n2, "far", "friend"), app(n2, "evil", "evil")
	all := []*machinePod{web, names, open, friend, far, evil}
	ports := []uint16{80, 81}
	for _, p := range all {
		for _, port := range ports {
			for _, at := range p.both(port) {
				serveEcho(t, p.ns, at)
			}
		}
	}
	probes := []struct {
		from, to *machinePod
		port     uint16
		passes   bool // under the policies
	}{
		{friend, web, 80, true}, {far, web, 80, true}, // understood
		{friend, web, 81, false}, {far, web, 81, false}, // only with rules of layer 7
		{evil, web, 80, false}, {evil, web, 81, false}, {open, web, 80, false},
		{web, evil, 80, true}, {web, open, 81, true}, // egress is not named

		{names, friend, 80, true}, {names, far, 80, true}, {names, evil, 80, false}, {names, friend, 81, false}, {names, open, 80, false},
		{evil, names, 80, true}, {friend, names, 81, true}, // ingress is not named

		{friend, open, 80, true}, {evil, open, 81, false}, {evil, open, 80, false}, // what is denied by a port that cannot be read is denied by all
	}
	expect := func(what string, under bool) {
		t.Helper()
		var wrong []string
		for end := time.Now().Add(40 * time.Second); ; {
			wrong = nil
			for _, p := range probes {
				for _, to := range p.to.both(p.port) {
					want := p.passes || !under
					if err := ask(t, p.from.ns, to, 64, false, 250*time.Millisecond); (err == nil) != want {
						wrong = append(wrong, fmt.Sprintf("%s to %s %s passes: %t", p.from.name, p.to.name, to, err == nil))
					}
				}
			}
			if len(wrong) == 0 {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("%s: %s", what, strings.Join(wrong, "; "))
			}
		}
	}
	expect("without policies", false)
	stop := c.reporters()
	c.cilium("web", "web", `ingress: [{fromEndpoints: [{matchLabels: {app: friend}}], toPorts: [{ports: [{port: "81"}], rules: {http: [{method: GET}]}}, {ports: [{port: "80"}]}]}]`)
	c.cilium("names", "names", `egress: [{toFQDNs: [{matchName: example.com}]}, {toEndpoints: [{matchLabels: {app: friend}}], toPorts: [{ports: [{port: "80"}]}]}]`)
	c.cilium("open", "open", `ingressDeny: [{fromEndpoints: [{matchLabels: {app: evil}}], toPorts: [{ports: [{port: "080"}]}]}], ingress: [{fromEntities: [all]}]`)
	expect("under policies that are refused", true)

	said := func(when string) {
		t.Helper()
		for name, field := range map[string]string{"web": "rules", "names": "toFQDNs", "open": "port"} {
			files, err := n1.client.PolicyFiles(t.Context())
			i := slices.IndexFunc(files, func(f rest.PolicyFile) bool { return f.Path == "k8s/CiliumNetworkPolicy/default/"+name })
			if err != nil || i < 0 || files[i].State == rest.PolicyFileStateOk || !files[i].InForce || !strings.Contains(files[i].Error, field) {
				t.Errorf("%s: the list of policies says of %s: %+v, %v", when, name, files, err)
			}
		}
		for _, p := range []struct {
			from, to netip.Addr
			port     string
			want     rest.PolicyVerdict
		}{
			{friend.ip4, web.ip4, "80", rest.PolicyVerdictAllowed}, {friend.ip4, web.ip4, "81", rest.PolicyVerdictDenied}, {open.ip4, web.ip4, "80", rest.PolicyVerdictDenied},
		} {
			trace, err := n1.client.TracePolicy(t.Context(), rest.TracePolicyParams{From: p.from.String(), To: p.to.String(), DPort: p.port})
			if err != nil || trace.Verdict != p.want || !strings.Contains(fmt.Sprintf("%+v", trace), "is not fully enforced") {
				t.Errorf("%s: a trace from %s to %s port %s: %+v, %v", when, p.from, p.to, p.port, trace, err)
			}
		}
	}
	said("at first")
	for name, field := range map[string]string{"web": "rules", "names": "toFQDNs", "open": "port"} {
		c.eventually("the condition of "+name, func() bool {
			o := &v2.CiliumNetworkPolicy{}
			err := c.client.UrgentV2.Get().Namespace("default").Resource("ciliumnetworkpolicies").Name(name).Do(t.Context()).Into(o)
			return err == nil && slices.ContainsFunc(o.Status.Conditions, func(cond v2.NetworkPolicyCondition) bool {
				return cond.Type == "Valid" && cond.Status == "False" && strings.Contains(cond.Message, field)
			})
		})
		c.eventually("the Event of "+name, func() bool {
			list, err := c.client.Kube.EventsV1().Events("default").List(t.Context(), metav1.ListOptions{})
			return err == nil && slices.ContainsFunc(list.Items, func(e eventsv1.Event) bool {
				return e.Regarding.Name == name && e.Type == "Warning" && strings.Contains(e.Note, field)
			})
		})
	}
	stop()

	// Without an API server an agent that starts knows nothing but what it has kept.
	c.Stop()
	for _, n := range []*machineNode{n1, n2} {
		n.kill()
		n.launch()
		n.serving(false)
	}
	expect("after a restart without an API server", true)
	said("after a restart without an API server")
	c.Start()
	n1.ready()
	n2.ready()
	expect("with the API server back", true)
	n1.stop()
	n2.stop()
}
