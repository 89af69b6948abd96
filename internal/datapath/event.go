package datapath

import (
	"fmt"
	"strings"
	"time"
)

// EventType is the kind of an Event.
type EventType uint8

// Kinds of event; the numbers are those of bpf/lib/events.h.
const (
	EventDrop    EventType = 1 // a packet was dropped
	EventVerdict EventType = 2 // policy evaluated a flow that is new or was evaluated before under older rules
	EventTrace   EventType = 3 // a packet was forwarded
)

// PolicyMatch is what of a packet a rule has matched.
type PolicyMatch uint8

// What may be matched: the peer, by its identity or address, and the protocol with or without a
// port. The numbers are those of bpf/lib/policy.h, and of flows on the wire.
const (
	MatchNone      PolicyMatch = iota // no rule decided
	MatchL3Only                       // the peer
	MatchL3L4                         // the peer and the port
	MatchL4Only                       // the port
	MatchAll                          // anything
	MatchL3Proto                      // the peer and the protocol
	MatchProtoOnly                    // the protocol
)

// CTState is what conntrack knew of a packet's flow.
type CTState uint8

// States; the numbers are those of bpf/lib/events.h.
const (
	CTNone CTState = iota
	CTNew
	CTEstablished
	CTReply
	CTRelated
	CTRechecked
)

// Program is the attach point at which an event happened.
type Program uint8

// Programs; the numbers are those of bpf/lib/events.h.
const (
	ProgramFromPod Program = iota + 1
	ProgramToPod
	ProgramFromOverlay
	ProgramFromHost
	ProgramFromNetdev
	ProgramToNetdev
)

// Outcome is where a forwarded packet went.
type Outcome uint8

// Outcomes; the numbers are those of bpf/lib/events.h.
const (
	OutcomeNone     Outcome = iota
	OutcomeEndpoint         // delivered to a local pod
	OutcomeOverlay          // encapsulated towards another node
	OutcomeStack            // handed to the host's network stack
	OutcomeAnswered         // answered in place: ARP or neighbour discovery for the gateway
	OutcomeDevice           // sent out through the node's device
	OutcomeAudited          // of a verdict: refused for its reason, and let through by audit mode
)

func name(names []string, i uint8) string {
	if int(i) < len(names) {
		return names[i]
	}
	return fmt.Sprintf("unknown-%d", i)
}

// String returns the stable name used on the command line and in JSON.
func (t EventType) String() string {
	return name([]string{"unknown-0", "drop", "verdict", "trace"}, uint8(t))
}

// String returns the stable name used on the command line and in JSON.
func (s CTState) String() string {
	return name([]string{"none", "new", "established", "reply", "related", "rechecked"}, uint8(s))
}

// String returns the stable name used on the command line and in JSON.
func (p Program) String() string {
	return name([]string{"unknown-0", "from-pod", "to-pod", "from-overlay", "from-host", "from-netdev", "to-netdev"}, uint8(p))
}

// String returns the stable name used on the command line and in JSON.
func (o Outcome) String() string {
	return name([]string{"none", "endpoint", "overlay", "stack", "answered", "device", "audited"}, uint8(o))
}

// MarshalText and UnmarshalText use the names, so that JSON reads well and survives renumbering.

// MarshalText implements encoding.TextMarshaler.
func (t EventType) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// MarshalText implements encoding.TextMarshaler.
func (s CTState) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// MarshalText implements encoding.TextMarshaler.
func (p Program) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// MarshalText implements encoding.TextMarshaler.
func (o Outcome) MarshalText() ([]byte, error) { return []byte(o.String()), nil }

// MarshalText implements encoding.TextMarshaler.
func (r DropReason) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// MarshalText implements encoding.TextMarshaler.
func (d Direction) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// Unmarshalling tries each known number: the lists are short and the names are unique.
func unmarshal[T ~uint8](what string, text []byte, max T, str func(T) string) (T, error) {
	for v := T(0); v <= max; v++ {
		if str(v) == string(text) {
			return v, nil
		}
	}
	return 0, fmt.Errorf("%q is no %s", text, what)
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (t *EventType) UnmarshalText(b []byte) (err error) {
	*t, err = unmarshal("event type", b, EventTrace, EventType.String)
	return err
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (s *CTState) UnmarshalText(b []byte) (err error) {
	*s, err = unmarshal("conntrack state", b, CTRechecked, CTState.String)
	return err
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (p *Program) UnmarshalText(b []byte) (err error) {
	*p, err = unmarshal("program", b, ProgramToNetdev, Program.String)
	return err
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (o *Outcome) UnmarshalText(b []byte) (err error) {
	*o, err = unmarshal("outcome", b, OutcomeAudited, Outcome.String)
	return err
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (r *DropReason) UnmarshalText(b []byte) (err error) {
	*r, err = unmarshal("drop reason", b, DropReason(254), DropReason.String)
	return err
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *Direction) UnmarshalText(b []byte) (err error) {
	*d, err = unmarshal("direction", b, Egress, Direction.String)
	return err
}

// Event is something that happened to one packet.
type Event struct {
	Time      time.Time `json:"time"`
	Type      EventType `json:"type"`
	Program   Program   `json:"program"`
	Direction Direction `json:"direction"`
	// Reason is why the packet was dropped or the verdict refused; "forwarded" if neither.
	Reason  DropReason `json:"reason"`
	Outcome Outcome    `json:"outcome"`
	CTState CTState    `json:"conntrack"`
	// Endpoint is the local endpoint concerned, 0 if none is known.
	Endpoint    uint16 `json:"endpoint,omitempty"`
	SrcIdentity uint32 `json:"srcIdentity"`
	DstIdentity uint32 `json:"dstIdentity"`
	IfIndex     int    `json:"ifIndex"`
	// Length is that of the whole frame in bytes.
	Length int `json:"length"`
	// FlowUpdate means that a forwarded packet changed its flow, or is a sample of it: see
	// [Aggregation].
	FlowUpdate bool `json:"flowUpdate,omitempty"`
	// Match is the part of the packet that the deciding rule of a verdict matched.
	Match PolicyMatch `json:"match,omitempty"`
	// Packet is Data decoded, as far as it could be.
	Packet Packet `json:"packet"`
	// Data is the beginning of the frame, at most 128 bytes.
	Data []byte `json:"data,omitempty"`
	// Lost is the number of events lost for want of room since an earlier event reported some.
	Lost uint64 `json:"lost,omitempty"`
}

// String returns the event on one line.
func (e Event) String() string {
	var b strings.Builder
	if e.Lost > 0 {
		fmt.Fprintf(&b, "(%d events lost) ", e.Lost)
	}
	fmt.Fprintf(&b, "%s %s", e.Time.Format("15:04:05.000000"), e.Type)
	switch e.Type {
	case EventVerdict:
		verdict := "allowed"
		if e.Reason != ReasonForwarded {
			verdict = e.Reason.String()
		}
		if e.Outcome == OutcomeAudited {
			verdict += " audited"
		}
		fmt.Fprintf(&b, " %s", verdict)
	case EventTrace:
		fmt.Fprintf(&b, " to %s", e.Outcome)
	default:
		fmt.Fprintf(&b, " %s", e.Reason)
	}
	fmt.Fprintf(&b, " (%s, %s", e.Program, e.Direction)
	if e.CTState != CTNone {
		fmt.Fprintf(&b, ", %s", e.CTState)
	}
	b.WriteString(")")
	if e.Endpoint != 0 {
		fmt.Fprintf(&b, " endpoint %d", e.Endpoint)
	}
	fmt.Fprintf(&b, " identity %d -> %d: %s, %d bytes", e.SrcIdentity, e.DstIdentity, e.Packet, e.Length)
	return b.String()
}
