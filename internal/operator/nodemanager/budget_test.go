package nodemanager

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
)

// TestRetryAfter has a cloud say for how long it wants to be asked nothing: longer than the pause
// would be, and longer than anybody would wait.
func TestRetryAfter(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	metrics, err := NewMetrics(reg)
	if err != nil {
		t.Fatal(err)
	}
	b := NewBudget(Defaults(), metrics)
	const after = 1200 * time.Millisecond
	refuse := func(after time.Duration) func(context.Context) error {
		return func(context.Context) error { return &Error{Kind: Throttled, Text: "too often", After: after} }
	}
	if err := b.Do(t.Context(), "read", refuse(after)); kindOf(err) != Throttled {
		t.Fatal(err)
	}
	begun := time.Now()
	if err := b.Do(t.Context(), "read", refuse(24*time.Hour)); kindOf(err) != Throttled {
		t.Fatal(err)
	}
	if took := time.Since(begun); took < after-100*time.Millisecond {
		t.Errorf("asked again after %s, not %s", took, after)
	}
	b.mu.Lock()
	if left := time.Until(b.until); left > lastPause {
		t.Errorf("nothing is asked for %s", left)
	}
	b.mu.Unlock()

	// ---- a call that cannot begin before its deadline -----------------------------------------
	cfg := Defaults()
	cfg.QPS, cfg.Burst = 0.001, 1
	slow := NewBudget(cfg, metrics)
	done := func(context.Context) error { return nil }
	if err := slow.Do(t.Context(), "read", done); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := slow.Do(ctx, "read", done); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a call past its deadline: %v", err)
	}

	// ---- what is reported of it ---------------------------------------------------------------
	metrics.took(&Step{Call: Assign, Interface: Interface{Subnet: "a"}}, nil, time.Second)
	metrics.took(&Step{Call: Create, Subnet: "a"}, errors.New("no"), time.Second)
	metrics.took(&Step{Call: Unassign, Interface: Interface{Subnet: "a"}}, nil, time.Second)
	all, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, f := range all {
		names = append(names, f.GetName())
	}
	for _, want := range []string{
		"allocation_duration_seconds", "release_duration_seconds", "api_duration_seconds", "api_rate_limit_duration_seconds", "resync_total",
	} {
		if !slices.Contains(names, "cilium_operator_ipam_"+want) {
			t.Errorf("no cilium_operator_ipam_%s among %v", want, names)
		}
	}
}

// TestSilence has a cloud not answer, and whoever asks stand still after it was asked who leads:
// neither is waited for, and nothing is sent later.
func TestSilence(t *testing.T) {
	t.Parallel()
	metrics, err := NewMetrics(prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	cfg := Defaults()
	cfg.Timeout = 50 * time.Millisecond
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for name, do := range map[string]func(*Budget, func(context.Context) error) error{
		"read":   func(b *Budget, call func(context.Context) error) error { return b.Read(ctx, "read", call) },
		"change": func(b *Budget, call func(context.Context) error) error { return b.Do(ctx, "change", call) },
	} {
		calls := 0
		err := do(NewBudget(cfg, metrics), func(ctx context.Context) error {
			calls++
			<-ctx.Done()
			return &Error{Text: "no answer", Err: ctx.Err()}
		})
		if ctx.Err() != nil || calls != 1 || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %d calls, %v", name, calls, err)
		}
	}
	cfg.Held = func() error {
		time.Sleep(4 * cfg.Timeout) // the process is stopped
		return nil
	}
	err = NewBudget(cfg, metrics).Do(ctx, "change", func(ctx context.Context) error { return ctx.Err() })
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("sent after a stop: %v", err)
	}
}

// TestScarce has a cloud allow two calls at once and few a second, of an operator that is
// configured to ask for far more: what takes many calls, each of which the next depends on, comes
// to its end, and so do changes beside it.
func TestScarce(t *testing.T) {
	t.Parallel()
	metrics, err := NewMetrics(prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	cfg := Defaults()
	cfg.QPS, cfg.Burst = 200, 100
	b := NewBudget(cfg, metrics)
	allowed := rate.NewLimiter(10, 2)
	var calls, refused atomic.Int32
	cloud := func(context.Context) error {
		calls.Add(1)
		if !allowed.Allow() {
			refused.Add(1)
			return &Error{Kind: Throttled, Text: "too often"}
		}
		return nil
	}
	var work sync.WaitGroup
	ctx, cancel := context.WithTimeout(t.Context(), 45*time.Second)
	defer cancel()
	for k := range 4 {
		work.Go(func() {
			for i := 0; i < 10 && ctx.Err() == nil; i++ { // pages, and a change after each
				if err := b.Read(ctx, "read", cloud); err != nil {
					t.Errorf("reader %d begins anew at page %d: %v", k, i, err)
				}
				for b.Do(ctx, "change", cloud) != nil && ctx.Err() == nil {
				}
			}
		})
	}
	work.Wait()
	if ctx.Err() != nil {
		t.Error("not all calls are made: ", calls.Load(), " of which are refused: ", refused.Load())
	}
	t.Logf("%d calls, %d of them refused", calls.Load(), refused.Load())
	if calls.Load() > 2*80 {
		t.Errorf("%d calls for 80, %d of them refused", calls.Load(), refused.Load())
	}
	// What the cloud allows again is used again.
	allowed.SetLimit(rate.Inf)
	for range 200 {
		if err := b.Read(t.Context(), "read", func(context.Context) error { return nil }); err != nil {
			t.Fatal(err)
		}
	}
	if limit, burst := b.limiter.Limit(), b.limiter.Burst(); limit != 200 || burst != 100 {
		t.Errorf("%v calls a second after a burst of %d", limit, burst)
	}
}

// TestUrgent has calls wait for the budget: the urgent ones are first, in their order, and now and
// then one that is not; who gives up lets the next one have the turn.
func TestUrgent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		metrics, err := NewMetrics(prometheus.NewRegistry())
		if err != nil {
			t.Fatal(err)
		}
		cfg := Defaults()
		cfg.QPS, cfg.Burst = 1, 1
		b := NewBudget(cfg, metrics)
		var mu sync.Mutex
		var made []string
		var work sync.WaitGroup
		ask := func(ctx context.Context, name string) {
			work.Go(func() {
				_ = b.Do(ctx, name, func(context.Context) error {
					mu.Lock()
					defer mu.Unlock()
					made = append(made, name)
					return nil
				})
			})
			synctest.Wait()
		}
		impatient, cancel := context.WithCancel(t.Context())
		ask(t.Context(), "first")
		ask(t.Context(), "has the turn")
		ask(t.Context(), "a")
		ask(impatient, "gives up")
		ask(urgent(impatient), "gives up, too")
		for i := range urgentInARow + 1 {
			ask(urgent(t.Context()), fmt.Sprint("urgent ", i))
		}
		ask(t.Context(), "b")
		cancel()
		work.Wait()
		want := []string{"first", "has the turn", "urgent 0", "urgent 1", "urgent 2", "urgent 3", "urgent 4", "urgent 5", "urgent 6", "a", "urgent 7", "b"}
		if !slices.Equal(made, want) {
			t.Errorf("calls were made in the order\n%q, not\n%q", made, want)
		}
	})
}
