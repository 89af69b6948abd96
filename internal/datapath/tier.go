package datapath

import "fmt"

// TierRule is a rule of a tier whose rules count in order: its place, the smaller one first, and
// what it does, as the kernel has them. The zero TierRule is none. Places are numbered within a
// direction of a rule set; neighbours with the same action share one.
type TierRule uint16

const (
	tierActionBits = 2
	// maxPlace is the last place. Rules beyond it share it, and there a deny counts before a pass
	// before an accept.
	maxPlace = 1<<(16-tierActionBits) - 1
)

// NewTierRule returns the rule at a place; those beyond the last place share it.
func NewTierRule(place int, a TierAction) TierRule {
	return TierRule(min(place, maxPlace))<<tierActionBits | TierRule(a)
}

// Action returns what the rule does.
func (r TierRule) Action() TierAction { return TierAction(r & (1<<tierActionBits - 1)) }

// Place returns the rule's place.
func (r TierRule) Place() int { return int(r >> tierActionBits) }

// String returns "deny@3", or "none".
func (r TierRule) String() string {
	if r == 0 {
		return "none"
	}
	return fmt.Sprintf("%s@%d", r.Action(), r.Place())
}

// first returns the one that comes first.
func (r TierRule) first(o TierRule) TierRule {
	if r == 0 || o != 0 && o < r {
		return o
	}
	return r
}

// TierAction is what the first matching rule of a tier does. Of two rules in the same place the
// smaller one counts.
type TierAction uint8

// The actions, with the numbers that the kernel uses.
const (
	// TierNone: no rule of the tier matches.
	TierNone TierAction = iota
	// TierDeny drops.
	TierDeny
	// TierPass leaves the packet to the next tier.
	TierPass
	// TierAccept lets the packet pass, whatever later tiers are.
	TierAccept
)

// String returns "none", "deny", "pass" or "accept".
func (a TierAction) String() string {
	switch a {
	case TierDeny:
		return "deny"
	case TierPass:
		return "pass"
	case TierAccept:
		return "accept"
	}
	return "none"
}

// Join returns the combined verdict of two entries that match the same packet.
func (e PolicyEntry) Join(o PolicyEntry) PolicyEntry {
	deny := e.Deny || o.Deny
	return PolicyEntry{
		Deny: deny, Allow: !deny && (e.Allow || o.Allow),
		Admin: e.Admin.first(o.Admin), Baseline: e.Baseline.first(o.Baseline),
	}
}

// Tiered reports whether a tier other than the ordinary one has a verdict.
func (e PolicyEntry) Tiered() bool { return e.Admin != 0 || e.Baseline != 0 }

// Denies reports whether the entry can drop anything.
func (e PolicyEntry) Denies() bool {
	return e.Deny || e.Admin.Action() == TierDeny || e.Baseline.Action() == TierDeny
}
