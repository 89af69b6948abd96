package agent

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-net/hawser/internal/labels"
	"github.com/hawser-net/hawser/internal/policy"
)

// selecting makes a change with a rule that needs a key.
func selecting(t *testing.T, owner, key string) policy.Change {
	t.Helper()
	rules, err := policy.ParseNetworkPolicy(&networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: owner},
		Spec:       networkingv1.NetworkPolicySpec{PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{key: "x"}}, Ingress: []networkingv1.NetworkPolicyIngressRule{{}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return policy.Change{Owner: policy.Owner(owner), Rules: rules}
}

func TestLabelGate(t *testing.T) {
	t.Parallel()
	var got []string
	g := newLabelGate(func(list []policy.Change) {
		var parts []string
		for _, ch := range list {
			switch {
			case len(ch.Rules) == 0:
				parts = append(parts, "-"+string(ch.Owner))
			case ch.Rules[0].Clauses[0].Deny:
				parts = append(parts, "closed "+string(ch.Owner))
			default:
				parts = append(parts, string(ch.Owner))
			}
		}
		got = append(got, strings.Join(parts, " "))
	})
	expect := func(what string, want ...string) {
		t.Helper()
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: -want +got\n%s", what, diff)
		}
		got = nil
	}
	a, b, c := selecting(t, "a", "k1"), selecting(t, "b", "k2"), selecting(t, "c", "k1")
	g.permit(labels.KeysOf("k1"))
	expect("before anything was heard")
	g.change([]policy.Change{a, b})
	expect("all there is", "a closed b")
	if !g.uses().Equal(labels.KeysOf("k1")) || !slices.Equal(g.waiting(), []policy.Owner{"b"}) {
		t.Errorf("in use %q, waiting %q", g.uses(), g.waiting())
	}
	g.change([]policy.Change{c, {Owner: "a"}})
	expect("what comes after one that waits")
	g.permit(labels.KeysOf("k1", "k2"))
	expect("all of it may be judged", "-a b c")
	g.restrict(labels.KeysOf("k1"))
	if !g.uses().Equal(labels.KeysOf("k1", "k2")) || !g.may().Equal(labels.KeysOf("k1")) {
		t.Errorf("what is in force stays: in use %q, permitted %q", g.uses(), g.may())
	}
	g.change([]policy.Change{a})
	expect("one that needs no more", "a")
	g.change([]policy.Change{{Owner: "b"}})
	expect("one that goes", "-b")
	g.change([]policy.Change{b})
	expect("one that comes back")
	g.change([]policy.Change{{Owner: "a"}})
	expect("one that waits behind it")
	g.change([]policy.Change{{Owner: "b"}})
	expect("who waited is gone", "-a -b")
}

func TestValidateLabels(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		change func(*Config)
		want   string
	}{
		{"right", func(*Config) {}, ""},
		{"unknown", func(c *Config) { c.IdentityLabels = "some" }, `"some" is neither all nor policy`},
		{"agents make identities", func(c *Config) { c.ManagementMode = "agent" }, "needs --identity-management-mode=operator or both"},
		{"a key-value store", func(c *Config) { c.IdentityMode, c.KVStore = identityKVStore, "etcd" }, "no --kvstore"},
		{"files", func(c *Config) { c.StaticCNPPath = "/x" }, "--static-cnp-path"},
		{"other clusters", func(c *Config) { c.ClusterMesh.Dir = "/x" }, "--clustermesh-config"},
		{"no endpoints", func(c *Config) { c.NoEndpointObjects = true }, "--disable-endpoint-crd"},
	} {
		cfg := Defaults()
		cfg.EnableK8s, cfg.ManagementMode, cfg.IdentityLabels = true, "operator", "policy"
		c.change(&cfg)
		if err := cfg.validateLabels(); (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.name, fmt.Sprint(err))
		}
	}
}
