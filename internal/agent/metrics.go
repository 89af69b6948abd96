package agent

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/net/netutil"
	"golang.org/x/sys/unix"

	"github.com/hawser-net/hawser/api/rest/server"
	"github.com/hawser-net/hawser/internal/clusterhealth"
	"github.com/hawser-net/hawser/internal/daemon"
	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/endpoint"
)

// metricsSet holds the agent's metrics. Names are those of the field where a metric means the
// same there.
type metricsSet struct {
	registry *prometheus.Registry
	apiTime  *prometheus.HistogramVec
	policyUp prometheus.Counter
	// reattached counts interfaces and hooks that got their programs back.
	reattached prometheus.Counter
	// known and temporary are in seconds: how long a pod was not known by its identity, and how
	// long labels had a temporary number.
	known, temporary prometheus.Histogram
}

func newMetrics() *metricsSet {
	waits := []float64{.1, .25, .5, 1, 1.5, 2, 3, 5, 10, 20, 30, 60, 120, 300, 600, 1800}
	m := &metricsSet{
		registry: prometheus.NewRegistry(),
		apiTime: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "cilium_agent_api_process_time_seconds", Help: "Time to answer an API call.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 16),
		}, []string{"operation", "outcome"}),
		policyUp: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "cilium_policy_change_total", Help: "Changes of the policy files that were put in force.",
		}),
		reattached: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "cilium_filters_restored_total", Help: "Times that programs were put back on an interface from which somebody else had taken them.",
		}),
	}
	m.known = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "cilium_remote_endpoint_known_seconds", Help: "From the creation of another node's pod until this node knows its identity, up to a second too much; with CiliumEndpointSlices of this node's own pods, until their slices come back.",
		Buckets: waits,
	})
	m.temporary = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "cilium_temporary_identity_seconds", Help: "How long labels of this node's endpoints had a temporary identity.", Buckets: waits,
	})
	m.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), m.apiTime, m.policyUp, m.reattached,
		m.known, m.temporary)
	return m
}

// observe measures every API call.
func (m *metricsSet) observe(next server.StrictHandlerFunc, operation string) server.StrictHandlerFunc {
	return func(ctx context.Context, w http.ResponseWriter, r *http.Request, req any) (any, error) {
		start := time.Now()
		res, err := next(ctx, w, r, req)
		outcome := "success"
		if err != nil {
			outcome = "failure"
		}
		if operation != "Monitor" { // it lasts as long as somebody watches
			m.apiTime.WithLabelValues(operation, outcome).Observe(time.Since(start).Seconds())
		}
		return res, err
	}
}

// stateCollector reads the agent's state when it is asked.
type stateCollector struct {
	*parts

	drops, dropBytes, forwards, forwardBytes *prometheus.Desc
	endpoints, ips, ipCapacity               *prometheus.Desc
	identities, temporary, nodes, lost       *prometheus.Desc
	policyFiles, policyRevision              *prometheus.Desc
	ruleSets, locked, kvstoreUp, unhealthy   *prometheus.Desc
	excess                                   *prometheus.Desc
	audited, auditedEP                       *prometheus.Desc
	unrouted, edited                         *prometheus.Desc
	unreachable, unreachableEP               *prometheus.Desc
	connectivity, since                      *prometheus.Desc
}

func newStateCollector(p *parts) *stateCollector {
	d := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("cilium_"+name, help, labels, nil)
	}
	return &stateCollector{
		parts: p,
		drops: d("drop_count_total", "Packets dropped.", "reason", "direction"), dropBytes: d("drop_bytes_total", "Bytes dropped.", "reason", "direction"),
		forwards: d("forward_count_total", "Packets forwarded.", "direction"), forwardBytes: d("forward_bytes_total", "Bytes forwarded.", "direction"),
		endpoints: d("endpoint_state", "Endpoints by state.", "endpoint_state"), ips: d("ip_addresses", "Addresses given out.", "family"),
		ipCapacity: d("ipam_capacity", "Addresses that can be given out.", "family"), identities: d("identity", "Identities known.", "type"),
		temporary: d("temporary_identities", "Temporary identities that labels of this node's endpoints have."),
		nodes:     d("nodes_all_num", "Nodes known."), lost: d("monitor_events_lost_total", "Events the kernel could not store, by kind.", "type"),
		policyFiles: d("policy_files", "Policy files and policies of Kubernetes by state.", "state"), policyRevision: d("policy_max_revision", "Revision of the policy in force."),
		ruleSets:  d("policy_rule_sets", "Rule sets in the kernel."),
		excess:    d("conntrack_excess", "Entries of conntrack made on behalf of endpoints of now beyond their shares."),
		audited:   d("policy_audited_total", "Packets that policy refused and audit mode let pass.", "direction"),
		auditedEP: d("policy_audited_endpoints", "Endpoints in audit mode: what their policies refuse passes."),
		locked:    d("policy_locked_endpoints", "Endpoints that drop all their packets because their rules are not in the kernel in full."),
		kvstoreUp: d("kvstore_up", "Whether the key-value store can be relied on."), unhealthy: d("unhealthy_parts", "Parts of the agent that report a failure."),
		edited:        d("edited_identities", "Identities that somebody gave other labels, and that mean on this node what they meant."),
		unreachable:   d("unreachable_nodes", "Nodes of which an own address does not answer this node's probes."),
		unreachableEP: d("unreachable_health_endpoints", "Nodes of which the health endpoint does not answer this node's probes."),
		connectivity:  d("node_health_connectivity_status", "Nodes by what their addresses (node) or health endpoints (endpoint) answer.", "type", "status"),
		since:         d("node_unreachable_since_seconds", "Since when a node, or its health endpoint, does not answer, in seconds since 1970.", "node", "type"),
		unrouted:      d("node_route_error", "Other nodes to which not all routes are in place.", "node"),
	}
}

// Describe sends nothing: the collector is checked by its values.
func (c *stateCollector) Describe(chan<- *prometheus.Desc) {}

// Collect reads the state now.
func (c *stateCollector) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	counter := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v, labels...)
	}
	t := c.tables
	if rows, err := c.kernel.maps.Metrics(); err == nil {
		for _, r := range rows {
			if r.Reason == datapath.ReasonForwarded {
				counter(c.forwards, float64(r.Packets), r.Direction.String())
				counter(c.forwardBytes, float64(r.Bytes), r.Direction.String())
				continue
			}
			if r.Reason == datapath.ReasonPolicyAudited {
				counter(c.audited, float64(r.Packets), r.Direction.String())
				continue
			}
			counter(c.drops, float64(r.Packets), r.Reason.String(), r.Direction.String())
			counter(c.dropBytes, float64(r.Bytes), r.Reason.String(), r.Direction.String())
		}
	}
	states := map[endpoint.State]int{}
	for _, row := range t.registry.List() {
		states[row.State]++
	}
	for s, n := range states {
		gauge(c.endpoints, float64(n), string(s))
	}
	used, capacity := map[string]int{}, map[string]int{}
	for _, u := range t.pool.Usage() {
		used[u.Family.String()] += u.Used
		capacity[u.Family.String()] += u.Capacity
	}
	for family := range used {
		gauge(c.ips, float64(used[family]), family)
		gauge(c.ipCapacity, float64(capacity[family]), family)
	}
	gauge(c.temporary, float64(t.identities.Temporary()))
	kinds := map[string]int{}
	for _, k := range t.identities.List() {
		switch {
		case k.ID.IsReserved():
			kinds["reserved"]++
		case k.ID.IsTemporary():
			kinds["temporary"]++
		case k.ID.IsLocal():
			kinds["node_local"]++
		default:
			kinds["cluster_local"]++
		}
	}
	for kind, n := range kinds {
		gauge(c.identities, float64(n), kind)
	}
	gauge(c.edited, float64(len(t.edited())))
	gauge(c.nodes, float64(t.nodes.Table().Len()))
	lost := c.monitor.Lost()
	for _, kind := range []datapath.EventType{datapath.EventDrop, datapath.EventVerdict, datapath.EventTrace} {
		counter(c.lost, float64(lost[kind]), kind.String())
	}
	if shares, err := c.kernel.maps.FlowShares(); err == nil {
		excess := 0
		for _, s := range shares {
			excess += s.Excess
		}
		gauge(c.excess, float64(excess))
	}
	for state, n := range c.rest.PolicyFileStates() {
		gauge(c.policyFiles, float64(n), state)
	}
	gauge(c.policyRevision, float64(t.policy.Revision()))
	if sets, err := c.kernel.maps.RuleSets(); err == nil {
		gauge(c.ruleSets, float64(len(sets)))
	}
	_, inAudit := t.policy.Audit()
	gauge(c.auditedEP, float64(inAudit))
	gauge(c.locked, float64(t.policy.Locked()))
	if t.store != nil {
		up := 0.0
		if t.store.Status().Healthy() {
			up = 1
		}
		gauge(c.kvstoreUp, up)
	}
	c.collectHealth(gauge)
	for _, node := range c.network.Unrouted() {
		gauge(c.unrouted, 1, node)
	}
	failed := 0
	for _, p := range t.components.List() {
		if p.State == "Failure" {
			failed++
		}
	}
	gauge(c.unhealthy, float64(failed))
}

// collectHealth reports which nodes answer.
func (c *stateCollector) collectHealth(gauge func(d *prometheus.Desc, v float64, labels ...string)) {
	if c.health == nil {
		return
	}
	all, _ := c.health.Statuses()
	for _, kind := range []struct {
		name  string
		total *prometheus.Desc
		paths func(clusterhealth.Status) []clusterhealth.Path
	}{
		{"node", c.unreachable, func(s clusterhealth.Status) []clusterhealth.Path { return s.Node }},
		{"endpoint", c.unreachableEP, func(s clusterhealth.Status) []clusterhealth.Path { return s.Endpoint }},
	} {
		count := map[string]int{"reachable": 0, "unreachable": 0, "silent": 0, "unknown": 0}
		for _, s := range all {
			state, since := clusterhealth.Judge(kind.paths(s))
			count[state.String()]++
			if state == clusterhealth.Unreachable {
				gauge(c.since, float64(since.Unix()), s.Name, kind.name)
			}
		}
		gauge(kind.total, float64(count["unreachable"]))
		for state, n := range count {
			gauge(c.connectivity, float64(n), kind.name, state)
		}
	}
}

const (
	// metricsConnections is how many connections a server of metrics has open at once, and
	// metricsAnswers to how many requests it answers at once: an answer is in memory until it is
	// read, and whoever reaches the address may ask.
	metricsConnections = 32
	metricsAnswers     = 4
	// metricsTimeout is how long a reader may take for an answer.
	metricsTimeout = 30 * time.Second
)

// serveMetrics serves what a registry has until ctx ends, to readers that take at most timeout for
// it.
func serveMetrics(ctx context.Context, l net.Listener, registry *prometheus.Registry, timeout time.Duration) error {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{MaxRequestsInFlight: metricsAnswers}))
	return daemon.ServeWith(ctx, netutil.LimitListener(l, metricsConnections), &http.Server{
		Handler: mux, ReadTimeout: 10 * time.Second, WriteTimeout: timeout, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 16 << 10,
	})
}

// serveLocal serves h at a port of loopback until ctx ends: of both families, or of the one that
// the machine has.
func serveLocal(ctx context.Context, port int, h http.Handler) error {
	var open []net.Listener
	var missing []error
	for _, host := range []string{"127.0.0.1", "::1"} {
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(port)))
		switch {
		case err == nil:
			open = append(open, l)
		case errors.Is(err, unix.EADDRNOTAVAIL), errors.Is(err, unix.EAFNOSUPPORT):
			missing = append(missing, err)
		default:
			for _, l := range open {
				l.Close()
			}
			return err
		}
	}
	if len(open) == 0 {
		return errors.Join(missing...)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan error, len(open))
	for _, l := range open {
		go func() {
			done <- daemon.Serve(ctx, l, h)
			cancel() // the other one ends, too
		}()
	}
	var errs []error
	for range open {
		errs = append(errs, <-done)
	}
	return errors.Join(errs...)
}
