package scale

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

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
	// fillers is how many agents fill the range together.
	fillers = 8
	// single is how many allocations are timed one after the other.
	single = 50
	// late is how many pods come when no ID is left.
	late = 20
	// fillNamespace is where the pods are.
	fillNamespace = "apps"
)

// collectorFlags have the operator look often: at its defaults this scenario would take an hour.
func (c *Config) collectorFlags() []string {
	return append([]string{
		"--identity-gc-interval", c.CollectEvery.String(), "--identity-heartbeat-timeout", c.CollectEvery.String(),
		"--operator-k8s-client-qps", "5000", "--operator-k8s-client-burst", "5000",
	}, c.leaseFlags()...)
}

// fill is scenario (c): the whole range of IDs.
func (r *runner) fill(ctx context.Context, s *report.Scenario) (err error) {
	s.Text = fmt.Sprintf("%d agents make identities until all %d IDs are taken. Then %d pods come with labels that have none, and an operator starts that collects "+
		"the unused ones; %d identities have a pod and an endpoint.", fillers, r.cfg.Numbers, late, r.cfg.InUse)
	s.Shared = "Nothing is shared: each agent has its own connection and its own watch of all identities. They make identities without pods, as fast as they are answered. " +
		fmt.Sprintf("The operator looks every %v, and takes for dead what was unused for as long: its defaults are every minute, and 30 min.", r.cfg.CollectEvery)
	s.Limits = []string{
		"filling: how fast the API server and etcd write; an agent's own share of it is a look at its index",
		"collecting: the operator writes each identity twice (it is marked, then it ends), 300 a second at most, and 8 at once that its own watch has not delivered",
	}
	c, err := r.newCluster(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	s.Variants = []report.Variant{{Name: "value"}}
	v := &s.Variants[0]
	f := &filling{r: r, c: c, v: v, last: firstNumber + identity.ID(r.cfg.Numbers) - 1}
	stop, err := f.start(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	line, err := f.fillUp(ctx)
	if err != nil {
		return err
	}
	s.Plots = append(s.Plots, report.Plot{File: "identities.svg", Title: "Identities", X: "seconds", Y: "identities", Lines: []report.Line{line}})
	if err := f.beFull(ctx); err != nil {
		return err
	}
	line, err = f.recover(ctx)
	s.Plots[0].Lines = append(s.Plots[0].Lines, line)
	return err
}

// filling is one run of the scenario.
type filling struct {
	r        *runner
	c        *cluster
	v        *report.Variant
	last     identity.ID
	agents   []*allocated
	presence *presence
}

// start runs the agents, and a watch of the harness's own.
func (f *filling) start(ctx context.Context) (stop func() error, err error) {
	f.presence = f.c.newPresence()
	ctx, cancel := context.WithCancelCause(ctx)
	var wg sync.WaitGroup
	var mu sync.Mutex
	var errs []error
	run := func(work func(context.Context) error) {
		wg.Go(func() {
			if err := work(ctx); err != nil && ctx.Err() == nil {
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, err)
				cancel(err)
			}
		})
	}
	stop = func() error {
		cancel(nil)
		wg.Wait()
		return errors.Join(errs...)
	}
	for range fillers {
		client, err := k8s.New(f.c.rest)
		if err != nil {
			return nil, errors.Join(err, stop())
		}
		a, err := newAllocated(client, firstNumber, f.last, f.r.log)
		if err != nil {
			return nil, errors.Join(err, stop())
		}
		f.agents = append(f.agents, a)
		run(func(ctx context.Context) error { return a.Run(ctx, func(labels.Set) {}) })
	}
	run(f.presence.run)
	for _, a := range f.agents {
		if err := a.Ready(ctx); err != nil {
			return nil, errors.Join(err, stop())
		}
	}
	return stop, nil
}

// appSet returns the identity labels of the n-th application's pods.
func (r *runner) appSet(n int) (labels.Set, error) {
	all, err := labels.PodLabels(labels.Pod{
		Namespace: fillNamespace, ServiceAccount: "default", Cluster: clusterName, Labels: podLabels(n),
		NamespaceLabels: map[string]string{"kubernetes.io/metadata.name": fillNamespace},
	})
	set, _ := r.filter.Split(all)
	return set, err
}

func podLabels(n int) map[string]string {
	return map[string]string{"app": fmt.Sprintf("app-%05d", n), "tier": fmt.Sprintf("tier-%d", n%7)}
}

// allocate has an agent take a set into use and leave it again: what stays is the object.
func (f *filling) allocate(ctx context.Context, n int) (identity.ID, error) {
	set, err := f.r.appSet(n)
	if err != nil {
		return 0, err
	}
	a := f.agents[n%len(f.agents)]
	id, err := a.Acquire(ctx, set)
	if err == nil {
		a.Release(ctx, set)
	}
	return id, err
}

// timed allocates some sets one after the other and returns how long each took, in milliseconds.
func (f *filling) timed(ctx context.Context, from, n int) ([]float64, error) {
	var out []float64
	for i := range n {
		began := time.Now()
		if _, err := f.allocate(ctx, from+i); err != nil {
			return nil, err
		}
		out = append(out, time.Since(began).Seconds()*1000)
	}
	return out, nil
}

// fillUp takes all IDs. The line that it returns says how many were taken when.
func (f *filling) fillUp(ctx context.Context) (report.Line, error) {
	line := report.Line{Name: "filling", Points: []report.Point{{}}}
	n := f.r.cfg.Numbers
	ends := min(single, n/10)
	first, err := f.timed(ctx, 0, ends)
	if err != nil {
		return line, err
	}
	before, err := f.c.traffic(ctx)
	if err != nil {
		return line, err
	}
	stretch := f.c.startLoad()
	began := time.Now()
	var mu sync.Mutex
	done := 0
	if err := each(ctx, n-2*ends, func(ctx context.Context, i int) error {
		_, err := f.allocate(ctx, ends+i)
		mu.Lock()
		defer mu.Unlock()
		if done++; done%max(1, n/100) == 0 {
			line.Points = append(line.Points, report.Point{X: time.Since(began).Seconds(), Y: float64(ends + done)})
			f.r.progress(ends+done, n, "IDs taken")
		}
		return err
	}); err != nil {
		return line, err
	}
	took := time.Since(began)
	line.Points = append(line.Points, report.Point{X: took.Seconds(), Y: float64(n - ends)})
	f.v.Processors = stretch.end(f.c)
	after, err := f.c.traffic(ctx)
	if err != nil {
		return line, err
	}
	did := after.Since(before)
	last, err := f.timed(ctx, n-ends, ends)
	if err != nil {
		return line, err
	}
	f.v.Figure("numbers", float64(n), "", "")
	f.v.Figure("new identities, all agents together", float64(n-2*ends)/took.Seconds(), "a second", "")
	f.v.Figure("API calls a new identity", did.Sum(v2.ResourceIdentities)/float64(n-2*ends), "", "more than 1 where the ID tried first belongs to other labels and the agent has not observed that yet")
	f.v.Figure("one new identity when nearly none is taken, p50", report.Quantile(first, 0.5), "ms", "")
	f.v.Figure("one new identity when nearly all are taken, p50", report.Quantile(last, 0.5), "ms", "")
	f.v.Figure("one new identity when nearly all are taken, slowest", report.Quantile(last, 1), "ms", "")
	return line, nil
}

// beFull checks what an agent says when no ID is left, and that labels that have one are served
// all the same.
func (f *filling) beFull(ctx context.Context) error {
	n := f.r.cfg.Numbers
	f.r.say("  full")
	if err := persist(ctx, 50*time.Millisecond, func() error {
		if got := f.presence.count(); got != n {
			return fmt.Errorf("%d of %d identities", got, n)
		}
		return nil
	}); err != nil {
		return err
	}
	before, err := f.c.traffic(ctx)
	if err != nil {
		return err
	}
	began := time.Now()
	_, err = f.allocate(ctx, n)
	f.v.Figure("refusal of a new identity when all are taken", time.Since(began).Seconds()*1000, "ms", "")
	var wrong []string
	if !errors.Is(err, allocator.ErrExhausted) {
		wrong = append(wrong, fmt.Sprintf("the agent says %v", err))
	} else {
		f.v.Texts = append(f.v.Texts, fmt.Sprintf("what the agent says when all are taken: \"%v\"", err))
	}
	f.v.Check("an agent that finds no free ID says so", false, wrong)
	known, err := f.timed(ctx, 0, min(single, n/10))
	if err != nil {
		return fmt.Errorf("labels that have an ID, when no other is left: %w", err)
	}
	f.v.Figure("a known identity when all are taken, p50", report.Quantile(known, 0.5), "ms", "")
	after, err := f.c.traffic(ctx)
	if err != nil {
		return err
	}
	wrong = nil
	if calls := after.Since(before).Sum(v2.ResourceIdentities); calls > 0 {
		wrong = append(wrong, fmt.Sprintf("%g calls", calls))
	}
	f.v.Check("neither needs the API server", false, wrong)
	return nil
}

// use makes a pod with its endpoint for each identity that is in use, and returns these identities'
// UIDs.
func (f *filling) use(ctx context.Context) (map[string]types.UID, error) {
	if err := f.c.namespace(ctx, fillNamespace, nil); err != nil {
		return nil, err
	}
	inUse := map[string]types.UID{}
	var mu sync.Mutex
	err := each(ctx, f.r.cfg.InUse, func(ctx context.Context, i int) error {
		set, err := f.r.appSet(i)
		if err != nil {
			return err
		}
		id, err := f.allocate(ctx, i)
		if err != nil {
			return err
		}
		pod, err := f.c.pod(ctx, fillNamespace, fmt.Sprintf("app-%05d", i), nodeOf(i), podLabels(i))
		if err != nil {
			return err
		}
		o := &v2.CiliumIdentity{}
		if err := f.c.client.UrgentV2.Get().Resource(v2.ResourceIdentities).Name(id.String()).Do(ctx).Into(o); err != nil {
			return err
		}
		mu.Lock()
		inUse[o.Name] = o.UID
		mu.Unlock()
		return f.c.endpoint(ctx, pod.Namespace, pod.Name, pod.UID, hostOf(i), podOf(i, 1), id, set)
	})
	return inUse, err
}

// endpoint writes a pod's endpoint as its node's agent does.
func (c *cluster) endpoint(ctx context.Context, namespace, name string, uid types.UID, host, ip netip.Addr, id identity.ID, set labels.Set) error {
	block := false
	return c.client.UrgentV2.Post().Namespace(namespace).Resource(v2.ResourceEndpoints).Body(&v2.CiliumEndpoint{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: name,
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: name, UID: uid, BlockOwnerDeletion: &block}},
		},
		Status: v2.EndpointStatus{
			ID: 1, ExternalIdentifiers: &v2.EndpointIdentifiers{CNIAttachmentID: string(uid) + ":eth0"}, State: v2.EndpointReady, ServiceAccount: "default",
			Networking: &v2.EndpointNetworking{NodeIP: host.String(), Addressing: []*v2.AddressPair{{IPv4: ip.String()}}},
			Identity:   &v2.EndpointIdentity{ID: int64(id), Labels: slices.Sorted(slices.Values(set.Strings()))},
		},
	}).Do(ctx).Error()
}

// recover has pods wait for IDs, and an operator collect unused ones.
func (f *filling) recover(ctx context.Context) (report.Line, error) {
	line := report.Line{Name: "collecting"}
	inUse, err := f.use(ctx)
	if err != nil {
		return line, err
	}
	before, err := f.c.traffic(ctx)
	if err != nil {
		return line, err
	}
	f.r.say("  collecting")
	began := time.Now()
	operator, err := f.c.startOperator(f.r.cfg.collectorFlags()...)
	if err != nil {
		return line, err
	}
	late := min(late, f.r.cfg.Numbers/10)
	timeout := max(f.r.cfg.Timeout, 10*time.Minute) // one identity after the other
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	served := make(chan float64, late)
	var wg sync.WaitGroup
	defer wg.Wait()
	for i := range late {
		wg.Go(func() {
			set, err := f.r.appSet(f.r.cfg.Numbers + i)
			if err == nil {
				// These stay in use: they are not released.
				err = persist(ctx, relabelRetry, func() error { _, err := f.agents[i%fillers].Acquire(ctx, set); return err })
			}
			if err == nil {
				served <- time.Since(began).Seconds()
			}
		})
	}
	// An identity that waits for its pod's endpoint may be collected, and comes back: what is
	// waited for is that all others are gone.
	err = child.Poll(ctx, timeout, 200*time.Millisecond, func() error {
		n := f.presence.count()
		line.Points = append(line.Points, report.Point{X: time.Since(began).Seconds(), Y: float64(n)})
		f.r.progress(f.r.cfg.Numbers-n, f.r.cfg.Numbers-len(inUse), "collected")
		if operator.Ended() {
			cancel()
			return fmt.Errorf("the operator ended: %s", operator.Tail())
		}
		if n > len(inUse)+late {
			return fmt.Errorf("%d identities are left of which %d are in use", n, len(inUse)+late)
		}
		return nil
	})
	took := time.Since(began).Seconds()
	if err != nil {
		return line, err
	}
	wg.Wait()
	close(served)
	moments := slices.Sorted(channel(served))
	f.v.Figure("pods without an identity that have one in the end", float64(len(moments)), "", fmt.Sprintf("of %d", late))
	f.v.Figure("first of them served, after the operator's start", report.Quantile(moments, 0), "s", "")
	f.v.Figure("last of them served", report.Quantile(moments, 1), "s", "")
	f.v.Figure("all unused identities are gone after", took, "s", "")
	after, err := f.c.traffic(ctx)
	if err != nil {
		return line, err
	}
	did := after.Since(before)
	f.v.Calls = did.CustomResources()
	f.v.Figure("writes a collected identity", did.Writes(v2.ResourceIdentities)/float64(f.r.cfg.Numbers-len(inUse)), "", "")
	if u, err := operator.Usage(); err == nil {
		f.v.Figure("operator, memory at most", float64(u.Peak)/(1<<20), "MiB", "")
		f.v.Figure("operator, processor time", u.CPU.Seconds(), "s", "")
	}
	return line, f.checkSurvivors(ctx, inUse)
}

// channel yields what is in a closed channel.
func channel(c <-chan float64) func(func(float64) bool) {
	return func(yield func(float64) bool) {
		for v := range c {
			if !yield(v) {
				return
			}
		}
	}
}

// checkSurvivors checks that nothing in use was taken.
func (f *filling) checkSurvivors(ctx context.Context, inUse map[string]types.UID) error {
	w, err := f.c.world(ctx)
	if err != nil {
		return err
	}
	now := map[string]types.UID{}
	for _, o := range w.identities {
		if _, _, quarantined := identities.Quarantined(&o); !quarantined {
			now[o.Name] = o.UID
		}
	}
	var wrong []string
	for _, name := range slices.Sorted(maps.Keys(inUse)) {
		if now[name] != inUse[name] {
			wrong = append(wrong, "identity "+name+" was collected although an endpoint names it")
		}
	}
	f.v.Check("no identity in use was collected, not even to come back", false, wrong)
	f.v.Check("every label set has one identity", false, w.oneNumberEach())
	f.v.Check("every pod's endpoint has the ID and the labels of its pod's labels", false, w.everyPodIsPublished(f.r.filter))
	wrong = nil
	for name := range now {
		if n, err := strconv.ParseUint(name, 10, 32); err != nil || identity.ID(n) < firstNumber || identity.ID(n) > f.last {
			wrong = append(wrong, name)
		}
	}
	f.v.Check("every ID is of the cluster's range", false, wrong)
	return nil
}
