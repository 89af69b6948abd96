package multipool

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/api/v2alpha1"
	"github.com/hawser-net/hawser/internal/k8s/ippools"
	"github.com/hawser-net/hawser/internal/operator/assign"
	"github.com/hawser-net/hawser/internal/operator/kube"
)

// Setup creates the pools of the configuration that do not exist, reads pools and what nodes hold,
// from the server itself, and adds the controllers that follow the pools and give blocks to nodes
// to m. It returns when everything was read.
func Setup(ctx context.Context, m manager.Manager, cfg Config, reg prometheus.Registerer, log *slog.Logger) error {
	b := newIndex(cfg.Default, cfg.Migrate)
	b.quarantineTime = cfg.quarantineTime
	measure, waits, err := b.register(reg)
	if err != nil {
		return err
	}
	f := &follower{
		client: m.GetClient(), live: m.GetAPIReader(), index: b, log: log,
		nodes: assign.New(m, assign.Config{Name: "multi-pool", Index: indexAdapter{b}, Measure: measure, Waits: waits, Log: log}),
	}
	if err := f.create(ctx, cfg); err != nil {
		return err
	}
	if err := f.restore(ctx); err != nil {
		return err
	}
	if err := f.nodes.Add(m); err != nil {
		return err
	}
	err = builder.ControllerManagedBy(m).Named("multi-pool-pools").For(&v2alpha1.CiliumPodIPPool{}).Complete(reconcile.Func(f.reconcile))
	if err != nil {
		return fmt.Errorf("controller multi-pool-pools: %w", err)
	}
	return nil
}

// register registers what is measured of the index.
func (b *index) register(reg prometheus.Registerer) (measure func(), waits prometheus.Gauge, err error) {
	held := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "cilium_operator_multi_pool_prefixes_held", Help: "Prefixes of all pools that nodes hold.",
	}, []string{"family"})
	waits = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "cilium_operator_multi_pool_nodes_waiting", Help: "Nodes that have fewer addresses of a pool than they ask for, or a prefix that is not theirs.",
	})
	for _, m := range []prometheus.Collector{held, waits} {
		if err := reg.Register(m); err != nil {
			return nil, nil, fmt.Errorf("metrics of the pools: %w", err)
		}
	}
	return func() {
		for f, name := range [2]string{"ipv4", "ipv6"} {
			held.WithLabelValues(name).Set(float64(b.held[f].Len()))
		}
	}, waits, nil
}

// follower keeps the index in line with the pools.
type follower struct {
	client client.Client
	live   client.Reader
	log    *slog.Logger
	nodes  *assign.Controller
	index  *index // only within nodes.With
}

// create makes the pools of the configuration that do not exist. Those that do are left as they
// are.
func (f *follower) create(ctx context.Context, cfg Config) error {
	pools, err := cfg.pools()
	if err != nil {
		return err
	}
	for _, p := range pools {
		err := kube.Persist(ctx, f.log, "cannot create a pool of addresses, trying again", func() error {
			err := f.client.Create(ctx, p.DeepCopy())
			if apierrors.IsAlreadyExists(err) {
				return nil
			}
			if err == nil {
				f.log.Info("created a pool of addresses", "pool", p.Name)
			}
			return err
		})
		if err != nil {
			return fmt.Errorf("create CiliumPodIPPool %s: %w", p.Name, err)
		}
	}
	return nil
}

// restore reads the pools, and records what nodes hold now.
func (f *follower) restore(ctx context.Context) error {
	var pools v2alpha1.CiliumPodIPPoolList
	err := kube.Persist(ctx, f.log, "cannot read the CiliumPodIPPools, trying again", func() error { return f.live.List(ctx, &pools) })
	if err != nil {
		return fmt.Errorf("CiliumPodIPPools cannot be read, and without them no block of addresses can be given out: %w", err)
	}
	for i := range pools.Items {
		f.updatePool(&pools.Items[i])
	}
	var nodes []node
	if err := f.nodes.EachNode(ctx, func() { nodes = nil }, func(n *v2.CiliumNode) { nodes = append(nodes, viewOf(n)) }); err != nil {
		return err
	}
	f.nodes.With(func() {
		f.index.restore(nodes)
		f.log.Info("read the assignments of nodes", "pools", len(f.index.allocators), "nodes", len(nodes), "ipv4", f.index.held[0].Len(), "ipv6", f.index.held[1].Len())
	})
	return nil
}

// updatePool has blocks be given of a pool as it is now. It reports whether nodes may be the better
// or the worse for it.
func (f *follower) updatePool(o *v2alpha1.CiliumPodIPPool) (changed bool) {
	p, ignored, err := ippools.Read(o)
	f.nodes.With(func() {
		switch {
		case p.Fault != nil:
			changed = f.index.faultyPool(o.Name, p.Fault)
		case ignored:
			changed = f.index.removePool(o.Name)
		default:
			var fault error
			if changed, fault = f.index.setPool(p); fault != nil {
				changed, err = f.index.faultyPool(o.Name, fault), fault
			}
		}
	})
	if err != nil {
		f.log.Error("a pool of addresses is invalid; its last valid version stays in use", "error", err)
	}
	return changed
}

// reconcile looks at a pool that has changed.
func (f *follower) reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	o := &v2alpha1.CiliumPodIPPool{}
	err := f.client.Get(ctx, req.NamespacedName, o)
	if err != nil && !apierrors.IsNotFound(err) {
		return reconcile.Result{}, fmt.Errorf("CiliumPodIPPool %s: %w", req.Name, err)
	}
	var changed bool
	if err == nil {
		changed = f.updatePool(o)
	} else {
		f.nodes.With(func() { changed = f.index.removePool(req.Name) })
	}
	if !changed {
		return reconcile.Result{}, nil
	}
	f.log.Info("a pool of addresses has changed", "pool", req.Name)
	var names []string
	f.nodes.With(func() { names = slices.Collect(maps.Keys(f.index.nodes)) })
	f.nodes.Look(ctx, names)
	return reconcile.Result{}, nil
}

func viewOf(n *v2.CiliumNode) node {
	v := node{name: n.Name, uid: string(n.UID), created: n.CreationTimestamp.Time, version: n.ResourceVersion, podCIDRs: n.Spec.IPAM.PodCIDRs}
	v.disputed = n.Annotations[ippools.DisputedAnnotation]
	for _, r := range n.Spec.IPAM.Pools.Requested {
		v.requested = append(v.requested, request{pool: r.Pool, needed: [2]int{r.Needed.IPv4Addrs, r.Needed.IPv6Addrs}})
	}
	for _, a := range n.Spec.IPAM.Pools.Allocated {
		v.allocated = append(v.allocated, allocation{pool: a.Pool, cidrs: a.CIDRs, allowFirst: a.AllowFirstIP, allowLast: a.AllowLastIP})
	}
	return v
}

// indexAdapter is the index as the controller asks it.
type indexAdapter struct{ *index }

// Agrees implements [assign.Index].
func (k indexAdapter) Agrees(n *v2.CiliumNode) bool { return k.agrees(viewOf(n)) }

// Reconcile implements [assign.Index].
func (k indexAdapter) Reconcile(n *v2.CiliumNode) assign.Answer {
	a := k.reconcile(viewOf(n), time.Now())
	out := assign.Answer{Faults: a.faults, Released: a.released}
	if a.changed {
		allocated := make([]v2.IPAMPoolAllocation, 0, len(a.allocated))
		for _, x := range a.allocated {
			allocated = append(allocated, v2.IPAMPoolAllocation{Pool: x.pool, CIDRs: x.cidrs, AllowFirstIP: x.allowFirst, AllowLastIP: x.allowLast})
		}
		out.IPAM = map[string]any{"podCIDRs": a.podCIDRs, "pools": map[string]any{"allocated": allocated}}
		out.Annotations = map[string]any{ippools.DisputedAnnotation: nil}
		if a.disputed != "" {
			out.Annotations[ippools.DisputedAnnotation] = a.disputed
		}
	}
	return out
}

// Wrote implements [assign.Index].
func (k indexAdapter) Wrote(name string, served bool) { k.wrote(name, served) }

// Forget implements [assign.Index].
func (k indexAdapter) Forget(name string) bool { return k.forget(name, time.Now()) }
