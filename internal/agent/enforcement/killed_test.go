package enforcement

import (
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/datapath/fake"
	"github.com/hawser-net/hawser/internal/endpoint"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/labels"
	"github.com/hawser-net/hawser/internal/policy"
)

// errKilled ends an agent of the test in the midst of a write.
var errKilled = errors.New("killed")

// crashBench is an agent's part of policy on kernel maps that outlive it.
type crashBench struct {
	t      *testing.T
	rng    *rand.Rand
	node   *fake.Node
	dir    string
	policy *Policy
	rules  *Rules
}

// benchPods are the endpoints of the node, by address.
var benchPods = []netip.Addr{netip.MustParseAddr("10.1.0.1"), netip.MustParseAddr("10.1.0.2"), netip.MustParseAddr("10.1.0.3")}

func (m *crashBench) endpoint(i int) endpoint.Endpoint {
	set, err := labels.PodLabels(labels.Pod{Namespace: "a", Cluster: "default", Labels: map[string]string{"app": string(rune('x' + i))}})
	if err != nil {
		m.t.Fatal(err)
	}
	return endpoint.Endpoint{ID: uint16(1 + i), Identity: identity.ID(300 + i), IdentityLabels: set, Attachment: endpoint.Attachment{
		IfIndex: 7 + i, IPv4: benchPods[i], MAC: make([]byte, 6), HostMAC: make([]byte, 6),
	}}
}

// PublishPrefixes implements Prefixes: one row at a time, in any order.
func (m *crashBench) PublishPrefixes(upserts map[netip.Prefix]identity.ID, deletes []netip.Prefix) error {
	var rows []datapath.IPCacheEntry
	for p, id := range upserts {
		rows = append(rows, datapath.IPCacheEntry{Prefix: p, Identity: uint32(id)})
	}
	slices.SortFunc(rows, func(a, b datapath.IPCacheEntry) int { return a.Prefix.Compare(b.Prefix) })
	m.rng.Shuffle(len(rows), func(i, j int) { rows[i], rows[j] = rows[j], rows[i] })
	var errs []error
	for _, row := range rows {
		errs = append(errs, m.node.Maps.UpsertIPCache([]datapath.IPCacheEntry{row}))
	}
	for _, p := range deletes {
		errs = append(errs, m.node.Maps.DeleteIPCache([]netip.Prefix{p}))
	}
	return errors.Join(errs...)
}

func (m *crashBench) must(errs ...error) {
	m.t.Helper()
	if err := errors.Join(errs...); err != nil {
		m.t.Fatal(err)
	}
}

// begin starts an agent on maps that have the endpoints already, or new ones, and has it observe
// the rules of now.
func (m *crashBench) begin(all []policy.Change) error {
	m.t.Helper()
	engine, err := policy.New(policy.Defaults())
	m.must(err)
	m.policy, err = NewPolicy(slog.New(slog.DiscardHandler), engine, m.node.Maps)
	m.must(err)
	cfg := benchConfig(m.policy, m.node.Maps, m.dir)
	cfg.Prefixes = m
	m.rules, err = NewRules(cfg)
	m.must(err)
	rows, err := m.node.Maps.Endpoints()
	m.must(err)
	restore := func() {
		for i := range benchPods {
			m.must(m.policy.Restore(m.endpoint(i)))
		}
	}
	if len(rows) == 0 {
		err := m.rules.Apply(all)
		for i := range benchPods {
			_, _, err := m.policy.Attach(m.endpoint(i))
			m.must(err, m.node.Maps.UpsertIPCache([]datapath.IPCacheEntry{{Prefix: netip.PrefixFrom(benchPods[i], 32), Identity: uint32(300 + i)}}))
		}
		return err
	}
	if m.rng.IntN(2) == 0 { // rules of Kubernetes
		restore()
		return m.rules.Apply(all)
	}
	err = m.rules.Apply(all)
	restore()
	return err
}

// finish is when everything has been observed.
func (m *crashBench) finish() {
	m.t.Helper()
	m.must(m.policy.Synced(), m.rules.Retry())
	// As the reconciler of addresses does: rows that nothing wants any more go.
	cache, err := m.node.Maps.IPCache()
	m.must(err)
	for _, row := range cache {
		if id, ok := m.rules.cidrs.prefixes[row.Prefix]; !row.Prefix.IsSingleIP() && (!ok || id != identity.ID(row.Identity)) {
			m.must(m.node.Maps.DeleteIPCache([]netip.Prefix{row.Prefix}))
		}
	}
	m.must(m.rules.DropRestored())
}

func (m *crashBench) start(all []policy.Change) {
	m.t.Helper()
	m.must(m.begin(all))
	m.finish()
}

// reads reports whether an operation of the fake kernel changes nothing.
func reads(op string) bool {
	return slices.Contains([]string{"Maps.RuleSets", "Maps.Endpoints", "Maps.IPCache", "Maps.Blocks", "Maps.LastGeneration", "Maps.KnownIdentities"}, op)
}

// killedAfter runs f until it has begun so many writes, and reports whether it ended before. Each
// time before a write, and at the end, check is called.
func (m *crashBench) killedAfter(writes int, check func(op string), f func()) (ended bool) {
	defer m.node.SetFault(nil)
	defer func() {
		if r := recover(); r != nil && r != any(errKilled) {
			panic(r)
		}
	}()
	m.node.SetFault(func(op string, _ any) error {
		if reads(op) {
			return nil
		}
		check(op)
		if writes--; writes < 0 {
			panic(errKilled)
		}
		return nil
	})
	f()
	check("the end")
	return true
}

// benchPeers are addresses inside and outside of what rules name.
var benchPeers = func() (out []netip.Addr) {
	for _, a := range []string{"10.1.0.2", "10.1.0.3", "10.2.0.1", "10.2.1.1", "10.3.0.1", "11.0.0.1", "11.0.1.1", "12.0.0.1", "fd00::1", "fd00:0:1::1"} {
		out = append(out, netip.MustParseAddr(a))
	}
	return out
}()

var benchPrefixes = []string{"10.0.0.0/8", "10.2.0.0/16", "10.2.1.0/24", "10.3.0.0/16", "11.0.0.0/8", "11.0.1.0/24", "fd00::/16", "fd00:0:1::/48"}

// verdicts has a letter for each packet: + passes.
func (m *crashBench) verdicts() string {
	rows, err := m.node.Maps.IPCache()
	if err != nil {
		m.t.Fatal(err)
	}
	var b strings.Builder
	for _, peer := range benchPeers {
		id, bits := uint32(identity.WorldIPv4), -1
		if peer.Is6() {
			id = uint32(identity.WorldIPv6)
		}
		for _, row := range rows {
			if row.Prefix.Contains(peer) && row.Prefix.Bits() > bits {
				id, bits = row.Identity, row.Prefix.Bits()
			}
		}
		for _, pod := range benchPods {
			for _, dir := range []datapath.Direction{datapath.Ingress, datapath.Egress} {
				for _, port := range []uint16{80, 443} {
					if m.node.Maps.Verdict(pod, dir, id, peer, 6, port) == datapath.ReasonForwarded {
						b.WriteByte('+')
					} else {
						b.WriteByte('-')
					}
				}
			}
		}
	}
	return b.String()
}

func packetOf(i int) string {
	port, i := []int{80, 443}[i%2], i/2
	dir, i := []string{"from", "to"}[i%2], i/2
	return fmt.Sprintf("%v %s %v port %d", benchPods[i%len(benchPods)], dir, benchPeers[i/len(benchPods)], port)
}

// randomRules makes a policy, or none.
func (m *crashBench) randomRules(owner string) (policy.Change, string) {
	one := func(list ...string) string { return list[m.rng.IntN(len(list))] }
	cidr := func() string { return one(benchPrefixes...) }
	if m.rng.IntN(5) == 0 {
		return policy.Change{Owner: policy.Owner(owner)}, "none"
	}
	var spec string
	switch m.rng.IntN(4) {
	case 0: // blocks, with tiers
		rule := func() string {
			return fmt.Sprintf(`{"action":%q,"to":[{"networks":[%q]}]}`, one("Accept", "Deny", "Pass"), cidr())
		}
		spec = fmt.Sprintf(`{"tier":%q,"priority":%d,"subject":{"namespaces":{}},"egress":[%s,%s]}`, one("Admin", "Baseline"), m.rng.IntN(9), rule(), rule())
	case 1: // blocks
		outer := []string{"10.0.0.0/8", "10.2.0.0/16"}[m.rng.IntN(2)]
		if m.rng.IntN(2) == 0 {
			return egress(m.t, owner, outer), outer
		}
		return egress(m.t, owner, outer, "10.2.1.0/24"), outer + " but 10.2.1.0/24"
	default:
		dir := one("ingress", "egress")
		word := map[string]string{"ingress": "from", "egress": "to"}[dir]
		rule := func() string {
			var peer string
			switch m.rng.IntN(5) {
			case 0:
				peer = fmt.Sprintf(`"%sEntities":[%q]`, word, one("world", "all", "cluster"))
			case 1:
				peer = fmt.Sprintf(`"%sEndpoints":[{"matchLabels":{"app":%q}}]`, word, one("x", "y", "z"))
			case 2:
				peer = fmt.Sprintf(`"%sCIDRSet":[{"cidr":"10.0.0.0/8","except":[%q]}]`, word, one("10.2.0.0/16", "10.2.1.0/24", "10.3.0.0/16"))
			default:
				peer = fmt.Sprintf(`"%sCIDR":[%q]`, word, cidr())
			}
			if m.rng.IntN(3) == 0 {
				peer += fmt.Sprintf(`,"toPorts":[{"ports":[{"port":%q,"protocol":"TCP"}]}]`, one("80", "443"))
			}
			return "{" + peer + "}"
		}
		selector := one(`{}`, `{"matchLabels":{"app":"x"}}`, `{"matchExpressions":[{"key":"app","operator":"NotIn","values":["y"]}]}`)
		spec = fmt.Sprintf(`{"endpointSelector":%s,%q:[%s,%s]`, selector, dir, rule(), rule())
		if m.rng.IntN(2) == 0 {
			spec += fmt.Sprintf(`,%q:[%s]`, dir+"Deny", rule())
		}
		spec += "}"
	}
	return parsed(m.t, owner, spec), spec
}

// ruleHistory is which rules a random test has had.
type ruleHistory struct {
	*crashBench
	inForce map[string]policy.Change
	log     []string
}

func newRuleHistory(t *testing.T, seed uint64) *ruleHistory {
	m := &crashBench{t: t, rng: rand.New(rand.NewPCG(seed, 7)), node: fake.New(), dir: t.TempDir()}
	return &ruleHistory{m, map[string]policy.Change{}, []string{fmt.Sprint("seed ", seed)}}
}

// list returns all rules of now.
func (h *ruleHistory) list() (all []policy.Change) {
	for i := range 3 {
		if ch, ok := h.inForce[fmt.Sprint("p", i)]; ok {
			all = append(all, ch)
		}
	}
	return all
}

// change makes other rules.
func (h *ruleHistory) change() (changes []policy.Change) {
	h.log = append(h.log, "rules:")
	for _, i := range h.rng.Perm(3)[:1+h.rng.IntN(3)] {
		owner := fmt.Sprint("p", i)
		ch, spec := h.randomRules(owner)
		h.inForce[owner] = ch
		changes, h.log = append(changes, ch), append(h.log, "  "+owner+": "+spec)
	}
	return changes
}

// meant returns the verdicts of the rules of now on new maps.
func (h *ruleHistory) meant() string {
	f := &crashBench{t: h.t, rng: h.rng, node: fake.New(), dir: h.t.TempDir()}
	f.start(h.list())
	return f.verdicts()
}

// among requires that each verdict is one of several, or, if packets may be dropped, a drop.
func (h *ruleHistory) among(when string, drop bool, of ...string) {
	h.t.Helper()
	got := h.verdicts()
	for i := range got {
		if !slices.ContainsFunc(of, func(s string) bool { return s[i] == got[i] }) && (!drop || got[i] == '+') {
			h.t.Fatalf("before %s: %s is %c\n%s", when, packetOf(i), got[i], strings.Join(h.log, "\n"))
		}
	}
}

func ruleSeeds() uint64 {
	if os.Getenv("HAWSER_LONG") != "" {
		return 2000
	}
	return 50
}

// TestKilledBetweenWrites kills an agent before any of its writes to the kernel while it puts rules
// in force, and has the next one find other rules. At every moment a packet passes only if the
// rules of before, those in between or those of now let it, and is dropped only if one of them
// drops it. In the end the kernel is as after a start on new maps.
func TestKilledBetweenWrites(t *testing.T) {
	t.Parallel()
	for seed := range ruleSeeds() {
		h := newRuleHistory(t, seed)
		h.change()
		h.start(h.list())
		for range 4 {
			before := h.meant()
			h.among("any change", false, before)
			changes := h.change()
			between := h.meant()
			writes := h.rng.IntN(12)
			if h.killedAfter(writes, func(op string) { h.among(op, false, before, between) }, func() { h.must(h.rules.Apply(changes)) }) {
				h.among("the next", false, between)
				continue
			}
			h.log = append(h.log, fmt.Sprintf("killed at write %d", writes))
			copies := h.list()
			if h.rng.IntN(2) == 0 {
				h.change()
			}
			now := h.meant()
			for {
				writes := h.rng.IntN(20)
				if h.killedAfter(writes, func(op string) { h.among(op, false, before, between, now) }, func() {
					if h.rng.IntN(2) == 0 { // what is stored on disk comes first
						h.must(h.begin(copies), h.rules.Apply(h.list()))
						h.finish()
						return
					}
					h.start(h.list())
				}) {
					break
				}
				h.log = append(h.log, fmt.Sprintf("killed again, at write %d of the start", writes))
			}
			h.among("the next", false, now)
		}
	}
}

// TestFailedWrites has writes of rule sets, endpoints and blocks fail at random. A packet passes
// only if the rules of before or those of now let it. When writes succeed again, a retry brings the
// kernel to what it is on new maps.
func TestFailedWrites(t *testing.T) {
	t.Parallel()
	failed := errors.New("failed")
	for seed := range ruleSeeds() {
		h := newRuleHistory(t, seed)
		h.change()
		h.start(h.list())
		for range 6 {
			before := h.meant()
			changes := h.change()
			now := h.meant()
			h.node.SetFault(func(op string, arg any) error {
				if reads(op) {
					return nil
				}
				h.among(op, true, before, now)
				if row, ok := arg.(datapath.Endpoint); ok && row.Locked {
					return nil // if nothing can be written at all, nothing can be locked
				}
				if h.rng.IntN(3) == 0 && !strings.HasSuffix(op, "IPCache") {
					h.log = append(h.log, "failed: "+op)
					return failed
				}
				return nil
			})
			h.log = append(h.log, "applied")
			err := h.rules.Apply(changes)
			for range h.rng.IntN(3) {
				h.log = append(h.log, "again")
				err = errors.Join(h.policy.Retry(), h.rules.Retry())
			}
			h.node.SetFault(nil)
			for range 2 { // one may report what the other is about to mend
				err = errors.Join(h.policy.Retry(), h.rules.Retry())
			}
			h.must(err)
			h.among("the next", false, now)
		}
	}
}

// TestNoRoomToInherit: rule sets of before cannot be extended for new prefixes and blocks. They
// stay as they are until Synced, and so does what passes.
func TestNoRoomToInherit(t *testing.T) {
	t.Parallel()
	m := &crashBench{t: t, rng: rand.New(rand.NewPCG(1, 7)), node: fake.New(), dir: t.TempDir()}
	before := []policy.Change{
		parsed(t, "denied", `{"endpointSelector":{"matchLabels":{"app":"x"}},"egress":[{"toEntities":["all"]}],"egressDeny":[{"toCIDR":["10.0.0.0/8"]}]}`),
		parsed(t, "block", `{"tier":"Admin","priority":1,"subject":{"namespaces":{}},"egress":[{"action":"Deny","to":[{"networks":["11.0.0.0/8"]}]}]}`),
	}
	m.start(before)
	want := m.verdicts()
	full := errors.New("full")
	m.node.SetFault(func(op string, _ any) error {
		if op == "Maps.UpdateRuleSet" {
			return full
		}
		return nil
	})
	after := append(before, parsed(t, "prefix", `{"endpointSelector":{"matchLabels":{"app":"none"}},"egress":[{"toCIDR":["10.2.0.0/16"]}]}`),
		parsed(t, "inner", `{"tier":"Admin","priority":2,"subject":{"namespaces":{}},"egress":[{"action":"Accept","to":[{"networks":["11.0.1.0/24"]}]}]}`))
	if err := m.begin(after); !errors.Is(err, full) {
		t.Errorf("the fault is reported as %v", err)
	}
	if got := m.verdicts(); got != want {
		t.Errorf("verdicts\n%s, before\n%s", got, want)
	}
	if err := m.rules.Retry(); !errors.Is(err, full) {
		t.Errorf("a retry says %v", err)
	}
	m.node.SetFault(nil)
	m.finish()
	f := &crashBench{t: t, rng: m.rng, node: fake.New(), dir: t.TempDir()}
	f.start(after)
	if got, want := m.verdicts(), f.verdicts(); got != want {
		t.Errorf("in the end verdicts\n%s, those of new maps\n%s", got, want)
	}
}
