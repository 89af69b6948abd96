package nodemanager

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
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

	// ---- what is told of it -------------------------------------------------------------------
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
