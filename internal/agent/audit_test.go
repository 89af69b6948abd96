package agent

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	flowpb "github.com/hawser-net/hawser/api/flow"
	"github.com/hawser-net/hawser/api/observer"
	"github.com/hawser-net/hawser/api/rest"
	"github.com/hawser-net/hawser/api/rest/server"
	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/datapath/fake"
	"github.com/hawser-net/hawser/internal/endpoint"
	"github.com/hawser-net/hawser/internal/labels"
	"github.com/hawser-net/hawser/internal/policy"
	"github.com/hawser-net/hawser/internal/testenv/controllers"
)

// TestAuditMode: a pod in audit mode is reached by whom its policy refuses, and everybody is told;
// another with the same rules is not, also not after a restart of the agent.
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
			return "no flow tells of it"
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
		t.Error("the metrics do not tell")
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
	patch("/config", "Inherited", 400, "inherits it from nobody")
	patch(config(web), "maybe", 400, "none of Enabled")
	if code, body := n.call(http.MethodPatch, config(web), `{"options":{"Debug":"Enabled"}}`, "Content-Type", "application/json"); code != 400 || !strings.Contains(body, "PolicyAuditMode") {
		t.Errorf("another option: %d %s", code, body)
	}
	n.stop()
}

// TestAuditModeConfig: a change of the node's configuration is made whole although an endpoint is
// locked by it, and succeeds; one whose row could not be written fails, and is made by Retry.
func TestAuditModeConfig(t *testing.T) {
	t.Parallel()
	node := fake.New()
	engine, err := policy.New(policy.Defaults())
	if err != nil {
		t.Fatal(err)
	}
	pol, err := endpoint.NewPolicy(slog.New(slog.DiscardHandler), engine, node.Maps)
	if err != nil {
		t.Fatal(err)
	}
	set := labels.NewSet(labels.New(labels.SourceK8s, "app", "x"))
	if _, _, err := pol.Attach(endpoint.Endpoint{ID: 1, Identity: 300, IdentityLabels: set, Attachment: endpoint.Attachment{
		IfIndex: 7, IPv4: netip.MustParseAddr("10.1.0.1"), MAC: make([]byte, 6), HostMAC: make([]byte, 6),
	}}); err != nil {
		t.Fatal(err)
	}
	if err := pol.Synced(); err != nil {
		t.Fatal(err)
	}
	a := &api{log: slog.New(slog.DiscardHandler), policy: pol}
	patch := func(enforcement rest.PolicyEnforcement, mode string) error {
		_, err := a.PatchConfig(t.Context(), server.PatchConfigRequestObject{Body: &rest.DaemonConfigurationSpec{
			PolicyEnforcement: enforcement, Options: rest.ConfigurationMap{optionAudit: mode},
		}})
		return err
	}
	want := func(what string, locked, audit bool) {
		t.Helper()
		rows, err := node.Maps.Endpoints()
		if err != nil || len(rows) != 1 {
			t.Fatal(rows, err)
		}
		if rows[0].Locked != locked || rows[0].Audit != audit {
			t.Errorf("%s: the row is %+v, want it locked: %v, in audit mode: %v", what, rows[0], locked, audit)
		}
	}
	full := func(op string, _ any) error {
		if op == "Maps.InstallRuleSet" {
			return datapath.ErrFull
		}
		return nil
	}
	node.SetFault(full)
	if err := patch("always", "Enabled"); err != nil {
		t.Errorf("an endpoint is locked: %v", err)
	}
	want("both", true, true)
	if err := patch("", "Disabled"); err != nil {
		t.Errorf("an endpoint is locked: %v", err)
	}
	want("audit mode ends", true, false)
	node.SetFault(func(op string, arg any) error {
		if op == "Maps.UpsertEndpoint" {
			return datapath.ErrFull
		}
		return full(op, arg)
	})
	if err := patch("", "Enabled"); !errors.Is(err, endpoint.ErrRowNotWritten) {
		t.Errorf("the row could not be written: %v", err)
	}
	node.SetFault(nil)
	if err := pol.Retry(); err != nil {
		t.Fatal(err)
	}
	want("tried again", false, true)
}
