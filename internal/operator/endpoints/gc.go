package endpoints

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/operator/rounds"
)

// wipeRetry is the pause between two tries to delete everything.
const wipeRetry = 10 * time.Second

// SetupGC adds the collection of CiliumEndpoints without a pod to m; or, if there are to be none,
// their deletion.
func SetupGC(m manager.Manager, cfg Config, log *slog.Logger) error {
	c := &collector{meter: cfg.Meter, client: m.GetClient(), live: m.GetAPIReader(), log: log, interval: cfg.GCInterval, now: time.Now}
	return m.Add(manager.RunnableFunc(func(ctx context.Context) error {
		if !cfg.Kept() {
			return c.wipe(ctx)
		}
		return rounds.Every(ctx, cfg.GCInterval, nil, c.meter.Measure("endpoints", c.round))
	}))
}

// collector deletes CiliumEndpoints that no pod has.
type collector struct {
	meter    *rounds.Meter
	client   client.Client
	live     client.Reader
	log      *slog.Logger
	interval time.Duration
	now      func() time.Time
}

// wipe deletes every CiliumEndpoint, once.
func (c *collector) wipe(ctx context.Context) error {
	_ = wait.PollUntilContextCancel(ctx, wipeRetry, true, func(ctx context.Context) (bool, error) {
		err := c.deleteAll(ctx)
		if err != nil && ctx.Err() == nil {
			c.log.Warn("cannot delete the CiliumEndpoints, which no component maintains any more; trying again", "error", err)
		}
		return err == nil, nil
	})
	return nil
}

func (c *collector) deleteAll(ctx context.Context) error {
	var namespaces corev1.NamespaceList
	if err := c.live.List(ctx, &namespaces); err != nil {
		return fmt.Errorf("list of namespaces: %w", err)
	}
	for _, ns := range namespaces.Items {
		if err := c.client.DeleteAllOf(ctx, &v2.CiliumEndpoint{}, client.InNamespace(ns.Name)); err != nil {
			return fmt.Errorf("CiliumEndpoints of namespace %s: %w", ns.Name, err)
		}
	}
	c.log.Info("deleted all CiliumEndpoints: no component maintains them any more")
	return nil
}

func (c *collector) round(ctx context.Context) error {
	err := c.collect(ctx)
	if err != nil && ctx.Err() == nil {
		c.log.Warn("cannot collect CiliumEndpoints without a pod, trying again", "error", err)
	}
	return err
}

func (c *collector) collect(ctx context.Context) error {
	var all v2.CiliumEndpointList
	if err := c.client.List(ctx, &all); err != nil {
		return fmt.Errorf("list of CiliumEndpoints: %w", err)
	}
	var errs []error
	for i := range all.Items {
		ep := &all.Items[i]
		if c.now().Sub(ep.CreationTimestamp.Time) < c.interval || !ep.DeletionTimestamp.IsZero() {
			continue
		}
		owner, ok := podOf(ep)
		if !ok {
			continue
		}
		// The cache first, because most have a pod; then the server itself.
		for _, from := range []client.Reader{c.client, c.live} {
			var needed bool
			var err error
			if needed, err = c.needed(ctx, from, ep.Namespace, owner); err != nil {
				errs = append(errs, err)
			}
			if needed || err != nil {
				ok = false
				break
			}
		}
		if !ok {
			continue
		}
		if err := c.remove(ctx, ep, owner); err != nil {
			errs = append(errs, err)
		}
		if ctx.Err() != nil {
			break
		}
	}
	return errors.Join(errs...)
}

// podName names the pod that an endpoint is of. An empty uid means any pod of the name.
type podName struct {
	name string
	uid  types.UID
}

// podOf returns the pod that ep is of. It is not ok if ep belongs to something else.
func podOf(ep *v2.CiliumEndpoint) (podName, bool) {
	if len(ep.OwnerReferences) == 0 {
		return podName{name: ep.Name}, true
	}
	for _, o := range ep.OwnerReferences {
		if o.Kind == "Pod" {
			return podName{o.Name, o.UID}, true
		}
	}
	return podName{}, false
}

// needed reports whether an endpoint's pod is there and has not ended. Another pod of the same name
// does not count: its endpoint is another.
func (c *collector) needed(ctx context.Context, from client.Reader, namespace string, owner podName) (bool, error) {
	p := &corev1.Pod{}
	err := from.Get(ctx, types.NamespacedName{Namespace: namespace, Name: owner.name}, p)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("pod %s/%s: %w", namespace, owner.name, err)
	}
	ended := p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
	return !ended && (owner.uid == "" || owner.uid == p.UID), nil
}

func (c *collector) remove(ctx context.Context, ep *v2.CiliumEndpoint, owner podName) error {
	err := c.client.Delete(ctx, ep, client.Preconditions{UID: &ep.UID, ResourceVersion: &ep.ResourceVersion},
		client.PropagationPolicy(metav1.DeletePropagationBackground))
	if err == nil {
		c.meter.Removed("endpoints", 1)
		c.log.Info("deleted the CiliumEndpoint of a pod that is gone", "namespace", ep.Namespace, "endpoint", ep.Name, "pod", owner.name)
		return nil
	}
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // it has been written meanwhile: the next round looks again
	}
	return fmt.Errorf("deleting CiliumEndpoint %s/%s: %w", ep.Namespace, ep.Name, err)
}
