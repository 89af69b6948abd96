package multipool

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/api/v2alpha1"
	"github.com/hawser-net/hawser/internal/k8s/ippools"
)

const (
	// pageSize is how many objects one request reads at the start.
	pageSize = 500
	// workers is how many nodes are looked after at once: each that needs something waits for the
	// server twice.
	workers = 16
	// waitingRetry is how often a node that could not be served is looked at again, whether or not something was released.
	waitingRetry = 15 * time.Second
)

// Setup creates the pools of the configuration that do not exist, reads pools and what nodes hold, from the server itself, and adds the controllers that
// follow the pools and give blocks to nodes to m. It returns when everything was read.
func Setup(ctx context.Context, m manager.Manager, cfg Config, reg prometheus.Registerer, log *slog.Logger) error {
	c := &controllerOf{
		client: m.GetClient(), live: m.GetAPIReader(), book: newBook(cfg.Default, cfg.Migrate), log: log,
		waiting: map[string]bool{}, kick: make(chan event.GenericEvent, 1024),
	}
	if err := c.create(ctx, cfg); err != nil {
		return err
	}
	if err := c.restore(ctx); err != nil {
		return err
	}
	if err := c.register(reg); err != nil {
		return err
	}
	err := builder.ControllerManagedBy(m).Named("multi-pool").
		For(&v2.CiliumNode{}).
		WatchesRawSource(source.Channel(c.kick, &handler.EnqueueRequestForObject{})).
		WithOptions(controller.Options{
			MaxConcurrentReconciles: workers,
			RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](100*time.Millisecond, 30*time.Second),
		}).
		Complete(c)
	if err != nil {
		return fmt.Errorf("controller multi-pool: %w", err)
	}
	err = builder.ControllerManagedBy(m).Named("multi-pool-pools").For(&v2alpha1.CiliumPodIPPool{}).Complete(reconcile.Func(c.followPool))
	if err != nil {
		return fmt.Errorf("controller multi-pool-pools: %w", err)
	}
	return nil
}

// controllerOf keeps the nodes in line with the book. What was booked at the start and is still so
// needs no request, so that new nodes do not wait for it.
type controllerOf struct {
	client client.Client
	live   client.Reader
	log    *slog.Logger
	kick   chan event.GenericEvent
	held   [2]prometheus.Gauge
	waits  prometheus.Gauge

	mu      sync.Mutex // not held while the server is asked
	book    *book
	waiting map[string]bool // nodes that would be better off if something were released, or a pool had more
}

func (c *controllerOf) register(reg prometheus.Registerer) error {
	held := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "cilium_operator_multi_pool_prefixes_held", Help: "Prefixes of all pools that nodes hold.",
	}, []string{"family"})
	c.waits = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "cilium_operator_multi_pool_nodes_waiting", Help: "Nodes that have fewer addresses of a pool than they ask for, or a prefix that is not theirs.",
	})
	for f, name := range [2]string{"ipv4", "ipv6"} {
		c.held[f] = held.WithLabelValues(name)
	}
	for _, m := range []prometheus.Collector{held, c.waits} {
		if err := reg.Register(m); err != nil {
			return fmt.Errorf("metrics of the pools: %w", err)
		}
	}
	c.measure()
	return nil
}

func (c *controllerOf) measure() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for f, p := range c.book.held {
		c.held[f].Set(float64(p.Len()))
	}
	c.waits.Set(float64(len(c.waiting)))
}

// create makes the pools of the configuration that do not exist. Those that do are left as they are.
func (c *controllerOf) create(ctx context.Context, cfg Config) error {
	pools, err := cfg.pools()
	if err != nil {
		return err
	}
	for _, p := range pools {
		err := c.client.Create(ctx, p)
		switch {
		case apierrors.IsAlreadyExists(err):
		case err != nil:
			return fmt.Errorf("create CiliumPodIPPool %s: %w", p.Name, err)
		default:
			c.log.Info("created a pool of addresses", "pool", p.Name)
		}
	}
	return nil
}

// restore reads the pools, and books what nodes hold now.
func (c *controllerOf) restore(ctx context.Context) error {
	var pools v2alpha1.CiliumPodIPPoolList
	if err := c.live.List(ctx, &pools); err != nil {
		return fmt.Errorf("CiliumPodIPPools cannot be read, and without them no block of addresses can be given out: %w", err)
	}
	for i := range pools.Items {
		c.learn(&pools.Items[i])
	}
	var nodes []node
	opts := &client.ListOptions{Limit: pageSize}
	for {
		var page v2.CiliumNodeList
		if err := c.live.List(ctx, &page, opts); err != nil {
			return fmt.Errorf("CiliumNodes cannot be read, and without them no block of addresses can be given out: %w", err)
		}
		for i := range page.Items {
			nodes = append(nodes, viewOf(&page.Items[i]))
		}
		if opts.Continue = page.Continue; opts.Continue == "" {
			break
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.book.restore(nodes)
	c.log.Info("read what nodes hold", "pools", len(c.book.givers), "nodes", len(nodes), "ipv4", c.book.held[0].Len(), "ipv6", c.book.held[1].Len())
	return nil
}

// learn has blocks be given of a pool as it is now. It reports whether nodes may be the better or the worse for it.
func (c *controllerOf) learn(o *v2alpha1.CiliumPodIPPool) (changed bool) {
	p, ignored, err := ippools.Read(o)
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case err == nil && ignored:
		return c.book.removePool(o.Name)
	case err == nil:
		if changed, err = c.book.setPool(p); err == nil {
			return changed
		}
	}
	c.log.Error("a pool of addresses makes no sense; its last good version, if there was one, stays", "error", err)
	return false
}

// followPool looks at a pool that has changed.
func (c *controllerOf) followPool(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	o := &v2alpha1.CiliumPodIPPool{}
	err := c.client.Get(ctx, req.NamespacedName, o)
	if err != nil && !apierrors.IsNotFound(err) {
		return reconcile.Result{}, fmt.Errorf("CiliumPodIPPool %s: %w", req.Name, err)
	}
	var changed bool
	if err == nil {
		changed = c.learn(o)
	} else {
		c.mu.Lock()
		changed = c.book.removePool(req.Name)
		c.mu.Unlock()
	}
	if !changed {
		return reconcile.Result{}, nil
	}
	c.log.Info("a pool of addresses has changed", "pool", req.Name)
	c.mu.Lock()
	names := make([]string, 0, len(c.book.nodes))
	for name := range c.book.nodes {
		names = append(names, name)
	}
	c.mu.Unlock()
	for _, name := range names {
		select {
		case c.kick <- kicked(name):
		case <-ctx.Done():
			return reconcile.Result{}, nil
		}
	}
	return reconcile.Result{}, nil
}

func viewOf(n *v2.CiliumNode) node {
	v := node{name: n.Name, uid: string(n.UID), created: n.CreationTimestamp.Time, version: n.ResourceVersion, podCIDRs: n.Spec.IPAM.PodCIDRs}
	for _, r := range n.Spec.IPAM.Pools.Requested {
		v.requested = append(v.requested, request{pool: r.Pool, needed: [2]int{r.Needed.IPv4Addrs, r.Needed.IPv6Addrs}})
	}
	for _, a := range n.Spec.IPAM.Pools.Allocated {
		v.allocated = append(v.allocated, allocation{pool: a.Pool, cidrs: a.CIDRs, allowFirst: a.AllowFirstIP, allowLast: a.AllowLastIP})
	}
	return v
}

// Reconcile looks after one node.
func (c *controllerOf) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	defer c.measure()
	cached := &v2.CiliumNode{}
	err := c.client.Get(ctx, req.NamespacedName, cached)
	if err != nil && !apierrors.IsNotFound(err) {
		return reconcile.Result{}, fmt.Errorf("CiliumNode %s: %w", req.Name, err)
	}
	if err == nil && cached.Status.IPAM.OperatorStatus.Error == "" && c.agrees(cached) {
		return reconcile.Result{}, nil
	}
	// What the cache shows may be old; what is given or released depends on what is.
	live := &v2.CiliumNode{}
	err = c.live.Get(ctx, req.NamespacedName, live)
	if apierrors.IsNotFound(err) {
		c.forget(req.Name)
		return reconcile.Result{}, nil
	}
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("CiliumNode %s: %w", req.Name, err)
	}
	if !live.DeletionTimestamp.IsZero() {
		return reconcile.Result{}, nil // it comes again when it is gone
	}
	return c.settle(ctx, live)
}

// agrees says whether a node as the cache shows it needs nothing.
func (c *controllerOf) agrees(cached *v2.CiliumNode) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	ok := c.book.agrees(viewOf(cached))
	if ok {
		delete(c.waiting, cached.Name)
	}
	return ok
}

// forget books that a node is gone.
func (c *controllerOf) forget(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.waiting, name)
	if c.book.forget(name) {
		c.log.Info("a node is gone, its addresses are free", "node", name)
		c.wake()
	}
}

// decide asks the book about a node as the server has it now.
func (c *controllerOf) decide(now node) answer {
	c.mu.Lock()
	defer c.mu.Unlock()
	a := c.book.settle(now)
	if a.released {
		c.wake()
	}
	for _, name := range a.displaced {
		c.log.Warn("an older node has the same addresses", "node", name, "older", now.name)
		c.enqueue(name)
	}
	return a
}

// note books what has been written of a node. It reports whether the node waits for something.
func (c *controllerOf) note(name string, a answer) (waits bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.book.wrote(name, a)
	if len(a.faults) == 0 {
		delete(c.waiting, name)
		return false
	}
	c.waiting[name] = true
	return true
}

// settle brings a node, as the server has it now, in line with the book.
func (c *controllerOf) settle(ctx context.Context, live *v2.CiliumNode) (reconcile.Result, error) {
	a := c.decide(viewOf(live))
	if a.changed {
		if err := c.write(ctx, live, a); err != nil {
			if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
				return reconcile.Result{RequeueAfter: time.Millisecond}, nil
			}
			return reconcile.Result{}, err
		}
		c.log.Info("gave addresses to a node", "node", live.Name, "pools", live.Spec.IPAM.Pools.Allocated)
	}
	if err := c.tell(ctx, live, a.fault()); err != nil {
		return reconcile.Result{}, err
	}
	if c.note(live.Name, a) {
		return reconcile.Result{RequeueAfter: waitingRetry}, nil
	}
	return reconcile.Result{}, nil
}

// write sets the blocks of a node, if it is still as it was read, and leaves everything else alone. live is as written afterwards.
func (c *controllerOf) write(ctx context.Context, live *v2.CiliumNode, a answer) error {
	allocated := make([]v2.IPAMPoolAllocation, 0, len(a.allocated))
	for _, x := range a.allocated {
		allocated = append(allocated, v2.IPAMPoolAllocation{Pool: x.pool, CIDRs: x.cidrs, AllowFirstIP: x.allowFirst, AllowLastIP: x.allowLast})
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"resourceVersion": live.ResourceVersion, "uid": live.UID},
		"spec":     map[string]any{"ipam": map[string]any{"podCIDRs": a.podCIDRs, "pools": map[string]any{"allocated": allocated}}},
	})
	if err != nil {
		return fmt.Errorf("pools of CiliumNode %s: %w", live.Name, err)
	}
	if err := c.client.Patch(ctx, live, client.RawPatch(types.MergePatchType, patch)); err != nil {
		return fmt.Errorf("pools of CiliumNode %s: %w", live.Name, err)
	}
	return nil
}

// tell writes what is wrong into the node's status, or that nothing is.
func (c *controllerOf) tell(ctx context.Context, live *v2.CiliumNode, fault string) error {
	if live.Status.IPAM.OperatorStatus.Error == fault {
		return nil
	}
	var value any = fault
	if fault == "" {
		value = nil
	} else {
		c.log.Warn("a node cannot be given what it needs", "node", live.Name, "fault", fault)
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": live.UID},
		"status":   map[string]any{"ipam": map[string]any{"operator-status": map[string]any{"error": value}}},
	})
	if err != nil {
		return fmt.Errorf("status of CiliumNode %s: %w", live.Name, err)
	}
	err = c.client.Status().Patch(ctx, live, client.RawPatch(types.MergePatchType, patch))
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("status of CiliumNode %s: %w", live.Name, err)
	}
	return nil
}

// wake has nodes looked at that wait for something to be released. It must be called with mu held.
func (c *controllerOf) wake() {
	for name := range c.waiting {
		c.enqueue(name)
	}
}

// enqueue has a node looked at soon. If the channel is full it is looked at when its time comes.
func (c *controllerOf) enqueue(name string) {
	select {
	case c.kick <- kicked(name):
	default:
	}
}

func kicked(name string) event.GenericEvent {
	n := &v2.CiliumNode{}
	n.Name = name
	return event.GenericEvent{Object: n}
}
