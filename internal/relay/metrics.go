package relay

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// metrics are what the relay counts. It has a registry of its own.
type metrics struct {
	registry *prometheus.Registry
	flows    prometheus.Counter
}

func newMetrics(r *Relay) *metrics {
	m := &metrics{
		registry: prometheus.NewRegistry(),
		flows:    prometheus.NewCounter(prometheus.CounterOpts{Name: "hubble_relay_flows_total", Help: "Flows that were sent to clients."}),
	}
	m.registry.MustRegister(m.flows, nodeCollector{r}, r.expiry)
	return m
}

func (m *metrics) handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{MaxRequestsInFlight: 4}))
	return mux
}

// nodeCollector counts nodes and streams when it is asked.
type nodeCollector struct{ r *Relay }

func (nodeCollector) descs() (status, upstreams, refused *prometheus.Desc) {
	return prometheus.NewDesc("hubble_relay_pool_peer_connection_status", "Nodes by the state of the connection to them.", []string{"status"}, nil),
		prometheus.NewDesc("hubble_relay_node_streams", "Streams of flows from nodes that are being read.", nil, nil),
		prometheus.NewDesc("hubble_relay_nodes_refused_total", "Times that a node was left out because there are too many.", nil, nil)
}

func (c nodeCollector) Describe(ch chan<- *prometheus.Desc) {
	a, b, d := c.descs()
	ch <- a
	ch <- b
	ch <- d
}

func (c nodeCollector) Collect(ch chan<- prometheus.Metric) {
	status, upstreams, refused := c.descs()
	views, _ := c.r.roster.nodes()
	count := map[string]int{"READY": 0, "CONNECTING": 0, "TRANSIENT_FAILURE": 0}
	for _, v := range views {
		switch {
		case v.conn != nil:
			count["READY"]++
		case v.state == 0:
			count["CONNECTING"]++
		default:
			count["TRANSIENT_FAILURE"]++
		}
	}
	for name, n := range count {
		ch <- prometheus.MustNewConstMetric(status, prometheus.GaugeValue, float64(n), name)
	}
	ch <- prometheus.MustNewConstMetric(upstreams, prometheus.GaugeValue, float64(c.r.upstreams.Load()))
	c.r.roster.mu.Lock()
	n := c.r.roster.refused
	c.r.roster.mu.Unlock()
	ch <- prometheus.MustNewConstMetric(refused, prometheus.CounterValue, float64(n))
}
