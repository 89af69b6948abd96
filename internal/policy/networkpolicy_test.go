package policy

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-net/hawser/internal/policy/oracle"
)

func parseNetwork(namespace, spec string) ([]*Rule, *networkingv1.NetworkPolicy, error) {
	np := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: namespace}}
	if err := json.Unmarshal([]byte(spec), &np.Spec); err != nil {
		return nil, nil, err
	}
	rules, err := ParseNetworkPolicy(np)
	return rules, np, err
}

// TestParseNetworkPolicyRefuses: each fault is named by its field.
func TestParseNetworkPolicyRefuses(t *testing.T) {
	t.Parallel()
	peer := func(p string) string { return `{"ingress":[{"from":[` + p + `]}]}` }
	port := func(p string) string { return `{"egress":[{},{"ports":[` + p + `]}]}` }
	for _, tt := range []struct{ spec, field string }{
		{`{"policyTypes":["Ingress","Sideways"]}`, "spec.policyTypes[1]"},
		{`{"podSelector":{"matchLabels":{"a:b":"c"}}}`, "spec.podSelector.matchLabels[a:b]"},
		{`{"podSelector":{"matchLabels":{"a":"c d"}}}`, "spec.podSelector.matchLabels[a]"},
		{`{"podSelector":{"matchExpressions":[{"key":"a","operator":"Is"}]}}`, "spec.podSelector.matchExpressions[0].operator"},
		{`{"podSelector":{"matchExpressions":[{"key":"a","operator":"In"}]}}`, "spec.podSelector.matchExpressions[0].values"},
		{`{"podSelector":{"matchExpressions":[{"key":"a","operator":"Exists","values":["b"]}]}}`, "spec.podSelector.matchExpressions[0].values"},
		{`{"podSelector":{"matchExpressions":[{"key":"","operator":"Exists"}]}}`, "spec.podSelector.matchExpressions[0].key"},
		{`{"podSelector":{"matchExpressions":[{"key":"a","operator":"In","values":["b","-"]}]}}`, "spec.podSelector.matchExpressions[0].values[1]"},
		{peer(`{}`), "spec.ingress[0].from[0]"},
		{peer(`{"podSelector":{}},{"ipBlock":{"cidr":"10.0.0.0/8"},"podSelector":{}}`), "spec.ingress[0].from[1].ipBlock"},
		{peer(`{"ipBlock":{"cidr":"10.0.0.0/8"},"namespaceSelector":{}}`), "spec.ingress[0].from[0].ipBlock"},
		{peer(`{"ipBlock":{"cidr":""}}`), "spec.ingress[0].from[0].ipBlock.cidr"},
		{peer(`{"ipBlock":{"cidr":"10.0.0.0/33"}}`), "spec.ingress[0].from[0].ipBlock.cidr"},
		{peer(`{"ipBlock":{"cidr":"::ffff:10.0.0.0/104"}}`), "spec.ingress[0].from[0].ipBlock.cidr"},
		{peer(`{"ipBlock":{"cidr":"10.0.0.0/8","except":["11.0.0.0/16"]}}`), "spec.ingress[0].from[0].ipBlock.except[0]"},
		{peer(`{"ipBlock":{"cidr":"10.0.0.0/8","except":["fd00::/16"]}}`), "spec.ingress[0].from[0].ipBlock.except[0]"},
		{peer(`{"namespaceSelector":{"matchLabels":{"a=b":""}}}`), "spec.ingress[0].from[0].namespaceSelector.matchLabels[a=b]"},
		{port(`{"protocol":"ICMP"}`), "spec.egress[1].ports[0].protocol"},
		{port(`{"protocol":"tcp"}`), "spec.egress[1].ports[0].protocol"},
		{port(`{"protocol":"ANY"}`), "spec.egress[1].ports[0].protocol"},
		{port(`{"port":0}`), "spec.egress[1].ports[0].port"},
		{port(`{"port":65536}`), "spec.egress[1].ports[0].port"},
		{port(`{"port":80},{"port":"HTTP"}`), "spec.egress[1].ports[1].port"},
		{port(`{"endPort":80}`), "spec.egress[1].ports[0].endPort"},
		{port(`{"port":"http","endPort":80}`), "spec.egress[1].ports[0].endPort"},
		{port(`{"port":80,"endPort":79}`), "spec.egress[1].ports[0].endPort"},
	} {
		_, _, err := parseNetwork("ns", tt.spec)
		var fe *FieldError
		if !errors.As(err, &fe) || fe.Field != tt.field {
			t.Errorf("%s: %v, want a fault of %s", tt.spec, err, tt.field)
		}
	}
	if _, err := ParseNetworkPolicy(nil); err == nil {
		t.Error("no policy is accepted")
	}
	for _, np := range []networkingv1.NetworkPolicy{
		{ObjectMeta: metav1.ObjectMeta{Name: "p"}}, {ObjectMeta: metav1.ObjectMeta{Namespace: "ns"}}, {ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "A B"}},
	} {
		if _, err := ParseNetworkPolicy(&np); err == nil {
			t.Errorf("%q in %q is accepted", np.Name, np.Namespace)
		}
	}
}

// TestParseNetworkPolicyTypes: which directions are enforced, and which entries count.
func TestParseNetworkPolicyTypes(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		spec     string
		enforces [2]bool
		clauses  []string
	}{
		{`{}`, [2]bool{true, false}, nil},
		{`{"ingress":[]}`, [2]bool{true, false}, nil},
		{`{"egress":[{}]}`, [2]bool{true, true}, []string{"egress[0]"}},
		{`{"egress":[]}`, [2]bool{true, false}, nil},
		{`{"policyTypes":["Egress"],"ingress":[{}]}`, [2]bool{false, true}, nil},
		{`{"policyTypes":["Ingress"],"ingress":[{},{}],"egress":[{}]}`, [2]bool{true, false}, []string{"ingress[0]", "ingress[1]"}},
		{`{"policyTypes":["Egress","Ingress"]}`, [2]bool{true, true}, nil},
	} {
		rules, _, err := parseNetwork("ns", tt.spec)
		if err != nil || len(rules) != 1 {
			t.Errorf("%s: %v, %v", tt.spec, rules, err)
			continue
		}
		var paths []string
		for _, c := range rules[0].Clauses {
			paths = append(paths, c.Path)
		}
		if rules[0].DefaultDeny != tt.enforces || cmp.Diff(tt.clauses, paths) != "" {
			t.Errorf("%s: enforces %v with %v, want %v with %v", tt.spec, rules[0].DefaultDeny, paths, tt.enforces, tt.clauses)
		}
	}
}

// TestNetworkPolicySelectors: how selectors read in lists and traces.
func TestNetworkPolicySelectors(t *testing.T) {
	t.Parallel()
	rules, _, err := parseNetwork("ns", `{"podSelector":{"matchLabels":{"b":"2","a":"1"}},"ingress":[{"from":[
		{"podSelector":{}},
		{"namespaceSelector":{}},
		{"namespaceSelector":{"matchLabels":{"team":"x"}},"podSelector":{"matchExpressions":[{"key":"app","operator":"NotIn","values":["z","y","z"]}]}},
		{"ipBlock":{"cidr":"10.9.9.9/8","except":["10.2.0.0/16","10.1.0.0/16"]}},
		{"ipBlock":{"cidr":"::/0"}}]}]}`)
	if err != nil {
		t.Fatal(err)
	}
	got := []string{rules[0].Subject.String()}
	for _, s := range rules[0].Clauses[0].Peers {
		got = append(got, s.String())
	}
	want := []string{
		"{k8s:a=1, k8s:b=2}@ns", "{}@ns@local", "{}@*@local",
		"{k8s:app notin (y,z), k8s:io.cilium.k8s.namespace.labels.team=x}@*@local",
		"block:10.0.0.0/8 except (10.1.0.0/16,10.2.0.0/16)", "block:::/0",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	var blocks []string
	for _, p := range Blocks(rules) {
		blocks = append(blocks, p.String())
	}
	if diff := cmp.Diff([]string{"10.0.0.0/8", "10.1.0.0/16", "10.2.0.0/16", "::/0"}, blocks); diff != "" || len(CIDRs(rules)) > 0 {
		t.Errorf("blocks: %s; prefixes outside: %v", diff, CIDRs(rules))
	}
}

// FuzzNetworkPolicy: no object crashes the parser, and what comes out means what the oracle says.
func FuzzNetworkPolicy(f *testing.F) {
	f.Add(`{"ingress":[{"from":[{"podSelector":{"matchLabels":{"app":"x"}}}],"ports":[{"port":80,"endPort":90},{"port":"http"}]}]}`)
	f.Add(`{"policyTypes":["Egress"],"egress":[{"to":[{"ipBlock":{"cidr":"10.0.0.0/8","except":["10.1.0.0/16"]}},{"namespaceSelector":{"matchLabels":{"team":"red"}}}]}]}`)
	f.Add(`{"podSelector":{"matchExpressions":[{"key":"tier","operator":"DoesNotExist"}]},"ingress":[{"from":[{"ipBlock":{"cidr":"::/0"}}],"ports":[{"protocol":"SCTP"}]}]}`)
	f.Fuzz(func(t *testing.T, spec string) {
		rules, np, err := parseNetwork("a", spec)
		if err != nil {
			return
		}
		w := newWorld(randFor(spec))
		w.policies = map[Owner]object{"p": {rules, oracle.FromNetworkPolicy(np)}}
		e, err := New(w.cfg)
		if err != nil {
			t.Fatal(err)
		}
		k := newKernel(t)
		w.load(t, e)
		k.sync(e)
		if err := w.compare(e, k, 50); err != nil {
			t.Fatal(err)
		}
	})
}
