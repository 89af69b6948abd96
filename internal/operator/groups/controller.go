package groups

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrl "sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/k8s/policies"
)

// Labels and annotations of a derivative.
const (
	kindLabel   = "io.cilium.network.policy.kind"
	parentLabel = "io.cilium.network.policy.parent.uuid"
	derivative  = "derivative"
	// sourceAnnotation is a digest of the entries that a derivative was made from. While looking up
	// fails, one made from others is not kept.
	sourceAnnotation = "network.hawser.net/derived-from"
)

// maxName is the longest name an object may have.
const maxName = 253

// One policy, or the policies of one namespace, must not hold up those of others: their groups may
// be many, or at an address that does not answer.
const (
	// workers is how many policies of a kind are looked at together, perNamespace how many of them
	// may be of one namespace. Another one waits for a turn.
	workers      = 8
	perNamespace = 2
	turn         = 3 * time.Second
	// policyTimeout bounds the lookups for one policy. What is left is looked up next time.
	policyTimeout = time.Minute
)

// Setup adds the controllers of both kinds of policies to m.
func Setup(m manager.Manager, cfg Config, from Provider, log *slog.Logger) error {
	if cfg.Interval == 0 {
		return nil
	}
	b := newCache(from, cfg.Interval)
	for _, kind := range []string{v2.KindNetworkPolicy, v2.KindClusterwideNetworkPolicy} {
		c := &controller{client: m.GetClient(), cache: b, interval: cfg.Interval, log: log, kind: kind, busy: map[string]int{}, made: map[types.NamespacedName]made{}}
		err := builder.ControllerManagedBy(m).Named("groups-"+kind).
			For(c.empty(), builder.WithPredicates(predicate.GenerationChangedPredicate{})).
			Owns(c.empty(), builder.WithPredicates(predicate.GenerationChangedPredicate{})).
			WithOptions(ctrl.Options{MaxConcurrentReconciles: workers}).
			Complete(c)
		if err != nil {
			return fmt.Errorf("controller of the groups of a %s: %w", kind, err)
		}
	}
	return nil
}

// controller keeps the derivatives of policies of one kind.
type controller struct {
	client   client.Client
	cache    *cache
	interval time.Duration
	log      *slog.Logger
	kind     string

	mu   sync.Mutex
	busy map[string]int // policies that are looked at, by namespace
	made map[types.NamespacedName]made
}

// made is what this operator has made for a policy last.
type made struct {
	what    string          // the derivative's name and source
	unknown map[string]bool // groups of which it had never seen members
}

// begin takes a turn for a policy of a namespace, which end gives back; ok is false if there is
// none. Policies of the whole cluster are an administrator's, and need none.
func (c *controller) begin(namespace string) (end func(), ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if namespace != "" && c.busy[namespace] >= perNamespace {
		return nil, false
	}
	c.busy[namespace]++
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.busy[namespace]--; c.busy[namespace] == 0 {
			delete(c.busy, namespace)
		}
	}, true
}

func (c *controller) empty() *unstructured.Unstructured {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(v2.SchemeGroupVersion().WithKind(c.kind))
	return u
}

// parent is what matters of a policy.
type parent struct {
	Spec   *v2.Rule               `json:"spec"`
	Specs  []*v2.Rule             `json:"specs"`
	Status v2.NetworkPolicyStatus `json:"status"`
}

// rules returns the policy's rules. Of a policy that is refused they are without those entries that
// name groups and are not understood as a whole: a derivative would allow the members of the groups
// what is left of such an entry, or of its last good version. left names it.
func (p *parent) rules(refused error) (out []*v2.Rule, left error) {
	whole := understood(refused)
	var errs []error
	add := func(path string, r *v2.Rule) {
		if r == nil {
			return
		}
		r = r.DeepCopy()
		keep := func(section string, i int, groups []v2.Group) bool {
			at := fmt.Sprintf("%s.%s[%d]", path, section, i)
			if groups == nil || whole(path, at) {
				return true
			}
			errs = append(errs, fmt.Errorf("%s is not understood as a whole: its groups are allowed nothing", at))
			return false
		}
		ingress, egress := r.Ingress, r.Egress
		r.Ingress, r.Egress = nil, nil
		for i, e := range ingress {
			if keep("ingress", i, e.FromGroups) {
				r.Ingress = append(r.Ingress, e)
			}
		}
		for i, e := range egress {
			if keep("egress", i, e.ToGroups) {
				r.Egress = append(r.Egress, e)
			}
		}
		out = append(out, r)
	}
	if p.Spec != nil {
		add("spec", p.Spec)
	}
	for i, r := range p.Specs {
		add(fmt.Sprintf("specs[%d]", i), r)
	}
	return out, errors.Join(errs...)
}

// Reconcile looks at one policy.
func (c *controller) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	obj := c.empty()
	if err := c.client.Get(ctx, req.NamespacedName, obj); err != nil {
		if apierrors.IsNotFound(err) {
			c.setMade(req.NamespacedName, nil)
		}
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if obj.GetLabels()[kindLabel] == derivative || !obj.GetDeletionTimestamp().IsZero() {
		return reconcile.Result{}, nil
	}
	text, err := obj.MarshalJSON()
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("%s %s: %w", c.kind, req, err)
	}
	_, refused := policies.Parse(c.kind, text)
	var p parent
	if err := json.Unmarshal(text, &p); err != nil {
		if refused == nil {
			return reconcile.Result{}, fmt.Errorf("%s %s: %w", c.kind, req, err)
		}
		p.Spec, p.Specs = nil, nil // the agents make something of it; nothing is known here of its groups
	}
	name := derivativeName(obj)
	rules, left := p.rules(refused)
	if !named(rules) {
		c.setMade(req.NamespacedName, nil)
		return reconcile.Result{}, c.drop(ctx, obj, p.Status, name)
	}
	end, ok := c.begin(req.Namespace)
	if !ok {
		return reconcile.Result{RequeueAfter: turn}, nil
	}
	defer end()
	fault, err := c.keep(ctx, obj, rules, name)
	if err == nil || ctx.Err() == nil && !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) {
		err = errors.Join(err, c.writeStatus(ctx, obj, p.Status, name, errors.Join(err, fault, left)))
	}
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("%s %s: %w", c.kind, req, err)
	}
	if fault != nil {
		c.log.Warn("groups of a policy cannot be looked up, trying again", "kind", c.kind, "policy", req.String(), "error", fault)
		return reconcile.Result{RequeueAfter: max(c.interval/12, time.Second)}, nil
	}
	return reconcile.Result{RequeueAfter: c.interval}, nil
}

// derivativeName returns the name of a policy's derivative.
func derivativeName(obj *unstructured.Unstructured) string {
	tail := "-togroups-" + string(obj.GetUID())
	name := obj.GetName()
	return strings.TrimRight(name[:min(len(name), maxName-len(tail))], "-.") + tail
}

// keep reconciles the derivative of a policy. fault names the groups that could
// not be looked up.
func (c *controller) keep(ctx context.Context, obj *unstructured.Unstructured, from []*v2.Rule, name string) (fault, err error) {
	source, err := digest(from)
	if err != nil {
		return nil, err
	}
	have := c.empty()
	switch err := c.client.Get(ctx, types.NamespacedName{Namespace: obj.GetNamespace(), Name: name}, have); {
	case apierrors.IsNotFound(err):
		have = nil
	case err != nil:
		return nil, err
	case !owned(have, obj):
		return fmt.Errorf("a policy %s exists that is not this one's derivative; remove or rename it", name), nil
	}
	now := made{name + source, map[string]bool{}}
	lookups, cancel := context.WithTimeout(ctx, policyTimeout)
	defer cancel()
	rules, fault := derive(from, func(g v2.Group) (Members, error) {
		m, known, err := c.cache.find(lookups, g)
		if !known {
			now.unknown[key(g)] = true
		}
		return m, err
	})
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if have != nil && have.GetAnnotations()[sourceAnnotation] == source && c.knowsLess(client.ObjectKeyFromObject(obj), now) {
		return fault, nil
	}
	want, err := c.object(obj, name, source, rules)
	switch {
	case err != nil:
		return nil, err
	case have == nil:
		err = c.client.Create(ctx, want)
	case !same(have, want):
		want.SetResourceVersion(have.GetResourceVersion())
		want.SetUID(have.GetUID())
		err = c.client.Update(ctx, want)
	}
	if err != nil {
		return fault, fmt.Errorf("write policy %s: %w", name, err)
	}
	c.setMade(client.ObjectKeyFromObject(obj), &now)
	return fault, nil
}

// knowsLess reports whether members of a group are not known that were when the derivative of a
// policy was made: by the operator before this one, or before the group was forgotten.
func (c *controller) knowsLess(of types.NamespacedName, now made) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	last := c.made[of]
	for group := range now.unknown {
		if last.what != now.what || !last.unknown[group] {
			return true
		}
	}
	return false
}

// setMade notes what was made for a policy, nil if there is none any more.
func (c *controller) setMade(of types.NamespacedName, now *made) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now == nil {
		delete(c.made, of)
		return
	}
	c.made[of] = *now
}

// digest returns a short text that differs for rules that differ.
func digest(rules []*v2.Rule) (string, error) {
	text, err := json.Marshal(rules)
	if err != nil {
		return "", fmt.Errorf("encoding rules: %w", err)
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:12]), nil
}

func owned(have, by *unstructured.Unstructured) bool {
	owner := metav1.GetControllerOf(have)
	return owner != nil && owner.UID == by.GetUID()
}

// object returns the derivative.
func (c *controller) object(of *unstructured.Unstructured, name, source string, rules []*v2.Rule) (*unstructured.Unstructured, error) {
	tree, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&struct {
		Specs []*v2.Rule `json:"specs"`
	}{rules})
	if err != nil {
		return nil, fmt.Errorf("encoding policy %s: %w", name, err)
	}
	out := c.empty()
	out.Object["specs"] = tree["specs"]
	out.SetNamespace(of.GetNamespace())
	out.SetName(name)
	out.SetLabels(map[string]string{kindLabel: derivative, parentLabel: string(of.GetUID())})
	out.SetAnnotations(map[string]string{sourceAnnotation: source})
	// It does not block the policy's deletion: where the API server protects owners, that would
	// need rights on their finalizers.
	controls, blocks := true, false
	out.SetOwnerReferences([]metav1.OwnerReference{{
		APIVersion: v2.SchemeGroupVersion().String(), Kind: c.kind, Name: of.GetName(), UID: of.GetUID(), Controller: &controls, BlockOwnerDeletion: &blocks,
	}})
	return out, nil
}

// same reports whether a derivative is what it should be.
func same(have, want *unstructured.Unstructured) bool {
	if _, extra := have.Object["spec"]; extra {
		return false
	}
	a, err := json.Marshal(have.Object["specs"])
	b, err2 := json.Marshal(want.Object["specs"])
	return err == nil && err2 == nil && string(a) == string(b) && maps.Equal(have.GetLabels(), want.GetLabels()) && maps.Equal(have.GetAnnotations(), want.GetAnnotations())
}

// writeStatus writes what became of the groups and of the derivative into the status of the policy,
// if that has changed.
func (c *controller) writeStatus(ctx context.Context, obj *unstructured.Unstructured, have v2.NetworkPolicyStatus, name string, fault error) error {
	ok, text := fault == nil, ""
	if fault != nil {
		text = fault.Error()
		text = strings.ToValidUTF8(text[:min(len(text), 4096)], "")
	}
	if old, reported := have.DerivativePolicies[name]; reported && old.OK == ok && old.Error == text {
		return nil
	}
	// A merge keeps absent fields, so all are set.
	return c.patchStatus(ctx, obj, map[string]any{name: map[string]any{"ok": ok, "enforcing": ok, "error": text, "lastUpdated": metav1.Now()}})
}

func (c *controller) patchStatus(ctx context.Context, obj *unstructured.Unstructured, derivatives map[string]any) error {
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": obj.GetUID()}, "status": map[string]any{"derivativePolicies": derivatives},
	})
	if err != nil {
		return fmt.Errorf("encoding the status: %w", err)
	}
	err = c.client.Status().Patch(ctx, obj.DeepCopy(), client.RawPatch(types.MergePatchType, patch))
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // it is gone, or another of the same name
	}
	return err
}

// drop removes the derivative of a policy that names no groups any more.
func (c *controller) drop(ctx context.Context, obj *unstructured.Unstructured, have v2.NetworkPolicyStatus, name string) error {
	old := c.empty()
	err := c.client.Get(ctx, types.NamespacedName{Namespace: obj.GetNamespace(), Name: name}, old)
	if err == nil && owned(old, obj) {
		uid := old.GetUID()
		err = c.client.Delete(ctx, old, client.Preconditions{UID: &uid})
	}
	err = client.IgnoreNotFound(err)
	if _, reported := have.DerivativePolicies[name]; reported {
		err = errors.Join(err, c.patchStatus(ctx, obj, map[string]any{name: nil}))
	}
	if err != nil {
		return fmt.Errorf("%s %s, whose groups are gone: %w", c.kind, client.ObjectKeyFromObject(obj), err)
	}
	return nil
}
