package agent

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hawser-net/hawser/internal/k8s"
	"github.com/hawser-net/hawser/internal/testenv"
)

// TestPodQueueOneAtATime: a pod that changes while a worker looks at it is looked at again, and not
// before that one has written what it read: else the earlier state might be written last.
func TestPodQueueOneAtATime(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	q, pod := newPodQueue(), k8s.Key{Namespace: "ns", Name: "pod"}
	var now, written atomic.Int64
	var busy atomic.Int64
	first, proceed, second := make(chan struct{}), make(chan struct{}), make(chan struct{})
	var once sync.Once
	var ended sync.WaitGroup
	ended.Go(func() {
		_ = q.run(ctx, 4, time.Hour, func(context.Context, k8s.Key) error {
			if busy.Add(1) > 1 {
				t.Error("two workers look at one pod")
			}
			defer busy.Add(-1)
			read := now.Load()
			if read == 1 {
				once.Do(func() { close(first) })
				<-proceed
			}
			written.Store(read)
			if read == 2 {
				close(second)
			}
			return nil
		}, func(k8s.Key, error) {})
	})
	now.Store(1)
	q.add(pod)
	<-first
	now.Store(2)
	q.add(pod)
	select {
	case <-second:
		t.Error("a second worker was faster")
	case <-time.After(100 * time.Millisecond):
	}
	close(proceed)
	select {
	case <-second:
	case <-time.After(10 * time.Second):
		t.Error("the pod is not looked at again")
	}
	cancel()
	ended.Wait()
	if got := written.Load(); got != 2 {
		t.Errorf("written is state %d and not 2, which is the last", got)
	}
}

// TestPodQueueFailing: pods for which nothing succeeds, more than there are workers, hold up no
// other, and each is reported once for each cause.
func TestPodQueueFailing(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	q := newPodQueue()
	const workers, pause = 4, 500 * time.Millisecond
	var mu sync.Mutex
	tries, reports := map[k8s.Key]int{}, map[k8s.Key]int{}
	good := k8s.Key{Namespace: "ns", Name: "good"}
	fine := make(chan struct{})
	var ended sync.WaitGroup
	ended.Go(func() {
		_ = q.run(ctx, workers, pause, func(_ context.Context, key k8s.Key) error {
			if key == good {
				close(fine)
				return nil
			}
			mu.Lock()
			defer mu.Unlock()
			tries[key]++
			return errors.New("invalid labels")
		}, func(key k8s.Key, _ error) {
			mu.Lock()
			defer mu.Unlock()
			reports[key]++
		})
	})
	tried := func(n int) {
		t.Helper()
		testenv.Eventually(t, 20*time.Second, func() string {
			mu.Lock()
			defer mu.Unlock()
			for key, times := range tries {
				if times < n {
					return fmt.Sprintf("%s was tried %d times, not %d", key, times, n)
				}
			}
			if len(tries) < 3*workers {
				return fmt.Sprintf("%d pods were tried", len(tries))
			}
			return ""
		})
	}
	for i := range 3 * workers {
		q.add(k8s.Key{Namespace: "ns", Name: fmt.Sprint("bad-", i)})
	}
	tried(1)
	began := time.Now()
	q.add(good)
	<-fine
	if took := time.Since(began); took >= pause/2 {
		t.Errorf("a pod waited %v for those that fail", took)
	}
	tried(3)
	cancel()
	ended.Wait()
	for key, n := range reports {
		if n != 1 {
			t.Errorf("%s was reported %d times, in %d attempts", key, n, tries[key])
		}
	}
}
