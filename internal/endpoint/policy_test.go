package endpoint_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/agent/enforcement"
	"github.com/hawser-net/hawser/internal/datapath"
	. "github.com/hawser-net/hawser/internal/endpoint"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/labels"
	"github.com/hawser-net/hawser/internal/policy"
)

// setRules puts a policy in the namespace of the test rows in force; text is its spec.
func setRules(t testing.TB, p *enforcement.Policy, owner, spec string) error {
	t.Helper()
	var rules []*policy.Rule
	if spec != "" {
		obj := &v2.CiliumNetworkPolicy{}
		text := "metadata: {name: p, namespace: ns}\nspec:\n" + spec
		if err := yaml.UnmarshalStrict([]byte(text), obj); err != nil {
			t.Fatal(err)
		}
		var err error
		if rules, err = policy.Parse(obj); err != nil {
			t.Fatal(err)
		}
	}
	return p.Change(func(e *policy.Engine) error { return e.SetRules(policy.Owner(owner), rules) })
}

// allowPorts is a spec by which app-1 is reached on ports from first on.
func allowPorts(app string, first, n int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "  endpointSelector: {matchLabels: {app: %s}}\n  ingress:\n", app)
	for i := range n {
		fmt.Fprintf(&b, "  - toPorts: [{ports: [{port: \"%d\", protocol: TCP}]}]\n", first+2*i)
	}
	return b.String()
}

// namespaced gives the test rows the labels of a pod in the namespace ns.
func namespaced(req CreateRequest, app string) CreateRequest {
	req.Labels, _ = labels.PodLabels(labels.Pod{Namespace: "ns", Labels: map[string]string{"app": app}, Cluster: "default"})
	return req
}

func (p *process) mustCreateApp(n int, app string) Endpoint {
	p.t.Helper()
	row, err := p.Create(p.t.Context(), namespaced(p.plug(n), app))
	if err != nil {
		p.t.Fatal(err)
	}
	return row
}

func (m *machine) takeWrites() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	w := m.writes
	m.writes = nil
	return w
}

// TestRestartWritesNothing: an agent that starts again and observes what the one before had
// observed leaves the kernel as it is, to the last row.
func TestRestartWritesNothing(t *testing.T) {
	t.Parallel()
	m, dir := newMachine(), t.TempDir()
	p := started(t, m, dir)
	for _, spec := range []struct{ owner, spec string }{{"a", allowPorts("web", 80, 3)}, {"b", allowPorts("db", 5432, 1)}} {
		if err := setRules(t, p.policy, spec.owner, spec.spec); err != nil {
			t.Fatal(err)
		}
	}
	for n := range 6 {
		p.mustCreateApp(n+1, []string{"web", "db", "other"}[n%3])
	}
	p.audit("before the restart")
	m.takeWrites()

	for round := range 3 {
		p = boot(t, m, dir)
		ctx := t.Context()
		if err := p.Load(ctx); err != nil {
			t.Fatal(err)
		}
		// The rules come at any moment: before the endpoints, between, or last.
		learn := func(at int) {
			if at == round {
				_ = setRules(t, p.policy, "a", allowPorts("web", 80, 3))
				_ = setRules(t, p.policy, "b", allowPorts("db", 5432, 1))
			}
		}
		learn(0)
		if n, err := p.Resume(ctx); err != nil || n != 6 {
			t.Fatalf("resumed %d endpoints, %v", n, err)
		}
		learn(1)
		if err := p.Reacquire(ctx); err != nil {
			t.Fatal(err)
		}
		learn(2)
		if err := p.policy.Synced(); err != nil {
			t.Fatal(err)
		}
		if w := m.takeWrites(); len(w) > 0 {
			t.Errorf("restart %d wrote to the kernel:\n  %s", round, strings.Join(w, "\n  "))
		}
		p.audit(fmt.Sprintf("after restart %d", round))
	}
}

// TestRestartWithOtherRules: what changed while no agent ran is put in force once everything was
// observed, and not before, and flows are evaluated again.
func TestRestartWithOtherRules(t *testing.T) {
	t.Parallel()
	m, dir := newMachine(), t.TempDir()
	p := started(t, m, dir)
	if err := setRules(t, p.policy, "a", allowPorts("web", 80, 1)); err != nil {
		t.Fatal(err)
	}
	row := p.mustCreateApp(1, "web")
	before := m.row(row)
	m.takeWrites()

	p = boot(t, m, dir)
	if err := p.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := p.Reacquire(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := setRules(t, p.policy, "a", allowPorts("web", 443, 1)); err != nil {
		t.Fatal(err)
	}
	if got := m.row(row); !got.Same(before) {
		t.Errorf("the row changed before everything was observed: %+v", got)
	}
	if err := p.policy.Synced(); err != nil {
		t.Fatal(err)
	}
	after := m.row(row)
	if after.RuleSet == before.RuleSet || after.PolicyGeneration <= before.PolicyGeneration {
		t.Errorf("row %+v became %+v: want another rule set and a newer generation", before, after)
	}
	w := m.takeWrites()
	if len(w) != 3 || !strings.HasPrefix(w[0], "install") || !strings.HasPrefix(w[1], "endpoint") || !strings.HasPrefix(w[2], "delete ruleset") {
		t.Errorf("writes %q: want the new rule set, the row, the removal of the old", w)
	}
	p.audit("at the end")
}

// TestNoRuleSetIsBorrowed: before everything was observed a rule set may for a moment look like
// another that a restored endpoint is evaluated by, and must not become one with it.
func TestNoRuleSetIsBorrowed(t *testing.T) {
	t.Parallel()
	m, dir := newMachine(), t.TempDir()
	p := started(t, m, dir)
	rules := func(p *process) {
		// db admits peer-1 only; web admits peer-1 and peer-2.
		if err := errors.Join(
			setRules(t, p.policy, "web", "  endpointSelector: {matchLabels: {app: web}}\n  ingress: [{fromEndpoints: [{matchExpressions: [{key: peer, operator: Exists}]}]}]\n"),
			setRules(t, p.policy, "db", "  endpointSelector: {matchLabels: {app: db}}\n  ingress: [{fromEndpoints: [{matchLabels: {peer: \"1\"}}]}]\n"),
		); err != nil {
			t.Fatal(err)
		}
	}
	peer := func(p *process, n int) {
		set, err := labels.PodLabels(labels.Pod{Namespace: "ns", Labels: map[string]string{"peer": fmt.Sprint(n)}, Cluster: "default"})
		if err != nil {
			t.Fatal(err)
		}
		if err := p.policy.SetIdentities(map[identity.ID]labels.Set{identity.ID(1000 + n): set}, nil); err != nil {
			t.Fatal(err)
		}
	}
	rules(p)
	peer(p, 1)
	peer(p, 2)
	db := p.mustCreateApp(1, "db")
	p.mustCreateApp(2, "web")
	before := m.row(db)

	p = boot(t, m, dir)
	if err := p.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	rules(p)
	peer(p, 1)
	// A pod that is new now is evaluated by what is known, and its rules grow with it.
	p.mustCreateApp(3, "web")
	peer(p, 2)
	key := datapath.PolicyKey{Identity: 1002}
	_, wrong := m.sets()[before.RuleSet].Entries[key]
	if wrong {
		t.Error("the rule set of db admits what only web may")
	}
	if err := p.Reacquire(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := p.policy.Synced(); err != nil {
		t.Fatal(err)
	}
	p.audit("at the end")
}

// TestOrderOfWrites: a rule change reaches the kernel as install, bind, remove.
func TestOrderOfWrites(t *testing.T) {
	t.Parallel()
	m := newMachine()
	p := started(t, m, t.TempDir())
	for n := range 3 {
		p.mustCreateApp(n+1, "web")
	}
	m.takeWrites()
	for i := range 5 {
		if err := setRules(t, p.policy, "a", allowPorts("web", 80+i, 1+i%2)); err != nil {
			t.Fatal(err)
		}
		w := m.takeWrites()
		kinds := make([]string, len(w))
		for i, s := range w {
			kinds[i], _, _ = strings.Cut(s, " ")
		}
		if want := []string{"install", "endpoint", "endpoint", "endpoint", "delete"}; !slices.Equal(kinds, want) {
			t.Fatalf("change %d was written as %q, want %q", i, w, want)
		}
	}
	p.audit("at the end")
}

// TestOverflowFailsClosed: an endpoint whose rules do not fit drops everything and says so, others
// are not touched, and it comes back by itself when there is room.
func TestOverflowFailsClosed(t *testing.T) {
	t.Parallel()
	m := newMachine()
	p := started(t, m, t.TempDir())
	web, other := p.mustCreateApp(1, "web"), p.mustCreateApp(2, "other")
	m.kernel.Maps.SetPolicyRoom(10)
	err := setRules(t, p.policy, "a", allowPorts("web", 1000, 20))
	if !errors.Is(err, datapath.ErrFull) {
		t.Fatalf("error %v, want one that wraps ErrFull", err)
	}
	if k := m.row(web); !k.Locked {
		t.Errorf("the endpoint without rules has the row %+v, want it locked", k)
	}
	if k := m.row(other); k.Locked {
		t.Error("an endpoint that has its rules is locked, too")
	}
	if _, err := p.Create(t.Context(), namespaced(p.plug(3), "web")); !errors.Is(err, datapath.ErrFull) {
		t.Errorf("a pod whose rules do not fit was created: %v", err)
	}
	if err := p.policy.Retry(); !errors.Is(err, datapath.ErrFull) {
		t.Errorf("a retry without room: %v", err)
	}
	m.kernel.Maps.SetPolicyRoom(100)
	if err := p.policy.Retry(); err != nil {
		t.Errorf("a retry with room: %v", err)
	}
	if k := m.row(web); k.Locked {
		t.Error("the endpoint is still locked after the retry")
	}
	for _, ip := range RowOf(3).Addresses() { // the plugin's, after the refusal
		fakeAddresses{m}.Free(ip)
	}
	p.audit("at the end")
}

// TestDeltaFailureFailsClosed: a live rule set that cannot be changed as the cluster asks is
// written anew, and if that fails, too, its endpoints are locked rather than left with a mixture.
func TestDeltaFailureFailsClosed(t *testing.T) {
	t.Parallel()
	m := newMachine()
	p := started(t, m, t.TempDir())
	if err := setRules(t, p.policy, "a", "  endpointSelector: {matchLabels: {app: web}}\n  ingress: [{fromEndpoints: [{matchLabels: {app: front}}]}]\n"); err != nil {
		t.Fatal(err)
	}
	web := p.mustCreateApp(1, "web")
	set, _ := labels.PodLabels(labels.Pod{Namespace: "ns", Labels: map[string]string{"app": "front"}, Cluster: "default"})
	add := func() error { return p.policy.SetIdentities(map[identity.ID]labels.Set{2000: set}, nil) }

	m.fault = func(op string) error {
		if op == "UpdateRuleSet" {
			return errInjected
		}
		return nil
	}
	if err := add(); err != nil {
		t.Errorf("a change that could be written anew failed: %v", err)
	}
	p.audit("after the rewrite")

	m.fault = func(op string) error {
		if op == "UpdateRuleSet" || op == "InstallRuleSet" {
			return errInjected
		}
		return nil
	}
	if err := p.policy.SetIdentities(nil, []identity.ID{2000}); !errors.Is(err, errInjected) {
		t.Errorf("error %v, want the injected one", err)
	}
	if k := m.row(web); !k.Locked {
		t.Error("the endpoint of a mixed rule set is not locked")
	}
	m.fault = func(string) error { return nil }
	if err := p.policy.Retry(); err != nil {
		t.Error(err)
	}
	p.audit("after the retry")
}

// TestDetachThatFailsIsRetried: a kernel row that could not be removed drops everything at least,
// and goes with the next retry.
func TestDetachThatFailsIsRetried(t *testing.T) {
	t.Parallel()
	m := newMachine()
	p := started(t, m, t.TempDir())
	row := p.mustCreateApp(1, "web")
	m.fault = func(op string) error {
		if op == "DeleteEndpoint" {
			return errInjected
		}
		return nil
	}
	if failures, err := p.Delete(row.ID); failures != 1 || err != nil {
		t.Errorf("deleted with %d failures, %v; want 1", failures, err)
	}
	if k := m.row(row); !k.Locked {
		t.Errorf("the row that stays is %+v, want it locked", k)
	}
	m.fault = func(string) error { return nil }
	if err := p.policy.Retry(); err != nil {
		t.Error(err)
	}
	p.audit("after the retry")
}

// TestIncarnation: an endpoint is the same one, to whom its flows belong, whatever happens to it
// while it lives, and over restarts of the agent; another is never, not even with its ID,
// addresses and interface.
func TestIncarnation(t *testing.T) {
	t.Parallel()
	m, dir := newMachine(), t.TempDir()
	p := started(t, m, dir)
	row := p.mustCreateApp(1, "web")
	first := m.row(row).Incarnation
	if first == 0 {
		t.Fatal("the incarnation is 0")
	}
	same := func(after string) {
		t.Helper()
		if got := m.row(row).Incarnation; got != first {
			t.Errorf("after %s: incarnation %d, was %d", after, got, first)
		}
	}
	if err := setRules(t, p.policy, "a", allowPorts("web", 80, 1)); err != nil {
		t.Fatal(err)
	}
	same("other rules")
	if _, err := p.SetLabels(t.Context(), row.ID, labels.NewSet(labels.Label{Source: "k8s", Key: "app", Value: "db"}), nil); err != nil {
		t.Fatal(err)
	}
	same("other labels")
	p = started(t, m, dir)
	same("a restart")
	if err := setRules(t, p.policy, "a", allowPorts("web", 443, 1)); err != nil {
		t.Fatal(err)
	}
	same("other rules after a restart")

	seen, flows := map[uint32]bool{first: true}, []datapath.CTEntry{}
	for range 3 {
		if _, err := p.Delete(row.ID); err != nil {
			t.Fatal(err)
		}
		// What is remembered of packets outlives the row.
		flows = append(flows, datapath.CTEntry{SrcOwner: first})
		m.kernel.Maps.SetFlows(flows...)
		p = started(t, m, dir)
		row = p.mustCreateApp(1, "web")
		first = m.row(row).Incarnation
		if seen[first] {
			t.Errorf("incarnation %d was given out again", first)
		}
		seen[first] = true
	}
}

// TestGenerationsAreNotReused: a flow of an endpoint that is gone must not look evaluated to the
// next one with its address, not even after a restart.
func TestGenerationsAreNotReused(t *testing.T) {
	t.Parallel()
	m, dir := newMachine(), t.TempDir()
	p := started(t, m, dir)
	p.mustCreateApp(1, "web")
	last := p.mustCreateApp(2, "web")
	m.kernel.Maps.SetFlows(datapath.CTEntry{DstGeneration: last.Kernel.PolicyGeneration})
	if _, err := p.Delete(last.ID); err != nil {
		t.Fatal(err)
	}
	p = started(t, m, dir)
	again := p.mustCreateApp(2, "web")
	if again.Kernel.PolicyGeneration <= last.Kernel.PolicyGeneration {
		t.Errorf("generation %d was given out again as %d", last.Kernel.PolicyGeneration, again.Kernel.PolicyGeneration)
	}
}

// TestRuleSetIDsUsedUp: whoever needs a rule set when all IDs have been given is locked.
func TestRuleSetIDsUsedUp(t *testing.T) {
	t.Parallel()
	m, dir := newMachine(), t.TempDir()
	p := started(t, m, dir)
	web, db := p.mustCreateApp(1, "web"), p.mustCreateApp(2, "db")
	// One that an earlier agent has left.
	if err := m.kernel.Maps.InstallRuleSet(datapath.RuleSet{ID: datapath.MaxRuleSet - 1, Entries: map[datapath.PolicyKey]datapath.PolicyEntry{{Identity: 1}: {}}}); err != nil {
		t.Fatal(err)
	}
	p = started(t, m, dir)
	if err := setRules(t, p.policy, "a", allowPorts("web", 80, 1)); err != nil {
		t.Fatal(err)
	}
	if k := m.row(web); k.Locked || k.RuleSet != datapath.MaxRuleSet {
		t.Errorf("with the last ID the row is %+v", k)
	}
	if err := setRules(t, p.policy, "b", allowPorts("db", 80, 1)); err == nil {
		t.Error("a rule set without an ID is no error")
	}
	if k := m.row(db); !k.Locked || k.RuleSet != 0 {
		t.Errorf("without an ID the row is %+v", k)
	}
	if k := m.row(web); k.Locked {
		t.Errorf("the other one's row is %+v", k)
	}
}
