package clustermesh

import "github.com/prometheus/client_golang/prometheus"

// collector shows the state of other clusters as metrics. Names and labels are those of Cilium
// where a metric means the same there.
type collector struct {
	mesh     *Mesh
	globals  func() int
	own      []string // this cluster and this node
	clusters *prometheus.Desc
	services *prometheus.Desc
	each     []perCluster
}

// perCluster is a metric of each other cluster.
type perCluster struct {
	desc  *prometheus.Desc
	value func(Status) float64
}

// Collector returns the metrics of a mesh that node follows. globals counts the services that
// backends of other clusters can belong to; it is nil where there are no services. What it returns
// may be used from any goroutine.
func (m *Mesh) Collector(node string, globals func() int) prometheus.Collector {
	const prefix = "cilium_clustermesh_"
	own := []string{"source_cluster", "source_node_name"}
	c := &collector{
		mesh: m, globals: globals, own: []string{m.p.Name, node},
		clusters: prometheus.NewDesc(prefix+"remote_clusters", "Other clusters that are configured.", own, nil),
		services: prometheus.NewDesc(prefix+"global_services", "Services that backends of other clusters can belong to.", own, nil),
	}
	add := func(name, help string, value func(Status) float64) {
		c.each = append(c.each, perCluster{prometheus.NewDesc(prefix+"remote_cluster_"+name, help, append(own[:2:2], "target_cluster"), nil), value})
	}
	count := func(of func(Status) int) func(Status) float64 {
		return func(s Status) float64 { return float64(of(s)) }
	}
	add("readiness_status", "1 if the cluster's store answers and all of it was read, else 0.", func(s Status) float64 {
		if s.Connected && s.Ready {
			return 1
		}
		return 0
	})
	add("failures", "How often something kept the cluster from being followed.", count(func(s Status) int { return s.Failures }))
	add("last_failure_ts", "When something last did, in seconds since 1970; 0 for never.", func(s Status) float64 {
		if s.LastErrorAt.IsZero() {
			return 0
		}
		return float64(s.LastErrorAt.UnixMilli()) / 1000
	})
	add("nodes", "Nodes of the cluster that are in force here.", count(func(s Status) int { return s.Nodes }))
	add("endpoints", "Addresses of the cluster's pods that are in force here.", count(func(s Status) int { return s.Addresses }))
	add("services", "Shared services of the cluster that are in force here.", count(func(s Status) int { return s.Services }))
	add("identities", "Identities of the cluster that are in force here.", count(func(s Status) int { return s.Identities }))
	add("refused", "What the cluster's store has and is not accepted.", count(func(s Status) int { return s.Refused }))
	return c
}

// Describe implements [prometheus.Collector].
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	ch <- c.clusters
	ch <- c.services
	for _, m := range c.each {
		ch <- m.desc
	}
}

// Collect implements [prometheus.Collector].
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	list, _ := c.mesh.Status()
	gauge(c.clusters, float64(len(list)), c.own...)
	if c.globals != nil {
		gauge(c.services, float64(c.globals()), c.own...)
	}
	for _, s := range list {
		for _, m := range c.each {
			gauge(m.desc, m.value(s), append(c.own[:2:2], s.Name)...)
		}
	}
}
