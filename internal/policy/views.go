package policy

import (
	"cmp"
	"maps"
	"slices"

	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/labels"
)

// SelectorInfo shows a selector in use.
type SelectorInfo struct {
	Selector string
	// Identities are those it selects, in order.
	Identities []identity.ID
	// Users are the rule sets that use it, in order.
	Users []datapath.RuleSetID
}

// Selectors returns the selectors of peers that rule sets use, sorted by text.
func (e *Engine) Selectors() []SelectorInfo {
	out := make([]SelectorInfo, 0, len(e.selectors))
	for text, as := range e.selectors {
		info := SelectorInfo{Selector: text, Identities: slices.Sorted(maps.Keys(as.ids))}
		for _, u := range as.users {
			info.Users = append(info.Users, u.rs.id)
		}
		slices.Sort(info.Users)
		info.Users = slices.Compact(info.Users)
		out = append(out, info)
	}
	slices.SortFunc(out, func(a, b SelectorInfo) int { return cmp.Compare(a.Selector, b.Selector) })
	return out
}

// RuleInfo shows a rule and whom it selects here.
type RuleInfo struct {
	Owner Owner
	Rule  *Rule
	// Subjects are the identities of local endpoints that it selects, in order.
	Subjects []identity.ID
}

// Rules returns all rules, sorted by owner and then as given.
func (e *Engine) Rules() []RuleInfo {
	out := make([]RuleInfo, 0, e.rules)
	for _, o := range slices.Sorted(maps.Keys(e.owners)) {
		for _, er := range e.owners[o] {
			info := RuleInfo{Owner: o, Rule: er.Rule}
			for _, s := range e.subjects {
				if s.peer != nil && er.Subject.match(&e.cfg, s.peer) {
					info.Subjects = append(info.Subjects, s.Identity)
				}
			}
			slices.Sort(info.Subjects)
			info.Subjects = slices.Compact(info.Subjects)
			out = append(out, info)
		}
	}
	return out
}

// Owners returns the owners that have rules, sorted, with the number of their rules.
func (e *Engine) Owners() map[Owner]int {
	out := make(map[Owner]int, len(e.owners))
	for o, list := range e.owners {
		out[o] = len(list)
	}
	return out
}

// RuleSetInfo shows a rule set in force.
type RuleSetInfo struct {
	datapath.RuleSet
	Subjects []Subject
	Owners   []Owner // of its rules, without duplicates
}

// RuleSets returns the rule sets as of the last Flush, in order of their IDs.
func (e *Engine) RuleSets() []RuleSetInfo {
	var out []RuleSetInfo
	for _, id := range slices.Sorted(maps.Keys(e.byID)) {
		rs := e.byID[id]
		if !rs.installed {
			continue
		}
		info := RuleSetInfo{RuleSet: rs.content()}
		for _, s := range rs.subjects {
			info.Subjects = append(info.Subjects, s.Subject)
		}
		slices.SortFunc(info.Subjects, Subject.compare)
		for _, er := range rs.rules {
			info.Owners = append(info.Owners, er.owner)
		}
		slices.Sort(info.Owners)
		info.Owners = slices.Compact(info.Owners)
		out = append(out, info)
	}
	return out
}

// RuleSetOf returns the binding of a subject and whether each direction is enforced, as of the
// last Flush. ok is false if the subject is not known.
func (e *Engine) RuleSetOf(s Subject) (b Binding, ingress, egress, ok bool) {
	sub := e.subjects[s]
	if sub == nil {
		return Binding{}, false, false, false
	}
	b.Generation = sub.gen
	if sub.set != nil {
		b.RuleSet = sub.set.id
		ingress, egress = sub.set.dirs[datapath.Ingress].enforced, sub.set.dirs[datapath.Egress].enforced
	}
	return b, ingress, egress, true
}

// Labels returns the labels of an identity, if it is known as a peer.
func (e *Engine) Labels(id identity.ID) (labels.Set, bool) {
	if p := e.peers[id]; p != nil {
		return p.set, true
	}
	return nil, false
}

// Revision returns the revision of the last update that was not empty.
func (e *Engine) Revision() uint64 { return e.revision }

// DeniesPeers reports whether a rule of the subject denies certain peers, or ranks them in a tier.
// For such a subject a peer whose labels are not known yet may be let through; for any other one it
// lacks what is granted to it, and no more.
func (e *Engine) DeniesPeers(s Subject) bool {
	sub := e.subjects[s]
	if sub == nil || sub.peer == nil {
		return true
	}
	for _, er := range e.rulesOf(sub.peer, nil) {
		for _, c := range er.clauses {
			if c.deny || c.tier != TierOrdinary {
				return true
			}
		}
	}
	return false
}
