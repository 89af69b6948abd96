package identities

import (
	"errors"
	"hash/fnv"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"

	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/labels"
)

// Rules define which labels make a pod's identity. Agents must have the same options, or they and
// the operator mean different identities.
type Rules struct {
	// Cluster is the cluster's name.
	Cluster string
	Filter  *labels.Filter
	// Fixed and WellKnown have IDs without an object.
	Fixed     identity.Fixed
	WellKnown []identity.WellKnown
	// First and Last bound the IDs of this cluster.
	First, Last identity.ID

	// keys, if not nil, are those of the labels that count; see Controller.SetKeys.
	keys atomic.Pointer[labels.Keys]
}

// relevant returns the keys of the labels that count.
func (r *Rules) relevant() labels.Keys {
	if k := r.keys.Load(); k != nil {
		return *k
	}
	return labels.AllKeys()
}

// target is the identity that a pod is to have.
type target struct {
	labels labels.Set
	text   string // canonical
	// fixedID is one that the labels have by rule; 0 if one must be made.
	fixedID identity.ID
	// full identifies the label set that a pod would have if all labels counted; 0 for one with an
	// ID by rule.
	full uint64
}

var errNoLabels = errors.New("no label of the pod makes an identity: see --labels and --label-prefix-file")

// IdentityOf returns the identity of a pod in a namespace with these labels: the canonical form of
// its labels, and the ID, if they have one by rule, else 0.
func (r *Rules) IdentityOf(p *corev1.Pod, namespace map[string]string) (canonical string, number int64, err error) {
	t, err := r.target(p, namespace)
	return t.text, int64(t.fixedID), err
}

// target returns the identity of a pod in a namespace with these labels.
func (r *Rules) target(p *corev1.Pod, namespace map[string]string) (target, error) {
	all, err := labels.PodLabels(labels.Pod{
		Namespace: p.Namespace, ServiceAccount: p.Spec.ServiceAccountName, Cluster: r.Cluster, Labels: p.Labels, NamespaceLabels: namespace,
	})
	if err != nil {
		return target{}, err
	}
	full, _ := r.Filter.Split(all)
	keys := r.relevant()
	set := keys.Project(full)
	if len(set) == 0 {
		return target{}, errNoLabels
	}
	t := target{labels: set, text: set.KVString()}
	if t.fixedID, err = r.byRule(set); err != nil {
		return target{}, err
	}
	byRule, text := t.fixedID, t.text
	if len(full) != len(set) {
		if byRule, err = r.byRule(full); err != nil {
			return target{}, err
		}
		text = full.KVString()
	}
	if byRule == 0 {
		h := fnv.New64a()
		h.Write([]byte(text))
		t.full = h.Sum64()
	}
	return t, nil
}

// byRule returns the ID that a set of labels has without an object, 0 if it needs one.
func (r *Rules) byRule(set labels.Set) (identity.ID, error) {
	if id, ok := identity.ReservedID(set); ok {
		return id, nil
	}
	if id, ok, err := r.Fixed.ForPod(set); ok || err != nil {
		return id, err
	}
	id, _ := identity.LookupWellKnown(r.WellKnown, set)
	return id, nil
}
