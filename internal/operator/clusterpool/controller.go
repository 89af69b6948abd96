package clusterpool

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/operator/assign"
)

// Setup reads what nodes hold, from the server itself, and adds the controller that gives blocks to
// nodes to m. It returns when everything was read.
func Setup(ctx context.Context, m manager.Manager, cfg Config, reg prometheus.Registerer, log *slog.Logger) error {
	b, err := cfg.index()
	if err != nil {
		return err
	}
	measure, waits, err := b.register(reg)
	if err != nil {
		return err
	}
	c := assign.New(m, assign.Config{Name: "cluster-pool", Index: indexAdapter{b}, Measure: measure, Waits: waits, Log: log})
	var nodes []node
	if err := c.EachNode(ctx, func() { nodes = nil }, func(n *v2.CiliumNode) { nodes = append(nodes, viewOf(n)) }); err != nil {
		return err
	}
	b.restore(nodes)
	log.Info("read the assignments of nodes", "nodes", len(nodes), "ipv4", b.pools[0].Len(), "ipv6", b.pools[1].Len())
	return c.Add(m)
}

// register registers what is measured of the index.
func (b *index) register(reg prometheus.Registerer) (measure func(), waits prometheus.Gauge, err error) {
	held := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "cilium_operator_cluster_pool_prefixes_held", Help: "Prefixes that nodes hold, those of nodes that have been gone for less than two minutes included.",
	}, []string{"family"})
	size := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "cilium_operator_cluster_pool_blocks", Help: "Blocks that the ranges have, held or not.",
	}, []string{"family"})
	waits = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "cilium_operator_cluster_pool_nodes_waiting", Help: "Nodes that have no block because a range is exhausted, or one that an older node has too.",
	})
	families := [2]string{"ipv4", "ipv6"}
	for f, p := range b.pools {
		size.WithLabelValues(families[f]).Set(p.Capacity())
	}
	for _, m := range []prometheus.Collector{held, size, waits} {
		if err := reg.Register(m); err != nil {
			return nil, nil, fmt.Errorf("metrics of the cluster pool: %w", err)
		}
	}
	return func() {
		for f, p := range b.pools {
			held.WithLabelValues(families[f]).Set(float64(p.Len()))
		}
	}, waits, nil
}

func viewOf(n *v2.CiliumNode) node {
	return node{name: n.Name, uid: string(n.UID), created: n.CreationTimestamp.Time, cidrs: n.Spec.IPAM.PodCIDRs}
}

// indexAdapter is the index as the controller asks it.
type indexAdapter struct{ *index }

// Agrees implements [assign.Index].
func (k indexAdapter) Agrees(n *v2.CiliumNode) bool { return k.agrees(viewOf(n)) }

// Reconcile implements [assign.Index].
func (k indexAdapter) Reconcile(n *v2.CiliumNode) assign.Answer {
	a := k.reconcile(viewOf(n), time.Now())
	out := assign.Answer{Faults: a.faults, Displaced: a.displaced, Released: a.released}
	if len(a.cidrs) != len(n.Spec.IPAM.PodCIDRs) {
		out.IPAM = map[string]any{"podCIDRs": a.cidrs}
	}
	return out
}

// Wrote implements [assign.Index].
func (k indexAdapter) Wrote(name string, served bool) { k.wrote(name, served) }

// Forget implements [assign.Index].
func (k indexAdapter) Forget(name string) bool { return k.forget(name, time.Now()) }
