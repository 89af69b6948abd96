package operator

import (
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/hawser-net/hawser/pkg/allocator"
	"github.com/hawser-net/hawser/pkg/kvstore"
)

// metrics are what the operator counts. Names are those of the field where a metric means the same there.
type metrics struct {
	registry *prometheus.Registry
	entries  *prometheus.GaugeVec
	runs     *prometheus.CounterVec
	latency  *prometheus.GaugeVec
}

// ofKVStore is the identity_type of identities in a key-value store.
const ofKVStore = "kvstore"

func newMetrics() *metrics {
	const prefix = "cilium_operator_"
	m := &metrics{
		registry: prometheus.NewRegistry(),
		entries: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: prefix + "identity_gc_entries", Help: "Identities found alive, and deleted, in the last round of collection.",
		}, []string{"status", "identity_type"}),
		runs: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: prefix + "identity_gc_runs", Help: "Rounds of identity collection.",
		}, []string{"outcome", "identity_type"}),
		latency: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: prefix + "identity_gc_latency", Help: "Seconds that the last round of identity collection took.",
		}, []string{"outcome", "identity_type"}),
	}
	m.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), m.entries, m.runs, m.latency)
	return m
}

// collected books a round of collection.
func (m *metrics) collected(stats allocator.GCStats, took time.Duration, err error) {
	outcome := "success"
	if err != nil {
		outcome = "fail"
	}
	m.runs.WithLabelValues(outcome, ofKVStore).Inc()
	m.latency.WithLabelValues(outcome, ofKVStore).Set(took.Seconds())
	if err == nil {
		// What waits for its second round still exists.
		m.entries.WithLabelValues("alive", ofKVStore).Set(float64(stats.Alive + stats.Dead + stats.Spared))
	}
	m.entries.WithLabelValues("deleted", ofKVStore).Set(float64(stats.Deleted))
}

// watchStore adds a metric that asks the store's connection how it is.
func (m *metrics) watchStore(store kvstore.Backend) {
	m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "cilium_operator_kvstore_up", Help: "Whether the key-value store can be relied on.",
	}, func() float64 {
		if store.Status().Healthy() {
			return 1
		}
		return 0
	}))
}

func (m *metrics) handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
}
