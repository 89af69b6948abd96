package policy

import (
	"net/netip"

	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/identity"
)

// Verdict is the outcome for a packet in one direction.
type Verdict uint8

// The outcomes.
const (
	// NoRuleSet: the rule set does not exist; the packet is dropped.
	NoRuleSet Verdict = iota
	// Allowed and Denied: by an entry.
	Allowed
	Denied
	// DefaultAllowed and DefaultDenied: no entry matches.
	DefaultAllowed
	DefaultDenied
)

// Pass reports whether the packet passes.
func (v Verdict) Pass() bool { return v == Allowed || v == DefaultAllowed }

// String returns a few words for people.
func (v Verdict) String() string {
	switch v {
	case Allowed:
		return "allowed"
	case Denied:
		return "denied"
	case DefaultAllowed:
		return "allowed by default"
	case DefaultDenied:
		return "denied by default"
	}
	return "denied: no rule set"
}

// Lookup evaluates a packet as the kernel does, with the rule set as of the last Flush: by the most
// specific entry of the peer's identity, the most specific of any peer, and the most specific of
// the longest known block around the peer's address, which may be invalid. For ICMP and ICMPv6 port
// is the message type; other protocols without ports have 0.
func (e *Engine) Lookup(rs datapath.RuleSetID, dir datapath.Direction, id identity.ID, at netip.Addr, proto uint8, port uint16) Verdict {
	set := e.byID[rs]
	if set == nil || !set.installed {
		return NoRuleSet
	}
	d := &set.dirs[dir]
	says := d.base.decision(proto, port)
	if id != 0 {
		says = says.Join(d.peers[id].decision(proto, port))
	}
	if block := e.blocks.longest(at); block != 0 {
		says = says.Join(d.peers[block].decision(proto, port))
	}
	return VerdictOf(says, d.enforced)
}
