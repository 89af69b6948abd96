package nodes

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// The reason and message of a node's condition, which other programs look for.
const (
	upReason  = "CiliumIsUp"
	upMessage = "Cilium is running on this node"
)

// agentsOf is the index of the agents' pods by node.
const agentsOf = "agents-of-node"

// SetupReadiness adds the controller of taints and conditions to m. namespace is where the agents
// are if the configuration does not set it.
func SetupReadiness(ctx context.Context, m manager.Manager, cfg Config, namespace string, log *slog.Logger) error {
	if !cfg.RemoveTaints && !cfg.SetTaints && !cfg.SetCondition {
		return nil
	}
	selector, err := labels.Parse(cfg.AgentLabels)
	if err != nil {
		return fmt.Errorf("--cilium-pod-labels: %w", err)
	}
	if cfg.AgentNamespace != "" {
		namespace = cfg.AgentNamespace
	}
	isAgent := func(o client.Object) bool {
		return o.GetNamespace() == namespace && selector.Matches(labels.Set(o.GetLabels()))
	}
	err = m.GetFieldIndexer().IndexField(ctx, &corev1.Pod{}, agentsOf, func(o client.Object) []string {
		if p, ok := o.(*corev1.Pod); ok && isAgent(p) && p.Spec.NodeName != "" {
			return []string{p.Spec.NodeName}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("an index of the agents: %w", err)
	}
	r := &readiness{client: m.GetClient(), cfg: cfg, log: log}
	toNode := handler.EnqueueRequestsFromMapFunc(func(_ context.Context, o client.Object) []reconcile.Request {
		if p, ok := o.(*corev1.Pod); ok && p.Spec.NodeName != "" {
			return []reconcile.Request{{NamespacedName: types.NamespacedName{Name: p.Spec.NodeName}}}
		}
		return nil
	})
	err = builder.ControllerManagedBy(m).Named("node-readiness").
		For(&corev1.Node{}).
		Watches(&corev1.Pod{}, toNode, builder.WithPredicates(predicate.NewPredicateFuncs(isAgent))).
		WithOptions(controller.Options{MaxConcurrentReconciles: cfg.Workers}).
		Complete(r)
	if err != nil {
		return fmt.Errorf("controller node-readiness: %w", err)
	}
	return nil
}

// readiness reconciles taints and conditions of nodes with their agents.
type readiness struct {
	client client.Client
	cfg    Config
	log    *slog.Logger
}

// Reconcile looks after one node.
func (r *readiness) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	node := &corev1.Node{}
	if err := r.client.Get(ctx, req.NamespacedName, node); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	agents := &corev1.PodList{}
	if err := r.client.List(ctx, agents, client.MatchingFields{agentsOf: node.Name}); err != nil {
		return reconcile.Result{}, fmt.Errorf("agents of node %s: %w", node.Name, err)
	}
	want := decide(node, agents.Items, r.cfg)
	if want.taints != nil {
		if err := r.patchTaints(ctx, node, *want.taints); err != nil {
			return again(err)
		}
		r.log.Info("changed the taint of a node", "node", node.Name, "taint", r.cfg.TaintKey, "set", want.tainted)
	}
	if want.up {
		if err := r.patchCondition(ctx, node); err != nil {
			return again(err)
		}
		r.log.Info("a node has a network", "node", node.Name)
	}
	return reconcile.Result{}, nil
}

// again retries silently if there was a conflict or the node is gone.
func again(err error) (reconcile.Result, error) {
	switch {
	case apierrors.IsNotFound(err):
		return reconcile.Result{}, nil
	case apierrors.IsConflict(err):
		return reconcile.Result{RequeueAfter: 100 * time.Millisecond}, nil
	}
	return reconcile.Result{}, err
}

// change is what is to become of a node.
type change struct {
	taints  *[]corev1.Taint // nil if they are as they should be
	tainted bool            // whether the agent's taint is among them
	up      bool            // the condition is to be written
}

// decide reports what is to become of a node with these agents.
func decide(node *corev1.Node, agents []corev1.Pod, cfg Config) change {
	scheduled, ready := false, false
	for i := range agents {
		p := &agents[i]
		if !p.DeletionTimestamp.IsZero() || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
			continue
		}
		scheduled = true
		ready = ready || slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
		})
	}
	var out change
	isOurs := func(t corev1.Taint) bool { return t.Key == cfg.TaintKey }
	has := slices.ContainsFunc(node.Spec.Taints, isOurs)
	switch {
	case ready && has && cfg.RemoveTaints:
		rest := slices.DeleteFunc(slices.Clone(node.Spec.Taints), isOurs)
		out.taints = &rest
	case !ready && scheduled && !has && cfg.SetTaints:
		more := append(slices.Clone(node.Spec.Taints), corev1.Taint{Key: cfg.TaintKey, Effect: corev1.TaintEffectNoSchedule})
		out.taints, out.tainted = &more, true
	}
	if ready && cfg.SetCondition {
		out.up = !slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == corev1.NodeNetworkUnavailable && c.Status == corev1.ConditionFalse && c.Reason == upReason
		})
	}
	return out
}

// patchTaints replaces the taints, if the node is still as it was read: others write them too.
func (r *readiness) patchTaints(ctx context.Context, node *corev1.Node, taints []corev1.Taint) error {
	data, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": node.UID, "resourceVersion": node.ResourceVersion}, "spec": map[string]any{"taints": taints},
	})
	if err != nil {
		return fmt.Errorf("taints of node %s: %w", node.Name, err)
	}
	// A list that is merged strategically is not replaced.
	if err := r.client.Patch(ctx, node.DeepCopy(), client.RawPatch(types.MergePatchType, data)); err != nil {
		return fmt.Errorf("taints of node %s: %w", node.Name, err)
	}
	return nil
}

// patchCondition sets one condition and leaves the others alone.
func (r *readiness) patchCondition(ctx context.Context, node *corev1.Node) error {
	now := metav1.Now()
	data, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": []corev1.NodeCondition{{
		Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionFalse, Reason: upReason, Message: upMessage, LastTransitionTime: now, LastHeartbeatTime: now,
	}}}})
	if err != nil {
		return fmt.Errorf("condition of node %s: %w", node.Name, err)
	}
	if err := r.client.Status().Patch(ctx, node.DeepCopy(), client.RawPatch(types.StrategicMergePatchType, data)); err != nil {
		return fmt.Errorf("condition of node %s: %w", node.Name, err)
	}
	return nil
}
