package endpoint_test

import (
	"errors"
	"testing"

	. "github.com/hawser-net/hawser/internal/endpoint"
	"github.com/hawser-net/hawser/internal/labels"
)

// emptied makes the kernel's maps new, as another layout or an emptied BPF file system does.
func (m *machine) emptied() {
	for i := range m.endpoints() {
		_ = m.kernel.Maps.DeleteEndpoint(i)
	}
	for id := range m.sets() {
		_ = m.kernel.Maps.DeleteRuleSet(id)
	}
}

// TestNewMapsBeforeRules: an endpoint that the kernel's maps do not know is locked until everything
// has been observed, whatever is done to it before.
func TestNewMapsBeforeRules(t *testing.T) {
	t.Parallel()
	m, dir := newMachine(), t.TempDir()
	p := started(t, m, dir)
	if err := setRules(t, p.policy, "a", allowPorts("web", 80, 3)); err != nil {
		t.Fatal(err)
	}
	row := p.mustCreateApp(1, "web")
	if k := m.row(row); k.Locked || !m.sets()[k.RuleSet].IngressEnforced {
		t.Fatalf("before the restart: %+v", k)
	}
	m.emptied()
	p = boot(t, m, dir)
	if err := p.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n, err := p.Resume(t.Context()); err != nil || n != 1 {
		t.Fatal(n, err)
	}
	locked := func(when string) {
		t.Helper()
		if k := m.row(row); !k.Locked || len(m.sets()) > 0 {
			t.Fatalf("%s: the kernel has the row %+v and %d rule sets, want a locked row and none", when, k, len(m.sets()))
		}
	}
	locked("resumed")
	if err := p.Reacquire(t.Context()); err != nil {
		t.Fatal(err)
	}
	locked("with its identity again")
	if _, err := p.SetLabels(t.Context(), row.ID, labels.NewSet(labels.New(labels.SourceK8s, "tier", "front")), nil); err != nil {
		t.Fatal(err)
	}
	locked("with another label")
	if err := p.policy.Retry(); err != nil {
		t.Fatal(err)
	}
	locked("tried again")

	// A second start finds the locked row, and leaves it so.
	p = boot(t, m, dir)
	if err := p.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	locked("resumed again")
	if err := setRules(t, p.policy, "a", allowPorts("web", 80, 3)); err != nil {
		t.Fatal(err)
	}
	p.policy.Observed()
	locked("before addresses are known")
	if err := p.Reacquire(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := p.policy.Synced(); err != nil {
		t.Fatal(err)
	}
	if k := m.row(row); k.Locked || !m.sets()[k.RuleSet].IngressEnforced {
		t.Fatalf("when everything has been observed: %+v", k)
	}
	p.audit("at the end")
}

// TestNothingOpensBeforeRules: before the rules have been observed a new endpoint has the rule set
// that another of the same identity has from before, or is not made at all, and a changed one keeps
// the rule set that it had.
func TestNothingOpensBeforeRules(t *testing.T) {
	t.Parallel()
	m, dir := newMachine(), t.TempDir()
	p := started(t, m, dir)
	if err := setRules(t, p.policy, "a", allowPorts("web", 80, 3)); err != nil {
		t.Fatal(err)
	}
	web := p.mustCreateApp(1, "web")
	before := m.row(web)

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
	same := p.mustCreateApp(2, "web")
	if k := m.row(same); k.Locked || k.RuleSet != before.RuleSet || k.PolicyGeneration <= before.PolicyGeneration {
		t.Errorf("a second web has %+v, want the rule set of the first, which has %+v", k, before)
	}
	other := p.plug(3)
	if _, err := p.Create(t.Context(), namespaced(other, "other")); !errors.Is(err, ErrNotObserved) {
		t.Errorf("an endpoint of another identity was made, %v", err)
	}
	for _, ip := range other.Addresses() {
		fakeAddresses{m}.Free(ip)
	}
	if _, err := p.SetLabels(t.Context(), web.ID, labels.NewSet(labels.New(labels.SourceK8s, "tier", "front")), nil); err != nil {
		t.Fatal(err)
	}
	web, _ = p.registry.Get(web.ID)
	if k := m.row(web); k.Locked || k.RuleSet != before.RuleSet || k.Identity != uint32(web.Identity) || k.Identity == before.Identity {
		t.Errorf("the first web has %+v after a change of its labels", k)
	}
	if err := setRules(t, p.policy, "a", allowPorts("web", 80, 3)); err != nil {
		t.Fatal(err)
	}
	p.policy.Observed()
	third := p.mustCreateApp(3, "other")
	if k := m.row(third); k.Locked || m.sets()[k.RuleSet].IngressEnforced {
		t.Errorf("another endpoint, when the rules have been observed, has %+v", k)
	}
	if err := p.policy.Synced(); err != nil {
		t.Fatal(err)
	}
	for _, row := range []Endpoint{web, same} {
		if k := m.row(row); k.Locked || !m.sets()[k.RuleSet].IngressEnforced {
			t.Errorf("in the end endpoint %d has %+v", row.ID, k)
		}
	}
	p.audit("at the end")
}

// TestRulesObserved: with the rules known, and identities not, a new endpoint is made with its own
// rules, unless some endpoint's rules deny: whom they mean is not known.
func TestRulesObserved(t *testing.T) {
	t.Parallel()
	restarted := func(rules string) (*machine, *process) {
		m, dir := newMachine(), t.TempDir()
		p := started(t, m, dir)
		if err := setRules(t, p.policy, "a", rules); err != nil {
			t.Fatal(err)
		}
		p.mustCreateApp(1, "web")
		p = boot(t, m, dir)
		if err := p.Load(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := p.Resume(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := setRules(t, p.policy, "a", rules); err != nil {
			t.Fatal(err)
		}
		return m, p
	}
	const allow = "  endpointSelector: {}\n  ingress: [{fromEndpoints: [{matchLabels: {app: friend}}]}]\n"
	m, p := restarted(allow)
	if _, err := p.Create(t.Context(), namespaced(p.plug(2), "early")); !errors.Is(err, ErrNotObserved) {
		t.Errorf("before the rules are known an endpoint was made, %v", err)
	}
	p.policy.RulesObserved()
	if k := m.row(p.mustCreateApp(3, "new")); k.Locked || !m.sets()[k.RuleSet].IngressEnforced {
		t.Errorf("with the rules known a new endpoint has %+v", k)
	}

	_, p = restarted("  endpointSelector: {matchLabels: {app: web}}\n  ingress: [{fromEntities: [all]}]\n" +
		"  ingressDeny: [{fromEndpoints: [{matchLabels: {app: evil}}]}]\n")
	p.policy.RulesObserved()
	if _, err := p.Create(t.Context(), namespaced(p.plug(2), "evil")); !errors.Is(err, ErrNotObserved) {
		t.Errorf("an endpoint was made whom another one may deny, %v", err)
	}
}
