package policy

import (
	"cmp"
	"slices"

	"github.com/hawser-net/hawser/internal/datapath"
)

// Tier is where in the order of evaluation a rule stands.
type Tier uint8

// The tiers. The zero Tier is that of ordinary policies; the others are those of
// ClusterNetworkPolicy, whose rules come in order, and the first that matches a packet counts.
const (
	// TierOrdinary: every rule counts, and a deny beats every allow.
	TierOrdinary Tier = iota
	// TierAdmin is asked before ordinary policies. What it accepts or denies they do not get to
	// see.
	TierAdmin
	// TierBaseline is asked after them, about endpoints that none of them enforces in the
	// direction.
	TierBaseline
)

// String returns "ordinary", "admin" or "baseline".
func (t Tier) String() string {
	switch t {
	case TierAdmin:
		return "admin"
	case TierBaseline:
		return "baseline"
	}
	return "ordinary"
}

// VerdictOf returns the outcome for a packet, given the combined verdict of all that matches it and
// whether the direction is enforced.
func VerdictOf(says datapath.PolicyEntry, enforced bool) Verdict {
	for _, a := range []datapath.TierAction{says.Admin.Action(), ordinary(says), says.Baseline.Action()} {
		switch a {
		case datapath.TierAccept:
			return Allowed
		case datapath.TierDeny:
			return Denied
		}
	}
	if enforced {
		return DefaultDenied
	}
	return DefaultAllowed
}

func ordinary(says datapath.PolicyEntry) datapath.TierAction {
	switch {
	case says.Deny:
		return datapath.TierDeny
	case says.Allow:
		return datapath.TierAccept
	}
	return datapath.TierNone
}

// places gives the clauses of the tiers their places in a direction. It returns nil if no clause of
// a tier counts there: one of the baseline tier does not where ordinary rules enforce.
func places(rules []*engineRule, dir datapath.Direction, enforcedByRule bool) map[*compiledClause]datapath.TierRule {
	var out map[*compiledClause]datapath.TierRule
	for _, tier := range []Tier{TierAdmin, TierBaseline} {
		if tier == TierBaseline && enforcedByRule {
			continue
		}
		var list []*engineRule
		for _, er := range rules {
			if er.Tier == tier {
				list = append(list, er)
			}
		}
		slices.SortFunc(list, byPrecedence)
		accepts := acceptsNetworks(list, tier, dir)
		place, last := 0, datapath.TierNone
		for _, er := range list {
			for i := range er.clauses {
				c := &er.clauses[i]
				if c.dir != dir || c.maybe && !accepts {
					continue
				}
				if c.action != last {
					place, last = place+1, c.action
				}
				if out == nil {
					out = map[*compiledClause]datapath.TierRule{}
				}
				out[c] = datapath.NewTierRule(place, c.action)
			}
		}
	}
	return out
}

// acceptsNetworks reports whether rules of a tier accept addresses: of all that they accept, only
// these may be those of a peer whose labels are not known.
func acceptsNetworks(rules []*engineRule, tier Tier, dir datapath.Direction) bool {
	return slices.ContainsFunc(rules, func(er *engineRule) bool {
		return er.Tier == tier && slices.ContainsFunc(er.clauses, func(c compiledClause) bool {
			return c.dir == dir && c.action == datapath.TierAccept && slices.ContainsFunc(c.peers, func(s *Selector) bool { return s.kind == byBlock })
		})
	})
}

// byPrecedence orders the rules of one tier. Which of two policies with the same priority comes
// first is left open by the API; here it is the one whose owner comes first, so that all nodes
// agree.
func byPrecedence(a, b *engineRule) int {
	return cmp.Or(cmp.Compare(a.Priority, b.Priority), cmp.Compare(a.owner, b.owner), cmp.Compare(a.serial, b.serial))
}

// decided is a key with its verdict.
type decided struct {
	portKey
	datapath.PolicyEntry
}

// newTieredSet makes the entries of one peer from its clauses, in any order. In the outcome every
// entry includes the verdicts of all keys that contain it, and entries equal to the one that
// contains them are left out.
func newTieredSet(list []decided) *portSet {
	slices.SortFunc(list, func(a, b decided) int { return comparePortKeys(a.portKey, b.portKey) })
	kept := make(map[portKey]datapath.PolicyEntry, len(list))
	out := list[:0]
	for i := 0; i < len(list); {
		k, own := list[i].portKey, datapath.PolicyEntry{}
		for ; i < len(list) && list[i].portKey == k; i++ {
			own = own.Join(list[i].PolicyEntry)
		}
		around := closestAround(kept, k)
		if own = own.Join(around); own == around {
			continue
		}
		kept[k] = own
		out = append(out, decided{k, own})
	}
	if len(out) == 0 {
		return nil
	}
	return &portSet{tiers: slices.Clip(out)}
}

// closestAround returns the verdict of the most specific key that contains k. Wider keys were
// inserted before.
func closestAround(kept map[portKey]datapath.PolicyEntry, k portKey) datapath.PolicyEntry {
	if k.proto != datapath.ProtoAny {
		for n := int(k.bits) - 1; n >= 0; n-- {
			if d, ok := kept[portKey{k.proto, uint8(n), k.port & (0xffff << (16 - n))}]; ok {
				return d
			}
		}
	}
	if k == (portKey{}) {
		return datapath.PolicyEntry{}
	}
	return kept[portKey{}]
}
