package agent

import (
	"context"
	"errors"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/hawser-net/hawser/internal/endpoint"
	"github.com/hawser-net/hawser/internal/k8s"
	"github.com/hawser-net/hawser/pkg/retry"
)

// podQueue are pods that are to be looked at, each once however often it was added. It is safe for
// concurrent use.
type podQueue struct {
	wake chan struct{} // has an element if there are some

	mu   sync.Mutex
	pods map[k8s.Key]bool
}

func newPodQueue() *podQueue {
	return &podQueue{wake: make(chan struct{}, 1), pods: map[k8s.Key]bool{}}
}

// add has a pod looked at soon.
func (q *podQueue) add(key k8s.Key) {
	q.mu.Lock()
	q.pods[key] = true
	q.mu.Unlock()
	retry.Notify(q.wake)
}

// take returns the pods to look at.
func (q *podQueue) take() map[k8s.Key]bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	out := q.pods
	q.pods = map[k8s.Key]bool{}
	return out
}

// relabelRetry is the pause before labels are tried again that could not be changed.
const relabelRetry = 2 * time.Second

// relabelWorkers is how many pods' labels are changed at once: each may wait for an identity.
const relabelWorkers = 16

// followLabels gives endpoints the labels that their pods have now, until ctx ends. It begins when
// new pods can be judged: an endpoint from before a restart would get rules that were observed in
// part.
func (k *kube) followLabels(ctx context.Context) error {
	if k.open.wait(ctx) != nil {
		return nil
	}
	var pool errgroup.Group
	pool.SetLimit(relabelWorkers)
	defer func() { _ = pool.Wait() }()
	for {
		select {
		case <-k.relabels.wake:
		case <-ctx.Done():
			return nil
		}
		for key := range k.relabels.take() {
			pool.Go(func() error {
				if err := k.syncLabels(ctx, key); err != nil && ctx.Err() == nil {
					k.log.Warn("a pod's endpoint keeps its old labels for now", "pod", key, "error", err)
					if retry.Sleep(ctx, relabelRetry) {
						k.relabels.add(key)
					}
				}
				return nil
			})
		}
	}
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
