package scale

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/bench/child"
	"github.com/hawser-net/hawser/internal/bench/scale/report"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/k8s"
	"github.com/hawser-net/hawser/internal/k8s/identities"
	"github.com/hawser-net/hawser/internal/labels"
	"github.com/hawser-net/hawser/pkg/allocator"
)

const (
	// collectReal is how many of the agents process what they receive as the real one does.
	collectReal = 20
	// collectShare: of so many identities one is in use.
	collectShare = 12
	// besideEvery is the time between two writes of the bystander, deliveryEvery that between two
	// new identities, deliveryBefore how many come while nothing ends.
	besideEvery    = 100 * time.Millisecond
	deliveryEvery  = 500 * time.Millisecond
	deliveryBefore = 10
	// collectLease is how long the operator may find no time for its lease: there is no other one.
	collectLease = 10 * time.Minute
	// newIDs are the last of the range, for new identities.
	newIDs = 200
)

// collect is the scenario of many identities that end at once.
func (r *runner) collect(ctx context.Context, s *report.Scenario) error {
	unused, used := r.cfg.CollectUnused, r.collectUsed()
	s.Text = fmt.Sprintf("%d agents follow %d identities, of which %d have a pod and an endpoint. An operator starts, which finds the others unused. How fast does it end them, "+
		"what is each agent sent, what does that cost, and what do others notice who write a pod, or make an identity, meanwhile?", r.cfg.CollectAgents, unused+used, used)
	s.Shared = fmt.Sprintf("Nothing is shared: every agent has its own connection and its own watch of all identities. %d of them process what they receive as the real agent does; "+
		"the others read what they are sent and count it, and begin where the identities are there already: their first list is not part of it. The operator looks every %v, and takes for "+
		"dead what is unused; it ends as many a second as it does at its defaults in a cluster of so many nodes. What it writes when IDs have left quarantine (%v later, one event more to "+
		"each agent) is not part of it. A new identity is timed from the answer to its creation, by all agents; 0 is before the answer. All act with the right system:masters, which the server's fair "+
		"queueing exempts.", min(collectReal, r.cfg.CollectAgents), r.cfg.CollectEvery, 15*time.Minute)
	s.Limits = []string{"what is written of an identity is sent to every agent: the operator writes no faster than so many agents can be notified, and the API server's processors count"}
	plot := report.Plot{File: "collect.svg", Title: "Unused identities", X: "seconds since the operator's start", Y: "identities"}
	return inModes(ctx, s, plot, []string{modeOperator, modeAgents}, r.collectIn)
}

// collectUsed is how many identities are in use.
func (r *runner) collectUsed() int { return max(1, r.cfg.CollectUnused/collectShare) }

// collecting is one run of the scenario.
type collecting struct {
	r         *runner
	c         *cluster
	v         *report.Variant
	listeners []*listener
	delivery  *delivery
	said      int // how many new identities there were
	presence  *presence
	dead      []string // the names of unused identities
	used      map[string]types.UID
	beside    string // the pod that a bystander writes
}

// collectIn measures one way to make identities.
func (r *runner) collectIn(ctx context.Context, mode string, v *report.Variant) (line report.Line, err error) {
	line.Name = mode
	r.say("  %s: %d agents", mode, r.cfg.CollectAgents)
	c, err := r.newCluster(ctx)
	if err != nil {
		return line, err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	g := &collecting{r: r, c: c, v: v, delivery: &delivery{}, presence: c.newPresence(), used: map[string]types.UID{}}
	if err := g.populate(ctx); err != nil {
		return line, err
	}
	ctx, stop, err := g.start(ctx, mode)
	if err != nil {
		return line, err
	}
	defer func() { err = errors.Join(err, stop()) }()
	if err := g.quiet(ctx); err != nil {
		return line, fmt.Errorf("before anything ends: %w", err)
	}
	if line.Points, err = g.mass(ctx, mode); err != nil {
		return line, err
	}
	return line, g.evaluate(ctx)
}

// populate makes the nodes, the identities, and what uses some of them.
func (g *collecting) populate(ctx context.Context) error {
	cfg := g.r.cfg
	if err := g.c.namespace(ctx, fillNamespace, nil); err != nil {
		return err
	}
	if err := each(ctx, cfg.CollectAgents, g.c.node); err != nil {
		return fmt.Errorf("nodes: %w", err)
	}
	used := g.r.collectUsed()
	var mu sync.Mutex
	return each(ctx, used+cfg.CollectUnused, func(ctx context.Context, i int) error {
		if i%1000 == 0 {
			g.r.progress(i, used+cfg.CollectUnused, "identities made")
		}
		set, err := g.r.appSet(i)
		if err != nil {
			return err
		}
		id := firstNumber + identity.ID(i)
		o, err := g.identity(ctx, id, identities.SecurityLabels(set))
		if err != nil {
			return err
		}
		mu.Lock()
		if i < used {
			g.used[o.Name] = o.UID
		} else {
			g.dead = append(g.dead, o.Name)
		}
		mu.Unlock()
		if i >= used {
			return nil
		}
		node := i % cfg.CollectAgents
		pod, err := g.c.pod(ctx, fillNamespace, fmt.Sprintf("app-%05d", i), nodeOf(node), podLabels(i))
		if err != nil {
			return err
		}
		if i == 0 {
			g.beside = pod.Name
		}
		return g.c.endpoint(ctx, pod.Namespace, pod.Name, pod.UID, hostOf(node), podOf(node, 1+i/cfg.CollectAgents), id, set)
	})
}

// identity creates an identity as the product does.
func (g *collecting) identity(ctx context.Context, id identity.ID, security map[string]string) (*v2.CiliumIdentity, error) {
	o := &v2.CiliumIdentity{}
	err := g.c.client.UrgentV2.Post().Resource(v2.ResourceIdentities).Body(identities.NewObject(allocator.ID(id), security)).Do(ctx).Into(o)
	return o, err
}

// start runs the agents, and waits until all follow the identities. The context that it returns
// ends if one of them fails, stop ends it.
func (g *collecting) start(ctx context.Context, mode string) (_ context.Context, stop func() error, err error) {
	version, err := g.c.version(ctx)
	if err != nil {
		return nil, nil, err
	}
	outer := ctx
	ctx, cancel := context.WithCancelCause(ctx)
	var wg sync.WaitGroup
	stop = func() error {
		err := context.Cause(ctx)
		cancel(nil)
		wg.Wait()
		if errors.Is(err, context.Canceled) || outer.Err() != nil {
			return nil
		}
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, stop())
		}
	}()
	run := func(work func(context.Context) error) {
		wg.Go(func() {
			if err := work(ctx); err != nil && ctx.Err() == nil {
				cancel(err)
			}
		})
	}
	run(g.presence.run)
	ready := make(chan struct{}, g.r.cfg.CollectAgents)
	for i := range g.r.cfg.CollectAgents {
		e := &listener{delivery: g.delivery}
		g.listeners = append(g.listeners, e)
		if i >= collectReal {
			var once sync.Once
			run(func(ctx context.Context) error {
				return e.listen(ctx, g.c, version, func() { once.Do(func() { ready <- struct{}{} }) })
			})
		} else if err := g.startReal(mode, e, run, ready); err != nil {
			return nil, nil, err
		}
		if i%agentsAtOnce != agentsAtOnce-1 && i != g.r.cfg.CollectAgents-1 {
			continue
		}
		for range i%agentsAtOnce + 1 {
			select {
			case <-ready:
			case <-ctx.Done():
				return nil, nil, fmt.Errorf("agents: %w", context.Cause(ctx))
			}
		}
		g.r.progress(i+1, g.r.cfg.CollectAgents, "agents run")
	}
	select {
	case <-g.presence.synced:
	case <-ctx.Done():
		return nil, nil, fmt.Errorf("watch the identities: %w", context.Cause(ctx))
	}
	return ctx, stop, nil
}

// startReal runs the part of a real agent that follows identities.
func (g *collecting) startReal(mode string, e *listener, run func(func(context.Context) error), ready chan<- struct{}) error {
	limits := k8s.Defaults()
	transport := g.c.transport()
	rc := &rest.Config{Host: g.c.rest.Host, BearerToken: g.c.rest.BearerToken, Transport: transport, QPS: limits.QPS, Burst: limits.Burst, UserAgent: limits.UserAgent}
	rc.Wrap(e.wrap)
	client, err := k8s.New(rc)
	if err != nil {
		return err
	}
	ids, err := g.r.sourceFor(mode)(client)
	if err != nil {
		return err
	}
	run(func(ctx context.Context) error {
		defer transport.CloseIdleConnections()
		return ids.Run(ctx, func(labels.Set) {})
	})
	run(func(ctx context.Context) error {
		err := ids.Ready(ctx)
		ready <- struct{}{}
		return err
	})
	return nil
}

// timeDelivery makes a new identity, waits until all agents have observed it, and removes it.
func (g *collecting) timeDelivery(ctx context.Context) (times []float64, err error) {
	g.said++
	known := g.delivery.expect(g.said, len(g.listeners))
	id := firstNumber + wholeRange - 1 - identity.ID(g.said%newIDs)
	o, err := g.identity(ctx, id, map[string]string{deliveryLabel: fmt.Sprint(g.said), labels.SourceK8s + ":" + labels.KeyNamespace: fillNamespace})
	if err != nil {
		return nil, fmt.Errorf("a new identity: %w", err)
	}
	at := time.Now()
	select {
	case <-known:
	case <-time.After(g.r.cfg.Timeout):
		err = fmt.Errorf("after %v %d of %d agents have observed a new identity", g.r.cfg.Timeout, len(g.delivery.times(at)), len(g.listeners))
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	del := g.c.client.UrgentV2.Delete().Resource(v2.ResourceIdentities).Name(o.Name).Do(ctx).Error()
	return g.delivery.times(at), errors.Join(err, del)
}

// write has the bystander write its pod, and returns how long that took, in milliseconds.
func (g *collecting) write(ctx context.Context, n int) (float64, error) {
	began := time.Now()
	_, err := g.c.client.Urgent.CoreV1().Pods(fillNamespace).Patch(ctx, g.beside, types.MergePatchType,
		fmt.Appendf(nil, `{"metadata":{"annotations":{"beside":"%d"}}}`, n), metav1.PatchOptions{})
	return time.Since(began).Seconds() * 1000, err
}

// noticed is what others notice who use the API server: how long a write of a pod takes, and when
// agents, and the last of them, have observed a new identity.
type noticed struct {
	writes, observed, last []float64
}

// notice measures that until done is closed.
func (g *collecting) notice(ctx context.Context, done <-chan struct{}) (noticed, error) {
	var out noticed
	var wg sync.WaitGroup
	var errs [2]error
	every := func(pause time.Duration, at *error, f func(n int) error) {
		wg.Go(func() {
			for n := 0; ; n++ {
				if *at = f(n); *at != nil {
					return
				}
				select {
				case <-done:
					return
				case <-ctx.Done():
					return
				case <-time.After(pause):
				}
			}
		})
	}
	every(besideEvery, &errs[0], func(n int) error {
		took, err := g.write(ctx, n)
		out.writes = append(out.writes, took)
		return err
	})
	every(deliveryEvery, &errs[1], func(int) error {
		times, err := g.timeDelivery(ctx)
		if err == nil {
			out.observed, out.last = append(out.observed, times...), append(out.last, slices.Max(times))
		}
		return err
	})
	wg.Wait()
	for _, list := range [][]float64{out.writes, out.observed, out.last} {
		slices.Sort(list)
	}
	return out, errors.Join(errs[:]...)
}

// figures notes it. when says when it was.
func (n noticed) figures(v *report.Variant, when string) {
	v.Figure("a pod is written "+when+", p50", report.Quantile(n.writes, 0.5), "ms", "")
	v.Figure("a pod is written "+when+", p99", report.Quantile(n.writes, 0.99), "ms", "")
	v.Figure("an agent observes a new identity "+when+", p50", report.Quantile(n.observed, 0.5), "ms", "")
	v.Figure("an agent observes a new identity "+when+", p99", report.Quantile(n.observed, 0.99), "ms", "")
	v.Figure("the last agent observes it "+when+", slowest", report.Quantile(n.last, 1), "ms", fmt.Sprintf("of %d", len(n.last)))
}

// quiet measures what others notice while nothing ends.
func (g *collecting) quiet(ctx context.Context) error {
	done := make(chan struct{})
	time.AfterFunc(deliveryBefore*deliveryEvery, func() { close(done) })
	n, err := g.notice(ctx, done)
	if err == nil {
		n.figures(g.v, "before")
	}
	return err
}

// mass starts an operator, and measures until all unused identities have ended. The points that it
// returns say how many were left when.
func (g *collecting) mass(ctx context.Context, mode string) ([]report.Point, error) {
	alone := Config{Lease: collectLease}
	flags := slices.Concat([]string{"--identity-gc-interval", g.r.cfg.CollectEvery.String(), "--identity-heartbeat-timeout", "0s", "--cilium-endpoint-gc-interval", "1h",
		"--set-cilium-is-up-condition=false", "--remove-cilium-node-taints=false"},
		g.r.operatorFlags(mode), alone.leaseFlags())
	before, err := g.c.traffic(ctx)
	if err != nil {
		return nil, err
	}
	start, busy, stretch, began := sum(g.listeners), g.c.processorTime(), g.c.startLoad(), time.Now()
	operator, err := g.c.startOperator(flags...)
	if err != nil {
		return nil, err
	}
	done := make(chan struct{})
	var beside noticed
	var besideErr error
	var wg sync.WaitGroup
	wg.Go(func() { beside, besideErr = g.notice(ctx, done) })
	points, first, err := g.ends(ctx, operator, began)
	took := time.Since(began)
	close(done)
	wg.Wait()
	if err := errors.Join(err, besideErr); err != nil {
		return points, err
	}
	g.v.Processors = stretch.end(g.c)
	after, err := g.c.traffic(ctx)
	if err != nil {
		return points, err
	}
	did, received, used := after.Since(before), sum(g.listeners).since(start), g.c.processorTime()
	n, agents := float64(len(g.dead)), float64(len(g.listeners))
	g.v.Calls = did.CustomResources()
	g.v.Figure("agents", agents, "", "")
	g.v.Figure("unused identities", n, "", "")
	g.v.Figure("the first has ended, after the operator's start", first.Seconds(), "s", "two looks at least, where agents make identities three, and a mark for each identity; with --collect-every=1m, as operators look, at most 120 is the aim")
	g.v.Figure("all have ended", took.Seconds(), "s", "")
	rate := n / max((took-first).Seconds(), 1e-3)
	g.v.Figure("ends a second", rate, "", "")
	g.v.Figure("60,000 end, from the first to the last", 60000/rate, "s", "measured, if there are so many, or else at this rate; less than 300 is the aim, with 5,000 in use")
	g.v.Figure("events an agent, an end", float64(received.events)/agents/n, "", "where agents make identities each is marked first; new identities and bookmarks are among them")
	g.v.Figure("bytes an agent, an end", float64(received.bytes)/agents/n, "", "")
	g.v.Figure("bytes to all agents a second", float64(received.bytes)/took.Seconds()/1e6, "MB/s", "")
	for _, name := range []string{"kube-apiserver", "etcd", "operators", harness} {
		g.v.Figure("processor time of "+name, (used[name] - busy[name]).Seconds(), "s", "")
	}
	api := (used["kube-apiserver"] - busy["kube-apiserver"]).Seconds()
	g.v.Figure("processor time of kube-apiserver an event and agent", api/max(float64(received.events), 1)*1e6, "µs", "all it did in that time, divided by all events that it sent to agents")
	g.v.Figure("processor time of the harness an event and agent", (used[harness]-busy[harness]).Seconds()/max(float64(received.events), 1)*1e6, "µs",
		"most agents only read; it has the other end of each connection, with its encryption")
	g.v.Figure("watches that ended", float64(received.watches), "", "an agent goes on where it was")
	g.v.Figure("watches that the server ended because they were slow", did.Ended[v2.ResourceIdentities], "", "those of the operator and the harness too")
	g.v.Figure("agents that had to read everything again", float64(received.lists), "", "")
	beside.figures(g.v, "meanwhile")
	return points, nil
}

// ends waits until all unused identities have ended. It returns how many were left when, and when
// the first one was gone. It gives up when none has ended for the configured time, and the operator
// has marked none meanwhile: where agents make identities, all of them are marked before one ends.
func (g *collecting) ends(ctx context.Context, operator *child.Process, began time.Time) (points []report.Point, first time.Duration, err error) {
	all, best, moved, marked := len(g.dead), len(g.dead), time.Now(), 0.0
	err = child.Poll(ctx, 24*time.Hour, 200*time.Millisecond, func() error {
		left := g.presence.has(g.dead)
		points = append(points, report.Point{X: time.Since(began).Seconds(), Y: float64(left)})
		g.r.progress(all-left, all, "have ended")
		if first == 0 && left < all {
			first = time.Since(began)
		}
		if left < best {
			best, moved = left, time.Now()
		}
		if left == 0 || operator.Ended() {
			return nil
		}
		if time.Since(moved) > g.r.cfg.Timeout {
			served, err := g.c.traffic(ctx)
			before := marked
			if marked = served.Calls["PATCH "+v2.ResourceIdentities]; err != nil || marked == before {
				return err
			}
			moved = time.Now()
		}
		return fmt.Errorf("%d of %d are left", left, all)
	})
	switch {
	case err != nil:
	case operator.Ended():
		err = fmt.Errorf("the operator ended: %s", operator.Tail())
	case best > 0:
		err = fmt.Errorf("%d of %d unused identities are left, and none has ended for %v: %s", best, all, g.r.cfg.Timeout, operator.Tail())
	}
	return points, first, err
}

// evaluate reads from the server itself what is left.
func (g *collecting) evaluate(ctx context.Context) error {
	w, err := g.c.world(ctx)
	if err != nil {
		return err
	}
	alive := map[string]types.UID{}
	for i := range w.identities {
		if _, _, quarantined := identities.Quarantined(&w.identities[i]); !quarantined {
			alive[w.identities[i].Name] = w.identities[i].UID
		}
	}
	var taken, left []string
	for name, uid := range g.used {
		if alive[name] != uid {
			taken = append(taken, "identity "+name)
		}
		delete(alive, name)
	}
	for name := range alive {
		left = append(left, "identity "+name)
	}
	slices.SortFunc(taken, strings.Compare)
	slices.SortFunc(left, strings.Compare)
	g.v.Check("no identity in use was collected, not even to come back", false, taken)
	g.v.Check("no unused identity is left", false, left)
	g.v.Check("every label set has one identity", false, w.oneNumberEach())
	g.v.Check("every pod's endpoint has the ID and the labels of its pod's labels", false, w.everyPodIsPublished(g.r.filter))
	return nil
}
