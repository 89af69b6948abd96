package identities

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/api/v2alpha1"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/k8s"
	k8sids "github.com/hawser-net/hawser/internal/k8s/identities"
	"github.com/hawser-net/hawser/internal/k8s/nodes"
	"github.com/hawser-net/hawser/internal/labels"
)

// key names an object in a namespace.
type key = types.NamespacedName

// index is the state of the cluster, and decides what to do. It does no I/O, has no clock and
// starts no goroutine; its owner must serialize calls. Its answers depend on the objects alone and
// not on the order in which they came, with two exceptions, whose loss is harmless: the labels of
// an object before an edit, and which objects this process created.
//
// Objects that it is notified of are kept and must not be changed.
type index struct {
	rules  *Rules
	budget int // of identities for pods that no node has; below 0 for any

	namespaces  map[string]map[string]string // their labels
	pods        map[key]*podEntry
	inside      map[string]map[key]*podEntry // pods by namespace
	sets        map[string]*setEntry         // by canonical labels
	endpoints   map[key]endpointEntry
	ids         map[identity.ID]*idEntry
	quarantined int                      // how many of them are in quarantine
	former      map[string][]identity.ID // these, by the labels that they had
	slices      map[string]map[identity.ID]int
	named       map[identity.ID]int                 // how many endpoints and entries of slices name an ID
	claimed     map[identity.ID]map[string]struct{} // sets that claim an ID
	spent       map[string]int                      // IDs that were restored on the claims of a node since the last full scan
	made        map[identity.ID]types.UID           // objects that this process made

	// agents means that agents may make identities, too. alone has the known nodes, and whether
	// their agents announce that they alone make identities.
	agents bool
	alone  map[string]bool

	have versions                 // the highest of the objects here, which its owner notes
	held map[identity.ID]struct{} // about to be collected
	full map[uint64]int           // pods by the labels that they had if all counted; see target.full

	// references means that an ID is in force only while there is a reference to it; kept are the
	// sets that this process holds one to.
	references bool
	kept       map[string]struct{}

	unscheduled int                 // sets that count against the budget
	waiting     map[string]struct{} // sets that the budget keeps waiting

	// What must be looked at again.
	dirtySets      map[string]struct{}
	dirtyEndpoints map[key]struct{}
}

type podEntry struct {
	obj   *corev1.Pod
	set   *setEntry // nil if the pod has no identity
	err   error     // why not, if it should
	told  string    // which reason, of which pod of this name, was reported
	claim claim
	full  uint64 // see target.full
}

// claim is that a pod's endpoint names an ID for the very labels of the pod's set; the zero
// claim is none. See refusal.
type claim struct {
	id   identity.ID
	node string // of the pod
}

// setEntry is a set of labels that pods or objects have.
type setEntry struct {
	target
	pods      map[key]*podEntry
	scheduled int
	claims    map[identity.ID]map[string]int // how many pods of a node claim an ID
	ids       []*idEntry                     // oldest first; nearly always one
	// counted means that the set counts against the budget; reserved that it does so because an
	// object is being made.
	counted, reserved bool
}

type endpointEntry struct {
	obj   *v2.CiliumEndpoint
	owner types.UID // of its pod; "" if absent, which matches any of that name
	id    identity.ID
	rv    uint64
	alien bool // belongs to something that is no pod
}

// idEntry is an ID as its identity store shows it: a CiliumIdentity, or a key of a store.
type idEntry struct {
	id   identity.ID
	uid  types.UID
	life types.UID // its incarnation
	rv   string
	born int64 // in units of the identity store's own
	// text is the labels that the ID stands for: the object's first ones. nowText is its present
	// ones. They differ if it was edited.
	text, nowText string
	// given, if not "", is a digest of what the ID stands for. It was edited before this
	// process observed it, so text is "".
	given string
	// certain means that text is no edit: it was there when the object was made, or agrees with the
	// object's digest. bare means that there is no digest, and could be one.
	certain, bare bool
	quarantined   bool
	since         time.Time // since when it is in quarantine
	set           *setEntry // of text, unless it is in quarantine
}

func newIndex(rules *Rules, budget int) *index {
	return &index{
		rules: rules, budget: budget,
		namespaces: map[string]map[string]string{}, pods: map[key]*podEntry{}, inside: map[string]map[key]*podEntry{}, sets: map[string]*setEntry{},
		endpoints: map[key]endpointEntry{}, ids: map[identity.ID]*idEntry{}, slices: map[string]map[identity.ID]int{},
		named: map[identity.ID]int{}, claimed: map[identity.ID]map[string]struct{}{}, spent: map[string]int{}, alone: map[string]bool{},
		made: map[identity.ID]types.UID{}, former: map[string][]identity.ID{}, waiting: map[string]struct{}{}, have: versions{}, held: map[identity.ID]struct{}{}, full: map[uint64]int{},
		kept: map[string]struct{}{}, dirtySets: map[string]struct{}{}, dirtyEndpoints: map[key]struct{}{},
	}
}

// version reads a resource version as a number; 0 if it is none.
func version(rv string) uint64 { return k8s.VersionOf(&metav1.ObjectMeta{ResourceVersion: rv}) }

// ---- namespaces and pods ------------------------------------------------------------------------

func (b *index) setNamespace(ns *corev1.Namespace) {
	old, known := b.namespaces[ns.Name]
	b.namespaces[ns.Name] = ns.Labels
	if known && maps.Equal(old, ns.Labels) {
		return
	}
	for k, p := range b.inside[ns.Name] {
		b.place(k, p)
	}
}

func (b *index) dropNamespace(name string) {
	delete(b.namespaces, name)
	for k, p := range b.inside[name] {
		b.place(k, p)
	}
}

func (b *index) setPod(obj *corev1.Pod) {
	k := key{Namespace: obj.Namespace, Name: obj.Name}
	p := b.pods[k]
	if p == nil {
		p = &podEntry{}
		b.pods[k] = p
		if b.inside[k.Namespace] == nil {
			b.inside[k.Namespace] = map[key]*podEntry{}
		}
		b.inside[k.Namespace][k] = p
	}
	if p.set != nil && p.obj.Spec.NodeName != "" {
		p.set.scheduled--
	}
	old := p.obj
	p.obj = obj
	if p.set != nil && obj.Spec.NodeName != "" {
		p.set.scheduled++
	}
	if old != nil && samePod(old, obj) {
		if p.set != nil && old.Spec.NodeName != obj.Spec.NodeName {
			b.claim(k, p)
			b.account(p.set)
			b.dirtySets[p.set.text] = struct{}{}
		}
		return
	}
	b.place(k, p)
}

// samePod reports whether two versions of a pod have the same identity.
func samePod(x, y *corev1.Pod) bool {
	return x.UID == y.UID && k8s.Networked(x) == k8s.Networked(y) && x.Spec.ServiceAccountName == y.Spec.ServiceAccountName && maps.Equal(x.Labels, y.Labels)
}

func (b *index) dropPod(k key) {
	p := b.pods[k]
	if p == nil {
		return
	}
	b.leave(k, p)
	delete(b.pods, k)
	if delete(b.inside[k.Namespace], k); len(b.inside[k.Namespace]) == 0 {
		delete(b.inside, k.Namespace)
	}
	b.dirtyEndpoints[k] = struct{}{}
}

// place puts a pod under the set of labels that it has now.
func (b *index) place(k key, p *podEntry) {
	b.dirtyEndpoints[k] = struct{}{}
	ns, known := b.namespaces[k.Namespace]
	p.err = nil
	if !known || !k8s.Networked(p.obj) {
		b.leave(k, p)
		return
	}
	t, err := b.rules.target(p.obj, ns)
	if err != nil {
		b.leave(k, p)
		p.err = err
		return
	}
	b.countFull(p, t.full)
	if p.set != nil && p.set.text == t.text { // another pod of the same name, perhaps
		b.claim(k, p)
		b.account(p.set)
		b.dirtySets[t.text] = struct{}{}
		return
	}
	b.leave(k, p)
	b.countFull(p, t.full)
	s := b.set(t.text)
	s.target = t
	p.set = s
	if s.pods == nil {
		s.pods = map[key]*podEntry{}
	}
	s.pods[k] = p
	if len(s.pods) == 1 {
		b.touchIDs(s)
	}
	if p.obj.Spec.NodeName != "" {
		s.scheduled++
	}
	b.claim(k, p)
	b.account(s)
	b.dirtySets[s.text] = struct{}{}
}

// claim notes which ID the pod's endpoint has for the pod's labels. A pod without a node has no
// agent that could have given it one.
func (b *index) claim(k key, p *podEntry) {
	s := p.set
	if s == nil {
		return
	}
	var now claim
	e, ok := b.endpoints[k]
	if ok && p.obj.Spec.NodeName != "" && e.of(p) && e.id >= b.rules.First && e.id <= b.rules.Last && sameLabels(e.obj.Status.Identity.Labels, s.labels) {
		now = claim{e.id, p.obj.Spec.NodeName}
	}
	if now != p.claim {
		b.count(s, p.claim, -1)
		b.count(s, now, 1)
		p.claim = now
		b.dirtySets[s.text] = struct{}{}
	}
}

// count counts claims. Other sets that claim an ID are looked at when one more does, or one
// less: see contested.
func (b *index) count(s *setEntry, c claim, n int) {
	if c.id == 0 {
		return
	}
	if s.claims == nil {
		s.claims = map[identity.ID]map[string]int{}
	}
	if s.claims[c.id] == nil {
		s.claims[c.id] = map[string]int{}
	}
	if b.claimed[c.id] == nil {
		b.claimed[c.id] = map[string]struct{}{}
	}
	if _, claims := b.claimed[c.id][s.text]; !claims {
		b.claimed[c.id][s.text] = struct{}{}
		b.contest(c.id)
	}
	if s.claims[c.id][c.node] += n; s.claims[c.id][c.node] > 0 {
		return
	}
	if delete(s.claims[c.id], c.node); len(s.claims[c.id]) > 0 {
		return
	}
	delete(s.claims, c.id)
	b.contest(c.id)
	if delete(b.claimed[c.id], s.text); len(b.claimed[c.id]) == 0 {
		delete(b.claimed, c.id)
	}
}

// contest has the sets looked at that claim an ID, but not their endpoints.
func (b *index) contest(id identity.ID) {
	for text := range b.claimed[id] {
		b.dirtySets[text] = struct{}{}
	}
}

// touchClaims has those looked at who claim an ID.
func (b *index) touchClaims(id identity.ID) {
	for text := range b.claimed[id] {
		b.touchSet(b.sets[text])
	}
}

// countFull counts a pod under the labels that it had if all counted.
func (b *index) countFull(p *podEntry, full uint64) {
	if p.full != 0 {
		if b.full[p.full]--; b.full[p.full] == 0 {
			delete(b.full, p.full)
		}
	}
	if p.full = full; full != 0 {
		b.full[full]++
	}
}

// leave takes a pod out of its set.
func (b *index) leave(k key, p *podEntry) {
	b.countFull(p, 0)
	s := p.set
	if s == nil {
		return
	}
	b.count(s, p.claim, -1)
	p.set, p.claim = nil, claim{}
	delete(s.pods, k)
	if p.obj.Spec.NodeName != "" {
		s.scheduled--
	}
	b.account(s)
	b.dirtySets[s.text] = struct{}{}
	if len(s.pods) == 0 {
		b.touchIDs(s)
	}
	b.tidy(s)
}

// touchIDs has those looked at who claim an ID of a set: whether they can have it depends on
// whether the set has pods.
func (b *index) touchIDs(s *setEntry) {
	for _, n := range s.ids {
		b.touchClaims(n.id)
	}
}

// set returns the entry of a set of labels.
func (b *index) set(text string) *setEntry {
	s := b.sets[text]
	if s == nil {
		s = &setEntry{target: target{text: text}}
		b.sets[text] = s
	}
	return s
}

// tidy forgets a set that nothing has.
func (b *index) tidy(s *setEntry) {
	if len(s.pods) == 0 && len(s.ids) == 0 && b.sets[s.text] == s {
		delete(b.sets, s.text)
		delete(b.waiting, s.text)
	}
}

// account counts a set against the budget if it has, or is about to get, an ID that only pods
// without a node need.
func (b *index) account(s *setEntry) {
	if len(s.ids) > 0 || len(s.pods) == 0 {
		s.reserved = false
	}
	now := len(s.pods) > 0 && s.scheduled == 0 && s.fixedID == 0 && (len(s.ids) > 0 || s.reserved)
	if now == s.counted {
		return
	}
	s.counted = now
	if now {
		b.unscheduled++
		return
	}
	b.unscheduled--
	for text := range b.waiting { // one may go ahead
		delete(b.waiting, text)
		if w := b.sets[text]; w != nil && w != s && w.pending() {
			b.dirtySets[text] = struct{}{}
			break
		}
	}
}

// pending reports whether a set has pods, but none of a node, and no ID.
func (s *setEntry) pending() bool { return len(s.pods) > 0 && s.scheduled == 0 && len(s.ids) == 0 }

// ---- endpoints and slices -----------------------------------------------------------------------

func (b *index) setEndpoint(obj *v2.CiliumEndpoint) {
	k := key{Namespace: obj.Namespace, Name: obj.Name}
	e := endpointEntry{obj: obj, rv: version(obj.ResourceVersion), alien: len(obj.OwnerReferences) > 0}
	for _, ref := range obj.OwnerReferences {
		if ref.Kind == "Pod" && ref.Name == obj.Name {
			e.owner, e.alien = ref.UID, false
		}
	}
	if id := obj.Status.Identity; id != nil && id.ID > 0 && id.ID <= int64(^uint32(0)) {
		e.id = identity.ID(id.ID)
	}
	old := b.endpoints[k]
	b.endpoints[k] = e
	b.name(old.id, -1)
	b.name(e.id, 1)
	b.touchEndpoint(k)
}

func (b *index) dropEndpoint(k key) {
	b.name(b.endpoints[k].id, -1)
	delete(b.endpoints, k)
	b.touchEndpoint(k)
}

// touchEndpoint queues an endpoint, and records its statement of its pod's labels.
func (b *index) touchEndpoint(k key) {
	b.dirtyEndpoints[k] = struct{}{}
	if p := b.pods[k]; p != nil {
		b.claim(k, p)
	}
}

// name counts who names an ID.
func (b *index) name(id identity.ID, n int) {
	if id == 0 {
		return
	}
	was := b.named[id] > 0
	if b.named[id] += n; b.named[id] <= 0 {
		delete(b.named, id)
	}
	if is := b.named[id] > 0; is == was {
		return
	}
	if e := b.ids[id]; e != nil && e.set != nil {
		b.dirtySets[e.set.text] = struct{}{} // a duplicate of ours, or our reference, may go, or one is needed
	}
}

func (b *index) setSlice(obj *v2alpha1.CiliumEndpointSlice) {
	now := map[identity.ID]int{}
	for i := range obj.Endpoints {
		if id := obj.Endpoints[i].IdentityID; id > 0 && id <= int64(^uint32(0)) {
			now[identity.ID(id)]++
		}
	}
	old := b.slices[obj.Name]
	b.slices[obj.Name] = now
	for id, n := range now { // first, so that none seems unused in between
		b.name(id, n)
	}
	for id, n := range old {
		b.name(id, -n)
	}
}

func (b *index) dropSlice(name string) {
	for id, n := range b.slices[name] {
		b.name(id, -n)
	}
	delete(b.slices, name)
}

// setNode records the announcement of a node's agent.
func (b *index) setNode(obj *v2.CiliumNode) {
	alone, known := b.alone[obj.Name]
	b.alone[obj.Name] = obj.Annotations[nodes.ManagementAnnotation] == string(identity.ManagedByAgent)
	if b.alone[obj.Name] || known && !alone {
		return
	}
	for at, p := range b.pods {
		if p.obj.Spec.NodeName == obj.Name {
			b.dirtyEndpoints[at] = struct{}{}
		}
	}
}

func (b *index) dropNode(k key) { delete(b.alone, k.Name) }

// ---- identities ---------------------------------------------------------------------------------

// idOf returns the ID that an object's name is; ok is false if it is none between first and
// last.
func idOf(name string, first, last identity.ID) (id identity.ID, ok bool) {
	n, err := strconv.ParseUint(name, 10, 32)
	id = identity.ID(n)
	return id, err == nil && id >= first && id <= last && decimal(id) == name
}

// textOf returns the canonical string of an object's labels; "" if they cannot be read, or it has
// none.
func textOf(obj *v2.CiliumIdentity) string {
	set, err := k8sids.ParseSecurityLabels(obj.SecurityLabels)
	if err != nil {
		return ""
	}
	return set.KVString()
}

// idEntryOf reads an object; ok is false if its name is no ID of this cluster's.
func (r *Rules) idEntryOf(obj *v2.CiliumIdentity) (now *idEntry, ok bool) {
	id, ok := idOf(obj.Name, r.First, r.Last)
	if !ok {
		return nil, false
	}
	now = &idEntry{id: id, uid: obj.UID, life: k8sids.Incarnation(obj), rv: obj.ResourceVersion, born: obj.CreationTimestamp.Unix()}
	if was, since, quarantined := k8sids.Quarantined(obj); quarantined {
		now.text, now.nowText, now.quarantined, now.since = was, was, true, since
		return now, true
	}
	set, err := k8sids.ParseSecurityLabels(obj.SecurityLabels)
	if err == nil {
		now.nowText = set.KVString()
	}
	now.text = now.nowText
	switch intact, sealed := k8sids.Intact(obj); {
	case intact:
		now.certain = true
	case sealed:
		now.text, now.given = "", k8sids.Given(obj)
	default:
		now.certain = obj.Generation <= 1 // the labels are unchanged since its creation
		now.bare = now.nowText != "" && maps.Equal(k8sids.SecurityLabels(set), obj.SecurityLabels)
	}
	return now, true
}

// inheritText keeps the labels of an ID: those of an identity never change, because nodes evaluate
// packets by them. If they were not certain, the object's present labels are used: otherwise an
// edit would be defended against being undone.
func (n *idEntry) inheritText(old *idEntry) {
	if old.text == "" || !old.certain && !n.wasGiven(old.text) {
		return
	}
	n.text, n.given, n.certain = old.text, "", true
}

// wasGiven reports whether, by its digest, text is the canonical string of an edited object's
// original labels.
func (n *idEntry) wasGiven(text string) bool {
	if n.given == "" {
		return false
	}
	k, err := parseKey(text)
	return err == nil && n.given == k8sids.Digest(k8sids.SecurityLabels(k.Set))
}

// setID notes an ID as it is now. The entry belongs to the index from here on.
func (b *index) setID(now *idEntry) {
	id := now.id
	old := b.ids[id]
	same := old != nil && old.life == now.life && old.quarantined == now.quarantined
	if same && !now.quarantined {
		now.inheritText(old)
	}
	if same && old.nowText == now.nowText && old.text == now.text && old.given == now.given { // only annotations changed
		if old.bare && !now.bare && old.set != nil {
			b.dirtySets[old.set.text] = struct{}{} // there may be another one
		}
		old.rv, old.bare, old.certain = now.rv, now.bare, now.certain
		return
	}
	if old != nil {
		b.detach(old)
	}
	if b.made[id] != now.uid {
		delete(b.made, id)
	}
	b.ids[id] = now
	b.attach(now)
}

// allTaken reports whether every ID is another set's, and none is in quarantine.
func (b *index) allTaken(text string) bool {
	if s := b.sets[text]; s != nil && len(s.ids) > 0 {
		return false
	}
	return b.quarantined == 0 && len(b.ids) == int(b.rules.Last-b.rules.First)+1
}

// dropID notes that an ID is gone.
func (b *index) dropID(id identity.ID) {
	if n := b.ids[id]; n != nil {
		b.detach(n)
		delete(b.ids, id)
		delete(b.made, id)
	}
}

// attach puts an ID under its set.
func (b *index) attach(n *idEntry) {
	b.touchClaims(n.id)
	if n.quarantined {
		b.quarantined++
		b.former[n.text] = append(b.former[n.text], n.id)
		b.dirtySets[n.text] = struct{}{} // a set that still needs it gets it back
		return
	}
	s := b.set(n.text)
	n.set = s
	s.ids = append(s.ids, n)
	slices.SortFunc(s.ids, func(x, y *idEntry) int { return cmp.Or(cmp.Compare(x.born, y.born), cmp.Compare(x.id, y.id)) })
	b.account(s)
	b.touchSet(s)
}

// detach is the inverse of attach.
func (b *index) detach(n *idEntry) {
	b.touchClaims(n.id)
	if n.quarantined {
		b.quarantined--
		rest := slices.DeleteFunc(b.former[n.text], func(id identity.ID) bool { return id == n.id })
		if b.former[n.text] = rest; len(rest) == 0 {
			delete(b.former, n.text)
		}
	}
	s := n.set
	if s == nil {
		return
	}
	n.set = nil
	s.ids = slices.DeleteFunc(s.ids, func(o *idEntry) bool { return o == n })
	b.account(s)
	b.touchSet(s)
	b.tidy(s)
}

// touchSet has a set looked at, with the endpoints of its pods.
func (b *index) touchSet(s *setEntry) {
	b.dirtySets[s.text] = struct{}{}
	for k := range s.pods {
		b.dirtyEndpoints[k] = struct{}{}
	}
}

// all marks everything as to be looked at.
func (b *index) all() {
	clear(b.spent)
	for text := range b.sets {
		b.dirtySets[text] = struct{}{}
	}
	for text := range b.kept {
		b.dirtySets[text] = struct{}{}
	}
	for k := range b.endpoints {
		b.dirtyEndpoints[k] = struct{}{}
	}
}

// take returns what must be looked at, and forgets it.
func (b *index) take() (sets []string, endpoints []key) {
	sets, endpoints = slices.Collect(maps.Keys(b.dirtySets)), slices.Collect(maps.Keys(b.dirtyEndpoints))
	clear(b.dirtySets)
	clear(b.dirtyEndpoints)
	return sets, endpoints
}

// sameLabels reports whether an endpoint's status gives these labels.
func sameLabels(have []string, want labels.Set) bool {
	if len(have) != len(want) {
		return false
	}
	set, err := labels.ParseSet(have)
	return err == nil && set.Equal(want)
}
