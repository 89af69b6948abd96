package operator

import (
	"context"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/admin/migration"
	"github.com/hawser-net/hawser/internal/operator/rounds"
	"github.com/hawser-net/hawser/pkg/allocator"
	"github.com/hawser-net/hawser/pkg/kvstore"
)

// comparison counts the identities of both places.
type comparison struct {
	objects client.Reader
	keys    migration.Keys

	inObjects, inKeys, objectsOnly, keysOnly prometheus.Gauge
}

func newComparison() *comparison {
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: "cilium_operator_doublewrite_" + name + "_identities", Help: help})
	}
	return &comparison{
		inObjects: gauge("crd", "Identities that are Kubernetes objects."), inKeys: gauge("kvstore", "Identities in the key-value store."),
		objectsOnly: gauge("crd_only", "Identities that are objects, and not in the store under that ID."),
		keysOnly:    gauge("kvstore_only", "Identities in the store that are no object of that ID."),
	}
}

func (c *comparison) gauges() []prometheus.Gauge {
	return []prometheus.Gauge{c.inObjects, c.inKeys, c.objectsOnly, c.keysOnly}
}

// addComparison adds what compares the two places where identities are kept while a cluster moves
// from one to the other. An identity counts as being in both if it has the same ID and the same
// labels there.
func (o *Operator) addComparison(m manager.Manager, store kvstore.Backend) error {
	c := newComparison()
	c.objects, c.keys = m.GetClient(), migration.Keys{Store: store, First: allocator.ID(o.first), Last: allocator.ID(o.last)}
	for _, g := range c.gauges() {
		if err := o.metrics.registry.Register(g); err != nil {
			return fmt.Errorf("metrics of identities in both places: %w", err)
		}
	}
	log := o.log.With("part", "doublewrite")
	return m.Add(manager.RunnableFunc(func(ctx context.Context) error {
		return rounds.Every(ctx, o.cfg.CompareInterval, nil, func(ctx context.Context) error {
			err := c.compare(ctx)
			if err != nil && ctx.Err() == nil {
				log.Warn("cannot compare the identities of both places, trying again", "error", err)
			}
			return err
		})
	}))
}

func (c *comparison) compare(ctx context.Context) error {
	var all v2.CiliumIdentityList
	if err := c.objects.List(ctx, &all); err != nil {
		return fmt.Errorf("list of CiliumIdentities: %w", err)
	}
	objects := migration.OfObjects(all.Items, c.keys.First, c.keys.Last).Identities
	keys, err := c.keys.Read(ctx)
	if err != nil {
		return err
	}
	d := migration.Compare(objects, keys.Identities)
	c.inObjects.Set(float64(len(objects)))
	c.inKeys.Set(float64(len(keys.Identities)))
	c.objectsOnly.Set(float64(len(objects) - d.Same))
	c.keysOnly.Set(float64(len(keys.Identities) - d.Same))
	return nil
}
