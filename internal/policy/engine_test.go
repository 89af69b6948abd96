package policy

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"testing"

	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/labels"
)

func newEngine(t *testing.T, cfg Config) (*Engine, *kernel) {
	t.Helper()
	e, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return e, newKernel(t)
}

func podSet(t *testing.T, ns string, kvs ...string) labels.Set {
	t.Helper()
	p := labels.Pod{Namespace: ns, Cluster: "default", Labels: map[string]string{}}
	for _, s := range kvs {
		k, v, _ := strings.Cut(s, "=")
		p.Labels[k] = v
	}
	set, err := labels.PodLabels(p)
	if err != nil {
		t.Fatal(err)
	}
	return set
}

func setRules(t *testing.T, e *Engine, o Owner, ns, spec string) {
	t.Helper()
	if err := e.SetRules(o, mustParse(t, ns, spec)); err != nil {
		t.Fatal(err)
	}
}

// TestUnknownLabels: an endpoint whose labels are not known has no rule set, and so passes nothing.
func TestUnknownLabels(t *testing.T) {
	t.Parallel()
	e, k := newEngine(t, Defaults())
	sub := Subject{Identity: 300}
	e.AddSubject(sub)
	u := k.sync(e)
	if b := u.Bind[sub]; b.RuleSet != 0 || b.Generation == 0 {
		t.Fatalf("bound to %+v", b)
	}
	e.SetIdentity(300, podSet(t, "a"))
	if b := k.sync(e).Bind[sub]; b.RuleSet == 0 {
		t.Fatal("not bound once the labels are known")
	}
	// The labels of an endpoint in use cannot be lost.
	e.RemoveIdentity(300)
	if u := k.sync(e); len(u.Bind) > 0 {
		t.Fatalf("removing the identity gives %+v", u)
	}
	setRules(t, e, "o", "a", `{"endpointSelector":{},"ingress":[{}]}`)
	if k.sync(e); k.evaluate(sub, datapath.Ingress, identity.RemoteNode, netip.Addr{}, datapath.ProtoTCP, 80) {
		t.Error("a rule does not reach an endpoint whose identity was removed")
	}
	if v := e.Lookup(12345, datapath.Ingress, 1, netip.Addr{}, datapath.ProtoTCP, 80); v != NoRuleSet || v.Pass() {
		t.Errorf("a rule set that is not there gives %v", v)
	}
}

// TestSubjectReferences: a subject stays until its last endpoint goes.
func TestSubjectReferences(t *testing.T) {
	t.Parallel()
	e, k := newEngine(t, Defaults())
	e.SetIdentity(300, podSet(t, "a"))
	sub := Subject{Identity: 300}
	e.AddSubject(sub)
	e.AddSubject(sub)
	k.sync(e)
	e.RemoveSubject(sub)
	if u := k.sync(e); !u.Empty() {
		t.Fatalf("the last but one gives %+v", u)
	}
	e.RemoveSubject(sub)
	delete(k.bind, sub)
	if u := k.sync(e); len(u.Remove) != 1 || len(u.Bind) != 0 {
		t.Fatalf("the last one gives %+v", u)
	}
	e.RemoveSubject(sub) // of nothing is fine
}

// TestNumbersGoOn: after a restart IDs start above those that may still be in the kernel.
func TestNumbersGoOn(t *testing.T) {
	t.Parallel()
	cfg := Defaults()
	cfg.LastRuleSet, cfg.LastGeneration = 41, 99
	e, k := newEngine(t, cfg)
	e.SetIdentity(300, podSet(t, "a"))
	e.AddSubject(Subject{Identity: 300})
	if b := k.sync(e).Bind[Subject{Identity: 300}]; b != (Binding{42, 100}) {
		t.Errorf("bound to %+v", b)
	}
}

// TestSetRulesErrors: on error nothing changes.
func TestSetRulesErrors(t *testing.T) {
	t.Parallel()
	e, k := newEngine(t, Defaults())
	e.SetIdentity(300, podSet(t, "a"))
	e.AddSubject(Subject{Identity: 300})
	setRules(t, e, "o", "a", `{"endpointSelector":{},"ingress":[{}]}`)
	k.sync(e)
	good := mustParse(t, "a", `{"endpointSelector":{},"egress":[{}]}`)
	if err := e.SetRules("o", append(good, nil)); err == nil {
		t.Fatal("a nil rule is accepted")
	}
	if err := e.SetRules("o", append(good, &Rule{})); err == nil {
		t.Fatal("an empty rule is accepted")
	}
	if u := k.sync(e); !u.Empty() {
		t.Fatalf("an error changes %+v", u)
	}
	if _, err := New(Config{DualStack: true, IPv6Only: true}); err == nil {
		t.Error("a contradictory configuration is accepted")
	}
	if err := e.SetNamedPorts(300, "nonsense"); err == nil {
		t.Error("broken named ports are accepted")
	}
}

// TestSingleStack: without both families the identity world stands for one of them only.
func TestSingleStack(t *testing.T) {
	t.Parallel()
	for _, v6 := range []bool{false, true} {
		cfg := Defaults()
		cfg.DualStack, cfg.IPv6Only = false, v6
		e, k := newEngine(t, cfg)
		e.SetIdentity(300, podSet(t, "a", "n=1"))
		e.SetIdentity(301, podSet(t, "a", "n=2"))
		e.AddSubject(Subject{Identity: 300})
		e.AddSubject(Subject{Identity: 301})
		setRules(t, e, "4", "a", `{"endpointSelector":{"matchLabels":{"n":"1"}},"egress":[{"toCIDR":["0.0.0.0/0"]}]}`)
		setRules(t, e, "6", "a", `{"endpointSelector":{"matchLabels":{"n":"2"}},"egress":[{"toCIDR":["::/0"]}]}`)
		k.sync(e)
		if got := k.evaluate(Subject{Identity: 300}, datapath.Egress, identity.World, netip.Addr{}, datapath.ProtoTCP, 80); got == v6 {
			t.Errorf("IPv6 only %v: 0.0.0.0/0 lets the world pass: %v", v6, got)
		}
		if got := k.evaluate(Subject{Identity: 301}, datapath.Egress, identity.World, netip.Addr{}, datapath.ProtoTCP, 80); got != v6 {
			t.Errorf("IPv6 only %v: ::/0 lets the world pass: %v", v6, got)
		}
	}
}

// TestWorldOfOneFamily: what is outside belongs to world and to the entity of its family, in
// clusters of both families and of one, where its label names none.
func TestWorldOfOneFamily(t *testing.T) {
	t.Parallel()
	families := map[string]func(*Config){
		"dual-stack": func(*Config) {},
		"IPv4":       func(c *Config) { c.DualStack = false },
		"IPv6":       func(c *Config) { c.DualStack, c.IPv6Only = false, true },
	}
	peers := []string{`"%[1]sEntities":[%[2]q]`, `"%[1]sEndpoints":[{"matchLabels":{"reserved:%[2]s":""}}]`}
	for family, set := range families {
		for _, entity := range []string{"world", "world-ipv4", "world-ipv6"} {
			for _, list := range peers {
				for _, deny := range []bool{false, true} {
					cfg := Defaults()
					set(&cfg)
					e, k := newEngine(t, cfg)
					e.SetIdentity(300, podSet(t, "a"))
					e.AddSubject(Subject{Identity: 300})
					rules := fmt.Sprintf(`"ingress":[{%s}],"egress":[{%s}]`, fmt.Sprintf(list, "from", entity), fmt.Sprintf(list, "to", entity))
					if deny {
						rules = strings.NewReplacer("ingress", "ingressDeny", "egress", "egressDeny").Replace(rules) +
							`,"ingress":[{"fromEntities":["all"]}],"egress":[{"toEntities":["all"]}]`
					}
					// Prefixes have identities of their own.
					setRules(t, e, "prefixes", "a", `{"endpointSelector":{},"egress":[{"toCIDR":["192.0.2.0/24","2001:db8::/32"],"toPorts":[{"ports":[{"port":"1","protocol":"SCTP"}]}]}]}`)
					setRules(t, e, "o", "a", `{"endpointSelector":{},`+rules+`}`)
					k.sync(e)
					for _, text := range []string{"192.0.2.1", "198.51.100.1", "2001:db8::1", "2001:db9::1"} {
						a := netip.MustParseAddr(text)
						if !cfg.DualStack && a.Is4() == cfg.IPv6Only {
							continue // the cluster has no such packets
						}
						named := entity == "world" || entity == "world-ipv4" && a.Is4() || entity == "world-ipv6" && a.Is6()
						for _, dir := range []datapath.Direction{datapath.Ingress, datapath.Egress} {
							got := k.evaluate(Subject{Identity: 300}, dir, k.resolve(&cfg, a), a, datapath.ProtoTCP, 80)
							if got != (named != deny) {
								t.Errorf("%s: %v of %v with {%s} passes: %v", family, dir, a, rules, got)
							}
						}
					}
				}
			}
		}
	}
}

// TestCIDRsBeforeRules: a deny of a prefix is in force from the first rule set on, if the prefix
// gets its identity before SetRules.
func TestCIDRsBeforeRules(t *testing.T) {
	t.Parallel()
	e, _ := newEngine(t, Defaults())
	e.SetIdentity(300, podSet(t, "a"))
	e.AddSubject(Subject{Identity: 300})
	rules := mustParse(t, "a", `{"endpointSelector":{},"egress":[{"toEntities":["world"]}],"egressDeny":[{"toCIDRSet":[{"cidr":"10.0.0.0/8","except":["10.1.0.0/16"]}]}]}`)
	prefixes := CIDRs(rules)
	if len(prefixes) != 2 || prefixes[0] != netip.MustParsePrefix("10.0.0.0/8") || prefixes[1] != netip.MustParsePrefix("10.1.0.0/16") {
		t.Fatalf("prefixes %v", prefixes)
	}
	for i, p := range prefixes {
		e.SetIdentity(identity.LocalScope+1+identity.ID(i), identity.CIDRLabels(p, true))
	}
	if err := e.SetRules("o", rules); err != nil {
		t.Fatal(err)
	}
	u := e.Flush()
	if len(u.Install) != 1 || len(u.Deltas) != 0 {
		t.Fatalf("got %+v", u)
	}
	rs := u.Install[0].ID
	if e.Lookup(rs, datapath.Egress, identity.LocalScope+1, netip.Addr{}, datapath.ProtoTCP, 1).Pass() || !e.Lookup(rs, datapath.Egress, identity.LocalScope+2, netip.Addr{}, datapath.ProtoTCP, 1).Pass() {
		t.Error("the deny of the prefix is not in force")
	}
}

// TestMinimalEntries: what any peer may or may not do is not repeated for each identity.
func TestMinimalEntries(t *testing.T) {
	t.Parallel()
	cfg := Defaults()
	cfg.AllowLocalhost = false
	e, k := newEngine(t, cfg)
	for id := identity.ID(300); id < 400; id++ {
		e.SetIdentity(id, podSet(t, "a", "n="+id.String()))
	}
	e.AddSubject(Subject{Identity: 300})
	setRules(t, e, "o", "a", `{"endpointSelector":{},
		"ingress":[{"fromEndpoints":[{}],"toPorts":[{"ports":[{"port":"80","endPort":95,"protocol":"TCP"}]}]},{"fromEntities":["all"],"toPorts":[{"ports":[{"port":"64","endPort":127,"protocol":"TCP"}]}]}],
		"ingressDeny":[{"toPorts":[{"ports":[{"port":"443"}]}]},{"fromEndpoints":[{}],"toPorts":[{"ports":[{"port":"443"}]}]}],
		"egress":[{"toEndpoints":[{}]}],"enableDefaultDeny":{"egress":false}}`)
	u := k.sync(e)
	if n := len(u.Install[0].Entries); n != 4 || u.Install[0].EgressEnforced {
		t.Errorf("%d entries, want 4: %v", n, u.Install[0].Entries)
	}
}

func TestTrace(t *testing.T) {
	t.Parallel()
	e, k := newEngine(t, Defaults())
	e.SetIdentity(300, podSet(t, "a", "app=web"))
	e.SetIdentity(301, podSet(t, "a", "app=front"))
	e.SetIdentity(302, podSet(t, "b", "app=front"))
	setRules(t, e, "f/a/web", "a", `{"endpointSelector":{"matchLabels":{"app":"web"}},
		"ingress":[{"fromEndpoints":[{"matchLabels":{"app":"front"}}],"toPorts":[{"ports":[{"port":"80","protocol":"TCP"}]}]}],
		"ingressDeny":[{"fromEntities":["world"]}]}`)
	k.sync(e)
	tests := []struct {
		from Party
		port uint16
		pass bool
		want []string
	}{
		{Party{Identity: 301}, 80, true, []string{"* f/a/web spec.ingress[0]: allow {any:app=front}@a@local on 80/TCP", "enforced by CiliumNetworkPolicy a/web spec", "verdict: allowed"}},
		{Party{Identity: 301}, 81, false, []string{"but the port does not match", "ingress: denied by default"}},
		{Party{Identity: 302}, 80, false, []string{"but the peer does not match"}},
		{Party{Identity: identity.WorldIPv4}, 80, false, []string{"* f/a/web spec.ingressDeny[0]: deny entity:world on ANY", "egress: allowed by default (not an endpoint"}},
		{Party{Identity: identity.Host}, 1, true, []string{"* (allow-localhost): allow entity:host on ANY"}},
		{Party{Labels: podSet(t, "a", "app=front", "x=y")}, 80, true, []string{"egress: allowed by default (not enforced"}},
	}
	for _, tt := range tests {
		r, err := e.Trace(tt.from, Party{Identity: 300}, datapath.ProtoTCP, tt.port)
		if err != nil {
			t.Fatal(err)
		}
		text := r.String()
		if r.Allowed != tt.pass {
			t.Errorf("%+v port %d: allowed %v\n%s", tt.from, tt.port, r.Allowed, text)
		}
		for _, want := range tt.want {
			if !strings.Contains(text, want) {
				t.Errorf("%+v port %d: %q is not in\n%s", tt.from, tt.port, want, text)
			}
		}
	}
	if _, err := e.Trace(Party{Identity: 999}, Party{Identity: 300}, datapath.ProtoTCP, 80); err == nil {
		t.Error("an identity that is not known is no error")
	}
}

// TestNamedPortsOfAll: the named ports of an identity are those of all pods that have it, to the
// kernel and to a trace, and stay while the identity is not known.
func TestNamedPortsOfAll(t *testing.T) {
	t.Parallel()
	e, k := newEngine(t, Defaults())
	client := Subject{Identity: 300}
	e.SetIdentity(300, podSet(t, "a", "app=client"))
	e.SetIdentity(301, podSet(t, "a", "app=web"))
	e.AddSubject(client)
	if err := e.SetNamedPorts(301, "http.TCP.80_http.TCP.8080"); err != nil {
		t.Fatal(err)
	}
	setRules(t, e, "o", "a", `{"endpointSelector":{"matchLabels":{"app":"client"}},
		"egress":[{"toEndpoints":[{"matchLabels":{"app":"web"}}],"toPorts":[{"ports":[{"port":"http","protocol":"TCP"}]}]}]}`)
	check := func() {
		t.Helper()
		k.sync(e)
		set, _ := e.Labels(301)
		for port, want := range map[uint16]bool{80: true, 8080: true, 81: false} {
			v := e.Lookup(k.bind[client].RuleSet, datapath.Egress, 301, netip.Addr{}, datapath.ProtoTCP, port)
			if v.Pass() != want {
				t.Errorf("port %d: %v", port, v)
			}
			for _, own := range []string{"http.TCP.80", "http.TCP.8080", ""} {
				r, err := e.Trace(Party{Identity: 300}, Party{Identity: 301, SeenAs: 301, Labels: set, NamedPorts: own}, datapath.ProtoTCP, port)
				if err != nil {
					t.Fatal(err)
				}
				if r.Egress.Verdict != v {
					t.Errorf("port %d of a pod with %q: the kernel has %v\n%s", port, own, v, r.String())
				}
			}
		}
	}
	check()
	set, _ := e.Labels(301)
	e.RemoveIdentity(301)
	k.sync(e)
	e.SetIdentity(301, set)
	check()
}

// TestUnobservedIsNotAllowed: a selector allows an identity that is not observed by reserved labels
// only, and a deny of pods denies it although the selector names reserved labels, too.
func TestUnobservedIsNotAllowed(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		peers string
		allow Verdict // of an allow with these peers, without a deny
		deny  Verdict // of a deny with these peers, beside an allow of all
	}{
		{`{"matchExpressions":[{"key":"app","operator":"NotIn","values":["evil"]}]}`, DefaultDenied, Denied},
		{`{"matchExpressions":[{"key":"reserved:host","operator":"DoesNotExist"},{"key":"app","operator":"NotIn","values":["evil"]}]}`, DefaultDenied, Denied},
		{`{"matchExpressions":[{"key":"reserved:host","operator":"DoesNotExist"},{"key":"k8s:io.kubernetes.pod.namespace","operator":"NotIn","values":["b"]}]}`, DefaultDenied, Denied},
		{`{"matchExpressions":[{"key":"reserved:host","operator":"DoesNotExist"}]}`, Allowed, Denied},
		{`{"matchExpressions":[{"key":"reserved:host","operator":"Exists"},{"key":"app","operator":"DoesNotExist"}]}`, DefaultDenied, Allowed},
		{`{"matchLabels":{"reserved:health":""}}`, DefaultDenied, Allowed},
	} {
		for spec, want := range map[string]Verdict{
			`"ingress":[{"fromEndpoints":[` + tt.peers + `]}]`:                                          tt.allow,
			`"ingress":[{"fromEntities":["all"]}],"ingressDeny":[{"fromEndpoints":[` + tt.peers + `]}]`: tt.deny,
		} {
			e, k := newEngine(t, Defaults())
			e.SetIdentity(300, podSet(t, "a", "app=web"))
			e.AddSubject(Subject{Identity: 300})
			setRules(t, e, "o", "a", `{"endpointSelector":{},`+spec+`}`)
			k.sync(e)
			if v := e.Lookup(k.bind[Subject{Identity: 300}].RuleSet, datapath.Ingress, identity.Unobserved, netip.Addr{}, datapath.ProtoTCP, 80); v != want {
				t.Errorf("%s: %v, not %v", spec, v, want)
			}
		}
	}
}

// TestDenyOfUnobserved: a deny of what may be a pod with an identity that is not observed denies
// that one. By names, looked up at the peer, it denies every port, as the names of such a peer are
// not known either.
func TestDenyOfUnobserved(t *testing.T) {
	t.Parallel()
	const (
		toDB = `"toEndpoints":[{"matchLabels":{"app":"db"}}]`
		pg   = `"toPorts":[{"ports":[{"port":"pg","protocol":"TCP"}]}]`
		http = `"toPorts":[{"ports":[{"port":"http","protocol":"TCP"}]}]`
	)
	tier := func(action, peers, protocols string) string {
		return `{"tier":"Admin","subject":{"namespaces":{}},"egress":[{"action":"` + action + `","to":[` + peers + `],"protocols":[` + protocols + `]},
			{"action":"Accept","to":[{"networks":["0.0.0.0/0"]}]}]}`
	}
	out, in := datapath.Egress, datapath.Ingress
	for _, tt := range []struct {
		spec   string
		dir    datapath.Direction
		denied string // ports, of TCP unless stated
		passes string
	}{
		{`"egressDeny":[{` + toDB + `,` + pg + `}]`, out, "5432 80", "udp/5432 icmp/8"},
		{`"egressDeny":[{` + toDB + `,"toPorts":[{"ports":[{"port":"5432","protocol":"TCP"},{"port":"dns"}]}]}]`, out, "5432 80 udp/80", "icmp/8"},
		{`"egressDeny":[{` + toDB + `,"toPorts":[{"ports":[{"port":"5432","protocol":"TCP"}]}]}]`, out, "5432", "80 udp/5432"},
		{`"egressDeny":[{` + pg + `}]`, out, "5432 80", "udp/5432"},
		{`"egressDeny":[{"toEntities":["all"],` + pg + `}]`, out, "5432 80", "udp/5432"},
		{`"egressDeny":[{"toEntities":["cluster"],` + pg + `}]`, out, "5432 80", "udp/5432"},
		{`"egressDeny":[{"toEntities":["cluster-mesh"]}]`, out, "5432 80 udp/80 icmp/8", ""},
		{`"egressDeny":[{"toEntities":["host","remote-node","world","ingress"]}]`, out, "", "5432 udp/80 icmp/8"},
		{`"ingressDeny":[{"fromEntities":["cluster"],"toPorts":[{"ports":[{"port":"80"}]}]}]`, in, "80 udp/80", "443 icmp/8"},
		{`"ingressDeny":[{"fromEntities":["cluster-mesh"]}]`, in, "80 udp/80 icmp/8", ""},
		{`"ingressDeny":[{"fromEntities":["remote-node","world","health"]}]`, in, "", "80 udp/80 icmp/8"},
		// The names of ingress are those of the pod itself.
		{`"ingressDeny":[{"fromEndpoints":[{"matchLabels":{"app":"db"}}],` + http + `}]`, in, "8080", "80 udp/8080"},
		{tier("Deny", `{"pods":{"namespaceSelector":{},"podSelector":{"matchLabels":{"app":"db"}}}}`, `{"destinationNamedPort":"pg"}`), out, "5432 80 udp/80 sctp/80", "icmp/8"},
		{tier("Pass", `{"pods":{"namespaceSelector":{},"podSelector":{"matchLabels":{"app":"db"}}}}`, `{"destinationNamedPort":"pg"}`), out, "5432 80 udp/80 sctp/80", "icmp/8"},
		{tier("Deny", `{"namespaces":{}}`, `{"tcp":{"destinationPort":{"number":5432}}}`), out, "5432", "80 udp/5432 icmp/8"},
	} {
		e, k := newEngine(t, Defaults())
		e.SetIdentity(300, podSet(t, "a", "app=web"))
		sub := Subject{Identity: 300, NamedPorts: "http.TCP.8080"}
		e.AddSubject(sub)
		if strings.HasPrefix(tt.spec, "{") {
			rules, _, err := parseCluster(tt.spec)
			if err != nil {
				t.Fatal(err)
			}
			if err := e.SetRules("tier", rules); err != nil {
				t.Fatal(err)
			}
			setRules(t, e, "o", "a", `{"endpointSelector":{},"egress":[{"toEntities":["all"]}]}`)
		} else {
			setRules(t, e, "o", "a", `{"endpointSelector":{},"ingress":[{"fromEntities":["all"]}],"egress":[{"toEntities":["all"]}],`+tt.spec+`}`)
		}
		k.sync(e)
		for ports, pass := range map[string]bool{tt.denied: false, tt.passes: true} {
			for _, s := range strings.Fields(ports) {
				name, number, ok := strings.Cut(s, "/")
				if !ok {
					name, number = "tcp", s
				}
				proto, err := datapath.ParseProto(name)
				if err != nil {
					t.Fatal(err)
				}
				port, err := strconv.ParseUint(number, 10, 16)
				if err != nil {
					t.Fatal(err)
				}
				for _, peer := range []identity.ID{identity.Unobserved, identity.Init, identity.Unmanaged} {
					if v := e.Lookup(k.bind[sub].RuleSet, tt.dir, peer, netip.MustParseAddr("10.1.0.9"), proto, uint16(port)); v.Pass() != pass {
						t.Errorf("%s: %s of %s: %v", tt.spec, s, peer, v)
					}
				}
			}
		}
	}
}

func TestViews(t *testing.T) {
	t.Parallel()
	e, k := newEngine(t, Defaults())
	e.SetIdentity(300, podSet(t, "a", "app=web"))
	e.SetIdentity(301, podSet(t, "a", "app=front"))
	e.AddSubject(Subject{Identity: 300})
	setRules(t, e, "one", "a", `{"endpointSelector":{"matchLabels":{"app":"web"}},"ingress":[{"fromEndpoints":[{"matchLabels":{"app":"front"}}]}]}`)
	setRules(t, e, "two", "b", `{"endpointSelector":{},"ingress":[{}]}`)
	k.sync(e)
	sels := e.Selectors()
	if len(sels) != 2 || sels[0].Selector != "entity:host" || sels[1].Selector != "{any:app=front}@a@local" || len(sels[1].Identities) != 1 || sels[1].Identities[0] != 301 {
		t.Errorf("selectors: %+v", sels)
	}
	rules := e.Rules()
	if len(rules) != 2 || rules[0].Owner != "one" || len(rules[0].Subjects) != 1 || len(rules[1].Subjects) != 0 {
		t.Errorf("rules: %+v", rules)
	}
	sets := e.RuleSets()
	if len(sets) != 1 || len(sets[0].Subjects) != 1 || len(sets[0].Owners) != 1 || len(sets[0].Entries) != 2 {
		t.Errorf("rule sets: %+v", sets)
	}
	if b, in, out, ok := e.RuleSetOf(Subject{Identity: 300}); !ok || b.RuleSet != sets[0].ID || !in || out {
		t.Errorf("the subject has %+v, %v, %v, %v", b, in, out, ok)
	}
	if o := e.Owners(); len(o) != 2 || o["one"] != 1 {
		t.Errorf("owners: %v", o)
	}
	if set, ok := e.RuleSet(sets[0].ID); !ok || len(set.Entries) != 2 {
		t.Errorf("rule set: %+v, %v", set, ok)
	}
}

func TestModes(t *testing.T) {
	t.Parallel()
	for _, m := range []Mode{ModeDefault, ModeAlways, ModeNever} {
		if back, err := ParseMode(m.String()); err != nil || back != m {
			t.Errorf("%v comes back as %v, %v", m, back, err)
		}
	}
	if _, err := ParseMode("sometimes"); err == nil {
		t.Error("an unknown mode is accepted")
	}
	e, k := newEngine(t, Defaults())
	e.SetIdentity(300, podSet(t, "a"))
	e.AddSubject(Subject{Identity: 300})
	setRules(t, e, "o", "a", `{"endpointSelector":{},"ingress":[{"fromEntities":["remote-node"]}],"ingressDeny":[{"fromEntities":["world"]}]}`)
	sub := Subject{Identity: 300}
	tests := []struct {
		mode          Mode
		remote, world bool // in
		out           bool
	}{{ModeDefault, true, false, true}, {ModeAlways, true, false, false}, {ModeNever, true, true, true}, {ModeDefault, true, false, true}}
	for _, tt := range tests {
		e.SetMode(tt.mode)
		k.sync(e)
		remote := k.evaluate(sub, datapath.Ingress, identity.RemoteNode, netip.Addr{}, datapath.ProtoTCP, 1)
		world := k.evaluate(sub, datapath.Ingress, identity.WorldIPv4, netip.Addr{}, datapath.ProtoTCP, 1)
		out := k.evaluate(sub, datapath.Egress, identity.WorldIPv4, netip.Addr{}, datapath.ProtoTCP, 1)
		if remote != tt.remote || world != tt.world || out != tt.out {
			t.Errorf("%v: remote node in %v, world in %v, out %v", tt.mode, remote, world, out)
		}
	}
}

// TestNewDenyRechecksFlows: when an identity that passed so far comes under a deny, flows are
// evaluated again; when it leaves the deny, they need not be.
func TestNewDenyRechecksFlows(t *testing.T) {
	t.Parallel()
	e, k := newEngine(t, Defaults())
	e.SetIdentity(300, podSet(t, "a", "app=web"))
	e.SetIdentity(301, podSet(t, "a", "app=good"))
	sub := Subject{Identity: 300}
	e.AddSubject(sub)
	setRules(t, e, "o", "a", `{"endpointSelector":{},"ingress":[{"fromEntities":["all"]}],"ingressDeny":[{"fromEndpoints":[{"matchLabels":{"app":"bad"}}]}]}`)
	before := k.sync(e).Bind[sub]
	e.SetIdentity(301, podSet(t, "a", "app=bad"))
	u := k.sync(e)
	if b := u.Bind[sub]; b.RuleSet != before.RuleSet || b.Generation <= before.Generation || len(u.Deltas) != 1 {
		t.Fatalf("a new deny gives %+v", u)
	}
	if k.evaluate(sub, datapath.Ingress, 301, netip.Addr{}, datapath.ProtoTCP, 80) {
		t.Error("the deny is not in force")
	}
	e.SetIdentity(301, podSet(t, "a", "app=good"))
	if u := k.sync(e); len(u.Bind) > 0 || len(u.Deltas) != 1 {
		t.Fatalf("a deny that goes gives %+v", u)
	}
}
