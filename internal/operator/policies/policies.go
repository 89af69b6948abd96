// Package policies reports for every network policy whether nodes can enforce it, and if not, which
// field is at fault: CiliumNetworkPolicy, CiliumClusterwideNetworkPolicy and, where it is defined,
// ClusterNetworkPolicy in their condition Valid, all of them and NetworkPolicy, which has no place
// for conditions, in an Event. Nodes decide for themselves, by the same code: what is said here is
// for people.
//
// It writes that one condition and leaves the others alone. An Event is sent when the condition
// changes, so once by all operators that ever lead; that of a NetworkPolicy when it changes or an
// operator begins to lead. There are no more than one a second for long: the log has what is left
// out.
//
// Goroutines: those of the manager, which waits for them.
package policies

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/k8s/policies"
	"github.com/hawser-net/hawser/internal/validate"
)

const (
	// The condition's message for a valid policy.
	validMessage = "Policy validation succeeded"
	// maxMessage bounds the message in bytes, and what the log has of it: both must stay short.
	maxMessage = validate.MaxLogged
)

// Reasons of the condition of a ClusterNetworkPolicy, whose type wants one.
const (
	reasonValid   = "Enforceable"
	reasonInvalid = "NotEnforceable"
)

// Setup adds the controllers of all kinds of policies to m. groups is set if the groups in policies
// are resolved.
func Setup(m manager.Manager, groups bool, log *slog.Logger) error {
	return setup(m, groups, look, log)
}

func setup(m manager.Manager, groups bool, look time.Duration, log *slog.Logger) error {
	report := newReporter(m.GetEventRecorder("hawser-operator"), log)
	// A write of the status does not change the generation: the condition written here starts
	// nothing, and others' writes of it are not fought over.
	edited := builder.WithPredicates(predicate.GenerationChangedPredicate{})
	for _, kind := range []string{v2.KindNetworkPolicy, v2.KindClusterwideNetworkPolicy} {
		v := &validator{m.GetClient(), m.GetClient(), groups, report, v2.SchemeGroupVersion().WithKind(kind)}
		if err := builder.ControllerManagedBy(m).Named("validator-"+kind).For(v.empty(), edited).Complete(v); err != nil {
			return fmt.Errorf("controller of the condition of a %s: %w", kind, err)
		}
	}
	n := &networkPolicies{m.GetClient(), report}
	err := builder.ControllerManagedBy(m).Named("validator-"+policies.KindKubernetes).For(&networkingv1.NetworkPolicy{}, edited).Complete(n)
	if err != nil {
		return fmt.Errorf("controller of %s: %w", policies.KindKubernetes, err)
	}
	return setupCluster(m, look, report, log)
}

// validator writes the condition of policies of one kind. It reads them as the server has them: a
// typed reader would not show fields that it does not know, and a policy with such a field is not
// valid.
type validator struct {
	reader client.Reader
	client client.Client
	groups bool
	report *reporter
	kind   schema.GroupVersionKind
}

func (v *validator) empty() *unstructured.Unstructured {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(v.kind)
	return u
}

// Reconcile looks at one policy.
func (v *validator) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	obj := v.empty()
	if err := v.reader.Get(ctx, req.NamespacedName, obj); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	fault := v.validate(obj)
	conditions, changed := v.conditions(obj, fault, time.Now())
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
		v.report.refused(obj, v.kind.Kind, req.String(), fault)
	}
	return reconcile.Result{}, nil
}

// conditions returns the conditions that a policy is to have, and whether they are others than it
// has. The status is others' business too, whatever they write there: what can't be read counts as
// absent.
func (v *validator) conditions(obj *unstructured.Unstructured, fault error, now time.Time) (want any, changed bool) {
	if v.kind.Group != v2.GroupName {
		return replaceStandard(statusOf[standardStatus](obj).Conditions, fault, obj.GetGeneration(), now)
	}
	return replace(statusOf[v2.NetworkPolicyStatus](obj).Conditions, condition(fault), now)
}

// statusOf reads the status of an object as far as it is one.
func statusOf[T any](obj *unstructured.Unstructured) T {
	var whole struct {
		Status T `json:"status"`
	}
	_ = runtime.DefaultUnstructuredConverter.FromUnstructured(obj.UnstructuredContent(), &whole)
	return whole.Status
}

// validate returns why a policy is invalid; nil if it is not.
func (v *validator) validate(obj *unstructured.Unstructured) error {
	text, err := obj.MarshalJSON()
	if err == nil {
		_, err = policies.Parse(obj.GetKind(), text)
	}
	if err == nil && !v.groups && v.kind.Group == v2.GroupName && namesGroups(obj.Object) {
		err = errors.New("names groups, which this operator does not look up: no member of them is allowed; set its --policy-external-group-sync-interval")
	}
	return err
}

// namesGroups reports whether a field fromGroups or toGroups is somewhere in a valid policy.
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

// condition returns the condition of a policy with or without a fault.
func condition(fault error) v2.NetworkPolicyCondition {
	if fault == nil {
		return v2.NetworkPolicyCondition{Type: v2.ConditionValid, Status: "True", Message: validMessage}
	}
	return v2.NetworkPolicyCondition{Type: v2.ConditionValid, Status: "False", Message: validate.Brief(fault, maxMessage)}
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
