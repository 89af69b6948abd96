package identities

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/api/v2alpha1"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/k8s"
	k8sids "github.com/hawser-net/hawser/internal/k8s/identities"
	"github.com/hawser-net/hawser/internal/labels"
)

// testRules are those of a cluster called "default" with few IDs and one fixed identity.
func testRules(t testing.TB, first, last identity.ID) *Rules {
	t.Helper()
	c := ControlDefaults()
	c.Fixed = map[string]string{"130": "store"}
	r, err := c.Rules("default", first, last)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// worldly is a cluster as a test has it: plain objects, from which the oracle computes everything
// anew.
type worldly struct {
	rules      *Rules
	version    int
	namespaces map[string]*corev1.Namespace
	pods       map[key]*corev1.Pod
	endpoints  map[key]*v2.CiliumEndpoint
	ids        map[string]*v2.CiliumIdentity
	slices     map[string]*v2alpha1.CiliumEndpointSlice

	targets map[targetOf]target // what is known already: objects here are replaced, not changed
}

// targetOf is what a pod's identity follows from.
type targetOf struct {
	pod       *corev1.Pod
	namespace *corev1.Namespace
}

func newWorldly(rules *Rules) *worldly {
	return &worldly{rules: rules, version: 1, namespaces: map[string]*corev1.Namespace{}, pods: map[key]*corev1.Pod{},
		endpoints: map[key]*v2.CiliumEndpoint{}, ids: map[string]*v2.CiliumIdentity{}, slices: map[string]*v2alpha1.CiliumEndpointSlice{},
		targets: map[targetOf]target{}}
}

func (w *worldly) meta(namespace, name string) metav1.ObjectMeta {
	w.version++
	return metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(fmt.Sprint("uid-", w.version)), ResourceVersion: strconv.Itoa(w.version)}
}

// target is what the oracle knows of a pod's identity: nothing of the index's maps.
func (w *worldly) target(k key) (target, bool) {
	p, ns := w.pods[k], w.namespaces[k.Namespace]
	if p == nil || ns == nil || !k8s.Networked(p) {
		return target{}, false
	}
	of := targetOf{p, ns}
	if t, ok := w.targets[of]; ok {
		return t, true
	}
	t, err := w.rules.target(p, ns.Labels)
	if err == nil {
		w.targets[of] = t
	}
	return t, err == nil
}

// podsOf returns the pods of a set of labels.
func (w *worldly) podsOf(text string) (out []key) {
	for k := range w.pods {
		if t, ok := w.target(k); ok && t.text == text {
			out = append(out, k)
		}
	}
	return out
}

// live returns the IDs of a set of labels, the oldest first.
func (w *worldly) live(text string) (out []*v2.CiliumIdentity) {
	for _, o := range w.ids {
		if _, _, quarantined := k8sids.Quarantined(o); !quarantined && textOf(o) == text {
			out = append(out, o)
		}
	}
	slices.SortFunc(out, func(x, y *v2.CiliumIdentity) int {
		a, _ := strconv.Atoi(x.Name)
		b, _ := strconv.Atoi(y.Name)
		return cmp.Or(x.CreationTimestamp.Compare(y.CreationTimestamp.Time), cmp.Compare(a, b))
	})
	return out
}

// owned reports whether an endpoint is a pod's.
func owned(e *v2.CiliumEndpoint, p *corev1.Pod) bool {
	if len(e.OwnerReferences) == 0 {
		return true
	}
	return e.OwnerReferences[0].Kind == "Pod" && e.OwnerReferences[0].UID == p.UID
}

// claimOf returns the ID that the endpoint of a node's pod names for the pod's labels, and
// these; 0 otherwise.
func (w *worldly) claimOf(k key) (identity.ID, string) {
	t, ok := w.target(k)
	e := w.endpoints[k]
	if !ok || e == nil || e.Status.Identity == nil || !owned(e, w.pods[k]) || w.pods[k].Spec.NodeName == "" {
		return 0, ""
	}
	id := e.Status.Identity.ID
	if id < int64(w.rules.First) || id > int64(w.rules.Last) || !slices.Equal(slices.Sorted(slices.Values(e.Status.Identity.Labels)), slices.Sorted(slices.Values(t.labels.Strings()))) {
		return 0, ""
	}
	return identity.ID(id), t.text
}

// lost returns the ID that a pod's endpoint claims, if the labels have none and it can become
// theirs; 0 otherwise.
func (w *worldly) lost(k key) identity.ID {
	id, text := w.claimOf(k)
	if id == 0 || len(w.live(text)) > 0 {
		return 0
	}
	if o := w.ids[decimal(id)]; o != nil {
		if was, _, quarantined := k8sids.Quarantined(o); quarantined && was == text {
			return id
		}
		return 0
	}
	for other := range w.endpoints {
		if theirs, what := w.claimOf(other); theirs == id && what != text {
			return 0
		}
	}
	return id
}

// set is the oracle for decideSet.
func (w *worldly) set(text string) (action, identity.ID) {
	for _, o := range w.live(text) {
		if id, _ := idOf(o.Name, w.rules.First, w.rules.Last); k8sids.Given(o) == "" && w.used(id) {
			return seal, id
		}
	}
	pods := w.podsOf(text)
	if len(pods) == 0 {
		return nothing, 0
	}
	if t, _ := w.target(pods[0]); t.fixedID != 0 {
		return nothing, 0
	}
	count := map[identity.ID]map[string]bool{} // nodes
	for _, k := range pods {
		if id := w.lost(k); id != 0 {
			if count[id] == nil {
				count[id] = map[string]bool{}
			}
			count[id][w.pods[k].Spec.NodeName] = true
		}
	}
	if len(count) > 0 {
		ids := slices.Collect(maps.Keys(count))
		slices.SortFunc(ids, func(x, y identity.ID) int {
			return cmp.Or(-cmp.Compare(len(count[x]), len(count[y])), cmp.Compare(x, y))
		})
		return restore, ids[0]
	}
	if len(w.live(text)) > 0 {
		return nothing, 0
	}
	return create, 0
}

// endpoint is the oracle for decideEndpoint: the ID to write, 0 for none.
func (w *worldly) endpoint(k key) identity.ID {
	t, ok := w.target(k)
	e := w.endpoints[k]
	if !ok || e == nil || !owned(e, w.pods[k]) {
		return 0
	}
	var has int64
	if e.Status.Identity != nil {
		has = e.Status.Identity.ID
	}
	if t.fixedID != 0 {
		if has == int64(t.fixedID) {
			return 0
		}
		return t.fixedID
	}
	live := w.live(t.text)
	if slices.ContainsFunc(live, func(o *v2.CiliumIdentity) bool { return o.Name == strconv.FormatInt(has, 10) }) || len(live) == 0 {
		return 0
	}
	id, _ := idOf(live[0].Name, w.rules.First, w.rules.Last)
	return id
}

// used is the oracle for used.
func (w *worldly) used(id identity.ID) bool {
	for _, e := range w.endpoints {
		if e.Status.Identity != nil && e.Status.Identity.ID == int64(id) {
			return true
		}
	}
	for _, s := range w.slices {
		for _, e := range s.Endpoints {
			if e.IdentityID == int64(id) {
				return true
			}
		}
	}
	o := w.ids[decimal(id)]
	if o == nil {
		return false
	}
	if _, _, quarantined := k8sids.Quarantined(o); quarantined {
		return false
	}
	text := textOf(o)
	return len(w.podsOf(text)) > 0 && w.live(text)[0] == o
}

// spare is the oracle for spare.
func (w *worldly) spare(id identity.ID) bool {
	o := w.ids[decimal(id)]
	if o == nil {
		return false
	}
	if was, _, quarantined := k8sids.Quarantined(o); quarantined {
		return len(w.live(was)) > 0
	}
	return w.live(textOf(o))[0] != o
}

// texts returns all sets of labels that anything has.
func (w *worldly) texts() map[string]bool {
	out := map[string]bool{}
	for k := range w.pods {
		if t, ok := w.target(k); ok {
			out[t.text] = true
		}
	}
	for _, o := range w.ids {
		if was, _, quarantined := k8sids.Quarantined(o); quarantined {
			out[was] = true
		} else {
			out[textOf(o)] = true
		}
	}
	delete(out, "")
	return out
}

// change does one random thing to the cluster and notifies b of it.
func (w *worldly) change(r *rand.Rand, b *index) string {
	ns, name := fmt.Sprint("ns", r.IntN(3)), fmt.Sprint("pod", r.IntN(5))
	k := key{Namespace: ns, Name: name}
	number := fmt.Sprint(int(w.rules.First) + r.IntN(int(w.rules.Last-w.rules.First)+1))
	switch r.IntN(13) {
	case 0:
		o := &corev1.Namespace{ObjectMeta: w.meta("", ns)}
		o.Labels = map[string]string{"team": fmt.Sprint(r.IntN(2))}
		w.namespaces[ns] = o
		b.setNamespace(o)
		return "namespace " + ns + " " + o.Labels["team"]
	case 1:
		if r.IntN(4) == 0 {
			delete(w.namespaces, ns)
			b.dropNamespace(ns)
			return "no namespace " + ns
		}
		return "nothing"
	case 2, 3, 4:
		o := &corev1.Pod{ObjectMeta: w.meta(ns, name), Spec: corev1.PodSpec{ServiceAccountName: "default", HostNetwork: r.IntN(9) == 0}}
		if old := w.pods[k]; old != nil && r.IntN(3) > 0 {
			o.UID = old.UID
		}
		o.Labels = map[string]string{"app": fmt.Sprint(r.IntN(3))}
		if r.IntN(9) == 0 {
			o.Labels[labels.KeyFixedIdentity] = []string{"store", "unknown"}[r.IntN(2)]
		}
		if r.IntN(3) > 0 {
			o.Spec.NodeName = fmt.Sprint("node", r.IntN(2))
		}
		if r.IntN(8) == 0 {
			o.Status.Phase = corev1.PodSucceeded
		}
		w.pods[k] = o
		b.setPod(o)
		return fmt.Sprint("pod ", k, o.Labels, o.Spec.NodeName, o.Status.Phase)
	case 5:
		delete(w.pods, k)
		b.dropPod(k)
		return fmt.Sprint("no pod ", k)
	case 6, 7, 8:
		o := &v2.CiliumEndpoint{ObjectMeta: w.meta(ns, name)}
		if p := w.pods[k]; p != nil && r.IntN(6) > 0 {
			o.OwnerReferences = []metav1.OwnerReference{{Kind: "Pod", Name: name, UID: p.UID}}
		} else if r.IntN(2) == 0 {
			o.OwnerReferences = []metav1.OwnerReference{{Kind: []string{"Pod", "Other"}[r.IntN(2)], Name: name, UID: "gone"}}
		}
		if r.IntN(5) > 0 {
			id, _ := strconv.Atoi(number)
			o.Status.Identity = &v2.EndpointIdentity{ID: int64(id)}
			if t, ok := w.target(k); ok && r.IntN(4) > 0 {
				o.Status.Identity.Labels = t.labels.Strings()
			}
		}
		w.endpoints[k] = o
		b.setEndpoint(o)
		return fmt.Sprint("endpoint ", k, o.OwnerReferences, o.Status.Identity)
	case 9:
		delete(w.endpoints, k)
		b.dropEndpoint(k)
		return fmt.Sprint("no endpoint ", k)
	case 10:
		// Another object, as an identity's labels never change; what happens if a client changes
		// them is another test's.
		if w.ids[number] != nil {
			dropObject(b, number)
		}
		o := &v2.CiliumIdentity{ObjectMeta: w.meta("", number)}
		o.CreationTimestamp = metav1.NewTime(time.Unix(int64(r.IntN(4)), 0))
		all := slices.Sorted(maps.Keys(w.texts()))
		if len(all) == 0 {
			all = []string{"k8s:app=x;"}
		}
		text := all[r.IntN(len(all))]
		set, err := labels.ParseKV(text)
		if err != nil {
			panic(err)
		}
		o.SecurityLabels = k8sids.SecurityLabels(set)
		switch r.IntN(4) {
		case 0:
			k8sids.Quarantine(o, text, time.Unix(0, 0))
		case 1: // as of a version before digests
		default:
			k8sids.Seal(o)
		}
		w.ids[number] = o
		setObject(b, o)
		return fmt.Sprint("identity ", number, o.SecurityLabels, o.Annotations)
	case 11:
		delete(w.ids, number)
		dropObject(b, number)
		return "no identity " + number
	default:
		o := &v2alpha1.CiliumEndpointSlice{ObjectMeta: w.meta("", fmt.Sprint("ces", r.IntN(2)))}
		for range r.IntN(3) {
			o.Endpoints = append(o.Endpoints, v2alpha1.CoreCiliumEndpoint{IdentityID: int64(int(w.rules.First) + r.IntN(4))})
		}
		w.slices[o.Name] = o
		b.setSlice(o)
		return fmt.Sprint("slice ", o.Name, o.Endpoints)
	}
}

// anew returns an index that observes everything in some order.
func (w *worldly) anew(r *rand.Rand) *index {
	b := newIndex(w.rules, -1)
	var events []func()
	for _, o := range w.namespaces {
		events = append(events, func() { b.setNamespace(o) })
	}
	for _, o := range w.pods {
		events = append(events, func() { b.setPod(o) })
	}
	for _, o := range w.endpoints {
		events = append(events, func() { b.setEndpoint(o) })
	}
	for _, o := range w.ids {
		events = append(events, func() { setObject(b, o) })
	}
	for _, o := range w.slices {
		events = append(events, func() { b.setSlice(o) })
	}
	r.Shuffle(len(events), func(i, j int) { events[i], events[j] = events[j], events[i] })
	for _, f := range events {
		f()
	}
	return b
}

// decisions are all that is to be done, as text.
func (w *worldly) decisions() map[string]string {
	out := map[string]string{}
	for text := range w.texts() {
		if v, id := w.set(text); v != nothing {
			out["set "+text] = fmt.Sprint(v, " ", uint32(id))
		}
	}
	for k := range w.endpoints {
		if id := w.endpoint(k); id != 0 {
			out["endpoint "+k.String()] = fmt.Sprint(uint32(id))
		}
	}
	return out
}

func decisionsOf(w *worldly, b *index) map[string]string {
	out := map[string]string{}
	for text := range w.texts() {
		if st := b.decideSet(text); st.action != nothing {
			out["set "+text] = fmt.Sprint(st.action, " ", uint32(st.id))
		}
	}
	for k := range w.endpoints {
		if c, ok := b.decideEndpoint(k); ok {
			out["endpoint "+k.String()] = fmt.Sprint(uint32(c.id))
		}
	}
	return out
}

// TestIndexAgreesWithOracle does random things to a cluster: what is to be done must always be what
// a computation from all objects says, whatever the order in which they came; and whatever changes
// must be looked at again. It is "Operator changes 5" of CFP-27752, and "Two CEP writing sources".
func TestIndexAgreesWithOracle(t *testing.T) {
	t.Parallel()
	rules := testRules(t, 300, 307)
	seeds := uint64(10)
	switch {
	case os.Getenv("HAWSER_LONG") != "":
		seeds = 300
	case os.Getenv("CI") == "true":
		seeds = 30
	}
	for seed := range seeds {
		r := rand.New(rand.NewPCG(seed, 1))
		w, b := newWorldly(rules), newIndex(rules, -1)
		var history []string
		before := map[string]string{}
		for i := range 120 {
			history = append(history, w.change(r, b))
			want := w.decisions()
			got := decisionsOf(w, b)
			if !maps.Equal(want, got) {
				t.Fatalf("seed %d (-oracle +index):\n%s\nhistory: %q", seed, gocmp.Diff(want, got), history)
			}
			if i%4 == 0 { // the comparison with a new index takes the most time
				if got := decisionsOf(w, w.anew(r)); !maps.Equal(want, got) {
					t.Fatalf("seed %d (-oracle +index that gets it in another order):\n%s\nhistory: %q", seed, gocmp.Diff(want, got), history)
				}
			}
			sets, endpoints := b.take()
			looked := map[string]bool{}
			for _, text := range sets {
				looked["set "+text] = true
			}
			for _, k := range endpoints {
				looked["endpoint "+k.String()] = true
			}
			for what, decision := range want {
				if before[what] != decision && !looked[what] {
					t.Fatalf("seed %d: %s became %s and is not queued; history: %q", seed, what, decision, history)
				}
			}
			before = want
			for id := rules.First; id <= rules.Last; id++ {
				if w.used(id) != b.used(id) {
					t.Fatalf("seed %d: used(%d) is %t; history: %q", seed, id, b.used(id), history)
				}
				if w.spare(id) != b.spare(id) {
					t.Fatalf("seed %d: spare(%d) is %t; history: %q", seed, id, b.spare(id), history)
				}
			}
		}
		// Nothing is left of what is gone.
		for k := range w.pods {
			b.dropPod(k)
		}
		for name := range w.namespaces {
			b.dropNamespace(name)
		}
		for k := range w.endpoints {
			b.dropEndpoint(k)
		}
		for name := range w.ids {
			dropObject(b, name)
		}
		for name := range w.slices {
			b.dropSlice(name)
		}
		if n := len(b.pods) + len(b.inside) + len(b.sets) + len(b.endpoints) + len(b.ids) + len(b.slices) + len(b.named) + len(b.claimed) + len(b.namespaces) + len(b.former) + b.unscheduled; n != 0 {
			t.Fatalf("seed %d: something is left: %+v", seed, b)
		}
	}
}

// setObject and dropObject notify an index of an identity that is an object.
func setObject(b *index, o *v2.CiliumIdentity) {
	if now, ok := b.rules.idEntryOf(o); ok {
		b.setID(now)
	}
}

func dropObject(b *index, name string) {
	if id, ok := idOf(name, b.rules.First, b.rules.Last); ok {
		b.dropID(id)
	}
}
