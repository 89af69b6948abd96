package flowmetrics

import (
	"strconv"
	"strings"

	"github.com/hawser-net/hawser/api/flow"
	"github.com/hawser-net/hawser/internal/flows"
)

// kind is a metric that can be asked for.
type kind struct {
	name, metric, help string
	labels             []string
	// free says of the last label that senders choose its values.
	free bool
	// count calls add with the values of the labels for each time that a flow counts.
	count func(f *flow.Flow, add func(values ...string))
}

var kinds = []kind{
	{"drop", "hubble_drop_total", "Packets that were dropped.", []string{"reason", "protocol"}, false,
		func(f *flow.Flow, add func(...string)) {
			// A refusal by policy is a verdict and a drop: it counts once.
			if f.GetEventType().GetType() == flows.EventDrop && f.GetVerdict() == flow.Verdict_DROPPED {
				add(reason(f), protocol(f))
			}
		}},
	{"flow", "hubble_flows_processed_total", "Flows that were recorded.", []string{"protocol", "type", "subtype", "verdict"}, false,
		func(f *flow.Flow, add func(...string)) {
			kind, sub := eventType(f)
			add(protocol(f), kind, sub, f.GetVerdict().String())
		}},
	{"icmp", "hubble_icmp_total", "ICMP messages.", []string{"family", "type"}, true,
		func(f *flow.Flow, add func(...string)) {
			if m := f.GetL4().GetICMPv4(); m != nil {
				add("IPv4", flows.ICMPv4Name(m))
			}
			if m := f.GetL4().GetICMPv6(); m != nil {
				add("IPv6", flows.ICMPv6Name(m))
			}
		}},
	{"policy", "hubble_policy_verdicts_total", "Verdicts of policy.", []string{"direction", "match", "action"}, false,
		func(f *flow.Flow, add func(...string)) {
			const host, health = 1, 4 // reserved identities, of which every node has traffic of its own
			src, dst := f.GetSource().GetIdentity(), f.GetDestination().GetIdentity()
			if f.GetEventType().GetType() == flows.EventVerdict && src != host && src != health && dst != health {
				add(direction(f), match(f), strings.ToLower(f.GetVerdict().String()))
			}
		}},
	{"port-distribution", "hubble_port_distribution_total", "Flows that were forwarded, by the port to which they went.", []string{"protocol", "port"}, true,
		func(f *flow.Flow, add func(...string)) {
			if !passed(f) || f.GetIsReply() == nil || f.GetIsReply().GetValue() {
				return
			}
			switch l4 := f.GetL4(); {
			case l4.GetTCP() != nil:
				add("TCP", strconv.Itoa(int(l4.GetTCP().GetDestinationPort())))
			case l4.GetUDP() != nil:
				add("UDP", strconv.Itoa(int(l4.GetUDP().GetDestinationPort())))
			case l4.GetSCTP() != nil:
				add("SCTP", strconv.Itoa(int(l4.GetSCTP().GetDestinationPort())))
			case l4 != nil:
				add(protocol(f), "0")
			}
		}},
	{"tcp", "hubble_tcp_flags_total", "TCP flags of flows that were forwarded.", []string{"flag", "family"}, false,
		func(f *flow.Flow, add func(...string)) {
			flags := f.GetL4().GetTCP().GetFlags()
			if flags == nil || !passed(f) {
				return
			}
			family := f.GetIP().GetIpVersion().String()
			if flags.GetFIN() {
				add("FIN", family)
			}
			switch {
			case flags.GetSYN() && flags.GetACK():
				add("SYN-ACK", family)
			case flags.GetSYN():
				add("SYN", family)
			}
			if flags.GetRST() {
				add("RST", family)
			}
		}},
}

func passed(f *flow.Flow) bool {
	return f.GetVerdict() == flow.Verdict_FORWARDED || f.GetVerdict() == flow.Verdict_REDIRECTED
}

// points are the names of where packets are seen, by their numbers.
var points = []string{"to-endpoint", "to-proxy", "to-host", "to-stack", "to-overlay", "from-endpoint",
	"from-proxy", "from-host", "from-stack", "from-overlay", "from-network", "to-network"}

func eventType(f *flow.Flow) (kind, sub string) {
	switch ev := f.GetEventType(); ev.GetType() {
	case flows.EventDrop:
		return "Drop", ""
	case flows.EventVerdict:
		return "PolicyVerdict", ""
	case flows.EventTrace:
		if n := ev.GetSubType(); n >= 0 && int(n) < len(points) {
			sub = points[n]
		}
		return "Trace", sub
	default:
		return "Unknown", strconv.Itoa(int(ev.GetType()))
	}
}

// matches are the names of what a rule that decided says, by their numbers.
var matches = []string{"none", "l3-only", "l3-l4", "l4-only", "all", "l3-proto", "proto-only"}

// match says what of a rule decided about a flow: none if no rule did.
func match(f *flow.Flow) string {
	if n := f.GetPolicyMatchType(); int(n) < len(matches) {
		return matches[n]
	}
	return "unknown"
}
