package agent

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	flowpb "github.com/hawser-net/hawser/api/flow"
	"github.com/hawser-net/hawser/api/observer"
	"github.com/hawser-net/hawser/api/rest"
	"github.com/hawser-net/hawser/internal/testenv/controllers"
)

// TestAuditMode: a pod in audit mode is reached by whom its policy refuses, and it is reported
// everywhere; another with the same rules is not, also not after a restart of the agent.
func TestAuditMode(t *testing.T) {
	t.Parallel()
	n, _ := newNode(t)
	n.flags = append(n.flags, "--enable-hubble", "--hubble-socket-path", n.path("run/hubble.sock"), "--prometheus-serve-addr", "127.0.0.1:9962")
	n.policy("web.yaml", denyWeb)
	n.start()
	web, twin := n.attached("web", map[string]string{"app": "web"}), n.attached("twin", map[string]string{"app": "web"})
	intruder := n.attached("intruder", map[string]string{"app": "intruder"})
	for _, p := range []*machinePod{web, twin} {
		serveEcho(t, p.ns, p.both(80)[0])
	}
	reaches := func(what string, p *machinePod, want bool) {
		t.Helper()
		controllers.Eventually(t, time.Minute, func() string {
			if err := once(intruder.ns, p.both(80)[0], time.Second); (err == nil) != want {
				return fmt.Sprintf("%s: %s is reached: %v", what, p.name, err)
			}
			return ""
		})
	}
	patch := func(path, mode string, code int, text string) {
		t.Helper()
		if got, body := n.call(http.MethodPatch, path, fmt.Sprintf(`{"options":{"PolicyAuditMode":%q}}`, mode), "Content-Type", "application/json"); got != code || !strings.Contains(body, text) {
			t.Errorf("%s %s: %d %s, want %d %s", path, mode, got, body, code, text)
		}
	}
	config := func(p *machinePod) string { return fmt.Sprintf("/endpoint/%d/config", p.endpoint().ID) }
	reaches("at first", web, false)
	reaches("at first", twin, false)
	if p := n.part("policy-audit"); p.Name != "" {
		t.Errorf("the status says %+v", p)
	}

	seen := followFlows(t, n.flowConn(n.path("run/hubble.sock")), &observer.GetFlowsRequest{})
	patch(config(web), "Enabled", 200, "")
	reaches("in audit mode", web, true)
	reaches("the twin of it", twin, false)
	controllers.Eventually(t, time.Minute, func() string {
		_ = once(intruder.ns, web.both(80)[0], time.Second)
		seen.mu.Lock()
		defer seen.mu.Unlock()
		if !slices.ContainsFunc(seen.list, func(f *flowpb.Flow) bool {
			return f.GetVerdict() == flowpb.Verdict_AUDIT && f.GetDropReasonDesc() == flowpb.DropReason_POLICY_DENIED && f.GetSource().GetPodName() == "intruder" &&
				f.GetDestination().GetPodName() == "web" && f.GetTrafficDirection() == flowpb.TrafficDirection_INGRESS
		}) {
			return "there is no flow of it"
		}
		return ""
	})
	if code, body := n.call(http.MethodGet, config(web), ""); code != 200 || !strings.Contains(body, `"PolicyAuditMode":"Enabled"`) {
		t.Errorf("the options: %d %s", code, body)
	}
	if p := n.part("policy-audit"); p.State != rest.StateWarning || !strings.HasSuffix(p.Msg, ": 1") {
		t.Errorf("the status says %+v", p)
	}
	if ep := web.endpoint(); ep.Status.Policy.Realized.PolicyEnabled != rest.EndpointPolicyEnabledAuditIngress {
		t.Errorf("the endpoint's policy is %q", ep.Status.Policy.Realized.PolicyEnabled)
	}
	if n.metric(`cilium_policy_audited_total{direction="ingress"}`) == 0 || n.metric("cilium_policy_audited_endpoints") != 1 {
		t.Error("the metrics do not show it")
	}

	n.stop()
	reaches("without an agent", twin, false)
	n.start()
	reaches("after a restart", web, true)
	reaches("after a restart, the twin", twin, false)

	patch("/config", "Enabled", 200, "")
	patch(config(web), "Disabled", 200, "")
	reaches("the node's mode", twin, true)
	reaches("one that is left out", web, false)
	patch("/config", "Disabled", 200, "")
	reaches("at the end", twin, false)
	patch("/config", "Inherited", 400, "nothing to inherit it from")
	patch(config(web), "maybe", 400, "none of Enabled")
	if code, body := n.call(http.MethodPatch, config(web), `{"options":{"Debug":"Enabled"}}`, "Content-Type", "application/json"); code != 400 || !strings.Contains(body, "PolicyAuditMode") {
		t.Errorf("another option: %d %s", code, body)
	}
	n.stop()
}
