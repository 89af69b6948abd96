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

// RuleSet returns the whole content of a rule set that Flush has reported, as it is now.
func (e *Engine) RuleSet(id datapath.RuleSetID) (datapath.RuleSet, bool) {
	rs, ok := e.byID[id]
	if !ok || !rs.installed {
		return datapath.RuleSet{}, false
	}
	return rs.content(), true
}
