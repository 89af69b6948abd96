package policy

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/hawser-net/hawser/internal/labels"
)

// TestEverythingExcepted: a prefix that excepts itself matches no peer, also one of length 0, for
// which reserved identities stand.
func TestEverythingExcepted(t *testing.T) {
	t.Parallel()
	for _, list := range []string{`{"cidr":"0.0.0.0/0","except":["0.0.0.0/0"]}`, `{"cidr":"0.0.0.0/0","except":["10.0.0.0/8","0.0.0.0/0"]}`} {
		rules, err := parseJSON("a", `{"endpointSelector":{},"ingress":[{"fromCIDRSet":[`+list+`]}],"egress":[{"toCIDRSet":[`+list+`]}]}`)
		if err != nil {
			t.Fatal(err)
		}
		newRefusedWorld(t, map[Owner][]*Rule{"o": rules}).expect(list, "in 300 world-ipv4 tcp 80 deny", "out 300 world-ipv4 tcp 80 deny")
	}
}

// linear measures n parts and an eighth of them, in the same run as machines differ: the time must
// not grow with the square of the size, which is 64 times as long.
func linear(t *testing.T, n int, took func(n int) time.Duration) {
	t.Helper()
	few, all := took(n/8), took(n)
	if all > 24*few+time.Second {
		t.Errorf("%d take %v, %d take %v", n/8, few, n, all)
	}
}

// TestManyExceptions: a policy with as many exceptions as an object holds does not hold up the
// engine, in which all policies of the node wait for it.
func TestManyExceptions(t *testing.T) {
	t.Parallel()
	linear(t, 100_000, func(n int) time.Duration {
		var list strings.Builder
		for i := range n {
			fmt.Fprintf(&list, `,"10.%d.%d.%d/32"`, i>>16, i>>8&255, i&255)
		}
		start := time.Now()
		rules, err := parseJSON("a", `{"endpointSelector":{},"ingress":[{"fromCIDRSet":[{"cidr":"10.0.0.0/8","except":[`+list.String()[1:]+`]}]}]}`)
		if err != nil {
			t.Fatal(err)
		}
		var in []netip.Prefix
		for _, p := range append(CIDRs(rules), netip.MustParsePrefix("10.0.0.0/31"), netip.MustParsePrefix("10.9.9.9/32")) {
			if rules[0].Clauses[0].Peers[0].matchPrefix(p) {
				in = append(in, p)
			}
		}
		took := time.Since(start)
		if fmt.Sprint(in) != "[10.0.0.0/8 10.0.0.0/31 10.9.9.9/32]" {
			t.Errorf("matches %d prefixes: %v", len(in), in[:min(len(in), 9)])
		}
		return took
	})
}

// TestManyRulesAgain: so does one with many rules when one of them changes.
func TestManyRulesAgain(t *testing.T) {
	t.Parallel()
	linear(t, 6_000, func(n int) time.Duration {
		all := func(first string) (out []*Rule) {
			p := mustUnmarshal(t, first)
			for i := range n {
				p.Specs = append(p.Specs, mustUnmarshal(t, fmt.Sprintf(`{"endpointSelector":{},"ingress":[{"fromEndpoints":[{"matchLabels":{"app":"a%d"}}]}]}`, i)).Spec)
			}
			rules, err := Parse(p)
			if err != nil {
				t.Fatal(err)
			}
			return rules
		}
		e, err := New(Defaults())
		if err != nil {
			t.Fatal(err)
		}
		e.SetIdentity(300, labels.NewSet(labels.New("k8s", labels.KeyNamespace, "a")))
		e.AddSubject(Subject{Identity: 300})
		if err := e.SetRules("o", all(`{"endpointSelector":{},"egress":[{}]}`)); err != nil {
			t.Fatal(err)
		}
		again := all(`{"endpointSelector":{},"egress":[{"toEntities":["all"]}]}`)
		start := time.Now()
		if err := e.SetRules("o", again); err != nil {
			t.Fatal(err)
		}
		return time.Since(start)
	})
}

// TestManyFaults: so does one of which every rule is refused, as the API server accepts it.
func TestManyFaults(t *testing.T) {
	t.Parallel()
	linear(t, 16_000, func(n int) time.Duration {
		p := mustUnmarshal(t, `{"endpointSelector":{},"egress":[{"toEntities":["all"]}]}`)
		var unread []*FieldError
		for i := range n {
			p.Specs = append(p.Specs, mustUnmarshal(t, `{"endpointSelector":{},"egress":[{"toServices":[{}]}]}`).Spec)
			unread = append(unread, &FieldError{Field: fmt.Sprintf("specs[%d].egress[0].x", i), Problem: "is not a field"})
		}
		start := time.Now()
		rules, err := Parse(p, WithFaults(unread))
		took := time.Since(start)
		last := fmt.Sprintf("specs[%d].egress[0].toServices: ", n-1)
		if err == nil || len(rules) != n+1 || len(rules[0].Faults) != 0 || len(rules[n].Faults) != 2 || !strings.HasPrefix(rules[n].Faults[1], last) {
			t.Errorf("%d rules, the last with %q", len(rules), rules[len(rules)-1].Faults)
		}
		return took
	})
}
