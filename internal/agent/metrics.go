package agent

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/net/netutil"
	"golang.org/x/sys/unix"

	"github.com/hawser-net/hawser/api/rest/server"
	"github.com/hawser-net/hawser/internal/agent/restapi"
	"github.com/hawser-net/hawser/internal/clusterhealth"
	"github.com/hawser-net/hawser/internal/daemon"
	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/endpoint"
	"github.com/hawser-net/hawser/internal/flows"
)

// metricsSet holds the agent's metrics. A metric that Cilium has too has the same name and meaning.
type metricsSet struct {
	registry *prometheus.Registry
	apiTime  *prometheus.HistogramVec
	policyUp prometheus.Counter
	// reattached counts interfaces and hooks that got their programs back.
	reattached prometheus.Counter
	// edited counts entries that another process had changed, by the kind of map.
	edited *prometheus.CounterVec
	// known is how long it took to resolve the identity of a new pod, temporary how long a label
	// set had a temporary identity, both in seconds.
	known, temporary prometheus.Histogram
}

// Values of the label of the metric edited.
const (
	mapAddresses = "ipcache"
	mapServices  = "services"
)

func newMetrics() *metricsSet {
	waits := []float64{.1, .25, .5, 1, 1.5, 2, 3, 5, 10, 20, 30, 60, 120, 300, 600, 1800}
	m := &metricsSet{
		registry: prometheus.NewRegistry(),
		apiTime: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "cilium_agent_api_process_time_seconds", Help: "Time to answer an API call.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 16),
		}, []string{"operation", "outcome"}),
		policyUp: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "cilium_policy_change_total", Help: "Changes of policy files that took effect.",
		}),
		reattached: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "cilium_filters_restored_total", Help: "Times that programs were attached again to an interface from which something else had detached them.",
		}),
	}
	m.edited = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "cilium_map_entries_restored_total", Help: "Entries of the kernel's maps that something else had changed, and that were restored.",
	}, []string{"map"})
	for _, name := range []string{mapAddresses, mapServices} {
		m.edited.WithLabelValues(name)
	}
	m.known = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "cilium_remote_endpoint_known_seconds", Help: "Time from the creation of another node's pod until this node knows its identity, up to a second too high. With CiliumEndpointSlices: of this node's own pods, until their slice is observed.",
		Buckets: waits,
	})
	m.temporary = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "cilium_temporary_identity_seconds", Help: "How long label sets of this node's endpoints had a temporary identity.", Buckets: waits,
	})
	m.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), m.apiTime, m.policyUp, m.reattached, m.edited,
		m.known, m.temporary)
	return m
}

// countEdited returns a function that counts entries of a kind of map that were restored.
func (m *metricsSet) countEdited(name string) func(entries int) {
	counter := m.edited.WithLabelValues(name)
	return func(entries int) { counter.Add(float64(entries)) }
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
		if operation != "Monitor" { // it lasts as long as a client watches
			m.apiTime.WithLabelValues(operation, outcome).Observe(time.Since(start).Seconds())
		}
		return res, err
	}
}

// stateMetric is a metric that is read from the agent's state when it is scraped.
type stateMetric struct {
	*prometheus.Desc
	kind prometheus.ValueType
}

// stateCollector reads the agent's state on each scrape.
type stateCollector struct {
	*parts
	all []stateMetric

	drops, dropBytes, forwards, forwardBytes stateMetric
	endpoints, ips, ipCapacity               stateMetric
	identities, temporary, nodes, lost       stateMetric
	idsUsed                                  stateMetric
	policyFiles, policyRevision              stateMetric
	ruleSets, locked, unhealthy, ready       stateMetric
	kvstoreUp, kvstoreFull                   stateMetric
	excess                                   stateMetric
	audited, auditedEP                       stateMetric
	unrouted, edited                         stateMetric
	unreachable, unreachableEP               stateMetric
	connectivity, since                      stateMetric
}

func newStateCollector(p *parts) *stateCollector {
	c := &stateCollector{parts: p}
	add := func(kind prometheus.ValueType, name, help string, labels []string) stateMetric {
		m := stateMetric{prometheus.NewDesc("cilium_"+name, help, labels, nil), kind}
		c.all = append(c.all, m)
		return m
	}
	gauge := func(name, help string, labels ...string) stateMetric {
		return add(prometheus.GaugeValue, name, help, labels)
	}
	counter := func(name, help string, labels ...string) stateMetric {
		return add(prometheus.CounterValue, name, help, labels)
	}
	c.drops = counter("drop_count_total", "Packets dropped.", "reason", "direction")
	c.dropBytes = counter("drop_bytes_total", "Bytes dropped.", "reason", "direction")
	c.forwards = counter("forward_count_total", "Packets forwarded.", "direction")
	c.forwardBytes = counter("forward_bytes_total", "Bytes forwarded.", "direction")
	c.audited = counter("policy_audited_total", "Packets that policy would have dropped and that audit mode let pass.", "direction")
	c.lost = counter("monitor_events_lost_total", "Events that the kernel could not store because the buffer was full.", "type")
	c.excess = gauge("conntrack_excess", "Connection tracking entries that endpoints hold beyond their guaranteed share.")

	c.endpoints = gauge("endpoint_state", "Endpoints by state.", "endpoint_state")
	c.locked = gauge("policy_locked_endpoints", "Endpoints that drop all their packets because their rules are not completely in the kernel.")
	c.auditedEP = gauge("policy_audited_endpoints", "Endpoints in audit mode, whose policies are not enforced.")
	c.ruleSets = gauge("policy_rule_sets", "Rule sets in the kernel.")
	c.policyFiles = gauge("policy_files", "Policy files and policies of Kubernetes by state.", "state")
	c.policyRevision = gauge("policy_max_revision", "Revision of the policy in force.")

	c.ips = gauge("ip_addresses", "Allocated addresses.", "family")
	c.ipCapacity = gauge("ipam_capacity", "Addresses that this node can allocate.", "family")
	c.identities = gauge("identity", "Identities that this node knows.", "type")
	c.idsUsed = gauge("identity_ids_used_ratio", "Part of the IDs that this cluster has for sets of labels that is in use.")
	c.temporary = gauge("temporary_identities", "Temporary identities in use by endpoints of this node.")
	c.edited = gauge("edited_identities", "Identities whose labels were edited; this node keeps using the original labels.")

	c.nodes = gauge("nodes_all_num", "Nodes that this node knows.")
	c.unrouted = gauge("node_route_error", "1 for each other node to which a route is missing.", "node")
	c.unreachable = gauge("unreachable_nodes", "Nodes with an address that does not answer this node's probes.")
	c.unreachableEP = gauge("unreachable_health_endpoints", "Nodes whose health endpoint does not answer this node's probes.")
	c.connectivity = gauge("node_health_connectivity_status", "Nodes by the result of probing their addresses (node) or their health endpoints (endpoint).", "type", "status")
	c.since = gauge("node_unreachable_since_seconds", "Unix time since which a node or its health endpoint has not answered.", "node", "type")

	c.kvstoreUp = gauge("kvstore_up", "1 if the key-value store is healthy, else 0.")
	c.kvstoreFull = gauge("kvstore_full", "1 if the key-value store takes no writes because its space is used up, else 0.")
	c.unhealthy = gauge("unhealthy_parts", "Parts of the agent that report a failure, the CNI configuration included.")
	c.ready = gauge("agent_ready", "1 if the agent is ready, as /readyz reports, else 0.")
	return c
}

// Describe implements [prometheus.Collector].
func (c *stateCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, m := range c.all {
		ch <- m.Desc
	}
}

// Collect reads the state now.
func (c *stateCollector) Collect(ch chan<- prometheus.Metric) {
	put := func(m stateMetric, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(m.Desc, m.kind, v, labels...)
	}
	t := c.tables
	if rows, err := c.kernel.maps.Metrics(); err == nil {
		c.collectPackets(rows, put)
	}
	states := map[endpoint.State]int{}
	for _, row := range t.registry.List() {
		states[row.State]++
	}
	for s, n := range states {
		put(c.endpoints, float64(n), string(s))
	}
	used, capacity := map[string]int{}, map[string]int{}
	for _, u := range t.pool.Usage() {
		used[u.Family.String()] += u.Used
		capacity[u.Family.String()] += u.Capacity
	}
	for family := range used {
		put(c.ips, float64(used[family]), family)
		put(c.ipCapacity, float64(capacity[family]), family)
	}
	put(c.temporary, float64(t.identities.Temporary()))
	kinds, taken := map[string]int{}, 0
	for _, k := range t.identities.List() {
		if k.ID >= t.idMin && k.ID <= t.idMax { // and not of another cluster
			taken++
		}
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
		put(c.identities, float64(n), kind)
	}
	put(c.idsUsed, float64(taken)/float64(t.idMax-t.idMin+1))
	put(c.edited, float64(len(t.edited())))
	put(c.nodes, float64(t.nodes.Table().Len()))
	lost := c.monitor.Lost()
	for _, kind := range []datapath.EventType{datapath.EventDrop, datapath.EventVerdict, datapath.EventTrace} {
		put(c.lost, float64(lost[kind]), kind.String())
	}
	if shares, err := c.kernel.maps.FlowShares(); err == nil {
		excess := 0
		for _, s := range shares {
			excess += s.Excess
		}
		put(c.excess, float64(excess))
	}
	for state, n := range c.rest.PolicyFileStates() {
		put(c.policyFiles, float64(n), state)
	}
	put(c.policyRevision, float64(t.policy.Revision()))
	put(c.ruleSets, float64(c.kernel.maps.RuleSetCount())) // to read them all would hold up pods
	_, inAudit := t.policy.Audit()
	put(c.auditedEP, float64(inAudit))
	put(c.locked, float64(t.policy.Locked()))
	if t.store != nil {
		up, full := 0.0, 0.0
		st := t.store.Status()
		if st.Healthy() {
			up = 1
		}
		if st.Full {
			full = 1
		}
		put(c.kvstoreUp, up)
		put(c.kvstoreFull, full)
	}
	c.collectHealth(put)
	for _, node := range c.network.Unrouted() {
		put(c.unrouted, 1, node)
	}
	st, ready := c.rest.Status(), 0.0
	if c.isReady(st.Cilium.State) {
		ready = 1
	}
	put(c.unhealthy, float64(restapi.Failures(&st)))
	put(c.ready, ready)
}

// collectPackets reports the kernel's counters, with the label values that Cilium's have.
func (c *stateCollector) collectPackets(rows []datapath.Metric, put func(m stateMetric, v float64, labels ...string)) {
	type key struct{ reason, direction string }
	dropped := map[key]datapath.Metric{} // some reasons have one text
	for _, r := range rows {
		direction := strings.ToUpper(r.Direction.String())
		switch r.Reason {
		case datapath.ReasonForwarded:
			put(c.forwards, float64(r.Packets), direction)
			put(c.forwardBytes, float64(r.Bytes), direction)
		case datapath.ReasonPolicyAudited:
			put(c.audited, float64(r.Packets), r.Direction.String())
		default:
			k := key{flows.CounterText(r.Reason), direction}
			sum := dropped[k]
			sum.Packets += r.Packets
			sum.Bytes += r.Bytes
			dropped[k] = sum
		}
	}
	for k, sum := range dropped {
		put(c.drops, float64(sum.Packets), k.reason, k.direction)
		put(c.dropBytes, float64(sum.Bytes), k.reason, k.direction)
	}
}

// collectHealth reports which nodes answer.
func (c *stateCollector) collectHealth(put func(m stateMetric, v float64, labels ...string)) {
	if c.health == nil {
		return
	}
	all, _ := c.health.Statuses()
	for _, kind := range []struct {
		name  string
		total stateMetric
		paths func(clusterhealth.Status) []clusterhealth.Path
	}{
		{"node", c.unreachable, func(s clusterhealth.Status) []clusterhealth.Path { return s.Node }},
		{"endpoint", c.unreachableEP, func(s clusterhealth.Status) []clusterhealth.Path { return s.Endpoint }},
	} {
		count := map[string]int{"reachable": 0, "unreachable": 0, "silent": 0, "unknown": 0}
		for _, s := range all {
			state, since := clusterhealth.StateOf(kind.paths(s))
			count[state.String()]++
			if state == clusterhealth.Unreachable {
				put(c.since, float64(since.Unix()), s.Name, kind.name)
			}
		}
		put(kind.total, float64(count["unreachable"]))
		for state, n := range count {
			put(c.connectivity, float64(n), kind.name, state)
		}
	}
}

const (
	// metricsConnections bounds the open connections of a metrics server, metricsAnswers the
	// requests that it answers at once: a response stays in memory until the client has read it,
	// and anyone who can reach the address may ask.
	metricsConnections = 32
	metricsAnswers     = 4
	// metricsTimeout is how long a client may take to read a response.
	metricsTimeout = 30 * time.Second
)

// serveMetrics serves the metrics of a registry until ctx ends. A client has timeout to read a
// response.
func serveMetrics(ctx context.Context, l net.Listener, registry *prometheus.Registry, timeout time.Duration) error {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{MaxRequestsInFlight: metricsAnswers}))
	return daemon.ServeWith(ctx, netutil.LimitListener(l, metricsConnections), &http.Server{
		Handler: mux, ReadTimeout: 10 * time.Second, WriteTimeout: timeout, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 16 << 10,
	})
}

// serveLocal serves h on a port of the loopback addresses until ctx ends: of both families, or of
// the only one that the machine has.
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
