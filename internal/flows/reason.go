package flows

import (
	"strings"

	"github.com/hawser-net/hawser/api/flow"
	"github.com/hawser-net/hawser/internal/datapath"
)

// fieldReasons are Cilium's numbers for what is dropped here for the same reason.
var fieldReasons = map[datapath.DropReason]flow.DropReason{
	datapath.ReasonPolicyDenied:      flow.DropReason_POLICY_DENIED,
	datapath.ReasonPolicyDeny:        flow.DropReason_POLICY_DENY,
	datapath.ReasonNoEndpoint:        flow.DropReason_NO_MATCHING_LOCAL_CONTAINER_FOUND,
	datapath.ReasonInvalidSourceMAC:  flow.DropReason_INVALID_SOURCE_MAC,
	datapath.ReasonInvalidSourceIP:   flow.DropReason_INVALID_SOURCE_IP,
	datapath.ReasonMalformed:         flow.DropReason_INVALID_PACKET_DROPPED,
	datapath.ReasonUnknownL3:         flow.DropReason_UNSUPPORTED_L3_PROTOCOL,
	datapath.ReasonUnknownL4:         flow.DropReason_UNKNOWN_L4_PROTOCOL,
	datapath.ReasonFragmentUnknown:   flow.DropReason_FIRST_LOGICAL_DATAGRAM_FRAGMENT_NOT_FOUND,
	datapath.ReasonTTLExceeded:       flow.DropReason_TTL_EXCEEDED,
	datapath.ReasonCTFull:            flow.DropReason_CT_MAP_INSERTION_FAILED,
	datapath.ReasonEndpointLocked:    flow.DropReason_NO_CONFIGURATION_AVAILABLE_TO_PERFORM_POLICY_DECISION,
	datapath.ReasonNoRuleSet:         flow.DropReason_DROP_EP_NOT_READY,
	datapath.ReasonNoTunnel:          flow.DropReason_NO_TUNNEL_OR_ENCAPSULATION_ENDPOINT,
	datapath.ReasonEncapFailed:       flow.DropReason_ERROR_WRITING_TO_PACKET,
	datapath.ReasonUnsupportedNDP:    flow.DropReason_FORBIDDEN_ICMPV6_MESSAGE,
	datapath.ReasonUnknownRelated:    flow.DropReason_UNKNOWN_CONNECTION_TRACKING_STATE,
	datapath.ReasonInvalidIdentity:   flow.DropReason_INVALID_IDENTITY,
	datapath.ReasonNoBackend:         flow.DropReason_SERVICE_BACKEND_NOT_FOUND,
	datapath.ReasonNoPort:            flow.DropReason_NO_MAPPING_FOR_NAT_MASQUERADE,
	datapath.ReasonNoLocalBackend:    flow.DropReason_SERVICE_BACKEND_NOT_FOUND,
	datapath.ReasonSourceRange:       flow.DropReason_DENIED_BY_LB_SRC_RANGE_CHECK,
	datapath.ReasonTunnelNotFromNode: flow.DropReason_ENCAPSULATION_TRAFFIC_IS_PROHIBITED,
	datapath.ReasonUnknownTunnelPeer: flow.DropReason_UNKNOWN_SENDER,
	datapath.ReasonSCTPPort:          flow.DropReason_UNSUPPORTED_PROTOCOL_FOR_NAT_MASQUERADE,
}

// nearestReasons are for reasons that Cilium does not have: the nearest reason of Cilium, which is
// true of such packets, too.
var nearestReasons = map[datapath.DropReason]flow.DropReason{
	datapath.ReasonMulticast:       flow.DropReason_UNKNOWN_L3_TARGET_ADDRESS,
	datapath.ReasonMTUExceeded:     flow.DropReason_IP_FRAGMENTATION_NOT_SUPPORTED,
	datapath.ReasonServiceChanging: flow.DropReason_SERVICE_BACKEND_NOT_FOUND,
	datapath.ReasonNotForPods:      flow.DropReason_STALE_OR_UNROUTABLE_IP,
	datapath.ReasonSourceRoute:     flow.DropReason_INVALID_PACKET_DROPPED,
	datapath.ReasonTupleInUse:      flow.DropReason_INVALID_PACKET_DROPPED,
}

// fieldTexts are the texts that Cilium's counters of packets have for the reasons in fieldReasons.
var fieldTexts = map[flow.DropReason]string{
	flow.DropReason_INVALID_SOURCE_MAC:                                    "Invalid source mac",
	flow.DropReason_INVALID_SOURCE_IP:                                     "Invalid source ip",
	flow.DropReason_POLICY_DENIED:                                         "Policy denied",
	flow.DropReason_INVALID_PACKET_DROPPED:                                "Invalid packet",
	flow.DropReason_UNSUPPORTED_L3_PROTOCOL:                               "Unsupported L3 protocol",
	flow.DropReason_ERROR_WRITING_TO_PACKET:                               "Error writing to packet",
	flow.DropReason_UNKNOWN_L4_PROTOCOL:                                   "Unknown L4 protocol",
	flow.DropReason_NO_MATCHING_LOCAL_CONTAINER_FOUND:                     "No matching local container found",
	flow.DropReason_CT_MAP_INSERTION_FAILED:                               "CT: Map insertion failed",
	flow.DropReason_SERVICE_BACKEND_NOT_FOUND:                             "Service backend not found",
	flow.DropReason_NO_TUNNEL_OR_ENCAPSULATION_ENDPOINT:                   "No tunnel/encapsulation endpoint (datapath BUG!)",
	flow.DropReason_UNKNOWN_CONNECTION_TRACKING_STATE:                     "Unknown connection tracking state",
	flow.DropReason_NO_CONFIGURATION_AVAILABLE_TO_PERFORM_POLICY_DECISION: "No configuration available to perform policy decision",
	flow.DropReason_NO_MAPPING_FOR_NAT_MASQUERADE:                         "No mapping for NAT masquerade",
	flow.DropReason_UNSUPPORTED_PROTOCOL_FOR_NAT_MASQUERADE:               "Unsupported protocol for NAT masquerade",
	flow.DropReason_ENCAPSULATION_TRAFFIC_IS_PROHIBITED:                   "Encapsulation traffic is prohibited",
	flow.DropReason_INVALID_IDENTITY:                                      "Invalid identity",
	flow.DropReason_UNKNOWN_SENDER:                                        "Unknown sender",
	flow.DropReason_FIRST_LOGICAL_DATAGRAM_FRAGMENT_NOT_FOUND:             "First logical datagram fragment not found",
	flow.DropReason_FORBIDDEN_ICMPV6_MESSAGE:                              "Forbidden ICMPv6 message",
	flow.DropReason_DENIED_BY_LB_SRC_RANGE_CHECK:                          "Denied by LB src range check",
	flow.DropReason_POLICY_DENY:                                           "Policy denied by denylist",
	flow.DropReason_TTL_EXCEEDED:                                          "TTL exceeded",
	flow.DropReason_DROP_EP_NOT_READY:                                     "Endpoint policy program not available",
}

// CounterText is how counters of packets name a reason: as Cilium's do, or by our own name if
// Cilium has no such reason. Several reasons may have the same.
func CounterText(r datapath.DropReason) string {
	if desc, same := fieldReasons[r]; same {
		return fieldTexts[desc]
	}
	return r.String()
}

// namelessReason is the sub-type of a drop for a reason that is not known here. Clients look up the
// last byte of a sub-type: the field's reasons begin at 130, and lower numbers, of which 0 is
// success, are no drops. For this one they have no name, so they show the number.
const namelessReason = 129

// setReason sets why a flow was dropped, or would have been.
func setReason(f *flow.Flow, r datapath.DropReason) {
	desc, same := fieldReasons[r]
	if !same {
		desc, f.HawserDropReason = nearestReasons[r], r.String()
	}
	f.DropReason, f.DropReasonDesc = uint32(desc), desc
}

// RefusedByPolicy reports whether policy refused a flow, or would have but for an audit.
func RefusedByPolicy(f *flow.Flow) bool {
	return f.GetDropReasonDesc() == flow.DropReason_POLICY_DENIED || f.GetDropReasonDesc() == flow.DropReason_POLICY_DENY
}

// ReasonText is the drop reason of a flow as text: the name that Hubble uses, or our own for a
// reason that only Hawser has. It is empty if the flow was not dropped. The name is short and has
// no character that would have to be escaped, whoever sent the flow.
func ReasonText(f *flow.Flow) string {
	switch own := f.GetHawserDropReason(); {
	case own != "" && len(own) <= maxReason && strings.Trim(own, "abcdefghijklmnopqrstuvwxyz0123456789-") == "":
		return own
	case f.GetDropReasonDesc() != flow.DropReason_DROP_REASON_UNKNOWN:
		return f.GetDropReasonDesc().String()
	case f.GetDropReason() != 0:
		return flow.DropReason(f.GetDropReason()).String()
	}
	return ""
}

// maxReason is how long a name of a reason is at most, in bytes.
const maxReason = 64
