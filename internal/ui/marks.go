package ui

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/hawser-net/hawser/api/flow"
	"github.com/hawser-net/hawser/api/observer"
	"github.com/hawser-net/hawser/internal/flows"
	"github.com/hawser-net/hawser/pkg/retry"
)

const (
	// maxMarks is how many changes of policies are kept, maxMarked how many policies each names,
	// and maxMarkNodes how many nodes are counted that reported it.
	maxMarks     = 200
	maxMarked    = 64
	maxMarkNodes = 8192
	// markSpan is how long after the first event others belong to the same change: what is applied
	// at once reaches nodes one after the other.
	markSpan = 5 * time.Second
	// markDelay is how long a node takes from an event until packets are evaluated by it.
	markDelay = time.Second
	// effectSpan is how long before and after a change verdicts are compared.
	effectSpan = 5 * time.Minute
	// eventsEvery is how long a server is left alone that reports no events.
	eventsEvery = 30 * time.Second
)

// Mark is a change of policies: all that came within seconds, on whatever nodes.
type Mark struct {
	ID       string       `json:"id"`
	Time     time.Time    `json:"time"` // of the first event
	Last     time.Time    `json:"last"`
	Policies []MarkPolicy `json:"policies"`
	LeftOut  int          `json:"leftOut,omitempty"` // events about further policies
	Nodes    int          `json:"nodes"`

	nodes  map[string]bool
	events map[[2]string]bool // a node and a policy
}

// MarkPolicy is a policy that was changed, or deleted.
type MarkPolicy struct {
	Kind    string `json:"kind,omitempty"`
	Policy  string `json:"policy"` // "namespace/name"
	Deleted bool   `json:"deleted,omitempty"`
}

// Effect is which connections were evaluated otherwise after a change than before.
type Effect struct {
	Mark
	// From and To are the times that were compared: neither reaches beyond another change, or
	// beyond what is still kept.
	From time.Time `json:"from"`
	To   time.Time `json:"to"`
	// Compared is how many kinds of connections were seen both before and after.
	Compared int          `json:"compared"`
	Edges    []EffectEdge `json:"edges"`
	// LeftOut is how many more there are.
	LeftOut int `json:"edgesLeftOut,omitempty"`
}

// EffectEdge is an edge whose verdict is another: "let in", "refused", "audited" or several of
// them.
type EffectEdge struct {
	ID          string   `json:"id"`
	Source      string   `json:"source"`
	Destination string   `json:"destination"`
	Protocol    string   `json:"protocol"`
	Port        uint32   `json:"port,omitempty"`
	Before      string   `json:"before"`
	After       string   `json:"after"`
	AllowedBy   []string `json:"allowedBy,omitempty"`
	DeniedBy    []string `json:"deniedBy,omitempty"`
}

// maxEffect is how many edges an Effect has.
const maxEffect = 200

// Changed records that a node has reported a changed policy.
func (g *Graph) Changed(node string, at time.Time, n *flow.PolicyUpdateNotification, deleted bool) {
	p, node := markPolicy(n, deleted), cut(node)
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.now()
	if at.After(now) { // a node's clock that is ahead
		at = now
	}
	if now.Sub(at) >= Window {
		return
	}
	key := [2]string{node, fmt.Sprint(p)}
	// A node that reports the same policy again reports another change.
	i := slices.IndexFunc(g.marks, func(m *Mark) bool {
		return !m.events[key] && at.Sub(m.Time) < markSpan && m.Last.Sub(at) < markSpan
	})
	if i < 0 {
		g.marked++
		g.marks = append(g.marks, &Mark{
			ID: fmt.Sprint(g.marked), Time: at, Last: at, nodes: map[string]bool{}, events: map[[2]string]bool{},
		})
		i = len(g.marks) - 1
	}
	m := g.marks[i]
	m.Time, m.Last = minTime(m.Time, at), maxTimeOf(m.Last, at)
	if len(m.nodes) < maxMarkNodes {
		m.nodes[node] = true
	}
	m.Nodes = len(m.nodes)
	if len(m.events) < maxMarkNodes {
		m.events[key] = true
	}
	switch {
	case slices.Contains(m.Policies, p):
	case len(m.Policies) < maxMarked:
		m.Policies = append(m.Policies, p)
		slices.SortFunc(m.Policies, func(a, b MarkPolicy) int { return cmp.Or(cmp.Compare(a.Policy, b.Policy), cmp.Compare(a.Kind, b.Kind)) })
	default:
		m.LeftOut++
	}
	slices.SortStableFunc(g.marks, func(a, b *Mark) int { return a.Time.Compare(b.Time) })
	if len(g.marks) > maxMarks {
		g.marks = slices.Delete(g.marks, 0, len(g.marks)-maxMarks)
	}
}

func minTime(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

func maxTimeOf(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

func markPolicy(n *flow.PolicyUpdateNotification, deleted bool) MarkPolicy {
	kind, policy := flows.PolicyOf(n)
	return MarkPolicy{Kind: cut(kind), Policy: cut(cmp.Or(policy, "a policy without a name")), Deleted: deleted}
}

// dropMarks forgets those that are older than the window.
func (g *Graph) dropMarks(now time.Time) {
	g.marks = slices.DeleteFunc(g.marks, func(m *Mark) bool { return now.Sub(m.Last) >= Window })
	if now.Sub(g.lostMarks) >= Window {
		g.marksLost = 0
	}
}

// ChangesLost records that some events were lost, among which there may have been changes.
func (g *Graph) ChangesLost(n uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.now()
	g.dropMarks(now)
	g.marksLost, g.lostMarks = g.marksLost+min(n, math.MaxUint64-g.marksLost), now
}

// copyMarks returns the marks, oldest first. It must be called with mu held.
func (g *Graph) copyMarks() []Mark {
	out := []Mark{}
	for _, m := range g.marks {
		out = append(out, m.copied())
	}
	return out
}

func (m *Mark) copied() Mark {
	return Mark{ID: m.ID, Time: m.Time, Last: m.Last, Policies: slices.Clone(m.Policies), LeftOut: m.LeftOut, Nodes: m.Nodes}
}

// Effect returns what was evaluated otherwise after a change of policies than before, and whether
// there is such a change.
func (g *Graph) Effect(id string) (Effect, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.now()
	i := slices.IndexFunc(g.marks, func(m *Mark) bool { return m.ID == id })
	if i < 0 {
		return Effect{}, false
	}
	m := g.marks[i]
	stable := m.Last.Add(markDelay)
	out := Effect{Mark: m.copied(), From: m.Time.Add(-effectSpan), To: minTime(stable.Add(effectSpan), now), Edges: []EffectEdge{}}
	// Sums that are older are not kept, or are those of a change that is as old as they are.
	out.From = minTime(m.Time, maxTimeOf(out.From, now.Add(BucketLength-Window)))
	if i > 0 {
		out.From = maxTimeOf(out.From, g.marks[i-1].Last.Add(markDelay))
	}
	if i+1 < len(g.marks) {
		out.To = minTime(out.To, g.marks[i+1].Time)
	}
	before, after := g.between(out.From, m.Time), g.between(stable, out.To)
	for id, b := range before {
		a, e := after[id], g.edges[id]
		if a == (outcome{}) || b == (outcome{}) || e == nil {
			continue
		}
		out.Compared++
		if a == b {
			continue
		}
		lo, hi := stable.UnixNano()/int64(BucketLength), out.To.UnixNano()/int64(BucketLength)
		out.Edges = append(out.Edges, EffectEdge{
			ID: id, Source: e.Source, Destination: e.Destination, Protocol: e.Protocol, Port: e.Port, Before: b.String(), After: a.String(),
			AllowedBy: e.allowed.within(lo, hi), DeniedBy: e.denied.within(lo, hi),
		})
	}
	// What is refused now comes first.
	slices.SortFunc(out.Edges, func(a, b EffectEdge) int {
		return cmp.Or(-cmp.Compare(a.After, b.After), cmp.Compare(a.ID, b.ID))
	})
	if len(out.Edges) > maxEffect {
		out.LeftOut, out.Edges = len(out.Edges)-maxEffect, out.Edges[:maxEffect]
	}
	return out, true
}

// outcome is what became of packets of an edge.
type outcome struct{ forwarded, dropped, audited bool }

func (o outcome) String() string {
	var parts []string
	for _, p := range []struct {
		is   bool
		name string
	}{{o.dropped, "refused"}, {o.audited, "audited"}, {o.forwarded, "let in"}} {
		if p.is {
			parts = append(parts, p.name)
		}
	}
	return strings.Join(parts, " and ")
}

// between returns what became of each edge from one time to another. Whole buckets count by their
// sums, and what is in the first and the last by the flows that are still kept.
func (g *Graph) between(from, to time.Time) map[string]outcome {
	counts := make(map[string]count)
	lo, hi := from.UnixNano()/int64(BucketLength), to.UnixNano()/int64(BucketLength)
	for id, e := range g.edges {
		var all count
		for i, number := range e.numbers {
			if number > lo && number < hi {
				all.add(e.counts[i])
			}
		}
		counts[id] = all
	}
	for i := range g.flows {
		f := &g.flows[i]
		bucket := f.Time.UnixNano() / int64(BucketLength)
		if f.Edge == "" || bucket != lo && bucket != hi || f.Time.Before(from) || !f.Time.Before(to) {
			continue
		}
		c := counts[f.Edge]
		c.addFlow(f.Verdict, f.Type == typeVerdict, f.Direction == directionIngress)
		counts[f.Edge] = c
	}
	out := make(map[string]outcome)
	for id, c := range counts {
		if o := (outcome{c.forwarded() > 0, c.refused() > 0, c.audited > 0}); o != (outcome{}) {
			out[id] = o
		}
	}
	return out
}

// watchEvents follows events of agents about changed policies.
func (f *Follower) watchEvents(ctx context.Context) {
	resume := newResumption()
	for ctx.Err() == nil {
		// They are few.
		err := f.followEvents(ctx, maxTimeOf(time.Now().Add(-Window), resume.remembered), resume)
		wait := retryAfter
		f.set(func() {
			f.events = ""
			if code := status.Code(err); code == codes.Unimplemented || code == codes.PermissionDenied {
				f.events, wait = message(err), eventsEvery
			}
		})
		retry.Sleep(ctx, wait)
	}
}

// followEvents adds events until the stream ends.
func (f *Follower) followEvents(ctx context.Context, since time.Time, resume *resumption) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := f.Client.GetAgentEvents(ctx, &observer.GetAgentEventsRequest{
		Follow: true, Since: timestamppb.New(since),
		Types: []flow.AgentEventType{flow.AgentEventType_POLICY_UPDATED, flow.AgentEventType_POLICY_DELETED}, // others send all
	})
	if err != nil {
		return err
	}
	for {
		res, err := stream.Recv()
		if err != nil {
			return err
		}
		if now := time.Now(); resume.first(resume.hash(res), now) {
			at := res.GetTime().AsTime()
			if at.Before(since) { // from a node whose clock is behind: see follow
				at = now
			}
			f.changed(res, at)
		}
	}
}

// changed adds an event, if it is about a policy or about events that were lost.
func (f *Follower) changed(res *observer.GetAgentEventsResponse, at time.Time) {
	switch ev := res.GetAgentEvent(); ev.GetType() {
	case flow.AgentEventType_POLICY_UPDATED, flow.AgentEventType_POLICY_DELETED:
		f.Graph.Changed(res.GetNodeName(), at, ev.GetPolicyUpdate(), ev.GetType() == flow.AgentEventType_POLICY_DELETED)
	default:
		if n := flows.LostEventsIn(ev); n > 0 {
			f.Graph.ChangesLost(n)
		}
	}
}
