package policy

import (
	"cmp"
	"encoding/binary"
	"slices"

	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/policy/index"
)

// ruleSet is a rule set in the making or in use.
type ruleSet struct {
	id         datapath.RuleSetID
	key        string
	rules      []*engineRule // sorted by serial
	namedPorts []NamedPort   // of the subjects, if an ingress rule names ports
	subjects   []*subject    // that point here
	dirs       [2]dirState
	// installed: the content was reported in an Update and changes are reported as deltas.
	installed bool
	// touched are identities that came, went or changed since.
	touched map[identity.ID]struct{}
	// reevaluate: a delta took an allow away or added a deny.
	reevaluate bool
}

func (rs *ruleSet) touch(id identity.ID) {
	if rs.touched == nil {
		rs.touched = map[identity.ID]struct{}{}
	}
	rs.touched[id] = struct{}{}
}

// dirState is one direction of a rule set.
type dirState struct {
	enforced bool
	groups   []group
	// places, if not nil, makes the direction tiered: what clauses of tiers other than the ordinary
	// one do, and in which order. Clauses of tiers that are not there do not count.
	places map[*compiledClause]datapath.TierRule
	// base are the entries of any peer; peers those of identities, without empty ones.
	base  *portSet
	peers map[identity.ID]*portSet
	// combos is a trie: a node is a set of groups, reached by their indexes in rising order. The
	// root, 0, is no group. It remembers the entries that each set of groups gives.
	combos   []combo
	children map[comboEdge]int32
}

// group is a selector with the clauses that have it as a peer.
type group struct {
	as      *activeSelector
	at      int // index in as.users
	clauses []*compiledClause
	// named: a clause names ports that are looked up per peer.
	named bool
}

type combo struct {
	parent int32
	group  int32
	done   bool
	ports  *portSet
}

type comboEdge struct{ parent, group int32 }

// assign points the subject at a rule set (nil for none).
func (e *Engine) assign(s *subject, rs *ruleSet) {
	old := s.set
	if old == rs {
		return
	}
	if old != nil {
		last := len(old.subjects) - 1
		moved := old.subjects[last]
		old.subjects[s.at], old.subjects[last] = moved, nil
		moved.at = s.at
		if old.subjects = old.subjects[:last]; last == 0 {
			e.idle[old] = struct{}{}
		}
	}
	if rs != nil {
		s.at = len(rs.subjects)
		if rs.subjects = append(rs.subjects, s); s.at == 0 {
			delete(e.idle, rs)
		}
	}
	s.set = rs
	if !s.removed {
		e.markRebind(s)
	}
}

// recompute points every dirty subject at the rule set that its rules ask for. New rule sets get
// their selectors, so that their prefixes are known, but not yet their content.
func (e *Engine) recompute() {
	if len(e.dirty) == 0 {
		return
	}
	list := e.dirty
	e.dirty = nil
	slices.SortFunc(list, compareSubjects)
	var scratch []*engineRule
	var key []byte
	for _, s := range list {
		s.dirty = false
		if s.removed {
			continue
		}
		if s.peer == nil {
			e.assign(s, nil)
			continue
		}
		scratch = e.rulesOf(s.peer, scratch[:0])
		var enforced [2]bool
		key, enforced = e.ruleSetKey(key[:0], s, scratch)
		rs := e.ruleSets[string(key)]
		if rs == nil {
			rs = e.newRuleSet(string(key), enforced, slices.Clone(scratch), s)
		}
		e.assign(s, rs)
	}
}

// rulesOf appends the rules that select an endpoint, in order of their serials; none if the mode
// is never.
func (e *Engine) rulesOf(p *peer, dst []*engineRule) []*engineRule {
	if e.cfg.Mode == ModeNever {
		return dst
	}
	e.ruleIndex.Visit(p.anyNamespace, p.set, func(er *engineRule) {
		if er.Subject.match(&e.cfg, p) {
			dst = append(dst, er)
		}
	})
	slices.SortFunc(dst, func(a, b *engineRule) int { return cmp.Compare(a.serial, b.serial) })
	return slices.Compact(dst) // the index may name a rule twice
}

// enforcement returns the directions in which an endpoint with these rules is enforced.
func (e *Engine) enforcement(p *peer, rules []*engineRule) (enforced [2]bool) {
	switch e.cfg.Mode {
	case ModeNever:
		return
	case ModeAlways:
		return [2]bool{true, true}
	}
	if p.set.HasReserved(identity.Init.String()) {
		return [2]bool{true, true}
	}
	for _, er := range rules {
		enforced[datapath.Ingress] = enforced[datapath.Ingress] || er.enforces[datapath.Ingress]
		enforced[datapath.Egress] = enforced[datapath.Egress] || er.enforces[datapath.Egress]
	}
	return enforced
}

// ruleSetKey appends what distinguishes rule sets: enforcement, rules, and named ports where the
// rules ask for them.
func (e *Engine) ruleSetKey(dst []byte, s *subject, rules []*engineRule) (key []byte, enforced [2]bool) {
	enforced = e.enforcement(s.peer, rules)
	flags := byte(0)
	if enforced[datapath.Ingress] {
		flags |= 1
	}
	if enforced[datapath.Egress] {
		flags |= 2
	}
	dst = append(dst, flags)
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(rules)))
	named := false
	for _, er := range rules {
		dst = binary.LittleEndian.AppendUint64(dst, er.serial)
		named = named || er.namedIngress
	}
	if named {
		dst = append(dst, s.NamedPorts...)
	}
	return dst, enforced
}

func (e *Engine) newRuleSet(key string, enforced [2]bool, rules []*engineRule, s *subject) *ruleSet {
	e.lastRuleSet++
	rs := &ruleSet{id: e.lastRuleSet, key: key, rules: rules}
	if slices.ContainsFunc(rules, func(er *engineRule) bool { return er.namedIngress }) {
		rs.namedPorts, _ = ParseNamedPorts(s.NamedPorts)
	}
	e.ruleSets[key] = rs
	e.byID[rs.id] = rs
	e.idle[rs] = struct{}{} // until a subject points at it
	for _, dir := range []datapath.Direction{datapath.Ingress, datapath.Egress} {
		byRule := slices.ContainsFunc(rules, func(er *engineRule) bool { return er.enforces[dir] })
		rs.dirs[dir].places = places(rules, dir, byRule)
	}
	for _, er := range rules {
		for i := range er.clauses {
			c := &er.clauses[i]
			d := &rs.dirs[c.dir]
			switch {
			case c.tier != TierOrdinary && d.places[c] == 0:
				// The endpoint does not get that far.
			case !c.deny && !enforced[c.dir] && d.places == nil:
				// What nothing drops need not be allowed.
			case !c.all:
				for _, sel := range c.peers {
					e.join(rs, d, sel, c)
				}
			case c.dir == datapath.Egress && len(c.named) > 0:
				// Every peer has its own meaning of the name.
				e.join(rs, d, newEntitySelector(identity.EntityAll), c)
			}
		}
	}
	for _, dir := range []datapath.Direction{datapath.Ingress, datapath.Egress} {
		rs.dirs[dir].enforced = enforced[dir]
	}
	if enforced[datapath.Ingress] && e.cfg.AllowLocalhost {
		e.join(rs, &rs.dirs[datapath.Ingress], e.localhostPeer, &e.localhost)
	}
	return rs
}

// join adds the clause to the selector's group in the direction.
func (e *Engine) join(rs *ruleSet, d *dirState, sel *Selector, c *compiledClause) {
	named := c.dir == datapath.Egress && len(c.named) > 0
	for i := range d.groups {
		if d.groups[i].as.sel == sel || d.groups[i].as.sel.text == sel.text {
			d.groups[i].clauses = append(d.groups[i].clauses, c)
			d.groups[i].named = d.groups[i].named || named
			return
		}
	}
	as := e.activate(sel)
	as.users = append(as.users, user{rs, c.dir, len(d.groups)})
	d.groups = append(d.groups, group{as: as, at: len(as.users) - 1, clauses: []*compiledClause{c}, named: named})
}

// activate returns the active selector for sel, made and filled if there is none.
func (e *Engine) activate(sel *Selector) *activeSelector {
	if as := e.selectors[sel.text]; as != nil {
		return as
	}
	as := &activeSelector{
		sel: sel, anchors: sel.anchors(&e.cfg),
		ids: map[identity.ID]*peer{},
	}
	e.selectors[sel.text] = as
	for _, a := range as.anchors {
		e.selIndex.Add(a, as)
		switch {
		case a.Namespace != "":
			for _, p := range e.byNS[a.Namespace] {
				e.offer(as, p)
			}
		case a.Reserved:
			for p := range e.reserved {
				e.offer(as, p)
			}
		case a.KV != (index.KV{}):
			for p := range e.labelled(a.KV) {
				e.offer(as, p)
			}
		default:
			for _, p := range e.peers {
				e.offer(as, p)
			}
		}
	}
	switch sel.kind {
	case byCIDR:
		e.cidrs.sels.Add(sel.cidr, as)
		for p := range e.cidrs.peers {
			e.offer(as, p)
		}
	case byBlock:
		e.blocks.sels.Add(sel.cidr, as)
		for p := range e.blocks.peers {
			e.offer(as, p)
		}
	}
	return as
}

// leave gives up the rule set's use of its selectors.
func (e *Engine) leave(rs *ruleSet) {
	for _, dir := range []datapath.Direction{datapath.Ingress, datapath.Egress} {
		for _, g := range rs.dirs[dir].groups {
			as := g.as
			last := len(as.users) - 1
			moved := as.users[last]
			as.users[g.at], as.users[last] = moved, user{}
			as.users = as.users[:last]
			moved.rs.dirs[moved.dir].groups[moved.group].at = g.at
			if last == 0 {
				e.deactivate(as)
			}
		}
	}
}

func (e *Engine) deactivate(as *activeSelector) {
	delete(e.selectors, as.sel.text)
	for _, a := range as.anchors {
		e.selIndex.Remove(a, as)
	}
	switch as.sel.kind {
	case byCIDR:
		e.cidrs.sels.Remove(as.sel.cidr, as)
	case byBlock:
		e.blocks.sels.Remove(as.sel.cidr, as)
	}
	for _, p := range as.ids {
		p.selectors = index.Without(p.selectors, as)
	}
}

// fill computes the whole content of a new rule set.
func (rs *ruleSet) fill() {
	for _, dir := range []datapath.Direction{datapath.Ingress, datapath.Egress} {
		d := &rs.dirs[dir]
		rs.fillBase(dir)
		switch len(d.groups) {
		case 0:
			continue
		case 1:
			// Every member has the same entries; no sets of groups are needed.
			g := &d.groups[0]
			var shared *portSet
			computed := false
			for id, p := range g.as.ids {
				ps := shared
				if g.named && len(p.namedPorts) > 0 {
					ps = rs.portsOf(dir, []int32{0}, p)
				} else if !computed {
					shared = rs.portsOf(dir, []int32{0}, nil)
					computed, ps = true, shared
				}
				d.set(id, ps)
			}
			continue
		}
		n := 0
		for i := range d.groups {
			n = max(n, len(d.groups[i].as.ids))
		}
		at := make(map[identity.ID]int32, n)
		var special map[identity.ID]*peer // looked at one by one
		for i := range d.groups {
			g := &d.groups[i]
			for id, p := range g.as.ids {
				at[id] = d.step(at[id], int32(i))
				if g.named && len(p.namedPorts) > 0 {
					if special == nil {
						special = map[identity.ID]*peer{}
					}
					special[id] = p
				}
			}
		}
		for id, c := range at {
			d.set(id, rs.comboPorts(dir, c, special[id]))
		}
	}
}

// set stores the entries of an identity.
func (d *dirState) set(id identity.ID, ps *portSet) {
	if ps.empty() {
		delete(d.peers, id)
		return
	}
	if d.peers == nil {
		d.peers = map[identity.ID]*portSet{}
	}
	d.peers[id] = ps
}

// step returns the set of groups that is parent with one more.
func (d *dirState) step(parent, g int32) int32 {
	edge := comboEdge{parent, g}
	if c, ok := d.children[edge]; ok {
		return c
	}
	if d.children == nil {
		d.children = map[comboEdge]int32{}
		d.combos = []combo{{done: true}}
	}
	c := int32(len(d.combos))
	d.combos = append(d.combos, combo{parent: parent, group: g})
	d.children[edge] = c
	return c
}

// comboPorts returns the entries that a set of groups gives; special, if not nil, is a peer whose
// named ports count.
func (rs *ruleSet) comboPorts(dir datapath.Direction, c int32, special *peer) *portSet {
	d := &rs.dirs[dir]
	if special == nil && d.combos[c].done {
		return d.combos[c].ports
	}
	var groups []int32
	for n := c; n != 0; n = d.combos[n].parent {
		groups = append(groups, d.combos[n].group)
	}
	ps := rs.portsOf(dir, groups, special)
	if special == nil {
		d.combos[c].done, d.combos[c].ports = true, ps
	}
	return ps
}

// portsOf computes the entries of a peer that the given groups select.
func (rs *ruleSet) portsOf(dir datapath.Direction, groups []int32, special *peer) *portSet {
	d := &rs.dirs[dir]
	if d.places != nil {
		return rs.tieredPortsOf(dir, groups, special)
	}
	var allow, deny []portKey
	for _, gi := range groups {
		for _, c := range d.groups[gi].clauses {
			dst := &allow
			if c.deny {
				dst = &deny
			}
			*dst = append(*dst, c.keys...)
			*dst = appendNamed(*dst, c.named, rs.namesOf(dir, special))
		}
	}
	return newPortSet(allow, deny, d.enforced, d.base)
}

// namesOf returns the named ports that count in a direction: those of the subjects, or of the peer
// that is special.
func (rs *ruleSet) namesOf(dir datapath.Direction, special *peer) []NamedPort {
	switch {
	case dir == datapath.Ingress:
		return rs.namedPorts
	case special != nil:
		return special.namedPorts
	}
	return nil
}

// tieredPortsOf is portsOf in a direction with tiers. What any peer has is left in, because it is
// no measure for what comes before it.
func (rs *ruleSet) tieredPortsOf(dir datapath.Direction, groups []int32, special *peer) *portSet {
	d := &rs.dirs[dir]
	var list []decided
	var keys []portKey
	for _, gi := range groups {
		for _, c := range d.groups[gi].clauses {
			keys = appendNamed(append(keys[:0], c.keys...), c.named, rs.namesOf(dir, special))
			says := datapath.PolicyEntry{Deny: c.deny, Allow: !c.deny}
			switch c.tier {
			case TierAdmin:
				says = datapath.PolicyEntry{Admin: d.places[c]}
			case TierBaseline:
				says = datapath.PolicyEntry{Baseline: d.places[c]}
			}
			for _, k := range keys {
				list = append(list, decided{k, says})
			}
		}
	}
	return newTieredSet(list)
}

// fillBase computes the entries of any peer.
func (rs *ruleSet) fillBase(dir datapath.Direction) {
	var allow, deny []portKey
	for _, er := range rs.rules {
		for i := range er.clauses {
			c := &er.clauses[i]
			if c.dir != dir || !c.all || c.tier != TierOrdinary {
				continue
			}
			dst := &allow
			if c.deny {
				dst = &deny
			}
			*dst = append(*dst, c.keys...)
			if dir == datapath.Ingress {
				*dst = appendNamed(*dst, c.named, rs.namedPorts)
			}
		}
	}
	if len(allow)+len(deny) == 0 {
		return
	}
	// With a baseline tier an allow counts even where nothing is enforced.
	d := &rs.dirs[dir]
	d.base = newPortSet(allow, deny, d.enforced || d.places != nil, nil)
}

// appendNamed looks up named ports.
func appendNamed(dst []portKey, matches []PortMatch, ports []NamedPort) []portKey {
	for _, m := range matches {
		for _, p := range ports {
			if p.Name == m.Name && p.Proto == m.Proto {
				dst = append(dst, portKey{p.Proto, 16, p.Port})
			}
		}
	}
	return dst
}

// recompute returns the entries that an identity should have in a direction now.
func (rs *ruleSet) recompute(dir datapath.Direction, id identity.ID) *portSet {
	d := &rs.dirs[dir]
	if len(d.groups) == 0 {
		return nil
	}
	c := int32(0)
	var special *peer
	for i := range d.groups {
		g := &d.groups[i]
		p := g.as.ids[id]
		if p == nil {
			continue
		}
		c = d.step(c, int32(i))
		if g.named && len(p.namedPorts) > 0 {
			special = p
		}
	}
	if c == 0 {
		return nil
	}
	return rs.comboPorts(dir, c, special)
}
