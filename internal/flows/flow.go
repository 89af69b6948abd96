package flows

import (
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"
	"net"
	"net/netip"
	"strings"

	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/hawser-net/hawser/api/flow"
	"github.com/hawser-net/hawser/internal/datapath"
)

// Kinds of event that flows are made of, by their numbers on the wire.
const (
	EventDrop    = 1
	EventTrace   = 4
	EventVerdict = 5
)

// Party is the owner of an address, as a node knows it.
type Party struct {
	// Endpoint is the ID of a local endpoint, 0 for all others.
	Endpoint uint16
	// Identity is 0 if the address is unknown.
	Identity       uint32
	Namespace, Pod string
	Workloads      []*flow.Workload
	// Node is the node that the address is on, cluster/node; empty if that is not known.
	Node string
}

// Directory is what a node knows of the ends of flows. What it returns is shared between flows and
// must not change.
type Directory interface {
	// Endpoint returns the local endpoint with an ID.
	Endpoint(uint16) Party
	// Party returns the owner of an address.
	Party(netip.Addr) Party
	// Labels returns the labels of an identity with their sources, and the namespace and the
	// cluster among them.
	Labels(identity uint32) (labels []string, namespace, cluster string)
	// Service returns the service that has an address and port, nil if none has.
	Service(addr netip.Addr, port uint16, proto uint8) *flow.Service
	// Interface returns the name of an interface of the node, empty if it is not known.
	Interface(index int) string
	// Policies returns those that caused the verdict that an event reports, none if that is
	// not known.
	Policies(datapath.Event) []*flow.Policy
}

// Maker makes flows of events.
type Maker struct {
	// Node is the node's name as flows have it: cluster/node.
	Node      string
	Directory Directory
}

// Flow makes the flow of an event. It is nil for events that are none: what is neither IP nor was
// dropped, such as questions for hardware addresses.
func (m *Maker) Flow(ev datapath.Event) *flow.Flow {
	p := ev.Packet
	ip := p.L3 == "ipv4" || p.L3 == "ipv6"
	if !ip && ev.Type != datapath.EventDrop {
		return nil
	}
	fromEndpoint, reply := m.orient(ev)
	f := &flow.Flow{
		Time: timestamppb.New(ev.Time), Uuid: newUUID(), Type: flow.FlowType_L3_L4, NodeName: m.Node,
		Ethernet: ethernet(ev.Data), TrafficDirection: flow.TrafficDirection_INGRESS, IsReply: reply, Reply: reply.GetValue(),
	}
	// An answer that leaves an endpoint belongs to a connection that came in.
	if fromEndpoint != reply.GetValue() {
		f.TrafficDirection = flow.TrafficDirection_EGRESS
	}
	if ev.IfIndex != 0 {
		f.Interface = &flow.NetworkInterface{Index: uint32(ev.IfIndex), Name: m.Directory.Interface(ev.IfIndex)}
	}
	f.Source, f.Destination = &flow.Endpoint{Identity: ev.SrcIdentity}, &flow.Endpoint{Identity: ev.DstIdentity}
	if ip && p.Src.IsValid() {
		f.IP = &flow.IP{Source: p.Src.String(), Destination: p.Dst.String(), IpVersion: flow.IPVersion_IPv4}
		if p.L3 == "ipv6" {
			f.IP.IpVersion = flow.IPVersion_IPv6
		}
		f.L4 = layer4(p)
		if f.Destination.Identity == 0 {
			f.Destination.Identity = m.Directory.Party(p.Dst).Identity // dropped before that was looked up
		}
		// An endpoint that sends from a service's address answers for it, if the packet has passed:
		// that is when its own address was checked. Others may only claim to.
		if !fromEndpoint || ev.Reason == datapath.ReasonForwarded {
			f.SourceService = m.Directory.Service(p.Src, p.SrcPort, p.Proto)
		}
		f.DestinationService = m.Directory.Service(p.Dst, p.DstPort, p.Proto)
	}
	m.name(f.Source, p.Src, endpointIf(fromEndpoint, ev))
	m.name(f.Destination, p.Dst, endpointIf(!fromEndpoint, ev))
	m.judge(f, ev)
	f.Summary = summary(f)
	return f
}

// orient reports whether the event's endpoint is the sender, and whether the packet is a reply, nil
// if that is not known. A flow that is evaluated again is evaluated in the direction in which it
// was opened, whichever way the packet goes.
func (m *Maker) orient(ev datapath.Event) (fromEndpoint bool, reply *wrapperspb.BoolValue) {
	fromEndpoint = ev.Direction == datapath.Egress
	switch ev.CTState {
	case datapath.CTReply:
		return fromEndpoint, wrapperspb.Bool(true)
	case datapath.CTNew, datapath.CTEstablished:
		return fromEndpoint, wrapperspb.Bool(false)
	}
	judged := ev.Type == datapath.EventVerdict || ev.Reason == datapath.ReasonPolicyDenied || ev.Reason == datapath.ReasonPolicyDeny
	if ev.CTState != datapath.CTRechecked || !judged || ev.Endpoint == 0 {
		return fromEndpoint, nil
	}
	own, other := ev.Packet.Src, ev.Packet.Dst
	if !fromEndpoint {
		own, other = other, own
	}
	switch ev.Endpoint {
	case m.Directory.Party(own).Endpoint:
		return fromEndpoint, wrapperspb.Bool(false)
	case m.Directory.Party(other).Endpoint:
		return !fromEndpoint, wrapperspb.Bool(true)
	}
	return fromEndpoint, nil
}

// Foreign reports of which end of an event's packet the address is not that of the endpoint at that
// end, by which the flow names it: the packet has a service's address, or claims one.
func (m *Maker) Foreign(ev datapath.Event) (source, destination bool) {
	if ev.Endpoint == 0 {
		return false, false
	}
	fromEndpoint, _ := m.orient(ev)
	own := ev.Packet.Dst
	if fromEndpoint {
		own = ev.Packet.Src
	}
	foreign := own.IsValid() && m.Directory.Party(own).Endpoint != ev.Endpoint
	return foreign && fromEndpoint, foreign && !fromEndpoint
}

// endpointIf is the number of the event's endpoint if that is the end in question, else 0.
func endpointIf(is bool, ev datapath.Event) uint16 {
	if is {
		return ev.Endpoint
	}
	return 0
}

// name adds the party at an end: the endpoint with an ID, else the owner of the address, if the
// kernel saw the same identity. An address alone proves nothing: its packet may claim it wrongly,
// and it may have got another owner since.
func (m *Maker) name(e *flow.Endpoint, addr netip.Addr, number uint16) {
	var who Party
	switch {
	case number != 0:
		who = m.Directory.Endpoint(number)
	case addr.IsValid() && e.Identity != 0:
		if at := m.Directory.Party(addr); at.Identity == e.Identity {
			who = at
		}
	}
	e.ID, e.Namespace, e.PodName, e.Workloads, e.NodeName = uint32(who.Endpoint), who.Namespace, who.Pod, who.Workloads, who.Node
	var namespace string
	e.Labels, namespace, e.ClusterName = m.Directory.Labels(e.Identity)
	if e.Namespace == "" {
		e.Namespace = namespace
	}
	if e.ClusterName == "" {
		e.ClusterName, _, _ = strings.Cut(who.Node, "/") // nodes have no such label
	}
}

// judge sets the verdict and the policies behind it.
func (m *Maker) judge(f *flow.Flow, ev datapath.Event) {
	f.EventType = &flow.CiliumEventType{}
	passed := ev.Reason == datapath.ReasonForwarded
	switch ev.Type {
	case datapath.EventTrace:
		f.Verdict = flow.Verdict_FORWARDED
		f.EventType.Type = EventTrace
		f.TraceObservationPoint, f.EventType.SubType = point(ev.Outcome)
		return
	case datapath.EventVerdict:
		f.EventType.Type = EventVerdict
		f.PolicyMatchType = uint32(ev.Match)
		f.Verdict = flow.Verdict_FORWARDED
		if ev.Outcome == datapath.OutcomeAudited {
			f.Verdict = flow.Verdict_AUDIT
		}
	default:
		f.EventType.Type = EventDrop
		passed = false
	}
	if !passed {
		if f.Verdict != flow.Verdict_AUDIT {
			f.Verdict = flow.Verdict_DROPPED
		}
		setReason(f, ev.Reason)
		if ev.Type == datapath.EventDrop {
			f.EventType.SubType = int32(cmp.Or(f.DropReason, namelessReason))
		}
	}
	if ev.Type == datapath.EventDrop && ev.Reason != datapath.ReasonPolicyDeny {
		return // no policy decided: none allows it, or there is another reason
	}
	switch list := m.Directory.Policies(ev); {
	case ev.Direction == datapath.Egress && passed:
		f.EgressAllowedBy = list
	case ev.Direction == datapath.Egress:
		f.EgressDeniedBy = list
	case passed:
		f.IngressAllowedBy = list
	default:
		f.IngressDeniedBy = list
	}
}

// point is where a forwarded packet was seen: on its way to where it went.
func point(o datapath.Outcome) (flow.TraceObservationPoint, int32) {
	switch o {
	case datapath.OutcomeOverlay:
		return flow.TraceObservationPoint_TO_OVERLAY, 4
	case datapath.OutcomeStack:
		return flow.TraceObservationPoint_TO_STACK, 3
	case datapath.OutcomeDevice:
		return flow.TraceObservationPoint_TO_NETWORK, 11
	case datapath.OutcomeEndpoint, datapath.OutcomeAnswered:
		return flow.TraceObservationPoint_TO_ENDPOINT, 0
	}
	return flow.TraceObservationPoint_UNKNOWN_POINT, 0
}

func ethernet(frame []byte) *flow.Ethernet {
	if len(frame) < 14 {
		return nil
	}
	return &flow.Ethernet{Source: net.HardwareAddr(frame[6:12]).String(), Destination: net.HardwareAddr(frame[:6]).String()}
}

// layer4 is nil for fragments but the first, and for protocols that flows have no place for.
func layer4(p datapath.Packet) *flow.Layer4 {
	if p.Fragment {
		return nil
	}
	src, dst := uint32(p.SrcPort), uint32(p.DstPort)
	switch p.Proto {
	case datapath.ProtoTCP:
		return &flow.Layer4{Protocol: &flow.Layer4_TCP{TCP: &flow.TCP{SourcePort: src, DestinationPort: dst, Flags: tcpFlags(p.TCPFlags)}}}
	case datapath.ProtoUDP:
		return &flow.Layer4{Protocol: &flow.Layer4_UDP{UDP: &flow.UDP{SourcePort: src, DestinationPort: dst}}}
	case datapath.ProtoSCTP:
		return &flow.Layer4{Protocol: &flow.Layer4_SCTP{SCTP: &flow.SCTP{SourcePort: src, DestinationPort: dst}}}
	}
	if p.ICMPType == nil || p.ICMPCode == nil {
		return nil
	}
	kind, code := uint32(*p.ICMPType), uint32(*p.ICMPCode)
	if p.Proto == datapath.ProtoICMPv6 {
		return &flow.Layer4{Protocol: &flow.Layer4_ICMPv6{ICMPv6: &flow.ICMPv6{Type: kind, Code: code}}}
	}
	return &flow.Layer4{Protocol: &flow.Layer4_ICMPv4{ICMPv4: &flow.ICMPv4{Type: kind, Code: code}}}
}

func tcpFlags(list string) *flow.TCPFlags {
	out := &flow.TCPFlags{}
	for name := range strings.SplitSeq(list, ",") {
		switch name {
		case "FIN":
			out.FIN = true
		case "SYN":
			out.SYN = true
		case "RST":
			out.RST = true
		case "PSH":
			out.PSH = true
		case "ACK":
			out.ACK = true
		case "URG":
			out.URG = true
		case "ECE":
			out.ECE = true
		case "CWR":
			out.CWR = true
		}
	}
	return out
}

// newUUID returns a random UUID (RFC 9562, version 4). It identifies flows; it need not be
// unpredictable.
func newUUID() string {
	var b [16]byte
	binary.NativeEndian.PutUint64(b[:], rand.Uint64())
	binary.NativeEndian.PutUint64(b[8:], rand.Uint64())
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	var out [36]byte
	hex.Encode(out[:], b[:4])
	hex.Encode(out[9:], b[4:6])
	hex.Encode(out[14:], b[6:8])
	hex.Encode(out[19:], b[8:10])
	hex.Encode(out[24:], b[10:])
	for _, at := range []int{8, 13, 18, 23} {
		out[at] = '-'
	}
	return string(out[:])
}
