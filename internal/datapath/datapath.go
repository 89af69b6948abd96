package datapath

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Direction is the side of an endpoint on which a packet is evaluated.
type Direction uint8

// The two directions. The values are those stored in the kernel's policy map.
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

// RuleSetID numbers a rule set on this node. Numbers are local to the node and never 0: an endpoint
// whose row has 0 has no rules yet and drops everything that policy applies to.
type RuleSetID uint32

// MaxRuleSet is the largest number of a rule set. In the kernel's programs the bit above means that
// the endpoint is in audit mode.
const MaxRuleSet RuleSetID = 1<<31 - 1

// PolicyKey is one row of a rule set. The zero Identity means any peer, the zero Proto any
// protocol. PortBits is how many leading bits of Port count: 16 is one port, 0 any port; the policy
// engine splits a range into prefixes. For ICMP and ICMPv6 Port holds the message type. If Proto is
// 0, PortBits must be 0.
//
// An identity of BlockScope means a peer by its address: see Block.
type PolicyKey struct {
	Direction Direction
	Identity  uint32
	Proto     uint8
	Port      uint16
	PortBits  uint8
}

// PolicyEntry is the verdict of a PolicyKey, or the combined one of several that match one packet
// (see Join). The zero PolicyEntry is no verdict.
type PolicyEntry struct {
	// Deny and Allow are the verdict of ordinary policies: neither, or one of both.
	Deny, Allow bool
	// Admin and Baseline are the first rules of the tiers before and after ordinary policies.
	Admin, Baseline TierRule
}

// The identities of pods that the cluster allocates, and what stands in rule sets for those of them
// that policy does not know.
const (
	MinPodIdentity     = 256
	MaxPodIdentity     = 1<<24 - 1
	UnobservedIdentity = 4 << 24
)

// BlockScope is the upper byte of the identities that stand for blocks of addresses (see Block).
const BlockScope = 3

// IsBlock reports whether the key is about a block of addresses.
func (k PolicyKey) IsBlock() bool { return k.Identity>>24 == BlockScope }

// RuleSet is the whole content of one rule set. Entries is owned by the RuleSet; readers must not
// change it.
type RuleSet struct {
	ID RuleSetID
	// IngressEnforced and EgressEnforced report whether a packet that no entry matches is dropped.
	IngressEnforced bool
	EgressEnforced  bool
	Entries         map[PolicyKey]PolicyEntry
}

// RuleSetDelta changes entries of a rule set in place, for a peer identity that appeared, changed
// or went. It must not change what any single packet of another identity gets. Upserts are written
// before deletes, the most specific first, and deletes in their order.
type RuleSetDelta struct {
	ID      RuleSetID
	Upserts map[PolicyKey]PolicyEntry
	Deletes []PolicyKey
}

// Endpoint is the kernel's row of one local endpoint, found by the index of its host-side
// interface and by each of its addresses.
type Endpoint struct {
	// ID is the endpoint's number on this node, 1 to 65535.
	ID uint16
	// IfIndex is the index of the host-side interface in the node's network namespace.
	IfIndex int
	// IfName is its name (lxc...); it is not stored in the kernel's row.
	IfName string
	// MAC is the address of the interface inside the pod, HostMAC that of the host side.
	MAC     net.HardwareAddr
	HostMAC net.HardwareAddr
	// IPv4 and IPv6 are the endpoint's addresses; an invalid Addr means the family is absent.
	IPv4 netip.Addr
	IPv6 netip.Addr
	// Identity is the endpoint's security identity.
	Identity uint32
	// RuleSet is the rule set that evaluates the endpoint's packets; 0 drops all of them.
	RuleSet RuleSetID
	// PolicyGeneration changes whenever flows admitted before must be evaluated again. It is never
	// reused while such a flow could live.
	PolicyGeneration uint32
	// Incarnation distinguishes the endpoint from every other that this node has had or will have,
	// also from those with its number and addresses: flows belong to it and not to the address. It
	// is never 0 and does not change while the endpoint lives.
	Incarnation uint32
	// Locked drops every packet because the endpoint's rules could not be installed whole.
	Locked bool
	// Audit has pass what the endpoint's policy refuses, and nothing else that is dropped.
	Audit bool
}

// Same reports whether the kernel stores the same of two rows: all but the name of the interface.
func (ep Endpoint) Same(o Endpoint) bool {
	return ep.ID == o.ID && ep.IfIndex == o.IfIndex && slices.Equal(ep.MAC, o.MAC) && slices.Equal(ep.HostMAC, o.HostMAC) &&
		ep.IPv4 == o.IPv4 && ep.IPv6 == o.IPv6 && ep.Identity == o.Identity && ep.RuleSet == o.RuleSet &&
		ep.PolicyGeneration == o.PolicyGeneration && ep.Incarnation == o.Incarnation && ep.Locked == o.Locked && ep.Audit == o.Audit
}

// IPCacheEntry is the identity of a prefix and how to reach it.
type IPCacheEntry struct {
	Prefix   netip.Prefix
	Identity uint32
	// TunnelEndpoint is the underlay IPv4 or IPv6 address of the node that hosts the prefix;
	// invalid when the prefix is local, outside the cluster, or reached without encapsulation.
	TunnelEndpoint netip.Addr
}

// TunnelPeer is one address by which another node sends through the tunnel, and what is believed of
// its packets. Packets of others are dropped.
type TunnelPeer struct {
	Addr netip.Addr
	// Node is the same for all addresses of a node, and differs between nodes.
	Node uint32
	// First and Last bound the identities that the node's packets may have, besides reserved ones.
	First, Last uint32
	// Own means that the node is of this cluster: its packets may have the identities that are
	// known without allocation, which mean something else in another cluster.
	Own bool
}

// Block gives the addresses of a prefix a second identity, for rules that match addresses whatever
// their owner. Of several blocks around an address the longest counts.
type Block struct {
	Prefix netip.Prefix
	// Identity has BlockScope as its upper byte.
	Identity uint32
}

// Config is the configuration of the programs at load time. Changing it replaces the programs in
// place.
type Config struct {
	// Tunnel selects VXLAN encapsulation between nodes; otherwise packets are routed natively.
	Tunnel bool
	// TunnelIfIndex is the VXLAN device, HostIfIndex the host's own device (hawser_host),
	// NativeIfIndex the device towards other nodes. 0 means absent.
	TunnelIfIndex int
	HostIfIndex   int
	NativeIfIndex int
	// NativeMAC is the hardware address of the native device: what leaves by it under another is
	// not this node's own. Empty if unknown.
	NativeMAC net.HardwareAddr
	// NativeMTU is how large a packet the native device sends; 0 if unknown. Without a tunnel it
	// determines which packets of clients outside have room for the header that another node needs
	// to answer them itself.
	NativeMTU int
	// Interfaces means that others besides the native device connect the nodes: those of a cloud,
	// which the loader gets one by one. It needs native routing.
	Interfaces bool
	// TunnelPort is the UDP port of the encapsulation; 0 without a tunnel.
	TunnelPort uint16
	// NodePort has the native device lead clients outside of the cluster to services.
	NodePort bool
	// OtherIfIndexes are further devices, with Ethernet headers, that do so as well: by which the
	// node has addresses, but no cluster.
	OtherIfIndexes []int
	// MasqueradePorts are those in whose name clients outside are sent on to backends of other
	// nodes; the zero value stands for DefaultMasqueradePorts.
	MasqueradePorts PortRange
	// RouterIPv4 and RouterIPv6 are the node's own pod-network addresses, the pods' gateways.
	RouterIPv4 netip.Addr
	RouterIPv6 netip.Addr
	// HostMAC is the hardware address of hawser_host.
	HostMAC net.HardwareAddr
	// NodeIPv4 and NodeIPv6 are the node's underlay addresses.
	NodeIPv4 netip.Addr
	NodeIPv6 netip.Addr
	// NodeIPv4Translated and NodeIPv6Translated mean that the node has the address on none of its
	// interfaces, as behind NAT: the route chooses the tunnel's source then.
	NodeIPv4Translated bool
	NodeIPv6Translated bool
	// LoopbackIPv4 and LoopbackIPv6 are the addresses that a pod sees when it reaches itself
	// through a service; those that are invalid are as in DefaultLoopbacks.
	LoopbackIPv4 netip.Addr
	LoopbackIPv6 netip.Addr
	// CgroupRoot is the directory of the cgroup (version 2) whose processes reach services by
	// hooks; empty if the node's own processes are served by another component. NetNSCookie is the
	// kernel's number of the node's own network namespace, whose sockets are the only ones that the
	// hooks touch, and whose routes are what makes a packet the node's where it leaves; it is
	// needed with a native device, too.
	CgroupRoot  string
	NetNSCookie uint64
	// DualStackWorld gives what is outside the cluster one identity a family, world-ipv4 (9) and
	// world-ipv6 (10), instead of world (2) for both. Identities of prefixes must be chosen alike.
	DualStackWorld bool
	// NotForPods are addresses that neither pods nor packets from the network may reach, such as
	// the metadata service of a cloud, which gives any client the credentials of the machine. The
	// node itself may. There are at most four.
	NotForPods []netip.Addr
	// CTTimeouts are the lifetimes of conntrack entries since the last packet; those that are 0 are
	// as in DefaultCTTimeouts.
	CTTimeouts CTTimeouts
	// Aggregation selects the packets that stand for the rest of their flow.
	Aggregation Aggregation
}

// Aggregation selects the forwarded packets that are events where not all are: those that open a
// flow, the first answer, those that end it, and the following. The zero value is these alone.
type Aggregation struct {
	// Interval is how often a flow that has packets has a sample; 0 for never. It is rounded up to
	// ticks of the programs' clock, of 1.07 s.
	Interval time.Duration
	// TCPFlags are those, by their bits in the header, of which the first in each direction of a
	// flow is an event.
	TCPFlags uint8
}

// PortRange is the ports from First to Last, both included.
type PortRange struct{ First, Last uint16 }

// DefaultMasqueradePorts returns the ports above those that Linux gives to sockets by itself.
func DefaultMasqueradePorts() PortRange { return PortRange{First: 61000, Last: 65535} }

// ParsePortRange reads a port, or the first and the last with a hyphen between.
func ParsePortRange(s string) (PortRange, error) {
	first, last, ok := strings.Cut(s, "-")
	if !ok {
		last = first
	}
	f, err := strconv.ParseUint(first, 10, 16)
	l, lerr := strconv.ParseUint(last, 10, 16)
	if err != nil || lerr != nil || f > l {
		return PortRange{}, fmt.Errorf("%q is no range of ports: want FIRST-LAST", s)
	}
	return PortRange{First: uint16(f), Last: uint16(l)}, nil
}

// String returns what ParsePortRange reads.
func (r PortRange) String() string {
	if r.First == r.Last {
		return strconv.Itoa(int(r.First))
	}
	return fmt.Sprintf("%d-%d", r.First, r.Last)
}

// Count returns how many ports there are, 0 if the range is upside down.
func (r PortRange) Count() int { return max(0, int(r.Last)-int(r.First)+1) }

// DefaultLoopbacks returns the usual addresses that a pod sees when it reaches itself through a
// service. They belong to no host: one is link-local, the other of the discard prefix of RFC 6666.
func DefaultLoopbacks() (v4, v6 netip.Addr) {
	return netip.AddrFrom4([4]byte{169, 254, 42, 1}), netip.AddrFrom16([16]byte{0: 1, 15: 1})
}

// CTTimeouts are the lifetimes of idle connection-tracking entries.
type CTTimeouts struct {
	TCP    time.Duration // established TCP
	TCPSyn time.Duration // TCP before the handshake is done
	TCPFin time.Duration // TCP after FIN or RST
	Any    time.Duration // everything else
}

// DefaultCTTimeouts returns the usual lifetimes.
func DefaultCTTimeouts() CTTimeouts {
	return CTTimeouts{
		TCP:    8000 * time.Second,
		TCPSyn: 60 * time.Second,
		TCPFin: 10 * time.Second,
		Any:    60 * time.Second,
	}
}

// CTEntry is one tracked flow, for display and garbage collection. Src is the side that opened it.
type CTEntry struct {
	Src, Dst      netip.AddrPort // for ICMP the port of Src is the echo id
	Proto         uint8
	SrcIdentity   uint32
	DstIdentity   uint32
	SrcGeneration uint32        // policy generation of the local source endpoint, 0 if remote
	DstGeneration uint32        // policy generation of the local destination endpoint, 0 if remote
	SrcOwner      uint32        // incarnation of the local source endpoint, 0 if remote
	DstOwner      uint32        // incarnation of the local destination endpoint, 0 if remote
	Expires       time.Duration // until expiry; negative when expired
	SeenReply     bool
	Closing       bool
	// Service is the frontend that the flow was addressed to, invalid if none: Dst is its backend.
	Service netip.AddrPort
	// DSR means that the backend's node answers the client, which had contacted another node:
	// neither sees all of the flow.
	DSR            bool
	ForwardPackets uint64
	ReversePackets uint64
}

// FlowShare is the use of conntrack by an endpoint of this node, or by the node itself and hosts
// outside (Endpoint 0).
type FlowShare struct {
	Endpoint uint16
	Entries  int // flows, and what else is remembered of them
	Share    int // beyond this, new entries displace others that are beyond a share; 0: no bound
	Excess   int // entries that were made beyond the share, in all
}

// Metric is one counter of packets and bytes by reason and direction, summed over processors.
type Metric struct {
	Reason    DropReason // ReasonForwarded for packets that passed
	Direction Direction
	Packets   uint64
	Bytes     uint64
}

// Maps is the kernel's state. Implementations are safe for concurrent use. Every write is
// idempotent; deleting what is absent is not an error.
type Maps interface {
	// UpsertEndpoint writes the endpoint's row under its interface and its addresses. The row
	// under each key is replaced atomically; address rows that the previous row of the same
	// interface had and the new one lacks are removed.
	UpsertEndpoint(ep Endpoint) error
	// DeleteEndpoint removes the rows of the endpoint on ifIndex: addresses first, interface last.
	DeleteEndpoint(ifIndex int) error
	// Endpoints lists the rows, in no order.
	Endpoints() ([]Endpoint, error)

	// InstallRuleSet makes the rule set's content exactly rs. It fails with ErrFull, leaving
	// nothing behind if the number was new, when the map has no room.
	InstallRuleSet(rs RuleSet) error
	// UpdateRuleSet applies upserts, then deletes. On error the rule set holds a mixture; the
	// caller must install it again or lock its endpoints.
	UpdateRuleSet(d RuleSetDelta) error
	// DeleteRuleSet removes a rule set that no endpoint points at any more.
	DeleteRuleSet(id RuleSetID) error
	// RuleSets lists all rule sets with their content.
	RuleSets() ([]RuleSet, error)

	// UpsertIPCache and DeleteIPCache change entries in batches.
	UpsertIPCache(entries []IPCacheEntry) error
	DeleteIPCache(prefixes []netip.Prefix) error
	IPCache() ([]IPCacheEntry, error)

	// UpsertTunnelPeers and DeleteTunnelPeers change the nodes that may send through the tunnel.
	UpsertTunnelPeers(peers []TunnelPeer) error
	DeleteTunnelPeers(addrs []netip.Addr) error
	TunnelPeers() ([]TunnelPeer, error)

	// UpsertBlocks and DeleteBlocks change blocks of addresses, in the order given and up to the
	// first that cannot be written.
	UpsertBlocks(blocks []Block) error
	DeleteBlocks(prefixes []netip.Prefix) error
	Blocks() ([]Block, error)

	// SetKnownIdentities records which identities of pods policy knows, of MinPodIdentity to
	// MaxPodIdentity. Packets of a peer that has another of these are evaluated as those of
	// UnobservedIdentity. Before the first call all count as known.
	SetKnownIdentities(ids []uint32) error
	// UpdateKnownIdentities changes what SetKnownIdentities has recorded.
	UpdateKnownIdentities(added, removed []uint32) error
	// KnownIdentities returns them, in order; all is true before the first SetKnownIdentities.
	KnownIdentities() (ids []uint32, all bool, err error)

	// LastGeneration returns the highest policy generation or incarnation that an endpoint's row, a
	// flow, or what else is remembered of packets names: numbers above it are unused.
	LastGeneration() (uint32, error)
	// CT calls fn for each tracked flow until it returns false.
	CT(fn func(CTEntry) bool) error
	// FlowShares returns the use of conntrack by endpoints and the node.
	FlowShares() ([]FlowShare, error)
	// CollectCT removes expired flows and those of endpoints that are gone, sets the shares that
	// keep a flood of flows from displacing those of others, and returns how many are left and how
	// many were removed.
	CollectCT(ctx context.Context) (alive, removed int, err error)

	// Metrics returns the packet counters.
	Metrics() ([]Metric, error)
	// SetMonitor switches the emission of events for MonitorLifetime; drops, verdicts and traces
	// are counted anyway.
	SetMonitor(flags MonitorFlags) error
}

// MonitorLifetime is how long the programs emit events after SetMonitor. The agent repeats the
// call, so that events stop when it is killed.
const MonitorLifetime = 40 * time.Second

// MonitorFlags select the kinds of event that the programs emit.
type MonitorFlags uint32

// Kinds of event.
const (
	MonitorDrops MonitorFlags = 1 << iota
	MonitorVerdicts
	// MonitorTraces is every packet that is forwarded, MonitorFlowUpdates those that [Aggregation]
	// selects.
	MonitorTraces
	MonitorFlowUpdates
)

// Programs puts the verified programs on interfaces. Attach never leaves a moment without a
// program where there was one before. Implementations are safe for concurrent use.
type Programs interface {
	// AttachEndpoint puts from-pod and to-pod on a host-side pod interface.
	AttachEndpoint(ifIndex int) error
	// Attached reports whether the current programs are on a pod interface.
	Attached(ifIndex int) (bool, error)
	// Configure (re)loads the programs with cfg if they differ from what is pinned, and attaches
	// the node's own: overlay, host and native device.
	Configure(cfg Config) error
}

// Links is the node's set of interfaces, routes and neighbours.
type Links interface {
	// EnsureEndpoint brings the host side of an endpoint up and installs its routes and permanent
	// neighbours. It must be called after the programs are attached.
	EnsureEndpoint(ep Endpoint) error
	// ShutEndpoint takes the host side of an endpoint down, so that nothing passes until
	// EnsureEndpoint. The absence of the interface is not an error.
	ShutEndpoint(ifIndex int) error
	// DeleteEndpoint removes the interface (and with it routes, neighbours and programs), perhaps
	// a little later together with others. The absence of the interface is not an error.
	DeleteEndpoint(ifName string, ifIndex int) error
	// EndpointLinks lists the host-side pod interfaces present (names starting with "lxc").
	EndpointLinks() ([]EndpointLink, error)
	// SetNode makes the node's devices, addresses, routes to other nodes and masquerading be as
	// described, and returns the device facts that Config needs. What it returns joins a
	// *RouteError for each route that is not in place; see RouteErrors.
	SetNode(n Node) (Devices, error)
}

// RouteError means that a route of SetNode is not in place. Everything else is.
type RouteError struct {
	// Peer is the node whose pods are not reached by it; empty if it is a route of this node's own
	// network.
	Peer string
	Err  error
}

func (e *RouteError) Error() string { return e.Err.Error() }

func (e *RouteError) Unwrap() error { return e.Err }

// RouteErrors parts the errors that SetNode joined: those of single routes, with which a node can
// work, from the rest, with which it cannot.
func RouteErrors(err error) (routes []*RouteError, rest error) {
	if one, ok := err.(*RouteError); ok {
		return []*RouteError{one}, nil
	}
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return nil, err
	}
	var others []error
	for _, e := range joined.Unwrap() {
		some, other := RouteErrors(e)
		routes = append(routes, some...)
		others = append(others, other)
	}
	return routes, errors.Join(others...)
}

// EndpointLink is a host-side pod interface found on the node.
type EndpointLink struct {
	Name    string
	IfIndex int
	MAC     net.HardwareAddr
	Up      bool
	// Ours: Hawser's plugin has made it, or Hawser's programs are on it. Other network plugins give
	// their interfaces such names, too.
	Ours bool
}

// Node is the desired state of the node's own networking.
type Node struct {
	Tunnel     bool
	TunnelPort uint16 // UDP port of VXLAN, 8472 by default
	// Device is the interface towards other nodes; MTU its desired pod MTU, 0 to follow the device.
	Device string
	MTU    int
	// RouterIPv4 and RouterIPv6 go onto hawser_host.
	RouterIPv4, RouterIPv6 netip.Addr
	// Balance4 and Balance6 mean that the node has no pods and no router address, but balances to
	// the pods of other nodes.
	Balance4, Balance6 bool
	// PodCIDRs are this node's, ClusterCIDRs everything that must not be masqueraded.
	PodCIDRs     []netip.Prefix
	ClusterCIDRs []netip.Prefix
	Masquerade4  bool
	Masquerade6  bool
	// KubeProxy means that its rules may be in netfilter, which then tracks pods' connections also
	// where nothing is masqueraded.
	KubeProxy bool
	// MasqueradePorts are as in Config: pods' flows that are masqueraded get none of them.
	MasqueradePorts PortRange
	// BigTCP4 and BigTCP6 have packets of TCP be larger than 64 KiB before segmentation and after
	// reassembly (BIG TCP), as far as Device takes them; with native routing only.
	BigTCP4, BigTCP6 bool
	// Interfaces means that pods have addresses of a cloud's interfaces, which are reconciled
	// elsewhere; without it their rules and routes are removed.
	Interfaces bool
	// DirectRoutes has routes to the pods of all Peers in native mode, each through the peer, which
	// must be on the network of Device; without it the network itself knows where pods are.
	// SkipUnreachable has no route to a peer that is on another network, and no error either: the
	// network's routers know the way.
	DirectRoutes, SkipUnreachable bool
	// Peers are the other nodes.
	Peers []Peer
}

// Peer is another node, as far as routes go.
type Peer struct {
	Name     string
	IPv4     netip.Addr
	IPv6     netip.Addr
	PodCIDRs []netip.Prefix
	// Addresses are all by which it is known outside of the pods' network, those above among them.
	Addresses []netip.Addr
	// Cluster is the name of the node's cluster if that is another than this one's, and ClusterID
	// its number.
	Cluster   string
	ClusterID uint32
}

// Devices are facts read from the node's devices after SetNode.
type Devices struct {
	TunnelIfIndex int
	HostIfIndex   int
	NativeIfIndex int
	NativeMAC     net.HardwareAddr
	HostMAC       net.HardwareAddr
	// Others are further devices with Ethernet headers on which the node has addresses, sorted;
	// interfaces of a cloud that are reconciled already are not among them.
	Others []int
	// NetNSCookie is the kernel's number of the network namespace.
	NetNSCookie uint64
	// DeviceMTU is the MTU for pod interfaces, RouteMTU that of the pods' default route (smaller
	// when packets are encapsulated), 0 if equal.
	DeviceMTU int
	RouteMTU  int
	// SegmentSize4 and SegmentSize6 are how large packets of TCP may be before segmentation, and of
	// IPv4 after reassembly, in bytes, on the devices and on interfaces of pods; 0 for the kernel's
	// own default. SegmentLimit is the maximum of Device, 0 if unknown.
	SegmentSize4, SegmentSize6 int
	SegmentLimit               int
}
