package labels

import (
	"fmt"
	"strings"
)

// Pod is what the labels of a pod are made from.
type Pod struct {
	Namespace       string
	ServiceAccount  string // may be empty
	Cluster         string
	Labels          map[string]string // the pod's own; untrusted
	NamespaceLabels map[string]string
}

// PodLabels returns all labels of a pod, before the identity filter. The pod's own labels cannot
// set what the network sets: keys under PrefixOwned are stripped, and the namespace, the
// namespace's labels, the service account and the cluster are written last. A label that could not
// be told apart in the canonical string is an error.
func PodLabels(p Pod) (Set, error) {
	ls := make([]Label, 0, len(p.Labels)+len(p.NamespaceLabels)+4)
	for k, v := range p.Labels {
		// The namespace is dropped even where PodLabels gets none: what is missing must not be
		// supplied by the pod.
		if strings.HasPrefix(k, PrefixOwned) || k == KeyNamespace {
			continue
		}
		ls = append(ls, Label{SourceK8s, k, v})
	}
	for k, v := range p.NamespaceLabels {
		ls = append(ls, Label{SourceK8s, KeyNamespaceLabels + "." + k, v})
	}
	ls = append(ls, Label{SourceK8s, KeyNamespace, p.Namespace})
	if p.ServiceAccount != "" {
		ls = append(ls, Label{SourceK8s, KeyServiceAccount, p.ServiceAccount})
	}
	if p.Cluster != "" {
		ls = append(ls, Label{SourceK8s, KeyCluster, p.Cluster})
	}
	set := NewSet(ls...)
	if err := set.Validate(); err != nil {
		return nil, fmt.Errorf("labels of a pod in namespace %q: %w", clip(p.Namespace), err)
	}
	return set, nil
}
