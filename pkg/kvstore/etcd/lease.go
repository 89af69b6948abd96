package etcd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sort"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/hawser-net/hawser/pkg/kvstore"
)

// lease is one etcd lease of ours, kept alive by a goroutine.
type lease struct {
	id   clientv3.LeaseID
	keys map[string]*leasedKey
	stop context.CancelFunc
}

// leasedKey is a key that is, or is about to be, on one of our leases.
type leasedKey struct {
	lease *lease
	// pending counts the writes under way.
	pending int
	// written says that a write took place, or may have.
	written bool
}

// reservation says which lease each leased key of one transaction goes on.
type reservation map[string]*leasedKey

// leaseTable assigns keys to leases: at most [kvstore.MaxKeysPerLease] on each, and a key that is written again stays where it is.
type leaseTable struct {
	grant sync.Mutex // held while a lease is asked for, so that one request serves all who wait

	mu   sync.Mutex
	list []*lease
	keys map[string]*leasedKey
}

func (t *leaseTable) init() { t.keys = make(map[string]*leasedKey) }

// reserve finds room for the keys, or says that another lease is needed; then nothing is reserved.
func (t *leaseTable) reserve(keys []string) (reservation, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	held := make(reservation, len(keys))
	fresh := 0
	for _, key := range keys {
		if _, ok := t.keys[key]; !ok {
			fresh++
		}
	}
	room := 0
	for _, l := range t.list {
		room += kvstore.MaxKeysPerLease - len(l.keys)
	}
	if fresh > room {
		return nil, false
	}
	for _, key := range keys {
		k, ok := t.keys[key]
		if !ok {
			i := slices.IndexFunc(t.list, func(l *lease) bool { return len(l.keys) < kvstore.MaxKeysPerLease })
			k = &leasedKey{lease: t.list[i]}
			t.list[i].keys[key], t.keys[key] = k, k
		}
		k.pending++
		held[key] = k
	}
	return held, true
}

type outcome uint8

const (
	outcomeNotSent outcome = iota // nothing was written
	outcomeUnknown                // something may have been
	outcomeDone                   // the branch was run
)

// settle books what became of a transaction. It returns the keys that were, or may have been, written with a lease that has been given up meanwhile:
// nobody keeps that one alive, so they count as lost.
func (t *leaseTable) settle(held reservation, branch []kvstore.Op, what outcome) (stray []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, op := range branch {
		switch op.Kind {
		case kvstore.OpPut:
			if op.Lifetime == kvstore.Leased {
				held[op.Key].written = true
			} else {
				t.off(op.Key)
			}
		case kvstore.OpDelete:
			t.off(op.Key)
		case kvstore.OpDeletePrefix:
			for key := range t.keys {
				if len(key) >= len(op.Key) && key[:len(op.Key)] == op.Key {
					t.off(key)
				}
			}
		}
	}
	for key, k := range held {
		k.pending--
		if what == outcomeUnknown {
			k.written = true
		}
		if k.pending == 0 && !k.written {
			t.forget(key, k)
		}
		if k.written && !slices.Contains(t.list, k.lease) {
			stray = append(stray, key)
		}
	}
	sort.Strings(stray)
	return stray
}

// off notes that a key is no longer on its lease. It must be called with mu held.
func (t *leaseTable) off(key string) {
	if k, ok := t.keys[key]; ok {
		k.written = false
		if k.pending == 0 {
			t.forget(key, k)
		}
	}
}

func (t *leaseTable) forget(key string, k *leasedKey) {
	if t.keys[key] == k {
		delete(t.keys, key)
	}
	if k.lease.keys[key] == k {
		delete(k.lease.keys, key)
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
	for key, k := range l.keys {
		if k.written {
			keys = append(keys, key)
		}
		if t.keys[key] == k {
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

// reserve finds leases for all leased writes of a transaction, asking etcd for another where there is no room.
func (c *Client) reserve(ctx context.Context, txn kvstore.Txn) (reservation, error) {
	var keys []string
	for _, branch := range [][]kvstore.Op{txn.Then, txn.Else} {
		for _, op := range branch {
			if op.Kind == kvstore.OpPut && op.Lifetime == kvstore.Leased && !slices.Contains(keys, op.Key) {
				keys = append(keys, op.Key)
			}
		}
	}
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
		c.leases.settle(held, nil, outcomeNotSent)
		return nil
	}
	done, err := c.begin(ctx)
	if err != nil {
		return err
	}
	defer done()
	resp, err := c.etcd.Grant(clientv3.WithRequireLeader(ctx), int64((c.cfg.LeaseTTL+time.Second-1)/time.Second))
	if err != nil {
		return fmt.Errorf("asking for a lease: %w", err)
	}
	alive, stop := context.WithCancel(c.ctx)
	l := &lease{id: resp.ID, keys: make(map[string]*leasedKey), stop: stop}
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

// keepAlive renews a lease until it is gone.
func (c *Client) keepAlive(ctx context.Context, l *lease) {
	answers, err := c.etcd.KeepAlive(ctx, l.id)
	if err == nil {
		for range answers { //nolint:revive // only the end matters
		}
	}
	if ctx.Err() == nil {
		// Either etcd says that the lease is gone, or it was silent for a whole TTL. If the lease lives after all, its keys move to another one when they are
		// written again, and it runs out by itself.
		c.lose(l)
	}
}

// lose takes a lease out of use and tells the observers.
func (c *Client) lose(l *lease) {
	keys, ok := c.leases.remove(l)
	if !ok {
		return
	}
	l.stop()
	c.log.Warn("a lease in etcd is gone, its keys must be written again", "lease", fmt.Sprintf("%x", int64(l.id)), "keys", len(keys))
	c.tellLost(keys)
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

// dropLost is called when a write met a lease that etcd does not know. It finds out which.
func (c *Client) dropLost(ctx context.Context, held reservation) {
	seen := make(map[*lease]bool)
	for _, k := range held {
		if seen[k.lease] {
			continue
		}
		seen[k.lease] = true
		resp, err := c.etcd.TimeToLive(clientv3.WithRequireLeader(ctx), k.lease.id)
		if err == nil && resp.TTL <= 0 || errors.Is(err, rpctypes.ErrLeaseNotFound) {
			c.lose(k.lease)
		}
	}
}

type observer struct {
	prefix string
	lost   func([]string)
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
		done, err := c.begin(ctx)
		if err != nil {
			errs = append(errs, c.fault(ctx, "revoke lease", fmt.Sprintf("%x", int64(l.id)), err))
			break
		}
		c.leases.remove(l)
		l.stop()
		_, err = c.etcd.Revoke(clientv3.WithRequireLeader(ctx), l.id)
		done()
		if err != nil && !errors.Is(err, rpctypes.ErrLeaseNotFound) {
			errs = append(errs, c.fault(ctx, "revoke lease", fmt.Sprintf("%x", int64(l.id)), err))
		}
	}
	return errors.Join(errs...)
}
