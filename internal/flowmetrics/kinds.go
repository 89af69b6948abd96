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
				add("IPv4", icmpName(icmp4, m.GetType(), m.GetCode()))
			}
			if m := f.GetL4().GetICMPv6(); m != nil {
				add("IPv6", icmpName(icmp6, m.GetType(), m.GetCode()))
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

// icmpType is a type of ICMP message and its codes that have names (IANA, ICMP parameters).
type icmpType struct {
	name  string
	codes map[uint32]string
}

var icmp4 = map[uint32]icmpType{
	0: {name: "EchoReply"},
	3: {"DestinationUnreachable", map[uint32]string{0: "Net", 1: "Host", 2: "Protocol", 3: "Port", 4: "FragmentationNeeded",
		5: "SourceRoutingFailed", 9: "NetAdminProhibited", 10: "HostAdminProhibited", 13: "CommAdminProhibited"}},
	4:  {name: "SourceQuench"},
	5:  {"Redirect", map[uint32]string{0: "Net", 1: "Host", 2: "TOS+Net", 3: "TOS+Host"}},
	8:  {name: "EchoRequest"},
	9:  {name: "RouterAdvertisement"},
	10: {name: "RouterSolicitation"},
	11: {"TimeExceeded", map[uint32]string{0: "TTLExceeded", 1: "FragmentReassemblyTimeExceeded"}},
	12: {"ParameterProblem", map[uint32]string{0: "PointerIndicatesError", 1: "MissingOption", 2: "BadLength"}},
	13: {name: "TimestampRequest"},
	14: {name: "TimestampReply"},
}

var icmp6 = map[uint32]icmpType{
	1: {"DestinationUnreachable", map[uint32]string{0: "NoRouteToDst", 1: "AdminProhibited", 2: "BeyondScopeOfSrc", 3: "AddressUnreachable",
		4: "PortUnreachable", 5: "SrcAddressFailedPolicy", 6: "RejectRouteToDst"}},
	2:   {name: "PacketTooBig"},
	3:   {"TimeExceeded", map[uint32]string{0: "HopLimitExceeded", 1: "FragmentReassemblyTimeExceeded"}},
	4:   {"ParameterProblem", map[uint32]string{0: "ErroneousHeader", 1: "UnrecognizedNextHeader", 2: "UnrecognizedIPv6Option"}},
	128: {name: "EchoRequest"},
	129: {name: "EchoReply"},
	133: {name: "RouterSolicitation"},
	134: {name: "RouterAdvertisement"},
	135: {name: "NeighborSolicitation"},
	136: {name: "NeighborAdvertisement"},
	137: {name: "Redirect"},
}

// icmpName names a message by its type, with its code where that says more, else by numbers.
func icmpName(known map[uint32]icmpType, number, code uint32) string {
	t, ok := known[number]
	switch {
	case ok && t.codes == nil && code == 0:
		return t.name
	case !ok:
		t.name = strconv.Itoa(int(number))
	}
	text, ok := t.codes[code]
	if !ok {
		text = strconv.Itoa(int(code))
	}
	return t.name + "(" + text + ")"
}
