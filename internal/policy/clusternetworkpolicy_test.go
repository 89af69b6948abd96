package policy

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/labels"
	"github.com/hawser-net/hawser/internal/policy/oracle"
)

func parseCluster(spec string) ([]*Rule, *policyv1alpha2.ClusterNetworkPolicy, error) {
	p := &policyv1alpha2.ClusterNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: "p"}}
	if err := json.Unmarshal([]byte(spec), &p.Spec); err != nil {
		return nil, nil, err
	}
	rules, err := ParseClusterNetworkPolicy(p)
	return rules, p, err
}

// TestParseClusterNetworkPolicyRefuses: each fault is named by its field.
func TestParseClusterNetworkPolicyRefuses(t *testing.T) {
	t.Parallel()
	spec := func(rest string) string { return `{"tier":"Admin","subject":{"namespaces":{}}` + rest + `}` }
	from := func(peer string) string { return spec(`,"ingress":[{"action":"Deny","from":[` + peer + `]}]`) }
	to := func(peer string) string { return spec(`,"egress":[{"action":"Deny","to":[` + peer + `]}]`) }
	protocol := func(p string) string {
		return spec(`,"egress":[{"action":"Deny","to":[{"namespaces":{}}],"protocols":[` + p + `]}]`)
	}
	for _, tt := range []struct{ spec, field string }{
		{`{"tier":"admin","subject":{"namespaces":{}}}`, "spec.tier"},
		{`{"subject":{"namespaces":{}}}`, "spec.tier"},
		{`{"tier":"Admin"}`, "spec.subject"},
		{`{"tier":"Admin","subject":{"namespaces":{},"pods":{"namespaceSelector":{},"podSelector":{}}}}`, "spec.subject"},
		{`{"tier":"Admin","subject":{"namespaces":{"matchLabels":{"a":"b c"}}}}`, "spec.subject.namespaces.matchLabels[a]"},
		{`{"tier":"Admin","subject":{"pods":{"namespaceSelector":{},"podSelector":{"matchExpressions":[{"key":"a","operator":"In"}]}}}}`,
			"spec.subject.pods.podSelector.matchExpressions[0].values"},
		{spec(`,"priority":-1`), "spec.priority"},
		{spec(`,"priority":1001`), "spec.priority"},
		{spec(`,"ingress":[{"from":[{"namespaces":{}}]}]`), "spec.ingress[0].action"},
		{spec(`,"ingress":[{"action":"Allow","from":[{"namespaces":{}}]}]`), "spec.ingress[0].action"},
		{spec(`,"ingress":[{"action":"Deny"}]`), "spec.ingress[0].from"},
		{spec(`,"egress":[{"action":"Deny","to":[]}]`), "spec.egress[0].to"},
		{from(`{}`), "spec.ingress[0].from[0]"},
		{from(`{"namespaces":{},"pods":{"namespaceSelector":{},"podSelector":{}}}`), "spec.ingress[0].from[0]"},
		{to(`{}`), "spec.egress[0].to[0]"},
		{to(`{"nodes":{}}`), "spec.egress[0].to[0].nodes"},
		{to(`{"domainNames":["example.org"]}`), "spec.egress[0].to[0].domainNames"},
		{to(`{"networks":[]}`), "spec.egress[0].to[0].networks"},
		{to(`{"networks":["10.0.0.0/8","10.0.0.0/33"]}`), "spec.egress[0].to[0].networks[1]"},
		{to(`{"networks":["10.0.0.0/8"],"namespaces":{}}`), "spec.egress[0].to[0]"},
		{to(`{"networks":["10.0.0.0/8"]}],"protocols":[{"destinationNamedPort":"http"}`), "spec.egress[0].to[0].networks"},
		{spec(`,"egress":[{"action":"Deny","to":[{"namespaces":{}}],"protocols":[]}]`), "spec.egress[0].protocols"},
		{protocol(`{}`), "spec.egress[0].protocols[0]"},
		{protocol(`{"tcp":{"destinationPort":{"number":1}},"udp":{"destinationPort":{"number":1}}}`), "spec.egress[0].protocols[0]"},
		{protocol(`{"tcp":{"destinationPort":{"number":1}},"destinationNamedPort":"a"}`), "spec.egress[0].protocols[0]"},
		{protocol(`{"destinationNamedPort":"A"}`), "spec.egress[0].protocols[0].destinationNamedPort"},
		{protocol(`{"tcp":{}}`), "spec.egress[0].protocols[0].tcp.destinationPort"},
		{protocol(`{"udp":{"destinationPort":{}}}`), "spec.egress[0].protocols[0].udp.destinationPort"},
		{protocol(`{"sctp":{"destinationPort":{"number":65536}}}`), "spec.egress[0].protocols[0].sctp.destinationPort.number"},
		{protocol(`{"tcp":{"destinationPort":{"number":1,"range":{"start":1,"end":2}}}}`), "spec.egress[0].protocols[0].tcp.destinationPort"},
		{protocol(`{"tcp":{"destinationPort":{"range":{"start":2,"end":2}}}}`), "spec.egress[0].protocols[0].tcp.destinationPort.range"},
		{protocol(`{"tcp":{"destinationPort":{"range":{"start":0,"end":2}}}}`), "spec.egress[0].protocols[0].tcp.destinationPort.range"},
	} {
		_, _, err := parseCluster(tt.spec)
		var fe *FieldError
		if !errors.As(err, &fe) || fe.Field != tt.field {
			t.Errorf("%s: %v, want a fault of %s", tt.spec, err, tt.field)
		}
	}
}

// TestParseClusterNetworkPolicyNames: what the object calls its rules is found again in
// explanations.
func TestParseClusterNetworkPolicyNames(t *testing.T) {
	t.Parallel()
	rules, _, err := parseCluster(`{"tier":"Baseline","priority":7,"subject":{"namespaces":{}},"ingress":[{"name":"no \"x\"","action":"Pass","from":[{"namespaces":{}}]}]}`)
	if err != nil {
		t.Fatal(err)
	}
	want := []any{TierBaseline, int32(7), `ingress[0] "no \"x\""`, true, [2]bool{}}
	got := []any{rules[0].Tier, rules[0].Priority, rules[0].Clauses[0].Path, rules[0].Clauses[0].Pass, rules[0].DefaultDeny}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// TestPassOfUnobserved: a peer that may be one that is passed on is not accepted for its address
// instead. Where nothing is accepted by address, it is left to other policies as ever.
func TestPassOfUnobserved(t *testing.T) {
	t.Parallel()
	policy := func(tier, rules string) []*Rule {
		out, _, err := parseCluster(`{"tier":"` + tier + `","subject":{"pods":{"namespaceSelector":{},"podSelector":{"matchLabels":{"app":"web"}}}},` + rules + `}`)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	const (
		passFriend    = `{"action":"Pass","to":[{"pods":{"namespaceSelector":{},"podSelector":{"matchLabels":{"app":"friend"}}}}]}`
		pass80        = `{"action":"Pass","to":[{"networks":["10.3.0.0/16"]},{"namespaces":{}}],"protocols":[{"tcp":{"destinationPort":{"number":80}}}]}`
		acceptNetwork = `{"action":"Accept","to":[{"networks":["10.0.0.0/8"]}]}`
		acceptEvil    = `{"action":"Accept","to":[{"pods":{"namespaceSelector":{},"podSelector":{"matchLabels":{"app":"evil"}}}}]}`
	)
	// Of the namespace: only what has port 443, and never a friend.
	ordinary, err := parseJSON("a", `{"endpointSelector":{"matchLabels":{"app":"web"}},"egressDeny":[{"toEndpoints":[{"matchLabels":{"app":"friend"}}]}],
		"egress":[{"toEntities":["all"],"toPorts":[{"ports":[{"port":"443"}]}]}]}`)
	if err != nil {
		t.Fatal(err)
	}
	only443, err := parseJSON("a", `{"endpointSelector":{"matchLabels":{"app":"web"}},"egress":[{"toEntities":["all"],"toPorts":[{"ports":[{"port":"443"}]}]}]}`)
	if err != nil {
		t.Fatal(err)
	}
	const unobserved = "67108864" // identity.Unobserved
	for name, tt := range map[string]struct {
		owners map[Owner][]*Rule
		expect []string
	}{
		"accepted by address": {map[Owner][]*Rule{"admin": policy("Admin", `"egress":[`+passFriend+`,`+acceptNetwork+`]`), "o": ordinary}, []string{
			"out 300 301@10.2.0.1 tcp 80 deny", "out 300 302@10.2.0.1 tcp 80 allow", "out 300 world-ipv4@10.2.0.1 tcp 80 allow",
			"out 300 " + unobserved + "@10.2.0.1 tcp 80 deny", "out 300 init@10.2.0.1 tcp 80 deny", "out 300 unmanaged@10.2.0.1 tcp 443 deny",
		}},
		"accepted by another policy": {map[Owner][]*Rule{"1": policy("Admin", `"egress":[`+passFriend+`]`), "2": policy("Admin", `"egress":[`+acceptNetwork+`]`), "o": ordinary}, []string{
			"out 300 " + unobserved + "@10.2.0.1 tcp 80 deny", "out 300 302@10.2.0.1 tcp 80 allow",
		}},
		"baseline": {map[Owner][]*Rule{"b": policy("Baseline", `"egress":[`+passFriend+`,`+acceptNetwork+`]`)}, []string{
			"out 300 " + unobserved + "@10.2.0.1 tcp 80 deny", "out 300 301@10.2.0.1 tcp 80 allow",
		}},
		"passed on by address": {map[Owner][]*Rule{"admin": policy("Admin", `"egress":[`+pass80+`,`+acceptNetwork+`]`), "o": only443}, []string{
			"out 300 " + unobserved + "@10.3.0.1 tcp 80 deny", "out 300 " + unobserved + "@10.2.0.1 tcp 80 deny",
			"out 300 " + unobserved + "@10.3.0.1 tcp 443 allow", "out 300 " + unobserved + "@10.2.0.1 tcp 443 allow",
		}},
		"passed on by address, and allowed": {map[Owner][]*Rule{"admin": policy("Admin", `"egress":[`+pass80+`,`+acceptNetwork+`]`)}, []string{
			"out 300 " + unobserved + "@10.3.0.1 tcp 80 allow", "out 300 " + unobserved + "@10.2.0.1 tcp 80 deny",
		}},
		"accepted by labels": {map[Owner][]*Rule{"admin": policy("Admin", `"egress":[`+passFriend+`,`+acceptEvil+`]`), "o": only443}, []string{
			"out 300 " + unobserved + "@10.2.0.1 tcp 80 deny", "out 300 " + unobserved + "@10.2.0.1 tcp 443 allow", "out 300 302@10.2.0.1 tcp 80 allow",
		}},
		"other tier": {map[Owner][]*Rule{"admin": policy("Admin", `"egress":[`+passFriend+`]`), "b": policy("Baseline", `"egress":[`+acceptNetwork+`]`)}, []string{
			"out 300 " + unobserved + "@10.2.0.1 tcp 80 allow",
		}},
		"ingress": {map[Owner][]*Rule{"admin": policy("Admin", `"ingress":[{"action":"Pass","from":[{"namespaces":{}}]}],"egress":[`+acceptNetwork+`]`)}, []string{
			"in 300 " + unobserved + "@10.2.0.1 tcp 80 allow", "in 300 init@10.2.0.1 tcp 80 allow",
		}},
	} {
		w := newRefusedWorld(t, tt.owners)
		w.expect(name, tt.expect...)
		for _, line := range tt.expect {
			f := strings.Fields(line)
			peer, at, _ := strings.Cut(f[2], "@")
			port := map[string]uint16{"80": 80, "443": 443}[f[4]]
			from, to := Party{Identity: 300}, Party{Identity: mustID(t, peer), Addr: netip.MustParseAddr(at)}
			if f[0] == "in" {
				from, to = to, from
			}
			tr, err := w.e.Trace(from, to, datapath.ProtoTCP, port)
			if err != nil {
				t.Fatal(err)
			}
			side := tr.Egress
			if f[0] == "in" {
				side = tr.Ingress
			}
			if side.Verdict.Pass() != (f[5] == "allow") {
				t.Errorf("%s: %s: traced as\n%s", name, line, tr.String())
			}
		}
	}
}

// FuzzParseClusterNetworkPolicy: no object crashes the parser; rules that come out can be used, and
// mean what the oracle reads.
func FuzzParseClusterNetworkPolicy(f *testing.F) {
	f.Add(`{"tier":"Admin","subject":{"namespaces":{}},"ingress":[{"action":"Deny","from":[{"namespaces":{"matchLabels":{"team":"red"}}}],
		"protocols":[{"tcp":{"destinationPort":{"range":{"start":3,"end":900}}}},{"destinationNamedPort":"http"}]}]}`)
	f.Add(`{"tier":"Baseline","priority":3,"subject":{"pods":{"namespaceSelector":{},"podSelector":{"matchLabels":{"app":"x"}}}},
		"egress":[{"action":"Pass","to":[{"networks":["10.0.0.0/8","::/0"]}]},{"action":"Accept","to":[{"namespaces":{}}]}]}`)
	f.Fuzz(func(t *testing.T, spec string) {
		rules, p, err := parseCluster(spec)
		if err != nil {
			return
		}
		w := newWorld(randFor(spec))
		w.policies["fuzz"] = object{rules, oracle.FromClusterNetworkPolicy(p)}
		e, err := New(w.cfg)
		if err != nil {
			t.Fatal(err)
		}
		k := newKernel(t)
		w.load(t, e)
		k.sync(e)
		if err := w.compare(e, k, 50); err != nil {
			t.Fatal(err)
		}
	})
}

// TestOrderedDeltas: entries of tiers that lie in one another come and go, and while a delta is
// written every packet is evaluated as before or as after; the kernel of the tests checks that at
// each entry.
func TestOrderedDeltas(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(seed(t), 3))
	var rules, open string
	for i, action := range []string{"Accept", "Deny", "Pass"} {
		for j := range 2 {
			rules += fmt.Sprintf(`{"action":%q,"to":[{"namespaces":{}}],"protocols":[{"destinationNamedPort":"p%d"}]},`, action, 2*i+j)
		}
	}
	for _, r := range [][2]int{{64, 127}, {96, 111}, {0x1000, 0x1fff}} {
		open += fmt.Sprintf(`,{"action":"Deny","to":[{"namespaces":{}}],"protocols":[{"tcp":{"destinationPort":{"range":{"start":%d,"end":%d}}}}]}`, r[0], r[1])
	}
	parsed, _, err := parseCluster(`{"tier":"Admin","subject":{"namespaces":{}},"egress":[` + rules[:len(rules)-1] + open + `]}`)
	if err != nil {
		t.Fatal(err)
	}
	e, err := New(Defaults())
	if err != nil {
		t.Fatal(err)
	}
	set, err := labels.PodLabels(labels.Pod{Namespace: "a", Cluster: "default"})
	if err != nil {
		t.Fatal(err)
	}
	e.SetIdentity(300, set)
	e.SetIdentity(301, set.With(labels.New(labels.SourceK8s, "app", "x")))
	e.AddSubject(Subject{Identity: 300})
	if err := e.SetRules("o", parsed); err != nil {
		t.Fatal(err)
	}
	k := newKernel(t)
	k.sync(e)
	changed := 0
	for range 300 {
		switch rng.IntN(6) {
		case 0:
			e.RemoveIdentity(301)
		case 1:
			e.SetIdentity(301, set.With(labels.New(labels.SourceK8s, "app", "x")))
		}
		var ports []NamedPort
		for i := range 6 {
			for range rng.IntN(3) {
				ports = append(ports, NamedPort{fmt.Sprintf("p%d", i), datapath.ProtoTCP, []uint16{80, 100, 127, 0x1234, 9}[rng.IntN(5)]})
			}
		}
		if err := e.SetNamedPorts(identity.ID(301), FormatNamedPorts(ports)); err != nil {
			t.Fatal(err)
		}
		changed += len(k.sync(e).Deltas)
	}
	if changed < 100 {
		t.Fatalf("only %d deltas were written", changed)
	}
}
