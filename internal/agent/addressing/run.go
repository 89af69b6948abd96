package addressing

import (
	"context"
	"path/filepath"
	"time"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/ipam"
)

// await returns when the node has addresses of the default pool for itself: the former ones if
// there are pods that use them, else what the operator assigns, for which it waits.
func (n *Pools) await(ctx context.Context) error {
	rows, err := n.cfg.endpoints()
	switch {
	case err != nil:
		return err
	case len(rows) > 0:
		before, err := loadRanges(filepath.Join(n.cfg.Dir, rangesFile))
		if err != nil {
			n.log.Warn("cannot read the stored pod CIDRs", "error", err)
		}
		if err := n.inherit(before); err != nil {
			return err
		}
	default:
		n.clear()
	}
	if n.missing() == nil {
		n.log.Info("this node keeps its pod CIDRs", "pools", text(n.state.Pools))
		return nil
	}
	return until(ctx, func(ctx context.Context, done func()) error {
		return n.askAs(ctx, func(o *v2.CiliumNode) {
			if n.Observe(o); n.missing() == nil {
				done()
			}
		})
	}, func() bool {
		if n.confirm(ctx); n.missing() == nil {
			return true
		}
		n.log.Warn("waiting for the addresses of this node's pods", "missing", n.missing(),
			"in", "spec.ipam.pools.allocated of CiliumNode "+n.cfg.Self.Name+", which the operator fills in; see status.ipam.operator-status.error if it does not")
		return false
	})
}

// Families are those that pods have.
func (n *Pools) Families() ipam.Families { return n.cfg.Families }

// Follow follows which pools there are until ctx ends.
func (n *Pools) Follow(ctx context.Context) error { return n.catalog.Run(ctx) }

// tendEvery is how often superfluous CIDRs are looked for.
const tendEvery = 5 * time.Second

// Run asks for what is needed, hands back what is not, and notifies the agent, until ctx ends.
// Attach comes before it.
func (n *Pools) Run(ctx context.Context, agent Agent) error {
	tick := time.NewTicker(tendEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		case <-n.pool.DemandMoved():
		case <-n.notify.trigger:
			n.notify.pass(agent)
		}
		n.confirm(ctx)
		n.tend(time.Now())
	}
}
