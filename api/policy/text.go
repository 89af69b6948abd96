package policy

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/hawser-net/hawser/api/flow"
)

// Text names a policy for people, as flows name it.
func (x *PolicyName) Text() string {
	if x.GetNamespace() == "" {
		return x.GetName()
	}
	return x.GetNamespace() + "/" + x.GetName()
}

// Text names a party for people.
func (x *Party) Text() string {
	text := x.GetName()
	if x.GetNamespace() != "" {
		text = x.GetNamespace() + "/" + text
	}
	if x.GetCluster() != "" {
		text += " of " + x.GetCluster()
	}
	return text
}

// Text names an entry of a policy for people: the policy, the entry, and the line if that is known.
func (x *Rule) Text() string {
	if x.GetPolicy() == nil {
		return x.GetPath()
	}
	text := x.GetPolicy().Text() + " " + x.GetPath()
	switch {
	case x.GetLine() > 0:
		text += fmt.Sprintf(" (%s:%d)", x.GetDocument(), x.GetLine())
	case x.GetDocument() != "":
		text += " (" + x.GetDocument() + ")"
	}
	return text
}

// Text describes what decides a verdict.
func (x *Decision) Text() string {
	if len(x.GetRules()) == 0 {
		return x.GetReason()
	}
	var rules []string
	for _, r := range x.GetRules() {
		rules = append(rules, r.Text())
	}
	text := strings.Join(rules, ", ")
	if x.GetDirection() != flow.TrafficDirection_TRAFFIC_DIRECTION_UNKNOWN {
		text = strings.ToLower(x.GetDirection().String()) + ": " + text
	}
	if strings.HasPrefix(x.GetReason(), "no rule allows") {
		text += " (no rule allows it)"
	}
	return text
}

// protocols are those that ports have; any other is ANY.
var protocols = []string{"TCP", "UDP", "SCTP", "ICMPv4", "ICMPv6", "ANY"}

const everything = "everything"

// PortsText names ports for people, in as few words as there are: each range that passes or all but
// those that do not. port writes some ports of a protocol.
func PortsText(list []*PortRange, port func(protocol, ports string) string) (out []string) {
	rest := others(list)
	if len(rest) == 0 {
		return []string{everything}
	}
	if len(rest) < len(list) {
		var but []string
		for _, r := range rest {
			but = append(but, r.text(port))
		}
		return []string{everything + " but " + strings.Join(but, ", ")}
	}
	for _, r := range list {
		out = append(out, r.text(port))
	}
	return out
}

// OpenedText names for people what passes between a pair only afterwards.
func (x *PairChange) OpenedText(port func(protocol, ports string) string) []string {
	if x.GetAfter().GetVerdict() == Verdict_ALLOWED && x.GetBefore().GetVerdict() == Verdict_PARTIAL {
		return []string{"everything else"}
	}
	return PortsText(x.GetOpened(), port)
}

// ClosedText names for people what passes between a pair only before.
func (x *PairChange) ClosedText(port func(protocol, ports string) string) []string {
	if x.GetAfter().GetVerdict() == Verdict_DENIED && x.GetBefore().GetVerdict() == Verdict_ALLOWED {
		return []string{everything}
	}
	return PortsText(x.GetClosed(), port)
}

func (x *PortRange) text(port func(protocol, ports string) string) string {
	all := x.GetFirst() == 0 && x.GetLast() >= 65535
	switch proto := x.GetProtocol(); {
	case proto == "ANY":
		return "other protocols"
	case all && strings.HasPrefix(proto, "ICMP"):
		return proto
	case all:
		return "all " + proto + " ports"
	case x.GetFirst() == x.GetLast():
		return port(proto, fmt.Sprint(x.GetFirst()))
	}
	return port(x.GetProtocol(), fmt.Sprintf("%d-%d", x.GetFirst(), x.GetLast()))
}

// others are the ports that a list has not.
func others(list []*PortRange) (out []*PortRange) {
	for _, proto := range protocols {
		next := uint32(0)
		of := slices.DeleteFunc(slices.Clone(list), func(r *PortRange) bool { return r.GetProtocol() != proto })
		slices.SortFunc(of, func(a, b *PortRange) int { return cmp.Compare(a.GetFirst(), b.GetFirst()) })
		for _, r := range of {
			if r.GetFirst() > next {
				out = append(out, &PortRange{Protocol: proto, First: next, Last: r.GetFirst() - 1})
			}
			next = max(next, min(r.GetLast(), 65535)+1)
		}
		if next <= 65535 {
			out = append(out, &PortRange{Protocol: proto, First: next, Last: 65535})
		}
	}
	return out
}
