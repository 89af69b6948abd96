package consul

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/hawser-net/hawser/pkg/kvstore"
	"github.com/hawser-net/hawser/pkg/kvstore/internal/leases"
	"github.com/hawser-net/hawser/pkg/retry"
)

// reserve finds leases for the keys, asking for another session where there is no room.
func (c *Client) reserve(ctx context.Context, keys []string) (leases.Reservation[string], error) {
	return c.leases.Obtain(ctx, keys, func() error { return c.addLease(ctx) })
}

func (c *Client) addLease(ctx context.Context) error {
	both, done, err := c.conn.Begin(ctx)
	if err != nil {
		return err
	}
	defer done()
	// No checks: the session ends by its time alone, not with the health of a node. The shortest
	// lock delay that the client library passes on; none would mean Consul's own, 15 s in which no
	// key of an ended session can be written.
	id, _, err := c.consul.Session().CreateNoChecks(&api.SessionEntry{
		Name: "hawser", TTL: c.cfg.LeaseTTL.String(), Behavior: api.SessionBehaviorDelete, LockDelay: time.Millisecond,
	}, (&api.WriteOptions{}).WithContext(both))
	if err != nil {
		return fmt.Errorf("asking for a session: %w", err)
	}
	alive, stop := context.WithCancel(c.conn.Context())
	l := c.leases.Add(id, stop)
	if !c.conn.Go(func() { defer stop(); c.keepAlive(alive, l) }) {
		stop()
		c.leases.Remove(l)
		return kvstore.ErrClosed
	}
	return nil
}

// keepAlive renews a session three times in its TTL until it is gone.
func (c *Client) keepAlive(ctx context.Context, l *leases.Lease[string]) {
	last := time.Now()
	pause := c.cfg.LeaseTTL / 3
	for retry.Sleep(ctx, pause) {
		one, cancel := context.WithTimeout(ctx, c.cfg.CheckTimeout)
		entry, _, err := c.consul.Session().Renew(l.ID, (&api.WriteOptions{}).WithContext(one))
		cancel()
		switch {
		case ctx.Err() != nil:
			return
		case err == nil && entry != nil:
			last, pause = time.Now(), c.cfg.LeaseTTL/3
		case err == nil, gone(err), time.Since(last) > c.cfg.LeaseTTL:
			// Consul reports it, or was silent for a whole TTL. If the session lives after all, its
			// keys move to another one when they are written again.
			c.lose(l)
			return
		default:
			pause = c.cfg.LeaseTTL / 20
		}
	}
}

// lose takes a lease out of use and notifies the observers.
func (c *Client) lose(l *leases.Lease[string]) {
	keys, ok := c.leases.Remove(l)
	if !ok {
		return
	}
	l.Stop()
	c.log.Warn("a session in consul is gone, its keys must be written again", "session", l.ID, "keys", len(keys))
	c.observers.Notify(c.conn, keys)
}

// dropLost is called when a write met a session that Consul does not know. It finds out which.
func (c *Client) dropLost(ctx context.Context, held leases.Reservation[string]) {
	for _, l := range held.Leases() {
		entry, _, err := c.consul.Session().Info(l.ID, consistent(ctx))
		if err == nil && entry == nil || err != nil && gone(err) {
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
		both, done, err := c.conn.Begin(ctx)
		if err != nil {
			errs = append(errs, c.conn.Fault(ctx, "end session", l.ID, err))
			break
		}
		c.leases.Remove(l)
		l.Stop()
		_, err = c.consul.Session().Destroy(l.ID, (&api.WriteOptions{}).WithContext(both))
		done()
		if err != nil && !gone(err) {
			errs = append(errs, c.conn.Fault(ctx, "end session", l.ID, c.conn.Sent(err)))
		}
	}
	return errors.Join(errs...)
}
