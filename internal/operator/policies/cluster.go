package policies

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/source"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/k8s"
	"github.com/hawser-net/hawser/internal/k8s/policies"
	"github.com/hawser-net/hawser/internal/validate"
	"github.com/hawser-net/hawser/pkg/retry"
)

// look is how often to look whether ClusterNetworkPolicy is defined, as agents do.
const look = 15 * time.Second

// standardStatus is what is read of the status of a ClusterNetworkPolicy.
type standardStatus struct {
	Conditions []metav1.Condition `json:"conditions"`
}

// replaceStandard puts the condition of a policy with that fault, or none, among conditions of
// Kubernetes' own type. It reports whether that changes anything.
func replaceStandard(have []metav1.Condition, fault error, generation int64, now time.Time) ([]metav1.Condition, bool) {
	want := metav1.Condition{
		Type: v2.ConditionValid, Status: metav1.ConditionTrue, Reason: reasonValid, Message: validMessage,
		ObservedGeneration: generation, LastTransitionTime: metav1.NewTime(now),
	}
	if fault != nil {
		want.Status, want.Reason, want.Message = metav1.ConditionFalse, reasonInvalid, validate.Brief(fault, maxMessage)
	}
	out := slices.Clone(have)
	changed := meta.SetStatusCondition(&out, want)
	return out, changed
}

// clusterPolicies looks after ClusterNetworkPolicy while it is defined. It is not built into
// Kubernetes: its definition may be created and deleted at any time. A regular controller of the
// manager would end the operator where it is not defined.
type clusterPolicies struct {
	manager manager.Manager
	server  rest.Interface
	kind    schema.GroupVersionKind
	look    time.Duration
	report  *reporter
	log     *slog.Logger
}

func setupCluster(m manager.Manager, look time.Duration, report *reporter, log *slog.Logger) error {
	d, err := discovery.NewDiscoveryClientForConfigAndClient(m.GetConfig(), m.GetHTTPClient())
	if err != nil {
		return fmt.Errorf("what the API server serves: %w", err)
	}
	gv := schema.GroupVersion{Group: policyv1alpha2.GroupVersion.Group, Version: policyv1alpha2.GroupVersion.Version}
	c := &clusterPolicies{m, d.RESTClient(), gv.WithKind(policies.KindCluster), look, report, log}
	return m.Add(manager.RunnableFunc(c.run))
}

// run follows the policies from when they are defined until they are not, until ctx ends.
func (c *clusterPolicies) run(ctx context.Context) error {
	for ctx.Err() == nil {
		served, err := c.served(ctx)
		if err == nil && served {
			err = c.follow(ctx)
		}
		if err != nil && ctx.Err() == nil {
			c.log.Warn("cannot look after ClusterNetworkPolicy, trying again", "error", err)
		}
		retry.Sleep(ctx, c.look)
	}
	return nil
}

// served asks whether the server has the kind.
func (c *clusterPolicies) served(ctx context.Context) (bool, error) {
	missing, err := k8s.Unserved(ctx, c.server, policies.ClusterResource())
	if err != nil {
		return false, fmt.Errorf("whether it is defined: %w", err)
	}
	return len(missing) == 0, nil
}

// follow runs a controller with a cache of its own until the definition is gone or ctx ends.
func (c *clusterPolicies) follow(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	store, err := cache.New(c.manager.GetConfig(), cache.Options{
		HTTPClient: c.manager.GetHTTPClient(), Scheme: c.manager.GetScheme(), Mapper: c.manager.GetRESTMapper(),
		DefaultTransform: cache.TransformStripManagedFields(),
	})
	if err != nil {
		return fmt.Errorf("a cache: %w", err)
	}
	yes, no := true, false
	v := &validator{reader: store, client: c.manager.GetClient(), report: c.report, kind: c.kind}
	ctl, err := controller.NewUnmanaged("validator-"+c.kind.Kind, controller.Options{
		Reconciler: v, SkipNameValidation: &yes, UsePriorityQueue: &no, Logger: c.manager.GetLogger(),
	})
	if err != nil {
		return fmt.Errorf("a controller: %w", err)
	}
	edited := predicate.TypedGenerationChangedPredicate[*unstructured.Unstructured]{}
	err = ctl.Watch(source.TypedKind(store, v.empty(), &handler.TypedEnqueueRequestForObject[*unstructured.Unstructured]{}, edited))
	if err != nil {
		return fmt.Errorf("watch: %w", err)
	}
	c.log.Info("ClusterNetworkPolicy is defined here: reporting whether each can be enforced", "version", c.kind.Version)
	ended := make(chan error, 2)
	go func() { ended <- store.Start(ctx) }()
	go func() { ended <- ctl.Start(ctx) }()
	left := 2
	var errs []error
	for gone := false; left == 2 && !gone; {
		select {
		case err := <-ended:
			errs = append(errs, err)
			left--
		case <-time.After(c.look):
			served, err := c.served(ctx)
			gone = err == nil && !served
		}
	}
	stop()
	for ; left > 0; left-- {
		errs = append(errs, <-ended)
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	c.log.Info("ClusterNetworkPolicy is no longer followed")
	return nil
}
