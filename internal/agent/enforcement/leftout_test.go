package enforcement

import (
	"fmt"
	"slices"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	"sigs.k8s.io/yaml"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/labels"
	"github.com/hawser-net/hawser/internal/policy"
)

// TestLeftOut: what rules select by and no identity has.
func TestLeftOut(t *testing.T) {
	t.Parallel()
	some, err := labels.NewFilter([]string{"k8s:app"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	file, err := labels.NewFilter(nil, []byte(`{"version": 1, "valid-prefixes": [{"prefix": "app"}, {"prefix": "reserved", "source": "reserved"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	makes := func(f *labels.Filter) func(string) bool {
		return func(key string) bool { return f.Identity(labels.New(labels.SourceK8s, key, "")) }
	}
	const subject, peers = `podSelector: {matchLabels: {%s: x}}`, `podSelector: {}, ingress: [{from: [{podSelector: {matchExpressions: [{key: %s, operator: NotIn, values: [x]}]}}]}]`
	for _, c := range []struct {
		name   string
		filter *labels.Filter
		spec   string
		want   []string
	}{
		{"by default most labels count", labels.DefaultFilter(), fmt.Sprintf(subject, "app"), nil},
		{"but those of controllers", labels.DefaultFilter(), fmt.Sprintf(subject, "statefulset.kubernetes.io/pod-name"), []string{"statefulset.kubernetes.io/pod-name"}},
		{"with a named port", labels.DefaultFilter(), `podSelector: {matchLabels: {pod-template-hash: x}}, policyTypes: [Egress], egress: [{ports: [{port: web}]}]`, []string{"pod-template-hash"}},
		{"of peers too", labels.DefaultFilter(), fmt.Sprintf(peers, "apps.kubernetes.io/pod-index"), []string{"apps.kubernetes.io/pod-index"}},
		{"of namespaces all count", labels.DefaultFilter(),
			`podSelector: {}, ingress: [{from: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: x}}}]}]`, nil},
		{"a list that has it", some, fmt.Sprintf(subject, "app"), nil},
		{"a list that does not", some, fmt.Sprintf(subject, "tier"), []string{"tier"}},
		{"a file without the namespace's", file, fmt.Sprintf(subject, "app"), []string{labels.KeyNamespace}},
	} {
		var o networkingv1.NetworkPolicy
		if err := yaml.Unmarshal([]byte("{metadata: {name: p, namespace: a}, spec: {"+c.spec+"}}"), &o); err != nil {
			t.Fatal(err)
		}
		rules, err := policy.ParseNetworkPolicy(&o)
		if err != nil {
			t.Fatal(err)
		}
		if got := leftOut(rules, makes(c.filter)); !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
	var o v2.CiliumNetworkPolicy
	if err := yaml.Unmarshal([]byte(`{metadata: {name: p, namespace: a}, spec: {endpointSelector: {}, ingress: [{fromEndpoints: [{matchLabels: {"reserved:host": ""}}]}, {fromEntities: [world]}, {fromCIDR: [10.0.0.0/8]}]}}`), &o); err != nil {
		t.Fatal(err)
	}
	rules, err := policy.Parse(&o)
	if got := leftOut(rules, makes(some)); err != nil || len(got) > 0 {
		t.Errorf("what the network itself says of peers: %q, %v", got, err)
	}
}
