package enforcement

import (
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
	g := NewLabelGate(func(list []policy.Change) {
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
	g.Permit(labels.KeysOf("k1"))
	expect("before anything was observed")
	g.Apply([]policy.Change{a, b})
	expect("all there is", "a closed b")
	if !g.Needed().Equal(labels.KeysOf("k1")) || !slices.Equal(g.Waiting(), []policy.Owner{"b"}) {
		t.Errorf("in use %q, waiting %q", g.Needed(), g.Waiting())
	}
	g.Apply([]policy.Change{c, {Owner: "a"}})
	expect("what comes after one that waits")
	g.Permit(labels.KeysOf("k1", "k2"))
	expect("all of it may be evaluated", "-a b c")
	g.Restrict(labels.KeysOf("k1"))
	if !g.Needed().Equal(labels.KeysOf("k1", "k2")) || !g.Permitted().Equal(labels.KeysOf("k1")) {
		t.Errorf("what is in force stays: in use %q, permitted %q", g.Needed(), g.Permitted())
	}
	g.Apply([]policy.Change{a})
	expect("one that needs no more", "a")
	g.Apply([]policy.Change{{Owner: "b"}})
	expect("one that goes", "-b")
	g.Apply([]policy.Change{b})
	expect("one that comes back")
	g.Apply([]policy.Change{{Owner: "a"}})
	expect("one that waits behind it")
	g.Apply([]policy.Change{{Owner: "b"}})
	expect("who waited is gone", "-a -b")
	// One new key after the other, each before the one before it is permitted.
	g.Apply([]policy.Change{selecting(t, "new", "k3")})
	g.Apply([]policy.Change{a})
	g.Apply([]policy.Change{selecting(t, "new", "k4"), c})
	expect("none is permitted")
	g.Permit(labels.KeysOf("k1", "k3"))
	expect("the first", "new")
	if !slices.Equal(g.Waiting(), []policy.Owner{"a", "c", "new"}) {
		t.Errorf("waiting %q", g.Waiting())
	}
	g.Apply([]policy.Change{selecting(t, "new", "k5")})
	g.Permit(labels.KeysOf("k1", "k3", "k4"))
	expect("what came next, with the changes that waited for it", "a c new")
	g.Permit(labels.KeysOf("k1", "k3", "k4", "k5"))
	expect("the last", "new")
	if len(g.Waiting()) > 0 {
		t.Errorf("waiting %q", g.Waiting())
	}
}
