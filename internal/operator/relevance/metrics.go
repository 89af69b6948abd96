package relevance

import "github.com/prometheus/client_golang/prometheus"

// collector counts what the choice of labels is worth. A cluster in which all labels count has none
// of these.
type collector struct{ c *Controller }

func description(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("cilium_operator_identity_labels_"+name, help, labels, nil)
}

// Describe implements [prometheus.Collector].
func (m collector) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(m, ch) }

// Collect implements [prometheus.Collector].
func (m collector) Collect(ch chan<- prometheus.Metric) {
	st := m.c.Status()
	if st == nil {
		return
	}
	gauge := func(d *prometheus.Desc, v int, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(v), labels...)
	}
	flag := func(b bool) int {
		if b {
			return 1
		}
		return 0
	}
	gauge(description("keys", "Keys of labels that make identities because policies select them; 0 while all labels do."), len(st.Keys))
	gauge(description("all", "Whether all labels make identities at the moment."), flag(st.All))
	gauge(description("generation", "How often the labels that make identities were changed."), int(st.Generation))
	gauge(description("waiting", "Agents and endpoints that the next change of labels waits for; of endpoints and of many agents only the first are counted."), len(st.WaitingFor))
	sets := description("identities", "Identities that pods need, by the labels that make them: relevant (as it is) or all (as it would be).", "labels")
	gauge(sets, st.Identities, "relevant")
	gauge(sets, st.WithAllLabels, "all")
}
