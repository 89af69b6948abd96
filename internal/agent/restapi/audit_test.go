package restapi

import (
	"errors"
	"log/slog"
	"net/netip"
	"testing"

	"github.com/hawser-net/hawser/api/rest"
	"github.com/hawser-net/hawser/api/rest/server"
	"github.com/hawser-net/hawser/internal/agent/enforcement"
	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/datapath/fake"
	"github.com/hawser-net/hawser/internal/endpoint"
	"github.com/hawser-net/hawser/internal/labels"
	"github.com/hawser-net/hawser/internal/policy"
)

// TestAuditModeConfig: a change of the node's configuration is made whole although an endpoint is
// locked by it, and succeeds; one whose row could not be written fails, and is made by Retry.
func TestAuditModeConfig(t *testing.T) {
	t.Parallel()
	node := fake.New()
	engine, err := policy.New(policy.Defaults())
	if err != nil {
		t.Fatal(err)
	}
	pol, err := enforcement.NewPolicy(slog.New(slog.DiscardHandler), engine, node.Maps)
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
	a := New(Config{Log: slog.New(slog.DiscardHandler), Policy: pol})
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
