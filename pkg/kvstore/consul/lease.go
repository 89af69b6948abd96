package consul

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/hawser-net/hawser/pkg/kvstore"
)

// lease is one session of ours, kept alive by a goroutine.
type lease struct {
	id string
	// keys are those on it, true once a write took place, or may have.
	keys map[string]bool
	stop context.CancelFunc
}

// reservation says which lease each leased key of one transaction goes on.
type reservation map[string]*lease

// leaseTable assigns keys to leases: at most [kvstore.MaxKeysPerLease] on each, and a key that is written again stays where it is.
type leaseTable struct {
	grant sync.Mutex // held while a session is asked for, so that one request serves all who wait

	mu   sync.Mutex
	list []*lease
	keys map[string]*lease
}

// reserve finds room for the keys, or says that another lease is needed; then nothing is reserved.
func (t *leaseTable) reserve(keys []string) (reservation, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	fresh, room := 0, 0
	for _, key := range keys {
		if t.keys[key] == nil {
			fresh++
		}
	}
	for _, l := range t.list {
		room += kvstore.MaxKeysPerLease - len(l.keys)
	}
	if fresh > room {
		return nil, false
	}
	held := make(reservation, len(keys))
	for _, key := range keys {
		l := t.keys[key]
		if l == nil {
			l = t.list[slices.IndexFunc(t.list, func(l *lease) bool { return len(l.keys) < kvstore.MaxKeysPerLease })]
			l.keys[key], t.keys[key] = false, l
		}
		held[key] = l
	}
	return held, true
}

type outcome uint8

const (
	notSent outcome = iota // nothing was written
	unknown                // something may have been
	written                // the branch was run
)

// settle books what became of a transaction. It returns the keys that were written with a lease that has been given up meanwhile: they count as lost.
func (t *leaseTable) settle(held reservation, branch []kvstore.Op, what outcome) (stray []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, op := range branch {
		switch {
		case op.Kind == kvstore.OpPut && op.Lifetime == kvstore.Permanent, op.Kind == kvstore.OpDelete:
			t.off(op.Key)
		case op.Kind == kvstore.OpDeletePrefix:
			for key := range t.keys {
				if strings.HasPrefix(key, op.Key) {
					t.off(key)
				}
			}
		}
	}
	for key, l := range held {
		switch {
		case what == notSent:
			if !l.keys[key] && t.keys[key] == l {
				t.off(key)
			}
		case !slices.Contains(t.list, l):
			stray = append(stray, key)
		default:
			l.keys[key], t.keys[key] = true, l
		}
	}
	sort.Strings(stray)
	return stray
}

// off notes that a key is no longer on its lease. It must be called with mu held.
func (t *leaseTable) off(key string) {
	if l := t.keys[key]; l != nil {
		delete(l.keys, key)
		delete(t.keys, key)
	}
}

// remove takes a lease out of use and returns the keys that were on it, sorted; ok is false if it was out already.
func (t *leaseTable) remove(l *lease) (keys []string, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	i := slices.Index(t.list, l)
	if i < 0 {
		return nil, false
	}
	t.list = slices.Delete(t.list, i, i+1)
	for key, wrote := range l.keys {
		if wrote {
			keys = append(keys, key)
		}
		if t.keys[key] == l {
			delete(t.keys, key)
		}
	}
	sort.Strings(keys)
	return keys, true
}

func (t *leaseTable) count() (leases, keys int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.list), len(t.keys)
}

// reserve finds leases for the keys, asking for another session where there is no room.
func (c *Client) reserve(ctx context.Context, keys []string) (reservation, error) {
	if len(keys) == 0 {
		return nil, nil
	}
	for {
		if held, ok := c.leases.reserve(keys); ok {
			return held, nil
		}
		if err := c.addLease(ctx, keys); err != nil {
			return nil, err
		}
	}
}

func (c *Client) addLease(ctx context.Context, keys []string) error {
	c.leases.grant.Lock()
	defer c.leases.grant.Unlock()
	if held, ok := c.leases.reserve(keys); ok { // someone else asked meanwhile
		c.leases.settle(held, nil, notSent)
		return nil
	}
	both, done, err := c.begin(ctx)
	if err != nil {
		return err
	}
	defer done()
	// No checks: the session ends by its time alone, not with the health of a node. The shortest lock delay that the client library passes on; none would
	// mean Consul's own, 15 s in which nobody could write a key of a session that has ended.
	id, _, err := c.consul.Session().CreateNoChecks(&api.SessionEntry{
		Name: "hawser", TTL: c.cfg.LeaseTTL.String(), Behavior: api.SessionBehaviorDelete, LockDelay: time.Millisecond,
	}, (&api.WriteOptions{}).WithContext(both))
	if err != nil {
		return fmt.Errorf("asking for a session: %w", err)
	}
	alive, stop := context.WithCancel(c.ctx)
	l := &lease{id: id, keys: make(map[string]bool), stop: stop}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		stop()
		return kvstore.ErrClosed
	}
	c.leases.mu.Lock()
	c.leases.list = append(c.leases.list, l)
	c.leases.mu.Unlock()
	c.wg.Add(1)
	go func() {
		defer c.wg.Done()
		defer stop()
		c.keepAlive(alive, l)
	}()
	return nil
}

// keepAlive renews a session three times in its TTL until it is gone.
func (c *Client) keepAlive(ctx context.Context, l *lease) {
	last := time.Now()
	pause := c.cfg.LeaseTTL / 3
	for sleep(ctx, pause) {
		one, cancel := context.WithTimeout(ctx, c.cfg.CheckTimeout)
		entry, _, err := c.consul.Session().Renew(l.id, (&api.WriteOptions{}).WithContext(one))
		cancel()
		switch {
		case ctx.Err() != nil:
			return
		case err == nil && entry != nil:
			last, pause = time.Now(), c.cfg.LeaseTTL/3
		case err == nil, gone(err), time.Since(last) > c.cfg.LeaseTTL:
			// Consul says so, or was silent for a whole TTL. If the session lives after all, its keys move to another one when they are written again.
			c.lose(l)
			return
		default:
			pause = c.cfg.LeaseTTL / 20
		}
	}
}

// lose takes a lease out of use and tells the observers.
func (c *Client) lose(l *lease) {
	keys, ok := c.leases.remove(l)
	if !ok {
		return
	}
	l.stop()
	c.log.Warn("a session in consul is gone, its keys must be written again", "session", l.id, "keys", len(keys))
	c.tellLost(keys)
}

// dropLost is called when a write met a session that Consul does not know. It finds out which.
func (c *Client) dropLost(ctx context.Context, held reservation) {
	seen := make(map[*lease]bool)
	for _, l := range held {
		if seen[l] {
			continue
		}
		seen[l] = true
		entry, _, err := c.consul.Session().Info(l.id, consistent(ctx))
		if err == nil && entry == nil || err != nil && gone(err) {
			c.lose(l)
		}
	}
}

type observer struct {
	prefix string
	lost   func([]string)
}

// tellLost calls the observers of the keys, which are sorted.
func (c *Client) tellLost(keys []string) {
	if len(keys) == 0 {
		return
	}
	c.mu.Lock()
	observers := slices.Clone(c.observers)
	c.mu.Unlock()
	for _, o := range observers {
		if under := kvstore.KeysUnder(keys, o.prefix); len(under) > 0 {
			o.lost(under)
		}
	}
}

// ObserveLostLeases implements [kvstore.Backend].
func (c *Client) ObserveLostLeases(prefix string, lost func(keys []string)) (stop func()) {
	o := &observer{prefix, lost}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.observers = append(c.observers, o)
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.observers = slices.DeleteFunc(c.observers, func(have *observer) bool { return have == o })
	}
}

// RevokeLeases implements [kvstore.Backend].
func (c *Client) RevokeLeases(ctx context.Context) error {
	c.leases.mu.Lock()
	list := slices.Clone(c.leases.list)
	c.leases.mu.Unlock()
	var errs []error
	for _, l := range list {
		both, done, err := c.begin(ctx)
		if err != nil {
			errs = append(errs, c.fault(ctx, "end session", l.id, err))
			break
		}
		c.leases.remove(l)
		l.stop()
		_, err = c.consul.Session().Destroy(l.id, (&api.WriteOptions{}).WithContext(both))
		done()
		if err != nil && !gone(err) {
			errs = append(errs, c.fault(ctx, "end session", l.id, err))
		}
	}
	return errors.Join(errs...)
}
