package relevance

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	api "github.com/hawser-net/hawser/api/operator"
	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/identity"
	k8skeys "github.com/hawser-net/hawser/internal/k8s/relevance"
	"github.com/hawser-net/hawser/internal/labels"
	"github.com/hawser-net/hawser/internal/operator/identities"
	"github.com/hawser-net/hawser/internal/testenv/controllers"
)

// testTimeout is how long a machine under load may take.
const testTimeout = 90 * time.Second

const namespace = "default"

// testCluster is a cluster with one node, whose agent the test plays.
type testCluster struct {
	*testing.T
	*controllers.Env
	ctx  context.Context
	cfg  Config
	c    *Controller
	stop func()
}

func newTestCluster(t *testing.T) *testCluster {
	tc := &testCluster{T: t, Env: controllers.Start(t), ctx: t.Context(), cfg: Defaults()}
	tc.cfg.Labels, tc.cfg.GracePeriod, tc.cfg.MaxPause, tc.cfg.Idle = k8skeys.PolicyLabels, 0, 200*time.Millisecond, 200*time.Millisecond
	return tc
}

// operator begins one, in place of the one before.
func (tc *testCluster) operator() {
	tc.Helper()
	if tc.stop != nil {
		tc.stop()
	}
	tc.stop = tc.Env.Run(tc.T, func(_ context.Context, m manager.Manager, log *slog.Logger) error {
		control := identities.ControlDefaults()
		rules, err := control.Rules("default", identity.MinGlobal, 65535)
		if err != nil {
			return err
		}
		tc.c = New(tc.cfg, namespace, log)
		control.Await = tc.c.Await
		reg := prometheus.NewRegistry()
		ids, err := identities.Setup(m, control, rules, nil, reg, log)
		if err != nil {
			return err
		}
		return tc.c.Setup(m, ids, reg)
	})
}

func (tc *testCluster) make(o client.Object) {
	tc.Helper()
	if err := tc.Client.Create(tc.ctx, o); err != nil {
		tc.Fatal(err)
	}
}

// pod makes a pod with an endpoint that names no identity yet.
func (tc *testCluster) pod(name string, set map[string]string) {
	tc.Helper()
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: set},
		Spec:       corev1.PodSpec{NodeName: "n1", ServiceAccountName: "default", Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}
	tc.make(p)
	tc.make(&v2.CiliumEndpoint{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: name, UID: p.UID}}},
		Status:     v2.EndpointStatus{Networking: &v2.EndpointNetworking{NodeIP: "192.0.2.1", Addressing: []*v2.AddressPair{{IPv4: "10.0.0.1"}}}},
	})
}

// policy makes one that selects pods by a key.
func (tc *testCluster) policy(name string, sel metav1.LabelSelector) {
	tc.Helper()
	tc.make(&networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: networkingv1.NetworkPolicySpec{PodSelector: sel}})
}

func (tc *testCluster) noPolicy(name string) {
	tc.Helper()
	if err := tc.Client.Delete(tc.ctx, &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}); err != nil {
		tc.Fatal(err)
	}
}

// published returns what the ConfigMap says; false if there is none.
func (tc *testCluster) published() (k8skeys.State, bool) {
	tc.Helper()
	var o corev1.ConfigMap
	if err := tc.Client.Get(tc.ctx, client.ObjectKey{Namespace: namespace, Name: k8skeys.ConfigMapName}, &o); err != nil {
		return k8skeys.State{}, false
	}
	s, err := k8skeys.Read(&o)
	if err != nil {
		tc.Fatal(err)
	}
	return s, true
}

// answer plays the agent.
func (tc *testCluster) answer(a k8skeys.Answer) {
	tc.Helper()
	tc.make(a.Lease(namespace, "n1"))
}

// answering returns the nodes that have Leases.
func (tc *testCluster) answering() map[string]bool {
	tc.Helper()
	var list coordinationv1.LeaseList
	if err := tc.Client.List(tc.ctx, &list, client.InNamespace(namespace), client.MatchingLabels{k8skeys.LeaseLabel: k8skeys.LeaseLabelValue}); err != nil {
		tc.Fatal(err)
	}
	out := map[string]bool{}
	for i := range list.Items {
		node, _ := k8skeys.ReadLease(&list.Items[i])
		out[node] = true
	}
	return out
}

func (tc *testCluster) eventually(what string, ok func() bool) {
	tc.Helper()
	for end := time.Now().Add(testTimeout); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			s, there := tc.published()
			tc.Fatalf("%s: not after %v; published: %v %+v, status %+v", what, testTimeout, there, s, tc.c.Status())
		}
	}
}

// until waits for keys to be published, with which all policies may be evaluated or not.
func (tc *testCluster) until(keys, ready labels.Keys) k8skeys.State {
	tc.Helper()
	var s k8skeys.State
	tc.eventually(fmt.Sprintf("keys %q, ready %q", keys, ready), func() bool {
		var there bool
		s, there = tc.published()
		return there && s.Keys.Equal(keys) && s.Ready.Equal(ready)
	})
	return s
}

// stays checks that nothing is published for a while that is long for the operator.
func (tc *testCluster) stays(s k8skeys.State) {
	tc.Helper()
	for range 10 {
		time.Sleep(100 * time.Millisecond)
		if now, _ := tc.published(); now.Generation != s.Generation {
			tc.Fatalf("generation %d was followed by %+v, although no agent has answered", s.Generation, now)
		}
	}
}

// numbers returns which identities the endpoints name.
func (tc *testCluster) numbers() map[string]int64 {
	tc.Helper()
	var list v2.CiliumEndpointList
	if err := tc.Client.List(tc.ctx, &list); err != nil {
		tc.Fatal(err)
	}
	out := map[string]int64{}
	for _, e := range list.Items {
		if e.Status.Identity != nil {
			out[e.Name] = e.Status.Identity.ID
		}
	}
	return out
}

// TestController plays an agent and a user with kubectl: seed 002, "CID lazy creation".
func TestController(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t)
	tc.make(&v2.CiliumNode{ObjectMeta: metav1.ObjectMeta{Name: "n1"}})
	for _, p := range []struct{ name, app, tier string }{{"a", "web", "front"}, {"b", "web", "back"}, {"c", "db", "back"}} {
		tc.pod(p.name, map[string]string{"app": p.app, "tier": p.tier})
	}
	all, app, tier := labels.AllKeys(), labels.KeysOf("app"), labels.KeysOf("tier")
	both := app.Union(tier)
	tc.policy("by-app", metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}})

	// An agent that does not take part keeps all labels.
	tc.operator()
	tc.stays(tc.until(all, app))
	tc.eventually("an identity for each pod", func() bool { n := tc.numbers(); return n["a"]*n["b"]*n["c"] != 0 && n["a"] != n["b"] })

	// It judges by no other label: those are left out, and pods share identities.
	s := tc.until(all, app)
	tc.answer(k8skeys.Answer{Made: s.Generation, Enforced: s.Generation})
	tc.until(app, app)
	tc.eventually("one identity for two pods", func() bool { n := tc.numbers(); return n["a"] == n["b"] && n["a"] != n["c"] })
	want := &api.IdentityLabels{Generation: s.Generation + 1, Keys: []string{"app"}, Ready: []string{"app"}, Identities: 2, WithAllLabels: 3}
	if diff := cmp.Diff(want, tc.c.Status()); diff != "" {
		t.Errorf("status: -want +got\n%s", diff)
	}

	// A policy with another key: identities are made by it at once, and evaluated by when the agent
	// says that it has them, and all endpoints name them.
	tc.policy("by-tier", metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "tier", Operator: metav1.LabelSelectorOpDoesNotExist}}})
	s = tc.until(both, app)
	tc.stays(s)
	if st := tc.c.Status(); len(st.WaitingFor) != 1 || st.WaitingFor[0] != "the agent of node n1" {
		t.Errorf("it waits for %q", st.WaitingFor)
	}
	tc.eventually("identities by both", func() bool { n := tc.numbers(); return n["a"] != n["b"] && n["b"] != n["c"] })
	tc.answer(k8skeys.Answer{Made: s.Generation})
	s = tc.until(both, both)
	if s.Endpoints == 0 || s.Identities == 0 {
		t.Errorf("no versions to wait for: %+v", s)
	}

	// Another operator goes on, and makes nothing by other labels meanwhile.
	before := tc.numbers()
	tc.operator()
	tc.stays(s)
	if diff := cmp.Diff(before, tc.numbers()); diff != "" {
		t.Errorf("another operator gave pods other identities: -before +after\n%s", diff)
	}

	// The policy goes, and so does its key.
	tc.noPolicy("by-tier")
	s = tc.until(both, app)
	tc.stays(s)
	tc.answer(k8skeys.Answer{Made: s.Generation, Enforced: s.Generation})
	s = tc.until(app, app)

	// A client deletes what is published: nothing is evaluated by what may not be there.
	if err := tc.Client.Delete(tc.ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: k8skeys.ConfigMapName}}); err != nil {
		t.Fatal(err)
	}
	lost := tc.until(all, labels.Keys{})
	if lost.Generation <= s.Generation-1 {
		t.Errorf("generation %d comes after %d", lost.Generation, s.Generation)
	}
	tc.answer(k8skeys.Answer{Made: lost.Generation, Enforced: lost.Generation})
	s = tc.until(all, app)
	tc.answer(k8skeys.Answer{Made: s.Generation, Enforced: s.Generation})
	tc.until(app, app)

	// The option is taken back: all labels count again, by the same steps, and nothing is left.
	tc.cfg.Labels = k8skeys.AllLabels
	tc.operator()
	s = tc.until(all, app)
	tc.stays(s)
	tc.answer(k8skeys.Answer{Made: s.Generation, Enforced: s.Generation})
	tc.eventually("nothing is published", func() bool { _, there := tc.published(); return !there })
	tc.eventually("an identity for each pod", func() bool { n := tc.numbers(); return n["a"] != n["b"] && n["b"] != n["c"] })
	tc.eventually("no status", func() bool { return tc.c.Status() == nil })
	tc.stop()
}

// TestKeyAfterKey: another new key comes before agents have confirmed the first. The first goes on
// when they have, and then the other.
func TestKeyAfterKey(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t)
	tc.make(&v2.CiliumNode{ObjectMeta: metav1.ObjectMeta{Name: "n1"}})
	app := labels.KeysOf("app")
	both := app.Union(labels.KeysOf("tier"))
	three := both.Union(labels.KeysOf("zone"))
	confirm := func(s k8skeys.State) { tc.answer(k8skeys.Answer{Made: s.Generation, Enforced: s.Generation}) }
	tc.policy("by-app", metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}})
	tc.operator()
	confirm(tc.until(labels.AllKeys(), app))
	tc.until(app, app)
	tc.policy("by-tier", metav1.LabelSelector{MatchLabels: map[string]string{"tier": "front"}})
	s := tc.until(both, app)
	tc.policy("by-zone", metav1.LabelSelector{MatchLabels: map[string]string{"zone": "a"}})
	tc.stays(s)
	confirm(s)
	confirm(tc.until(three, both))
	tc.until(three, three)
}

// TestNodesThatAreGone: what agents have confirmed whose nodes are gone is removed, so that no
// later leader waits for them. A node of which there is a CiliumNode only stays.
func TestNodesThatAreGone(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t)
	tc.cfg.Lost = time.Second
	tc.make(&v2.CiliumNode{ObjectMeta: metav1.ObjectMeta{Name: "n1"}})
	all, app := labels.AllKeys(), labels.KeysOf("app")
	tc.policy("by-app", metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}})
	tc.operator()
	s := tc.until(all, app)
	tc.answer(k8skeys.Answer{Made: s.Generation, Enforced: s.Generation})
	tc.until(app, app)

	tc.make(k8skeys.Answer{}.Lease(namespace, "gone"))
	tc.make(k8skeys.Answer{Made: 1, Enforced: 1}.Lease(namespace, "gone"))
	tc.eventually("only n1 has Leases", func() bool { return maps.Equal(tc.answering(), map[string]bool{"n1": true}) })

	tc.cfg.Lost = time.Hour
	tc.operator()
	tc.policy("by-tier", metav1.LabelSelector{MatchLabels: map[string]string{"tier": "front"}})
	both := app.Union(labels.KeysOf("tier"))
	s = tc.until(both, app)
	tc.answer(k8skeys.Answer{Made: s.Generation})
	tc.until(both, both)
}

func TestLost(t *testing.T) {
	t.Parallel()
	now := time.Now()
	c := New(Defaults(), namespace, slog.New(slog.DiscardHandler))
	node := func(status corev1.ConditionStatus, ago time.Duration) *corev1.Node {
		return &corev1.Node{Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
			{Type: corev1.NodeReady, Status: status, LastTransitionTime: metav1.NewTime(now.Add(-ago))},
		}}}
	}
	for name, tc := range map[string]struct {
		node *corev1.Node
		want bool
	}{
		"ready": {node(corev1.ConditionTrue, time.Hour), false}, "unready for a moment": {node(corev1.ConditionUnknown, time.Minute), false},
		"given up": {node(corev1.ConditionUnknown, 6*time.Minute), true}, "nothing known": {&corev1.Node{}, false},
	} {
		if got := c.lost(tc.node, now); got != tc.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// TestSuperseded: an answer goes when one other says as much. A restarted agent may confirm less of
// one kind than it did before, and then both stay.
func TestSuperseded(t *testing.T) {
	t.Parallel()
	list := map[k8skeys.Answer]*coordinationv1.Lease{{}: nil, {Made: 1, Enforced: 2}: nil, {Made: 2, Enforced: 2}: nil, {Made: 4}: nil}
	for a, want := range map[k8skeys.Answer]bool{{}: true, {Made: 1, Enforced: 2}: true, {Made: 2, Enforced: 2}: false, {Made: 4}: false} {
		if got := superseded(a, list); got != want {
			t.Errorf("%+v: %v", a, got)
		}
	}
}

func TestNamed(t *testing.T) {
	t.Parallel()
	var many []string
	for i := range 12 {
		many = append(many, fmt.Sprintf("n%02d", i))
	}
	got := named(many)
	if len(got) != 11 || got[0] != "the agent of node n00" || !strings.Contains(got[10], "2 more") {
		t.Errorf("%q", got)
	}
}
