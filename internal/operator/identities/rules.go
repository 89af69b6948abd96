package identities

import (
	"errors"

	corev1 "k8s.io/api/core/v1"

	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/labels"
)

// Rules say which labels make a pod's identity. Agents must be told the same, or they and the operator mean different identities.
type Rules struct {
	// Cluster is the cluster's name.
	Cluster string
	Filter  *labels.Filter
	// Fixed and WellKnown have numbers without an object.
	Fixed     identity.Fixed
	WellKnown []identity.WellKnown
	// First and Last bound the numbers of this cluster.
	First, Last identity.ID
}

// target is the identity that a pod is to have.
type target struct {
	labels labels.Set
	text   string // canonical
	// number is one that the labels have by rule; 0 if one must be made.
	number identity.ID
}

var errNoLabels = errors.New("no label of the pod makes an identity: see --labels and --label-prefix-file")

// counts says whether a pod has an identity at all: not if it shares its node's network, and not any more when it has ended.
func counts(p *corev1.Pod) bool {
	return !p.Spec.HostNetwork && p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed
}

// IdentityOf returns the identity of a pod in a namespace with these labels: the canonical form of its labels, and the number, if they have one by rule, else 0.
func (r *Rules) IdentityOf(p *corev1.Pod, namespace map[string]string) (canonical string, number int64, err error) {
	t, err := r.target(p, namespace)
	return t.text, int64(t.number), err
}

// target returns the identity of a pod in a namespace with these labels.
func (r *Rules) target(p *corev1.Pod, namespace map[string]string) (target, error) {
	all, err := labels.PodLabels(labels.Pod{
		Namespace: p.Namespace, ServiceAccount: p.Spec.ServiceAccountName, Cluster: r.Cluster, Labels: p.Labels, NamespaceLabels: namespace,
	})
	if err != nil {
		return target{}, err
	}
	set, _ := r.Filter.Split(all)
	if len(set) == 0 {
		return target{}, errNoLabels
	}
	t := target{labels: set, text: set.KVString()}
	if id, ok := identity.ReservedID(set); ok {
		t.number = id
		return t, nil
	}
	id, ok, err := r.Fixed.ForPod(set)
	if err != nil {
		return target{}, err
	}
	if ok {
		t.number = id
	} else if id, ok := identity.LookupWellKnown(r.WellKnown, set); ok {
		t.number = id
	}
	return t, nil
}
