package hubble

import (
	"context"
	"net"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hawser-net/hawser/internal/flowmetrics"
	"github.com/hawser-net/hawser/pkg/retry"
)

// serveMetrics serves the metrics of flows at their own address until ctx ends, so that access can
// differ from that of the agent's metrics.
func (h *Hubble) serveMetrics(ctx context.Context) error {
	registry := prometheus.NewRegistry()
	if err := registry.Register(h.recorder.metrics); err != nil {
		return err
	}
	if h.expiry != nil {
		if err := registry.Register(h.expiry); err != nil {
			return err
		}
	}
	return h.keepServing(ctx, "flow-metrics", h.cfg.MetricsAddress, func(listen func() (net.Listener, error)) error {
		l, err := listen()
		if err != nil {
			return err
		}
		return h.node.ServeMetrics(ctx, l, registry)
	})
}

// sweepInterval is how often series of pods that are gone are looked for; they go at the second
// time.
const sweepInterval = time.Minute

// sweepMetrics removes the series of pods that are gone until ctx ends.
func (h *Hubble) sweepMetrics(ctx context.Context) error {
	for retry.Sleep(ctx, sweepInterval) {
		h.recorder.metrics.Sweep(time.Now(), h.pods())
	}
	return nil
}

// pods are the pods that flows can name; none are looked for if no series names any.
func (h *Hubble) pods() map[flowmetrics.Pod]bool {
	if !h.recorder.metrics.OfPods() {
		return nil
	}
	out := map[flowmetrics.Pod]bool{}
	for _, row := range h.node.Endpoints.List() {
		out[flowmetrics.Pod{Namespace: row.Namespace, Name: row.PodName}] = true
	}
	for _, e := range h.node.Addresses.Table().All() {
		if namespace, name := e.Pod(); name != "" {
			out[flowmetrics.Pod{Namespace: namespace, Name: name}] = true
		}
	}
	return out
}
