package flowserver_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/hawser-net/hawser/api/flow"
	"github.com/hawser-net/hawser/api/observer"
	"github.com/hawser-net/hawser/internal/flows"
)

// TestLostEventsOfAgents: a reader of the agent's events that is overtaken gets how many it missed,
// whichever types it asks for.
func TestLostEventsOfAgents(t *testing.T) {
	policies, addresses := flow.AgentEventType_POLICY_UPDATED, flow.AgentEventType_IPCACHE_UPSERTED
	for name, row := range map[string]struct {
		kind  flow.AgentEventType
		types []flow.AgentEventType
	}{
		"all": {addresses, nil}, "addresses": {addresses, []flow.AgentEventType{addresses}}, "policies": {policies, []flow.AgentEventType{policies}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStand(t, 8, nil)
			text := strings.Repeat("x", 4096)
			add := func() {
				s.record.AddEvent(flows.Event{Time: time.Now(), Event: &flow.AgentEvent{
					Type: row.kind, Notification: &flow.AgentEvent_PolicyUpdate{PolicyUpdate: &flow.PolicyUpdateNotification{Labels: []string{text}}},
				}})
			}
			add()
			ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
			defer cancel()
			stream, err := observer.NewObserverClient(s.dial()).GetAgentEvents(ctx, &observer.GetAgentEventsRequest{
				Follow: true, Since: timestamppb.New(time.Unix(1, 0)), Types: row.types,
			})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := stream.Recv(); err != nil {
				t.Fatal(err)
			}
			const many = 10000 // more than are remembered
			for range many {
				add()
			}
			got, lost := 0, 0
			for got+lost < many {
				res, err := stream.Recv()
				if err != nil {
					t.Fatalf("after %d events, and %d that were lost: %v", got, lost, err)
				}
				u := res.GetAgentEvent().GetUnknown()
				if u == nil {
					got++
					continue
				}
				n := 0
				if _, err := fmt.Sscanf(u.GetNotification(), "%d events were lost", &n); err != nil || u.GetType() != "lost-events" || res.GetNodeName() != "prod/n1.example" || !res.GetTime().IsValid() {
					t.Errorf("%v: %v", res, err)
				}
				lost += n
			}
			if got+lost != many || lost == 0 {
				t.Errorf("%d events came, and %d were lost", got, lost)
			}
		})
	}
}
