package policydir

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/hawser-net/hawser/internal/policy"
)

const keptPolicy = `apiVersion: cilium.io/v2
kind: CiliumNetworkPolicy
metadata: {name: web, namespace: default}
spec:
  endpointSelector: {matchLabels: {app: web}}
  ingress: [{fromEndpoints: [{matchLabels: {app: front}}]}]
`

// firstApply runs a Dir until it has applied what it finds at its start.
func firstApply(t *testing.T, cfg Config) (owners []string, status []FileStatus) {
	t.Helper()
	d, err := New(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	err = d.Run(ctx, func(changes []policy.Change) {
		for _, c := range changes {
			if c.Rules != nil {
				owners = append(owners, string(c.Owner))
			}
		}
		cancel()
	})
	if err != nil {
		t.Fatal(err)
	}
	status, err = d.Status()
	if err != nil {
		t.Fatal(err)
	}
	return owners, status
}

// A file that is faulty when the agent starts keeps the version that was last in force: otherwise a
// restart would let through what the policy stops.
func TestLastGoodVersionSurvivesRestart(t *testing.T) {
	t.Parallel()
	cfg := Defaults()
	cfg.Path, cfg.Keep = t.TempDir(), filepath.Join(t.TempDir(), "kept")
	path := filepath.Join(cfg.Path, "web.yaml")
	write := func(content string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(keptPolicy)
	if owners, _ := firstApply(t, cfg); len(owners) != 1 {
		t.Fatalf("a good file gave %v", owners)
	}
	write("spec: [")
	owners, status := firstApply(t, cfg)
	if len(owners) != 1 || owners[0] != "web.yaml/default/web" {
		t.Errorf("after a restart with the file faulty, in force are %v", owners)
	}
	if len(status) != 1 || status[0].Err == nil || len(status[0].Policies) != 1 {
		t.Errorf("the fault is not reported beside what is in force: %+v", status)
	}
	// A file that was removed while nobody looked is gone for good, its copy too.
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if owners, _ := firstApply(t, cfg); len(owners) != 0 {
		t.Errorf("a removed file still gives %v", owners)
	}
	write("spec: [")
	if owners, _ := firstApply(t, cfg); len(owners) != 0 {
		t.Errorf("the copy of a removed file came back: %v", owners)
	}
}
