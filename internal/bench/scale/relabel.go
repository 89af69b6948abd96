package scale

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/bench/child"
	"github.com/hawser-net/hawser/internal/bench/scale/fanout"
	"github.com/hawser-net/hawser/internal/bench/scale/report"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/k8s"
	"github.com/hawser-net/hawser/internal/labels"
	"github.com/hawser-net/hawser/pkg/retry"
)

// wholeRange is how many identities a cluster without others has.
const wholeRange = 65535 - 256 + 1

// firstNumber is the first of them.
const firstNumber = identity.MinGlobal

// agentsAConnection is how many stub agents share one: the server allows 100 streams on each, and
// an agent has three watches.
const agentsAConnection = 25

// relabel is scenario (a): many agents, each with a pod of one deployment, and one label of their
// namespace that changes.
func (r *runner) relabel(ctx context.Context, s *report.Scenario) error {
	s.Text = "Every agent has one pod of the same deployment. Their namespace gets another label, which is part of every pod's identity, so each agent needs " +
		"an identity for a new label set, at the same moment. The operator that leads is killed right after."
	s.Shared = fmt.Sprintf("%d agents share a TCP connection, each with its own limit of requests and its own watches of its pods, namespaces and identities. "+
		"One watch of CiliumEndpoints is shared by all, and each agent receives its own node's only: what an agent makes of other nodes' pods is not measured here. "+
		"All act with the right system:masters, which the server's fair queueing exempts.", agentsAConnection)
	s.Limits = []string{
		"operator: a new label set waits for a leader. If the leader dies before it has made the identity, that is the rest of its lease (15 s by default) " +
			"and the next try of the other operator; then a second in which the other nodes observe the identity; then one patch a pod, which the API server takes one after the other",
		"agents: an agent that has not observed the new identity yet asks for it: a creation, which is refused, and a read. No leader is waited for",
		"random: every agent makes an identity of its own, and every agent must observe all of them: events grow with the square of the number of agents",
	}
	plot := report.Plot{File: "relabel.svg", Title: "Pods with their new identity", X: "seconds since the namespace's new label", Y: "% of pods"}
	return inModes(ctx, s, plot, r.cfg.Modes, r.relabelIn)
}

// sourceFor returns how agents get identities in a mode.
func (r *runner) sourceFor(mode string) func(*k8s.Client) (identitySource, error) {
	const last = firstNumber + wholeRange - 1
	return func(client *k8s.Client) (identitySource, error) {
		switch mode {
		case modeRandom:
			return newRandomly(client, firstNumber, last), nil
		case modeOperator:
			return newFollower(client, firstNumber, last, r.log)
		}
		return newAllocated(client, firstNumber, last, r.log)
	}
}

// relabelIn measures one mode.
func (r *runner) relabelIn(ctx context.Context, mode string, v *report.Variant) (line report.Line, err error) {
	line.Name = mode
	n := r.cfg.Agents
	if mode == modeRandom {
		n = r.cfg.RandomAgents
	}
	r.say("  %s: %d agents", mode, n)
	c, err := r.newCluster(ctx)
	if err != nil {
		return line, err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	var leader *child.Process
	var name string
	if mode != modeRandom {
		if leader, name, err = c.startOperators(ctx, append(r.operatorFlags(mode), r.cfg.leaseFlags()...)...); err != nil {
			return line, err
		}
	}
	const ns, label = "shop", "team"
	if err := c.namespace(ctx, ns, map[string]string{label: "one"}); err != nil {
		return line, err
	}
	watch, ctx, stop, err := c.observe(ctx, label)
	if err != nil {
		return line, err
	}
	defer func() { err = errors.Join(err, stop()) }()
	fleet, err := r.startAgents(ctx, c, n, agentOptions{endpoints: watch.endpoints, ids: r.sourceFor(mode), shared: mode == modeOperator})
	if err != nil {
		return line, err
	}
	defer func() { err = errors.Join(err, fleet.stop()) }()

	r.say("    pods")
	if err := each(ctx, n, func(ctx context.Context, i int) error {
		if i%100 == 0 {
			r.progress(i, n, "pods")
		}
		// Not so fast that requests pile up: what is measured comes later.
		if err := child.Poll(ctx, r.cfg.Timeout, 20*time.Millisecond, func() error {
			if waiting := i - watch.count("one"); waiting > pilePods {
				return fmt.Errorf("%d pods wait for their identities", waiting)
			}
			return nil
		}); err != nil {
			return err
		}
		_, err := c.pod(ctx, ns, fmt.Sprintf("web-%05d", i), nodeOf(i), map[string]string{"app": "web"})
		return err
	}); err != nil {
		return line, err
	}
	if err := r.await(ctx, watch, "one", n); err != nil {
		return line, err
	}
	v.Figure("pods", float64(n), "", "")

	before, err := c.traffic(ctx)
	if err != nil {
		return line, err
	}
	stretch := c.startLoad()
	r.say("    new label")
	at := time.Now()
	patch := fmt.Appendf(nil, `{"metadata":{"labels":{%q:"two"}}}`, label)
	if _, err := c.client.Urgent.CoreV1().Namespaces().Patch(ctx, ns, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return line, err
	}
	if leader != nil {
		time.Sleep(r.cfg.KillAfter)
		leader.Kill()
	}
	err = r.await(ctx, watch, "two", n)
	times := watch.since("two", at)
	v.Processors = stretch.end(c)
	line.Points = report.Shares(times, n)
	v.Figure("median pod has its new identity after", report.Quantile(times, 0.5), "s", "")
	v.Figure("99 % have it after", report.Quantile(times, 0.99), "s", "")
	v.Figure("all have it after", report.Quantile(times, 1), "s", "")
	if leader != nil {
		if _, lerr := c.awaitLeader(ctx, name); lerr != nil {
			err = errors.Join(err, lerr)
		}
	}
	time.Sleep(quietTime)
	after, terr := c.traffic(ctx)
	if err := errors.Join(err, terr); err != nil {
		return line, err
	}
	did := after.Since(before)
	v.Calls = did.CustomResources()
	made, first := watch.made(at)
	v.Figure("identities made for the one new label set", float64(made), "", "goal: 1")
	v.Figure("the first of them after", first.Seconds(), "s", "")
	v.Figure("API calls for identities, an agent", (did.Sum("ciliumidentities"))/float64(n), "", "")
	v.Figure("API calls for endpoints, a pod", (did.Sum("ciliumendpoints"))/float64(n), "", "1 is a patch, no less is possible without slices")
	v.Figure("identity events sent", did.Events["ciliumidentities"]+did.Events["CiliumIdentity"], "", "")
	v.Figure("agents that had to try again", float64(fleet.attempts()), "", "")
	w, err := c.world(ctx)
	if err != nil {
		return line, err
	}
	v.Check("every label set has one identity", mode == modeRandom, w.oneNumberEach())
	v.Check("every pod's endpoint has the ID and the labels of its pod's labels", false, w.everyPodIsPublished(r.filter))
	return line, nil
}

// pilePods is how many pods may wait for their identity while a scenario is prepared.
const pilePods = 300

// quietTime is how long a cluster is left alone before it is looked at as a whole: what is wrong
// and slow must show.
const quietTime = 2 * time.Second

// operatorFlags are the operators' flags in a mode.
func (r *runner) operatorFlags(mode string) []string {
	if mode == modeOperator {
		return []string{"--" + identity.ManagementFlag, string(identity.ManagedByOperator)}
	}
	return nil
}

// startAgents starts stub agents of one kind that share connections.
func (r *runner) startAgents(ctx context.Context, c *cluster, n int, opts agentOptions) (*fleet, error) {
	var agents []*agent
	for i := range n {
		if i%agentsAConnection == 0 {
			opts.transport = c.transport()
		}
		a, err := c.newAgent(i, opts, r.log)
		if err != nil {
			return nil, err
		}
		agents = append(agents, a)
	}
	return r.start(ctx, agents)
}

// observer watches what comes of a label of a namespace.
type observer struct {
	endpoints *fanout.Watch
	label     string

	mu         sync.Mutex
	seen       map[string]map[k8s.Key]time.Time // by the label's value: when an endpoint first had it
	identities map[string]time.Time             // when an ID appeared
	moved      chan struct{}
}

// observe starts to watch. The context that it returns ends if that fails, stop ends it.
func (c *cluster) observe(ctx context.Context, label string) (_ *observer, _ context.Context, stop func() error, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	o := &observer{endpoints: fanout.New(c.client, c.r.log), label: labels.SourceK8s + ":" + labels.KeyNamespaceLabels + "." + label + "=",
		seen: map[string]map[k8s.Key]time.Time{}, identities: map[string]time.Time{}, moved: make(chan struct{}, 1)}
	var wg sync.WaitGroup
	var errs []error
	var mu sync.Mutex
	start := func(f func(context.Context) error) {
		wg.Go(func() {
			if err := f(ctx); err != nil && ctx.Err() == nil {
				mu.Lock()
				errs = append(errs, err)
				mu.Unlock()
				cancel(err)
			}
		})
	}
	stop = func() error {
		cancel(nil)
		wg.Wait()
		return errors.Join(errs...)
	}
	synced := make(chan struct{}, 2)
	done := func() { synced <- struct{}{} }
	start(o.endpoints.Run)
	start(func(ctx context.Context) error {
		return k8s.Follow(ctx, k8s.Kind(c.client.UrgentV2, v2.ResourceEndpoints, ""), k8s.Options[*v2.CiliumEndpoint]{}, k8s.Handler[*v2.CiliumEndpoint]{
			Upsert: o.endpoint, Delete: func(k8s.Key) {}, Synced: done,
		})
	})
	start(func(ctx context.Context) error {
		return k8s.Follow(ctx, k8s.Kind(c.client.UrgentV2, v2.ResourceIdentities, ""), k8s.Options[*v2.CiliumIdentity]{}, k8s.Handler[*v2.CiliumIdentity]{
			Upsert: o.identity, Delete: func(k8s.Key) {}, Synced: done,
		})
	})
	for range cap(synced) {
		select {
		case <-synced:
		case <-ctx.Done():
			return nil, nil, nil, errors.Join(fmt.Errorf("watch the cluster: %w", context.Cause(ctx)), stop())
		}
	}
	return o, ctx, stop, nil
}

// endpoint receives every endpoint's changes.
func (o *observer) endpoint(ep *v2.CiliumEndpoint) {
	if ep.Status.Identity == nil {
		return
	}
	i := slices.IndexFunc(ep.Status.Identity.Labels, func(l string) bool { return len(l) > len(o.label) && l[:len(o.label)] == o.label })
	if i < 0 {
		return
	}
	value := ep.Status.Identity.Labels[i][len(o.label):]
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.seen[value] == nil {
		o.seen[value] = map[k8s.Key]time.Time{}
	}
	if _, ok := o.seen[value][k8s.KeyOf(ep)]; !ok {
		o.seen[value][k8s.KeyOf(ep)] = time.Now()
	}
	retry.Notify(o.moved)
}

// identity receives every identity's changes.
func (o *observer) identity(id *v2.CiliumIdentity) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if _, ok := o.identities[id.Name]; !ok {
		o.identities[id.Name] = time.Now()
	}
}

// made returns how many identities have appeared since then, and when the first of them did.
func (o *observer) made(since time.Time) (n int, first time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, at := range o.identities {
		if at.Before(since) {
			continue
		}
		if n++; n == 1 || at.Sub(since) < first {
			first = at.Sub(since)
		}
	}
	return n, first
}

// count is how many endpoints have had a value.
func (o *observer) count(value string) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.seen[value])
}

// since returns when endpoints got a value, in seconds, ascending.
func (o *observer) since(value string, at time.Time) []float64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	var out []float64
	for _, t := range o.seen[value] {
		out = append(out, t.Sub(at).Seconds())
	}
	slices.Sort(out)
	return out
}

// await waits until n endpoints have had a value.
func (r *runner) await(ctx context.Context, o *observer, value string, n int) error {
	end := time.NewTimer(r.cfg.Timeout)
	defer end.Stop()
	for o.count(value) < n {
		select {
		case <-o.moved:
			r.progress(o.count(value), n, "endpoints have their identity")
		case <-end.C:
			return fmt.Errorf("after %v only %d of %d endpoints have the identity of their namespace's label", r.cfg.Timeout, o.count(value), n)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}
