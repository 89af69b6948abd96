package policy

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/labels"
)

// Direction is the side of an endpoint on which a packet is judged.
type Direction uint8

// The two directions, with the numbers the kernel uses.
const (
	Ingress Direction = 0
	Egress  Direction = 1
)

// String returns "ingress" or "egress".
func (d Direction) String() string {
	if d == Egress {
		return "egress"
	}
	return "ingress"
}

// Protocol numbers (IANA) that policies can name.
const (
	ProtoAny    uint8 = 0
	ProtoICMP   uint8 = 1
	ProtoTCP    uint8 = 6
	ProtoUDP    uint8 = 17
	ProtoICMPv6 uint8 = 58
	ProtoSCTP   uint8 = 132
)

// ProtoName returns the name of a protocol number, or the number.
func ProtoName(p uint8) string {
	switch p {
	case ProtoAny:
		return "ANY"
	case ProtoICMP:
		return "ICMP"
	case ProtoTCP:
		return "TCP"
	case ProtoUDP:
		return "UDP"
	case ProtoICMPv6:
		return "ICMPv6"
	case ProtoSCTP:
		return "SCTP"
	}
	return strconv.Itoa(int(p))
}

// ParseProto reads what ProtoName writes, in upper or lower case.
func ParseProto(s string) (uint8, error) {
	switch strings.ToUpper(s) {
	case "ANY", "":
		return ProtoAny, nil
	case "ICMP":
		return ProtoICMP, nil
	case "TCP":
		return ProtoTCP, nil
	case "UDP":
		return ProtoUDP, nil
	case "ICMPV6":
		return ProtoICMPv6, nil
	case "SCTP":
		return ProtoSCTP, nil
	}
	n, err := strconv.ParseUint(s, 10, 8)
	if err != nil {
		return 0, fmt.Errorf("protocol %q is not known", clip(s))
	}
	return uint8(n), nil
}

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
func (r *Rule) has(d Direction) bool {
	for i := range r.Clauses {
		if r.Clauses[i].Direction == d {
			return true
		}
	}
	return false
}

// Clause is one entry of a rule's lists.
type Clause struct {
	Direction Direction
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
	proto := ProtoName(m.Proto)
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

// RuleSetID numbers a rule set on this node; never 0.
type RuleSetID uint32

// Key is one row of a rule set. Identity 0 is any peer, Proto 0 any protocol. The leading PortBits
// bits of Port count. If Proto is 0, PortBits is 0.
type Key struct {
	Direction Direction
	Identity  identity.ID
	Proto     uint8
	Port      uint16
	PortBits  uint8
}

// String returns the key for people, as in "ingress 256 80/TCP".
func (k Key) String() string {
	return fmt.Sprintf("%s %s %s", k.Direction, peerName(k.Identity), portKey{k.Proto, k.PortBits, k.Port})
}

func peerName(id identity.ID) string {
	if id == 0 {
		return "any"
	}
	return id.String()
}

// action returns what the clause does in a tier where order counts.
func (c *Clause) action() Action {
	switch {
	case c.Deny:
		return ActionDeny
	case c.Pass:
		return ActionPass
	}
	return ActionAccept
}

// Entry is a row with what it says.
type Entry struct {
	Key
	Decision
}

// RuleSet is the whole content of a rule set.
type RuleSet struct {
	ID RuleSetID
	// IngressEnforced and EgressEnforced say whether a packet that no entry matches is dropped.
	IngressEnforced bool
	EgressEnforced  bool
	// Entries is sorted by key.
	Entries []Entry
}

// Delta changes a rule set in place. Written in this order, no packet passes in between that passes
// neither before nor after: upserts first, denies before allows; then deletes, allows before
// denies.
//
// With Ordered, tiers say something in the rule set, and entries are neither denies nor allows:
// upserts are to be written one by one, the most specific first, then deletes, the least specific
// first. A packet's verdict by any one peer is then always that of before or that of after.
type Delta struct {
	ID      RuleSetID
	Upserts []Entry
	Deletes []Key
	Ordered bool
}

// Binding is what a subject's endpoints point at.
type Binding struct {
	// RuleSet is 0 while the labels of the subject's identity are not known: the kernel then drops.
	RuleSet RuleSetID
	// Generation differs from every earlier one of this engine whenever established flows must be
	// judged again.
	Generation uint32
}

// Subject is every local endpoint with this identity, these named ports and these labels.
type Subject struct {
	Identity identity.ID
	// NamedPorts is what FormatNamedPorts returns; empty if there are none.
	NamedPorts string
	// Labels is the canonical string (labels.Set.KVString) of the labels that the endpoints have
	// themselves: by these their rules are chosen, whatever is said of the number, which counts for
	// others who judge them as a peer. If it is empty, the labels are those of the identity as it
	// is known.
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
