package etcd

import (
	"context"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// NewUnchecked is New without the bounds of the settings: tests need leases shorter than any
// cluster should have.
func NewUnchecked(cfg Config) *Client { return newClient(cfg, nil) }

// LeaseIDs returns the leases in use.
func (c *Client) LeaseIDs() []clientv3.LeaseID {
	var ids []clientv3.LeaseID
	for _, l := range c.leases.List() {
		ids = append(ids, l.ID)
	}
	return ids
}

// BreakWatches cuts all streams.
func (c *Client) BreakWatches() { c.conn.BreakWatches() }

// Check runs one health check now, or when the client is set up.
func (c *Client) Check(ctx context.Context) bool {
	select {
	case <-c.ready:
		return c.check()
	case <-ctx.Done():
		return false
	}
}
