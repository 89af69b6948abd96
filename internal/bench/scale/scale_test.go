package scale

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/api/v2alpha1"
	agentcmd "github.com/hawser-net/hawser/internal/agent"
	"github.com/hawser-net/hawser/internal/bench"
	"github.com/hawser-net/hawser/internal/k8s"
	"github.com/hawser-net/hawser/internal/k8s/identities"
	"github.com/hawser-net/hawser/internal/labels"
	"github.com/hawser-net/hawser/internal/operator"
	"github.com/hawser-net/hawser/internal/sandbox/kube/parts"
	"github.com/hawser-net/hawser/internal/testenv"
)

// TestMain also runs the programs that the tests start: this one is all of them.
func TestMain(m *testing.M) {
	if len(os.Args) < 2 || !slices.Contains([]string{"etcd", "operator", "agent"}, os.Args[1]) {
		// Each test is a cluster: more of them than processors only wait for each other.
		flag.Parse()
		if err := flag.Set("test.parallel", "2"); err != nil {
			panic(err)
		}
		os.Exit(m.Run())
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	var err error
	switch os.Args[1] {
	case "etcd":
		err = bench.ServeEtcd(ctx, os.Args[2])
	case "operator":
		cmd := operator.NewCommand("test", os.Getenv)
		cmd.SetArgs(os.Args[2:])
		err = cmd.ExecuteContext(ctx)
	case "agent":
		cmd := agentcmd.NewCommand("test", os.Getenv)
		cmd.SetArgs(os.Args[2:])
		err = cmd.ExecuteContext(ctx)
	}
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// small is a configuration of some seconds.
func small(t *testing.T, scenarios ...string) Config {
	t.Helper()
	dir, err := parts.Dir()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "kube-apiserver")); err != nil {
		t.Skipf("needs kube-apiserver of Kubernetes: `make kube-apiserver` builds it (%v)", err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cfg := Defaults()
	cfg.Scenarios = scenarios
	cfg.Agents, cfg.RandomAgents, cfg.Lease = 20, 20, 10*time.Second
	cfg.Numbers, cfg.InUse, cfg.CollectEvery = 120, 10, time.Second
	cfg.StreamPods, cfg.StreamNodes, cfg.Observers, cfg.StreamRate = 40, 6, 2, 50
	cfg.MeshPods = 200
	cfg.IPAMNodes, cfg.IPAMRate, cfg.IPAMRest, cfg.IPAMPods, cfg.IPAMPodRate = 20, 60, time.Second, 120, 50
	cfg.CollectAgents, cfg.CollectUnused = 12, 160
	cfg.Sizes, cfg.Quiet = []int{60, 120}, 100*time.Millisecond
	cfg.Timeout = 4 * time.Minute
	cfg.Self, cfg.Operator, cfg.Agent = []string{self, "etcd"}, []string{self, "operator"}, []string{self, "agent"}
	cfg.Out, cfg.Progress = t.TempDir(), t.Output()
	return cfg
}

// TestRelabel runs the scenario at a size that shows that it works and what it finds: one identity
// where the "Background & Motivation" of CFP-27752 has thousands.
func TestRelabel(t *testing.T) {
	t.Parallel()
	report, err := Run(t.Context(), small(t, "relabel"))
	if err != nil {
		t.Fatal(err)
	}
	s := report.Scenarios[0]
	for _, v := range s.Variants {
		got := map[string]float64{}
		for _, f := range v.Figures {
			got[f.Name] = f.Value
		}
		if made := got["identities made for the one new label set"]; made < 1 || v.Name != modeRandom && made != 1 {
			t.Errorf("%s: %g identities were made for one label set", v.Name, made)
		}
		if calls := got["API calls for endpoints, a pod"]; calls < 1 {
			t.Errorf("%s: %g calls published a pod's identity", v.Name, calls)
		}
	}
	if len(s.Plots) != 1 || len(s.Plots[0].Lines) != len(s.Variants) || len(s.Plots[0].Lines[0].Points) < 10 {
		t.Errorf("the plot is %+v", s.Plots)
	}
}

// TestIdentities fills a small range and has it collected: "Background & Motivation" of CFP-27752,
// the full range.
func TestIdentities(t *testing.T) {
	t.Parallel()
	cfg := small(t, "identities")
	report, err := Run(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := report.Write(cfg.Out, Scenarios()); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(cfg.Out, "report.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"| numbers ", "no ID is free", "holds: value: no identity in use was collected", "(identities.svg)"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the report lacks %q:\n%s", want, text)
		}
	}
}

// TestCollect has unused identities collected, and every agent observe each: "Background &
// Motivation" of CFP-27752, the collection that keeps up.
func TestCollect(t *testing.T) {
	t.Parallel()
	report, err := Run(t.Context(), small(t, "collect"))
	if err != nil {
		t.Fatal(err)
	}
	s := report.Scenarios[0]
	for _, v := range s.Variants {
		t.Logf("%s: %+v", v.Name, v.Figures)
		// Where agents make identities one is marked before it ends, and either is an event. It
		// names its labels.
		events, least := v.Value("events an agent, an end"), map[string]float64{modeOperator: 1, modeAgents: 2}[v.Name]
		if bytes := v.Value("bytes an agent, an end"); events < least || bytes < 200*least {
			t.Errorf("%s: an agent receives for an end %g events, %g bytes", v.Name, events, bytes)
		}
		for _, name := range []string{"a pod is written before, p50", "a pod is written meanwhile, p99"} {
			if v.Value(name) <= 0 {
				t.Errorf("%s: %s: nothing was measured", v.Name, name)
			}
		}
		if len(v.Checks) != 4 {
			t.Errorf("%s: checks %+v", v.Name, v.Checks)
		}
	}
	if len(s.Variants) != 2 || len(s.Plots) != 1 || len(s.Plots[0].Lines[0].Points) < 5 {
		t.Errorf("%d variants, the plots are %+v", len(s.Variants), s.Plots)
	}
}

// TestEar: events are counted, and new identities recognised, however they are cut into pieces; and
// what was received last says from where to go on.
func TestEar(t *testing.T) {
	t.Parallel()
	text := `{"type":"ADDED","object":{"metadata":{"name":"300","resourceVersion":"7"},"security-labels":{"k8s:app":"a"}}}` + "\n" +
		`{"type":"ADDED","object":{"metadata":{"name":"301","resourceVersion":"8"},"security-labels":{"k8s:delivered-to-all":"4"}}}` + "\n" +
		`{"type":"MODIFIED","object":{"metadata":{"name":"300","managedFields":[{"f:k8s:delivered-to-all":{}}],"resourceVersion":"9"},"security-labels":{}}}` + "\n"
	for size := range len(text) {
		n := &delivery{}
		listeners := []*listener{{delivery: n}, {delivery: n}}
		known := n.expect(4, len(listeners))
		for i, e := range listeners {
			select {
			case <-known:
				t.Fatalf("all have observed it after %d of %d", i, len(listeners))
			default:
			}
			for piece := range slices.Chunk([]byte(text), size+1) {
				e.receive(piece)
			}
		}
		select {
		case <-known:
		default:
			t.Fatalf("in pieces of %d: not all have observed it", size+1)
		}
		if got := sum(listeners); got.events != 6 || got.bytes != int64(2*len(text)) {
			t.Fatalf("in pieces of %d: received %+v", size+1, got)
		}
		if version, failed := listeners[0].version(); version != "9" || failed {
			t.Fatalf("in pieces of %d: the last one was of version %q, an error: %t", size+1, version, failed)
		}
	}
	e := &listener{delivery: &delivery{}}
	e.receive([]byte(`{"type":"ERROR","object":{"code":410}}` + "\n"))
	if version, failed := e.version(); version != "" || !failed {
		t.Errorf("after an error: version %q, an error: %t", version, failed)
	}
}

// TestStream has every agent learn of every pod.
func TestStream(t *testing.T) {
	t.Parallel()
	report, err := Run(t.Context(), small(t, "stream"))
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range report.Scenarios[0].Variants {
		// What an agent receives for a pod cannot be less than its address, identity and name.
		if size := v.Value("watch bytes an agent, a pod"); size < 50 {
			t.Errorf("%s: %g bytes make an agent know a pod", v.Name, size)
		}
		if p99, most := v.Value("every agent knows a pod, p99"), v.Value("every agent knows a pod, slowest"); p99 <= 0 || p99 > most {
			t.Errorf("%s: 99 %% of the pods are known after %g s, all after %g s", v.Name, p99, most)
		}
	}
}

// TestMemory runs the real programs and looks at them.
func TestMemory(t *testing.T) {
	t.Parallel()
	testenv.RequireRoot(t)
	report, err := Run(t.Context(), small(t, "memory"))
	if err != nil {
		t.Fatal(err)
	}
	variants := report.Scenarios[0].Variants
	if len(variants) != 3 {
		t.Fatalf("%d sizes were measured, want 0, 60 and 120", len(variants))
	}
	for _, v := range variants {
		for _, name := range []string{"operator", "agent"} {
			if mib := v.Value(name + ", memory"); mib < 10 {
				t.Errorf("%s: the %s has %g MiB", v.Name, name, mib)
			}
		}
	}
	if took := variants[2].Value("agent, started anew: knows all pods after"); took <= 0 {
		t.Errorf("a new agent knows all pods after %g s", took)
	}
}

// TestStops ends a run in the middle: nothing must stay.
func TestStops(t *testing.T) {
	testenv.CheckLeaks(t)
	cfg := small(t, "relabel")
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	report, err := Run(ctx, cfg)
	if err == nil {
		t.Error("a run that was ended has succeeded")
	}
	if report != nil && len(report.Scenarios) > 0 {
		t.Error("a scenario that was cut short is reported")
	}
}

func TestConfig(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		change func(*Config)
		want   string
	}{
		{func(c *Config) { c.Scenarios = []string{"other"} }, `no "other"`},
		{func(c *Config) { c.Modes = []string{"unknown"} }, `no "unknown"`},
		{func(c *Config) { c.Agents = 0 }, "--agents: 0"},
		{func(c *Config) { c.InUse = c.Numbers }, "four times"},
		{func(c *Config) { c.Numbers = 70000 }, "at most 65280"},
		{func(c *Config) { c.Sizes = []int{2, 1} }, "does not ascend"},
		{func(c *Config) { c.StreamPods = 1e6 }, "254 each"},
		{func(c *Config) { c.Observers = c.StreamNodes + 1 }, "--observers"},
		{func(c *Config) { c.Operator = []string{"/none"} }, "make build"},
	} {
		cfg := small(t)
		tc.change(&cfg)
		if err := cfg.validate(); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%v, want something about %s", err, tc.want)
		}
	}
	cfg := small(t)
	if err := cfg.validate(); err != nil {
		t.Error(err)
	}
	cfg = Defaults()
	cfg.Full, cfg.StreamNodes = true, 123
	cfg.complete()
	if cfg.StreamPods != 40000 || cfg.StreamNodes != 123 || !slices.Equal(cfg.Sizes, []int{10000, 40000, 100000}) {
		t.Errorf("full is %+v", cfg)
	}
}

// fixture is a world of one pod in which all is well.
func fixture() *world {
	ns, pod := map[string]string{"team": "one"}, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "u", Labels: map[string]string{"app": "a"}}}
	w := &world{namespaces: map[string]map[string]string{"ns": ns}, pods: map[k8s.Key]*corev1.Pod{k8s.KeyOf(pod): pod}, endpoints: map[k8s.Key]*v2.CiliumEndpoint{}}
	set, err := w.setOf(labels.DefaultFilter(), pod)
	if err != nil {
		panic(err) // the labels are above
	}
	w.identities = []v2.CiliumIdentity{{ObjectMeta: metav1.ObjectMeta{Name: "300"}, SecurityLabels: identities.Key{Set: set}.GetAsMap()}}
	w.endpoints[k8s.KeyOf(pod)] = &v2.CiliumEndpoint{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", OwnerReferences: []metav1.OwnerReference{{Kind: "Pod", UID: "u"}}},
		Status: v2.EndpointStatus{
			Identity: &v2.EndpointIdentity{ID: 300, Labels: set.Strings()}, Networking: &v2.EndpointNetworking{NodeIP: "192.0.2.1"},
		},
	}
	w.slices = []v2alpha1.CiliumEndpointSlice{{
		ObjectMeta: metav1.ObjectMeta{Name: "s"}, Namespace: "ns",
		Endpoints: []v2alpha1.CoreCiliumEndpoint{{Name: "p", IdentityID: 300, Networking: &v2.EndpointNetworking{NodeIP: "192.0.2.1"}}},
	}}
	return w
}

// TestInvariants breaks one thing after the other: the invariant that is about it must say so, and
// the others must not.
func TestInvariants(t *testing.T) {
	t.Parallel()
	key := k8s.Key{Namespace: "ns", Name: "p"}
	for _, tc := range []struct {
		name                         string
		break1                       func(*world)
		number, published, one, slim string // what each must say; empty for nothing
	}{
		{"nothing", func(*world) {}, "", "", "", ""},
		{"two numbers", func(w *world) {
			o := w.identities[0]
			o.Name = "301"
			w.identities = append(w.identities, o)
		}, "2 identities", "", "", ""},
		{"identity without labels", func(w *world) { w.identities[0].SecurityLabels = map[string]string{"k8s:a;b": ""} }, "identity 300", "identity 300", "", "identity 300"},
		{"no endpoint", func(w *world) { delete(w.endpoints, key) }, "", "is missing", "no endpoint", ""},
		{"number of others", func(w *world) { w.endpoints[key].Status.Identity.ID = 301 }, "", "has the number 301", "another identity", ""},
		{"no identity", func(w *world) { w.endpoints[key].Status.Identity = nil }, "", "has no identity", "another identity", ""},
		{"labels of before", func(w *world) { w.endpoints[key].Status.Identity.Labels = []string{"k8s:app=b"} }, "", "says labels", "", ""},
		{"namespace changed", func(w *world) { w.namespaces["ns"]["team"] = "two" }, "", "has the number 300, its labels have ", "", "has the number 300"},
		{"pod replaced", func(w *world) { w.pods[key].UID = "v" }, "", "is another pod's", "", ""},
		{"pod gone", func(w *world) { delete(w.pods, key) }, "", "has no pod", "", "is no pod"},
		{"in no slice", func(w *world) { w.slices = nil }, "", "", "in 0 slices", "in 0 slices"},
		{"in two slices", func(w *world) { w.slices = append(w.slices, w.slices[0]) }, "", "", "in 2 slices", "in 2 slices"},
		{"ID in quarantine", func(w *world) { identities.Quarantine(&w.identities[0], "", time.Now()) }, "", "its labels have ", "", "its labels have "},
		{"other node in slice", func(w *world) { w.slices[0].Endpoints[0].Networking.NodeIP = "192.0.2.2" }, "", "", "another node", ""},
	} {
		w := fixture()
		tc.break1(w)
		for _, c := range []struct {
			what, want string
			got        []string
		}{
			{"one number each", tc.number, w.oneNumberEach()},
			{"every pod is published", tc.published, w.everyPodIsPublished(labels.DefaultFilter())},
			{"in one slice", tc.one, w.everyEndpointIsInOneSlice()},
			{"pod in one slice", tc.slim, w.everyPodIsInOneSlice(labels.DefaultFilter())},
		} {
			said := strings.Join(c.got, "\n")
			if (c.want == "") != (said == "") || !strings.Contains(said, c.want) {
				t.Errorf("%s: %s says %q, want %q", tc.name, c.what, said, c.want)
			}
		}
	}
}

// TestMesh: another cluster knows every pod, also those that came when no operator led.
func TestMesh(t *testing.T) {
	t.Parallel()
	report, err := Run(t.Context(), small(t, "mesh"))
	if err != nil {
		t.Fatal(err)
	}
	v := report.Scenarios[0].Variants[0]
	t.Logf("%+v", v.Figures)
	if len(v.Figures) != 6 || len(v.Checks) != 1 {
		t.Errorf("figures %+v, checks %+v", v.Figures, v.Checks)
	}
}

// TestPlaces: at the size of a data centre no node has more pods than its type has addresses for,
// besides those in advance, which the scenario waits for.
func TestPlaces(t *testing.T) {
	cfg := Defaults()
	cfg.Full = true
	cfg.complete()
	p := newPlaces(cfg.IPAMNodes)
	for i := range cfg.IPAMPods {
		p.next(i)
	}
	if most := slices.Max(p.has); most > nodeTakes {
		t.Errorf("a node has %d pods, and takes %d", most, nodeTakes)
	}
}

// TestIPAM runs the scenario at a small size: all nodes get their addresses, by three calls each
// that change the cloud, and an operator that may ask too often is refused and gets there.
func TestIPAM(t *testing.T) {
	t.Parallel()
	report, err := Run(t.Context(), small(t, "ipam"))
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range report.Scenarios[0].Variants {
		t.Logf("%s: %+v", v.Name, v.Figures)
		for _, action := range []string{"CreateNetworkInterface", "AttachNetworkInterface"} {
			if n := v.Value(action + ", a node"); n < 1 || n > 3 {
				t.Errorf("%s: %s was called %g times a node", v.Name, action, n)
			}
		}
		if len(v.Checks) != 3 {
			t.Errorf("%s: checks %+v", v.Name, v.Checks)
		}
		// Addresses come several at once, and most before they are needed.
		if n := v.Value("requests that change the cloud, a pod"); n <= 0 || n >= 1 {
			t.Errorf("%s: %g requests a pod that change the cloud", v.Name, n)
		}
		if there, wait := v.Value("pods for which an address was there"), v.Value("a pod waits for its address, p99"); there < 50 || wait <= 0 || wait > 30 {
			t.Errorf("%s: an address was there for %g %% of the pods, the others wait up to %g s", v.Name, there, wait)
		}
	}
}
