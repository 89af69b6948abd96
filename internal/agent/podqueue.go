package agent

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/hawser-net/hawser/internal/k8s"
	"github.com/hawser-net/hawser/pkg/retry"
)

// podQueue are pods that are to be looked at, each once however often it was added. It is safe for
// concurrent use.
type podQueue struct {
	wake chan struct{} // has an element if there are some

	mu   sync.Mutex
	pods map[k8s.Key]bool
	// busy are those that a worker looks at: one that is added meanwhile waits for it, or the
	// worker that read an earlier state might write last.
	busy map[k8s.Key]bool
	// failing are those that failed when they were looked at last, and how.
	failing map[k8s.Key]string
}

func newPodQueue() *podQueue {
	return &podQueue{wake: make(chan struct{}, 1), pods: map[k8s.Key]bool{}, busy: map[k8s.Key]bool{}, failing: map[k8s.Key]string{}}
}

// add has a pod looked at soon.
func (q *podQueue) add(key k8s.Key) {
	q.mu.Lock()
	q.pods[key] = true
	q.mu.Unlock()
	retry.Notify(q.wake)
}

// take returns the pods to look at, for each of which done is to be called.
func (q *podQueue) take() []k8s.Key {
	q.mu.Lock()
	defer q.mu.Unlock()
	var out []k8s.Key
	for key := range q.pods {
		if !q.busy[key] {
			q.busy[key] = true
			delete(q.pods, key)
			out = append(out, key)
		}
	}
	return out
}

// done ends what take began, and reports whether a pod fails otherwise than before.
func (q *podQueue) done(key k8s.Key, err error) (changed bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.busy, key)
	if q.pods[key] {
		retry.Notify(q.wake)
	}
	if err == nil {
		delete(q.failing, key)
		return false
	}
	changed = q.failing[key] != err.Error()
	q.failing[key] = err.Error()
	return changed
}

// run calls do for the pods, with so many workers, until ctx ends. A pod for which it fails is
// retried after a pause that holds up no worker: there may be more such pods than workers. failed
// is called once for each cause.
func (q *podQueue) run(ctx context.Context, workers int, pause time.Duration, do func(context.Context, k8s.Key) error, failed func(k8s.Key, error)) error {
	var pool errgroup.Group
	pool.SetLimit(workers)
	defer func() { _ = pool.Wait() }()
	for {
		select {
		case <-q.wake:
		case <-ctx.Done():
			return nil
		}
		for _, key := range q.take() {
			pool.Go(func() error {
				err := do(ctx, key)
				changed := q.done(key, err)
				if err == nil || ctx.Err() != nil {
					return nil
				}
				if changed {
					failed(key, err)
				}
				time.AfterFunc(pause, func() { q.add(key) })
				return nil
			})
		}
	}
}
