package endpointslices

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are what is counted. Names are Cilium's.
type metrics struct {
	sizes   prometheus.Histogram
	changes *prometheus.HistogramVec
	syncs   *prometheus.CounterVec
	waited  *prometheus.HistogramVec
}

// Values of labels.
const (
	succeeded, failed = "success", "fail"
	transient, fatal  = "transient", "fatal"
	inserted, removed = "cepinsert", "cepremove"
	fast, standard    = "fast", "standard"
)

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	const prefix = "cilium_operator_"
	m := &metrics{
		sizes: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: prefix + "number_of_ceps_per_ces", Help: "Endpoints in a CiliumEndpointSlice when it is written.",
			Buckets: []float64{1, 10, 25, 50, 100, 200, 500, 1000},
		}),
		changes: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: prefix + "number_of_cep_changes_per_ces", Help: "Endpoints that one write of a CiliumEndpointSlice adds or changes, and removes.",
			Buckets: []float64{1, 2, 5, 10, 25, 50, 100, 200},
		}, []string{"opcode"}),
		syncs: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: prefix + "ces_sync_total", Help: "Writes of CiliumEndpointSlices.",
		}, []string{"outcome", "failure_type"}),
		waited: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: prefix + "ces_queueing_delay_seconds", Help: "Seconds from the first change of a CiliumEndpointSlice to its write.",
			Buckets: []float64{.1, .25, .5, 1, 2, 5, 10, 30, 60, 120},
		}, []string{"queue"}),
	}
	for _, c := range []prometheus.Collector{m.sizes, m.changes, m.syncs, m.waited} {
		if err := reg.Register(c); err != nil {
			return nil, fmt.Errorf("metrics of CiliumEndpointSlices: %w", err)
		}
	}
	return m, nil
}

func queueOf(isFast bool) string {
	if isFast {
		return fast
	}
	return standard
}

// wrote records a write that succeeded.
func (m *metrics) wrote(w write) {
	m.syncs.WithLabelValues(succeeded, "").Inc()
	if w.action != remove {
		m.sizes.Observe(float64(len(w.slice.Endpoints)))
	}
	if n := w.added + w.changed; n > 0 {
		m.changes.WithLabelValues(inserted).Observe(float64(n))
	}
	if w.removed > 0 {
		m.changes.WithLabelValues(removed).Observe(float64(w.removed))
	}
}
