package endpoint_test

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"github.com/hawser-net/hawser/internal/agent/enforcement"
	"github.com/hawser-net/hawser/internal/datapath"
	. "github.com/hawser-net/hawser/internal/endpoint"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/labels"
)

// TestLargestRuleSetIsEvicted: a tenant whose rule sets fill the map loses the largest of them, and
// no other tenant loses anything; it comes back by itself when there is room.
func TestLargestRuleSetIsEvicted(t *testing.T) {
	t.Parallel()
	m := newMachine()
	p := started(t, m, t.TempDir())
	pol := p.policy
	m.kernel.Maps.SetPolicyRoom(100)
	for app, ports := range map[string]int{"big": 60, "greedy": 20} {
		if err := setRules(t, pol, app, allowPorts(app, 80, ports)); err != nil {
			t.Fatal(err)
		}
	}
	big, greedy := p.mustCreateApp(1, "big"), p.mustCreateApp(2, "greedy")
	before := m.row(greedy)
	if m.row(big).Locked || before.Locked {
		t.Fatalf("before the map is full: %+v, %+v", m.row(big), before)
	}
	if err := setRules(t, pol, "victim", allowPorts("victim", 80, 30)); err != nil {
		t.Fatal(err)
	}
	victim := p.mustCreateApp(3, "victim")
	if k := m.row(victim); k.Locked || len(m.sets()[k.RuleSet].Entries) < 30 {
		t.Errorf("who came last, and wants less, has %+v", k)
	}
	if k := m.row(big); !k.Locked {
		t.Errorf("the endpoint with the largest rule set has %+v", k)
	}
	for range 3 {
		if err := pol.Retry(); !errors.Is(err, datapath.ErrFull) {
			t.Errorf("tried again: %v", err)
		}
	}
	if m.row(victim).Locked || m.row(greedy).Locked || !m.row(big).Locked {
		t.Error("tried again, rule sets take turns")
	}
	// More of the same tenant's, in place: the largest of what is there is its own.
	if err := setRules(t, pol, "greedy", allowPorts("greedy", 80, 90)); !errors.Is(err, datapath.ErrFull) {
		t.Errorf("a rule set that does not fit is no error: %v", err)
	}
	if k := m.row(victim); k.Locked || len(m.sets()[k.RuleSet].Entries) < 30 {
		t.Errorf("another's growth locks %+v", k)
	}
	if !m.row(greedy).Locked {
		t.Error("who wants more than there is is not locked")
	}
	if err := setRules(t, pol, "greedy", allowPorts("greedy", 80, 5)); err != nil && !errors.Is(err, datapath.ErrFull) {
		t.Fatal(err)
	}
	if err := pol.Retry(); err != nil {
		t.Errorf("there is room again: %v", err)
	}
	for _, row := range []Endpoint{big, greedy, victim} {
		if m.row(row).Locked {
			t.Errorf("endpoint %d stays locked", row.ID)
		}
	}
	p.audit("at the end")
}

// TestShareOfRuleSet: a rule set that exceeds its share of the map locks the endpoints that it is
// for, and takes no room from others, however small these are and however often it is tried again.
func TestShareOfRuleSet(t *testing.T) {
	t.Parallel()
	m := newMachine()
	p := started(t, m, t.TempDir())
	pol := p.policy
	m.kernel.Maps.SetPolicyRoom(100)
	m.kernel.Maps.SetRuleSetShare(50)
	for app, ports := range map[string]int{"small": 10, "large": 40} {
		if err := setRules(t, pol, app, allowPorts(app, 80, ports)); err != nil {
			t.Fatal(err)
		}
	}
	small, large := p.mustCreateApp(1, "small"), p.mustCreateApp(2, "large")
	if m.row(small).Locked || m.row(large).Locked {
		t.Fatalf("within their shares: %+v, %+v", m.row(small), m.row(large))
	}
	greedy := p.mustCreateApp(3, "greedy")
	if err := setRules(t, pol, "greedy", allowPorts("greedy", 80, 60)); !errors.Is(err, datapath.ErrShare) {
		t.Errorf("a new rule set beyond its share is no error: %v", err)
	}
	if err := setRules(t, pol, "large", allowPorts("large", 80, 60)); !errors.Is(err, datapath.ErrShare) {
		t.Errorf("a rule set beyond its share is no error: %v", err)
	}
	for range 3 {
		if err := pol.Retry(); !errors.Is(err, datapath.ErrShare) {
			t.Errorf("tried again: %v", err)
		}
		if m.row(small).Locked || !m.row(greedy).Locked || !m.row(large).Locked {
			t.Errorf("small %+v, greedy %+v, large %+v", m.row(small), m.row(greedy), m.row(large))
		}
	}
	for _, app := range []string{"large", "greedy"} {
		if err := setRules(t, pol, app, allowPorts(app, 80, 20)); err != nil && !errors.Is(err, datapath.ErrFull) {
			t.Fatal(err)
		}
	}
	if err := pol.Retry(); err != nil {
		t.Errorf("within their shares again: %v", err)
	}
	for _, row := range []Endpoint{small, large, greedy} {
		if m.row(row).Locked {
			t.Errorf("endpoint %d stays locked", row.ID)
		}
	}
	p.audit("at the end")
}

// TestShareIsLowered: a rule set that is in force from before the share became smaller stays, and
// gives no way to another that exceeds its share: room would not help that.
func TestShareIsLowered(t *testing.T) {
	t.Parallel()
	m, dir := newMachine(), t.TempDir()
	p := started(t, m, dir)
	m.kernel.Maps.SetPolicyRoom(200)
	m.kernel.Maps.SetRuleSetShare(100)
	rules := allowPorts("before", 80, 70)
	if err := setRules(t, p.policy, "before", rules); err != nil {
		t.Fatal(err)
	}
	before := p.mustCreateApp(1, "before")

	m.kernel.Maps.SetRuleSetShare(50)
	p = boot(t, m, dir)
	if err := setRules(t, p.policy, "before", rules); err != nil {
		t.Fatal(err)
	}
	p.restore()
	if k := m.row(before); k.Locked || len(m.sets()[k.RuleSet].Entries) < 70 {
		t.Fatalf("adopted after a restart: %+v", k)
	}
	greedy := p.mustCreateApp(2, "greedy")
	if err := setRules(t, p.policy, "greedy", allowPorts("greedy", 80, 60)); !errors.Is(err, datapath.ErrShare) {
		t.Errorf("a rule set beyond its share is no error: %v", err)
	}
	if !m.row(greedy).Locked {
		t.Errorf("who exceeds the share has %+v", m.row(greedy))
	}
	if k := m.row(before); k.Locked || len(m.sets()[k.RuleSet].Entries) < 70 {
		t.Errorf("who has more from before has %+v", k)
	}
	if err := setRules(t, p.policy, "greedy", allowPorts("greedy", 80, 5)); err != nil && !errors.Is(err, datapath.ErrFull) {
		t.Fatal(err)
	}
	if err := p.policy.Retry(); err != nil {
		t.Errorf("within its share again: %v", err)
	}
	p.audit("at the end")
}

// TestUnplaced: an endpoint whose rules distinguish a prefix from the identity that the kernel has
// for it is locked while the kernel does, and others are not: neither those that mean the same by
// both nor those that name neither.
func TestUnplaced(t *testing.T) {
	t.Parallel()
	m := newMachine()
	p := started(t, m, t.TempDir())
	pol := p.policy
	outer, inner := identity.LocalScope+1, identity.LocalScope+2
	for id, cidr := range map[identity.ID]string{outer: "10.0.0.0/8", inner: "10.1.0.0/16"} {
		if err := pol.SetIdentities(map[identity.ID]labels.Set{id: identity.CIDRLabels(netip.MustParsePrefix(cidr), false)}, nil); err != nil {
			t.Fatal(err)
		}
	}
	for app, spec := range map[string]string{
		"denies": "  egress: [{toEntities: [all]}]\n  egressDeny: [{toCIDR: [10.1.0.0/16]}]\n",
		"wide":   "  egress: [{toCIDR: [10.0.0.0/8]}]\n",
		"none":   "  egress: [{toEntities: [host]}]\n",
	} {
		if err := setRules(t, pol, app, fmt.Sprintf("  endpointSelector: {matchLabels: {app: %s}}\n%s", app, spec)); err != nil {
			t.Fatal(err)
		}
	}
	denies, wide, none := p.mustCreateApp(1, "denies"), p.mustCreateApp(2, "wide"), p.mustCreateApp(3, "none")
	check := func(when string, locked bool) {
		t.Helper()
		if k := m.row(denies); k.Locked != locked {
			t.Errorf("%s: the endpoint that denies the prefix is locked: %v", when, k.Locked)
		}
		for _, row := range []Endpoint{wide, none} {
			if m.row(row).Locked {
				t.Errorf("%s: endpoint %d is locked", when, row.ID)
			}
		}
	}
	missing := []enforcement.Unplaced{{Prefix: netip.MustParsePrefix("10.1.0.0/16"), Identity: inner, TakenFor: outer}}
	check("at first", false)
	if err := pol.SetUnplaced("address", missing); !errors.Is(err, datapath.ErrFull) {
		t.Errorf("locking an endpoint says %v", err)
	}
	check("taken for the wider prefix", true)
	if err := pol.Retry(); !errors.Is(err, datapath.ErrFull) {
		t.Errorf("tried again: %v", err)
	}
	check("tried again", true)
	if pol.Locked() != 1 {
		t.Errorf("%d endpoints are said to be locked", pol.Locked())
	}
	// A change of the rules in place is evaluated, too: now it means both alike.
	if err := setRules(t, pol, "denies", "  endpointSelector: {matchLabels: {app: denies}}\n  egress: [{toEntities: [all]}]\n  egressDeny: [{toCIDR: [10.0.0.0/8]}]\n"); err != nil {
		t.Fatal(err)
	}
	check("when the wider prefix is denied", false)
	if err := setRules(t, pol, "denies", "  endpointSelector: {matchLabels: {app: denies}}\n  egress: [{toEntities: [all]}]\n  egressDeny: [{toCIDR: [10.1.0.0/16]}]\n"); !errors.Is(err, datapath.ErrFull) {
		t.Errorf("locking by a change of rules says %v", err)
	}
	check("denied again", true)
	if err := pol.SetUnplaced("address", nil); err != nil {
		t.Error(err)
	}
	check("when there is room again", false)
	p.audit("at the end")
}
