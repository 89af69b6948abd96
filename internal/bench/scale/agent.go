package scale

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/rest"

	"github.com/hawser-net/hawser/internal/bench/scale/fanout"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/ipcache"
	"github.com/hawser-net/hawser/internal/k8s"
	"github.com/hawser-net/hawser/internal/k8s/endpoints"
	"github.com/hawser-net/hawser/internal/k8s/pods"
	"github.com/hawser-net/hawser/internal/labels"
	"github.com/hawser-net/hawser/pkg/retry"
)

// clusterName is what the agents call their cluster: the operator's default.
const clusterName = "default"

// These are the real agent's: how long it waits before it tries labels again, how many pods' labels
// it changes at once, and how long a pod whose labels have changed keeps its identity after its
// next one has become known, if others made that.
const (
	relabelRetry     = 2 * time.Second
	relabelWorkers   = 16
	propagationDelay = time.Second
)

// agent is a node's agent without a kernel.
type agent struct {
	number int
	name   string
	host   netip.Addr

	pods      *pods.Pods
	ids       identitySource
	endpoints *endpoints.Endpoints
	cache     *ipcache.Cache
	filter    *labels.Filter
	log       *slog.Logger

	attempts atomic.Int64 // labels that had to be tried again

	mu      sync.Mutex
	changed map[k8s.Key]bool
	wake    chan struct{}
	rows    map[k8s.Key]*row
}

// row is what an agent keeps of a pod.
type row struct {
	sync.Mutex
	number uint16
	ip     netip.Addr
	set    labels.Set // its identity's; empty as long as it has none
	next   labels.Set // those that wait for an identity
}

// agentOptions are how an agent differs from others.
type agentOptions struct {
	// transport is the connection that it shares.
	transport *http.Transport
	// endpoints, if not nil, answers its watch of endpoints.
	endpoints *fanout.Watch
	// wrap, if not nil, sees its requests.
	wrap func(http.RoundTripper) http.RoundTripper
	// ids makes its source of identities.
	ids func(*k8s.Client) (identitySource, error)
	// slices has it read slices.
	slices bool
	// silent has it write no CiliumEndpoints, shared leaves identities in them to the operator
	// where it has written one.
	silent, shared bool
	// cache, if not nil, stands before its address cache.
	cache func(endpoints.Cache) endpoints.Cache
}

// hostOf and podOf give every agent and its pods addresses of their own: 65,536 agents of 254 pods.
func hostOf(agent int) netip.Addr {
	return netip.AddrFrom4([4]byte{100, 64, byte(agent >> 8), byte(agent)})
}
func podOf(agent, pod int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, byte(agent >> 8), byte(agent), byte(pod)})
}

// nodeOf is an agent's node.
func nodeOf(agent int) string { return fmt.Sprintf("node-%05d", agent) }

// newAgent makes an agent. It does nothing until Run.
func (c *cluster) newAgent(number int, opts agentOptions, log *slog.Logger) (*agent, error) {
	a := &agent{
		number: number, name: nodeOf(number), host: hostOf(number), cache: ipcache.New(), filter: c.r.filter, log: log.With("node", nodeOf(number)),
		changed: map[k8s.Key]bool{}, wake: make(chan struct{}, 1), rows: map[k8s.Key]*row{},
	}
	limits := k8s.Defaults()
	rc := &rest.Config{
		Host: c.rest.Host, BearerToken: c.rest.BearerToken, Transport: opts.transport, QPS: limits.QPS, Burst: limits.Burst, UserAgent: limits.UserAgent,
	}
	if opts.endpoints != nil {
		rc.Wrap(func(next http.RoundTripper) http.RoundTripper { return opts.endpoints.Filter(a.host.String(), next) })
	}
	if opts.wrap != nil {
		rc.Wrap(opts.wrap)
	}
	client, err := k8s.New(rc)
	if err != nil {
		return nil, err
	}
	if a.ids, err = opts.ids(client); err != nil {
		return nil, err
	}
	if a.pods, err = pods.New(pods.Config{Client: client, NodeName: a.name, Cluster: clusterName, Changed: a.relabel, Log: a.log}); err != nil {
		return nil, err
	}
	var cache endpoints.Cache = a.cache
	if opts.cache != nil {
		cache = opts.cache(cache)
	}
	a.endpoints, err = endpoints.New(endpoints.Config{
		Hosts: []netip.Addr{a.host}, Slices: opts.slices, Silent: opts.silent, Shared: opts.shared, Accept: func(identity.ID) error { return nil }, Log: a.log,
	}, client, cache)
	return a, err
}

// Run runs the agent until ctx ends, and returns nil then.
func (a *agent) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	defer wg.Wait()
	start := func(f func(context.Context) error) {
		wg.Go(func() {
			if err := f(ctx); err != nil && ctx.Err() == nil {
				cancel(fmt.Errorf("agent %s: %w", a.name, err))
			}
		})
	}
	start(a.pods.Run)
	start(func(ctx context.Context) error { return a.ids.Run(ctx, a.moved) })
	start(a.endpoints.Run)
	start(a.followLabels)
	<-ctx.Done()
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// ready waits until the agent has observed everything that existed at its start.
func (a *agent) ready(ctx context.Context) error {
	select {
	case <-a.pods.Synced():
	case <-ctx.Done():
		return fmt.Errorf("pods of %s: %w", a.name, ctx.Err())
	}
	return errors.Join(a.ids.Ready(ctx), a.endpoints.WaitSynced(ctx))
}

// relabel has a pod looked at.
func (a *agent) relabel(key k8s.Key) {
	a.mu.Lock()
	a.changed[key] = true
	a.mu.Unlock()
	retry.Notify(a.wake)
}

// moved has the pods of a set looked at whose number is another one.
func (a *agent) moved(set labels.Set) {
	a.mu.Lock()
	var keys []k8s.Key
	for key, r := range a.rows {
		r.Lock()
		switch {
		case r.next.Equal(set):
			keys = append(keys, key)
		case r.set.Equal(set):
			r.set = nil
			keys = append(keys, key)
		}
		r.Unlock()
	}
	a.mu.Unlock()
	for _, key := range keys {
		a.relabel(key)
	}
}

// followLabels gives pods the identities of their labels until ctx ends, as the real agent does.
func (a *agent) followLabels(ctx context.Context) error {
	var pool errgroup.Group
	pool.SetLimit(relabelWorkers)
	defer func() { _ = pool.Wait() }()
	for {
		select {
		case <-a.wake:
		case <-ctx.Done():
			return nil
		}
		a.mu.Lock()
		keys := a.changed
		a.changed = map[k8s.Key]bool{}
		a.mu.Unlock()
		for key := range keys {
			pool.Go(func() error {
				if err := a.reconcile(ctx, key); err != nil && ctx.Err() == nil {
					a.attempts.Add(1)
					a.log.Warn("a pod keeps its old identity for now", "pod", key, "error", err)
					if retry.Sleep(ctx, relabelRetry) {
						a.relabel(key)
					}
				}
				return nil
			})
		}
	}
}

// reconcile gives a pod the identity of its labels, and publishes it to the other nodes.
func (a *agent) reconcile(ctx context.Context, key k8s.Key) error {
	info, ok, err := a.pods.Known(key, "")
	if err != nil || !ok {
		return err
	}
	r := a.row(key)
	r.Lock()
	defer r.Unlock()
	set, _ := a.filter.Split(info.Labels)
	if set.Equal(r.set) {
		r.next = nil
		return nil
	}
	publish := func(id identity.ID) {
		a.endpoints.Set(endpoints.Local{
			Number: r.number, Attachment: fmt.Sprintf("%s:eth0", info.UID), Namespace: key.Namespace, Pod: key.Name, UID: info.UID, IPv4: r.ip,
			Identity: id, IdentityLabels: set, Labels: info.Labels, State: "ready",
		})
	}
	id, err := a.ids.Acquire(ctx, set)
	if errors.Is(err, errUnassigned) {
		// The pod has a temporary identity now, which is not published. The source says when there
		// is another.
		if r.set == nil {
			publish(0)
		}
		r.next = set
		return nil
	}
	if err != nil {
		return err
	}
	if r.set != nil && r.next.Equal(set) {
		if !retry.Sleep(ctx, propagationDelay) { // others must observe the identity first
			return ctx.Err()
		}
	}
	old := r.set
	r.set, r.next = set, nil
	publish(id)
	if old != nil {
		a.ids.Release(ctx, old)
	}
	return nil
}

// row returns the pod's row, which is made if there is none.
func (a *agent) row(key k8s.Key) *row {
	a.mu.Lock()
	defer a.mu.Unlock()
	r := a.rows[key]
	if r == nil {
		n := len(a.rows) + 1
		r = &row{number: uint16(n), ip: podOf(a.number, n)}
		a.rows[key] = r
	}
	return r
}

// fleet is many agents that run.
type fleet struct {
	agents []*agent
	cancel context.CancelFunc
	wg     sync.WaitGroup
	mu     sync.Mutex
	errs   []error
}

// agentsAtOnce bounds how many agents start at the same time: in a cluster they do not all start in
// one second.
const agentsAtOnce = 64

// start runs agents and waits until all have observed everything.
func (r *runner) start(ctx context.Context, agents []*agent) (*fleet, error) {
	runs, cancel := context.WithCancel(ctx)
	f := &fleet{agents: agents, cancel: cancel}
	for group := range slices.Chunk(agents, agentsAtOnce) {
		for _, a := range group {
			f.wg.Go(func() {
				if err := a.Run(runs); err != nil {
					f.mu.Lock()
					f.errs = append(f.errs, err)
					f.mu.Unlock()
				}
			})
		}
		for _, a := range group {
			if err := a.ready(ctx); err != nil {
				return f, errors.Join(fmt.Errorf("agents: %w", err), f.stop())
			}
		}
		r.progress(group[len(group)-1].number+1, len(agents), "agents run")
	}
	return f, nil
}

// stop ends the agents and returns what went wrong with them.
func (f *fleet) stop() error {
	f.cancel()
	f.wg.Wait()
	return errors.Join(f.errs...)
}

// attempts is how often agents had to try labels again.
func (f *fleet) attempts() (n int64) {
	for _, a := range f.agents {
		n += a.attempts.Load()
	}
	return n
}
