package policies

import (
	"context"
	"log/slog"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/hawser-net/hawser/internal/k8s/policies"
	"github.com/hawser-net/hawser/internal/policy"
	"github.com/hawser-net/hawser/internal/validate"
)

const (
	// eventPause is how long the Events of this package are apart when there are many, and
	// eventBurst how many may come at once.
	eventPause = time.Second
	eventBurst = 25
	// maxNote is how much text the server takes in an Event.
	maxNote = 1024
)

// reporter reports that a policy is refused, in the log and in an Event. It may be used by several
// goroutines.
type reporter struct {
	events events.EventRecorder
	limit  *rate.Limiter
	log    *slog.Logger
}

func newReporter(r events.EventRecorder, log *slog.Logger) *reporter {
	return &reporter{r, rate.NewLimiter(rate.Every(eventPause), eventBurst), log}
}

// refused reports what is wrong with a policy. Its text names the field.
func (t *reporter) refused(obj runtime.Object, kind, name string, fault error) {
	sent := t.limit.Allow()
	t.log.Warn("a policy is not valid: nodes isolate the pods that it selects, and allow only what its valid parts allow", "kind", kind, "policy", name, "fault", validate.Brief(fault, maxMessage), "event", sent)
	if sent {
		t.events.Eventf(obj, nil, corev1.EventTypeWarning, "PolicyRefused", "Validate", "%s", validate.Brief(fault, maxNote))
	}
}

// networkPolicies reports those of Kubernetes. The server checks them well, so that few are
// refused.
type networkPolicies struct {
	reader client.Reader
	report *reporter
}

// Reconcile looks at one NetworkPolicy.
func (n *networkPolicies) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	obj := &networkingv1.NetworkPolicy{}
	if err := n.reader.Get(ctx, req.NamespacedName, obj); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if _, fault := policy.ParseNetworkPolicy(obj); fault != nil {
		n.report.refused(obj, policies.KindKubernetes, req.String(), fault)
	}
	return reconcile.Result{}, nil
}
