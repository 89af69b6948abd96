package policy

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"
	"sigs.k8s.io/yaml"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/labels"
	"github.com/hawser-net/hawser/internal/policy/oracle"
)

// A scenario is prose, then lines that say what exists, then what is expected of it, then the
// policies. What exists may become known in any order, and with flushes anywhere: the expectations
// hold in the end. If one does not, understand why before you change the file.
//
//	identity NUMBER key=value... ns=NAMESPACE [team=...] [ns.KEY=...]
//	ports NUMBER NAMED-PORTS
//	subject NUMBER|NAME [NAMED-PORTS]
//	policy FILE
//	expect ingress|egress SUBJECT[/NAMED-PORTS] from|to NUMBER|NAME|ADDRESS PROTOCOL PORT VERDICT
//
// VERDICT is allow or deny; team and ns.KEY are labels of the namespace.
//
// NUMBER@ADDRESS and NAME@ADDRESS are a peer in the cluster whose address matters. A file is a
// CiliumNetworkPolicy, clusterwide without a namespace, or says that it is of kind NetworkPolicy or
// ClusterNetworkPolicy.
type scenario struct {
	steps    []step
	expect   []string
	policies []oracle.Policy
	labels   map[identity.ID]labels.Set
	ports    map[identity.ID]string
}

// step makes one thing so, and may be done twice; undo makes it not so.
type step struct {
	text     string
	do, undo func(*testing.T, *Engine, *kernel)
}

func loadScenario(t *testing.T, path string) scenario {
	t.Helper()
	ar, err := txtar.ParseFile(path)
	if err != nil {
		t.Fatal(err)
	}
	sc := scenario{labels: map[identity.ID]labels.Set{}, ports: map[identity.ID]string{}}
	rules := map[string][]*Rule{}
	for _, f := range ar.Files {
		list, pol := parseFile(t, f.Name, f.Data)
		rules[f.Name] = list
		sc.policies = append(sc.policies, pol)
	}
	_, body, _ := strings.Cut(string(ar.Comment), "\n\n") // after the prose
	for line := range strings.SplitSeq(body, "\n") {
		f := strings.Fields(line)
		if len(f) == 0 || strings.HasPrefix(line, "#") {
			continue
		}
		st := step{text: line}
		switch f[0] {
		case "identity":
			id, set := mustID(t, f[1]), scenarioLabels(t, f[2:])
			sc.labels[id] = set
			st.do = func(_ *testing.T, e *Engine, _ *kernel) { e.SetIdentity(id, set) }
			st.undo = func(_ *testing.T, e *Engine, _ *kernel) { e.RemoveIdentity(id) }
		case "ports":
			id := mustID(t, f[1])
			sc.ports[id] = f[2]
			set := func(text string) func(*testing.T, *Engine, *kernel) {
				return func(t *testing.T, e *Engine, _ *kernel) {
					if err := e.SetNamedPorts(id, text); err != nil {
						t.Fatal(err)
					}
				}
			}
			st.do, st.undo = set(f[2]), set("")
		case "subject":
			sub := Subject{Identity: mustID(t, f[1])}
			if len(f) > 2 {
				sub.NamedPorts = f[2]
			}
			st.do = func(_ *testing.T, e *Engine, _ *kernel) { e.AddSubject(sub) }
			st.undo = func(_ *testing.T, e *Engine, k *kernel) {
				e.RemoveSubject(sub)
				if _, _, _, left := e.RuleSetOf(sub); !left {
					delete(k.bind, sub)
				}
			}
		case "policy":
			list, ok := rules[f[1]]
			if !ok {
				t.Fatalf("%s: there is no file %s", path, f[1])
			}
			set := func(list []*Rule) func(*testing.T, *Engine, *kernel) {
				return func(t *testing.T, e *Engine, _ *kernel) {
					if err := e.SetRules(Owner(f[1]), list); err != nil {
						t.Fatal(err)
					}
				}
			}
			st.do, st.undo = set(list), set(nil)
		case "expect":
			if len(f) != 8 {
				t.Fatalf("%s: %q has %d words", path, line, len(f))
			}
			sc.expect = append(sc.expect, line)
			continue
		default:
			t.Fatalf("%s: what is %q?", path, line)
		}
		sc.steps = append(sc.steps, st)
	}
	if len(sc.expect) == 0 {
		t.Fatalf("%s expects nothing", path)
	}
	return sc
}

func parseFile(t *testing.T, name string, data []byte) ([]*Rule, oracle.Policy) {
	t.Helper()
	var kind metav1.TypeMeta
	if err := yaml.Unmarshal(data, &kind); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	switch kind.Kind {
	case "ClusterNetworkPolicy":
		var p policyv1alpha2.ClusterNetworkPolicy
		if err := yaml.UnmarshalStrict(data, &p); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		rules, err := ParseClusterNetworkPolicy(&p)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		return rules, oracle.FromClusterNetworkPolicy(&p)
	case "NetworkPolicy":
		var np networkingv1.NetworkPolicy
		if err := yaml.UnmarshalStrict(data, &np); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		rules, err := ParseNetworkPolicy(&np)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		return rules, oracle.FromNetworkPolicy(&np)
	}
	var cnp v2.CiliumNetworkPolicy
	if err := yaml.UnmarshalStrict(data, &cnp); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	pol := oracle.FromObject(&cnp)
	var rules []*Rule
	var err error
	if cnp.Namespace != "" {
		rules, err = Parse(&cnp)
	} else {
		ccnp := &v2.CiliumClusterwideNetworkPolicy{ObjectMeta: cnp.ObjectMeta, Spec: cnp.Spec, Specs: cnp.Specs}
		pol = oracle.FromClusterwide(ccnp)
		rules, err = ParseClusterwide(ccnp)
	}
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return rules, pol
}

func mustID(t *testing.T, s string) identity.ID {
	t.Helper()
	id, err := identity.Parse(s)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func scenarioLabels(t *testing.T, words []string) labels.Set {
	t.Helper()
	p := labels.Pod{Cluster: "default", Labels: map[string]string{}, NamespaceLabels: map[string]string{}}
	for _, w := range words {
		k, v, _ := strings.Cut(w, "=")
		switch k {
		case "ns":
			p.Namespace = v
			p.NamespaceLabels["kubernetes.io/metadata.name"] = v // as the API server sees to
		case "team":
			p.NamespaceLabels[k] = v
		default:
			if key, ok := strings.CutPrefix(k, "ns."); ok {
				p.NamespaceLabels[key] = v
				continue
			}
			p.Labels[k] = v
		}
	}
	set, err := labels.PodLabels(p)
	if err != nil {
		t.Fatal(err)
	}
	return set
}

// whoAndWhere takes NUMBER@ADDRESS apart; either may be missing.
func whoAndWhere(t *testing.T, word string) (who string, at netip.Addr) {
	t.Helper()
	if a, err := netip.ParseAddr(word); err == nil {
		return "", a
	}
	who, addr, found := strings.Cut(word, "@")
	if found {
		a, err := netip.ParseAddr(addr)
		if err != nil {
			t.Fatal(err)
		}
		at = a
	}
	return who, at
}

// check evaluates one expectation with the engine and with the kernel.
func (sc *scenario) check(t *testing.T, e *Engine, k *kernel) {
	t.Helper()
	for _, line := range sc.expect {
		f := strings.Fields(line)
		name, ports, _ := strings.Cut(f[2], "/")
		sub := Subject{Identity: mustID(t, name), NamedPorts: ports}
		dir := datapath.Ingress
		if f[1] == "egress" {
			dir = datapath.Egress
		}
		word, at := whoAndWhere(t, f[4])
		peer := k.resolve(&e.cfg, at)
		if word != "" {
			peer = mustID(t, word)
		}
		proto, err := datapath.ParseProto(f[5])
		if err != nil {
			t.Fatal(err)
		}
		var port uint16
		if _, err := fmt.Sscan(f[6], &port); err != nil {
			t.Fatal(err)
		}
		b, _, _, ok := e.RuleSetOf(sub)
		if !ok {
			t.Errorf("%s: there is no such subject", line)
			continue
		}
		want := f[7] == "allow"
		got := e.Lookup(b.RuleSet, dir, peer, at, proto, port)
		if inKernel := k.evaluate(sub, dir, peer, at, proto, port); got.Pass() != want || inKernel != want {
			t.Errorf("%s: the engine says %v, the kernel passes it: %v", line, got, inKernel)
		}
	}
}

// TestScenariosByOracle: the oracle agrees with what the scenarios expect, so that what it shares
// with the engine is not a misunderstanding.
func TestScenariosByOracle(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/scenarios/*.txt")
	if err != nil {
		t.Fatal(err)
	}
	cfg := Defaults()
	for _, path := range files {
		sc := loadScenario(t, path)
		end := func(word, ports string) oracle.End {
			who, at := whoAndWhere(t, word)
			if who == "" {
				return oracle.End{Addr: at}
			}
			id := mustID(t, who)
			set, ok := sc.labels[id]
			if !ok {
				set, _ = identity.ReservedLabels(id)
			}
			if ports == "" {
				ports = sc.ports[id]
			}
			return oracle.End{Labels: set, Addr: at, NamedPorts: oraclePorts(ports)}
		}
		for _, line := range sc.expect {
			f := strings.Fields(line)
			name, ports, _ := strings.Cut(f[2], "/")
			proto, err := datapath.ParseProto(f[5])
			if err != nil {
				t.Fatal(err)
			}
			var port uint16
			if _, err := fmt.Sscan(f[6], &port); err != nil {
				t.Fatal(err)
			}
			pass, why := oracle.Side(oracle.Config{
				ClusterName: cfg.ClusterName, AllowLocalhost: cfg.AllowLocalhost,
				DefaultLocalCluster: cfg.DefaultLocalCluster, AllowNonDefaultDeny: cfg.AllowNonDefaultDeny,
			}, sc.policies, f[1] == "ingress", end(name, ports), end(f[4], ""), proto, port)
			if pass != (f[7] == "allow") {
				t.Errorf("%s: %s: the oracle passes it: %v (%s)", path, line, pass, why)
			}
		}
	}
}

func TestScenarios(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/scenarios/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal("there are no scenarios", err)
	}
	// An order says what is done, and whether to flush, at each point.
	orders := map[string]func(steps []step) []step{
		"forward":  func(s []step) []step { return s },
		"reversed": func(s []step) []step { s = slices.Clone(s); slices.Reverse(s); return s },
		"twice":    func(s []step) []step { return append(slices.Clone(s), s...) },
		"each twice": func(s []step) []step {
			var out []step
			for _, st := range s {
				out = append(out, st, st)
			}
			return out
		},
		"undone and redone": func(s []step) []step {
			out := slices.Clone(s)
			for _, st := range s {
				out = append(out, step{"undo " + st.text, st.undo, nil}, st)
			}
			return out
		},
		"all undone, then reversed": func(s []step) []step {
			out := slices.Clone(s)
			for _, st := range s {
				out = append(out, step{"undo " + st.text, st.undo, nil})
			}
			rev := slices.Clone(s)
			slices.Reverse(rev)
			return append(out, rev...)
		},
	}
	flushes := map[string]func(i int) bool{
		"flushed at the end": func(int) bool { return false },
		"after each":         func(int) bool { return true },
		"after every third":  func(i int) bool { return i%3 == 2 },
	}
	for _, path := range files {
		sc := loadScenario(t, path)
		for orderName, order := range orders {
			for flushName, flush := range flushes {
				t.Run(strings.TrimSuffix(filepath.Base(path), ".txt")+"/"+orderName+" "+flushName, func(t *testing.T) {
					t.Parallel()
					e, err := New(Defaults())
					if err != nil {
						t.Fatal(err)
					}
					k := newKernel(t)
					for i, st := range order(sc.steps) {
						st.do(t, e, k)
						if flush(i) {
							k.sync(e)
						}
					}
					k.sync(e)
					sc.check(t, e, k)
				})
			}
		}
	}
}
