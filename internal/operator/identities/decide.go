package identities

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/labels"
)

// action is what a set of labels needs.
type action int

const (
	// nothing: it has what it needs.
	nothing action = iota
	// create: it has no ID.
	create
	// restore: endpoints carry an ID of it whose object is gone, or in quarantine.
	restore
	// revert: the labels of an object of it were edited.
	revert
	// seal: an object of it has no digest of its labels yet.
	seal
	// withdraw: this process made an ID after another writer had made an older one.
	withdraw
	// wait: only pods without a node need an ID, and too many of these have one.
	wait
	// release: this process holds a reference to an ID that is no longer needed.
	release
)

// step is the next thing to do for a set of labels.
type step struct {
	action action
	text   string
	labels labels.Set
	// id is the ID to restore, revert, seal or withdraw; uid and rv are those of its object in
	// the last three.
	id  identity.ID
	uid types.UID
	rv  string
}

// fault returns a pod that should have an identity, and why its labels make none, the first time
// that it is asked; nil otherwise.
func (b *index) fault(k key) (*corev1.Pod, error) {
	p := b.pods[k]
	if p == nil || p.err == nil {
		return nil, nil
	}
	now := string(p.obj.UID) + " " + p.err.Error()
	if p.told == now {
		return nil, nil
	}
	p.told = now
	return p.obj, p.err
}

// decideSet reports what is to be done for a set of labels. It has no consequences but those for
// the budget.
func (b *index) decideSet(text string) step {
	s := b.sets[text]
	if _, kept := b.kept[text]; kept { // the holder of the reference restores what others delete or change
		if b.needed(s) {
			return step{}
		}
		return step{action: release, text: text}
	}
	if s == nil {
		return step{}
	}
	st := step{text: text, labels: s.labels}
	if b.references && len(s.ids) > 0 {
		if len(s.pods) > 0 && s.fixedID == 0 {
			st.action = create
		}
		return st
	}
	if n := b.duplicate(s); n != nil {
		st.action, st.id, st.uid, st.rv = withdraw, n.id, n.uid, n.rv
		return st
	}
	for _, n := range s.ids { // whether or not it is needed
		if n.nowText == text || n.given != "" { // which labels to give back is not known
			continue
		}
		if st.labels == nil { // no pod has them
			k, err := parseKey(text)
			if err != nil {
				continue
			}
			st.labels = k.Set
		}
		st.action, st.id, st.uid, st.rv = revert, n.id, n.uid, n.rv
		return st
	}
	for _, n := range s.ids {
		if n.bare && n.certain && n.nowText == text && b.used(n.id) {
			st.action, st.id, st.uid, st.rv = seal, n.id, n.uid, n.rv
			return st
		}
	}
	if len(s.pods) == 0 || s.fixedID != 0 {
		return step{}
	}
	if len(s.ids) > 0 {
		return step{}
	}
	if id := b.referenced(s); id != 0 {
		st.action, st.id = restore, id
		return st
	}
	st.action = create
	if s.scheduled == 0 && !s.counted {
		if b.budget >= 0 && b.unscheduled >= b.budget {
			b.waiting[text] = struct{}{}
			st.action = wait
			return st
		}
		s.reserved = true
		b.account(s)
	}
	delete(b.waiting, text)
	return st
}

// needed reports whether a reference to a set's ID must be kept: pods are to have it, or endpoints
// name it still. That endpoints name an ID is no reason to make a reference: it may have been given
// to these labels since.
func (b *index) needed(s *setEntry) bool {
	if s == nil || s.fixedID != 0 {
		return false
	}
	return len(s.pods) > 0 || slices.ContainsFunc(s.ids, func(n *idEntry) bool { return b.named[n.id] > 0 })
}

// keep notes that this process holds a reference to the ID of a set.
func (b *index) keep(text string) {
	b.kept[text] = struct{}{}
	b.dirtySets[text] = struct{}{} // what it is for may be gone by now
	if s := b.sets[text]; s != nil {
		b.touchSet(s)
	}
}

// gaveUp records that the ID of a set could not be made: it does not count against the budget
// meanwhile.
func (b *index) gaveUp(text string) {
	if s := b.sets[text]; s != nil && s.reserved {
		s.reserved = false
		b.account(s)
	}
}

// noteMade records that this process created an object, which it may withdraw if another writer was
// earlier.
func (b *index) noteMade(id identity.ID, uid types.UID) {
	b.made[id] = uid
	if n := b.ids[id]; n != nil && n.set != nil { // the watch was faster
		b.dirtySets[n.set.text] = struct{}{}
	}
}

// duplicate returns an object of the set that this process made without having seen an older one,
// and that no endpoint names.
func (b *index) duplicate(s *setEntry) *idEntry {
	if len(s.ids) < 2 {
		return nil
	}
	for _, n := range s.ids[1:] {
		if b.made[n.id] == n.uid && b.named[n.id] == 0 && n.nowText == n.text {
			return n
		}
	}
	return nil
}

// referenced returns an ID that endpoints of the set's pods carry for these very labels, and
// that can become the set's; 0 if there is none. Of several it is the one that pods of most nodes
// carry, then the smallest.
func (b *index) referenced(s *setEntry) identity.ID {
	var best identity.ID
	for id, nodes := range s.claims {
		if b.refusal(s, id) == believed && (best == 0 || len(nodes) > len(s.claims[best]) || (len(nodes) == len(s.claims[best]) && id < best)) {
			best = id
		}
	}
	return best
}

// of reports whether an endpoint is a pod's.
func (e *endpointEntry) of(p *podEntry) bool {
	return !e.alien && (e.owner == "" || e.owner == p.obj.UID)
}

// correction is what an endpoint's identity is to become.
type correction struct {
	key key
	uid types.UID
	rv  string
	// had is the ID that it names, 0 for none.
	had, id identity.ID
	labels  labels.Set
	// doubt means that the endpoint was written after all that is known of pods, or all that is
	// known of namespaces, so that its writer may have known more.
	doubt bool
	// unseen means that the ID that it names is not known as an identity, and would be left alone
	// if it were: its agent may have made it a moment ago.
	unseen bool
	// refused reports why its claim of the ID that it names is not believed; "" if it claims
	// none.
	refused refusal
	pod     types.UID
}

// decideEndpoint returns how an endpoint's identity is wrong; ok is false if it is right, or there
// is nothing right to name yet. An ID of the pod's labels is right, whoever wrote it, even if there
// is an older one.
func (b *index) decideEndpoint(k key) (c correction, ok bool) {
	e, known := b.endpoints[k]
	p := b.pods[k]
	if !known || p == nil || p.set == nil || !e.of(p) || e.obj.DeletionTimestamp != nil {
		return correction{}, false
	}
	s := p.set
	right := s.fixedID
	if right == 0 {
		if n := b.ids[e.id]; n != nil && !n.quarantined && n.text == s.text {
			return correction{}, false
		}
		if _, kept := b.kept[s.text]; b.references && !kept { // it may be collected still
			return correction{}, false
		}
		for _, n := range s.ids {
			if _, held := b.held[n.id]; n.nowText == s.text && !held {
				right = n.id
				break
			}
		}
		if right == 0 {
			return correction{}, false
		}
	}
	if right == e.id {
		return correction{}, false
	}
	makes := e.id != 0 && b.agentMakes(p)
	if n := b.ids[e.id]; makes && n != nil && !n.quarantined {
		return correction{}, false
	}
	why := believed
	if p.claim.id != 0 && s.fixedID == 0 {
		why = b.refusal(s, p.claim.id)
	}
	return correction{
		key: k, uid: e.obj.UID, rv: e.obj.ResourceVersion, had: e.id, id: right, labels: s.labels, pod: p.obj.UID, unseen: makes, refused: why,
		doubt: e.id != 0 && e.rv > min(b.have[kindPods], b.have[kindNamespaces]),
	}, true
}

// agentMakes reports whether the agent of the pod's node may make identities and expect no other
// writer. What it names is left alone if it is an identity, of whatever labels: it would revert a
// correction, and the two would alternate. An agent's announcement comes by another watch than its
// endpoints, so one whose node is not known yet counts as one that does.
func (b *index) agentMakes(p *podEntry) bool {
	if !b.agents || p.obj.Spec.NodeName == "" {
		return false
	}
	alone, known := b.alone[p.obj.Spec.NodeName]
	return alone || !known
}

// used reports whether an ID must not be collected: an endpoint or a slice names it, or pods are
// to have it.
func (b *index) used(id identity.ID) bool {
	if b.named[id] > 0 {
		return true
	}
	n := b.ids[id]
	if n == nil || n.set == nil || len(n.set.pods) == 0 {
		return false
	}
	return slices.Index(n.set.ids, n) == 0
}

// spare reports whether an ID's labels do not need it: they have an older one or, if it is in
// quarantine, any.
func (b *index) spare(id identity.ID) bool {
	n := b.ids[id]
	switch {
	case n == nil:
		return false
	case n.quarantined:
		s := b.sets[n.text]
		return s != nil && len(s.ids) > 0
	}
	return n.set != nil && n.set.ids[0] != n
}

// hold keeps an unused ID from being assigned until release. It reports false if it is in use.
func (b *index) hold(id identity.ID) bool {
	if b.used(id) {
		return false
	}
	b.held[id] = struct{}{}
	return true
}

// release ends hold. If the ID was collected, the watch will show it.
func (b *index) release(id identity.ID) {
	delete(b.held, id)
	if n := b.ids[id]; n != nil && n.set != nil {
		b.touchSet(n.set)
	}
}

// summary counts sets of labels by what they have.
type summary struct {
	// Ready have an ID. Missing have pods and no ID. Unscheduled have one that only pods
	// without a node need, Waiting none because of the budget.
	ready, missing, unscheduled, waiting int
	// duplicates are objects beyond the first of their labels, quarantined those without labels.
	duplicates, quarantined int
	// edited are objects with other labels than those that they stand for.
	edited int
	// faulty are pods whose labels make no identity.
	faulty int
}

func (b *index) summary() summary {
	c := summary{unscheduled: b.unscheduled}
	for text, s := range b.sets {
		switch {
		case text == "":
			continue
		case len(s.pods) > 0 && s.fixedID == 0 && len(s.ids) == 0:
			c.missing++
			if _, ok := b.waiting[text]; ok {
				c.waiting++
			}
		case len(s.pods) > 0:
			c.ready++
		}
		c.duplicates += max(0, len(s.ids)-1)
	}
	for _, p := range b.pods {
		if p.err != nil {
			c.faulty++
		}
	}
	for _, n := range b.ids {
		switch {
		case n.quarantined:
			c.quarantined++
		case n.nowText != n.text:
			c.edited++
		}
	}
	return c
}
