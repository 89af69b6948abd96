package policy

import (
	"cmp"
	"fmt"
	"slices"
)

// Tier is where in the order of judgement a rule stands.
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

// Action is what the first matching rule of a tier does.
type Action uint8

// The actions. If two rules of one place match, the smaller one counts.
const (
	// NoAction: no rule of the tier matches.
	NoAction Action = iota
	// ActionDeny drops.
	ActionDeny
	// ActionPass leaves the packet to the next tier.
	ActionPass
	// ActionAccept lets the packet pass, whatever later tiers say.
	ActionAccept
)

// String returns "none", "deny", "pass" or "accept".
func (a Action) String() string {
	switch a {
	case ActionDeny:
		return "deny"
	case ActionPass:
		return "pass"
	case ActionAccept:
		return "accept"
	}
	return "none"
}

// Ranked is the action of the first matching rule of a tier, and the rule's place: the smaller one
// comes first. The zero Ranked is no rule. Places are numbered within a direction of a rule set;
// neighbours with the same action share one.
type Ranked uint16

const (
	actionBits = 2
	// maxPlace is the last place. Rules beyond it share it, and there a deny counts before a pass
	// before an accept.
	maxPlace = 1<<(16-actionBits) - 1
)

func newRanked(place int, a Action) Ranked {
	return Ranked(min(place, maxPlace))<<actionBits | Ranked(a)
}

// Action returns what the rule does.
func (r Ranked) Action() Action { return Action(r & (1<<actionBits - 1)) }

// Place returns the rule's place.
func (r Ranked) Place() int { return int(r >> actionBits) }

// String returns "deny@3", or "none".
func (r Ranked) String() string {
	if r == 0 {
		return "none"
	}
	return fmt.Sprintf("%s@%d", r.Action(), r.Place())
}

// first returns the one that comes first.
func (r Ranked) first(o Ranked) Ranked {
	if r == 0 || o != 0 && o < r {
		return o
	}
	return r
}

// Decision is what an entry of a rule set says. Those of all entries that match a packet are put
// together with Join.
type Decision struct {
	// Deny and Allow are what ordinary policies say: neither, or one of both.
	Deny, Allow bool
	// Admin and Baseline are the first rules of these tiers.
	Admin, Baseline Ranked
}

// Join returns what two entries that match the same packet say together.
func (d Decision) Join(o Decision) Decision {
	deny := d.Deny || o.Deny
	return Decision{
		Deny: deny, Allow: !deny && (d.Allow || o.Allow),
		Admin: d.Admin.first(o.Admin), Baseline: d.Baseline.first(o.Baseline),
	}
}

// Verdict returns the outcome for a packet, given all that matches it and whether the direction is
// enforced.
func (d Decision) Verdict(enforced bool) Verdict {
	for _, a := range []Action{d.Admin.Action(), d.ordinary(), d.Baseline.Action()} {
		switch a {
		case ActionAccept:
			return Allowed
		case ActionDeny:
			return Denied
		}
	}
	if enforced {
		return DefaultDenied
	}
	return DefaultAllowed
}

func (d Decision) ordinary() Action {
	switch {
	case d.Deny:
		return ActionDeny
	case d.Allow:
		return ActionAccept
	}
	return NoAction
}

// tiered reports whether a tier other than the ordinary one says anything.
func (d Decision) tiered() bool { return d.Admin != 0 || d.Baseline != 0 }

// denies reports whether the entry can drop anything.
func (d Decision) denies() bool {
	return d.Deny || d.Admin.Action() == ActionDeny || d.Baseline.Action() == ActionDeny
}

// places gives the clauses of the tiers their places in a direction. It returns nil if no clause of
// a tier counts there: one of the baseline tier does not where ordinary rules enforce.
func places(rules []*engineRule, dir Direction, enforcedByRule bool) map[*compiledClause]Ranked {
	var out map[*compiledClause]Ranked
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
		place, last := 0, NoAction
		for _, er := range list {
			for i := range er.clauses {
				c := &er.clauses[i]
				if c.dir != dir {
					continue
				}
				if c.action != last {
					place, last = place+1, c.action
				}
				if out == nil {
					out = map[*compiledClause]Ranked{}
				}
				out[c] = newRanked(place, c.action)
			}
		}
	}
	return out
}

// byPrecedence orders the rules of one tier. Which of two policies with the same priority comes
// first is left open by the API; here it is the one whose owner comes first, so that all nodes
// agree.
func byPrecedence(a, b *engineRule) int {
	return cmp.Or(cmp.Compare(a.Priority, b.Priority), cmp.Compare(a.owner, b.owner), cmp.Compare(a.serial, b.serial))
}

// decided is a key with what it says.
type decided struct {
	portKey
	Decision
}

// newTieredSet makes the entries of one peer from what its clauses say, in any order. In the
// outcome every entry holds what all keys around it say too, and entries that say the same as the
// one around them are left out.
func newTieredSet(list []decided) *portSet {
	slices.SortFunc(list, func(a, b decided) int { return comparePortKeys(a.portKey, b.portKey) })
	kept := make(map[portKey]Decision, len(list))
	out := list[:0]
	for i := 0; i < len(list); {
		k, own := list[i].portKey, Decision{}
		for ; i < len(list) && list[i].portKey == k; i++ {
			own = own.Join(list[i].Decision)
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

// closestAround returns what the closest key around k says. What is wider was put there before.
func closestAround(kept map[portKey]Decision, k portKey) Decision {
	if k.proto != ProtoAny {
		for n := int(k.bits) - 1; n >= 0; n-- {
			if d, ok := kept[portKey{k.proto, uint8(n), k.port & (0xffff << (16 - n))}]; ok {
				return d
			}
		}
	}
	if k == (portKey{}) {
		return Decision{}
	}
	return kept[portKey{}]
}
