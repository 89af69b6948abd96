package endpointslices

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// taking is a server that takes every new slice.
type taking struct{ client.Client }

func (taking) Create(_ context.Context, o client.Object, _ ...client.CreateOption) error {
	o.SetUID("uid-1")
	o.SetResourceVersion("1")
	return nil
}

// TestWaited: a slice is queued again while it is taken from the queue, and changes when its time
// of change is used up. The metric says that the change has waited for a moment, not for centuries.
func TestWaited(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	mt, err := newMetrics(reg)
	if err != nil {
		t.Fatal(err)
	}
	c := &controller{
		client: taking{}, log: slog.New(slog.DiscardHandler), metrics: mt, limiter: rate.NewLimiter(rate.Inf, 1),
		index: newIndex(100, randomName), queue: newQueue(), since: map[string]time.Time{}, urgent: map[string]bool{}, nodes: map[string]bool{},
	}
	defer c.queue.ShutDown()
	c.index.begin()
	c.index.set(key{Namespace: "shop", Name: "web"}, testEntry("web", 5))
	names := c.index.takeDirty()
	if len(names) != 1 {
		t.Fatalf("to be written: %q, want one slice", names)
	}
	c.do(t.Context(), names[0], 0)
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != "cilium_operator_ces_queueing_delay_seconds" {
			continue
		}
		h := f.GetMetric()[0].GetHistogram()
		if h.GetSampleCount() != 1 || h.GetSampleSum() > 1 {
			t.Errorf("%d writes have waited %g s together, want one that waited for less than 1 s", h.GetSampleCount(), h.GetSampleSum())
		}
		return
	}
	t.Error("there is no metric of the delay")
}
