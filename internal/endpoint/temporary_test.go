package endpoint_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	. "github.com/hawser-net/hawser/internal/endpoint"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/labels"
	"github.com/hawser-net/hawser/internal/policy"
)

// TestTemporaryIdentity is "Temporary ID" and "Review discussion 1" of CFP-27752, without a kernel:
// an endpoint begins without an ID, is evaluated by the rules of its labels, is not announced under
// its temporary one, and gets the cluster's in one write.
func TestTemporaryIdentity(t *testing.T) {
	t.Parallel()
	m, dir := newMachine(), t.TempDir()
	p := started(t, m, dir)
	if err := setRules(t, p.policy, "web", allowPorts("web", 80, 2)); err != nil {
		t.Fatal(err)
	}
	m.withheld = true
	first, err := p.Create(t.Context(), namespaced(p.plug(1), "web"))
	if err != nil {
		t.Fatal(err)
	}
	second, err := p.Create(t.Context(), namespaced(p.plug(2), "web"))
	if err != nil {
		t.Fatal(err)
	}
	if !first.Identity.IsTemporary() || first.Identity != second.Identity || first.Seen() != identity.Init {
		t.Errorf("two endpoints of the same labels have %s and %s, seen as %s", first.Identity, second.Identity, first.Seen())
	}
	before := m.endpoints()[first.IfIndex]
	if rs := m.sets()[before.RuleSet]; !rs.IngressEnforced || len(rs.Entries) == 0 {
		t.Errorf("the endpoint's own policy is not enforced: %+v", rs)
	}
	// The rules allow the very labels that the endpoints have; their temporary ID is in no
	// entry all the same (see audit).
	p.audit("with temporary identities")

	if waiting, err := p.ReplaceTemporary(t.Context()); waiting.Endpoints != 2 || err != nil {
		t.Errorf("nothing to replace yet: %+v, %v", waiting, err)
	}
	p = boot(t, m, dir)
	if err := setRules(t, p.policy, "web", allowPorts("web", 80, 2)); err != nil {
		t.Fatal(err)
	}
	p.restore()
	for _, row := range p.registry.List() {
		if row.Identity != first.Identity || row.State != StateReady {
			t.Errorf("after a restart endpoint %d is %s with %s", row.ID, row.State, row.Identity)
		}
	}
	if now := m.endpoints()[first.IfIndex]; !now.Same(before) {
		t.Errorf("a restart has changed the kernel row %+v to %+v", before, now)
	}
	p.audit("after a restart")

	m.withheld, m.writes = false, nil
	before = m.endpoints()[first.IfIndex]
	if waiting, err := p.ReplaceTemporary(t.Context()); waiting.Endpoints != 0 || err != nil {
		t.Errorf("%+v still wait: %v", waiting, err)
	}
	p.audit("with the cluster's identity")
	now := m.endpoints()[first.IfIndex]
	rows := 0
	for _, w := range m.writes {
		var id, ruleSet int
		if n, _ := fmt.Sscanf(w, "endpoint %d ruleset %d", &id, &ruleSet); n == 2 && id == int(first.ID) {
			rows++
		}
	}
	if rows != 1 || now.RuleSet != before.RuleSet || now.Identity != uint32(m.numbers[first.IdentityLabels.String()]) {
		t.Errorf("row %+v became %+v in %d writes, want one with the same rule set: %q", before, now, rows, m.writes)
	}
	if m.temporary.Len() != 0 {
		t.Errorf("%d temporary identities are still taken", m.temporary.Len())
	}
}

// TestTemporaryRelabel is "Label changes: Pod" of CFP-27752: new rules at once, the old ID for
// all others until there is another one.
func TestTemporaryRelabel(t *testing.T) {
	t.Parallel()
	m, dir := newMachine(), t.TempDir()
	p := started(t, m, dir)
	row, err := p.Create(t.Context(), namespaced(p.plug(1), "web"))
	if err != nil {
		t.Fatal(err)
	}
	known := row.Identity
	m.withheld = true
	tier := func(v string) labels.Set { return labels.NewSet(labels.New(labels.SourceK8s, "tier", v)) }
	var last identity.ID
	for _, v := range []string{"a", "b"} {
		if row, err = p.SetLabels(t.Context(), row.ID, tier(v), nil); err != nil {
			t.Fatal(err)
		}
		if !row.Identity.IsTemporary() || row.Identity == last || row.Seen() != known {
			t.Errorf("tier %s: identity %s, seen as %s; want another temporary one, seen as %s", v, row.Identity, row.Seen(), known)
		}
		last = row.Identity
		p.audit("tier " + v)
		p = started(t, m, dir)
		p.audit("restart with tier " + v)
		if row, _ = p.registry.Get(row.ID); row.Seen() != known {
			t.Errorf("after a restart it is seen as %s", row.Seen())
		}
	}
	// Its ID becomes known; the others are given time to observe it.
	p = started(t, m, dir, func(c *Config) { c.PropagationDelay = time.Second })
	m.withheld = false
	for step, want := range []Waiting{{1, time.Second}, {1, time.Second / 2}, {}} {
		if waiting, err := p.ReplaceTemporary(t.Context()); err != nil || waiting != want {
			t.Errorf("step %d: %+v, %v, want %+v", step, waiting, err, want)
		}
		p.audit("waiting for the others")
		p.clock = p.clock.Add(time.Second / 2)
	}
	if row, _ = p.registry.Get(row.ID); row.Identity.IsTemporary() || row.Identity == known || row.Seen() != row.Identity {
		t.Errorf("replaced by %s, seen as %s", row.Identity, row.Seen())
	}
	// Back to labels whose ID is known.
	if row, err = p.SetLabels(t.Context(), row.ID, nil, nil); err != nil || row.Identity != known || row.Known != 0 {
		t.Errorf("back to the old labels: %s (known %d), %v", row.Identity, row.Known, err)
	}
	p.audit("at the end")
}

// TestPropagationDelayOfEachChange: the others are given time to observe an identity at every
// change of labels, also at one that comes while the last one's identity is waited for; and no more
// than that, if only the ports change meanwhile.
func TestPropagationDelayOfEachChange(t *testing.T) {
	t.Parallel()
	m, dir := newMachine(), t.TempDir()
	p := started(t, m, dir, func(c *Config) { c.PropagationDelay = time.Second })
	row, err := p.Create(t.Context(), namespaced(p.plug(1), "web"))
	if err != nil {
		t.Fatal(err)
	}
	known := row.Identity
	relabel := func(tier string) {
		t.Helper()
		m.withheld = true // the ID of these labels is not known yet
		if _, err := p.SetLabels(t.Context(), row.ID, labels.NewSet(labels.New(labels.SourceK8s, "tier", tier)), nil); err != nil {
			t.Fatal(err)
		}
		m.withheld = false
	}
	replace := func(want time.Duration) {
		t.Helper()
		w, err := p.ReplaceTemporary(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if w.Next != want {
			t.Errorf("due in %s, not in %s", w.Next, want)
		}
		if row, _ = p.registry.Get(row.ID); row.Identity.IsTemporary() != (want > 0) || want > 0 && row.Seen() != known {
			t.Errorf("identity %s, seen as %s, with %s to go; known before: %s", row.Identity, row.Seen(), want, known)
		}
	}
	relabel("a")
	replace(time.Second)
	p.clock = p.clock.Add(900 * time.Millisecond)
	relabel("b")
	p.clock = p.clock.Add(10 * time.Second)
	replace(time.Second)
	p.clock = p.clock.Add(600 * time.Millisecond)
	m.withheld = true
	if _, err := p.SetWorkload(t.Context(), row.ID, row.Labels, []policy.NamedPort{{Name: "http", Port: 80, Proto: 6}}); err != nil {
		t.Fatal(err)
	}
	m.withheld = false
	replace(400 * time.Millisecond)
	p.clock = p.clock.Add(400 * time.Millisecond)
	replace(0)
}

// TestTemporaryRace has the ID appear while endpoints are made and relabelled: none is left
// behind.
func TestTemporaryRace(t *testing.T) {
	t.Parallel()
	m := newMachine()
	p := started(t, m, t.TempDir())
	m.withheld = true
	done := make(chan struct{})
	go func() {
		defer close(done)
		for n := 1; n <= 8; n++ {
			row, err := p.Create(context.Background(), namespaced(p.plug(n), "web"))
			if err == nil {
				_, err = p.SetLabels(context.Background(), row.ID, labels.NewSet(labels.New(labels.SourceK8s, "n", fmt.Sprint(n%2))), nil)
			}
			if err != nil {
				t.Error(err)
			}
			if n == 4 {
				m.mu.Lock()
				m.withheld = false
				m.mu.Unlock()
			}
		}
	}()
	for running := true; running; {
		select {
		case <-done:
			running = false
		default:
		}
		if _, err := p.ReplaceTemporary(t.Context()); err != nil {
			t.Error(err)
		}
	}
	for _, row := range p.registry.List() {
		if row.Identity.IsTemporary() {
			t.Errorf("endpoint %d still has %s", row.ID, row.Identity)
		}
	}
	p.audit("at the end")
}

// TestReplaceTemporaryFails puts an endpoint back to its temporary identity when the replacement
// fails at any of its operations.
func TestReplaceTemporaryFails(t *testing.T) {
	t.Parallel()
	for _, op := range []string{"Acquire", "Place", "UpsertEndpoint", "EnsureEndpoint"} {
		m := newMachine()
		p := started(t, m, t.TempDir())
		m.withheld = true
		row := p.mustCreate(1)
		m.withheld = false
		failures := 1
		if op == "UpsertEndpoint" {
			failures = 2 // it is tried again at once
		}
		m.fault = func(o string) error {
			if o == op && failures > 0 {
				failures--
				return errInjected
			}
			return nil
		}
		if waiting, err := p.ReplaceTemporary(t.Context()); waiting.Endpoints != 1 || err == nil {
			t.Errorf("%s fails: %+v wait, %v", op, waiting, err)
		}
		if now, _ := p.registry.Get(row.ID); now.Identity != row.Identity {
			t.Errorf("%s fails: the endpoint has %s, it had %s", op, now.Identity, row.Identity)
		}
		p.audit(op + " failed")
		if waiting, err := p.ReplaceTemporary(t.Context()); waiting.Endpoints != 0 || err != nil {
			t.Errorf("after %s: %+v wait, %v", op, waiting, err)
		}
		p.audit("after " + op)
	}
}

// TestTemporaryIsNoPeer has a rule allow the labels of an endpoint with a temporary identity,
// as peers: it is not among them, its like with an ID is: "Review discussion 1" of CFP-27752.
func TestTemporaryIsNoPeer(t *testing.T) {
	t.Parallel()
	m := newMachine()
	p := started(t, m, t.TempDir())
	spec := "  endpointSelector: {}\n  ingress:\n  - fromEndpoints: [{matchLabels: {app: web}}]\n  - fromEntities: [cluster]\n"
	if err := setRules(t, p.policy, "all", spec); err != nil {
		t.Fatal(err)
	}
	m.withheld = true
	row := p.mustCreateApp(1, "web")
	if err := p.policy.SetIdentities(map[identity.ID]labels.Set{300: row.IdentityLabels}, nil); err != nil {
		t.Fatal(err)
	}
	p.audit("with a peer of the same labels") // no entry of a temporary ID
	allowed := map[identity.ID]bool{}
	for key := range m.sets()[m.row(row).RuleSet].Entries {
		allowed[identity.ID(key.Identity)] = true
	}
	if !allowed[300] || !allowed[identity.Init] { // init is one of the cluster
		t.Errorf("the rules allow %v", allowed)
	}
	p.policy.View(func(e *policy.Engine) {
		if _, known := e.Labels(row.Identity); known {
			t.Errorf("%s is known as a peer", row.Identity)
		}
		for _, s := range e.Selectors() {
			for _, id := range s.Identities {
				if id.IsTemporary() {
					t.Errorf("selector %s selects %s", s.Selector, id)
				}
			}
		}
	})
	if _, err := p.Delete(row.ID); err != nil {
		t.Fatal(err)
	}
	m.kernel.Links.RemoveLink(row.IfIndex)
	p.audit("at the end")
}
