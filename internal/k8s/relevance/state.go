package relevance

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-net/hawser/internal/labels"
)

// Flag is the name of the option that selects which labels make identities, on agents and operator.
const Flag = "identity-relevant-labels"

// Values of the option.
const (
	// AllLabels are those that the filter of labels leaves, whether or not a policy selects by
	// them.
	AllLabels = "all"
	// PolicyLabels are those of them that some policy selects.
	PolicyLabels = "policy"
)

// ParseFlag returns whether the option's value narrows identities to the labels that policies
// select.
func ParseFlag(value string) (narrow bool, err error) {
	switch value {
	case AllLabels:
		return false, nil
	case PolicyLabels:
		return true, nil
	}
	return false, fmt.Errorf("--%s: %q is neither %s nor %s", Flag, value, AllLabels, PolicyLabels)
}

// ConfigMapName is the name of the ConfigMap, in the namespace of the operator and the agents.
const ConfigMapName = "hawser-identity-labels"

// Entries of the ConfigMap.
const (
	generationEntry = "generation"
	keysEntry       = "keys"
	readyEntry      = "ready"
	endpointsEntry  = "endpoints-version"
	slicesEntry     = "slices-version"
	identitiesEntry = "identities-version"
)

// State is what the operator publishes.
type State struct {
	// Generation grows with each change, and begins with 1.
	Generation uint64
	// Keys are those by which identities are made.
	Keys labels.Keys
	// Ready are those by which all identities in use are made, and policies may be evaluated.
	// They are among Keys.
	Ready labels.Keys
	// Endpoints, Slices and Identities are versions of objects of these kinds: an observer of these
	// knows an identity made by Ready for every pod that existed. 0 if nothing of the kind matters.
	Endpoints, Slices, Identities uint64
}

// Everything is the state of a cluster in which nothing was ever published.
func Everything() State { return State{Keys: labels.AllKeys(), Ready: labels.AllKeys()} }

// Fill writes the state into an object, in place of its data.
func (s State) Fill(o *corev1.ConfigMap) {
	number := func(n uint64) string { return strconv.FormatUint(n, 10) }
	o.Data = map[string]string{
		generationEntry: number(s.Generation), keysEntry: s.Keys.String(), readyEntry: s.Ready.String(),
		endpointsEntry: number(s.Endpoints), slicesEntry: number(s.Slices), identitiesEntry: number(s.Identities),
	}
}

// Read parses an object. An entry that it does not understand is an error that names it: another
// program wrote it.
func Read(o *corev1.ConfigMap) (State, error) {
	var s State
	var errs []error
	fault := func(entry string, err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("entry %q: %w", entry, err))
		}
	}
	number := func(entry string, into *uint64) {
		n, err := strconv.ParseUint(o.Data[entry], 10, 64)
		fault(entry, err)
		*into = n
	}
	keys := func(entry string, into *labels.Keys) {
		text, there := o.Data[entry]
		if !there {
			fault(entry, errors.New("is missing"))
			return
		}
		k, err := labels.ParseKeys(text)
		fault(entry, err)
		*into = k
	}
	number(generationEntry, &s.Generation)
	keys(keysEntry, &s.Keys)
	keys(readyEntry, &s.Ready)
	number(endpointsEntry, &s.Endpoints)
	number(slicesEntry, &s.Slices)
	number(identitiesEntry, &s.Identities)
	if len(errs) == 0 && !s.Keys.Covers(s.Ready) {
		fault(readyEntry, fmt.Errorf("has keys that are not in %q", keysEntry))
	}
	if err := errors.Join(errs...); err != nil {
		return State{}, fmt.Errorf("ConfigMap %s/%s: %w", o.Namespace, o.Name, err)
	}
	return s, nil
}

// Answer is an agent's progress, by generations of [State]. An answer is valid for ever, over
// restarts too: of several of a node the highest counts.
type Answer struct {
	// Made is the last one by whose keys all endpoints of the node have their identity, and new
	// ones get it.
	Made uint64
	// Enforced is the last one outside of whose ready keys nothing is in force on the node, and
	// nothing will be.
	Enforced uint64
}

// Labels and annotations of the agents' Leases.
const (
	// LeaseLabel is on each of them, with LeaseLabelValue.
	LeaseLabel      = "network.hawser.net/part"
	LeaseLabelValue = "identity-labels"

	madeAnnotation     = "network.hawser.net/identity-labels-made"
	enforcedAnnotation = "network.hawser.net/identity-labels-enforced"
)

// maxName is the longest name of an object.
const maxName = 253

// Lease returns the object by which the agent of a node gives an answer. Each answer is an object
// of its own, so that agents need no right but to create some, in a namespace where the Leases of
// others are; the operator deletes those that a higher one supersedes.
func (a Answer) Lease(namespace, node string) *coordinationv1.Lease {
	end := fmt.Sprintf(".%d.%d", a.Made, a.Enforced)
	name := LeaseLabelValue + "." + node + end
	if len(name) > maxName {
		sum := sha256.Sum256([]byte(node))
		name = LeaseLabelValue + "." + hex.EncodeToString(sum[:]) + end
	}
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{LeaseLabel: LeaseLabelValue}, Annotations: a.annotations()},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: &node},
	}
}

// Join returns the combination of two answers of a node.
func (a Answer) Join(o Answer) Answer {
	return Answer{Made: max(a.Made, o.Made), Enforced: max(a.Enforced, o.Enforced)}
}

func (a Answer) annotations() map[string]string {
	return map[string]string{madeAnnotation: strconv.FormatUint(a.Made, 10), enforcedAnnotation: strconv.FormatUint(a.Enforced, 10)}
}

// ReadLease returns whose Lease it is and what it says. What cannot be read counts as no answer.
func ReadLease(o *coordinationv1.Lease) (node string, a Answer) {
	if o.Spec.HolderIdentity != nil {
		node = *o.Spec.HolderIdentity
	}
	number := func(key string) uint64 {
		n, err := strconv.ParseUint(o.Annotations[key], 10, 64)
		if err != nil {
			return 0
		}
		return n
	}
	return node, Answer{Made: number(madeAnnotation), Enforced: number(enforcedAnnotation)}
}
