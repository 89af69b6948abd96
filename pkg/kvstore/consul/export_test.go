package consul

import "github.com/hawser-net/hawser/pkg/kvstore"

// NewUnchecked is New without the bounds of the settings: tests need leases shorter than any
// cluster should have.
func NewUnchecked(cfg Config) (*Client, error) { return newClient(cfg, nil) }

// SessionIDs returns the sessions in use.
func (c *Client) SessionIDs() []string {
	var ids []string
	for _, l := range c.leases.List() {
		ids = append(ids, l.ID)
	}
	return ids
}

// BreakWatches cuts all queries.
func (c *Client) BreakWatches() { c.conn.BreakWatches() }

// Changes returns what a watch delivers that knew the one listing and reads the other.
func Changes(before, now kvstore.Listing) []kvstore.Event {
	w := watch{known: byKey(before.Pairs), delivered: before.Revision}
	return w.changes(now)
}
