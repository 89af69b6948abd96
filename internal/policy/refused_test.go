package policy

import (
	"encoding/json"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/labels"
)

// refusedWorld evaluates packets at pods of namespace a: 300 (app=web) is what the policy selects,
// 301 (app=friend) and 302 (app=evil) are others, 303 is of namespace b.
type refusedWorld struct {
	t *testing.T
	e *Engine
	k *kernel
}

func newRefusedWorld(t *testing.T, owners map[Owner][]*Rule) *refusedWorld {
	t.Helper()
	e, err := New(Defaults())
	if err != nil {
		t.Fatal(err)
	}
	w := &refusedWorld{t, e, newKernel(t)}
	for id, l := range map[identity.ID][2]string{300: {"a", "web"}, 301: {"a", "friend"}, 302: {"a", "evil"}, 303: {"b", "web"}} {
		set := labels.NewSet(labels.New("k8s", "app", l[1]), labels.New("k8s", labels.KeyNamespace, l[0]), labels.New("k8s", labels.KeyCluster, "default"))
		e.SetIdentity(id, set)
		e.AddSubject(Subject{Identity: id})
	}
	for o, rules := range owners {
		if err := e.SetRules(o, rules); err != nil {
			t.Fatal(err)
		}
	}
	w.k.sync(e)
	return w
}

// expect checks "in|out SUBJECT PEER[@ADDRESS] PROTO PORT allow|deny" for each line.
func (w *refusedWorld) expect(spec string, lines ...string) {
	w.t.Helper()
	for _, line := range lines {
		f := strings.Fields(line)
		dir := datapath.Ingress
		if f[0] == "out" {
			dir = datapath.Egress
		}
		proto, err := datapath.ParseProto(f[3])
		if err != nil {
			w.t.Fatal(err)
		}
		port := map[string]uint16{"80": 80, "53": 53, "443": 443, "8": 8}[f[4]]
		peer, addr, _ := strings.Cut(f[2], "@")
		at, err := netip.ParseAddr(addr)
		if addr != "" && err != nil {
			w.t.Fatal(err)
		}
		if got := w.k.evaluate(Subject{Identity: mustID(w.t, f[1])}, dir, mustID(w.t, peer), at, proto, port); got != (f[5] == "allow") {
			w.t.Errorf("%s\n\t%s: passes: %t", spec, line, got)
		}
	}
}

// TestRefusedIsolates: of a policy that cannot be enforced as it is written, grants never grow and
// denies never shrink, and whom it selects is isolated.
func TestRefusedIsolates(t *testing.T) {
	t.Parallel()
	web := func(sections string) string {
		return `{"endpointSelector":{"matchLabels":{"app":"web"}},` + sections + `}`
	}
	tests := []struct {
		namespace, spec string
		expect          []string
	}{
		{"a", web(`"ingress":[{"fromEndpoints":[{}],"toPorts":[{"ports":[{"port":"80"}],"rules":{"http":[{}]}},{"ports":[{"port":"443"}]}]}]`), []string{
			"in 300 301 tcp 80 deny", "in 300 301 tcp 443 allow", "out 300 301 tcp 80 allow", "in 301 300 tcp 80 allow", "in 303 301 tcp 80 allow",
		}},
		{"a", web(`"egress":[{"toFQDNs":[{"matchName":"x.y"}],"toPorts":[{"ports":[{"port":"443"}]}]}]`), []string{
			"out 300 301 tcp 443 deny", "out 300 world-ipv4 tcp 443 deny", "in 300 301 tcp 80 allow",
		}},
		{"a", web(`"egress":[{"toServices":[{}]},{"toEndpoints":[{"matchLabels":{"app":"friend"}}]}]`), []string{
			"out 300 301 tcp 443 allow", "out 300 302 tcp 443 deny",
		}},
		{"a", web(`"ingress":[{"fromEndpoints":[{"matchLabels":{"app":"friend"}}],"authentication":{"mode":"required"}}]`), []string{"in 300 301 tcp 80 deny"}},
		{"a", web(`"ingress":[{"fromNodes":[{}],"toPorts":[{"ports":[{"port":"80"}]}]}]`), []string{"in 300 301 tcp 80 deny", "in 300 remote-node tcp 80 deny"}},
		{"a", web(`"ingress":[{"fromGroups":[{}]}]`), []string{"in 300 301 tcp 80 deny"}},
		{"a", web(`"ingress":[{"fromEndpoints":[{"matchLabels":{"app":"friend"}},{"matchLabels":{":":"x"}}]}]`), []string{"in 300 301 tcp 80 allow", "in 300 302 tcp 80 deny"}},
		{"a", web(`"ingress":[{"fromEndpoints":[{"matchLabels":{"app":"friend"}}],"fromEntities":["world"]}]`), []string{"in 300 301 tcp 80 deny", "in 300 world-ipv4 tcp 80 deny"}},
		{"a", web(`"ingress":[{"fromCIDRSet":[{"cidr":"0.0.0.0/0","except":["10.0.0.0/33"]}]}]`), []string{"in 300 world-ipv4 tcp 80 deny"}},
		{"a", web(`"ingress":[{"fromEndpoints":[{}],"toPorts":[{"ports":[{"port":"080"}]}]}]`), []string{"in 300 301 tcp 80 deny"}},
		{"a", web(`"ingress":[{"fromEndpoints":[{}],"toPorts":[{"ports":[{"port":"80"}]}],"icmps":[{"fields":[{"type":8}]}]}]`), []string{"in 300 301 tcp 80 deny", "in 300 301 icmp 8 deny"}},
		{"a", web(`"ingress":[{"fromEndpoints":[{"matchLabels":{"app":"friend"}}]}],"log":{"value":"x"}`), []string{"in 300 301 tcp 80 allow", "in 300 302 tcp 80 deny"}},

		// Denies grow.
		{"a", web(`"ingressDeny":[{"fromEndpoints":[{"matchLabels":{"app":"evil"}}],"toPorts":[{"ports":[{"port":"080"}]}]}],"ingress":[{"fromEntities":["all"]}]`), []string{
			"in 300 302 tcp 80 deny", "in 300 302 icmp 8 deny", "in 300 301 tcp 80 allow",
		}},
		{"a", web(`"ingressDeny":[{"fromEndpoints":[{"matchLabels":{":":"x"}}],"toPorts":[{"ports":[{"port":"80"}]}]}],"ingress":[{"fromEntities":["all"]}]`), []string{
			"in 300 302 tcp 80 deny", "in 300 301 tcp 80 deny", "in 300 301 tcp 443 allow",
		}},
		{"a", web(`"egressDeny":[{"toCIDRSet":[{"cidrGroupRef":"bad"}]}],"egress":[{"toEntities":["all"]}]`), []string{"out 300 301 tcp 80 deny", "out 300 world-ipv4 tcp 80 deny"}},
		{"a", web(`"ingressDeny":[{"fromNodes":[{}]}],"ingress":[{"fromEntities":["all"]}]`), []string{"in 300 301 tcp 80 deny", "in 300 remote-node tcp 80 deny"}},
		{"a", web(`"egressDeny":[{"toCIDRSet":[{"cidr":"0.0.0.0/0","except":["x"]}]}],"egress":[{"toEntities":["all"]}]`), []string{"out 300 world-ipv4 tcp 80 deny"}},

		// Whom it is about is not known.
		{"a", `{"endpointSelector":{"matchLabels":{"app":"web",":":"x"}},"ingress":[{"fromEntities":["all"]}]}`, []string{
			"in 300 301 tcp 80 deny", "in 301 300 tcp 80 allow", "out 300 301 tcp 80 allow",
		}},
		{"a", `{"endpointSelector":{"matchExpressions":[{"key":"app","operator":"Is"}]},"ingressDeny":[{"fromEndpoints":[{"matchLabels":{"app":"evil"}}]}],"egress":[{"toEntities":["all"]}]}`, []string{
			"in 301 302 tcp 80 deny", "out 301 302 tcp 80 deny", "in 303 301 tcp 80 allow", "out 303 301 tcp 80 allow",
		}},
		{"a", `{"egress":[{"toEntities":["all"]}]}`, []string{"out 300 301 tcp 80 deny", "in 300 301 tcp 80 allow", "out 303 301 tcp 80 allow"}},
		{"", `{"endpointSelector":{"matchLabels":{":":"x"}},"ingressDeny":[{"fromEndpoints":[{}]}]}`, []string{"in 303 301 tcp 80 deny", "in 303 world-ipv4 tcp 80 deny", "out 303 301 tcp 80 allow"}},
		{"", `{"nodeSelector":{},"ingress":[{}]}`, []string{"in 300 301 tcp 80 allow"}},

		// What it is about is not known.
		{"a", `{"endpointSelector":{"matchLabels":{"app":"web"}}}`, []string{"in 300 301 tcp 80 deny", "out 300 301 tcp 80 deny"}},
		{"a", web(`"egress":[]`), []string{"in 300 301 tcp 80 allow", "out 300 301 tcp 80 deny"}},

		// One that chooses not to isolate does not.
		{"a", web(`"ingress":[{"fromRequires":[{}]}],"enableDefaultDeny":{"ingress":false}`), []string{"in 300 301 tcp 80 allow"}},
	}
	for _, tt := range tests {
		rules, err := parseJSON(tt.namespace, tt.spec)
		if err == nil {
			t.Errorf("%s: accepted", tt.spec)
			continue
		}
		for _, r := range rules {
			if len(r.Faults) == 0 {
				t.Errorf("%s: the rule does not name its faults", tt.spec)
			}
		}
		newRefusedWorld(t, map[Owner][]*Rule{"o": rules}).expect(tt.spec, tt.expect...)
	}
}

// TestRefusedNetworkPolicy: the same of the kind of Kubernetes, if one gets past the API server.
func TestRefusedNetworkPolicy(t *testing.T) {
	t.Parallel()
	np := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "p"}}
	np.Spec.PodSelector.MatchLabels = map[string]string{"app": "web"}
	np.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{
		{From: []networkingv1.NetworkPolicyPeer{
			{PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "friend"}}},
			{PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"": "x"}}},
			{IPBlock: &networkingv1.IPBlock{CIDR: "0.0.0.0/0", Except: []string{"x"}}},
			{},
		}},
		{From: []networkingv1.NetworkPolicyPeer{{}}},
	}
	rules, err := ParseNetworkPolicy(np)
	if err == nil || len(rules) != 1 || len(rules[0].Faults) != 4 {
		t.Fatalf("%v, %+v", err, rules)
	}
	newRefusedWorld(t, map[Owner][]*Rule{"o": rules}).expect("a NetworkPolicy", "in 300 301 tcp 80 allow", "in 300 302 tcp 80 deny", "in 300 world-ipv4 tcp 80 deny", "out 300 301 tcp 80 allow")

	np.Spec.PodSelector.MatchLabels = map[string]string{"": "web"}
	rules, err = ParseNetworkPolicy(np)
	if err == nil {
		t.Fatal("accepted")
	}
	newRefusedWorld(t, map[Owner][]*Rule{"o": rules}).expect("an unreadable podSelector", "in 300 301 tcp 80 deny", "in 302 301 tcp 80 deny", "in 303 301 tcp 80 allow")
}

// TestUnread: what could not be read into the types counts as not understood, where it stands.
func TestUnread(t *testing.T) {
	t.Parallel()
	base := mustUnmarshal(t, `{"endpointSelector":{"matchLabels":{"app":"web"}},"ingress":[{"fromEndpoints":[{"matchLabels":{"app":"friend"}}]},{}],"ingressDeny":[{}]}`)
	parse := func(fields ...string) []*Rule {
		var faults []*FieldError
		for _, f := range fields {
			faults = append(faults, &FieldError{Field: f, Problem: "is not a field"})
		}
		rules, err := Parse(base, WithFaults(faults))
		var fe *FieldError
		if !errors.As(err, &fe) || len(rules) != 1 || !slices.ContainsFunc(rules[0].Faults, func(s string) bool { return strings.HasPrefix(s, fields[0]) }) {
			t.Fatalf("%v: %v, %+v", fields, err, rules)
		}
		return rules
	}
	newRefusedWorld(t, map[Owner][]*Rule{"o": parse("spec.ingress[1].with")}).expect("an entry", "in 300 301 tcp 80 allow", "in 300 302 tcp 80 deny")
	newRefusedWorld(t, map[Owner][]*Rule{"o": parse("spec.ingress[0].with")}).expect("another entry", "in 300 301 tcp 80 deny")
	newRefusedWorld(t, map[Owner][]*Rule{"o": parse("spec.ingressDeny[0]")}).expect("a deny", "in 300 301 tcp 80 deny")
	newRefusedWorld(t, map[Owner][]*Rule{"o": parse("spec.when")}).expect("the rule", "in 300 301 tcp 80 deny", "in 301 302 tcp 80 allow")
}

// TestRefusedClusterNetworkPolicy: an entry that is not understood accepts nothing, and denies at
// least what it says.
func TestRefusedClusterNetworkPolicy(t *testing.T) {
	t.Parallel()
	for spec, expect := range map[string][]string{
		`{"tier":"Admin","subject":{"pods":{"namespaceSelector":{},"podSelector":{"matchLabels":{"app":"web"}}}},
		  "egress":[{"action":"Accept","to":[{"domainNames":["x.y"]},{"namespaces":{}}]},{"action":"Deny","to":[{"nodes":{}}],"protocols":[{"tcp":{"destinationPort":{"number":80}}}]}]}`: {
			"out 300 301 tcp 80 allow", "out 300 world-ipv4 tcp 443 allow", "out 301 302 tcp 80 allow",
		},
		`{"tier":"Admin","subject":{"pods":{"namespaceSelector":{},"podSelector":{"matchLabels":{"app":"web"}}}},
		  "egress":[{"action":"Deny","to":[{"nodes":{}}],"protocols":[{"tcp":{"destinationPort":{"number":80}}}]}]}`: {
			"out 300 301 tcp 80 deny", "out 300 301 tcp 443 allow", "in 300 301 tcp 80 allow",
		},
		`{"tier":"Admin","subject":{"pods":{"namespaceSelector":{},"podSelector":{"matchLabels":{"app":"web"}}}},
		  "ingress":[{"action":"Pass","from":[{"pods":{"namespaceSelector":{},"podSelector":{"matchLabels":{"":"x"}}}}]},
		  {"action":"Deny","from":[{"pods":{"namespaceSelector":{},"podSelector":{"matchLabels":{"app":"evil"}}}}],"protocols":[{}]}]}`: {
			"in 300 302 tcp 80 deny", "in 300 302 icmp 8 deny", "in 300 301 tcp 80 deny", "in 301 302 tcp 80 allow",
		},
		// What a Pass may be about is not for a later Accept, whatever it does not understand.
		`{"tier":"Admin","subject":{"pods":{"namespaceSelector":{},"podSelector":{"matchLabels":{"app":"web"}}}},
		  "egress":[{"action":"Pass","to":[{"nodes":{}}],"protocols":[{"tcp":{"destinationPort":{"number":80}}}]},{"action":"Accept","to":[{"namespaces":{}},{"networks":["10.0.0.0/8"]}]}]}`: {
			"out 300 301 tcp 80 deny", "out 300 301 tcp 443 allow", "out 300 remote-node@10.2.0.1 tcp 80 deny", "out 300 remote-node@10.2.0.1 tcp 443 allow",
			"out 300 world-ipv4@10.2.0.1 tcp 80 deny", "out 301 302 tcp 80 allow",
		},
		`{"tier":"Admin","subject":{"pods":{"namespaceSelector":{},"podSelector":{"matchLabels":{"app":"web"}}}},
		  "egress":[{"action":"Pass","to":[{"pods":{"namespaceSelector":{},"podSelector":{"matchLabels":{"app":"friend"}}}},{"domainNames":["x.y"]}]},{"action":"Accept","to":[{"networks":["10.0.0.0/8"]}]}]}`: {
			"out 300 301@10.2.0.1 tcp 80 allow", "out 300 302@10.2.0.1 tcp 80 deny", "out 300 world-ipv4@10.2.0.1 tcp 80 deny",
		},
		`{"tier":"Admin","subject":{"pods":{"namespaceSelector":{},"podSelector":{"matchLabels":{"app":"web"}}}},
		  "egress":[{"action":"Pass","to":[{"pods":{"namespaceSelector":{},"podSelector":{"matchLabels":{"app":"friend"}}}}],"protocols":[{"tcp":{"destinationPort":{"number":80}}},{}]},
		  {"action":"Accept","to":[{"networks":["10.0.0.0/8"]}]}]}`: {
			"out 300 301@10.2.0.1 tcp 80 allow", "out 300 301@10.2.0.1 tcp 443 deny", "out 300 302@10.2.0.1 tcp 443 allow",
		},
		`{"tier":"Admin","priority":-1,"subject":{"namespaces":{}},"ingress":[{"action":"Pass","from":[{"pods":{"namespaceSelector":{},"podSelector":{"matchLabels":{"app":"evil"}}}}]},
		  {"action":"Accept","from":[{"namespaces":{}}]}]}`: {
			"in 300 302 tcp 80 deny", "in 300 301 tcp 80 allow", "out 300 302 tcp 80 allow",
		},
		`{"tier":"Admin","subject":{"namespaces":{"matchLabels":{"":"x"}}},"ingress":[{"action":"Accept","from":[{"namespaces":{}}]},
		  {"action":"Deny","from":[{"pods":{"namespaceSelector":{},"podSelector":{"matchLabels":{"app":"evil"}}}}]}]}`: {
			"in 300 302 tcp 80 deny", "in 303 302 tcp 80 deny", "in 303 301 tcp 80 allow",
		},
		`{"tier":"Admin","subject":{"namespaces":{}},"ingress":[{"action":"Log","from":[{"namespaces":{"matchLabels":{"a":"b"}}}]}]}`: {"in 300 302 tcp 80 deny"},
		`{"tier":"Middle","subject":{"namespaces":{}},"egress":[{"action":"Deny","to":[{"namespaces":{}}]}]}`:                         {"out 300 302 tcp 80 deny"},
		// A fault elsewhere does not hide that a deny names no peer.
		`{"tier":"Admin","priority":1001,"subject":{"namespaces":{}},"ingress":[{"action":"Deny","from":[]}],"egress":[{"action":"Deny"}]}`: {"in 300 302 tcp 80 deny", "out 300 302 tcp 80 deny"},
	} {
		p := &policyv1alpha2.ClusterNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: "p"}}
		if err := json.Unmarshal([]byte(spec), &p.Spec); err != nil {
			t.Fatal(err)
		}
		rules, err := ParseClusterNetworkPolicy(p)
		if err == nil || len(rules) != 1 || len(rules[0].Faults) == 0 {
			t.Errorf("%s: %v, %+v", spec, err, rules)
			continue
		}
		newRefusedWorld(t, map[Owner][]*Rule{"o": rules}).expect(spec, expect...)
	}
}

// TestRefusedIsTraced: a trace says that a policy is not enforced as it is written.
func TestRefusedIsTraced(t *testing.T) {
	t.Parallel()
	rules, _ := parseJSON("a", `{"endpointSelector":{"matchLabels":{"app":"web"}},"ingress":[{"toPorts":[{"ports":[{"port":"80"}],"rules":{"http":[{}]}}]}]}`)
	w := newRefusedWorld(t, map[Owner][]*Rule{"o": rules})
	tr, err := w.e.Trace(Party{Identity: 301}, Party{Identity: 300}, datapath.ProtoTCP, 80)
	if want := "o spec is not fully enforced: spec.ingress[0].toPorts[0].rules.http: is not supported"; err != nil || tr.Allowed || !strings.Contains(tr.Ingress.Why, want) {
		t.Errorf("%v\n%s\nwant %q", err, tr.String(), want)
	}
}
