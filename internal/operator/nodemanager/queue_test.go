package nodemanager

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

func testQueue() *nodeQueue {
	return newQueue("test", workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](time.Millisecond, time.Millisecond)).(*nodeQueue)
}

// take takes the next node, and says with which priority it was there.
func take(q *nodeQueue) string {
	r, priority, _ := q.GetWithPriority()
	return fmt.Sprint(r.Name, priority)
}

// TestQueueOrder: nodes on which pods wait come first, and else the first come first; a node that
// is there gets the higher priority of two, and one that is looked at is looked at again.
func TestQueueOrder(t *testing.T) {
	t.Parallel()
	q := testQueue()
	defer q.ShutDown()
	for _, name := range []string{"a", "b", "c"} {
		enqueue(q, name, false)
	}
	enqueue(q, "d", true)
	enqueue(q, "c", true)
	enqueue(q, "d", false) // keeps its priority and its place
	enqueue(q, "b", false)
	if n := q.Len(); n != 4 {
		t.Errorf("%d nodes are there, want 4", n)
	}
	if got := []string{take(q), take(q)}; !slices.Equal(got, []string{"d1", "c1"}) {
		t.Errorf("taken: %q", got)
	}
	enqueue(q, "d", true)
	enqueue(q, "c", false)
	again := func(name string) reconcile.Request {
		r := reconcile.Request{}
		r.Name = name
		q.Done(r)
		return r
	}
	again("c")
	again("d")
	if got := []string{take(q), take(q), take(q), take(q)}; !slices.Equal(got, []string{"d1", "a0", "b0", "c0"}) {
		t.Errorf("taken: %q", got)
	}
	// One that failed keeps its priority, one that is to be looked at later has that from now on.
	for name, o := range map[string]priorityqueue.AddOpts{
		"d": {RateLimited: true, Priority: priority(true)}, "a": {After: time.Millisecond, Priority: priority(true)},
	} {
		q.AddWithOpts(o, again(name))
		if got := take(q); got != name+"1" {
			t.Errorf("taken: %s, want %s1", got, name)
		}
	}
}

// TestQueueEnds: workers end when the queue is shut down while nodes are in it, and others come.
func TestQueueEnds(t *testing.T) {
	t.Parallel()
	for range 100 {
		q := testQueue()
		var workers, adders sync.WaitGroup
		stop := make(chan struct{})
		for w := range 4 {
			adders.Go(func() {
				for i := 0; ; i++ {
					select {
					case <-stop:
						return
					default:
						enqueue(q, fmt.Sprint(w, i%100), i%3 == 0)
					}
				}
			})
			workers.Go(func() {
				for {
					r, _, shutdown := q.GetWithPriority()
					if shutdown {
						return
					}
					q.Done(r)
				}
			})
		}
		time.Sleep(2 * time.Millisecond)
		q.ShutDown()
		ended := make(chan struct{})
		go func() { workers.Wait(); close(ended) }()
		select {
		case <-ended:
		case <-time.After(20 * time.Second):
			t.Fatal("workers wait for ever")
		}
		close(stop)
		adders.Wait()
	}
}
