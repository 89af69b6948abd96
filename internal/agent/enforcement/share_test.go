package enforcement

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/datapath/fake"
	kernelmaps "github.com/hawser-net/hawser/internal/datapath/maps"
	"github.com/hawser-net/hawser/internal/policy"
	"github.com/hawser-net/hawser/internal/testenv"
)

// cnp makes rules of a CiliumNetworkPolicy.
func cnp(t *testing.T, name, namespace, spec string) policy.Change {
	t.Helper()
	var o v2.CiliumNetworkPolicy
	if err := yaml.Unmarshal(fmt.Appendf(nil, "{metadata: {name: %s, namespace: %s}, spec: %s}", name, namespace, spec), &o); err != nil {
		t.Fatal(err)
	}
	rules, err := policy.Parse(&o)
	if err != nil {
		t.Fatal(err)
	}
	return policy.Change{Owner: policy.Owner(namespace + "/" + name), Rules: rules}
}

// singles returns a list of n addresses as prefixes in 203.0.112.0/20, from the given one on.
func singles(from, n int) (list []string) {
	for i := from; i < from+n; i++ {
		list = append(list, fmt.Sprintf("203.0.%d.%d/32", 112+i/256, i%256))
	}
	return list
}

// TestPrefixFlood: the prefixes that one namespace names take the room of nobody else's rule sets,
// which have an entry for each prefix inside of what they allow.
func TestPrefixFlood(t *testing.T) {
	testenv.RequireRoot(t)
	const share = 16
	for _, victim := range []policy.Change{
		egress(t, "blocks", "0.0.0.0/0", "10.0.0.0/8"),
		cnp(t, "world", "a", `{endpointSelector: {}, egress: [{toEntities: [world]}]}`),
		cnp(t, "cidr", "a", `{endpointSelector: {}, egress: [{toCIDR: [0.0.0.0/0]}]}`),
	} {
		for _, bound := range []int{0, share} {
			c := kernelmaps.Defaults()
			c.Dir, c.CTEntries, c.PolicyEntries, c.RuleSetEntries, c.IPCacheEntries, c.IPCachePrefixes, c.Blocks = "", 4096, 4096, 64, 16, 1024, 1024
			kernel, pol, rules := kernelRules(t, c, bound)
			attachPod(t, pol, 1, "a")
			flood := []policy.Change{egress(t, "flood", "203.0.112.0/20", singles(0, 100)...), victim}
			flood[0].Rules[0].Namespace = "b"
			list := ""
			for _, p := range singles(200, 100) {
				list += fmt.Sprintf("%q, ", p)
			}
			flood = append(flood, cnp(t, "flood", "b", `{endpointSelector: {matchLabels: {app: none}}, egress: [{toCIDR: [`+list+`]}]}`))
			err := rules.Apply(flood)
			rows, rerr := kernel.Endpoints()
			if rerr != nil || len(rows) != 1 {
				t.Fatal(rows, rerr)
			}
			if locked := bound == 0; rows[0].Locked != locked || (err != nil) != locked {
				t.Errorf("%s, with a bound of %d: the pod of another namespace is locked: %v, %v", victim.Owner, bound, rows[0].Locked, err)
			}
		}
	}
}

// TestSharesAfter: it is known before whose prefixes changes take out of force or put back, and
// asking changes nothing.
func TestSharesAfter(t *testing.T) {
	t.Parallel()
	b := &ruleBench{t: t, node: fake.New(), dir: t.TempDir()}
	b.start()
	b.rules.shares.max = 4
	policyOf := func(name, namespace string, n int) policy.Change {
		return cnp(t, name, namespace, fmt.Sprintf(`{endpointSelector: {}, egress: [{toCIDR: [%s]}]}`, strings.Join(singles(0, n), ", ")))
	}
	gone := func(name string) policy.Change { return policy.Change{Owner: policy.Owner(name)} }
	b.apply(policyOf("large", "a", 3), policyOf("small", "a", 1), policyOf("huge", "b", 5), policyOf("tiny", "b", 1))
	for _, tt := range []struct {
		changes []policy.Change
		want    string
	}{
		{[]policy.Change{policyOf("new", "a", 2)}, "[a/large] []"},
		{[]policy.Change{policyOf("new", "a", 4)}, "[a/new] []"},
		{[]policy.Change{policyOf("new", "c", 4)}, "[] []"},
		{[]policy.Change{policyOf("new", "a", 2), policyOf("large", "a", 1)}, "[] []"},
		{[]policy.Change{policyOf("new", "a", 2), gone("a/large")}, "[] []"},
		{[]policy.Change{policyOf("new", "b", 1)}, "[] []"}, // huge is out of force already
		{[]policy.Change{policyOf("huge", "b", 6)}, "[b/huge] []"},
		{[]policy.Change{policyOf("huge", "b", 3)}, "[] []"},
		{[]policy.Change{policyOf("huge", "b", 4), gone("b/tiny")}, "[] []"},
	} {
		beyond, back := b.rules.Shares(tt.changes)
		if got := fmt.Sprint(beyond, back); got != tt.want {
			t.Errorf("%+v: %s, want %s", tt.changes, got, tt.want)
		}
	}
	b.apply(policyOf("huge", "b", 4))
	if beyond, back := b.rules.Shares([]policy.Change{gone("b/tiny")}); fmt.Sprint(beyond, back) != "[] [b/huge]" {
		t.Errorf("when there is room again: %v %v", beyond, back)
	}
	if got := fmt.Sprint(b.rules.shares.beyond()); got != "[b/huge]" {
		t.Errorf("out of force: %s", got)
	}
}

// TestPrefixShares: of the policies of a namespace the largest go without prefixes, they allow
// nothing and deny everything by them, and get them when there is room.
func TestPrefixShares(t *testing.T) {
	t.Parallel()
	s := newPrefixShares(16, slog.New(slog.DiscardHandler))
	policyOf := func(name, namespace string, from, n int, peers string) policy.Change {
		list := ""
		for _, p := range singles(from, n) {
			list += fmt.Sprintf("%q, ", p)
		}
		return cnp(t, name, namespace, `{endpointSelector: {}, egress: [{`+peers+`toCIDR: [`+list+`]}], egressDeny: [{toCIDR: [`+list+`]}, {toEntities: [world]}], ingress: [{fromEntities: [all]}]}`)
	}
	inForce := map[policy.Owner]int{} // the prefixes
	apply := func(what string, want map[policy.Owner]int, changes ...policy.Change) {
		t.Helper()
		for _, ch := range s.limit(changes) {
			inForce[ch.Owner] = len(policy.CIDRs(ch.Rules))
			if len(ch.Rules) == 0 {
				delete(inForce, ch.Owner)
				continue
			}
			r := ch.Rules[0]
			egress, deny := r.Clauses[1], r.Clauses[2]
			if r.Clauses[0].Direction != 0 || !r.Clauses[0].Deny && len(r.Clauses[0].Peers) == 0 {
				t.Fatalf("the clauses have another order: %+v", r.Clauses)
			}
			if refused := inForce[ch.Owner] == 0; refused != (len(r.Faults) == 1) || refused != deny.AllPeers || refused != (len(egress.Peers) == 0) || !deny.Deny {
				t.Errorf("%s: %s: faults %q, allow %d peers, deny all: %v", what, ch.Owner, r.Faults, len(egress.Peers), deny.AllPeers)
			}
		}
		if fmt.Sprint(inForce) != fmt.Sprint(want) {
			t.Errorf("%s: %v, want %v", what, inForce, want)
		}
	}
	small, large, other := policyOf("small", "a", 0, 6, ""), policyOf("large", "a", 0, 12, ""), policyOf("other", "b", 0, 16, "")
	apply("too many for one", map[policy.Owner]int{"a/large": 0, "a/small": 6, "b/other": 16}, large, small, other)
	apply("the same again", map[policy.Owner]int{"a/large": 0, "a/small": 6, "b/other": 16}, large, small)
	apply("room", map[policy.Owner]int{"a/large": 12, "b/other": 16}, policy.Change{Owner: "a/small"})
	apply("room, from the beginning", map[policy.Owner]int{"a/large": 0, "a/small": 10, "b/other": 16}, policyOf("small", "a", 0, 10, ""))
	apply("less", map[policy.Owner]int{"a/large": 6, "a/small": 10, "b/other": 16}, policyOf("large", "a", 0, 6, ""))
	apply("none", map[policy.Owner]int{}, policy.Change{Owner: "a/large"}, policy.Change{Owner: "a/small"}, policy.Change{Owner: "b/other"})
	if len(s.namespaces)+len(s.of) > 0 {
		t.Errorf("something is left: %v %v", s.namespaces, s.of)
	}
}
