package usage

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/k8s"
	"github.com/hawser-net/hawser/internal/k8s/identities"
	"github.com/hawser-net/hawser/internal/labels"
)

// Answer describes an identity.
type Answer struct {
	// ID is 0 if the pod that was asked about has none.
	ID identity.ID `json:"id"`
	// Pod is what was asked about, if that was a pod: namespace/name.
	Pod string `json:"pod,omitempty"`
	// Exists means that there is an object for the ID.
	Exists bool `json:"exists"`
	// Labels are those that it stands for, sorted.
	Labels  []string  `json:"labels,omitempty"`
	Created time.Time `json:"created,omitzero"`
	// Endpoints name it, Slices hold entries that do; Waiting are pods that have all its labels and
	// no endpoint yet, or one that names another identity.
	Endpoints []Endpoint `json:"endpoints,omitempty"`
	Slices    []Slice    `json:"slices,omitempty"`
	Waiting   []Pod      `json:"waitingPods,omitempty"`
	// Duplicates are other IDs of the same labels. InForce is the one of all these that counts.
	Duplicates []identity.ID `json:"duplicates,omitempty"`
	InForce    identity.ID   `json:"inForce,omitempty"`
	// Marked is since when the collector has found it unused, Quarantined since when the ID is in
	// quarantine.
	Marked      time.Time `json:"marked,omitzero"`
	Quarantined time.Time `json:"quarantined,omitzero"`
	// Reasons explain why it still exists, or why there is none.
	Reasons []string `json:"reasons"`
}

// Endpoint is a CiliumEndpoint that names an identity.
type Endpoint struct {
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	Node      string    `json:"node,omitempty"`
	Since     time.Time `json:"since,omitzero"` // of the object
	// Gone means that there is no such pod: the object is left over.
	Gone bool `json:"podGone,omitempty"`
}

// Slice is a CiliumEndpointSlice with how many of its entries name an identity.
type Slice struct {
	Name      string `json:"name"`
	Namespace string `json:"namespace"`
	Entries   int    `json:"entries"`
}

// Pod is a pod that has the labels of an identity.
type Pod struct {
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	Node      string    `json:"node,omitempty"` // "" if it has none yet
	Since     time.Time `json:"since,omitzero"`
	// Named is the identity in its CiliumEndpoint, 0 if there is none or it names none.
	Named identity.ID `json:"identity,omitempty"`
}

// ErrNotFound means that there is no such pod, or that the ID is unknown.
var ErrNotFound = errors.New("not found")

// Why explains an identity: what is its ID, or a pod as namespace/name, or the name alone for
// one of the namespace default.
func (w *World) Why(what string) (Answer, error) {
	if id, err := identity.Parse(what); err == nil {
		return w.number(id)
	}
	namespace, name, ok := strings.Cut(what, "/")
	if !ok {
		namespace, name = "default", what
	}
	i := slices.IndexFunc(w.Pods, func(p corev1.Pod) bool { return p.Namespace == namespace && p.Name == name })
	if i < 0 {
		return Answer{}, fmt.Errorf("pod %s/%s: %w", namespace, name, ErrNotFound)
	}
	return w.pod(&w.Pods[i])
}

func (w *World) pod(p *corev1.Pod) (Answer, error) {
	name := p.Namespace + "/" + p.Name
	none := func(reason string) (Answer, error) { return Answer{Pod: name, Reasons: []string{reason}}, nil }
	switch {
	case p.Spec.HostNetwork:
		return none("the pod uses the network of its node: it is known by the identity of that, host or remote-node")
	case !k8s.Networked(p):
		return none("the pod has ended")
	}
	ep := w.endpoint(p.Namespace, p.Name)
	switch {
	case ep == nil && p.Spec.NodeName == "":
		return none("the pod has no node yet")
	case ep == nil:
		return none("the pod has no CiliumEndpoint yet: its node's agent makes it when the pod's network is set up")
	case ep.Status.Identity == nil:
		return none("the pod's CiliumEndpoint names no identity yet: none has been created for the pod's labels. The agent or the operator (--identity-management-mode) creates it; until then the agent uses a temporary one")
	}
	a, err := w.number(identity.ID(ep.Status.Identity.ID))
	if errors.Is(err, ErrNotFound) {
		a, err = Answer{ID: identity.ID(ep.Status.Identity.ID), Reasons: []string{"the pod's CiliumEndpoint names it, but there is no such object"}}, nil
	}
	a.Pod = name
	if a.Exists && !has(w.labelsOf(p), a.set()) {
		a.Reasons = append(a.Reasons, "the pod has other labels than the identity by now: there will be another one for it")
	}
	return a, err
}

func (w *World) number(id identity.ID) (Answer, error) {
	if id.IsTemporary() {
		return Answer{}, fmt.Errorf("%s means something on one node only: ask its agent by `hawser identity get %d` there: %w", id, uint32(id), ErrNotFound)
	}
	a := Answer{ID: id}
	i := slices.IndexFunc(w.Identities, func(o v2.CiliumIdentity) bool { return o.Name == strconv.Itoa(int(id)) })
	var set labels.Set
	if i >= 0 {
		o := &w.Identities[i]
		a.Exists, a.Created = true, o.CreationTimestamp.Time
		set = read(o)
		a.Labels = slices.Sorted(slices.Values(set.Strings()))
		w.state(&a, o)
		w.duplicates(&a, o, set)
	}
	w.users(&a, set)
	if !a.Exists && len(a.Endpoints)+len(a.Slices) == 0 {
		if set, ok := identity.ReservedLabels(id); ok {
			return Answer{ID: id, Labels: set.Strings(), Reasons: []string{"it is reserved: it exists in every cluster, without an object"}}, nil
		}
		if id.IsReserved() {
			return Answer{ID: id, Reasons: []string{"IDs below 256 are well-known or fixed (--fixed-identity-mapping): they exist without an object"}}, nil
		}
		return Answer{}, fmt.Errorf("identity %s: no object has that ID, and no object refers to it: %w", id, ErrNotFound)
	}
	a.explain()
	return a, nil
}

// state reads what the collector has written.
func (w *World) state(a *Answer, o *v2.CiliumIdentity) {
	if canonical, since, ok := identities.Quarantined(o); ok {
		a.Quarantined = since
		if set, err := labels.ParseKV(canonical); err == nil {
			a.Labels = slices.Sorted(slices.Values(set.Strings()))
		}
	}
	if text, ok := o.Annotations[identities.HeartbeatAnnotation]; ok {
		a.Marked, _ = time.Parse(time.RFC3339Nano, text)
	}
}

// duplicates finds the other IDs of the same labels, and which of all counts: the oldest.
func (w *World) duplicates(a *Answer, o *v2.CiliumIdentity, set labels.Set) {
	best := o
	for i := range w.Identities {
		other := &w.Identities[i]
		if other == o || len(set) == 0 || !read(other).Equal(set) {
			continue
		}
		if n, err := identity.Parse(other.Name); err == nil {
			a.Duplicates = append(a.Duplicates, n)
		}
		if c := other.CreationTimestamp.Compare(best.CreationTimestamp.Time); c < 0 || (c == 0 && number(other) < number(best)) {
			best = other
		}
	}
	slices.Sort(a.Duplicates)
	if len(a.Duplicates) > 0 {
		a.InForce = identity.ID(number(best))
	}
}

func number(o *v2.CiliumIdentity) uint64 {
	n, _ := strconv.ParseUint(o.Name, 10, 32)
	return n
}

// users finds who names the ID, and who will.
func (w *World) users(a *Answer, set labels.Set) {
	alive := map[string]*corev1.Pod{}
	for i := range w.Pods {
		alive[w.Pods[i].Namespace+"/"+w.Pods[i].Name] = &w.Pods[i]
	}
	for i := range w.Endpoints {
		o := &w.Endpoints[i]
		if namedBy(o) != a.ID {
			continue
		}
		ep := Endpoint{Namespace: o.Namespace, Name: o.Name, Since: o.CreationTimestamp.Time, Gone: true}
		if p := alive[o.Namespace+"/"+o.Name]; p != nil {
			ep.Gone, ep.Node = false, p.Spec.NodeName
		}
		a.Endpoints = append(a.Endpoints, ep)
	}
	slices.SortFunc(a.Endpoints, func(x, y Endpoint) int {
		return cmp.Or(cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.Name, y.Name))
	})
	for _, s := range w.Slices {
		n := 0
		for _, ep := range s.Endpoints {
			if identity.ID(ep.IdentityID) == a.ID {
				n++
			}
		}
		if n > 0 {
			a.Slices = append(a.Slices, Slice{Name: s.Name, Namespace: s.Namespace, Entries: n})
		}
	}
	slices.SortFunc(a.Slices, func(x, y Slice) int { return cmp.Compare(x.Name, y.Name) })
	if len(set) == 0 {
		return
	}
	for i := range w.Pods {
		p := &w.Pods[i]
		if !k8s.Networked(p) || !has(w.labelsOf(p), set) {
			continue
		}
		now := namedBy(w.endpoint(p.Namespace, p.Name))
		if now != a.ID {
			a.Waiting = append(a.Waiting, Pod{Namespace: p.Namespace, Name: p.Name, Node: p.Spec.NodeName, Since: p.CreationTimestamp.Time, Named: now})
		}
	}
	slices.SortFunc(a.Waiting, func(x, y Pod) int { return cmp.Or(cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.Name, y.Name)) })
}

// explain puts it into words.
func (a *Answer) explain() {
	say := func(format string, args ...any) { a.Reasons = append(a.Reasons, fmt.Sprintf(format, args...)) }
	left, entries := 0, 0
	for _, ep := range a.Endpoints {
		if ep.Gone {
			left++
		}
	}
	for _, s := range a.Slices {
		entries += s.Entries
	}
	switch {
	case !a.Exists:
		say("there is no such object; if the operator makes identities (--identity-management-mode) it makes this one again")
	case !a.Quarantined.IsZero():
		say("it was unused, and its ID is in quarantine since %s: it is not given to other labels while a node may know it, and then it is deleted", a.Quarantined.UTC().Format(time.RFC3339))
	}
	if n := len(a.Endpoints) - left; n > 0 {
		say("%s of pods that are there", count(n, "CiliumEndpoint names it", "CiliumEndpoints name it"))
	}
	if left > 0 {
		say("%s of pods that are gone: it stays until the operator has removed them", count(left, "CiliumEndpoint names it", "CiliumEndpoints name it"))
	}
	if entries > 0 {
		say("%s of CiliumEndpointSlices", count(entries, "entry names it", "entries name it"))
	}
	if n := len(a.Waiting); n > 0 {
		say("%s, whose CiliumEndpoint does not name it (yet)", count(n, "pod has all of its labels", "pods have all of its labels"))
	}
	if a.Exists && a.Quarantined.IsZero() && len(a.Endpoints)+entries+len(a.Waiting) == 0 {
		say("it is unused: the operator collects it when two rounds in a row (--identity-gc-interval) have found it so, and while many IDs are free not before it was unused for --identity-heartbeat-timeout (30m by default)")
	}
	if !a.Marked.IsZero() {
		say("the operator has found it unused at %s and deletes it unless it is used again", a.Marked.UTC().Format(time.RFC3339))
	}
	if a.InForce != 0 && a.InForce != a.ID {
		say("it is a duplicate: identity %s has the same labels and is older; pods move there, then it goes", a.InForce)
	}
}

func count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return strconv.Itoa(n) + " " + many
}

// set is the labels of the answer.
func (a *Answer) set() labels.Set {
	set, err := labels.ParseSet(a.Labels)
	if err != nil {
		return nil
	}
	return set
}

func (w *World) endpoint(namespace, name string) *v2.CiliumEndpoint {
	for i := range w.Endpoints {
		if w.Endpoints[i].Namespace == namespace && w.Endpoints[i].Name == name {
			return &w.Endpoints[i]
		}
	}
	return nil
}

// namedBy returns the ID that an endpoint's object names, 0 for none.
func namedBy(o *v2.CiliumEndpoint) identity.ID {
	if o == nil || o.Status.Identity == nil {
		return 0
	}
	return identity.ID(o.Status.Identity.ID)
}

// read returns the labels of an identity's object; none if they are invalid.
func read(o *v2.CiliumIdentity) labels.Set {
	ls := make([]labels.Label, 0, len(o.SecurityLabels))
	for _, name := range slices.Sorted(maps.Keys(o.SecurityLabels)) {
		source, key, ok := strings.Cut(name, ":")
		if !ok {
			source, key = "", name
		}
		ls = append(ls, labels.New(source, key, o.SecurityLabels[name]))
	}
	return labels.NewSet(ls...)
}

// labelsOf returns all labels that a pod has for the network, with those of its namespace. Which of
// them make its identity is a matter of the agents' options.
func (w *World) labelsOf(p *corev1.Pod) labels.Set {
	var namespace map[string]string
	for i := range w.Namespaces {
		if w.Namespaces[i].Name == p.Namespace {
			namespace = w.Namespaces[i].Labels
		}
	}
	set, err := labels.PodLabels(labels.Pod{Namespace: p.Namespace, ServiceAccount: p.Spec.ServiceAccountName, Labels: p.Labels, NamespaceLabels: namespace})
	if err != nil {
		return nil
	}
	return set
}

// has reports whether a pod has all labels of an identity. The name of the cluster is not looked
// at: the objects are of one cluster.
func has(pod, want labels.Set) bool {
	for _, l := range want {
		if l.Key == labels.KeyCluster {
			continue
		}
		if got, ok := pod.Get(l.Key); !ok || got != l {
			return false
		}
	}
	return len(pod) > 0
}
