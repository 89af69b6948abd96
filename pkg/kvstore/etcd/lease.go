package etcd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/hawser-net/hawser/pkg/kvstore"
	"github.com/hawser-net/hawser/pkg/kvstore/internal/leases"
)

// reserve finds leases for all leased writes of a transaction, asking etcd for another where there
// is no room.
func (c *Client) reserve(ctx context.Context, txn kvstore.Txn) (leases.Reservation[clientv3.LeaseID], error) {
	var keys []string
	for _, branch := range [][]kvstore.Op{txn.Then, txn.Else} {
		for _, op := range branch {
			if op.Kind == kvstore.OpPut && op.Lifetime == kvstore.Leased && !slices.Contains(keys, op.Key) {
				keys = append(keys, op.Key)
			}
		}
	}
	return c.leases.Obtain(ctx, keys, func() error { return c.addLease(ctx) })
}

func (c *Client) addLease(ctx context.Context) error {
	done, err := c.begin(ctx)
	if err != nil {
		return err
	}
	defer done()
	resp, err := c.etcd.Grant(clientv3.WithRequireLeader(ctx), int64((c.cfg.LeaseTTL+time.Second-1)/time.Second))
	if err != nil {
		return fmt.Errorf("asking for a lease: %w", err)
	}
	alive, stop := context.WithCancel(c.conn.Context())
	l := c.leases.Add(resp.ID, stop)
	if !c.conn.Go(func() { defer stop(); c.keepAlive(alive, l) }) {
		stop()
		c.leases.Remove(l)
		return kvstore.ErrClosed
	}
	return nil
}

// keepAlive renews a lease until it is gone.
func (c *Client) keepAlive(ctx context.Context, l *leases.Lease[clientv3.LeaseID]) {
	answers, err := c.etcd.KeepAlive(ctx, l.ID)
	if err == nil {
		for range answers { //nolint:revive // only the end matters
		}
	}
	if ctx.Err() == nil {
		// Either etcd reports that the lease is gone, or it was silent for a whole TTL. If the
		// lease lives after all, its keys move to another one when they are written again, and it
		// runs out by itself.
		c.lose(l)
	}
}

// lose takes a lease out of use and notifies the observers.
func (c *Client) lose(l *leases.Lease[clientv3.LeaseID]) {
	keys, ok := c.leases.Remove(l)
	if !ok {
		return
	}
	l.Stop()
	c.log.Warn("a lease in etcd is gone, its keys must be written again", "lease", fmt.Sprintf("%x", int64(l.ID)), "keys", len(keys))
	c.observers.Notify(c.conn, keys)
}

// dropLost is called when a write met a lease that etcd does not know. It finds out which.
func (c *Client) dropLost(ctx context.Context, held leases.Reservation[clientv3.LeaseID]) {
	for _, l := range held.Leases() {
		resp, err := c.etcd.TimeToLive(clientv3.WithRequireLeader(ctx), l.ID)
		if err == nil && resp.TTL <= 0 || errors.Is(err, rpctypes.ErrLeaseNotFound) {
			c.lose(l)
		}
	}
}

// ObserveLostLeases implements [kvstore.Backend].
func (c *Client) ObserveLostLeases(prefix string, lost func(keys []string)) (stop func()) {
	return c.observers.Add(prefix, lost)
}

// RevokeLeases implements [kvstore.Backend].
func (c *Client) RevokeLeases(ctx context.Context) error {
	var errs []error
	for _, l := range c.leases.List() {
		done, err := c.begin(ctx)
		if err != nil {
			errs = append(errs, c.conn.Fault(ctx, "revoke lease", fmt.Sprintf("%x", int64(l.ID)), err))
			break
		}
		c.leases.Remove(l)
		l.Stop()
		_, err = c.etcd.Revoke(clientv3.WithRequireLeader(ctx), l.ID)
		done()
		if err != nil && !errors.Is(err, rpctypes.ErrLeaseNotFound) {
			errs = append(errs, c.conn.Fault(ctx, "revoke lease", fmt.Sprintf("%x", int64(l.ID)), c.conn.Sent(err)))
		}
	}
	return errors.Join(errs...)
}
