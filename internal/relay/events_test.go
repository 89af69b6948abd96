package relay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/hawser-net/hawser/api/flow"
	"github.com/hawser-net/hawser/api/observer"
	"github.com/hawser-net/hawser/internal/flows"
)

var policyTypes = []flow.AgentEventType{flow.AgentEventType_POLICY_UPDATED, flow.AgentEventType_POLICY_DELETED}

// policy adds a change of a policy to what a node remembers.
func (n *testNode) policy(at time.Time, name string) {
	n.record.AddEvent(flows.Event{Time: at, Event: &flow.AgentEvent{
		Type:         flow.AgentEventType_POLICY_UPDATED,
		Notification: &flow.AgentEvent_PolicyUpdate{PolicyUpdate: &flow.PolicyUpdateNotification{Labels: []string{name}, Revision: 7, RuleCount: 1}},
	}})
}

// events reads events as texts until their end, or until there are so many.
func (s *stand) events(req *observer.GetAgentEventsRequest, most int) (got []string, states []string, err error) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	stream, err := s.client().GetAgentEvents(ctx, req)
	for err == nil && (most == 0 || len(got) < most) {
		var res *observer.GetAgentEventsResponse
		if res, err = stream.Recv(); err != nil {
			break
		}
		ev := res.GetAgentEvent()
		if u := ev.GetUnknown(); u.GetType() == NodeStateEvent {
			states = append(states, u.GetNotification())
			continue
		}
		got = append(got, res.GetNodeName()+" "+strings.Join(ev.GetPolicyUpdate().GetLabels(), "")+ev.GetEndpointUpdate().GetPodName())
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return got, states, err
}

// TestEventsOfAgents: the events of all agents are in the order of time, with the node of each,
// those of the types asked for; missing nodes are reported.
func TestEventsOfAgents(t *testing.T) {
	s := newStand(t, 3, nil, nil)
	s.connected(3)
	t0 := time.Now().Add(-time.Minute)
	at := func(i int) time.Time { return t0.Add(time.Duration(i) * time.Second) }
	s.nodes[0].policy(at(1), "a")
	s.nodes[0].policy(at(4), "b")
	s.nodes[1].policy(at(2), "a")
	s.nodes[1].policy(at(5), "b")
	s.nodes[2].record.AddEvent(flows.Event{Time: at(3), Event: &flow.AgentEvent{
		Type: flow.AgentEventType_ENDPOINT_CREATED, Notification: &flow.AgentEvent_EndpointUpdate{EndpointUpdate: &flow.EndpointUpdateNotification{PodName: "web"}},
	}})
	for _, tt := range []struct {
		req  *observer.GetAgentEventsRequest
		want []string
	}{
		{&observer.GetAgentEventsRequest{}, []string{"prod/n1 a", "prod/n2 a", "prod/n3 web", "prod/n1 b", "prod/n2 b"}},
		{&observer.GetAgentEventsRequest{Types: policyTypes}, []string{"prod/n1 a", "prod/n2 a", "prod/n1 b", "prod/n2 b"}},
		{&observer.GetAgentEventsRequest{Types: policyTypes, Number: 3}, []string{"prod/n2 a", "prod/n1 b", "prod/n2 b"}},
		{&observer.GetAgentEventsRequest{Number: 2, First: true}, []string{"prod/n1 a", "prod/n2 a"}},
		{&observer.GetAgentEventsRequest{Since: timestamppb.New(at(2)), Until: timestamppb.New(at(4))}, []string{"prod/n2 a", "prod/n3 web", "prod/n1 b"}},
	} {
		if got, states, err := s.events(tt.req, 0); err != nil || !slices.Equal(got, tt.want) || len(states) > 0 {
			t.Errorf("%v: %q, %q, %v, want %q", tt.req, got, states, err, tt.want)
		}
	}
	if n := s.relay.kept.Load(); n != 0 {
		t.Errorf("%d bytes are still held", n)
	}
	for what, req := range map[string]*observer.GetAgentEventsRequest{
		"too many types": {Types: make([]flow.AgentEventType, 65)}, "first of how many": {First: true},
	} {
		if _, _, err := s.events(req, 0); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: %v", what, err)
		}
	}
	// Who follows gets what was since a time, and what comes.
	followed := make(chan string, 1)
	go func() {
		got, states, err := s.events(&observer.GetAgentEventsRequest{Types: policyTypes, Follow: true, Since: timestamppb.New(at(5))}, 2)
		followed <- fmt.Sprint(got, states, err)
	}()
	s.nodes[2].policy(time.Now(), "c")
	if got, want := <-followed, "[prod/n2 b prod/n3 c] [] <nil>"; got != want {
		t.Errorf("followed %s, want %s", got, want)
	}
	s.nodes[2].end()
	s.connected(2)
	got, states, err := s.events(&observer.GetAgentEventsRequest{Types: policyTypes, Number: 1, Until: timestamppb.New(at(5))}, 0)
	if err != nil || !slices.Equal(got, []string{"prod/n2 b"}) || len(states) != 1 || !strings.HasPrefix(states[0], "prod/n3: unavailable: its events are missing: ") {
		t.Errorf("without a node: %q, %q, %v", got, states, err)
	}
}

// TestAnswersOfManyElements: a megabyte of empty elements, of two bytes each, would be much more in
// memory than it counts for. It is not decoded, and counts as lost.
func TestAnswersOfManyElements(t *testing.T) {
	t.Parallel()
	conn := dialAgent(t, flooder{})
	for what, q := range map[string]question{"a flow": flowsQuestion{&observer.GetFlowsRequest{}}, "an event": eventsQuestion{&observer.GetAgentEventsRequest{}, nil}} {
		codec := newLenientCodec()
		receive, err := q.ask(t.Context(), conn, "prod/n9", codec.options()...)
		if err != nil {
			t.Fatal(err)
		}
		if e, err := receive(); e != nil || err != nil || !codec.refused {
			t.Errorf("%s of very many elements is read: %v, %v", what, e != nil, err)
		}
		if e, err := receive(); !errors.Is(err, io.EOF) {
			t.Errorf("after %s of very many elements comes %v, %v", what, e, err)
		}
	}
}

// flooder is an agent whose messages have very many elements.
type flooder struct {
	observer.UnimplementedObserverServer
}

func (flooder) GetFlows(_ *observer.GetFlowsRequest, stream observer.Observer_GetFlowsServer) error {
	return stream.Send(&observer.GetFlowsResponse{ResponseTypes: &observer.GetFlowsResponse_Flow{Flow: &flow.Flow{
		Source: &flow.Endpoint{Workloads: slices.Repeat([]*flow.Workload{{}}, 400_000)},
	}}})
}

func (flooder) GetAgentEvents(_ *observer.GetAgentEventsRequest, stream observer.Observer_GetAgentEventsServer) error {
	return stream.Send(&observer.GetAgentEventsResponse{AgentEvent: &flow.AgentEvent{Notification: &flow.AgentEvent_ServiceUpsert{
		ServiceUpsert: &flow.ServiceUpsertNotification{BackendAddresses: slices.Repeat([]*flow.ServiceUpsertNotificationAddr{{}}, 400_000)},
	}}})
}

// plainAgent is an agent that does not know types of events, and sends those of other nodes.
type plainAgent struct {
	observer.UnimplementedObserverServer
}

func (plainAgent) GetAgentEvents(_ *observer.GetAgentEventsRequest, stream observer.Observer_GetAgentEventsServer) error {
	for _, ev := range []*flow.AgentEvent{
		nil, {Type: flow.AgentEventType_IPCACHE_UPSERTED}, {Type: flow.AgentEventType_POLICY_DELETED}, flows.LostEvents(flow.LostEventSource_HUBBLE_RING_BUFFER, 3),
	} {
		if err := stream.Send(&observer.GetAgentEventsResponse{NodeName: "another", AgentEvent: ev}); err != nil {
			return err
		}
	}
	return nil
}

// TestEventsOfOtherAgents: what an agent sends beyond what was asked for goes no further.
func TestEventsOfOtherAgents(t *testing.T) {
	t.Parallel()
	conn := dialAgent(t, plainAgent{})
	receive, err := eventsQuestion{&observer.GetAgentEventsRequest{Types: policyTypes}, policyTypes}.ask(t.Context(), conn, "prod/n9")
	var got []string
	for err == nil {
		var e entry
		if e, err = receive(); err == nil && e != nil {
			res := e.(*observer.GetAgentEventsResponse)
			got = append(got, res.GetNodeName()+" "+res.GetAgentEvent().GetType().String())
		}
	}
	if !errors.Is(err, io.EOF) || !slices.Equal(got, []string{"prod/n9 POLICY_DELETED", "prod/n9 AGENT_EVENT_UNKNOWN"}) {
		t.Errorf("passed on are %q, %v", got, err)
	}
}
