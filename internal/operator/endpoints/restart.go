package endpoints

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/api/v2alpha1"
	"github.com/hawser-net/hawser/internal/operator/rounds"
)

// A pod is restarted only when it is older than youngest, so that its endpoint had time to appear,
// and pods of one name not more often than once in rest.
const (
	youngest = 30 * time.Second
	rest     = 5 * time.Minute
)

// SetupRestart adds the restart of pods without an endpoint to m. reg gets the number of such pods.
func SetupRestart(m manager.Manager, cfg Config, reg prometheus.Registerer, log *slog.Logger) error {
	if cfg.RestartInterval == 0 || !cfg.Kept() {
		return nil // without CiliumEndpoints every pod looks as if it had none
	}
	selector, err := cfg.restarted()
	if selector == nil {
		return err
	}
	gauge := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "cilium_operator_unmanaged_pods", Help: "Pods without an endpoint, of those that --pod-restart-selector selects.",
	})
	if err := reg.Register(gauge); err != nil {
		return fmt.Errorf("metric of unmanaged pods: %w", err)
	}
	r := &restarter{
		client: m.GetClient(), live: m.GetAPIReader(), log: log, selector: selector, sliced: cfg.Sliced, gauge: gauge, now: time.Now,
		last: map[types.NamespacedName]time.Time{},
	}
	return m.Add(manager.RunnableFunc(func(ctx context.Context) error {
		return rounds.Every(ctx, cfg.RestartInterval, nil, r.round)
	}))
}

// restarter deletes pods that have no endpoint, one in a round. Their controllers replace them.
type restarter struct {
	client   client.Client
	live     client.Reader
	log      *slog.Logger
	selector labels.Selector
	sliced   bool // there are slices
	gauge    prometheus.Gauge
	now      func() time.Time
	last     map[types.NamespacedName]time.Time // of a restart
}

func (r *restarter) round(ctx context.Context) error {
	err := r.restart(ctx)
	if err != nil && ctx.Err() == nil {
		r.log.Warn("cannot look for pods without an endpoint, trying again", "error", err)
	}
	return err
}

func (r *restarter) restart(ctx context.Context) error {
	var pods corev1.PodList
	if err := r.client.List(ctx, &pods, client.MatchingLabelsSelector{Selector: r.selector}); err != nil {
		return fmt.Errorf("list of pods: %w", err)
	}
	now := r.now()
	for name, at := range r.last {
		if now.Sub(at) >= rest {
			delete(r.last, name)
		}
	}
	unmanaged, deleted := 0, false
	var sliced map[types.UID]bool // nil until it is needed
	for i := range pods.Items {
		p := &pods.Items[i]
		if p.Spec.HostNetwork || p.Status.Phase != corev1.PodRunning || !p.DeletionTimestamp.IsZero() {
			continue // a pod that does not run yet waits for its network, it does not lack it
		}
		key := client.ObjectKeyFromObject(p)
		if ok, err := has(ctx, r.client, key); err != nil {
			return err
		} else if ok {
			continue
		}
		if sliced == nil {
			var err error
			if sliced, err = r.inSlices(ctx); err != nil {
				return err
			}
		}
		if sliced[p.UID] {
			continue
		}
		unmanaged++
		began := p.CreationTimestamp.Time
		if p.Status.StartTime != nil {
			began = p.Status.StartTime.Time
		}
		if _, recently := r.last[key]; deleted || recently || now.Sub(began) <= youngest {
			continue
		}
		if ok, err := has(ctx, r.live, key); err != nil {
			return err
		} else if ok {
			continue
		}
		err := r.client.Delete(ctx, p, client.Preconditions{UID: &p.UID})
		switch {
		case err == nil:
			deleted = true
			r.last[key] = now
			r.log.Info("restarting a pod that has no endpoint: it started before its node had a network", "namespace", p.Namespace, "pod", p.Name)
		case !apierrors.IsNotFound(err) && !apierrors.IsConflict(err):
			return fmt.Errorf("deleting pod %s: %w", key, err)
		}
	}
	r.gauge.Set(float64(unmanaged))
	return nil
}

// inSlices returns the pods that slices name, none if there are no slices.
func (r *restarter) inSlices(ctx context.Context) (map[types.UID]bool, error) {
	pods := map[types.UID]bool{}
	if !r.sliced {
		return pods, nil
	}
	var all v2alpha1.CiliumEndpointSliceList
	if err := r.client.List(ctx, &all, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list of CiliumEndpointSlices: %w", err)
	}
	for i := range all.Items {
		for _, e := range all.Items[i].Endpoints {
			if e.PodUID != "" {
				pods[types.UID(e.PodUID)] = true
			}
		}
	}
	return pods, nil
}

// has reports whether a pod has an endpoint.
func has(ctx context.Context, from client.Reader, key types.NamespacedName) (bool, error) {
	err := from.Get(ctx, key, &v2.CiliumEndpoint{})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("CiliumEndpoint %s: %w", key, err)
	}
	return true, nil
}
