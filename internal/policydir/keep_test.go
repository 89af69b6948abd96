package policydir

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hawser-net/hawser/internal/policy"
	"github.com/hawser-net/hawser/internal/testenv"
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
	// A file that was removed while the agent was down is gone for good, its copy too.
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

// TestOutdatedCopyAllowsNothing: if the last good version could not be stored and the file is
// faulty at the next start, what the version before selects is isolated, as the last one may not
// have allowed what it did. That it cannot be stored is reported, until it is.
func TestOutdatedCopyAllowsNothing(t *testing.T) {
	t.Parallel()
	disk := testenv.NewSmallDisk(t)
	cfg := Defaults()
	cfg.Path, cfg.Keep, cfg.Poll = t.TempDir(), filepath.Join(disk.Path, "kept"), 50*time.Millisecond
	path := filepath.Join(cfg.Path, "web.yaml")
	write := func(content string) {
		t.Helper()
		if err := os.WriteFile(path+".tmp", []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".tmp", path); err != nil {
			t.Fatal(err)
		}
	}
	write(keptPolicy)
	reports := make(chan error, 100)
	cfg.Unkept = func(err error) { reports <- err }
	said := func(what string, want bool) {
		t.Helper()
		select {
		case err := <-reports:
			if (err != nil) != want || err != nil && !strings.Contains(err.Error(), "web.yaml") {
				t.Errorf("%s: reported is %v", what, err)
			}
		case <-time.After(20 * time.Second):
			t.Errorf("%s: nothing is reported", what)
		}
	}
	d, changes, _ := follow(t, cfg)
	expect(t, changes, "web.yaml/default/web")
	said("the first version", false)
	disk.Fill()
	write(strings.Replace(keptPolicy, "app: front", "app: other", 1))
	expect(t, changes, "web.yaml/default/web")
	said("a full disk", true)
	write("spec: [")
	testenv.Eventually(t, 20*time.Second, func() string {
		if list, _ := d.Status(); len(list) != 1 || list[0].Err == nil {
			return "the faulty version has not been read"
		}
		return ""
	})

	again := cfg
	again.Unkept = nil
	next, err := New(again, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	if err := next.Run(ctx, func(changes []policy.Change) {
		defer cancel()
		if len(changes) != 1 || len(changes[0].Rules) != 1 || len(changes[0].Rules[0].Clauses) != 1 {
			t.Fatalf("after a restart: %+v", changes)
		}
		if r := changes[0].Rules[0]; len(r.Clauses[0].Ports) > 0 || len(r.Faults) != 1 {
			t.Errorf("after a restart an earlier version is in force: %+v", r)
		}
	}); err != nil {
		t.Fatal(err)
	}
	if list, _ := next.Status(); len(list) != 1 || list[0].Err == nil || !strings.Contains(list[0].Err.Error(), "isolated") {
		t.Errorf("after a restart the status is %+v", list)
	}

	write(strings.Replace(keptPolicy, "app: front", "app: third", 1))
	expect(t, changes, "web.yaml/default/web")
	disk.Free()
	said("there is room again", false)
	write("spec: [")
	if owners, _ := firstApply(t, again); len(owners) != 1 {
		t.Errorf("in force are %v", owners)
	}
}
