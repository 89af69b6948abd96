package identities

import "github.com/prometheus/client_golang/prometheus"

// controlMetrics are what the controller counts. Names are those of the field where a metric means
// the same there.
type controlMetrics struct {
	c           *Controller
	count       *prometheus.CounterVec
	latency     *prometheus.HistogramVec
	refused     *prometheus.CounterVec
	sets        *prometheus.Desc
	duplicate   *prometheus.Desc
	quarantined *prometheus.Desc
	edited      *prometheus.Desc
	pending     *prometheus.Desc
	faulty      *prometheus.Desc
	differ      *prometheus.Desc
}

func newControlMetrics(c *Controller) *controlMetrics {
	const prefix = "cilium_operator_cid_controller_"
	return &controlMetrics{
		c: c,
		count: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: prefix + "work_queue_event_count", Help: "Identities and endpoints that were looked at.",
		}, []string{"resource", "outcome"}),
		latency: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: prefix + "work_queue_latency", Help: "Seconds that an identity or an endpoint waited, and that looking at it took.",
			Buckets: []float64{.001, .005, .01, .05, .1, .5, 1, 5, 10, 30, 60},
		}, []string{"resource", "phase"}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: prefix + "refused_claims_total",
			Help: "CiliumEndpoints that claimed an ID for their pod's labels and were given another one, by why: has-number, the labels have one; other-labels, the ID is " +
				"that of others; contested, others claim it too; too-many, as many were restored on claims of that node already.",
		}, []string{"reason"}),
		sets: prometheus.NewDesc(prefix+"label_sets",
			"Sets of labels that pods have: ready have an identity, missing have none yet, waiting are those of them that the budget keeps waiting.",
			[]string{"state"}, nil),
		duplicate:   prometheus.NewDesc(prefix+"duplicate_identities", "Identities beyond the oldest of their labels.", nil, nil),
		quarantined: prometheus.NewDesc(prefix+"quarantined_identities", "IDs of collected identities that are quarantined before they are used again.", nil, nil),
		edited: prometheus.NewDesc(prefix+"edited_identities",
			"Identities whose objects' labels were edited. They keep their meaning, and their labels are restored.", nil, nil),
		differ: prometheus.NewDesc(prefix+"label_filter_mismatches",
			"Nodes whose agents use another label filter for identities than the operator, or do not report theirs. While there are any no identity is collected.", nil, nil),
		pending: prometheus.NewDesc(prefix+"unscheduled_identities",
			"Identities that only pods without a node need; --identity-unscheduled-budget is their bound.", nil, nil),
		faulty: prometheus.NewDesc(prefix+"faulty_pods", "Pods that have no identity because their labels make none; an Event of each says why.", nil, nil),
	}
}

// Describe implements [prometheus.Collector].
func (m *controlMetrics) Describe(ch chan<- *prometheus.Desc) {
	m.count.Describe(ch)
	m.latency.Describe(ch)
	m.refused.Describe(ch)
	for _, d := range []*prometheus.Desc{m.sets, m.duplicate, m.quarantined, m.edited, m.pending, m.faulty, m.differ} {
		ch <- d
	}
}

// Collect implements [prometheus.Collector].
func (m *controlMetrics) Collect(ch chan<- prometheus.Metric) {
	m.count.Collect(ch)
	m.latency.Collect(ch)
	m.refused.Collect(ch)
	m.c.mu.Lock()
	n, differ := m.c.index.summary(), m.c.differ
	m.c.mu.Unlock()
	gauge := func(d *prometheus.Desc, v int, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(v), labels...)
	}
	gauge(m.sets, n.ready, "ready")
	gauge(m.sets, n.missing, "missing")
	gauge(m.sets, n.waiting, "waiting")
	gauge(m.duplicate, n.duplicates)
	gauge(m.quarantined, n.quarantined)
	gauge(m.edited, n.edited)
	gauge(m.pending, n.unscheduled)
	gauge(m.faulty, n.faulty)
	gauge(m.differ, differ)
}
