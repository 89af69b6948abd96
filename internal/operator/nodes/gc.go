package nodes

import (
	"context"
	"fmt"
	"log/slog"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/operator/rounds"
)

// keepAnnotation keeps a CiliumNode from being collected, as a machine outside of the cluster has
// one.
const keepAnnotation = "cilium.io/do-not-gc"

// SetupGC adds the collection of CiliumNodes without a Node to m.
func SetupGC(m manager.Manager, cfg Config, log *slog.Logger) error {
	if cfg.GCInterval == 0 {
		return nil
	}
	c := &collector{meter: cfg.Meter, client: m.GetClient(), live: m.GetAPIReader(), log: log, seen: map[types.UID]bool{}}
	return m.Add(manager.RunnableFunc(func(ctx context.Context) error {
		return rounds.Every(ctx, cfg.GCInterval, nil, c.meter.Measure("nodes", c.round))
	}))
}

// collector deletes CiliumNodes whose Node is gone.
type collector struct {
	meter  *rounds.Meter
	client client.Client
	live   client.Reader
	log    *slog.Logger
	seen   map[types.UID]bool // found without a Node in the last round
}

func (c *collector) round(ctx context.Context) error {
	err := c.collect(ctx)
	if err != nil && ctx.Err() == nil {
		c.log.Warn("cannot collect CiliumNodes without a Node, trying again", "error", err)
		c.seen = map[types.UID]bool{} // what comes early does not count as a round
	}
	return err
}

func (c *collector) collect(ctx context.Context) error {
	var all v2.CiliumNodeList
	if err := c.client.List(ctx, &all); err != nil {
		return fmt.Errorf("list of CiliumNodes: %w", err)
	}
	found := map[types.UID]bool{}
	for i := range all.Items {
		n := &all.Items[i]
		if len(n.OwnerReferences) > 0 || n.Annotations[keepAnnotation] == "true" || !n.DeletionTimestamp.IsZero() {
			continue // the owner's end is its end
		}
		if there, err := hasNode(ctx, c.client, n.Name); err != nil {
			return err
		} else if there {
			continue
		}
		found[n.UID] = true
		if !c.seen[n.UID] {
			continue
		}
		if err := c.remove(ctx, n); err != nil {
			return err
		}
	}
	c.seen = found
	return nil
}

// remove deletes n if, according to the server itself, there is no such Node, and n has not
// changed.
func (c *collector) remove(ctx context.Context, n *v2.CiliumNode) error {
	if there, err := hasNode(ctx, c.live, n.Name); there || err != nil {
		return err
	}
	err := c.client.Delete(ctx, n, client.Preconditions{UID: &n.UID, ResourceVersion: &n.ResourceVersion})
	if err == nil {
		c.meter.Removed("nodes", 1)
		c.log.Info("deleted the CiliumNode of a node that is gone", "node", n.Name, "podCIDRs", slices.Clone(n.Spec.IPAM.PodCIDRs))
		return nil
	}
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return fmt.Errorf("deleting CiliumNode %s: %w", n.Name, err)
}

// hasNode reports whether there is a Node of this name, as a cache or the server shows it.
func hasNode(ctx context.Context, from client.Reader, name string) (bool, error) {
	switch err := from.Get(ctx, types.NamespacedName{Name: name}, &corev1.Node{}); {
	case err == nil:
		return true, nil
	case apierrors.IsNotFound(err):
		return false, nil
	default:
		return false, fmt.Errorf("node %s: %w", name, err)
	}
}
