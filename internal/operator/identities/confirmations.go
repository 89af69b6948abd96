package identities

import (
	"context"
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
	"github.com/hawser-net/hawser/internal/operator/rounds"
)

// DefaultLost is how long an ID waits for an agent that confirms nothing. IDs are many, so
// it may be long: who repairs a node within a day finds that its kernel means by every ID what
// the others mean.
const DefaultLost = 24 * time.Hour

// strayLease is how old a Lease is before it is deleted because its node is not there: an agent may
// confirm something before its node is known.
const strayLease = time.Hour

// releasedByAll returns those of the objects, whose IDs were in quarantine, that all agents
// have released, or have had time enough to, and how many are left. After an error it is none.
func (c *collector) releasedByAll(ctx context.Context, list []*v2.CiliumIdentity, looks map[string]look) (free []*v2.CiliumIdentity, awaited int, err error) {
	if len(list) == 0 || c.cfg.Lost == 0 {
		return list, 0, nil
	}
	confirmed, needless, err := c.confirmed(ctx)
	if err != nil {
		return nil, len(list), err
	}
	select {
	case c.needless <- needless:
	default: // the last ones are still being deleted: the next look finds these again
	}
	least := uint64(math.MaxUint64)
	for _, v := range confirmed {
		least = min(least, v)
	}
	var newest uint64
	for _, o := range list {
		// By the clock of this process alone: what only waits for a node that may be lost can wait
		// longer under another leader.
		if v := version(o.ResourceVersion); v > least && c.now().Sub(looks[o.Name].used) < c.cfg.Lost {
			newest = max(newest, v)
			continue
		}
		free = append(free, o)
	}
	awaited = len(list) - len(free)
	c.logSlow(confirmed, newest, awaited)
	return free, awaited, nil
}

// logSlow logs which nodes IDs wait for that ended up to a version, when that changes.
func (c *collector) logSlow(confirmed map[string]uint64, newest uint64, ids int) {
	var slow []string
	for node, v := range confirmed {
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
		c.log.Info("all agents have released the IDs of collected identities whose quarantine is over")
		return
	}
	c.log.Warn("IDs of collected identities are not used again before the agents of these nodes have released them, or count as lost",
		"nodes", strings.Join(slow[:min(len(slow), maxDiffer)], " "), "count", len(slow), "numbers", ids, "lost-after", c.cfg.Lost)
}

// confirmed reads from the server up to which version the agent of each node has released the IDs
// that ended, and which Leases are no longer needed. A node counts as long as it has a CiliumNode.
// One whose agent never confirmed anything, as an older one, is not among them.
func (c *collector) confirmed(ctx context.Context) (confirmed map[string]uint64, needless []*coordinationv1.Lease, err error) {
	here := map[string]bool{}
	err = eachNode(ctx, c.live, false, func() { clear(here) }, func(o *metav1.ObjectMeta) { here[o.Name] = true })
	if err != nil {
		return nil, nil, fmt.Errorf("list of CiliumNodes: %w", err)
	}
	var all []*coordinationv1.Lease
	begin := func() { all, needless = nil, nil }
	err = eachPage(ctx, c.live, pageSize, func() client.ObjectList { return &coordinationv1.LeaseList{} }, begin, func(page client.ObjectList) {
		for i := range page.(*coordinationv1.LeaseList).Items {
			o := &page.(*coordinationv1.LeaseList).Items[i]
			if h, ok := k8sids.ReadConfirmation(o); !ok || here[h.Node] {
				all = append(all, o)
			} else if time.Since(o.CreationTimestamp.Time) >= strayLease {
				needless = append(needless, o)
			}
		}
	}, client.InNamespace(c.cfg.Namespace), client.MatchingLabels{k8sids.ConfirmationLabel: k8sids.ConfirmationLabelValue})
	if err != nil {
		return nil, nil, fmt.Errorf("list of Leases in namespace %s, by which agents confirm which identities have ended; until it can be read no ID is used again: %w",
			c.cfg.Namespace, err)
	}
	confirmed, more := k8sids.SumUp(all)
	return confirmed, append(needless, more...), nil
}

// leaseWriters is how many Leases are deleted at once: there may be as many as agents, and nothing
// waits for it.
const leaseWriters = 8

// remove deletes Leases that are no longer needed.
func (c *collector) remove(ctx context.Context, needless []*coordinationv1.Lease) error {
	_, err := eachOf(ctx, leaseWriters, needless, func(o *coordinationv1.Lease) (bool, error) {
		err := client.IgnoreNotFound(c.client.Delete(ctx, o, client.Preconditions{UID: &o.UID}))
		return err == nil, err
	})
	if err != nil && ctx.Err() == nil {
		return fmt.Errorf("delete superfluous Leases of agents: %w", err)
	}
	return nil
}

// tidying periodically looks for superfluous Leases and deletes them, until ctx ends.
func (c *collector) tidying(ctx context.Context) error {
	return rounds.Every(ctx, strayLease, nil, func(ctx context.Context) error {
		_, needless, err := c.confirmed(ctx)
		if err == nil {
			err = c.remove(ctx, needless)
		}
		if err != nil && ctx.Err() == nil {
			c.log.Warn("cannot remove the agents' confirmations of identities", "error", err)
		}
		return err
	})
}

// removing deletes the Leases that were found superfluous, in parallel with the search, until ctx
// ends.
func (c *collector) removing(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case list := <-c.needless:
			if err := c.remove(ctx, list); err != nil {
				c.log.Warn("cannot remove stale Leases of agents yet", "error", err)
			}
		}
	}
}
