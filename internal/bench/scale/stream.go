package scale

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/api/v2alpha1"
	"github.com/hawser-net/hawser/internal/bench/scale/fanout"
	"github.com/hawser-net/hawser/internal/bench/scale/report"
	"github.com/hawser-net/hawser/internal/bench/scale/traffic"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/ipcache"
	"github.com/hawser-net/hawser/internal/k8s"
	"github.com/hawser-net/hawser/internal/k8s/endpoints"
)

// Ways to publish pods to other nodes, for the scenario stream.
const (
	streamEndpoints = "one endpoint a pod"
	// streamSlices has the operator put these into slices, which is what other nodes read.
	streamSlices = "slices of endpoints"
	// streamSlim has it make slices from pods; there are no endpoints.
	streamSlim = "slices of pods"
)

// streamModes are the ways that are measured.
func streamModes() []string { return []string{streamEndpoints, streamSlices, streamSlim} }

// stream is scenario (b): pods that come at a steady rate, and who observes them when.
func (r *runner) stream(ctx context.Context, s *report.Scenario) error {
	s.Text = fmt.Sprintf("%d pods come at %g a second on %d nodes, %d with the same labels. Every agent publishes its pods.",
		r.cfg.StreamPods, r.cfg.StreamRate, r.cfg.StreamNodes, podsAnIdentity)
	s.Shared = fmt.Sprintf("%d agents observe all pods, over connections and watches of their own, and their figures are shown; a pod is known when the last of them has it in its "+
		"address cache. The others share a TCP connection by %d and one watch of CiliumEndpoints, of which each receives its own node's only. Time is taken from the answer to the pod's "+
		"creation; where slices are made of pods, from the moment that the pod's status has its address.", r.cfg.Observers, agentsAConnection)
	s.Limits = []string{
		streamEndpoints + ": what the API server sends to every agent of every pod; the time that a pod needs is some requests' time",
		streamSlices + ", " + streamSlim + ": a slice waits half a second for more changes, and at most ten are written a second (--ces-rate-limits): that is what a pod waits for, " +
			"and 1,000 pods a second at best",
	}
	plot := report.Plot{File: "stream.svg", Title: "Pods that every agent knows", X: "seconds since the pod was created", Y: "% of pods"}
	return inModes(ctx, s, plot, streamModes(), r.streamIn)
}

// streamIn measures one way.
func (r *runner) streamIn(ctx context.Context, mode string, v *report.Variant) (line report.Line, err error) {
	line.Name = mode
	r.say("  %s", mode)
	c, err := r.newCluster(ctx)
	if err != nil {
		return line, err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	if _, err := c.startOperator(append(streamFlags(mode), r.cfg.leaseFlags()...)...); err != nil {
		return line, err
	}
	if _, err := c.awaitLeader(ctx, ""); err != nil {
		return line, err
	}
	for n := 0; n < r.cfg.StreamPods && n < 20*podsAnIdentity; n += podsAnIdentity {
		ns, _, _, _, _ := place(n)
		if err := c.namespace(ctx, ns, nil); err != nil {
			return line, err
		}
	}
	if mode == streamSlim {
		if err := each(ctx, r.cfg.StreamNodes, func(ctx context.Context, i int) error { return c.node(ctx, i) }); err != nil {
			return line, err
		}
	}
	shared, stop := c.shareWatch(ctx)
	defer func() { err = errors.Join(err, stop()) }()
	st := newStreaming(r, c, mode == streamSlim)
	agents, err := st.agents(mode, shared)
	if err != nil {
		return line, err
	}
	fleet, err := r.start(ctx, agents)
	if err != nil {
		return line, err
	}
	defer func() { err = errors.Join(err, fleet.stop()) }()
	before, err := c.traffic(ctx)
	if err != nil {
		return line, err
	}
	for _, m := range st.meters {
		m.reset()
	}
	stretch := c.startLoad()
	if err := st.run(ctx); err != nil {
		return line, err
	}
	v.Processors = stretch.end(c)
	time.Sleep(quietTime)
	after, err := c.traffic(ctx)
	if err != nil {
		return line, err
	}
	line.Points = report.Shares(st.figures(v, after.Since(before)), r.cfg.StreamPods)
	w, err := c.world(ctx)
	if err != nil {
		return line, err
	}
	v.Check("every label set has one identity", false, w.oneNumberEach())
	if mode == streamSlim {
		v.Check("every pod is in one slice, with the number of its labels", false, w.everyPodIsInOneSlice(r.filter))
		return line, nil
	}
	v.Check("every pod's endpoint has the ID and the labels of its pod's labels", false, w.everyPodIsPublished(r.filter))
	if mode == streamSlices {
		v.Check("every endpoint is in one slice, as it is", false, w.everyEndpointIsInOneSlice())
	}
	return line, nil
}

// streamFlags are the operator's flags for a way.
func streamFlags(mode string) []string {
	switch mode {
	case streamSlices:
		return []string{"--enable-cilium-endpoint-slice"}
	case streamSlim:
		return []string{
			"--enable-cilium-endpoint-slice", "--ces-controller-mode", "slim", "--disable-endpoint-crd", "--" + identity.ManagementFlag, string(identity.ManagedByOperator),
		}
	}
	return nil
}

// shareWatch runs a watch of endpoints for all agents until stop is called.
func (c *cluster) shareWatch(ctx context.Context) (w *fanout.Watch, stop func() error) {
	w = fanout.New(c.client, c.r.log)
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	return w, func() error { cancel(); return <-done }
}

// streaming is one run of the scenario.
type streaming struct {
	r      *runner
	c      *cluster
	slim   bool // pods' addresses are in their status, and nowhere else
	meters []*meter
	all    chan struct{} // closed when every observer knows every pod

	mu      sync.Mutex
	created map[k8s.Key]time.Time
	known   map[k8s.Key]int       // by how many observers
	last    map[k8s.Key]time.Time // when the last of them observed it
	left    int                   // pods that some observer does not know
}

func newStreaming(r *runner, c *cluster, slim bool) *streaming {
	return &streaming{
		r: r, c: c, slim: slim, all: make(chan struct{}), created: map[k8s.Key]time.Time{}, known: map[k8s.Key]int{}, last: map[k8s.Key]time.Time{}, left: r.cfg.StreamPods,
	}
}

// agents makes all agents; the first ones are the observers.
func (st *streaming) agents(mode string, w *fanout.Watch) ([]*agent, error) {
	var agents []*agent
	var shared *http.Transport
	for i := range st.r.cfg.StreamNodes {
		opts := agentOptions{ids: st.r.sourceFor(modeAgents)}
		if st.slim {
			opts.ids, opts.silent = st.r.sourceFor(modeOperator), true
		}
		if i < st.r.cfg.Observers {
			m := newMeter()
			st.meters = append(st.meters, m)
			opts.transport, opts.wrap, opts.slices = st.c.transport(), m.wrap, mode != streamEndpoints
			opts.cache = func(c endpoints.Cache) endpoints.Cache {
				return &watchedCache{Cache: c, st: st, seen: map[k8s.Key]bool{}}
			}
		} else {
			if shared == nil || i%agentsAConnection == 0 {
				shared = st.c.transport()
			}
			opts.transport, opts.endpoints = shared, w
		}
		a, err := st.c.newAgent(i, opts, st.r.log)
		if err != nil {
			return nil, err
		}
		agents = append(agents, a)
	}
	return agents, nil
}

// watchedCache is an observer's address cache.
type watchedCache struct {
	endpoints.Cache
	st *streaming

	mu   sync.Mutex
	seen map[k8s.Key]bool
}

// Upsert implements endpoints.Cache.
func (w *watchedCache) Upsert(p netip.Prefix, c ipcache.Claim) (uint64, error) {
	revision, err := w.Cache.Upsert(p, c)
	key := k8s.Key{Namespace: c.Namespace, Name: c.Pod}
	w.mu.Lock()
	first := !w.seen[key]
	w.seen[key] = true
	w.mu.Unlock()
	if err == nil && first {
		w.st.learned(key)
	}
	return revision, err
}

// learned is called when an observer observes a pod.
func (st *streaming) learned(key k8s.Key) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.known[key]++
	st.last[key] = time.Now()
	if st.known[key] == st.r.cfg.Observers {
		if st.left--; st.left == 0 {
			close(st.all)
		}
	}
}

// run creates the pods and waits until all observers know all of them. No pod is on an observer's
// node: an agent does not observe its own.
func (st *streaming) run(ctx context.Context) error {
	cfg := st.r.cfg
	nodes := max(1, cfg.StreamNodes-cfg.Observers)
	if err := paced(ctx, cfg.StreamPods, cfg.StreamRate, func(ctx context.Context, n int) error {
		ns, name, _, _, app := place(n)
		node := cfg.StreamNodes - nodes + n%nodes
		pod, err := st.c.pod(ctx, ns, name, nodeOf(node), appLabels(app))
		if err == nil && st.slim {
			err = st.c.address(ctx, pod, hostOf(node), podOf(node, 1+n/nodes))
		}
		at := time.Now()
		st.mu.Lock()
		defer st.mu.Unlock()
		st.created[k8s.Key{Namespace: ns, Name: name}] = at
		if n%100 == 0 {
			st.r.progress(n, cfg.StreamPods, fmt.Sprintf("pods, %d of them not known everywhere yet", len(st.created)-(cfg.StreamPods-st.left)))
		}
		return err
	}); err != nil {
		return err
	}
	select {
	case <-st.all:
		return nil
	case <-time.After(cfg.Timeout):
		st.mu.Lock()
		defer st.mu.Unlock()
		return fmt.Errorf("after %v more there are %d of %d pods that not every agent knows", cfg.Timeout, st.left, cfg.StreamPods)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// figures notes what was found, and returns how long each pod took.
func (st *streaming) figures(v *report.Variant, did traffic.Traffic) []float64 {
	st.mu.Lock()
	defer st.mu.Unlock()
	var took []float64
	var first, last time.Time
	for key, at := range st.created {
		took = append(took, max(0, st.last[key].Sub(at).Seconds()))
		if first.IsZero() || at.Before(first) {
			first = at
		}
		if at.After(last) {
			last = at
		}
	}
	pods := float64(st.r.cfg.StreamPods)
	v.Calls = did.CustomResources()
	v.Figure("pods", pods, "", "")
	v.Figure("pods created", pods/max(last.Sub(first).Seconds(), 1e-3), "a second", "")
	v.Figure("every agent knows a pod, p50", report.Quantile(took, 0.5), "s", "")
	v.Figure("every agent knows a pod, p99", report.Quantile(took, 0.99), "s", "")
	v.Figure("every agent knows a pod, slowest", report.Quantile(took, 1), "s", "")
	v.Figure("API writes a pod, all custom resources", did.Writes(v2.ResourceIdentities, v2.ResourceEndpoints, v2alpha1.ResourceEndpointSlices)/pods, "", "")
	v.Figure("API writes a pod, slices", did.Writes(v2alpha1.ResourceEndpointSlices)/pods, "", "")
	events, bytes := 0.0, 0.0
	for _, m := range st.meters {
		m.mu.Lock()
		for resource := range m.bytes {
			if strings.HasPrefix(resource, "cilium") {
				events += float64(m.events[resource]) / float64(len(st.meters))
				bytes += float64(m.bytes[resource]) / float64(len(st.meters))
			}
		}
		m.mu.Unlock()
	}
	v.Figure("watch events an agent, a pod", events/pods, "", "of custom resources; bookmarks are among them")
	v.Figure("watch bytes an agent, a pod", bytes/pods, "", "")
	v.Figure("watch bytes to all agents at this rate", bytes/pods*st.r.cfg.StreamRate*float64(st.r.cfg.StreamNodes)/1e6, "MB/s", "")
	return report.Sorted(took)
}

// meter counts what an agent receives over watches, by resource.
type meter struct {
	mu            sync.Mutex
	events, bytes map[string]int64
}

func newMeter() *meter { return &meter{events: map[string]int64{}, bytes: map[string]int64{}} }

func (m *meter) reset() {
	m.mu.Lock()
	defer m.mu.Unlock()
	clear(m.events)
	clear(m.bytes)
}

func (m *meter) wrap(next http.RoundTripper) http.RoundTripper { return meterTransport{m, next} }

type meterTransport struct {
	*meter
	next http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (t meterTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := t.next.RoundTrip(req)
	if err == nil && req.Method == http.MethodGet && req.URL.Query().Get("watch") == "true" {
		path := req.URL.Path
		resp.Body = &meterBody{resp.Body, t.meter, path[strings.LastIndexByte(path, '/')+1:]}
	}
	return resp, err
}

// meterBody is the body of a watch. In JSON, events are lines.
type meterBody struct {
	io.ReadCloser
	m        *meter
	resource string
}

// Read implements io.Reader.
func (b *meterBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.m.mu.Lock()
	defer b.m.mu.Unlock()
	b.m.bytes[b.resource] += int64(n)
	b.m.events[b.resource] += int64(strings.Count(string(p[:n]), "\n"))
	return n, err
}
