package invariant

import (
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-net/hawser/api/rest"
	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/labels"
	"github.com/hawser-net/hawser/internal/sandbox/kube"
)

// good is a cluster of two nodes with one pod, in order.
func good() *World {
	text := []string{
		"k8s:app=web", "k8s:io.cilium.k8s.policy.cluster=c", "k8s:io.cilium.k8s.policy.serviceaccount=default", "k8s:io.kubernetes.pod.namespace=ns",
	}
	security := map[string]string{}
	for _, l := range text {
		k, v, _ := strings.Cut(l, "=")
		security[k] = v
	}
	w := &World{
		Cluster: "c", Namespaces: map[string]map[string]string{"ns": nil}, Nodes: map[string]*Node{},
		Pods: []corev1.Pod{{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "u", Labels: map[string]string{"app": "web"}},
			Spec:       corev1.PodSpec{NodeName: "n1"},
			Status: corev1.PodStatus{
				PodIPs:     []corev1.PodIP{{IP: "10.0.1.5"}},
				Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
			},
		}},
		Endpoints: []v2.CiliumEndpoint{{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", OwnerReferences: []metav1.OwnerReference{{UID: "u"}}},
			Status: v2.EndpointStatus{
				Identity:   &v2.EndpointIdentity{ID: 300, Labels: text},
				Networking: &v2.EndpointNetworking{NodeIP: "192.0.2.1", Addressing: []*v2.AddressPair{{IPv4: "10.0.1.5"}}},
			},
		}},
		Identities: []v2.CiliumIdentity{{ObjectMeta: metav1.ObjectMeta{Name: "300"}, SecurityLabels: security}},
	}
	for i, name := range []string{"n1", "n2"} {
		n := &Node{Info: kube.NodeInfo{Name: name, IPv4: netip.AddrFrom4([4]byte{192, 0, 2, byte(1 + i)})}, RuleSets: map[int]bool{}}
		n.Identities = map[int]labels.Set{300: IdentityLabels(&w.Identities[0])}
		n.Allocations = map[string]string{"10.0.0.1": "router"}
		n.IPCache = []rest.MapIPCache{{Prefix: "10.0.1.5/32", Identity: 300}, {Prefix: "10.0.1.0/24", Identity: 3}, {Prefix: "192.0.2.7/32", Identity: 6}}
		w.Nodes[name] = n
	}
	w.Nodes["n2"].IPCache[0].TunnelEndpoint = "192.0.2.1"
	n := w.Nodes["n1"]
	n.Allocations["10.0.1.5"] = "ns/p"
	n.Links, n.RuleSets[9] = []string{"lxc1"}, true
	n.Kernel = []rest.MapEndpoint{{ID: 4, Identity: 300, RuleSet: 9, InterfaceName: "lxc1"}}
	n.Endpoints = []rest.Endpoint{{ID: 4, Status: rest.EndpointStatus{
		State: rest.EndpointStateReady, Identity: rest.Identity{ID: 300}, ExternalIdentifiers: rest.EndpointIdentifiers{PodName: "ns/p"},
		Networking: rest.EndpointNetworking{InterfaceName: "lxc1", Addressing: []rest.AddressPair{{IPv4: "10.0.1.5"}}},
	}}}
	return w
}

func faults(w *World) (out []string) {
	for _, c := range All() {
		out = append(out, c.Of(w)...)
	}
	return out
}

// Every single thing that is wrong is reported.
func TestChecks(t *testing.T) {
	if got := faults(good()); len(got) > 0 {
		t.Fatalf("a cluster in order: %v", got)
	}
	for name, tc := range map[string]struct {
		spoil func(*World)
		want  string
	}{
		"not ready":           {func(w *World) { w.Pods[0].Status.Conditions = nil }, "not ready"},
		"no object":           {func(w *World) { w.Endpoints = nil }, "no CiliumEndpoint"},
		"another's object":    {func(w *World) { w.Endpoints[0].OwnerReferences[0].UID = "x" }, "belongs to another pod"},
		"no identity":         {func(w *World) { w.Endpoints[0].Status.Identity = nil }, "has no identity"},
		"wrong labels":        {func(w *World) { w.Endpoints[0].Status.Identity.Labels = []string{"k8s:app=db"} }, "want k8s:app=web"},
		"wrong identity":      {func(w *World) { w.Identities[0].SecurityLabels["k8s:app"] = "db" }, "its labels are k8s:app=web"},
		"identity gone":       {func(w *World) { w.Identities = nil }, "no CiliumIdentity 300"},
		"wrong address":       {func(w *World) { w.Pods[0].Status.PodIPs[0].IP = "10.0.1.6" }, "the pod has [10.0.1.6]"},
		"agent has none":      {func(w *World) { w.Nodes["n1"].Endpoints = nil }, "has 0 endpoints"},
		"agent not ready":     {func(w *World) { w.Nodes["n1"].Endpoints[0].Status.State = rest.EndpointStateRegenerating }, "says it is regenerating"},
		"kernel has none":     {func(w *World) { w.Nodes["n1"].Kernel = nil }, "no row for endpoint 4"},
		"kernel locked":       {func(w *World) { w.Nodes["n1"].Kernel[0].Locked = true }, "is wrong"},
		"kernel identity":     {func(w *World) { w.Nodes["n1"].Kernel[0].Identity = 301 }, "is wrong"},
		"unknown elsewhere":   {func(w *World) { w.Nodes["n2"].IPCache = nil }, "n2 does not know 10.0.1.5"},
		"wrong node":          {func(w *World) { w.Nodes["n2"].IPCache[0].TunnelEndpoint = "192.0.2.9" }, "n2: 10.0.1.5 leads to identity 300 by"},
		"wrong elsewhere":     {func(w *World) { w.Nodes["n2"].IPCache[0].Identity = 4 }, "n2: 10.0.1.5 leads to identity 4"},
		"address of no pod":   {func(w *World) { w.Nodes["n2"].IPCache[2].Identity = 301 }, "but no pod has it"},
		"object left":         {func(w *World) { w.Endpoints[0].Name = "gone" }, "CiliumEndpoint ns/gone without a pod"},
		"endpoint left":       {func(w *World) { w.Nodes["n2"].Endpoints = w.Nodes["n1"].Endpoints[:1:1]; w.Pods = nil }, "endpoint 4 of ns/p, which is gone"},
		"allocation left":     {func(w *World) { w.Nodes["n2"].Allocations["10.0.2.2"] = "ns/q" }, "address 10.0.2.2 is given to ns/q"},
		"link left":           {func(w *World) { w.Nodes["n2"].Links = []string{"lxc7"} }, "link lxc7 of no endpoint"},
		"rule set left":       {func(w *World) { w.Nodes["n2"].RuleSets[3] = true }, "rule set 3 of no endpoint"},
		"kernel row left":     {func(w *World) { w.Nodes["n2"].Kernel = []rest.MapEndpoint{{ID: 8}} }, "row for endpoint 8, which is gone"},
		"identity duplicated": {func(w *World) { d := w.Identities[0]; d.Name = "301"; w.Identities = append(w.Identities, d) }, "300 and 301 both are"},
		"unknown meaning":     {func(w *World) { w.Nodes["n2"].Identities = nil }, "n2 takes identity 300 for"},
		"other meaning":       {func(w *World) { w.Nodes["n2"].Identities[300] = labels.NewSet(labels.New("k8s", "app", "db")) }, "n2 takes identity 300 for \"k8s:app=db\""},
	} {
		w := good()
		tc.spoil(w)
		if got := strings.Join(faults(w), "\n"); !strings.Contains(got, tc.want) {
			t.Errorf("%s: want %q in %q", name, tc.want, got)
		}
	}
}
