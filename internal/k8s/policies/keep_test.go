package policies_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/k8s/policies"
	"github.com/hawser-net/hawser/internal/policy"
	"github.com/hawser-net/hawser/internal/testenv"
)

// loaded returns the owners of the policies that a new agent finds on disk.
func loaded(t *testing.T, c *cluster, cfg policies.Config) (*policies.Policies, []policy.Owner, map[policy.Owner][]*policy.Rule) {
	t.Helper()
	p, err := policies.New(cfg, c.client, slog.New(slog.NewTextHandler(t.Output(), nil)))
	if err != nil {
		t.Fatal(err)
	}
	owners, rules := []policy.Owner{}, map[policy.Owner][]*policy.Rule{}
	for _, ch := range p.LoadStored() {
		owners = append(owners, ch.Owner)
		rules[ch.Owner] = ch.Rules
	}
	return p, owners, rules
}

// run has a part follow the server until stop is called.
func run(t *testing.T, p *policies.Policies) (f *force, stop func()) {
	t.Helper()
	f = &force{rules: map[policy.Owner][]*policy.Rule{}, delivered: make(chan struct{}, 1)}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx, f.apply) }()
	return f, func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// TestStoredPolicies: policies survive the agent. What happened to the objects meanwhile counts as
// soon as the server is observed: of one that is faulty now what can be enforced is in force, one
// that is gone goes.
func TestStoredPolicies(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	cnp := `{apiVersion: policy.networking.k8s.io/v1alpha2, kind: ClusterNetworkPolicy, metadata: {name: tier}, spec: {tier: Admin, priority: 1, subject: {namespaces: {}}, ingress: [{name: x, action: Deny, from: [{namespaces: {}}]}]}}`
	for _, m := range []string{denyAll, web, all} {
		c.mustApply(m)
	}
	cfg := policies.Defaults()
	cfg.Keep = filepath.Join(t.TempDir(), "policies")
	owners := []policy.Owner{"k8s/CiliumClusterwideNetworkPolicy/all", "k8s/CiliumNetworkPolicy/a/web", "k8s/NetworkPolicy/a/deny"}
	if c.apply(cnp) == nil {
		owners = append(owners[:2:2], "k8s/ClusterNetworkPolicy/tier", owners[2])
	}

	p, none, _ := loaded(t, c, cfg)
	if len(none) > 0 {
		t.Fatalf("an empty directory holds %v", none)
	}
	f, stop := run(t, p)
	f.until(t, has(owners...))
	stop()
	first := f.rules

	// The agent is gone: one policy becomes faulty, one goes.
	l7 := strings.Replace(web, "fromEndpoints: []", `toPorts: [{ports: [{port: "80", protocol: TCP}], rules: {http: [{method: GET}]}}]`, 1)
	c.mustApply(l7)
	c.remove("NetworkPolicy", "a", "deny")
	p, got, rules := loaded(t, c, cfg)
	if diff := cmp.Diff(owners, got); diff != "" {
		t.Fatalf("loaded (-want +got):\n%s", diff)
	}
	for o := range first {
		if len(rules[o]) != len(first[o]) || rules[o][0].DefaultDeny != first[o][0].DefaultDeny || len(rules[o][0].Clauses) != len(first[o][0].Clauses) {
			t.Errorf("%s is loaded as %+v, was %+v", o, rules[o][0], first[o][0])
		}
	}
	for _, s := range p.Status() {
		if !s.InForce || s.Rules == 0 || s.Loaded.IsZero() {
			t.Errorf("the status of a loaded policy is %+v", s)
		}
	}
	faulty := func(rules map[policy.Owner][]*policy.Rule) error {
		for _, s := range p.Status() {
			if s.Owner == "k8s/CiliumNetworkPolicy/a/web" && (s.Err == nil || !s.InForce) {
				return fmt.Errorf("the faulty policy has the status %+v", s)
			}
		}
		return has(owners[:len(owners)-1]...)(rules)
	}
	f, stop = run(t, p)
	f.until(t, faulty)
	stop()
	if !slices.ContainsFunc(f.batches[0], func(ch policy.Change) bool { return ch.Owner == "k8s/NetworkPolicy/a/deny" && len(ch.Rules) == 0 }) {
		t.Error("the first batch does not take the policy away that is gone")
	}

	// A second restart finds it so, too: faulty, and isolating.
	if p, got, rules = loaded(t, c, cfg); cmp.Diff(owners[:len(owners)-1], got) != "" {
		t.Fatalf("at the second restart %v are loaded", got)
	}
	if r := rules["k8s/CiliumNetworkPolicy/a/web"]; len(r) != 1 || len(r[0].Faults) != 1 || !r[0].DefaultDeny[datapath.Ingress] || len(r[0].Clauses[0].Ports) > 0 {
		t.Errorf("the faulty policy is loaded as %+v", r)
	}
	if err := faulty(rules); err != nil {
		t.Error(err)
	}
	f, stop = run(t, p)
	f.until(t, faulty)
	stop()
}

// TestStoredPoliciesDamaged: copies that are damaged in any way are left out and removed; the
// others are loaded.
func TestStoredPoliciesDamaged(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	for _, m := range []string{denyAll, web, all} {
		c.mustApply(m)
	}
	cfg := policies.Defaults()
	cfg.Keep = filepath.Join(t.TempDir(), "policies")
	p, _, _ := loaded(t, c, cfg)
	f, stop := run(t, p)
	f.until(t, has("k8s/NetworkPolicy/a/deny", "k8s/CiliumNetworkPolicy/a/web", "k8s/CiliumClusterwideNetworkPolicy/all"))
	stop()
	files, err := filepath.Glob(filepath.Join(cfg.Keep, "*"))
	if err != nil || len(files) != 3 {
		t.Fatalf("kept are %v, %v", files, err)
	}
	for i, path := range files[:2] {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			text = text[:len(text)-1]
		} else {
			text = []byte(strings.Replace(string(text), "ingress", "egress_", 1))
			text[len(text)-2] ^= 1
		}
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	// A good copy under a name that is not its own, and half of one.
	good, err := os.ReadFile(files[2])
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"00.policy", "x.policy.tmp"} {
		if err := os.WriteFile(filepath.Join(cfg.Keep, name), good, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, got, _ := loaded(t, c, cfg); len(got) != 1 {
		t.Errorf("loaded %v, want one", got)
	}
	if left, _ := filepath.Glob(filepath.Join(cfg.Keep, "*")); len(left) != 1 || left[0] != files[2] {
		t.Errorf("left are %v, want %s", left, files[2])
	}
}

// TestStoredPoliciesDiskFull: a version that cannot be stored leaves none before it for the next
// agent. It is reported, and stored when there is room.
func TestStoredPoliciesDiskFull(t *testing.T) {
	t.Parallel()
	disk := testenv.NewSmallDisk(t)
	c := newCluster(t)
	c.mustApply(web)
	cfg := policies.Defaults()
	cfg.Keep = filepath.Join(disk.Path, "policies")
	var last atomic.Value
	cfg.Unkept = func(err error) { last.Store(fmt.Sprint(err)) }
	p, _, _ := loaded(t, c, cfg)
	f, stop := run(t, p)
	f.until(t, has("k8s/CiliumNetworkPolicy/a/web"))
	disk.Fill()
	c.mustApply(strings.Replace(web, "fromEndpoints: []", "fromEntities: [host]", 1))
	said := func(text string) {
		t.Helper()
		testenv.Eventually(t, time.Minute, func() string {
			if is, _ := last.Load().(string); !strings.Contains(is, text) {
				return fmt.Sprintf("reported is %q, want %q", is, text)
			}
			return ""
		})
	}
	said("k8s/CiliumNetworkPolicy/a/web")
	again := cfg
	again.Unkept = nil
	if _, got, rules := loaded(t, c, again); len(got) > 0 {
		t.Errorf("a full disk: a version of before is loaded: %+v", rules)
	}
	disk.Free()
	said("<nil>")
	stop()
	_, got, rules := loaded(t, c, again)
	if len(got) != 1 || len(rules[got[0]]) != 1 || len(rules[got[0]][0].Clauses) != 1 || len(rules[got[0]][0].Clauses[0].Peers) == 0 {
		t.Errorf("there is room: loaded are %v, %+v", got, rules)
	}
}
