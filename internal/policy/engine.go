package policy

import (
	"fmt"
	"reflect"
	"slices"

	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/labels"
	"github.com/hawser-net/hawser/internal/policy/index"
)

// Engine keeps rules, identities and subjects, and computes rule sets. Setters only note what
// they touch; Flush does the work. See the package comment for what it promises.
//
// The order in which a caller should act on a change, so that nothing passes that should not:
//
//  1. SetIdentity for each prefix that new rules name ([CIDRs], [Blocks])
//  2. SetRules, SetIdentity, AddSubject...
//  3. Flush: write Install, then Deltas, then Bind; then Remove
//  4. write the new prefixes and addresses into the ipcache, and only then take gone ones out of
//     use with RemoveIdentity, for the next Flush
type Engine struct {
	cfg Config

	peers map[identity.ID]*peer
	// temporary are the labels of temporary identities that subjects have. No rule selects them as
	// peers.
	temporary map[identity.ID]*peer

	byNS     map[string][]*peer              // by namespace label, whatever its source
	byKV     map[index.KV]map[*peer]struct{} // built when first needed; see labelled
	reserved map[*peer]struct{}
	ports    map[identity.ID]string // named ports by identity

	owners     map[Owner][]*engineRule
	ruleIndex  index.Index[*engineRule]
	rules      int
	lastSerial uint64

	selectors map[string]*activeSelector
	selIndex  index.Index[*activeSelector]
	cidrs     prefixIndex // prefixes outside the cluster
	blocks    prefixIndex // blocks of addresses

	subjects     map[Subject]*subject
	subjectsByID map[identity.ID]*subject // linked by next
	subjectsByNS map[string][]*subject    // clusterwide rules walk all subjects
	dirty        []*subject               // to be processed by recompute; perhaps removed since
	rebind       []*subject               // the binding differs from what was reported; perhaps removed

	ruleSets      map[string]*ruleSet
	byID          map[datapath.RuleSetID]*ruleSet
	dirtySets     map[*ruleSet]struct{}
	idle          map[*ruleSet]struct{} // without subjects, to be removed
	lastRuleSet   datapath.RuleSetID
	lastGen       uint32
	revision      uint64
	localhost     compiledClause
	localhostPeer *Selector
}

// engineRule is a rule as one engine holds it.
type engineRule struct {
	*Rule
	owner   Owner
	serial  uint64
	clauses []compiledClause
	// namedIngress: the outcome depends on the subject's named ports.
	namedIngress bool
	enforces     [2]bool
	anchors      []index.Anchor
}

// is reports whether the rule is this one. Rules of an owner stand at different places, so that a
// policy of thousands is compared in little time.
func (er *engineRule) is(r *Rule) bool {
	return er.Rule == r || er.Path == r.Path && reflect.DeepEqual(er.Rule, r)
}

// compiledClause is a clause with its ports cut into keys.
type compiledClause struct {
	dir   datapath.Direction
	tier  Tier
	deny  bool // of a clause of the ordinary tier
	all   bool
	maybe bool // of the deny in place of a pass, see unsure
	peers []*Selector
	keys  []portKey
	named []PortMatch
	// action is what it does in a tier where order counts.
	action datapath.TierAction
}

// activeSelector is a selector that some rule set uses, with what it selects.
type activeSelector struct {
	sel     *Selector
	anchors []index.Anchor
	ids     map[identity.ID]*peer
	users   []user
}

// user is a group of a rule set that uses a selector.
type user struct {
	rs    *ruleSet
	dir   datapath.Direction
	group int
}

// subject is a Subject in use.
type subject struct {
	Subject
	refs    int
	peer    *peer // its own labels, or the identity's as last known; nil if never
	set     *ruleSet
	at      int // index in set.subjects
	nsAt    int // index in Engine.subjectsByNS
	next    *subject
	gen     uint32
	dirty   bool // in Engine.dirty
	rebind  bool // in Engine.rebind
	removed bool
}

// New returns an engine that knows the reserved identities and nothing else.
func New(cfg Config) (*Engine, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	e := &Engine{
		cfg:           cfg,
		peers:         map[identity.ID]*peer{},
		temporary:     map[identity.ID]*peer{},
		byNS:          map[string][]*peer{},
		reserved:      map[*peer]struct{}{},
		ports:         map[identity.ID]string{},
		owners:        map[Owner][]*engineRule{},
		selectors:     map[string]*activeSelector{},
		cidrs:         prefixIndex{peers: map[*peer]struct{}{}},
		blocks:        prefixIndex{peers: map[*peer]struct{}{}},
		subjects:      map[Subject]*subject{},
		subjectsByID:  map[identity.ID]*subject{},
		subjectsByNS:  map[string][]*subject{},
		ruleSets:      map[string]*ruleSet{},
		byID:          map[datapath.RuleSetID]*ruleSet{},
		dirtySets:     map[*ruleSet]struct{}{},
		idle:          map[*ruleSet]struct{}{},
		lastRuleSet:   cfg.LastRuleSet,
		lastGen:       cfg.LastGeneration,
		localhostPeer: newEntitySelector(identity.EntityHost),
		localhost:     compiledClause{dir: datapath.Ingress, keys: []portKey{{}}},
	}
	for _, id := range append(identity.ReservedIDs(), identity.Unobserved) {
		set, _ := identity.ReservedLabels(id)
		e.SetIdentity(id, set)
	}
	return e, nil
}

// SetMode changes when endpoints are enforced.
func (e *Engine) SetMode(m Mode) {
	if m == e.cfg.Mode || m > ModeNever {
		return
	}
	e.cfg.Mode = m
	for _, s := range e.subjects {
		e.markDirty(s)
	}
}

// Mode returns the current mode.
func (e *Engine) Mode() Mode { return e.cfg.Mode }

// SetRules makes the owner's rules exactly these; none removes the owner. Rules that are deeply
// equal to ones the owner has already are kept, so that giving the same rules again changes
// nothing. On error nothing changes.
func (e *Engine) SetRules(o Owner, rules []*Rule) error {
	for i, r := range rules {
		if r == nil || r.Subject == nil {
			return fmt.Errorf("rule %d of %q is incomplete; make rules with Parse", i, o)
		}
		if r.Tier != TierOrdinary && slices.ContainsFunc(r.Clauses, func(c Clause) bool { return c.AllPeers }) {
			return fmt.Errorf("rule %d of %q names no peers; a rule of the tier %s must", i, o, r.Tier)
		}
	}
	old := e.owners[o]
	next := make([]*engineRule, 0, len(rules))
	kept := make([]bool, len(old))
	for _, r := range rules {
		i := 0 // a rule given twice is kept once for each
		for i < len(old) && (kept[i] || !old[i].is(r)) {
			i++
		}
		if i < len(old) {
			kept[i] = true
			next = append(next, old[i])
			continue
		}
		next = append(next, e.addRule(o, r))
	}
	for i, er := range old {
		if !kept[i] {
			e.removeRule(er)
		}
	}
	if len(next) == 0 {
		delete(e.owners, o)
	} else {
		e.owners[o] = next
	}
	return nil
}

// Has reports whether the rules of an owner are these, in this order.
func (e *Engine) Has(o Owner, rules []*Rule) bool {
	return slices.EqualFunc(e.owners[o], rules, (*engineRule).is)
}

func (e *Engine) addRule(o Owner, r *Rule) *engineRule {
	e.lastSerial++
	er := &engineRule{Rule: r, owner: o, serial: e.lastSerial}
	er.clauses = make([]compiledClause, 0, len(r.Clauses))
	for i := range r.Clauses {
		c := &r.Clauses[i]
		er.compile(c, false)
		if u := c.unsure(); u != nil {
			er.compile(u, c.Pass)
		}
	}
	for _, d := range []datapath.Direction{datapath.Ingress, datapath.Egress} {
		// A rule of another tier decides alone.
		er.enforces[d] = r.Tier == TierOrdinary && (r.DefaultDeny[d] || !e.cfg.AllowNonDefaultDeny && r.has(d))
	}
	er.anchors = r.Subject.anchors(&e.cfg)
	for _, a := range er.anchors {
		e.ruleIndex.Add(a, er)
	}
	e.rules++
	e.touchSubjects(er)
	return er
}

// compile adds a clause, unless it matches nothing.
func (er *engineRule) compile(c *Clause, maybe bool) {
	cc := compiledClause{dir: c.Direction, tier: er.Tier, deny: c.Deny, all: c.AllPeers, maybe: maybe, action: c.action()}
	for _, s := range c.Peers {
		switch {
		case s.isWildcard():
			cc.all = true
		case !s.isNone():
			cc.peers = append(cc.peers, s)
		}
	}
	if cc.all {
		cc.peers = nil
	}
	if !cc.all && len(cc.peers) == 0 || len(c.Ports) == 0 {
		return
	}
	for _, m := range c.Ports {
		if m.Name == "" {
			cc.keys = m.appendKeys(cc.keys)
			continue
		}
		cc.named = append(cc.named, m)
		er.namedIngress = er.namedIngress || cc.dir == datapath.Ingress
	}
	er.clauses = append(er.clauses, cc)
}

func (e *Engine) removeRule(er *engineRule) {
	for _, a := range er.anchors {
		e.ruleIndex.Remove(a, er)
	}
	e.rules--
	e.touchSubjects(er)
}

// touchSubjects notes the subjects that the rule selects.
func (e *Engine) touchSubjects(er *engineRule) {
	touch := func(s *subject) {
		if s.peer != nil && er.Subject.match(&e.cfg, s.peer) {
			e.markDirty(s)
		}
	}
	if er.Namespace != "" {
		for _, s := range e.subjectsByNS[er.Namespace] {
			touch(s)
		}
		return
	}
	for _, s := range e.subjects {
		touch(s)
	}
}

// SetIdentity makes the labels of an identity known, or changes them. Subjects that have labels of
// their own keep the rules of these. The identities up to
// world-ipv6 are known from the start. Identity 0 and empty labels are ignored. The labels of a
// temporary identity count for subjects that have it, until the last of these is removed, and for
// nothing else: no selector of peers ever selects it.
func (e *Engine) SetIdentity(id identity.ID, set labels.Set) {
	if id == 0 || len(set) == 0 {
		return
	}
	if old := e.known(id); old != nil && old.set.Equal(set) {
		return
	}
	p := newPeer(&e.cfg, id, set)
	if id.IsTemporary() {
		e.temporary[id] = p
	} else {
		if old := e.peers[id]; old != nil {
			e.removePeer(old)
		}
		if text := e.ports[id]; text != "" {
			p.namedPorts, _ = ParseNamedPorts(text)
		}
		e.addPeer(p)
	}
	for s := e.subjectsByID[id]; s != nil; s = s.next {
		if s.Labels == "" {
			e.setSubjectPeer(s, p)
		}
	}
}

// known returns the last labels of an identity, as a peer or as a subject's temporary one.
func (e *Engine) known(id identity.ID) *peer {
	if id.IsTemporary() {
		return e.temporary[id]
	}
	return e.peers[id]
}

// RemoveIdentity makes an identity unknown as a peer. Subjects that still have it keep the rules
// that its last labels gave them, and it keeps its named ports, which are those of addresses.
func (e *Engine) RemoveIdentity(id identity.ID) {
	if p := e.peers[id]; p != nil {
		e.removePeer(p)
	}
}

// SetNamedPorts sets all named ports of the endpoints of an identity, for egress rules with named
// ports. The text is that of FormatNamedPorts; a name may be there with several ports.
func (e *Engine) SetNamedPorts(id identity.ID, text string) error {
	ports, err := ParseNamedPorts(text)
	if err != nil {
		return err
	}
	if e.ports[id] == text {
		return nil
	}
	if text == "" {
		delete(e.ports, id)
	} else {
		e.ports[id] = text
	}
	if p := e.peers[id]; p != nil {
		p.namedPorts = ports
		for _, as := range p.selectors {
			e.touchUsers(as, id)
		}
	}
	return nil
}

func (e *Engine) addPeer(p *peer) {
	e.peers[p.id] = p
	if p.anyNamespace != "" {
		e.byNS[p.anyNamespace] = append(e.byNS[p.anyNamespace], p)
	}
	if x := e.prefixes(p); x != nil {
		x.peers[p] = struct{}{}
	}
	if p.reserved {
		e.reserved[p] = struct{}{}
	}
	if e.byKV != nil {
		e.indexPeer(p)
	}
	e.selIndex.Visit(p.anyNamespace, p.matched, func(as *activeSelector) { e.offer(as, p) })
	if x := e.prefixes(p); x != nil {
		x.sels.VisitCovering(p.prefix, func(as *activeSelector) { e.offer(as, p) })
	}
}

// prefixes returns the index that the identity belongs to; nil if it stands for no prefix.
func (e *Engine) prefixes(p *peer) *prefixIndex {
	switch {
	case !p.prefix.IsValid():
		return nil
	case p.block:
		return &e.blocks
	}
	return &e.cidrs
}

// offer adds the identity to the selector if it matches.
func (e *Engine) offer(as *activeSelector, p *peer) {
	if as.ids[p.id] == p || !as.sel.match(&e.cfg, p) {
		return
	}
	as.ids[p.id] = p
	p.selectors = append(p.selectors, as)
	e.touchUsers(as, p.id)
}

func (e *Engine) touchUsers(as *activeSelector, id identity.ID) {
	for _, u := range as.users {
		if rs := u.rs; rs.installed {
			rs.touch(id)
			e.dirtySets[rs] = struct{}{}
		}
	}
}

func (e *Engine) removePeer(p *peer) {
	delete(e.peers, p.id)
	if p.anyNamespace != "" {
		if list := index.Without(e.byNS[p.anyNamespace], p); len(list) > 0 {
			e.byNS[p.anyNamespace] = list
		} else {
			delete(e.byNS, p.anyNamespace)
		}
	}
	if x := e.prefixes(p); x != nil {
		delete(x.peers, p)
	}
	delete(e.reserved, p)
	if e.byKV != nil {
		for i := range p.matched {
			k := index.KV{Key: p.matched[i].Key, Value: p.matched[i].Value}
			delete(e.byKV[k], p)
			if len(e.byKV[k]) == 0 {
				delete(e.byKV, k)
			}
		}
	}
	for _, as := range p.selectors {
		delete(as.ids, p.id)
		e.touchUsers(as, p.id)
	}
	p.selectors = nil
}

// labelled returns the identities with a label. The index behind it is built when a selector that
// no namespace confines first asks, and kept up from then on.
func (e *Engine) labelled(k index.KV) map[*peer]struct{} {
	if e.byKV == nil {
		e.byKV = make(map[index.KV]map[*peer]struct{}, len(e.peers))
		for _, p := range e.peers {
			e.indexPeer(p)
		}
	}
	return e.byKV[k]
}

func (e *Engine) indexPeer(p *peer) {
	for i := range p.matched {
		k := index.KV{Key: p.matched[i].Key, Value: p.matched[i].Value}
		m := e.byKV[k]
		if m == nil {
			m = map[*peer]struct{}{}
			e.byKV[k] = m
		}
		m[p] = struct{}{}
	}
}

// AddSubject adds a local endpoint's subject. Each call takes a reference. Labels that cannot be
// read leave it without a rule set, so that it drops everything.
func (e *Engine) AddSubject(s Subject) {
	if sub := e.subjects[s]; sub != nil {
		sub.refs++
		return
	}
	sub := &subject{Subject: s, refs: 1}
	e.subjects[s] = sub
	sub.next = e.subjectsByID[s.Identity]
	e.subjectsByID[s.Identity] = sub
	e.markDirty(sub)
	e.markRebind(sub)
	switch set, err := labels.ParseKV(s.Labels); {
	case err == nil && len(set) > 0:
		e.setSubjectPeer(sub, newPeer(&e.cfg, s.Identity, set))
	case err == nil && e.known(s.Identity) != nil:
		e.setSubjectPeer(sub, e.known(s.Identity))
	}
}

func (e *Engine) setSubjectPeer(s *subject, p *peer) {
	e.unfileSubject(s)
	s.peer = p
	if p.hasNamespace {
		list := e.subjectsByNS[p.namespace]
		s.nsAt = len(list)
		e.subjectsByNS[p.namespace] = append(list, s)
	}
	e.markDirty(s)
}

func (e *Engine) unfileSubject(s *subject) {
	if s.peer == nil || !s.peer.hasNamespace {
		return
	}
	list := e.subjectsByNS[s.peer.namespace]
	last := len(list) - 1
	list[s.nsAt] = list[last]
	list[s.nsAt].nsAt = s.nsAt
	list[last] = nil
	if last == 0 {
		delete(e.subjectsByNS, s.peer.namespace)
		return
	}
	e.subjectsByNS[s.peer.namespace] = list[:last]
}

// RemoveSubject releases a reference; the last one removes the subject.
func (e *Engine) RemoveSubject(s Subject) {
	sub := e.subjects[s]
	if sub == nil {
		return
	}
	if sub.refs--; sub.refs > 0 {
		return
	}
	sub.removed = true
	e.unfileSubject(sub)
	delete(e.subjects, s)
	e.unlink(sub)
	if e.subjectsByID[sub.Identity] == nil {
		delete(e.temporary, sub.Identity)
	}
	e.assign(sub, nil)
}

// unlink takes a subject out of the chain of its identity.
func (e *Engine) unlink(sub *subject) {
	first := e.subjectsByID[sub.Identity]
	switch {
	case first != sub:
		for s := first; s != nil; s = s.next {
			if s.next == sub {
				s.next = sub.next
				return
			}
		}
	case sub.next != nil:
		e.subjectsByID[sub.Identity] = sub.next
	default:
		delete(e.subjectsByID, sub.Identity)
	}
}

func (e *Engine) markDirty(s *subject) {
	if !s.dirty {
		s.dirty = true
		e.dirty = append(e.dirty, s)
	}
}

func (e *Engine) markRebind(s *subject) {
	if !s.rebind {
		s.rebind = true
		e.rebind = append(e.rebind, s)
	}
}

func compareSubjects(a, b *subject) int {
	return a.compare(b.Subject)
}
