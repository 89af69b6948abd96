package policy

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/labels"
)

// Rule is one rule of a policy object, checked and ready for an Engine. Make it with Parse or
// ParseClusterwide. It is immutable and may be shared by engines.
type Rule struct {
	// Namespace confines the rule; empty for a clusterwide one.
	Namespace string
	// Subject selects the endpoints that the rule is about.
	Subject *Selector
	// Tier is the rule's place among kinds of policies, and Priority, from 0, that within a tier
	// other than the ordinary one.
	Tier     Tier
	Priority int32
	// DefaultDeny is what the rule asks for, by direction, when it may choose
	// (Config.AllowNonDefaultDeny). Otherwise the presence of entries decides.
	DefaultDeny [2]bool
	// Clauses are the entries of all four lists.
	Clauses []Clause
	// Labels and Description are the rule's own, for display.
	Labels      labels.Set
	Description string
	// Path is where the rule stands in its object: "spec" or "specs[2]".
	Path string
	// Warnings are about what is in force, but perhaps not as the author meant it; each starts with
	// its field.
	Warnings []string
	// Faults are what of the rule is not enforced as it is written, because it cannot be; each
	// starts with its field.
	Faults []string
}

// Warnings returns those of all rules.
func Warnings(rules []*Rule) (out []string) {
	for _, r := range rules {
		out = append(out, r.Warnings...)
	}
	return out
}

// has reports whether the rule has an entry for the direction.
func (r *Rule) has(d datapath.Direction) bool {
	return slices.ContainsFunc(r.Clauses, func(c Clause) bool { return c.Direction == d })
}

// Clause is one entry of a rule's lists.
type Clause struct {
	Direction datapath.Direction
	Deny      bool
	// Pass leaves what matches to the next tier; only in a rule of a tier other than the ordinary
	// one.
	Pass bool
	// AllPeers stands for an absent list of peers. If it is false and Peers is empty, the clause
	// matches nothing.
	AllPeers bool
	Peers    []*Selector
	// Ports lists what of the traffic matches; without one the clause matches nothing.
	Ports []PortMatch
	// Path is where the clause stands in its rule: "ingress[0]".
	Path string
}

// PortMatch is a protocol with a range of ports, or with a named port.
type PortMatch struct {
	// Proto is the protocol; ProtoAny (every protocol) only together with all ports.
	Proto uint8
	// First and Last bound the ports; for ICMP and ICMPv6 they are message types. 0 to 65535 is
	// every port.
	First, Last uint16
	// Name, if not empty, is looked up instead.
	Name string
}

// String returns "ANY", "TCP", "80/TCP", "80-90/TCP" or "http/TCP".
func (m PortMatch) String() string {
	proto := datapath.ProtoName(m.Proto)
	switch {
	case m.Name != "":
		return m.Name + "/" + proto
	case m.First == 0 && m.Last == 65535:
		return proto
	case m.First == m.Last:
		return fmt.Sprintf("%d/%s", m.First, proto)
	}
	return fmt.Sprintf("%d-%d/%s", m.First, m.Last, proto)
}

// Owner names where rules came from, such as "web.yaml/default/allow-front". All rules of an owner
// are replaced together.
type Owner string

// Change replaces the rules of an owner; without rules it takes them away. Every source of policy
// speaks in changes.
type Change struct {
	Owner Owner
	Rules []*Rule
}

// action returns what the clause does in a tier where order counts.
func (c *Clause) action() datapath.TierAction {
	switch {
	case c.Deny:
		return datapath.TierDeny
	case c.Pass:
		return datapath.TierPass
	}
	return datapath.TierAccept
}

// unsure returns the clause that denies peers whose labels are not known, behind which there may be
// a pod that c denies or passes on; nil if c is not about pods. Such a peer has no named ports, so
// that instead of a name that is looked up at the peer each port is denied. In place of a pass it
// counts only beside what acceptsNetworks reports.
func (c *Clause) unsure() *Clause {
	if !c.Deny && !c.Pass {
		return nil
	}
	u, named := Clause{Direction: c.Direction, Deny: true, Peers: unlabelled, Ports: slices.Clone(c.Ports), Path: c.Path}, false
	for i, m := range u.Ports {
		if m.Name != "" && c.Direction == datapath.Egress {
			u.Ports[i], named = PortMatch{Proto: m.Proto, Last: 65535}, true
		}
	}
	if named && c.AllPeers || slices.ContainsFunc(c.Peers, func(s *Selector) bool { return s.selectsPods() || named && s.isWildcard() }) {
		return &u
	}
	return nil
}

// Entry is a row of a rule set with its verdict.
type Entry struct {
	datapath.PolicyKey
	datapath.PolicyEntry
}

// Delta changes a rule set in place. Written in this order, no packet passes in between that passes
// neither before nor after: upserts first, denies before allows; then deletes, allows before
// denies.
//
// With Ordered, the rule set has tiers, and entries are neither denies nor allows: upserts are to
// be written one by one, the most specific first, then deletes, the least specific first. A
// packet's verdict by any one peer is then always that of before or that of after.
type Delta struct {
	ID      datapath.RuleSetID
	Upserts []Entry
	Deletes []datapath.PolicyKey
	Ordered bool
}

// Binding is what a subject's endpoints point at.
type Binding struct {
	// RuleSet is 0 while the labels of the subject's identity are not known: the kernel then drops.
	RuleSet datapath.RuleSetID
	// Generation differs from every earlier one of this engine whenever established flows must be
	// evaluated again.
	Generation uint32
}

// Subject is every local endpoint with this identity, these named ports and these labels.
type Subject struct {
	Identity identity.ID
	// NamedPorts is what FormatNamedPorts returns; empty if there are none.
	NamedPorts string
	// Labels is the canonical string (labels.Set.KVString) of the labels that the endpoints have
	// themselves: their rules are chosen by these, whatever the labels of the ID, which count where
	// others select them as a peer. If it is empty, the labels are those of the identity.
	Labels string
}

func (s Subject) compare(o Subject) int {
	return cmp.Or(cmp.Compare(s.Identity, o.Identity), cmp.Compare(s.NamedPorts, o.NamedPorts), cmp.Compare(s.Labels, o.Labels))
}

func clip(s string) string {
	if len(s) > 80 {
		return s[:80] + "..."
	}
	return s
}
