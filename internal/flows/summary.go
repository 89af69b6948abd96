package flows

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/hawser-net/hawser/api/flow"
)

// summary describes in a few words what a packet is, in the form in which existing clients print
// it: its innermost protocol, with the flags of TCP and the type of ICMP.
func summary(f *flow.Flow) string {
	switch l4 := f.GetL4(); {
	case l4.GetTCP() != nil:
		return "TCP Flags: " + tcpFlagNames(l4.GetTCP().GetFlags())
	case l4.GetUDP() != nil:
		return "UDP"
	case l4.GetSCTP() != nil:
		return "SCTP"
	case l4.GetICMPv4() != nil:
		return "ICMPv4 " + ICMPv4Name(l4.GetICMPv4())
	case l4.GetICMPv6() != nil:
		return "ICMPv6 " + ICMPv6Name(l4.GetICMPv6())
	case f.GetIP() != nil:
		return f.GetIP().GetIpVersion().String()
	case f.GetEthernet() != nil:
		return "Ethernet"
	}
	return ""
}

// tcpFlagNames lists flags in the order in which clients expect them.
func tcpFlagNames(f *flow.TCPFlags) string {
	names := make([]string, 0, 8)
	for _, flag := range []struct {
		set  bool
		name string
	}{{f.GetSYN(), "SYN"}, {f.GetACK(), "ACK"}, {f.GetRST(), "RST"}, {f.GetFIN(), "FIN"}, {f.GetPSH(), "PSH"}, {f.GetURG(), "URG"}, {f.GetECE(), "ECE"}, {f.GetCWR(), "CWR"}} {
		if flag.set {
			names = append(names, flag.name)
		}
	}
	return strings.Join(names, ", ")
}

// icmpType is a type of ICMP message and its codes that have names (IANA, ICMP parameters), as the
// field's summaries and metrics spell them.
type icmpType struct {
	name  string
	codes map[uint32]string
}

var icmp4 = map[uint32]icmpType{
	0: {name: "EchoReply"},
	3: {"DestinationUnreachable", map[uint32]string{0: "Net", 1: "Host", 2: "Protocol", 3: "Port", 4: "FragmentationNeeded",
		5: "SourceRoutingFailed", 6: "NetUnknown", 7: "HostUnknown", 8: "SourceIsolated", 9: "NetAdminProhibited", 10: "HostAdminProhibited",
		11: "NetTOS", 12: "HostTOS", 13: "CommAdminProhibited", 14: "HostPrecedence", 15: "PrecedenceCutoff"}},
	4:  {name: "SourceQuench"},
	5:  {"Redirect", map[uint32]string{0: "Net", 1: "Host", 2: "TOS+Net", 3: "TOS+Host"}},
	8:  {name: "EchoRequest"},
	9:  {name: "RouterAdvertisement"},
	10: {name: "RouterSolicitation"},
	11: {"TimeExceeded", map[uint32]string{0: "TTLExceeded", 1: "FragmentReassemblyTimeExceeded"}},
	12: {"ParameterProblem", map[uint32]string{0: "PointerIndicatesError", 1: "MissingOption", 2: "BadLength"}},
	13: {name: "TimestampRequest"},
	14: {name: "TimestampReply"},
	15: {name: "InfoRequest"},
	16: {name: "InfoReply"},
	17: {name: "AddressMaskRequest"},
	18: {name: "AddressMaskReply"},
}

var icmp6 = map[uint32]icmpType{
	1: {"DestinationUnreachable", map[uint32]string{0: "NoRouteToDst", 1: "AdminProhibited", 2: "BeyondScopeOfSrc", 3: "AddressUnreachable",
		4: "PortUnreachable", 5: "SrcAddressFailedPolicy", 6: "RejectRouteToDst"}},
	2: {name: "PacketTooBig"},
	3: {"TimeExceeded", map[uint32]string{0: "HopLimitExceeded", 1: "FragmentReassemblyTimeExceeded"}},
	// Hubble calls codes 1 and 2 the same.
	4:   {"ParameterProblem", map[uint32]string{0: "ErroneousHeaderField", 1: "UnrecognizedNextHeader", 2: "UnrecognizedIPv6Option"}},
	128: {name: "EchoRequest"},
	129: {name: "EchoReply"},
	133: {name: "RouterSolicitation"},
	134: {name: "RouterAdvertisement"},
	135: {name: "NeighborSolicitation"},
	136: {name: "NeighborAdvertisement"},
	137: {name: "Redirect"},
}

// ICMPv4Name names a message by its type, with its code where that matters.
func ICMPv4Name(m *flow.ICMPv4) string { return icmpName(icmp4, m.GetType(), m.GetCode()) }

// ICMPv6Name is the same for IPv6.
func ICMPv6Name(m *flow.ICMPv6) string { return icmpName(icmp6, m.GetType(), m.GetCode()) }

func icmpName(known map[uint32]icmpType, number, code uint32) string {
	t, ok := known[number]
	switch {
	case !ok:
		return fmt.Sprintf("%d(%d)", number, code)
	case t.codes == nil && code == 0:
		return t.name
	}
	text, ok := t.codes[code]
	if !ok {
		text = "Code: " + strconv.Itoa(int(code))
	}
	return t.name + "(" + text + ")"
}
