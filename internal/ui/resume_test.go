package ui_test

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/hawser-net/hawser/api/flow"
	"github.com/hawser-net/hawser/internal/flows"
	"github.com/hawser-net/hawser/internal/ui"
)

// TestResume: when the server was away, the page has each flow once, also of nodes whose clocks
// are behind, and of one whose clock was set back; and it has flows to come however old they claim
// to be.
func TestResume(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	n := 0
	add := func(node string, behind time.Duration, count int) {
		for range count {
			n++
			s.record.Add(&flow.Flow{
				Time: timestamppb.New(time.Now().Add(-behind)), Uuid: fmt.Sprint(n), NodeName: "prod/" + node, Type: flow.FlowType_L3_L4, IsReply: wrapperspb.Bool(false),
				Source: endpoint("shop", "front", 1), Destination: endpoint("shop", "db", 2), IP: &flow.IP{Source: "10.0.0.1", Destination: "10.0.0.2", IpVersion: flow.IPVersion_IPv4},
				L4:        &flow.Layer4{Protocol: &flow.Layer4_TCP{TCP: &flow.TCP{SourcePort: uint32(n), DestinationPort: 80}}},
				EventType: &flow.CiliumEventType{Type: 5}, TrafficDirection: flow.TrafficDirection_INGRESS, Verdict: flow.Verdict_FORWARDED,
			}, netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2"), time.Now())
		}
	}
	all := func(what string) {
		t.Helper()
		s.eventually(what, func() bool { return len(s.graph.Flows(500, func(*ui.Flow) bool { return true })) >= n })
		time.Sleep(100 * time.Millisecond) // for one too many
		seen := map[string]int{}
		for _, f := range s.graph.Flows(500, func(*ui.Flow) bool { return true }) {
			if seen[f.Source]++; seen[f.Source] > 1 {
				t.Errorf("%s: the flow of %s is there %d times", what, f.Source, seen[f.Source])
			}
		}
	}
	away := func(while func()) {
		s.end()
		while()
		s.serve()
	}
	connected := func() {
		s.eventually("the page is connected", func() bool { return s.status().Connected })
	}
	connected()
	add("n1", 0, 5)
	add("n2", 40*time.Second, 5)
	all("at first")
	away(func() {
		add("n2", 40*time.Second, 3)
		add("n1", 0, 3)
		add("n2", 40*time.Second, 1)
	})
	all("after the server was away")
	connected()
	add("n1", 3*time.Minute, 2) // its clock is set back
	all("with a clock set back")
	away(func() { add("n1", 3*time.Minute, 3) })
	all("after the server was away again")
	connected()
	add("n2", 2*ui.Window, 2)
	all("with a clock that is far behind")
}

// TestResumeEvents: when the server was away, the page has each change of a policy once, also of a
// node whose clock was set back, of which nothing was known before.
func TestResumeEvents(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	n := 0
	add := func(behind time.Duration) {
		n++
		labels := []string{"k8s:io.cilium.k8s.policy.namespace=shop", fmt.Sprint("k8s:io.cilium.k8s.policy.name=p", n)}
		s.record.AddEvent(flows.Event{Time: time.Now().Add(-behind), Event: &flow.AgentEvent{
			Type:         flow.AgentEventType_POLICY_UPDATED,
			Notification: &flow.AgentEvent_PolicyUpdate{PolicyUpdate: &flow.PolicyUpdateNotification{Labels: labels, Revision: uint64(n)}},
		}})
	}
	all := func(what string) {
		t.Helper()
		count := func() (sum int) {
			for _, m := range s.graph.Snapshot(time.Time{}, time.Time{}).Marks {
				sum += len(m.Policies)
			}
			return sum
		}
		s.eventually(what, func() bool { return count() >= n })
		if got := count(); got != n {
			t.Errorf("%s: %d changes, want %d", what, got, n)
		}
	}
	add(0)
	all("at first")
	s.end()
	add(40 * time.Second)
	add(0)
	s.serve()
	all("after the server was away")
	s.end()
	add(3 * time.Minute)
	s.serve()
	all("after the server was away again")
	add(2 * ui.Window)
	all("with a clock that is far behind")
}
