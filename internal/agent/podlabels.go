package agent

import (
	"context"
	"errors"
	"time"

	"github.com/hawser-net/hawser/internal/endpoint"
	"github.com/hawser-net/hawser/internal/k8s"
)

// relabelRetry is the pause before labels are tried again that could not be changed.
const relabelRetry = 2 * time.Second

// relabelWorkers is how many pods' labels are changed at once: each may wait for an identity.
const relabelWorkers = 16

// followLabels gives endpoints the labels that their pods have now, until ctx ends. It begins when
// policy for new pods can be evaluated: an endpoint from before a restart would get rules that were
// observed in part.
func (k *kube) followLabels(ctx context.Context) error {
	if k.open.wait(ctx) != nil {
		return nil
	}
	return k.relabels.run(ctx, relabelWorkers, relabelRetry, k.syncLabels, func(key k8s.Key, err error) {
		k.log.Warn("a pod's endpoint keeps its old labels for now", "pod", key, "error", err)
	})
}

func (k *kube) syncLabels(ctx context.Context, key k8s.Key) error {
	var errs []error
	for _, row := range k.tables.registry.List() {
		if row.Namespace != key.Namespace || row.PodName != key.Name {
			continue
		}
		info, ok, err := k.objects.pods.Known(key, row.PodUID)
		if err == nil && ok {
			k.objects.endpoints.Mirror(key, info.Runtime, info.UID)
			_, err = k.lifecycle.SetWorkload(ctx, row.ID, info.Labels, info.Ports)
		}
		if !errors.Is(err, endpoint.ErrNotFound) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// logGone logs endpoints of pods that Kubernetes no longer has: their deletion is the runtime's
// to ask for.
func (k *kube) logGone() {
	for _, row := range k.tables.registry.List() {
		key := k8s.Key{Namespace: row.Namespace, Name: row.PodName}
		if _, ok, _ := k.objects.pods.Known(key, row.PodUID); row.PodName != "" && !ok {
			k.log.Info("an endpoint's pod is not in Kubernetes; it stays until the runtime deletes it", "endpoint", row.ID, "pod", key)
		}
	}
}
