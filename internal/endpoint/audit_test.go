package endpoint_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/hawser-net/hawser/internal/datapath"
	. "github.com/hawser-net/hawser/internal/endpoint"
)

// TestAuditMode: an endpoint has the mode that was set for it, else the node's; it keeps it when
// the agent starts again, and flows are evaluated again whenever it changes.
func TestAuditMode(t *testing.T) {
	t.Parallel()
	m, dir := newMachine(), t.TempDir()
	p := started(t, m, dir)
	one, two := p.mustCreate(1), p.mustCreate(2)
	row := func(id uint16) datapath.Endpoint {
		t.Helper()
		rows, err := m.kernel.Maps.Endpoints()
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(rows, func(r datapath.Endpoint) bool { return r.ID == id })
		if i < 0 {
			t.Fatalf("endpoint %d has no row", id)
		}
		return rows[i]
	}
	want := func(what string, first, second bool) {
		t.Helper()
		if row(one.ID).Audit != first || row(two.ID).Audit != second {
			t.Errorf("%s: audit mode is %v and %v, want %v and %v", what, row(one.ID).Audit, row(two.ID).Audit, first, second)
		}
		n := 0
		for _, on := range []bool{first, second} {
			if on {
				n++
			}
		}
		if _, got := p.policy.Audit(); got != n {
			t.Errorf("%s: %d endpoints in audit mode, want %d", what, got, n)
		}
	}
	set := func(id uint16, mode AuditMode) {
		t.Helper()
		if _, err := p.SetAudit(t.Context(), id, mode); err != nil {
			t.Fatal(err)
		}
	}
	node := func(on bool) {
		t.Helper()
		if err := p.policy.SetAudit(on); err != nil {
			t.Fatal(err)
		}
	}
	want("at first", false, false)
	before, other := row(one.ID).PolicyGeneration, row(two.ID).PolicyGeneration
	set(one.ID, AuditEnabled)
	want("one", true, false)
	if row(one.ID).PolicyGeneration == before || row(two.ID).PolicyGeneration != other {
		t.Error("flows of the one endpoint, and of no other, must be evaluated again")
	}
	p = started(t, m, dir)
	want("after a restart", true, false)
	node(true)
	want("the node", true, true)
	set(one.ID, AuditDisabled)
	want("one is left out", false, true)
	before = row(two.ID).PolicyGeneration
	node(false)
	want("the node no more", false, false)
	if row(two.ID).PolicyGeneration == before {
		t.Error("what audit mode let pass is not evaluated again")
	}
	node(true)
	set(one.ID, AuditInherited)
	want("both inherit", true, true)
	p = started(t, m, dir) // whose options say nothing of it
	want("after another restart", false, false)
	p.audit("audit mode")
	if _, err := p.SetAudit(t.Context(), 9999, AuditEnabled); err == nil {
		t.Error("an endpoint that is none has a mode")
	}
}

// TestAuditModeFailedWrite: a row that could not be written, or was written in part, has the mode
// that it should have after Retry, before the rules have been observed and after.
func TestAuditModeFailedWrite(t *testing.T) {
	t.Parallel()
	for _, op := range []string{"UpsertEndpoint", "UpsertAddresses"} {
		for _, synced := range []bool{true, false} {
			m, dir := newMachine(), t.TempDir()
			p := started(t, m, dir)
			row := p.mustCreate(1)
			if !synced {
				p = boot(t, m, dir)
				if err := p.Load(t.Context()); err != nil {
					t.Fatal(err)
				}
				if _, err := p.Resume(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			for _, on := range []bool{true, false} {
				before := m.row(row)
				m.fault = failing(op)
				if err := p.policy.SetAudit(on); !errors.Is(err, errInjected) {
					t.Errorf("%s failed: the change of the mode says %v", op, err)
				}
				if _, n := p.policy.Audit(); n != 1 {
					t.Errorf("%s failed: %d endpoints are reported as in audit mode, want 1, which may be", op, n)
				}
				m.fault = failing()
				if err := p.policy.Retry(); err != nil {
					t.Error(err)
				}
				after := m.row(row)
				if after.Audit != on || after.RuleSet != before.RuleSet || after.PolicyGeneration == before.PolicyGeneration {
					t.Errorf("%s failed, synced %v: tried again the row is %+v, was %+v, want audit mode %v", op, synced, after, before, on)
				}
				if _, n := p.policy.Audit(); (n == 1) != on {
					t.Errorf("%s failed: tried again %d endpoints are in audit mode", op, n)
				}
			}
		}
	}
}

// TestAuditModeUndone: an endpoint whose mode could not be changed in full has the mode that it
// had.
func TestAuditModeUndone(t *testing.T) {
	t.Parallel()
	m := newMachine()
	p := started(t, m, t.TempDir())
	row := p.mustCreate(1)
	failed := false
	m.fault = func(op string) error {
		if op == "UpsertAddresses" && !failed {
			failed = true
			return errInjected
		}
		return nil
	}
	if _, err := p.SetAudit(t.Context(), row.ID, AuditEnabled); !errors.Is(err, errInjected) {
		t.Errorf("the change says %v", err)
	}
	if k := m.row(row); k.Audit {
		t.Errorf("the change failed, the kernel has %+v", k)
	}
	if got, _ := p.registry.Get(row.ID); got.Audit != AuditInherited {
		t.Errorf("the change failed, the endpoint has mode %q", got.Audit)
	}
	p.audit("undone")
}

// TestAuditModeEndsAtRestart: who starts the agent again without audit mode does not wait for the
// rules to be observed: the rows of endpoints that inherited it leave it at once, with the rule set
// that they have. Other rows stay as they are.
func TestAuditModeEndsAtRestart(t *testing.T) {
	t.Parallel()
	m, dir := newMachine(), t.TempDir()
	p := started(t, m, dir)
	if err := setRules(t, p.policy, "a", allowPorts("web", 80, 3)); err != nil {
		t.Fatal(err)
	}
	web, db, own := p.mustCreateApp(1, "web"), p.mustCreateApp(2, "db"), p.mustCreateApp(3, "web")
	if _, err := p.SetAudit(t.Context(), own.ID, AuditEnabled); err != nil {
		t.Fatal(err)
	}
	if err := p.policy.SetAudit(true); err != nil {
		t.Fatal(err)
	}
	before := map[uint16]datapath.Endpoint{}
	for _, row := range []Endpoint{web, db, own} {
		before[row.ID] = m.row(row)
	}
	p = boot(t, m, dir)
	if err := p.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, row := range []Endpoint{web, db} {
		if k, old := m.row(row), before[row.ID]; k.Audit || k.Locked || k.RuleSet != old.RuleSet || k.PolicyGeneration <= old.PolicyGeneration {
			t.Errorf("before the rules are observed endpoint %d has %+v, had %+v", row.ID, k, old)
		}
	}
	if k := m.row(own); !k.Same(before[own.ID]) {
		t.Errorf("who has the mode of its own has %+v, had %+v", k, before[own.ID])
	}
}

// TestAuditModeLocked: the mode of an endpoint whose rules do not fit changes as another's does,
// its own and the node's. That it drops everything is reported, and is no row that could not be
// written.
func TestAuditModeLocked(t *testing.T) {
	t.Parallel()
	m, dir := newMachine(), t.TempDir()
	p := started(t, m, dir)
	pol := p.policy
	web := p.mustCreateApp(1, "web")
	m.kernel.Maps.SetPolicyRoom(3)
	want := func(what string, err error, on bool) {
		t.Helper()
		if errors.Is(err, ErrRowNotWritten) {
			t.Errorf("%s: %v", what, err)
		}
		if k := m.row(web); !k.Locked || k.Audit != on {
			t.Errorf("%s: the row is %+v, want audit mode %v", what, k, on)
		}
	}
	want("rules that do not fit", setRules(t, pol, "a", allowPorts("web", 80, 8)), false)
	for _, mode := range []AuditMode{AuditEnabled, AuditDisabled} {
		row, err := p.SetAudit(t.Context(), web.ID, mode)
		if err != nil {
			t.Errorf("%s: %v", mode, err)
		}
		want(string(mode), nil, mode == AuditEnabled)
		if got, _ := p.registry.Get(web.ID); got.Audit != mode || row.Audit != mode || !got.Kernel.Locked {
			t.Errorf("%s: the endpoint has mode %q, its kernel row is %+v", mode, got.Audit, got.Kernel)
		}
	}
	if _, err := p.SetAudit(t.Context(), web.ID, AuditInherited); err != nil {
		t.Error(err)
	}
	want("the node", pol.SetAudit(true), true)
	want("the node no more", pol.SetAudit(false), false)
	m.fault = failing("UpsertEndpoint")
	if err := pol.SetAudit(true); !errors.Is(err, ErrRowNotWritten) || !errors.Is(err, errInjected) {
		t.Errorf("a row that could not be written: %v", err)
	}
}
