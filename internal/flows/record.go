package flows

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hawser-net/hawser/api/flow"
	policypb "github.com/hawser-net/hawser/api/policy"
)

// Entry is what readers of flows get: a flow, or that some were lost.
type Entry struct {
	Time time.Time
	// Flow is nil if Lost is not.
	Flow *flow.Flow
	Lost *flow.LostEvent
	// Source and Destination are the addresses of the flow, so that filters need not read them.
	Source, Destination netip.Addr
}

// Event is something that happened in the agent. It is not changed after it was added.
type Event struct {
	Time  time.Time
	Event *flow.AgentEvent
}

// namespaceAge is how long a namespace is listed after the last flow in which it was.
const namespaceAge = time.Hour

// maxNamespaces bounds how many are remembered.
const maxNamespaces = 8192

// rateSeconds is over how many seconds the rate of flows is computed.
const rateSeconds = 60

// Record is what a node remembers of flows. It is safe for concurrent use.
type Record struct {
	Flows  *Ring[Entry]
	Events *Ring[Event]
	// Policies has those of Events that are about policies. They are few and asked for long
	// afterwards, so others must not push them out.
	Policies *Ring[Event]

	mu         sync.Mutex
	seen       uint64
	namespaces map[string]time.Time
	purged     time.Time // when old ones were last dropped
	// rates has flows by second; the second of each shows whether it still counts.
	rates   [rateSeconds]uint64
	seconds [rateSeconds]int64
	began   time.Time
}

// agentEvents is how many events of the agent are kept, policyEvents how many of policies, and
// eventBytes how much memory each of both take, as [policypb.Cost] counts it: some have hundreds of
// addresses, or long labels.
const (
	agentEvents  = 4095
	policyEvents = 1023
	eventBytes   = 16 << 20
)

// olderShare is the number of overwritten flows that are kept, as a share of the ring, in equal
// parts for their senders: a sender that floods the ring must not erase the flows of others.
const olderShare = 4

// MaxKept is how many entries a record has at most.
const MaxKept = MaxCapacity + MaxCapacity/olderShare

// senderOf returns who caused an entry. The sender of lost events is unknown.
func senderOf(e *Entry) (Sender, bool) {
	return Sender{e.Flow.GetInterface().GetIndex(), e.Flow.GetSource().GetIdentity()}, e.Flow != nil
}

// NewRecord returns an empty one that keeps a number of flows, and a quarter as many older ones.
func NewRecord(capacity int, now time.Time) (*Record, error) {
	ring, err := NewRing[Entry](capacity)
	if err != nil {
		return nil, err
	}
	ring.KeepOlder(capacity/olderShare, senderOf)
	events, err := NewRing[Event](agentEvents)
	if err != nil {
		return nil, err
	}
	policies, err := NewRing[Event](policyEvents)
	if err != nil {
		return nil, err
	}
	for _, r := range []*Ring[Event]{events, policies} {
		r.Bound(eventBytes, func(e Event) int { return policypb.Cost(e.Event) })
	}
	return &Record{Flows: ring, Events: events, Policies: policies, namespaces: map[string]time.Time{}, began: now}, nil
}

// AddEvent remembers something that happened in the agent.
func (r *Record) AddEvent(e Event) {
	r.Events.Add(e)
	if AboutPolicy(e.Event.GetType()) {
		r.Policies.Add(e)
	}
}

// AboutPolicy reports whether events of a type are about policies.
func AboutPolicy(t flow.AgentEventType) bool {
	return t == flow.AgentEventType_POLICY_UPDATED || t == flow.AgentEventType_POLICY_DELETED
}

// Add remembers a flow between two addresses, which must not be changed afterwards.
func (r *Record) Add(f *flow.Flow, src, dst netip.Addr, now time.Time) {
	r.mu.Lock()
	r.seen++
	for _, e := range []*flow.Endpoint{f.GetSource(), f.GetDestination()} {
		if ns := e.GetNamespace(); ns != "" && (!r.namespaces[ns].IsZero() || r.room(now)) {
			r.namespaces[ns] = now
		}
	}
	second := now.Unix()
	at := ((second % rateSeconds) + rateSeconds) % rateSeconds
	if r.seconds[at] != second {
		r.seconds[at], r.rates[at] = second, 0
	}
	r.rates[at]++
	r.mu.Unlock()
	r.Flows.Add(Entry{Time: f.GetTime().AsTime(), Flow: f, Source: src, Destination: dst})
}

// room reports whether one more namespace can be stored, and makes room if it is time for that. It
// must be called with mu held.
func (r *Record) room(now time.Time) bool {
	if len(r.namespaces) >= maxNamespaces && now.Sub(r.purged) >= time.Second {
		r.purge(now)
	}
	return len(r.namespaces) < maxNamespaces
}

// purge forgets namespaces that were in no flow for long. It must be called with mu held.
func (r *Record) purge(now time.Time) {
	r.purged = now
	maps.DeleteFunc(r.namespaces, func(_ string, at time.Time) bool { return now.Sub(at) > namespaceAge })
}

// Lose remembers that events were lost.
func (r *Record) Lose(source flow.LostEventSource, n uint64, now time.Time) {
	r.Flows.Add(Entry{Time: now, Lost: Lost(source, n)})
}

// Lost records events that were lost.
func Lost(source flow.LostEventSource, n uint64) *flow.LostEvent {
	return &flow.LostEvent{Source: source, NumEventsLost: n}
}

// lostEventsType is the type of an unknown event that reports lost events of an agent.
const lostEventsType = "lost-events"

// LostEvents is [Lost] for readers of an agent's events, among which Hubble has no message for it.
func LostEvents(source flow.LostEventSource, n uint64) *flow.AgentEvent {
	what := "they were overwritten before they could be sent"
	if source != flow.LostEventSource_HUBBLE_RING_BUFFER {
		what = "more came than could be held"
	}
	return &flow.AgentEvent{Type: flow.AgentEventType_AGENT_EVENT_UNKNOWN, Notification: &flow.AgentEvent_Unknown{Unknown: &flow.AgentEventUnknown{
		Type: lostEventsType, Notification: fmt.Sprintf("%d events were lost: %s", n, what),
	}}}
}

// IsLostEvents reports whether an event reports that others were lost.
func IsLostEvents(e *flow.AgentEvent) bool {
	return e.GetType() == flow.AgentEventType_AGENT_EVENT_UNKNOWN && e.GetUnknown().GetType() == lostEventsType
}

// LostEventsIn returns how many events were lost by what an event says; 0 if it says no such thing.
func LostEventsIn(e *flow.AgentEvent) uint64 {
	if !IsLostEvents(e) {
		return 0
	}
	number, _, _ := strings.Cut(e.GetUnknown().GetNotification(), " ")
	n, err := strconv.ParseUint(number, 10, 64)
	if err != nil {
		return 1 // of another version: at least one
	}
	return n
}

// PolicyOf returns the kind and the name, "namespace/name", of the policy that an event is about,
// by the labels of its rules, whatever their source; without a name, all of these labels.
func PolicyOf(n *flow.PolicyUpdateNotification) (kind, policy string) {
	var name, namespace string
	for _, l := range n.GetLabels() {
		key, value, _ := strings.Cut(l, "=")
		if _, bare, ok := strings.Cut(key, ":"); ok {
			key = bare
		}
		switch key {
		case "io.cilium.k8s.policy.name":
			name = value
		case "io.cilium.k8s.policy.namespace":
			namespace = value
		case "io.cilium.k8s.policy.derived-from":
			kind = value
		}
	}
	if name == "" {
		return "", strings.Join(n.GetLabels(), ",")
	}
	if namespace != "" {
		name = namespace + "/" + name
	}
	return kind, name
}

// Seen returns how many flows were added since the beginning, which was at the time returned.
func (r *Record) Seen() (n uint64, since time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.seen, r.began
}

// Rate returns how many flows were added a second, over the last minute.
func (r *Record) Rate(now time.Time) float64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	var sum uint64
	for i, second := range r.seconds {
		if age := now.Unix() - second; age >= 0 && age < rateSeconds {
			sum += r.rates[i]
		}
	}
	return float64(sum) / min(max(now.Sub(r.began).Seconds(), 1), rateSeconds)
}

// Namespaces returns those that were in flows within the last hour, sorted.
func (r *Record) Namespaces(now time.Time) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.purge(now)
	return slices.Sorted(maps.Keys(r.namespaces))
}
