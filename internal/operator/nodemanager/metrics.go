package nodemanager

import (
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics are those of a node manager, by Cilium's names.
type Metrics struct {
	allocations, releases, creations *prometheus.CounterVec
	resyncs                          prometheus.Counter
	api, waited                      *prometheus.HistogramVec
	allocated, released              *prometheus.HistogramVec
	nodes                            *prometheus.GaugeVec
	available, used, needed          *prometheus.GaugeVec
}

// NewMetrics registers the metrics of a node manager.
func NewMetrics(reg prometheus.Registerer) (*Metrics, error) {
	counter := func(name, help string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "cilium_operator_ipam_" + name, Help: help}, []string{"subnet_id"})
	}
	gauge := func(name, help, label string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "cilium_operator_ipam_" + name, Help: help}, []string{label})
	}
	histogram := func(name, help string, labels ...string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "cilium_operator_ipam_" + name, Help: help, Buckets: prometheus.ExponentialBuckets(0.005, 2, 13)}, labels)
	}
	m := &Metrics{
		allocations: counter("ip_allocation_ops", "Calls by which addresses were assigned."),
		releases:    counter("ip_release_ops", "Calls by which addresses were released."),
		creations:   counter("interface_creation_ops", "Interfaces made."),
		resyncs:     prometheus.NewCounter(prometheus.CounterOpts{Name: "cilium_operator_ipam_resync_total", Help: "Descriptions of the whole cloud that were read."}),
		api:         histogram("api_duration_seconds", "How long calls to the cloud took.", "operation", "response_code"),
		waited:      histogram("api_rate_limit_duration_seconds", "How long calls to the cloud waited for the budget.", "operation"),
		allocated:   histogram("allocation_duration_seconds", "How long it took to assign addresses or to make an interface.", "type", "status", "subnet_id"),
		released:    histogram("release_duration_seconds", "How long it took to release addresses.", "type", "status", "subnet_id"),
		nodes:       gauge("nodes", "Nodes: all, those that lack addresses, and those that can have no more.", "category"),
		available:   gauge("available_ips", "Addresses of a node that no pod has.", "target_node"),
		used:        gauge("used_ips", "Addresses of a node that pods have.", "target_node"),
		needed:      gauge("needed_ips", "Addresses that a node lacks by its watermarks.", "target_node"),
	}
	for _, c := range []prometheus.Collector{m.allocations, m.releases, m.creations, m.resyncs, m.api, m.waited, m.allocated, m.released, m.nodes, m.available, m.used, m.needed} {
		if err := reg.Register(c); err != nil {
			return nil, fmt.Errorf("metrics of the node manager: %w", err)
		}
	}
	return m, nil
}

// called records a call.
func (m *Metrics) called(operation string, err error, waited, took time.Duration) {
	code := "OK"
	var e *Error
	if err != nil {
		code = "none"
		if errors.As(err, &e) && e.Code != "" {
			code = e.Code
		}
	}
	m.api.WithLabelValues(operation, code).Observe(took.Seconds())
	m.waited.WithLabelValues(operation).Observe(waited.Seconds())
}

// took records how long a step took, whatever has become of it.
func (m *Metrics) took(s *Step, err error, d time.Duration) {
	status := "success"
	if err != nil {
		status = "failure"
	}
	switch s.Call {
	case Assign, AssignIPv6:
		m.allocated.WithLabelValues("allocateIP", status, s.Interface.Subnet).Observe(d.Seconds())
	case Create:
		m.allocated.WithLabelValues("createInterface", status, s.Subnet).Observe(d.Seconds())
	case Unassign:
		m.released.WithLabelValues("releaseIP", status, s.Interface.Subnet).Observe(d.Seconds())
	}
}

// made records a step that was made.
func (m *Metrics) made(s *Step) {
	switch s.Call {
	case Assign, AssignIPv6:
		m.allocations.WithLabelValues(s.Interface.Subnet).Inc()
	case Unassign:
		m.releases.WithLabelValues(s.Interface.Subnet).Inc()
	case Create:
		m.creations.WithLabelValues(s.Subnet).Inc()
	}
}

func (m *Metrics) forget(node string) {
	for _, g := range []*prometheus.GaugeVec{m.available, m.used, m.needed} {
		g.DeleteLabelValues(node)
	}
}
