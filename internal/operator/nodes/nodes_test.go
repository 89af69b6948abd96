package nodes

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/testenv/controllers"
	"github.com/hawser-net/hawser/internal/testenv/kubeapi"
)

func TestMain(m *testing.M) { kubeapi.VerifyTestMain(m) }

func TestValidate(t *testing.T) {
	t.Parallel()
	d := Defaults()
	if err := d.Validate(); err != nil {
		t.Error(err)
	}
	for _, tt := range []struct {
		change func(*Config)
		want   string
	}{
		{func(c *Config) { c.TaintKey = "a b" }, "--agent-not-ready-taint-key"},
		{func(c *Config) { c.Workers = 0 }, "--taint-sync-workers"},
		{func(c *Config) { c.AgentLabels = "a in" }, "--cilium-pod-labels"},
		{func(c *Config) { c.AgentLabels = "" }, "every pod for an agent"},
		{func(c *Config) { c.GCInterval = -1 }, "--nodes-gc-interval"},
	} {
		c := Defaults()
		tt.change(&c)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%+v: %v; want %q", c, err, tt.want)
		}
	}
}

func agent(ready bool, change ...func(*corev1.Pod)) corev1.Pod {
	status := corev1.ConditionFalse
	if ready {
		status = corev1.ConditionTrue
	}
	p := corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: status}}}}
	for _, c := range change {
		c(&p)
	}
	return p
}

func TestDecide(t *testing.T) {
	t.Parallel()
	ours := corev1.Taint{Key: Defaults().TaintKey, Effect: corev1.TaintEffectNoSchedule}
	evicts := corev1.Taint{Key: Defaults().TaintKey, Effect: corev1.TaintEffectNoExecute}
	other := corev1.Taint{Key: "other", Effect: corev1.TaintEffectNoSchedule}
	up := []corev1.NodeCondition{{Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionFalse, Reason: upReason}}
	cloud := []corev1.NodeCondition{{Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionFalse, Reason: "RouteCreated"}}
	ending := func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)} }
	failed := func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }
	for _, tt := range []struct {
		name       string
		set        bool // --set-cilium-node-taints
		keep       bool // --remove-cilium-node-taints=false
		silent     bool // --set-cilium-is-up-condition=false
		taints     []corev1.Taint
		conditions []corev1.NodeCondition
		agents     []corev1.Pod
		want       *[]corev1.Taint // nil for no change
		up         bool
	}{
		{name: "no agent", set: true, taints: []corev1.Taint{ours}},
		{name: "ready", taints: []corev1.Taint{other, ours}, agents: []corev1.Pod{agent(true)}, want: &[]corev1.Taint{other}, up: true},
		{name: "ready, all effects", taints: []corev1.Taint{ours, evicts}, agents: []corev1.Pod{agent(true)}, want: &[]corev1.Taint{}, up: true},
		{name: "ready, reported already", taints: []corev1.Taint{other}, conditions: up, agents: []corev1.Pod{agent(true)}},
		{name: "ready, others' condition", conditions: cloud, agents: []corev1.Pod{agent(true)}, up: true},
		{name: "ready, taint kept", keep: true, taints: []corev1.Taint{ours}, agents: []corev1.Pod{agent(true)}, up: true},
		{name: "ready, silent", silent: true, taints: []corev1.Taint{ours}, agents: []corev1.Pod{agent(true)}, want: &[]corev1.Taint{}},
		{name: "not ready", agents: []corev1.Pod{agent(false)}},
		{name: "not ready, set", set: true, taints: []corev1.Taint{other}, agents: []corev1.Pod{agent(false)}, want: &[]corev1.Taint{other, ours}},
		{name: "not ready, set already", set: true, taints: []corev1.Taint{ours}, agents: []corev1.Pod{agent(false)}},
		{name: "not ready, the old one ends", set: true, agents: []corev1.Pod{agent(true, ending), agent(false)}, want: &[]corev1.Taint{ours}},
		{name: "only an ended one", set: true, agents: []corev1.Pod{agent(true, failed), agent(true, ending)}},
		{name: "one of two is ready", set: true, taints: []corev1.Taint{ours}, agents: []corev1.Pod{agent(false), agent(true)}, want: &[]corev1.Taint{}, up: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			cfg := Defaults()
			cfg.SetTaints, cfg.RemoveTaints, cfg.SetCondition = tt.set, !tt.keep, !tt.silent
			node := &corev1.Node{Spec: corev1.NodeSpec{Taints: tt.taints}, Status: corev1.NodeStatus{Conditions: tt.conditions}}
			got := decide(node, tt.agents, cfg)
			if diff := cmp.Diff(tt.want, got.taints); diff != "" {
				t.Errorf("taints (-want +got):\n%s", diff)
			}
			if got.up != tt.up {
				t.Errorf("up %t, want %t", got.up, tt.up)
			}
		})
	}
}

func TestNodes(t *testing.T) {
	env := controllers.Start(t)
	t.Run("readiness", func(t *testing.T) { readinessOnServer(t, env) })
	t.Run("refused change", func(t *testing.T) { refusedChange(t, env) })
	t.Run("collection", func(t *testing.T) { collection(t, env) })
}

func readinessOnServer(t *testing.T, env *controllers.Env) {
	cfg := Defaults()
	cfg.SetTaints = true
	env.Run(t, func(ctx context.Context, m manager.Manager, log *slog.Logger) error {
		return SetupReadiness(ctx, m, cfg, "default", log)
	})
	other := corev1.Taint{Key: "other", Value: "v", Effect: corev1.TaintEffectNoExecute}
	pod := func(name, node, namespace string, labels map[string]string) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace, Labels: labels}}
		p.Spec = corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "i"}}}
		p.Status.Phase = corev1.PodRunning
		return p
	}
	ours := map[string]string{"k8s-app": "cilium"}
	var agents []*corev1.Pod
	const n = 20
	for i := range n {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("n", i)}, Spec: corev1.NodeSpec{Taints: []corev1.Taint{other}}}
		node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady"}}
		env.Create(t, node)
		a := pod(fmt.Sprint("agent", i), node.Name, "default", ours)
		env.Create(t, a)
		agents = append(agents, a)
	}
	foreign := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "foreign"}, Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: cfg.TaintKey, Effect: corev1.TaintEffectNoSchedule}}}}
	env.Create(t, foreign)
	// Neither is an agent.
	for _, p := range []*corev1.Pod{pod("other-labels", "foreign", "default", nil), pod("other-namespace", "foreign", "kube-system", ours)} {
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		env.Create(t, p)
	}
	check := func(wantTaint, wantUp bool) {
		t.Helper()
		for i := range n {
			controllers.Eventually(t, 2*time.Minute, func() string {
				node := &corev1.Node{}
				if err := env.Client.Get(t.Context(), types.NamespacedName{Name: fmt.Sprint("n", i)}, node); err != nil {
					return err.Error()
				}
				has := slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == cfg.TaintKey })
				kept := slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t == other })
				up, ready := false, false
				for _, c := range node.Status.Conditions {
					up = up || c.Type == corev1.NodeNetworkUnavailable && c.Status == corev1.ConditionFalse && c.Reason == "CiliumIsUp" && c.Message != ""
					ready = ready || c.Type == corev1.NodeReady && c.Reason == "KubeletReady"
				}
				if has != wantTaint || up != wantUp || !kept || !ready {
					return fmt.Sprintf("%s: taints %v, conditions %v; want the taint: %t, up: %t", node.Name, node.Spec.Taints, node.Status.Conditions, wantTaint, wantUp)
				}
				return ""
			})
		}
	}
	setReady := func(status corev1.ConditionStatus) {
		t.Helper()
		for _, a := range agents {
			if err := env.Client.Get(t.Context(), client.ObjectKeyFromObject(a), a); err != nil {
				t.Fatal(err)
			}
			a.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: status}}
			if err := env.Client.Status().Update(t.Context(), a); err != nil {
				t.Fatal(err)
			}
		}
	}
	check(true, false)
	setReady(corev1.ConditionTrue)
	check(false, true)
	setReady(corev1.ConditionFalse)
	check(true, true) // the network that is there stays
	if err := env.Client.Get(t.Context(), types.NamespacedName{Name: "foreign"}, foreign); err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(foreign.Spec.Taints, func(t corev1.Taint) bool { return t.Key == cfg.TaintKey }) || len(foreign.Status.Conditions) != 0 {
		t.Errorf("a node without an agent was changed: %v, %v", foreign.Spec.Taints, foreign.Status.Conditions)
	}
}

// agents is a server whose nodes all have a ready agent.
type agents struct{ client.Client }

func (agents) List(_ context.Context, into client.ObjectList, _ ...client.ListOption) error {
	into.(*corev1.PodList).Items = []corev1.Pod{agent(true)}
	return nil
}

// refusedChange: a change that admission refuses is a failure, which is reported and after which
// pauses grow, and not a conflict with another writer, which is tried again at once.
func refusedChange(t *testing.T, env *controllers.Env) {
	cfg := Defaults()
	taint := corev1.Taint{Key: cfg.TaintKey, Effect: corev1.TaintEffectNoSchedule}
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "guarded"}, Spec: corev1.NodeSpec{Taints: []corev1.Taint{taint, {Key: "other", Effect: corev1.TaintEffectNoSchedule}}}}
	env.Create(t, n)
	deny, all := admissionv1.Fail, admissionv1.MatchPolicyType("Equivalent")
	env.Create(t, &admissionv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: "taints-stay"}, Spec: admissionv1.ValidatingAdmissionPolicySpec{
		FailurePolicy: &deny,
		MatchConstraints: &admissionv1.MatchResources{MatchPolicy: &all, ResourceRules: []admissionv1.NamedRuleWithOperations{{RuleWithOperations: admissionv1.RuleWithOperations{
			Operations: []admissionv1.OperationType{admissionv1.Update},
			Rule:       admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"nodes"}},
		}}}},
		Validations: []admissionv1.Validation{{Expression: "object.metadata.name != 'guarded' || has(object.spec.taints) && object.spec.taints.size() == oldObject.spec.taints.size()", Message: "taints stay"}},
	}})
	env.Create(t, &admissionv1.ValidatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: "taints-stay"}, Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{
		PolicyName: "taints-stay", ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny},
	}})
	r := &readiness{client: agents{env.Client}, cfg: cfg, log: slog.New(slog.DiscardHandler)}
	req := reconcile.Request{NamespacedName: client.ObjectKeyFromObject(n)}
	controllers.Eventually(t, 2*time.Minute, func() string { // the server takes a moment to know of the policy
		cleared := n.DeepCopy()
		cleared.Spec.Taints = nil
		if err := env.Client.Patch(t.Context(), cleared, client.MergeFrom(n), client.DryRunAll); err == nil || !strings.Contains(err.Error(), "taints stay") {
			return fmt.Sprintf("the taints can be changed: %v", err)
		}
		return ""
	})
	if result, err := r.Reconcile(t.Context(), req); err == nil || !strings.Contains(err.Error(), "taints stay") || result != (reconcile.Result{}) {
		t.Errorf("a change that is refused: %+v, %v; want the error", result, err)
	}
	// Another client writes between the reading and the writing.
	old := n.DeepCopy()
	n.Labels = map[string]string{"changed": "yes"}
	if err := env.Client.Update(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	if result, err := again(r.patchTaints(t.Context(), old, nil)); err != nil || result.RequeueAfter == 0 {
		t.Errorf("a change of what is not there any more: %+v, %v; want another look", result, err)
	}
}

func collection(t *testing.T, env *controllers.Env) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "there"}}
	env.Create(t, node)
	create := func(name string, change func(*v2.CiliumNode)) {
		n := &v2.CiliumNode{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if change != nil {
			change(n)
		}
		env.Create(t, n)
	}
	create("there", nil)
	create("gone", nil)
	create("owned", func(n *v2.CiliumNode) {
		n.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: "owned", UID: "x"}}
	})
	create("kept", func(n *v2.CiliumNode) { n.Annotations = map[string]string{"cilium.io/do-not-gc": "true"} })
	create("not-kept", func(n *v2.CiliumNode) { n.Annotations = map[string]string{"cilium.io/do-not-gc": "false"} })
	create("written", nil)
	names := func() []string {
		t.Helper()
		var all v2.CiliumNodeList
		if err := env.Client.List(t.Context(), &all); err != nil {
			t.Fatal(err)
		}
		var out []string
		for _, n := range all.Items {
			out = append(out, n.Name)
		}
		return out
	}
	c := &collector{client: env.Client, live: env.Client, log: slog.New(slog.DiscardHandler), seen: map[types.UID]bool{}}
	round := func(want ...string) {
		t.Helper()
		if err := c.round(t.Context()); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, names()); diff != "" {
			t.Fatalf("CiliumNodes (-want +got):\n%s", diff)
		}
	}
	round("gone", "kept", "not-kept", "owned", "there", "written")
	round("kept", "owned", "there")
	// A node that comes back between two looks is not collected, nor is one that is made anew.
	create("back", nil)
	create("anew", nil)
	round("anew", "back", "kept", "owned", "there")
	env.Create(t, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "back"}})
	if err := env.Client.Delete(t.Context(), &v2.CiliumNode{ObjectMeta: metav1.ObjectMeta{Name: "anew"}}); err != nil {
		t.Fatal(err)
	}
	create("anew", nil)
	round("anew", "back", "kept", "owned", "there")
	round("back", "kept", "owned", "there")

	// What the cache shows is not what counts.
	stale := &v2.CiliumNode{ObjectMeta: metav1.ObjectMeta{Name: "back"}}
	if err := env.Client.Get(t.Context(), client.ObjectKeyFromObject(stale), stale); err != nil {
		t.Fatal(err)
	}
	if err := c.remove(t.Context(), stale); err != nil {
		t.Fatal(err)
	}
	if err := env.Client.Delete(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "back"}}); err != nil {
		t.Fatal(err)
	}
	stale.ResourceVersion = "1" // another client wrote it meanwhile
	if err := c.remove(t.Context(), stale); err != nil {
		t.Fatal(err)
	}
	if err := env.Client.Get(t.Context(), types.NamespacedName{Name: "back"}, stale); apierrors.IsNotFound(err) {
		t.Error("a CiliumNode was deleted that had been written since")
	}
}
