package flows

import (
	"github.com/hawser-net/hawser/api/flow"
	"github.com/hawser-net/hawser/internal/datapath"
)

// OwnReasons is added to the numbers of those drop reasons for which the field has none. Its
// numbers fit into a byte.
const OwnReasons = 256

// fieldReasons are the field's numbers for what is dropped here for the same reason.
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

// reasonOf returns the number of a drop reason on the wire, and its name there: unknown if it is
// one of our own.
func reasonOf(r datapath.DropReason) (uint32, flow.DropReason) {
	if desc, ok := fieldReasons[r]; ok {
		return uint32(desc), desc
	}
	return OwnReasons + uint32(r), flow.DropReason_DROP_REASON_UNKNOWN
}

// RefusedByPolicy reports whether policy refused a flow, or would have but for an audit.
func RefusedByPolicy(f *flow.Flow) bool {
	return f.GetDropReasonDesc() == flow.DropReason_POLICY_DENIED || f.GetDropReasonDesc() == flow.DropReason_POLICY_DENY
}

// ReasonText names the drop reason of a flow for people: by the field's name, or by our own for a
// reason that only we have. It is empty if the flow was not dropped.
func ReasonText(f *flow.Flow) string {
	number := f.GetDropReason()
	switch {
	case f.GetDropReasonDesc() != flow.DropReason_DROP_REASON_UNKNOWN:
		return f.GetDropReasonDesc().String()
	case number >= OwnReasons && number < OwnReasons+256:
		return datapath.DropReason(number - OwnReasons).String()
	case number != 0:
		return flow.DropReason(number).String()
	}
	return ""
}
