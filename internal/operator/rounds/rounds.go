// Package rounds runs the periodic work of the operator, with metrics of each run. It starts no
// goroutine.
package rounds

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hawser-net/hawser/pkg/retry"
)

// Meter measures rounds. A nil one measures nothing. It is safe for concurrent use.
type Meter struct {
	runs    *prometheus.CounterVec
	took    *prometheus.GaugeVec
	success *prometheus.GaugeVec
	removed *prometheus.CounterVec
}

// NewMeter returns a meter. It is a [prometheus.Collector].
func NewMeter() *Meter {
	const prefix = "cilium_operator_"
	kind := []string{"kind"}
	return &Meter{
		prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: prefix + "collection_runs_total", Help: "Garbage collection runs.",
		}, []string{"kind", "outcome"}),
		prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: prefix + "collection_duration_seconds", Help: "How long the last look took."}, kind),
		prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: prefix + "collection_last_success_timestamp_seconds", Help: "When a look last came to its end without an error, in Unix time.",
		}, kind),
		prometheus.NewCounterVec(prometheus.CounterOpts{Name: prefix + "collection_removed_total", Help: "Unused objects or keys that were removed."}, kind),
	}
}

// Describe implements [prometheus.Collector].
func (m *Meter) Describe(ch chan<- *prometheus.Desc) {
	for _, c := range []prometheus.Collector{m.runs, m.took, m.success, m.removed} {
		c.Describe(ch)
	}
}

// Collect implements [prometheus.Collector].
func (m *Meter) Collect(ch chan<- prometheus.Metric) {
	for _, c := range []prometheus.Collector{m.runs, m.took, m.success, m.removed} {
		c.Collect(ch)
	}
}

// Note records a round of a kind.
func (m *Meter) Note(kind string, took time.Duration, err error) {
	if m == nil {
		return
	}
	m.took.WithLabelValues(kind).Set(took.Seconds())
	if err != nil {
		m.runs.WithLabelValues(kind, "fail").Inc()
		return
	}
	m.runs.WithLabelValues(kind, "success").Inc()
	m.success.WithLabelValues(kind).SetToCurrentTime()
}

// Removed counts what a round has removed.
func (m *Meter) Removed(kind string, n int) {
	if m != nil {
		m.removed.WithLabelValues(kind).Add(float64(n))
	}
}

// Measure returns f with its rounds recorded. One that ctx ended is not.
func (m *Meter) Measure(kind string, f func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		began := time.Now()
		err := f(ctx)
		if ctx.Err() == nil {
			m.Note(kind, time.Since(began), err)
		}
		return err
	}
}

// Every calls f at once and then every interval, from start to start, and when trigger fires, until
// ctx ends. After a failure it tries again sooner, first after a twelfth of the interval, but at
// least a second. It runs in the caller's goroutine and returns nil.
func Every(ctx context.Context, interval time.Duration, trigger <-chan struct{}, f func(context.Context) error) error {
	soon := min(interval, max(interval/12, time.Second))
	again := soon
	for {
		began := time.Now()
		pause := interval
		if ctx.Err() != nil {
			return nil
		}
		if err := f(ctx); err != nil {
			pause = again
			again = min(2*again, interval)
		} else {
			again = soon
		}
		if !retry.SleepUnless(ctx, max(0, pause-time.Since(began)), trigger) {
			return nil
		}
	}
}
