package agent

import (
	"context"
	"log/slog"
	"net"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hawser-net/hawser/internal/flowmetrics"
)

// newFlowMetrics returns the metrics of a list; nil if it is empty.
func newFlowMetrics(list string) (*flowmetrics.Metrics, error) {
	asked, err := flowmetrics.Parse(list)
	if err != nil || len(asked) == 0 {
		return nil, err
	}
	return flowmetrics.New(asked), nil
}

// serveFlowMetrics serves the metrics of flows at their own address until ctx ends: who may read
// them need not be who may read the agent's.
func (a *api) serveFlowMetrics(ctx context.Context, log *slog.Logger) error {
	registry := prometheus.NewRegistry()
	if err := registry.Register(a.flows.metrics); err != nil {
		return err
	}
	return a.keepServing(ctx, "flow-metrics", a.cfg.Flows.MetricsAddress, log, func(listen func() (net.Listener, error)) error {
		l, err := listen()
		if err != nil {
			return err
		}
		return serveMetrics(ctx, l, registry, metricsTimeout)
	})
}

// flowMetricsSweep is how often series of pods that are gone are looked for; they go at the second
// time.
const flowMetricsSweep = time.Minute

// sweepFlowMetrics removes the series of pods that are gone until ctx ends.
func (a *api) sweepFlowMetrics(ctx context.Context) error {
	tick := time.NewTicker(flowMetricsSweep)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			a.flows.metrics.Sweep(time.Now(), a.flowPods())
		}
	}
}

// flowPods are the pods that flows can name; none are looked for if no series names any.
func (a *api) flowPods() map[flowmetrics.Pod]bool {
	if !a.flows.metrics.OfPods() {
		return nil
	}
	out := map[flowmetrics.Pod]bool{}
	for _, row := range a.registry.List() {
		out[flowmetrics.Pod{Namespace: row.Namespace, Name: row.PodName}] = true
	}
	for _, e := range a.cache.All() {
		if namespace, name := e.Pod(); name != "" {
			out[flowmetrics.Pod{Namespace: namespace, Name: name}] = true
		}
	}
	return out
}
