package policy

import (
	"math/rand/v2"
	"net/netip"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"
	"sigs.k8s.io/yaml"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/labels"
)

func TestLabelKeys(t *testing.T) {
	t.Parallel()
	const team = "io.cilium.k8s.namespace.labels.team"
	parse := map[string]func(text string) ([]*Rule, error){
		"cnp": func(text string) ([]*Rule, error) {
			var o v2.CiliumNetworkPolicy
			if err := yaml.Unmarshal([]byte("{metadata: {name: p, namespace: a}, "+text+"}"), &o); err != nil {
				return nil, err
			}
			return Parse(&o)
		},
		"ccnp": func(text string) ([]*Rule, error) {
			var o v2.CiliumClusterwideNetworkPolicy
			if err := yaml.Unmarshal([]byte("{metadata: {name: p}, "+text+"}"), &o); err != nil {
				return nil, err
			}
			return ParseClusterwide(&o)
		},
		"np": func(text string) ([]*Rule, error) {
			var o networkingv1.NetworkPolicy
			if err := yaml.Unmarshal([]byte("{metadata: {name: p, namespace: a}, "+text+"}"), &o); err != nil {
				return nil, err
			}
			return ParseNetworkPolicy(&o)
		},
		"cluster": func(text string) ([]*Rule, error) {
			var o policyv1alpha2.ClusterNetworkPolicy
			if err := yaml.Unmarshal([]byte("{metadata: {name: p}, "+text+"}"), &o); err != nil {
				return nil, err
			}
			return ParseClusterNetworkPolicy(&o)
		},
	}
	for _, c := range []struct {
		name, kind, text string
		want             labels.Keys
	}{
		{"subject and peer", "cnp", `spec: {endpointSelector: {matchLabels: {app: x}}, ingress: [{fromEndpoints: [{matchLabels: {tier: f}}]}]}`, labels.KeysOf("app", "tier")},
		{"sources do not count", "cnp", `spec: {endpointSelector: {matchLabels: {"k8s:app": x}}, ingress: [{fromEndpoints: [{matchLabels: {"any:tier": f}}]}]}`,
			labels.KeysOf("app", "tier")},
		{"every operator", "cnp", `spec: {endpointSelector: {}, egressDeny: [{toEndpoints: [{matchExpressions: [{key: a, operator: NotIn, values: [x]},
			{key: b, operator: DoesNotExist}, {key: c, operator: Exists}, {key: d, operator: In, values: [x, y]}]}]}]}`, labels.KeysOf("a", "b", "c", "d")},
		{"all of specs", "cnp", `specs: [{endpointSelector: {matchLabels: {a: x}}, ingress: [{}]}, {endpointSelector: {matchLabels: {b: x}}, egress: [{}]}]`,
			labels.KeysOf("a", "b")},
		{"labels of namespaces", "ccnp", `spec: {endpointSelector: {matchLabels: {"k8s:io.cilium.k8s.namespace.labels.team": red}}, ingress: [{}]}`, labels.KeysOf(team)},
		{"what always counts", "ccnp", `spec: {endpointSelector: {matchLabels: {"k8s:io.kubernetes.pod.namespace": a, io.cilium.k8s.policy.serviceaccount: sa}},
			ingress: [{fromEndpoints: [{matchLabels: {io.cilium.k8s.policy.cluster: c1}}, {matchLabels: {"reserved:host": ""}}], toPorts: [{ports: [{port: http}]}]}]}`,
			labels.Keys{}},
		{"no labels", "cnp", `spec: {endpointSelector: {}, egress: [{toCIDR: [10.0.0.0/8]}, {toEntities: [cluster]}]}`, labels.Keys{}},
		{"a named port of egress", "cnp", `spec: {endpointSelector: {}, egress: [{toEndpoints: [{matchLabels: {app: x}}], toPorts: [{ports: [{port: http}]}]}]}`, labels.AllKeys()},
		{"pods and namespaces", "np", `spec: {podSelector: {matchLabels: {app: x}}, ingress: [{from: [{namespaceSelector: {matchLabels: {team: red}}, podSelector: {matchLabels: {tier: f}}}]}]}`,
			labels.KeysOf("app", "tier", team)},
		{"a named port of egress, and nothing else", "np", `spec: {podSelector: {}, egress: [{ports: [{port: dns}]}]}`, labels.AllKeys()},
		{"of the cluster's administrator", "cluster", `spec: {tier: Admin, priority: 1, subject: {namespaces: {matchLabels: {team: red}}},
			ingress: [{action: Deny, from: [{pods: {namespaceSelector: {}, podSelector: {matchExpressions: [{key: app, operator: Exists}]}}}]}]}`, labels.KeysOf("app", team)},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			rules, err := parse[c.kind](c.text)
			if err != nil {
				t.Fatal(err)
			}
			if got := LabelKeys(rules); !got.Equal(c.want) {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}

// narrowed gives pods the identities that they have if only the labels count that the world's
// policies select: those with the same ones share an ID.
func (w *world) narrowed(e *Engine) (shared int) {
	var rules []*Rule
	for _, o := range w.policies {
		rules = append(rules, o.rules...)
	}
	keys := LabelKeys(rules)
	if keys.All() {
		return 0
	}
	numbers := map[string]identity.ID{}
	for i := range w.pods {
		p := &w.pods[i]
		set := p.set.Without(func(l labels.Label) bool { return !keys.Has(l.Key) && !l.Always() })
		id, known := numbers[set.KVString()]
		if known {
			shared++
			e.RemoveIdentity(p.id)
			e.RemoveSubject(Subject{Identity: p.id, NamedPorts: p.ports})
			p.id = id
			all, _ := ParseNamedPorts(e.ports[id])
			more, _ := ParseNamedPorts(p.ports)
			if err := e.SetNamedPorts(id, FormatNamedPorts(append(all, more...))); err != nil {
				panic(err) // both were read before
			}
			e.AddSubject(Subject{Identity: p.id, NamedPorts: p.ports})
			continue
		}
		numbers[set.KVString()] = p.id
		e.SetIdentity(p.id, set)
	}
	return shared
}

// TestVerdictsByRelevantLabels: verdicts of pods by the labels that policies select are those by
// all of their labels, which the oracle gets. It is what "CID lazy creation" of CFP-27752 rests
// on.
func TestVerdictsByRelevantLabels(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(seed(t), 7))
	const perWorld = 40
	shared := 0
	for range cases(t) / perWorld {
		w := newWorld(rng)
		// Few policies with few labels each, so that something can be left out.
		for o := range w.policies {
			if len(w.policies) > 2 {
				delete(w.policies, o)
			}
		}
		for range 6 {
			w.pods = append(w.pods, w.newPod(identity.ID(400+len(w.pods))))
		}
		e, err := New(w.cfg)
		if err != nil {
			t.Fatal(err)
		}
		k := newKernel(t)
		w.load(t, e)
		shared += w.narrowed(e)
		k.sync(e)
		if err := w.compare(e, k, perWorld); err != nil {
			t.Fatal(err)
		}
	}
	if shared == 0 {
		t.Error("no two pods ever shared an identity: nothing was tried")
	}
	t.Logf("%d pods shared an identity", shared)
}

func TestClosed(t *testing.T) {
	t.Parallel()
	rules := mustParse(t, "a", `{"endpointSelector": {"matchLabels": {"app": "x", "tier": "f"}}, "ingress": [{"fromEndpoints": [{"matchLabels": {"zone": "z"}}]}]}`)
	whole := labels.KeysOf("app", "tier", "zone")
	if r := Closed(rules[0], whole); r != rules[0] {
		t.Error("a rule that may be evaluated is another one")
	}
	closed := Closed(rules[0], labels.KeysOf("app"))
	if keys := LabelKeys([]*Rule{closed}); !keys.Equal(labels.KeysOf("app")) {
		t.Errorf("it needs %q", keys)
	}
	e, k := newEngine(t, Config{AllowNonDefaultDeny: true})
	for id, set := range map[identity.ID]labels.Set{1000: podSet(t, "a", "app=x"), 1001: podSet(t, "a", "app=y"), 1002: podSet(t, "b", "app=x")} {
		e.SetIdentity(id, set)
		e.AddSubject(Subject{Identity: id})
	}
	if err := e.SetRules("p", []*Rule{closed}); err != nil {
		t.Fatal(err)
	}
	k.sync(e)
	for _, c := range []struct {
		self identity.ID
		dir  datapath.Direction
		want bool
	}{{1000, datapath.Ingress, false}, {1000, datapath.Egress, true}, {1001, datapath.Ingress, true}, {1002, datapath.Ingress, true}} {
		v := e.Lookup(k.bind[Subject{Identity: c.self}].RuleSet, c.dir, 1001, netip.Addr{}, datapath.ProtoTCP, 80)
		if v.Pass() != c.want {
			t.Errorf("%s of %d: %v", c.dir, c.self, v)
		}
	}
	named := mustParse(t, "a", `{"endpointSelector": {}, "egress": [{"toPorts": [{"ports": [{"port": "http"}]}]}]}`)
	if r := Closed(named[0], whole); r == named[0] || !r.Clauses[0].Deny || r.Clauses[0].Direction != datapath.Egress {
		t.Errorf("a rule with a named port, of which not all keys are known: %+v", r)
	}
}

// TestClosedTiers: a rule of a tier has no entries of any peer, so that closed it denies all peers
// that it may be about.
func TestClosedTiers(t *testing.T) {
	t.Parallel()
	for _, spec := range []string{
		`{"tier":"Admin","subject":{"namespaces":{}},"ingress":[{"action":"Deny","from":[{"pods":{"namespaceSelector":{},"podSelector":{"matchExpressions":[{"key":"team","operator":"NotIn","values":["red"]}]}}}]}],
			"egress":[{"action":"Pass","to":[{"pods":{"namespaceSelector":{},"podSelector":{"matchLabels":{"team":"red"}}}}]}]}`,
		`{"tier":"Baseline","subject":{"namespaces":{}},"ingress":[{"action":"Accept","from":[{"pods":{"namespaceSelector":{},"podSelector":{"matchLabels":{"team":"red"}}}}]}],
			"egress":[{"action":"Deny","to":[{"pods":{"namespaceSelector":{},"podSelector":{"matchLabels":{"team":"blue"}}}}]}]}`,
	} {
		rules, _, err := parseCluster(spec)
		if err != nil {
			t.Fatal(err)
		}
		e, k := newEngine(t, Defaults())
		e.SetIdentity(1000, podSet(t, "a", "app=x"))
		e.SetIdentity(1001, podSet(t, "a", "team=blue"))
		block := identity.BlockScope + 1
		e.SetIdentity(block, identity.BlockLabels(netip.MustParsePrefix("0.0.0.0/0")))
		e.AddSubject(Subject{Identity: 1000})
		if err := e.SetRules("p", []*Rule{Closed(rules[0], labels.KeysOf("app"))}); err != nil {
			t.Fatal(err)
		}
		k.sync(e)
		for _, dir := range []datapath.Direction{datapath.Ingress, datapath.Egress} {
			for _, id := range []identity.ID{1001, identity.Unmanaged, identity.Unobserved} {
				if v := e.Lookup(k.bind[Subject{Identity: 1000}].RuleSet, dir, id, netip.Addr{}, datapath.ProtoTCP, 80); v != Denied {
					t.Errorf("%s of %s: %s with %d: %v", rules[0].Tier, dir, spec, id, v)
				}
			}
		}
	}
}
