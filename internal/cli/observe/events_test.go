package observe

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/hawser-net/hawser/api/flow"
	"github.com/hawser-net/hawser/api/observer"
	"github.com/hawser-net/hawser/internal/exitcode"
	"github.com/hawser-net/hawser/internal/flows"
)

// policyEvent is a change of a policy at a second after agentTime.
func policyEvent(second float64, kind flow.AgentEventType, name string) flows.Event {
	return flows.Event{Time: agentTime.Add(time.Duration(second * float64(time.Second))), Event: &flow.AgentEvent{
		Type: kind, Notification: &flow.AgentEvent_PolicyUpdate{PolicyUpdate: &flow.PolicyUpdateNotification{
			Labels: []string{"k8s:io.cilium.k8s.policy.derived-from=NetworkPolicy", "k8s:io.cilium.k8s.policy.name=" + name, "k8s:io.cilium.k8s.policy.namespace=shop"}, Revision: 7, RuleCount: 2,
		}},
	}}
}

// TestObserveAgentEvents: what changed in agents is shown, by type, and between flows.
func TestObserveAgentEvents(t *testing.T) {
	record, path := serveFlows(t)
	updated, deleted := flow.AgentEventType_POLICY_UPDATED, flow.AgentEventType_POLICY_DELETED
	add := func(second float64, ev *flow.AgentEvent) {
		record.AddEvent(flows.Event{Time: agentTime.Add(time.Duration(second * float64(time.Second))), Event: ev})
	}
	record.AddEvent(policyEvent(0, updated, "early"))
	add(0.5, &flow.AgentEvent{Type: flow.AgentEventType_ENDPOINT_REGENERATE_FAILURE, Notification: &flow.AgentEvent_EndpointRegenerate{
		EndpointRegenerate: &flow.EndpointRegenNotification{Id: 7, Error: "no \x1broom"}}})
	add(0.6, &flow.AgentEvent{Type: flow.AgentEventType_SERVICE_UPSERTED, Notification: &flow.AgentEvent_ServiceUpsert{ServiceUpsert: &flow.ServiceUpsertNotification{
		Namespace: "shop", Name: "db", Type: "ClusterIP", FrontendAddress: &flow.ServiceUpsertNotificationAddr{Ip: "10.96.0.1", Port: 80}}}})
	add(0.7, &flow.AgentEvent{Type: flow.AgentEventType_IPCACHE_UPSERTED, Notification: &flow.AgentEvent_IpcacheUpdate{IpcacheUpdate: &flow.IPCacheNotification{
		Cidr: "10.0.2.9/32", Identity: 16386, OldIdentity: wrapperspb.UInt32(16385), Namespace: "shop", PodName: "db-0", HostIp: "192.0.2.3", OldHostIp: "192.0.2.2"}}})
	add(0.8, &flow.AgentEvent{Type: flow.AgentEventType_IPCACHE_UPSERTED, Notification: &flow.AgentEvent_IpcacheUpdate{IpcacheUpdate: &flow.IPCacheNotification{
		Cidr: "10.0.2.9/32", Identity: 16386, OldIdentity: wrapperspb.UInt32(16386), HostIp: "192.0.2.3", OldHostIp: "192.0.2.3"}}})
	record.AddEvent(policyEvent(2.5, updated, "guard"))
	record.AddEvent(policyEvent(2.6, updated, "guard")) // the same node: another change
	record.AddEvent(policyEvent(9, deleted, "guard"))
	line := func(second float64, node, what string) string {
		return agentTime.Add(time.Duration(second*float64(time.Second))).Local().Format("Jan _2 15:04:05.000") + node + ": " + what + "\n"
	}
	const n1 = " [prod/n1]"
	early, guard := "policy NetworkPolicy shop/early updated: 2 rules (revision 7)", "policy NetworkPolicy shop/guard updated: 2 rules (revision 7)"
	gone := "policy NetworkPolicy shop/guard deleted (revision 7)"
	ask := func(args ...string) (code int, out, errs string) {
		var stdout, stderr bytes.Buffer
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		code = run(ctx, &stdout, &stderr, path, args...)
		return code, stdout.String(), stderr.String()
	}
	for _, row := range []struct{ args, want string }{
		{"agent-events --last 2", line(2.6, n1, guard) + line(9, n1, gone)},
		{"agent-events --type policy --first 1", line(0, n1, early)},
		{"agent-events --type endpoint-regenerate-failure,service-upserted", line(0.5, n1, `endpoint regenerate failure 7 (no \x1broom)`) +
			line(0.6, n1, "service upserted shop/db ClusterIP 10.96.0.1:80 0 backends")},
		{"agent-events --type ipcache-upserted", line(0.7, n1, "ipcache upserted 10.0.2.9/32 identity 16386 (was 16385) shop/db-0 192.0.2.3 (was 192.0.2.2)") +
			line(0.8, n1, "ipcache upserted 10.0.2.9/32 identity 16386 192.0.2.3")},
		{"agent-events --type policy-deleted --all", line(9, n1, gone)},
		{"agent-events --type policy --since 2026-03-01T12:30:03Z --until 2026-03-01T12:30:10Z --follow", line(9, n1, gone)},
	} {
		if code, out, errs := ask(strings.Fields(row.args)...); code != exitcode.OK || errs != "" || out != row.want {
			t.Errorf("%s: %d %s\ngot\n%swant\n%s", row.args, code, errs, out, row.want)
		}
	}
	if _, out, _ := ask("agent-events", "-o", "json", "--last", "1"); !strings.HasPrefix(out, `{"agent_event":{"type":"POLICY_DELETED","policy_update":{"labels":[`) || strings.Count(out, "\n") != 1 {
		t.Errorf("JSON: %s", out)
	}
	for args, text := range map[string]string{"agent-events --type nothing": "nothing", "agent-events -o table": "table", "--policy-changes -o table": "--policy-changes"} {
		if code, _, errs := ask(strings.Fields(args)...); code != exitcode.Usage || !strings.Contains(errs, text) {
			t.Errorf("%s: %d %s", args, code, errs)
		}
	}

	// Flows are at the seconds 1, 3 and 4, a loss at 2.
	for _, row := range []struct {
		args  string
		order []string
	}{
		{"--policy-changes", []string{"front-1", "lost", guard, guard, "u2", "u3", gone}},
		{"--policy-changes --all", []string{early, "front-1", "lost", guard, guard, "u2", "u3", gone}},
		{"--policy-changes --since 2026-03-01T12:30:02Z", []string{"lost", guard, guard, "u2", "u3", gone}},
		{"--policy-changes --first 1", []string{"front-1"}},
		{"--policy-changes --pod absent/x", []string{"lost"}},
		{"--policy-changes --follow --since 2026-03-01T12:30:08Z --until 2026-03-01T12:30:10Z", nil},
	} {
		code, out, errs := ask(strings.Fields(row.args)...)
		lines := strings.Split(strings.TrimSuffix(out, "\n"), "\n")
		ok := code == exitcode.OK && errs == "" && (len(lines) == len(row.order) || row.order == nil)
		for i, want := range row.order {
			if len(want) > 2 { // the second and the third flow are told apart by where they stand
				ok = ok && i < len(lines) && strings.Contains(lines[i], want)
			}
		}
		if !ok {
			t.Errorf("%s: %d %s, want %q\n%s", row.args, code, errs, row.order, out)
		}
	}
}

// TestEventNamesPolicy: an event names its policy whatever the source of the labels that say it.
func TestEventNamesPolicy(t *testing.T) {
	const prefix = "io.cilium.k8s.policy."
	for _, source := range []string{"k8s:", "directory:", ""} {
		text := policyEventText(flow.AgentEventType_POLICY_DELETED, &flow.PolicyUpdateNotification{Labels: []string{source + prefix + "name=db", source + prefix + "namespace=shop"}})
		if want := "policy shop/db deleted (revision 0)"; text != want {
			t.Errorf("with the source %q: %q, want %q", source, text, want)
		}
	}
}

// TestPolicyChangesOfNodes: a change that several nodes report is shown once, and every change
// of a policy is shown, however soon it follows another.
func TestPolicyChangesOfNodes(t *testing.T) {
	for name, row := range map[string]struct{ reports, want string }{
		"one change":               {"n1 U 0, n2 U 1, n3 U 9", "n1 U 0"},
		"one node":                 {"n1 U 0, n1 D 1, n1 U 2", "n1 U 0, n1 D 1, n1 U 2"},
		"updates only":             {"n1 U 0, n1 U 1, n2 U 1, n2 U 2, n3 U 2", "n1 U 0, n1 U 1"},
		"one node after the other": {"n1 U 0, n1 D 1, n1 U 2, n2 U 3, n2 D 4, n2 U 5", "n1 U 0, n1 D 1, n1 U 2"},
		"one is gone":              {"n1 U 0, n2 U 0, n2 D 1, n2 U 2", "n1 U 0, n2 D 1, n2 U 2"},
		"first the deletion":       {"n1 U 0, n2 D 1, n2 U 2, n1 D 2, n1 U 3", "n1 U 0, n2 D 1, n2 U 2"},
		"long after":               {"n1 U 0, n2 U 20", "n1 U 0, n2 U 20"},
	} {
		var got []string
		p := &policyChanges{shown: map[string][]shownChange{}}
		p.write = func(res *observer.GetAgentEventsResponse) error {
			kind := map[flow.AgentEventType]string{flow.AgentEventType_POLICY_UPDATED: "U", flow.AgentEventType_POLICY_DELETED: "D"}[res.GetAgentEvent().GetType()]
			got = append(got, fmt.Sprint(res.GetNodeName(), " ", kind, " ", res.GetTime().AsTime().Sub(agentTime).Seconds()))
			return nil
		}
		for _, text := range strings.Split(row.reports, ", ") {
			var node, kind string
			var second int
			if _, err := fmt.Sscan(text, &node, &kind, &second); err != nil {
				t.Fatal(err)
			}
			ev := policyEvent(float64(second), map[string]flow.AgentEventType{"U": flow.AgentEventType_POLICY_UPDATED, "D": flow.AgentEventType_POLICY_DELETED}[kind], "guard")
			if err := p.add(&observer.GetAgentEventsResponse{Time: timestamppb.New(ev.Time), NodeName: node, AgentEvent: ev.Event}); err != nil {
				t.Fatal(err)
			}
		}
		if strings.Join(got, ", ") != row.want {
			t.Errorf("%s: shown are %q, want %q", name, got, row.want)
		}
	}
	// Memory is bounded whatever is reported, and a recent change is not shown twice.
	p := &policyChanges{shown: map[string][]shownChange{}}
	for i := range 3 * maxReports {
		at := agentTime.Add(time.Duration(i) * 2 * time.Millisecond)
		if p.known(fmt.Sprint(i), "U", "n1", at) || !p.known(fmt.Sprint(i), "U", "n2", at) {
			t.Fatalf("change %d", i)
		}
		if p.count > maxReports {
			t.Fatalf("%d are remembered", p.count)
		}
	}
}

// TestObserveFollowsPolicyChanges: a client that follows flows sees when a policy changes.
func TestObserveFollowsPolicyChanges(t *testing.T) {
	record, path := serveFlows(t)
	read, interrupt := follow(t, path, "--policy-changes")
	stop, added := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(added)
		for i := 0; ; i++ { // until it is followed
			ev := policyEvent(0, flow.AgentEventType_POLICY_UPDATED, fmt.Sprint("p", i))
			ev.Time = time.Now()
			record.AddEvent(ev)
			select {
			case <-stop:
				return
			case <-time.After(20 * time.Millisecond):
			}
		}
	}()
	read("policy NetworkPolicy shop/p")
	close(stop)
	<-added
	interrupt()
}
