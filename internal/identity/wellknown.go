package identity

import "github.com/hawser-net/hawser/internal/labels"

// WellKnownFlag is the option by which the agents and the operator have such identities. Clusters
// that are connected do without them: each of their IDs would stand for another set of labels
// in every cluster.
const WellKnownFlag = "enable-well-known-identities"

// WellKnown is an identity that certain system pods have without allocation.
type WellKnown struct {
	ID     ID
	Labels labels.Set
}

// keyNamespaceName is the label that Kubernetes puts on every namespace, as a pod's label.
const keyNamespaceName = labels.KeyNamespaceLabels + ".kubernetes.io/metadata.name"

// WellKnownIdentities returns the well-known identities of a cluster, in order of their IDs.
// operatorNamespace is where the operator runs. Each exists twice: without and with the
// namespace's own name label. A set of labels has one of them only if it is exactly equal.
func WellKnownIdentities(cluster, operatorNamespace string) []WellKnown {
	type entry struct {
		id        ID
		namespace string
		account   string
		app       map[string]string
	}
	const eks = "eks.amazonaws.com/component"
	entries := []entry{
		{102, "kube-system", "kube-dns", map[string]string{"k8s-app": "kube-dns"}},
		{103, "kube-system", "kube-dns", map[string]string{"k8s-app": "kube-dns", eks: "kube-dns"}},
		{104, "kube-system", "coredns", map[string]string{"k8s-app": "kube-dns"}},
		{105, operatorNamespace, "cilium-operator", map[string]string{
			"name": "cilium-operator", "io.cilium/app": "operator",
			"app.kubernetes.io/part-of": "cilium", "app.kubernetes.io/name": "cilium-operator",
		}},
		{106, "kube-system", "coredns", map[string]string{"k8s-app": "kube-dns", eks: "coredns"}},
	}
	const second = 8 // distance to the variant with the namespace's name label
	out := make([]WellKnown, 0, 2*len(entries))
	for _, withName := range []bool{false, true} {
		for _, e := range entries {
			ls := []labels.Label{
				labels.New(labels.SourceK8s, labels.KeyNamespace, e.namespace),
				labels.New(labels.SourceK8s, labels.KeyServiceAccount, e.account),
				labels.New(labels.SourceK8s, labels.KeyCluster, cluster),
			}
			for k, v := range e.app {
				ls = append(ls, labels.New(labels.SourceK8s, k, v))
			}
			id := e.id
			if withName {
				id += second
				ls = append(ls, labels.New(labels.SourceK8s, keyNamespaceName, e.namespace))
			}
			out = append(out, WellKnown{ID: id, Labels: labels.NewSet(ls...)})
		}
	}
	return out
}

// LookupWellKnown returns the well-known identity with exactly these labels.
func LookupWellKnown(list []WellKnown, s labels.Set) (ID, bool) {
	for _, w := range list {
		if w.Labels.Equal(s) {
			return w.ID, true
		}
	}
	return Unknown, false
}
