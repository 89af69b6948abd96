package allocator_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-net/hawser/pkg/allocator"
	"github.com/hawser-net/hawser/pkg/kvstore"
)

// TestStoreThatRefuses: a store refuses transactions at once, as one without a leader does, or
// others are always faster. A call goes on as long as its context lasts, and then says why it had
// no ID. What no further attempt can mend comes at once.
func TestStoreThatRefuses(t *testing.T) {
	t.Parallel()
	// run has the store refuse from the start, for a while, and silently wait afterwards if it is
	// still away.
	run := func(t *testing.T, refusal error, refuses, away, patience time.Duration) (took time.Duration, asked int, err error) {
		t.Helper()
		n := newNode(t, kvstore.NewMemory(), "192.0.2.1", allocator.WithTimeout(10*time.Second))
		var mu sync.Mutex
		requests := 0
		began := time.Now()
		n.store.SetFault(func(ctx context.Context, call kvstore.MemoryCall) (before, after error) {
			if call.Op != "txn" {
				return nil, nil
			}
			mu.Lock()
			requests++
			mu.Unlock()
			switch {
			case time.Since(began) < refuses:
				return refusal, nil
			case time.Since(began) < away:
				<-ctx.Done()
				return ctx.Err(), nil
			}
			return nil, nil
		})
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		_, _, err = n.Allocate(ctx, allocator.StringKey("web"))
		took = time.Since(began)
		mu.Lock()
		defer mu.Unlock()
		return took, requests, err
	}
	noLeader := errors.New("etcdserver: no leader")
	for _, tt := range []struct {
		name                    string
		refusal                 error
		refuses, away, patience time.Duration
		want                    []error // nil: the ID comes
		most                    time.Duration
	}{
		{"for a while", noLeader, 15 * time.Second, 0, 2 * time.Minute, nil, 20 * time.Second},
		{"for longer than a request lasts", noLeader, time.Minute, 0, 2 * time.Minute, nil, 65 * time.Second},
		{"for longer than the caller waits", noLeader, time.Hour, 0, 45 * time.Second, []error{context.DeadlineExceeded, noLeader}, 45 * time.Second},
		{"and is silent then", noLeader, 5 * time.Second, time.Hour, 45 * time.Second, []error{context.DeadlineExceeded, noLeader}, 45 * time.Second},
		{"as others are faster", allocator.ErrContended, time.Hour, 0, 45 * time.Second, []error{context.DeadlineExceeded, allocator.ErrContended}, 45 * time.Second},
		{"a key that is too large", kvstore.ErrTxnTooLarge, time.Hour, 0, 45 * time.Second, []error{kvstore.ErrTxnTooLarge}, 0},
		{"as it is closed", kvstore.ErrClosed, time.Hour, 0, 45 * time.Second, []error{kvstore.ErrClosed}, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				took, asked, err := run(t, tt.refusal, tt.refuses, tt.away, tt.patience)
				t.Logf("%v after %v and %d requests", err, took, asked)
				if tt.want == nil && err != nil || took > tt.most || asked > 100 {
					t.Errorf("%v after %v and %d requests", err, took, asked)
				}
				for _, want := range tt.want {
					if !errors.Is(err, want) {
						t.Errorf("%v, which does not say %v", err, want)
					}
				}
			})
		})
	}
}
