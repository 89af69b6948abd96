package world

import (
	"math/rand/v2"
	"strings"
	"testing"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/testenv/policygen"
)

// What is left names the one thing that matters, and nothing else can be taken away.
func TestShrink(t *testing.T) {
	rule := func(peers ...v2.LabelValue) *v2.Rule {
		r := &v2.Rule{EndpointSelector: &v2.LabelSelector{}}
		for _, p := range peers {
			r.Ingress = append(r.Ingress, v2.IngressRule{FromEndpoints: []v2.LabelSelector{{MatchLabels: map[string]v2.LabelValue{"app": p}}, {}}})
		}
		return r
	}
	objects := []Object{
		{Namespaced: &v2.CiliumNetworkPolicy{Specs: []*v2.Rule{rule("a"), rule("b", "culprit", "c")}}},
		{Cluster: &v2.CiliumClusterwideNetworkPolicy{Specs: []*v2.Rule{rule("d")}}},
	}
	whole := objects[0].Text()
	small, tries, err := Shrink(objects, func(set []Object) (bool, error) {
		var all string
		for _, o := range set {
			all += o.Text()
		}
		return strings.Contains(all, "culprit"), nil
	})
	if err != nil || tries == 0 {
		t.Fatalf("%d tries: %v", tries, err)
	}
	if len(small) != 1 || len(small[0].Namespaced.Specs) != 1 {
		t.Fatalf("left: %d objects", len(small))
	}
	if r := small[0].Namespaced.Specs[0]; len(r.Ingress) != 1 || len(r.Ingress[0].FromEndpoints) != 1 {
		t.Errorf("left: %s", small[0].Text())
	}
	if objects[0].Text() != whole {
		t.Error("shrinking changed what it was given")
	}
}

// Every lesser object is smaller than its origin, or shrinking would not end.
func TestLesserIsSmaller(t *testing.T) {
	gen := &policygen.Generator{Rand: rand.New(rand.NewPCG(1, 2)), Words: policygen.Words{
		Namespaces: []string{"a"}, Clusters: []string{"c"}, CIDRs: []string{"10.0.0.0/8"},
		Wide4: []string{"10.0.0.0/8"}, Except4: []string{"10.1.0.0/16"}, Wide6: []string{"fd00::/8"}, Except6: []string{"fd00::/64"},
		Blocks4: []string{"10.0.0.0/8"}, BlockExcept4: []string{"10.1.0.0/16"}, Exact4: []string{"10.2.0.0/16"},
		Blocks6: []string{"fd00::/8"}, BlockExcept6: []string{"fd00::/64"},
		Networks: []string{"10.0.0.0/8"},
	}}
	for range 60 {
		o := Random(gen, "p")
		before := o.Text()
		for _, less := range o.lesser() {
			if len(less.Text()) >= len(before) {
				t.Fatalf("not smaller:\n%s\nthan\n%s", less.Text(), before)
			}
		}
		if o.Text() != before {
			t.Fatalf("changed by asking what is smaller:\n%s\n%s", before, o.Text())
		}
	}
}

func TestNames(t *testing.T) {
	got := strings.Join(names(`[{"owner":"k8s/NetworkPolicy/ns/b"},{"owner":"k8s/CiliumClusterwideNetworkPolicy/a"},{"owner":"k8s/NetworkPolicy/ns/b"}]`), " ")
	if got != "a b" {
		t.Errorf("names %q", got)
	}
	if len(names("x")) != 1 {
		t.Error("what is no list passes for one without names")
	}
}
