package relay

import (
	"context"
	"slices"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/hawser-net/hawser/api/flow"
	"github.com/hawser-net/hawser/api/observer"
	"github.com/hawser-net/hawser/api/relay"
	"github.com/hawser-net/hawser/internal/flows"
	"github.com/hawser-net/hawser/internal/flowserver"
)

// entry is a message of a node, or about nodes, on its way to a client.
type entry interface {
	proto.Message
	GetTime() *timestamppb.Timestamp
}

// question is what a client asks of all nodes: for flows, or for events of their agents.
type question interface {
	flowserver.Request
	// again is the same for a node to be asked later than others: everything since a time; what is
	// to come, if the time is nil.
	again(since *timestamppb.Timestamp) question
	// ask asks a node, and returns what receives its next entry; nil stands for one that is not
	// for the client.
	ask(ctx context.Context, conn *grpc.ClientConn, node string, opts ...grpc.CallOption) (receive func() (entry, error), err error)
	// counts reports whether an entry is one of those whose number is bounded.
	counts(entry) bool
	// lost reports that an entry of a node was lost, which was of that time.
	lost(node string, at *timestamppb.Timestamp) entry
}

// flowsQuestion asks for flows.
type flowsQuestion struct{ *observer.GetFlowsRequest }

func (q flowsQuestion) again(since *timestamppb.Timestamp) question {
	req := proto.CloneOf(q.GetFlowsRequest)
	req.Number, req.Since = 0, since
	return flowsQuestion{req}
}

func (q flowsQuestion) ask(ctx context.Context, conn *grpc.ClientConn, node string, opts ...grpc.CallOption) (func() (entry, error), error) {
	stream, err := observer.NewObserverClient(conn).GetFlows(ctx, q.GetFlowsRequest, opts...)
	return func() (entry, error) {
		res, err := stream.Recv()
		if err != nil {
			return nil, err
		}
		// A node speaks for itself only.
		res.NodeName = node
		switch {
		case res.GetFlow() != nil:
			res.GetFlow().NodeName = node
		case res.GetLostEvents() == nil:
			return nil, nil
		}
		return res, nil
	}, err
}

func (flowsQuestion) counts(e entry) bool {
	res, _ := e.(*observer.GetFlowsResponse)
	return res.GetFlow() != nil
}

func (flowsQuestion) lost(node string, at *timestamppb.Timestamp) entry {
	return &observer.GetFlowsResponse{
		ResponseTypes: &observer.GetFlowsResponse_LostEvents{LostEvents: flows.Lost(flow.LostEventSource_OBSERVER_EVENTS_QUEUE, 1)},
		NodeName:      node, Time: at,
	}
}

// eventsQuestion asks for events of agents, of some types or of all.
type eventsQuestion struct {
	*observer.GetAgentEventsRequest
	types []flow.AgentEventType
}

func (q eventsQuestion) again(since *timestamppb.Timestamp) question {
	req := proto.CloneOf(q.GetAgentEventsRequest)
	req.Number, req.Since = 0, since
	return eventsQuestion{req, q.types}
}

func (q eventsQuestion) ask(ctx context.Context, conn *grpc.ClientConn, node string, opts ...grpc.CallOption) (func() (entry, error), error) {
	stream, err := observer.NewObserverClient(conn).GetAgentEvents(ctx, q.GetAgentEventsRequest, opts...)
	return func() (entry, error) {
		res, err := stream.Recv()
		if err != nil {
			return nil, err
		}
		// An agent that does not know types sends all. One that reports nothing is left out.
		// What was lost may have been of any type.
		if ev := res.GetAgentEvent(); ev == nil || len(q.types) > 0 && !slices.Contains(q.types, ev.GetType()) && !flows.IsLostEvents(ev) {
			return nil, nil
		}
		res.NodeName = node
		return res, nil
	}, err
}

func (eventsQuestion) counts(e entry) bool {
	res, _ := e.(*observer.GetAgentEventsResponse)
	return !flows.IsLostEvents(res.GetAgentEvent())
}

func (eventsQuestion) lost(node string, at *timestamppb.Timestamp) entry {
	return &observer.GetAgentEventsResponse{
		AgentEvent: flows.LostEvents(flow.LostEventSource_OBSERVER_EVENTS_QUEUE, 1),
		NodeName:   node, Time: at,
	}
}

// NodeStateEvent is the type of an unknown event by which a relay reports state changes of nodes:
// there is no message for it among those of events.
const NodeStateEvent = "node-state"

// stateEvent reports state changes of nodes to readers of events.
func stateEvent(res *observer.GetFlowsResponse) *observer.GetAgentEventsResponse {
	st := res.GetNodeStatus()
	what := strings.ToLower(strings.TrimPrefix(st.GetStateChange().String(), "NODE_"))
	if st.GetStateChange() != relay.NodeState_NODE_CONNECTED {
		what += ": its events are missing"
	}
	if st.GetMessage() != "" {
		what += ": " + st.GetMessage()
	}
	return &observer.GetAgentEventsResponse{
		Time: res.GetTime(),
		AgentEvent: &flow.AgentEvent{Type: flow.AgentEventType_AGENT_EVENT_UNKNOWN, Notification: &flow.AgentEvent_Unknown{Unknown: &flow.AgentEventUnknown{
			Type: NodeStateEvent, Notification: strings.Join(st.GetNodeNames(), ", ") + ": " + what,
		}}},
	}
}
