package identities

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v2 "github.com/hawser-net/hawser/api/v2"
	k8sids "github.com/hawser-net/hawser/internal/k8s/identities"
)

// DefaultLost is how long a number waits for an agent that says nothing. Numbers are many, so it may be long: who repairs a node within a day finds that its
// kernel means by every number what the others mean.
const DefaultLost = 24 * time.Hour

// strayLease is how old a Lease is before it is deleted because its node is not there: an agent may say what it has heard before its node is known.
const strayLease = time.Hour

// letGoOf returns those of the objects, whose numbers have rested, that all agents have let go of, or have had time enough to, and how many are left. After an
// error it is none.
func (c *collector) letGoOf(ctx context.Context, list []*v2.CiliumIdentity, looks map[string]look) (free []*v2.CiliumIdentity, awaited int, err error) {
	if len(list) == 0 || c.cfg.Lost == 0 {
		return list, 0, nil
	}
	said, err := c.said(ctx)
	if err != nil {
		return nil, len(list), err
	}
	least := uint64(math.MaxUint64)
	for _, v := range said {
		least = min(least, v)
	}
	var newest uint64
	for _, o := range list {
		// By the clock of this process alone: what only waits for a node that may be lost can wait longer under another leader.
		if v := version(o.ResourceVersion); v > least && c.now().Sub(looks[o.Name].used) < c.cfg.Lost {
			newest = max(newest, v)
			continue
		}
		free = append(free, o)
	}
	awaited = len(list) - len(free)
	c.tellSlow(said, newest, awaited)
	return free, awaited, nil
}

// tellSlow logs which nodes numbers wait for that ended up to a version, when that changes.
func (c *collector) tellSlow(said map[string]uint64, newest uint64, numbers int) {
	var slow []string
	for node, v := range said {
		if v < newest {
			slow = append(slow, node)
		}
	}
	slices.Sort(slow)
	if slices.Equal(slow, c.slow) {
		return
	}
	c.slow = slow
	if len(slow) == 0 {
		c.log.Info("all agents have let go of the numbers of collected identities that have rested")
		return
	}
	c.log.Warn("numbers of collected identities are not used again before the agents of these nodes have let go of them, or count as lost",
		"nodes", strings.Join(slow[:min(len(slow), maxDiffer)], " "), "count", len(slow), "numbers", numbers, "lost-after", c.cfg.Lost)
}

// said asks the server up to which version the agent of each node has let go of the numbers that ended, and deletes what is superfluous. A node counts as long
// as it has a CiliumNode. One whose agent never said anything, as an older one, is not among them.
func (c *collector) said(ctx context.Context) (map[string]uint64, error) {
	said, here := map[string]uint64{}, map[string]bool{}
	err := eachNode(ctx, c.live, false, func(o *metav1.ObjectMeta) { here[o.Name] = true })
	if err != nil {
		return nil, fmt.Errorf("list of CiliumNodes: %w", err)
	}
	var all []*coordinationv1.Lease
	err = eachPage(ctx, c.live, pageSize, func() client.ObjectList { return &coordinationv1.LeaseList{} }, func(page client.ObjectList) {
		for i := range page.(*coordinationv1.LeaseList).Items {
			all = append(all, &page.(*coordinationv1.LeaseList).Items[i])
		}
	}, client.InNamespace(c.cfg.Namespace), client.MatchingLabels{k8sids.HeardLabel: k8sids.HeardLabelValue})
	if err != nil {
		return nil, fmt.Errorf("list of Leases in namespace %s, by which agents tell which identities have ended; until it can be read no number is used again: %w",
			c.cfg.Namespace, err)
	}
	for _, o := range all {
		if h, ok := k8sids.ReadHeard(o); ok && here[h.Node] {
			said[h.Node] = max(said[h.Node], h.Version)
		}
	}
	var errs []error
	for _, o := range all {
		h, ok := k8sids.ReadHeard(o)
		needed := here[h.Node] && h.Version >= said[h.Node] || !here[h.Node] && time.Since(o.CreationTimestamp.Time) < strayLease
		if !ok || !needed {
			errs = append(errs, client.IgnoreNotFound(c.client.Delete(ctx, o)))
		}
	}
	if err := errors.Join(errs...); err != nil && ctx.Err() == nil {
		c.log.Warn("cannot delete superfluous Leases of agents", "error", err)
	}
	return said, nil
}
