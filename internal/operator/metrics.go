package operator

import (
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/hawser-net/hawser/internal/operator/election"
	"github.com/hawser-net/hawser/internal/operator/identities"
	"github.com/hawser-net/hawser/internal/operator/rounds"
	"github.com/hawser-net/hawser/pkg/kvstore"
)

// metrics are what the operator counts. Names are Cilium's where a metric means the same there.
type metrics struct {
	registry *prometheus.Registry
	entries  *prometheus.GaugeVec
	runs     *prometheus.CounterVec
	latency  *prometheus.GaugeVec
	meter    *rounds.Meter
	beat     prometheus.Gauge
}

// Places where identities are, as the label identity_type.
const (
	ofKVStore = "kvstore"
	ofCRD     = "crd"
)

func newMetrics() *metrics {
	const prefix = "cilium_operator_"
	m := &metrics{
		registry: prometheus.NewRegistry(),
		entries: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: prefix + "identity_gc_entries", Help: "Identities in the last round of collection: alive, unused (they end if another round finds them so), deleted, and IDs in quarantine, freed, or waiting for agents (awaited).",
		}, []string{"status", "identity_type"}),
		runs: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: prefix + "identity_gc_runs", Help: "Rounds of identity collection.",
		}, []string{"outcome", "identity_type"}),
		latency: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: prefix + "identity_gc_latency", Help: "Seconds that the last round of identity collection took.",
		}, []string{"outcome", "identity_type"}),
	}
	m.meter = rounds.NewMeter()
	m.beat = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: prefix + "kvstore_heartbeat_timestamp_seconds", Help: "When this operator last wrote the heartbeat into the key-value store, in Unix time; 0 for never.",
	})
	m.registry.MustRegister(m.entries, m.runs, m.latency, m.meter, m.beat)
	return m
}

// collected records a round of collection of identities that are kept in a place.
func (m *metrics) collected(place string, n identities.Stats, took time.Duration, err error) {
	outcome := "success"
	if err != nil {
		outcome = "fail"
	}
	m.runs.WithLabelValues(outcome, place).Inc()
	m.latency.WithLabelValues(outcome, place).Set(took.Seconds())
	m.meter.Note("identities-"+place, took, err)
	m.meter.Removed("identities-"+place, n.Deleted)
	m.entries.WithLabelValues("deleted", place).Set(float64(n.Deleted))
	if err != nil {
		return
	}
	for status, count := range map[string]int{"alive": n.Alive, "unused": n.Unused, "quarantined": n.Quarantined, "freed": n.Freed, "awaited": n.Awaited} {
		m.entries.WithLabelValues(status, place).Set(float64(count))
	}
}

// watchElection adds a metric that shows whether this operator leads.
func (m *metrics) watchElection(e *election.Election) {
	m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "cilium_operator_leader_election_master_status", Help: "Whether this operator leads.",
		ConstLabels: prometheus.Labels{"name": election.LockName},
	}, func() float64 {
		if e.Leading() {
			return 1
		}
		return 0
	}))
}

// watchStore adds metrics that ask the store's connection how it is.
func (m *metrics) watchStore(store kvstore.Backend) {
	gauge := func(name, help string, is func(kvstore.Status) bool) {
		m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "cilium_operator_kvstore_" + name, Help: help}, func() float64 {
			if is(store.Status()) {
				return 1
			}
			return 0
		}))
	}
	gauge("up", "Whether the key-value store can be relied on.", kvstore.Status.Healthy)
	gauge("full", "Whether the key-value store takes no writes because its space is used up.", func(s kvstore.Status) bool { return s.Full })
}

// gatherer returns what is counted here, and what the controllers' library counts, which includes
// the process.
func (m *metrics) gatherer() prometheus.Gatherer {
	return prometheus.Gatherers{m.registry, ctrlmetrics.Registry}
}

func (m *metrics) handler() http.Handler {
	return promhttp.HandlerFor(m.gatherer(), promhttp.HandlerOpts{})
}
