package allocator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// errRelisted means that the watch restarted while a caller waited for a revision: the store may
// have been restored from a backup, so the caller must start over.
var errRelisted = errors.New("the watch of the store restarted")

// entry is one ID as the cache has it.
type entry struct {
	id      ID
	key     AllocatorKey // nil: unreadable
	text    string
	created int64
	// made and original are as in Mapping. An ID that was written again since it was made, and is
	// not original, is the store's value, for lack of a better one, but is not taken into use:
	// others may know the original.
	made     int64
	original bool
	// edited: the store has another key for the ID than the one it was made with, which is key.
	edited bool
	// missing: the store has lost the ID, but this node uses it and will write it again.
	missing bool
}

// usable reports whether the ID is there, and certain to be its key's.
func (e *entry) usable() bool { return !e.missing && (e.original || e.made == 0) }

// cache holds the IDs of one store as its watch delivers them.
type cache struct {
	mu          sync.RWMutex
	idRange     Range // those that are counted
	taken       uint64
	byID        map[ID]*entry
	byKey       map[string][]*entry // oldest first; nearly always one
	quarantined map[ID]time.Time    // when IDs were deleted; nil for IDs that others give out
	applied     int64               // every change up to here is in
	ended       int64               // the last change that ended an ID, or the last listing
	lists       int                 // how often the watch listed
	synced      chan struct{}       // closed after the first listing
	moved       chan struct{}       // made by a waiter, closed when applied changes
}

// newCache returns an empty cache that counts the IDs of a range, and remembers which of them are
// in quarantine.
func newCache(idRange Range) *cache {
	c := newRemoteCache()
	c.idRange, c.quarantined = idRange, make(map[ID]time.Time)
	return c
}

// newRemoteCache returns an empty cache of IDs that others give out.
func newRemoteCache() *cache {
	return &cache{byID: make(map[ID]*entry), byKey: make(map[string][]*entry), synced: make(chan struct{})}
}

// advance must be called with mu held.
func (c *cache) advance(revision int64) {
	c.applied = revision
	if c.moved != nil {
		close(c.moved)
		c.moved = nil
	}
}

// listDone reports whether it was the first.
func (c *cache) listDone(revision int64) (first bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lists++
	c.advance(revision)
	c.ended = revision
	select {
	case <-c.synced:
		return false
	default:
		close(c.synced)
		return true
	}
}

// rewrite records that an ID was written again since it was made, and returns its entry; nil if
// this is another ID, or nothing is known of what it was made with. It goes on to stand for that:
// every node uses that meaning, and only a writer that does not follow this protocol writes
// anything else. edited means that this is so now, changed that it was not before, or the other way
// round.
func (c *cache) rewrite(m Mapping) (e *entry, edited, changed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e = c.byID[m.ID]
	if e == nil || !e.original || e.missing || m.Incarnation == 0 || e.made != m.Incarnation {
		return nil, false, false
	}
	edited = m.Key == nil || m.Key.GetKey() != e.text
	if edited && m.Original {
		return nil, false, false // the store went back, and made it at a revision of before
	}
	changed = edited != e.edited
	e.edited = edited
	if m.Revision != 0 {
		c.advance(m.Revision)
	}
	return e, edited, changed
}

// edited returns the IDs that the store has with another key than the one they were made with,
// in order.
func (c *cache) edited() (out []ID) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	for id, e := range c.byID {
		if e.edited {
			out = append(out, id)
		}
	}
	slices.Sort(out)
	return out
}

// isEdited reports whether the ID was made for the key, and edited since.
func (c *cache) isEdited(id ID, text string) bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	e := c.byID[id]
	return e != nil && e.edited && e.text == text
}

// upsert records an ID and returns the one it replaces, if its key was another. changed means that
// the ID has a key of which observers were not notified: it is new, or it had another one, or none
// that can be read, as an ID in quarantine.
func (c *cache) upsert(m Mapping) (replaced *entry, changed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := &entry{id: m.ID, key: m.Key, created: m.Created, made: m.Incarnation, original: m.Original && m.Key != nil, edited: m.Edited}
	if m.Key != nil {
		e.text = m.Key.GetKey()
	}
	old := c.byID[m.ID]
	if old != nil {
		c.drop(old)
	}
	delete(c.quarantined, m.ID)
	c.byID[m.ID] = e
	if c.idRange.Contains(m.ID) {
		c.taken++
	}
	if e.key != nil {
		list := append(c.byKey[e.text], e)
		slices.SortStableFunc(list, func(a, b *entry) int {
			if a.created != b.created {
				return int(max(-1, min(1, a.created-b.created)))
			}
			return int(max(-1, min(1, int64(a.id)-int64(b.id))))
		})
		c.byKey[e.text] = list
	}
	if m.Revision != 0 {
		c.advance(m.Revision)
		if m.Key == nil {
			c.ended = m.Revision
		}
	}
	if old != nil && old.key != nil && old.text != e.text {
		return old, e.key != nil
	}
	return nil, e.key != nil && (old == nil || old.key == nil || old.missing)
}

// drop must be called with mu held.
func (c *cache) drop(e *entry) {
	delete(c.byID, e.id)
	if c.idRange.Contains(e.id) {
		c.taken--
	}
	if e.key == nil {
		return
	}
	list := slices.DeleteFunc(slices.Clone(c.byKey[e.text]), func(x *entry) bool { return x == e })
	if len(list) == 0 {
		delete(c.byKey, e.text)
	} else {
		c.byKey[e.text] = list
	}
}

// remove records a deletion and returns what was there. If keep is set the ID stays, marked as
// missing.
func (c *cache) remove(id ID, revision int64, keep func(*entry) bool) (gone *entry, kept bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.byID[id]
	if e != nil {
		if keep(e) {
			kept = true
			e.missing = true
		} else {
			c.drop(e)
			if c.quarantined != nil {
				c.quarantined[id] = time.Now()
			}
		}
	}
	if revision != 0 {
		c.advance(revision)
		c.ended = revision
	}
	return e, kept
}

// appliedRevision returns up to which revision every change is in, and that of the last by which an
// ID may have ended. Both are 0 before the first listing.
func (c *cache) appliedRevision() (applied, ended int64) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if c.lists == 0 {
		return 0, 0
	}
	return c.applied, c.ended
}

// isAllocated reports whether the store has a key for an ID.
func (c *cache) isAllocated(id ID) bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	e := c.byID[id]
	return e != nil && e.key != nil && !e.missing
}

// forget drops an ID that was kept as missing and will not come back.
func (c *cache) forget(id ID) *entry {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.byID[id]
	if e == nil || !e.missing {
		return nil
	}
	c.drop(e)
	return e
}

// oldest returns the oldest ID of key that is in the store and may be taken into use, NoID if there
// is none. An edited one stands for another key in the store, so there is none for this key until
// it is restored.
func (c *cache) oldest(key string) ID {
	c.mu.RLock()
	defer c.mu.RUnlock()
	for _, e := range c.byKey[key] {
		if e.usable() && !e.edited {
			return e.id
		}
	}
	return NoID
}

// editedFirst returns the oldest ID that was made for key, if it is edited, else NoID.
func (c *cache) editedFirst(key string) ID {
	c.mu.RLock()
	defer c.mu.RUnlock()
	for _, e := range c.byKey[key] {
		if !e.usable() {
			continue
		}
		if e.edited {
			return e.id
		}
		break
	}
	return NoID
}

// get returns the key of an ID; ok reports whether the ID exists.
func (c *cache) get(id ID) (key AllocatorKey, ok bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	e := c.byID[id]
	if e == nil {
		return nil, false
	}
	return e.key, true
}

// holds reports whether the store is known to have the ID for the key.
func (c *cache) holds(id ID, text string) bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	e := c.byID[id]
	return e != nil && e.text == text && !e.missing && !e.edited
}

// used reports whether an ID is taken, and if not, when it was deleted.
func (c *cache) used(id ID) (taken bool, deleted time.Time) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	_, taken = c.byID[id]
	return taken, c.quarantined[id]
}

// full reports whether every ID of the range is taken.
func (c *cache) full() bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	size := uint64(c.idRange.Max-c.idRange.Min) + 1
	return size != 0 && c.taken >= size
}

// tidy forgets IDs that were deleted before the quarantine began.
func (c *cache) tidy(quarantine time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, since := range c.quarantined {
		if time.Since(since) > quarantine {
			delete(c.quarantined, id)
		}
	}
}

// entries returns the readable IDs in no order.
func (c *cache) entries() []*entry {
	c.mu.RLock()
	defer c.mu.RUnlock()
	out := make([]*entry, 0, len(c.byID))
	for _, e := range c.byID {
		if e.key != nil {
			out = append(out, e)
		}
	}
	return out
}

// mark is taken before a request whose revision [cache.waitFor] will wait for.
func (c *cache) mark() (lists int) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.lists
}

// waitFor waits until every change up to revision is in the cache, or ended is closed.
func (c *cache) waitFor(ctx context.Context, mark int, revision int64, ended <-chan struct{}) error {
	for {
		c.mu.Lock()
		if c.lists != mark {
			c.mu.Unlock()
			return errRelisted
		}
		if c.applied >= revision {
			c.mu.Unlock()
			return nil
		}
		if c.moved == nil {
			c.moved = make(chan struct{})
		}
		moved := c.moved
		c.mu.Unlock()
		select {
		case <-moved:
		case <-ended:
			return ErrClosed
		case <-ctx.Done():
			return fmt.Errorf("waiting for the watch of the store to reach revision %d: %w", revision, ctx.Err())
		}
	}
}
