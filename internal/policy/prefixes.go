package policy

import (
	"net/netip"
	"slices"

	"github.com/hawser-net/hawser/internal/datapath"
)

// CIDRs returns the prefixes that the rules name and that need an identity of their own, excepted
// ones included, sorted. Prefixes of length 0 are not listed: reserved identities stand for them.
// Who gives these prefixes their identities before SetRules never has a rule in force that lacks
// one.
func CIDRs(rules []*Rule) []netip.Prefix {
	out := prefixesOf(rules, byCIDR)
	return slices.DeleteFunc(out, func(p netip.Prefix) bool { return p.Bits() == 0 })
}

// Blocks returns the blocks of addresses that the rules name, excepted ones included, sorted. Each
// needs an identity of identity.BlockScope with identity.BlockLabels before SetRules, and a place
// in the kernel's map of blocks.
func Blocks(rules []*Rule) []netip.Prefix { return prefixesOf(rules, byBlock) }

func prefixesOf(rules []*Rule, kind selectorKind) []netip.Prefix {
	var out []netip.Prefix
	for _, r := range rules {
		for i := range r.Clauses {
			for _, sel := range r.Clauses[i].Peers {
				if sel.kind != kind {
					continue
				}
				out = append(out, sel.cidr)
				out = append(out, sel.except...)
			}
		}
	}
	slices.SortFunc(out, netip.Prefix.Compare)
	return slices.Compact(out)
}

// WithoutPrefixes returns rules that need no prefix and let nothing pass that the given ones, of a
// namespace, do not: an allow loses the prefixes among its peers, and a deny that names one denies
// all peers. Fault is added to the faults of each rule that is another one then.
func WithoutPrefixes(rules []*Rule, fault string) []*Rule {
	out := slices.Clone(rules)
	named := func(s *Selector) bool { return s.kind == byCIDR || s.kind == byBlock }
	for i, r := range rules {
		for j := range r.Clauses {
			c := r.Clauses[j]
			if !slices.ContainsFunc(c.Peers, named) {
				continue
			}
			if out[i] == r {
				closed := *r
				closed.Clauses, closed.Faults = slices.Clone(r.Clauses), append(slices.Clone(r.Faults), fault)
				out[i] = &closed
			}
			if c.Deny {
				c.AllPeers, c.Peers = true, nil
			} else {
				c.Peers = slices.DeleteFunc(slices.Clone(c.Peers), named)
			}
			out[i].Clauses[j] = c
		}
	}
	return out
}

// RuleSet returns the whole content of a rule set that Flush has reported, as it is now.
func (e *Engine) RuleSet(id datapath.RuleSetID) (datapath.RuleSet, bool) {
	rs, ok := e.byID[id]
	if !ok || !rs.installed {
		return datapath.RuleSet{}, false
	}
	return rs.content(), true
}
