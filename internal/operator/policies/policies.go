// Package policies tells in the condition Valid of every CiliumNetworkPolicy and CiliumClusterwideNetworkPolicy whether nodes can enforce it, and if not,
// which field is at fault. Nodes decide for themselves, by the same code: the condition is for people.
//
// It writes that one condition and leaves the others alone.
package policies

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/k8s/policies"
)

// What the condition says of a policy without fault.
const validMessage = "Policy validation succeeded"

// maxMessage bounds the message: a status is no place for a book.
const maxMessage = 4096

// Setup adds the controllers of both kinds of policies to m. groups says whether somebody follows the groups that policies name.
func Setup(m manager.Manager, groups bool, log *slog.Logger) error {
	for _, kind := range []string{v2.KindNetworkPolicy, v2.KindClusterwideNetworkPolicy} {
		v := &validator{m.GetClient(), groups, log, kind}
		// A write of the status does not change the generation: the condition written here starts nothing, and others' writes of it are not fought over.
		err := builder.ControllerManagedBy(m).Named("validator-"+kind).
			For(v.empty(), builder.WithPredicates(predicate.GenerationChangedPredicate{})).Complete(v)
		if err != nil {
			return fmt.Errorf("controller of the condition of a %s: %w", kind, err)
		}
	}
	return nil
}

// validator writes the condition of policies of one kind. It reads them as the server has them: a typed reader would not show fields that it does not know,
// and a policy with such a field is not valid.
type validator struct {
	client client.Client
	groups bool
	log    *slog.Logger
	kind   string
}

func (v *validator) empty() *unstructured.Unstructured {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(v2.SchemeGroupVersion().WithKind(v.kind))
	return u
}

// Reconcile looks at one policy.
func (v *validator) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	obj := v.empty()
	if err := v.client.Get(ctx, req.NamespacedName, obj); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	have, fault := v.judge(obj)
	conditions, changed := replace(have, condition(fault), time.Now())
	if !changed {
		return reconcile.Result{}, nil
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"resourceVersion": obj.GetResourceVersion(), "uid": obj.GetUID()},
		"status":   map[string]any{"conditions": conditions},
	})
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("status of policy %s: %w", req, err)
	}
	err = v.client.Status().Patch(ctx, obj, client.RawPatch(types.MergePatchType, patch))
	switch {
	case apierrors.IsNotFound(err):
		return reconcile.Result{}, nil
	case apierrors.IsConflict(err):
		return reconcile.Result{RequeueAfter: 100 * time.Millisecond}, nil
	case err != nil:
		return reconcile.Result{}, fmt.Errorf("status of policy %s: %w", req, err)
	}
	if fault != nil {
		v.log.Warn("a policy is not valid: no node enforces it", "kind", v.kind, "policy", req.String(), "fault", fault)
	}
	return reconcile.Result{}, nil
}

// judge returns the conditions that a policy has, and what is wrong with it; nil for nothing.
func (v *validator) judge(obj *unstructured.Unstructured) ([]v2.NetworkPolicyCondition, error) {
	// The status is others' business too, whatever they write there.
	var status struct {
		Status v2.NetworkPolicyStatus `json:"status"`
	}
	_ = runtime.DefaultUnstructuredConverter.FromUnstructured(obj.UnstructuredContent(), &status)
	text, err := obj.MarshalJSON()
	if err == nil {
		_, err = policies.Parse(obj.GetKind(), text)
	}
	if err == nil && !v.groups && namesGroups(obj.Object) {
		err = errors.New("names groups, which this operator does not look up: no member of them is allowed; set its --policy-external-group-sync-interval")
	}
	return status.Status.Conditions, err
}

// namesGroups says whether a field fromGroups or toGroups is somewhere in a valid policy.
func namesGroups(tree any) bool {
	switch tree := tree.(type) {
	case map[string]any:
		for k, v := range tree {
			if k == "fromGroups" || k == "toGroups" || k != "metadata" && k != "status" && k != "matchLabels" && namesGroups(v) {
				return true
			}
		}
	case []any:
		return slices.ContainsFunc(tree, namesGroups)
	}
	return false
}

// condition returns what is to be said of a policy with a fault, or without one.
func condition(fault error) v2.NetworkPolicyCondition {
	if fault == nil {
		return v2.NetworkPolicyCondition{Type: v2.ConditionValid, Status: "True", Message: validMessage}
	}
	text := fault.Error()
	if len(text) > maxMessage {
		text = strings.ToValidUTF8(text[:maxMessage-3], "") + "..."
	}
	return v2.NetworkPolicyCondition{Type: v2.ConditionValid, Status: "False", Message: text}
}

// replace puts want among the conditions. It reports whether that changes anything.
func replace(have []v2.NetworkPolicyCondition, want v2.NetworkPolicyCondition, now time.Time) ([]v2.NetworkPolicyCondition, bool) {
	want.LastTransitionTime = metav1.NewTime(now)
	out := slices.Clone(have)
	i := slices.IndexFunc(out, func(c v2.NetworkPolicyCondition) bool { return c.Type == want.Type })
	if i < 0 {
		return append(out, want), true
	}
	old := out[i]
	if old.Status == want.Status && old.Message == want.Message {
		return have, false
	}
	if old.Status == want.Status && !old.LastTransitionTime.IsZero() {
		want.LastTransitionTime = old.LastTransitionTime
	}
	out[i] = want
	return out, true
}
