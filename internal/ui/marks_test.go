package ui

import (
	"context"
	"fmt"
	"io"
	"math"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/hawser-net/hawser/api/flow"
	"github.com/hawser-net/hawser/api/observer"
	"github.com/hawser-net/hawser/internal/flows"
)

// policyLabels name a policy as agents do.
func policyLabels(kind, namespace, name string) *flow.PolicyUpdateNotification {
	const prefix = "k8s:io.cilium.k8s.policy."
	return &flow.PolicyUpdateNotification{Labels: []string{prefix + "derived-from=" + kind, prefix + "name=" + name, prefix + "namespace=" + namespace}}
}

// TestMarks: what is applied at once is one change, however many nodes report it, and what a node
// reports again is another one.
func TestMarks(t *testing.T) {
	g, now := testGraph(DefaultLimits())
	*now = now.Add(10 * time.Minute)
	db, other := policyLabels("CiliumNetworkPolicy", "shop", "db"), policyLabels("NetworkPolicy", "shop", "other")
	for i, node := range []string{"n1", "n2", "n3"} {
		g.Changed(node, testTime.Add(time.Duration(i)*time.Second), db, false)
		g.Changed(node, testTime.Add(time.Duration(i)*time.Second), other, true)
	}
	g.Changed("n1", testTime.Add(3*time.Second), db, false)
	g.Changed("n1", testTime.Add(time.Hour), db, false) // its clock is ahead
	marks := g.Snapshot(time.Time{}, time.Time{}).Marks
	var got []string
	for _, m := range marks {
		got = append(got, fmt.Sprintf("%v %v %d", m.Time.Sub(testTime), m.Policies, m.Nodes))
	}
	want := []string{
		"0s [{CiliumNetworkPolicy shop/db false} {NetworkPolicy shop/other true}] 3",
		"3s [{CiliumNetworkPolicy shop/db false}] 1", "10m0s [{CiliumNetworkPolicy shop/db false}] 1",
	}
	if strings.Join(got, "; ") != strings.Join(want, "; ") {
		t.Errorf("marks are\n%q, want\n%q", got, want)
	}
	*now = testTime.Add(Window + 5*time.Second)
	if marks := g.Snapshot(time.Time{}, time.Time{}).Marks; len(marks) != 1 {
		t.Errorf("after the window there are %d marks, want 1", len(marks))
	}
}

// TestMarkNames: a change names its policy whatever the source of the labels that say it.
func TestMarkNames(t *testing.T) {
	const prefix = "io.cilium.k8s.policy."
	for _, source := range []string{"k8s:", "directory:", ""} {
		got := markPolicy(&flow.PolicyUpdateNotification{Labels: []string{source + prefix + "derived-from=NetworkPolicy", source + prefix + "name=db", source + prefix + "namespace=shop"}}, true)
		if want := (MarkPolicy{Kind: "NetworkPolicy", Policy: "shop/db", Deleted: true}); got != want {
			t.Errorf("with the source %q: %+v, want %+v", source, got, want)
		}
	}
	for want, list := range map[string][]string{"a policy without a name": nil, "k8s:a=b,x": {"k8s:a=b", "x"}} {
		if got := markPolicy(&flow.PolicyUpdateNotification{Labels: list}, false); got != (MarkPolicy{Policy: want}) {
			t.Errorf("%q: %+v", list, got)
		}
	}
}

// TestMarksBounded: neither many changes, nor many policies, nor long names take more room.
func TestMarksBounded(t *testing.T) {
	g, now := testGraph(DefaultLimits())
	*now = now.Add(14 * time.Minute)
	long := strings.Repeat("x", 10000)
	for i := range 5000 {
		g.Changed("n1", testTime.Add(time.Duration(i)*100*time.Millisecond), policyLabels("K", "shop", fmt.Sprint(long, i%7)), false)
		g.Changed("n1", testTime, policyLabels("K", "shop", fmt.Sprint(i)), false)
	}
	marks := g.Snapshot(time.Time{}, time.Time{}).Marks
	if len(marks) > maxMarks {
		t.Errorf("%d marks", len(marks))
	}
	for _, m := range marks {
		if len(m.Policies) > maxMarked {
			t.Errorf("a mark has %d policies", len(m.Policies))
		}
		for _, p := range m.Policies {
			if len(p.Policy) > maxName+10 {
				t.Errorf("a name has %d bytes", len(p.Policy))
			}
		}
	}
}

// TestEffect: a change of policies shows which connections were evaluated otherwise after it than
// before, also within the ten seconds in which it came, and not what another change did.
func TestEffect(t *testing.T) {
	g, now := testGraph(DefaultLimits())
	at := testTime.Add(3 * time.Minute) // in the middle of ten seconds
	*now = at.Add(5 * time.Minute)
	front, db, cache := pod("shop", "front", "front-0", 1), pod("shop", "db", "db-0", 2), pod("shop", "cache", "cache-0", 3)
	add := func(by time.Duration, src, dst *flow.Endpoint, v flow.Verdict, d flow.TrafficDirection) {
		g.Add(verdict(at.Add(by), src, dst, 5432, v, d))
	}
	for _, before := range []time.Duration{-2 * time.Minute, -2 * time.Second} {
		add(before, front, db, ok, out)
		add(before, front, db, ok, in)
		add(before, front, cache, ok, in)
		add(before, world, front, no, in)
		add(before, db, world, ok, out)
	}
	add(-10*time.Second, cache, db, ok, in) // and never again
	// Let out, and turned away by the receiver, within the same ten seconds.
	add(2*time.Second, front, db, ok, out)
	add(2*time.Second, front, db, no, in)
	add(2*time.Second, db, world, no, out)
	add(time.Minute, front, cache, ok, in)
	add(time.Minute, world, front, no, in)
	// What the next change does is its own.
	add(2*time.Minute, front, cache, no, in)
	g.Changed("n1", at, policyLabels("NetworkPolicy", "shop", "strict"), false)
	g.Changed("n2", at.Add(500*time.Millisecond), policyLabels("NetworkPolicy", "shop", "strict"), false)
	g.Changed("n1", at.Add(90*time.Second), policyLabels("NetworkPolicy", "shop", "strict"), false)
	marks := g.Snapshot(time.Time{}, time.Time{}).Marks
	if len(marks) != 2 {
		t.Fatalf("marks: %+v", marks)
	}
	for i, want := range []string{
		"4: shop/db>:world>TCP/5432 let in ⇒ refused; shop/front>shop/db>TCP/5432 let in ⇒ refused",
		"1: shop/front>shop/cache>TCP/5432 let in ⇒ refused",
	} {
		e, ok := g.Effect(marks[i].ID)
		got := fmt.Sprint(e.Compared, ":")
		for _, edge := range e.Edges {
			got += fmt.Sprintf(" %s %s ⇒ %s;", edge.ID, edge.Before, edge.After)
		}
		if !ok || strings.TrimSuffix(got, ";") != want {
			t.Errorf("change %d: %q, want %q", i, got, want)
		}
	}
	if _, ok := g.Effect("7"); ok {
		t.Error("a change that never was has an effect")
	}
}

// TestEffectOfWhatIsKept: an old change is compared with what is still kept before it, and says so.
func TestEffectOfWhatIsKept(t *testing.T) {
	g, now := testGraph(DefaultLimits())
	start := testTime
	front, db, cache := pod("shop", "front", "front-0", 1), pod("shop", "db", "db-0", 2), pod("shop", "cache", "cache-0", 3)
	g.Add(verdict(start, front, db, 5432, ok, in))
	*now = start.Add(4 * time.Minute)
	g.Add(verdict(now.Add(-time.Second), front, cache, 5432, ok, in))
	g.Changed("n1", *now, policyLabels("NetworkPolicy", "shop", "strict"), false)
	*now = start.Add(4*time.Minute + 20*time.Second)
	g.Add(verdict(*now, front, db, 5432, no, in))
	g.Add(verdict(*now, front, cache, 5432, no, in))
	id := g.Snapshot(time.Time{}, time.Time{}).Marks[0].ID
	for _, row := range []struct {
		age, from time.Duration // of the change, and from when on there is a comparison
		compared  int
	}{{5 * time.Minute, -time.Minute, 2}, {12 * time.Minute, 4*time.Minute + 12*time.Minute - Window + BucketLength, 1}, {Window - 2*time.Second, 4 * time.Minute, 0}} {
		*now = start.Add(4*time.Minute + row.age)
		e, ok := g.Effect(id)
		if !ok || !e.From.Equal(start.Add(row.from)) || e.Compared != row.compared {
			t.Errorf("%v after the change: %v, compared %d from %v on, want %d from %v on", row.age, ok, e.Compared, e.From.Sub(start), row.compared, row.from)
		}
	}
}

// ahead is a server whose agent's clock is ahead, and whose streams of events end.
type ahead struct {
	observer.ObserverClient
	events []*observer.GetAgentEventsResponse
}

func (a ahead) GetAgentEvents(_ context.Context, req *observer.GetAgentEventsRequest, _ ...grpc.CallOption) (grpc.ServerStreamingClient[observer.GetAgentEventsResponse], error) {
	s := &aheadStream{}
	for _, ev := range a.events {
		if !ev.GetTime().AsTime().Before(req.GetSince().AsTime()) {
			s.left = append(s.left, ev)
		}
	}
	return s, nil
}

type aheadStream struct {
	grpc.ServerStreamingClient[observer.GetAgentEventsResponse]
	left []*observer.GetAgentEventsResponse
}

func (s *aheadStream) Recv() (*observer.GetAgentEventsResponse, error) {
	if len(s.left) == 0 {
		return nil, io.EOF
	}
	ev := s.left[0]
	s.left = s.left[1:]
	return ev, nil
}

// TestMarksOfClockAhead: what a node whose clock is ahead reports is one change also after the
// stream has ended and begun again, and what else it reports is another.
func TestMarksOfClockAhead(t *testing.T) {
	g := NewGraph(DefaultLimits())
	event := func(ahead time.Duration, revision uint64) *observer.GetAgentEventsResponse {
		n := policyLabels("NetworkPolicy", "shop", "db")
		n.Revision = revision
		return &observer.GetAgentEventsResponse{NodeName: "n1", Time: timestamppb.New(time.Now().Add(ahead)),
			AgentEvent: &flow.AgentEvent{Type: flow.AgentEventType_POLICY_UPDATED, Notification: &flow.AgentEvent_PolicyUpdate{PolicyUpdate: n}}}
	}
	server := &ahead{events: []*observer.GetAgentEventsResponse{event(3*time.Second, 7)}}
	f := &Follower{Client: server, Graph: g}
	since, resume := time.Now().Add(-Window), newResumption()
	for range 3 {
		if err := f.followEvents(t.Context(), since, resume); err != io.EOF {
			t.Fatal(err)
		}
	}
	if marks := g.Snapshot(time.Time{}, time.Time{}).Marks; len(marks) != 1 {
		t.Errorf("%d changes, want 1", len(marks))
	}
	server.events = append(server.events, event(3*time.Second, 8))
	if err := f.followEvents(t.Context(), since, resume); err != io.EOF {
		t.Fatal(err)
	}
	if marks := g.Snapshot(time.Time{}, time.Time{}).Marks; len(marks) != 2 {
		t.Errorf("%d changes, want 2", len(marks))
	}
	// However much is reported, so much is remembered.
	for i := range 3 * maxResumeSeen {
		resume.first(uint64(i), time.Now())
	}
	if n := len(resume.recent) + len(resume.older); n > 2*maxResumeSeen {
		t.Errorf("%d are remembered", n)
	}
}

// TestMarksLost: events that were lost may have been changes of policies: the page is told how
// many, whatever a server's text is, and as long as they would have been shown.
func TestMarksLost(t *testing.T) {
	g, now := testGraph(DefaultLimits())
	lost := func(e *flow.AgentEvent) *observer.GetAgentEventsResponse {
		return &observer.GetAgentEventsResponse{NodeName: "n1", Time: timestamppb.New(*now), AgentEvent: e}
	}
	other := flows.LostEvents(flow.LostEventSource_HUBBLE_RING_BUFFER, 1)
	other.GetUnknown().Notification = "several are missing"
	server := &ahead{events: []*observer.GetAgentEventsResponse{
		lost(flows.LostEvents(flow.LostEventSource_HUBBLE_RING_BUFFER, 40)), lost(flows.LostEvents(flow.LostEventSource_OBSERVER_EVENTS_QUEUE, 2)), lost(other),
		lost(&flow.AgentEvent{Notification: &flow.AgentEvent_Unknown{Unknown: &flow.AgentEventUnknown{Type: "node-state", Notification: "7 events were lost"}}}),
	}}
	f, resume := &Follower{Client: server, Graph: g}, newResumption()
	if err := f.followEvents(t.Context(), time.Time{}, resume); err != io.EOF {
		t.Fatal(err)
	}
	if n := g.Snapshot(time.Time{}, time.Time{}).MarksLost; n != 43 {
		t.Errorf("%d events were lost, want 43", n)
	}
	server.events = []*observer.GetAgentEventsResponse{lost(flows.LostEvents(flow.LostEventSource_HUBBLE_RING_BUFFER, math.MaxUint64))}
	if err := f.followEvents(t.Context(), time.Time{}, resume); err != io.EOF {
		t.Fatal(err)
	}
	if n := g.Snapshot(time.Time{}, time.Time{}).MarksLost; n != math.MaxUint64 {
		t.Errorf("%d events were lost, want as many as there can be", n)
	}
	*now = now.Add(Window)
	if n := g.Snapshot(time.Time{}, time.Time{}).MarksLost; n != 0 {
		t.Errorf("after the window %d events are lost", n)
	}
}

// TestLongNames: a name of ten kilobytes takes no more room than one that Kubernetes allows.
func TestLongNames(t *testing.T) {
	g, _ := testGraph(DefaultLimits())
	long := strings.Repeat("ü", 5000)
	src := pod(long, long, long, 1)
	src.Labels = []string{"k8s:" + long}
	f := verdict(testTime, src, pod("shop", "db", "db-0", 2), 80, no, in)
	f.NodeName, f.IngressDeniedBy = long, []*flow.Policy{{Name: long, Namespace: long}}
	g.Add(f)
	s := g.Snapshot(time.Time{}, time.Time{})
	if len(s.Edges) != 1 || len(s.Workloads) != 2 {
		t.Fatalf("%d edges of %d workloads", len(s.Edges), len(s.Workloads))
	}
	if text := fmt.Sprintf("%v %v %v", s.Edges, s.Workloads, g.Flows(1, func(*Flow) bool { return true })); len(text) > 30*maxName {
		t.Errorf("one flow takes %d bytes", len(text))
	}
}
