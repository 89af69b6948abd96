package restapi

import (
	"testing"

	"github.com/hawser-net/hawser/api/rest"
	"github.com/hawser-net/hawser/internal/labels"
)

// Who reaches the socket, or writes a CNI configuration, chooses labels of a workload, but none
// that would give it another identity in a rule.
func TestNetworkLabelsCannotBeSet(t *testing.T) {
	t.Parallel()
	a := New(Config{Options: Options{ClusterName: "default"}})
	owned := []string{
		"reserved:host", "cidr:10.0.0.0/8", "cidrgroup:x", "block:10.0.0.0/8", "fqdn:example.org", "node:a=b", "directory:a=b", "gen:a=b",
	}
	keys := []string{"k8s:io.kubernetes.pod.namespace=kube-system", "k8s:io.cilium.k8s.policy.cluster=other", "cni:io.cilium.k8s.policy.serviceaccount=root"}
	for _, l := range append(owned, keys...) {
		set, err := labels.ParseSet([]string{l})
		if err != nil {
			t.Fatal(err)
		}
		if labels.CheckGiven(set) == nil {
			t.Errorf("%s can be set as a user's label", l)
		}
		if set, err := a.workloadLabels(&rest.EndpointChangeRequest{Labels: []string{"cni:app=web", l}}); err == nil {
			t.Errorf("%s: a workload that is no pod got the labels %v", l, set)
		}
	}
	for _, l := range owned {
		if set, err := a.workloadLabels(&rest.EndpointChangeRequest{K8SNamespace: "default", K8SPodName: "web", Labels: []string{l}}); err == nil {
			t.Errorf("%s: a pod got the labels %v", l, set)
		}
	}
	for _, l := range []string{"k8s:app=web", "cni:app=web", "app=web", "container:x=y"} {
		set, err := labels.ParseSet([]string{l})
		if err != nil {
			t.Fatal(err)
		}
		if err := labels.CheckGiven(set); err != nil {
			t.Errorf("%s: %v", l, err)
		}
	}
}
