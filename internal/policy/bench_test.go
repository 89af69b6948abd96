package policy

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"runtime"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/labels"
)

// largeCluster returns pods and policies of a cluster of n namespaces with four pods and three
// policies each, every pod with labels (and so an identity) of its own.
func largeCluster(tb testing.TB, n int) (sets []labels.Set, policies []*v2.CiliumNetworkPolicy) {
	specs := []string{
		`{"endpointSelector":{"matchLabels":{"app-1":"scale-1"}},"ingress":[{"fromEndpoints":[{"matchLabels":{"app-2":"scale-2"}}],"toPorts":[{"ports":[{"port":"80","protocol":"TCP"}]}]}]}`,
		`{"endpointSelector":{"matchLabels":{"app-2":"scale-2"}},"egress":[{"toEndpoints":[{"matchLabels":{"app-1":"scale-1"}}],"toPorts":[{"ports":[{"port":"80","protocol":"TCP"}]}]}],"ingress":[{}]}`,
		`{"endpointSelector":{"matchLabels":{"app-3":"scale-3"}},"ingress":[{"fromEndpoints":[{"matchExpressions":[{"key":"app-1","operator":"Exists"}]},{"matchLabels":{"app-2":"scale-2"}}]}]}`,
	}
	for i := range n {
		ns := fmt.Sprintf("namespace-%d", i)
		for j := range 4 {
			set, err := labels.PodLabels(labels.Pod{
				Namespace: ns, Cluster: "default", ServiceAccount: "default",
				Labels:          map[string]string{fmt.Sprintf("app-%d", j+1): fmt.Sprintf("scale-%d", j+1)},
				NamespaceLabels: map[string]string{"kubernetes.io/metadata.name": ns},
			})
			if err != nil {
				tb.Fatal(err)
			}
			sets = append(sets, set)
		}
		for j, spec := range specs {
			p := &v2.CiliumNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("p%d", j), Namespace: ns}, Spec: &v2.Rule{}}
			if err := json.Unmarshal([]byte(spec), p.Spec); err != nil {
				tb.Fatal(err)
			}
			policies = append(policies, p)
		}
	}
	return sets, policies
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// cpu returns the processor time of this process, which neighbours on the machine do not change.
func cpu() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkLargeCluster computes everything for 75,000 policies over 100,000 pods, all of them
// local: the whole cluster's rule sets on one machine. Parsing the decoded objects is part of it.
func BenchmarkLargeCluster(b *testing.B) {
	sets, policies := largeCluster(b, 25_000)
	for b.Loop() {
		before := heap()
		start, busy := time.Now(), cpu()
		e, err := New(Defaults())
		if err != nil {
			b.Fatal(err)
		}
		for i, p := range policies {
			rules, err := Parse(p)
			if err != nil {
				b.Fatal(err)
			}
			if err := e.SetRules(Owner(p.Namespace+"/"+p.Name), rules); err != nil {
				b.Fatal(i, err)
			}
		}
		parsed := time.Since(start)
		for i, set := range sets {
			e.SetIdentity(identity.ID(1000+i), set)
		}
		for i := range sets {
			e.AddSubject(Subject{Identity: identity.ID(1000 + i)})
		}
		known := time.Since(start)
		u := e.Flush()
		total := time.Since(start)
		entries := 0
		for i := range u.Install {
			entries += len(u.Install[i].Entries)
		}
		after := heap()
		b.ReportMetric(total.Seconds(), "s-total")
		b.ReportMetric((cpu() - busy).Seconds(), "s-cpu")
		b.ReportMetric(parsed.Seconds(), "s-rules")
		b.ReportMetric((known - parsed).Seconds(), "s-pods")
		b.ReportMetric((total - known).Seconds(), "s-compute")
		b.ReportMetric(float64(after-before)/1e6, "MB-kept")
		b.ReportMetric(float64(len(u.Install)), "rulesets")
		b.ReportMetric(float64(entries), "entries")
		runtime.KeepAlive(e)
	}
}

// node returns an engine as on a busy node: 30 local endpoints, n identities, rules in their
// namespace.
func node(b *testing.B, identities, rules int) *Engine {
	e, err := New(Defaults())
	if err != nil {
		b.Fatal(err)
	}
	for i := range identities {
		e.SetIdentity(identity.ID(1000+i), nodeLabels(b, i))
	}
	for i := range 30 {
		e.AddSubject(Subject{Identity: identity.ID(1000 + i)})
	}
	for i := range rules {
		spec := fmt.Sprintf(`{"endpointSelector":{},"ingress":[{"fromEndpoints":[{"matchLabels":{"app":"a%d"}}],"toPorts":[{"ports":[{"port":"%d","protocol":"TCP"}]}]}]}`, i%500, 1+i)
		if err := e.SetRules(Owner(fmt.Sprint(i)), mustParse(b, "ns0", spec)); err != nil {
			b.Fatal(err)
		}
	}
	e.Flush()
	return e
}

// nodeLabels gives the first 30 identities to namespace ns0, and the rest in turn to ns0 and
// others.
func nodeLabels(b *testing.B, i int) labels.Set {
	ns := "ns0"
	if i >= 30 {
		ns = fmt.Sprintf("ns%d", i%4)
	}
	set, err := labels.PodLabels(labels.Pod{Namespace: ns, Cluster: "default", Labels: map[string]string{
		"app": fmt.Sprintf("a%d", i%500), "pod": fmt.Sprint(i),
	}})
	if err != nil {
		b.Fatal(err)
	}
	return set
}

// BenchmarkIdentityAdd adds one identity on a node with 1,000 rules and 6,000 identities, and
// flushes.
func BenchmarkIdentityAdd(b *testing.B) {
	e := node(b, 6000, 1000)
	set := nodeLabels(b, 10_000) // namespace ns0
	for b.Loop() {
		e.SetIdentity(70_000, set)
		if u := e.Flush(); len(u.Deltas) == 0 {
			b.Fatal("the identity matters to no rule")
		}
		b.StopTimer()
		e.RemoveIdentity(70_000)
		e.Flush()
		b.StartTimer()
	}
}

// BenchmarkRuleChange replaces one of 1,000 rules that select all 30 endpoints, with 6,000
// identities, and flushes.
func BenchmarkRuleChange(b *testing.B) {
	e := node(b, 6000, 1000)
	versions := [][]*Rule{
		mustParse(b, "ns0", `{"endpointSelector":{},"ingress":[{"fromEndpoints":[{"matchLabels":{"app":"a1"}}]}]}`),
		mustParse(b, "ns0", `{"endpointSelector":{},"ingress":[{"fromEndpoints":[{"matchLabels":{"app":"a2"}}]}]}`),
	}
	i := 0
	for b.Loop() {
		if err := e.SetRules("0", versions[i%2]); err != nil {
			b.Fatal(err)
		}
		i++
		if u := e.Flush(); len(u.Install) == 0 {
			b.Fatal("nothing changed")
		}
	}
}

// BenchmarkLookup evaluates one packet with the engine's stand-in for the kernel.
func BenchmarkLookup(b *testing.B) {
	e := node(b, 6000, 100)
	bind, _, _, _ := e.RuleSetOf(Subject{Identity: 1000})
	for b.Loop() {
		e.Lookup(bind.RuleSet, datapath.Ingress, 1040, netip.Addr{}, datapath.ProtoTCP, 41)
	}
}
