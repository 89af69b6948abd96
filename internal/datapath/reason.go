package datapath

import (
	"errors"
	"fmt"
)

// Errors that implementations of Maps return, wrapped.
var (
	// ErrFull means that a kernel map has no room for an entry.
	ErrFull = errors.New("kernel map is full")
	// ErrShare means, with ErrFull, that a rule set exceeds its share of the map.
	ErrShare = errors.New("rule set is larger than its share of the map")
	// ErrUnsupported means that the running kernel lacks something the datapath needs.
	ErrUnsupported = errors.New("not supported by this kernel")
)

// DropReason is why a packet was dropped. The numbers are those of bpf/lib/reason.h; they are
// stable and never reused. 0 is a packet that was forwarded.
type DropReason uint8

// Drop reasons.
const (
	ReasonForwarded         DropReason = 0
	ReasonPolicyDenied      DropReason = 1  // no rule allows it and the direction is enforced
	ReasonPolicyDeny        DropReason = 2  // a deny rule matched
	ReasonNoEndpoint        DropReason = 3  // no endpoint row for the interface or address
	ReasonInvalidSourceMAC  DropReason = 4  // spoofed hardware address
	ReasonInvalidSourceIP   DropReason = 5  // spoofed address
	ReasonMalformed         DropReason = 6  // truncated or inconsistent headers, or a checksum to be written over them
	ReasonUnknownL3         DropReason = 7  // neither IPv4, IPv6 nor ARP, or hidden by a tag
	ReasonUnknownL4         DropReason = 8  // protocol or extension header the datapath can't parse
	ReasonFragmentUnknown   DropReason = 9  // fragment whose first part was not seen
	ReasonTTLExceeded       DropReason = 10 // hop limit used up
	ReasonCTFull            DropReason = 11 // the flow could not be recorded
	ReasonEndpointLocked    DropReason = 12 // the endpoint's rules could not be installed whole
	ReasonNoRuleSet         DropReason = 13 // the endpoint has no rules yet
	ReasonNoTunnel          DropReason = 14 // remote pod whose node is unknown
	ReasonEncapFailed       DropReason = 15 // the kernel refused to encapsulate or write
	ReasonUnsupportedNDP    DropReason = 16 // neighbour discovery other than for the gateway
	ReasonMulticast         DropReason = 17 // multicast or broadcast from or to a pod
	ReasonUnknownRelated    DropReason = 18 // ICMP error about a flow that is not known
	ReasonInvalidIdentity   DropReason = 19 // identity on the wire that no peer may use
	ReasonMTUExceeded       DropReason = 20 // larger than the path allows
	ReasonNoBackend         DropReason = 21 // service without a backend
	ReasonNoPort            DropReason = 22 // no port free to distinguish two flows to one backend
	ReasonNoLocalBackend    DropReason = 23 // service whose backends are all elsewhere, for whom only those of this node count
	ReasonSourceRange       DropReason = 24 // client that the service's ranges of clients leave out
	ReasonServiceChanging   DropReason = 25 // service that was replaced twice while the packet asked
	ReasonTunnelNotFromNode DropReason = 26 // packet to a node's tunnel, or one that carries another, not from a node
	ReasonUnknownTunnelPeer DropReason = 27 // tunnelled packet from an address that no known node has
	ReasonSCTPPort          DropReason = 28 // SCTP whose port would have to change, which its checksum forbids
	ReasonPolicyAudited     DropReason = 29 // no drop: what policy refused and audit mode let pass is counted by it
	ReasonNotForPods        DropReason = 30 // packet to an address that pods do not reach, as that of a cloud's metadata service, or loopback
	ReasonSourceRoute       DropReason = 31 // packet that names routers to go by, and so another destination than it shows
	ReasonTupleInUse        DropReason = 32 // segment between a client and a backend that have a connection through a service by the same ports
)

var reasonNames = [...]string{
	"forwarded", "policy-denied", "policy-deny-rule", "no-endpoint", "invalid-source-mac",
	"invalid-source-ip", "malformed-packet", "unknown-l3", "unknown-l4", "fragment-unknown",
	"ttl-exceeded", "conntrack-full", "endpoint-locked", "no-rule-set", "no-tunnel-endpoint",
	"encapsulation-failed", "unsupported-neighbour-discovery", "multicast", "unknown-related-icmp",
	"invalid-identity", "mtu-exceeded", "no-backend", "no-port",
	"no-local-backend", "source-range", "service-changing", "tunnel-not-from-node", "unknown-tunnel-peer",
	"sctp-port", "policy-audited", "not-for-pods", "source-route", "tuple-in-use",
}

// String returns the stable name used in metrics, events and the command line.
func (r DropReason) String() string {
	if int(r) < len(reasonNames) {
		return reasonNames[r]
	}
	return fmt.Sprintf("reason-%d", uint8(r))
}
