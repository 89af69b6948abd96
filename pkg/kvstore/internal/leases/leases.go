// Package leases records the leases of the drivers of key-value stores: which key is on which, and
// whom to notify when they are lost. It does not access a store.
package leases

import (
	"context"
	"fmt"
	"slices"
	"sort"
	"strings"
	"sync"

	"github.com/hawser-net/hawser/pkg/kvstore"
	"github.com/hawser-net/hawser/pkg/kvstore/internal/driver"
)

// Lease is one lease of a store, by the store's own id for it.
type Lease[ID comparable] struct {
	ID   ID
	stop context.CancelFunc
	keys map[string]*leasedKey[ID]
}

// Stop ends the work that keeps the lease alive.
func (l *Lease[ID]) Stop() { l.stop() }

// leasedKey is a key that is, or is about to be, on one of our leases.
type leasedKey[ID comparable] struct {
	lease *Lease[ID]
	// pending counts the writes under way.
	pending int
	// written means that a write took place, or may have.
	written bool
}

// Reservation records which lease each leased key of one transaction goes on. It must be finished,
// once.
type Reservation[ID comparable] map[string]*leasedKey[ID]

// ID returns the lease of a key of the reservation.
func (r Reservation[ID]) ID(key string) ID { return r[key].lease.ID }

// Leases returns the leases of the reservation, each once.
func (r Reservation[ID]) Leases() []*Lease[ID] {
	var out []*Lease[ID]
	for _, k := range r {
		if !slices.Contains(out, k.lease) {
			out = append(out, k.lease)
		}
	}
	return out
}

// Table assigns keys to leases: at most [kvstore.MaxKeysPerLease] on each, and a key that is
// written again stays where it is. All methods may be called concurrently. The zero value is empty
// and ready.
type Table[ID comparable] struct {
	mu   sync.Mutex
	list []*Lease[ID]
	keys map[string]*leasedKey[ID]
	// grant is held, by sending, while a lease is asked for, so that one request serves all who
	// wait.
	grant chan struct{}
}

// Obtain finds room for the keys. Where there is none it calls add, which asks the store for
// another lease and puts it into use, one call at a time.
func (t *Table[ID]) Obtain(ctx context.Context, keys []string, add func() error) (Reservation[ID], error) {
	if len(keys) == 0 {
		return nil, nil
	}
	if held, ok := t.Reserve(keys); ok {
		return held, nil
	}
	t.mu.Lock()
	if t.grant == nil {
		t.grant = make(chan struct{}, 1)
	}
	grant := t.grant
	t.mu.Unlock()
	select {
	case grant <- struct{}{}:
		defer func() { <-grant }()
	case <-ctx.Done(): // who asks may wait for longer
		return nil, fmt.Errorf("waiting for a lease that another write has asked for: %w", ctx.Err())
	}
	for {
		if held, ok := t.Reserve(keys); ok { // someone else asked meanwhile
			return held, nil
		}
		if err := add(); err != nil {
			return nil, err
		}
	}
}

// Add puts a new lease into use; stop ends the work that keeps it alive.
func (t *Table[ID]) Add(id ID, stop context.CancelFunc) *Lease[ID] {
	l := &Lease[ID]{ID: id, stop: stop, keys: make(map[string]*leasedKey[ID])}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.list = append(t.list, l)
	return l
}

// List returns the leases in use.
func (t *Table[ID]) List() []*Lease[ID] {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.list)
}

// Reserve finds room for the keys, or reports that another lease is needed; then nothing is
// reserved.
func (t *Table[ID]) Reserve(keys []string) (Reservation[ID], bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	held := make(Reservation[ID], len(keys))
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
			i := slices.IndexFunc(t.list, func(l *Lease[ID]) bool { return len(l.keys) < kvstore.MaxKeysPerLease })
			if t.keys == nil {
				t.keys = make(map[string]*leasedKey[ID])
			}
			k = &leasedKey[ID]{lease: t.list[i]}
			t.list[i].keys[key], t.keys[key] = k, k
		}
		k.pending++
		held[key] = k
	}
	return held, true
}

// Outcome is what became of a transaction.
type Outcome uint8

// What may have become of a transaction.
const (
	NotSent Outcome = iota // nothing was written
	Unknown                // something may have been
	Done                   // the branch was run
)

// Finish records the outcome of a transaction. It returns the keys that were, or may have been,
// written with a lease that has been abandoned meanwhile: it is no longer kept alive, so they count
// as lost.
func (t *Table[ID]) Finish(held Reservation[ID], branch []kvstore.Op, what Outcome) (stray []string) {
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
				if strings.HasPrefix(key, op.Key) {
					t.off(key)
				}
			}
		}
	}
	for key, k := range held {
		k.pending--
		if what == Unknown {
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
func (t *Table[ID]) off(key string) {
	if k, ok := t.keys[key]; ok {
		k.written = false
		if k.pending == 0 {
			t.forget(key, k)
		}
	}
}

func (t *Table[ID]) forget(key string, k *leasedKey[ID]) {
	if t.keys[key] == k {
		delete(t.keys, key)
	}
	if k.lease.keys[key] == k {
		delete(k.lease.keys, key)
	}
}

// Remove takes a lease out of use and returns the keys that were on it, sorted; ok is false if it
// was out already.
func (t *Table[ID]) Remove(l *Lease[ID]) (keys []string, ok bool) {
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

// Count returns how many leases are in use, and how many keys are on them.
func (t *Table[ID]) Count() (leases, keys int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.list), len(t.keys)
}

// Observers are notified of lost keys. All methods may be called concurrently. The zero value is
// empty and ready.
type Observers struct {
	mu   sync.Mutex
	list []*observer
	lost [][]string // of which they have not been notified yet
	busy bool       // a goroutine does that
}

type observer struct {
	prefix string
	lost   func([]string)
}

// Add has lost called with the lost keys under prefix until stop is called.
func (o *Observers) Add(prefix string, lost func(keys []string)) (stop func()) {
	added := &observer{prefix, lost}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.list = append(o.list, added)
	return func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.list = slices.DeleteFunc(o.list, func(have *observer) bool { return have == added })
	}
}

// Notify has the observers of the keys, which are sorted, called by a goroutine of the connection:
// who found out may hold what an observer waits for. It calls them in the order of the notices, and
// no more when the connection is closed.
func (o *Observers) Notify(c *driver.Conn, keys []string) {
	if len(keys) == 0 {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.lost = append(o.lost, keys)
	o.busy = o.busy || c.Go(func() { o.deliver(c) })
}

// deliver calls the observers until there is nothing left to notify them of. No lock is held
// meanwhile.
func (o *Observers) deliver(c *driver.Conn) {
	for {
		o.mu.Lock()
		if len(o.lost) == 0 || c.Closed() {
			o.busy = false
			o.mu.Unlock()
			return
		}
		keys, list := o.lost[0], slices.Clone(o.list)
		o.lost = o.lost[1:]
		o.mu.Unlock()
		for _, each := range list {
			if under := driver.KeysWithPrefix(keys, each.prefix); len(under) > 0 {
				each.lost(under)
			}
		}
	}
}
