package hubble

import (
	"slices"
	"testing"

	"github.com/hawser-net/hawser/internal/policy"
)

// TestPolicyNamed: owners of rules are the policies that people know, of files and of Kubernetes.
func TestPolicyNamed(t *testing.T) {
	for owner, want := range map[policy.Owner][3]string{
		"web.yaml/default/front":              {"CiliumNetworkPolicy", "default", "front"},
		"web.yaml/everywhere":                 {"CiliumClusterwideNetworkPolicy", "", "everywhere"},
		"k8s/NetworkPolicy/shop/guard":        {"NetworkPolicy", "shop", "guard"},
		"k8s/ClusterNetworkPolicy/first":      {"ClusterNetworkPolicy", "", "first"},
		"k8s/CiliumNetworkPolicy/shop/guard2": {"CiliumNetworkPolicy", "shop", "guard2"},
		"odd":                                 {"CiliumClusterwideNetworkPolicy", "", "odd"},
	} {
		p := policyNamed(owner)
		if p.GetNamespace() != want[1] || p.GetName() != want[2] || !slices.Contains(p.GetLabels(), "k8s:io.cilium.k8s.policy.derived-from="+want[0]) {
			t.Errorf("%s is %v, want %v", owner, p, want)
		}
	}
}
