package consul

// NewUnchecked is New without the bounds of the settings: tests need leases shorter than any cluster should have.
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
func (c *Client) BreakWatches() { c.breakWatches() }
