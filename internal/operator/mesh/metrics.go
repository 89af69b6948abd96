package mesh

import (
	"github.com/prometheus/client_golang/prometheus"
)

var (
	pendingDesc = prometheus.NewDesc("cilium_operator_clustermesh_export_pending_keys",
		"Keys of the key-value store that are still to be written for other clusters.", []string{"kind"}, nil)
	refusedDesc = prometheus.NewDesc("cilium_operator_clustermesh_export_refused_keys",
		"Keys that other clusters lack because their values are too large for the key-value store.", []string{"kind"}, nil)
	completeDesc = prometheus.NewDesc("cilium_operator_clustermesh_export_complete_timestamp_seconds",
		"When the key-value store had all that other clusters read of this one last, in Unix time; 0 for never.", []string{"kind"}, nil)
)

// Describe implements [prometheus.Collector].
func (x *exporter) Describe(ch chan<- *prometheus.Desc) {
	ch <- pendingDesc
	ch <- refusedDesc
	ch <- completeDesc
}

// Collect implements [prometheus.Collector].
func (x *exporter) Collect(ch chan<- prometheus.Metric) {
	for _, m := range x.mirrors {
		pending, complete := m.left()
		var at float64
		if !complete.IsZero() {
			at = float64(complete.UnixMilli()) / 1000
		}
		ch <- prometheus.MustNewConstMetric(pendingDesc, prometheus.GaugeValue, float64(pending), m.kind)
		ch <- prometheus.MustNewConstMetric(refusedDesc, prometheus.GaugeValue, float64(m.tooLarge()), m.kind)
		ch <- prometheus.MustNewConstMetric(completeDesc, prometheus.GaugeValue, at, m.kind)
	}
}
