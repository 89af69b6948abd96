package allocator

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"golang.org/x/time/rate"
)

// Release ends one use of key on this node. With the last one the reference in the store goes, and
// lastUse is true; the ID itself stays until it is collected. If the store cannot be reached
// the reference is taken back later, and the error only reports that: the use has ended all the
// same.
func (a *Allocator) Release(ctx context.Context, key AllocatorKey) (lastUse bool, err error) {
	text, err := canonical(key)
	if err != nil {
		return false, err
	}
	a.mu.Lock()
	lk := a.local[text]
	if lk == nil || lk.refs == 0 {
		a.mu.Unlock()
		return false, fmt.Errorf("release %q: %w", text, ErrNotInUse)
	}
	if lk.refs--; lk.refs > 0 {
		a.mu.Unlock()
		return false, nil
	}
	lk.unwanted = true
	lk.users++
	a.mu.Unlock()
	defer a.leave(lk)

	later := func(err error) (bool, error) {
		a.wake()
		return true, fmt.Errorf("release %q: the reference is taken back later: %w", text, err)
	}
	select {
	case lk.turn <- struct{}{}:
		defer func() { <-lk.turn }()
	case <-ctx.Done():
		return later(ctx.Err())
	}
	a.mu.Lock()
	id, was := lk.id, lk.was
	// The previous holder of the turn may have taken the key into use again, or have released the
	// reference.
	obsolete := lk.refs > 0 || !lk.unwanted
	a.mu.Unlock()
	if obsolete {
		return true, nil
	}
	// Whatever it returns: an abandoned attempt may have written another ID.
	if err := a.backend.Release(ctx, NoID, key); err != nil {
		return later(err)
	}
	a.ended(lk)
	a.notifyMissing(id)
	a.notifyMissing(was)
	return true, nil
}

// Get returns the ID of key, NoID if it has none, from the cache if it is there. An ID without
// references may be returned until it is collected.
func (a *Allocator) Get(ctx context.Context, key AllocatorKey) (ID, error) {
	text, err := canonical(key)
	if err != nil {
		return NoID, err
	}
	a.mu.Lock()
	if lk := a.local[text]; lk != nil && lk.refs > 0 && lk.id != NoID {
		id := lk.id
		a.mu.Unlock()
		return id, nil
	}
	a.mu.Unlock()
	if id := a.cache.oldest(text); id != NoID {
		return id, nil
	}
	return a.GetNoCache(ctx, key)
}

// GetNoCache returns the ID in force for key according to the store, NoID if the key is not in use.
func (a *Allocator) GetNoCache(ctx context.Context, key AllocatorKey) (ID, error) {
	return a.backend.Get(ctx, key)
}

// GetByID returns the key of an ID, from the caches, of this store and of remote ones, or else
// from the store. It fails with an error that wraps [ErrIdentityNonExistent] if there is none.
func (a *Allocator) GetByID(ctx context.Context, id ID) (AllocatorKey, error) {
	if key, ok := a.cache.get(id); ok && key != nil {
		return key, nil
	}
	for _, rc := range a.remoteCaches() {
		if key, ok := rc.cache.get(id); ok && key != nil {
			return key, nil
		}
	}
	return a.backend.GetByID(ctx, id)
}

// ForeachCache calls fn for each ID in the caches, those of remote stores included, in no
// order. fn may call the allocator.
func (a *Allocator) ForeachCache(fn RangeFunc) {
	for _, e := range a.cache.entries() {
		fn(e.id, e.key)
	}
	for _, rc := range a.remoteCaches() {
		for _, e := range rc.cache.entries() {
			fn(e.id, e.key)
		}
	}
}

// AppliedRevision returns the revision up to which every change of the store is known here, and
// that of the last of them by which an ID may have ended, a listing among these; 0 before the first
// listing. The events of these were sent before.
func (a *Allocator) AppliedRevision() (applied, ended int64) { return a.cache.appliedRevision() }

// IsAllocated reports whether the allocator's own store, as far as it was observed, has a key for
// an ID.
func (a *Allocator) IsAllocated(id ID) bool { return a.cache.isAllocated(id) }

// Edited returns, in order, the IDs that were edited: their key in the store differs from the
// original one. They keep their first meaning, and nodes that use them write the key back.
func (a *Allocator) Edited() []ID { return a.cache.edited() }

// Confirm states for the collectors that this node has released every ID that was deleted up to a
// revision, see [Backend.Confirm].
func (a *Allocator) Confirm(ctx context.Context, revision int64) error {
	return a.backend.Confirm(ctx, revision)
}

// ObserveLostConfirmation calls lost when the last confirmation is lost, see
// [Backend.ObserveLostConfirmation].
func (a *Allocator) ObserveLostConfirmation(lost func()) (stop func()) {
	return a.backend.ObserveLostConfirmation(lost)
}

// RunGC does one round of garbage collection: see [Backend.RunGC]. Give it what the round before
// returned, nil at first.
func (a *Allocator) RunGC(ctx context.Context, limiter *rate.Limiter, previous map[ID]int64) (map[ID]int64, GCStats, error) {
	return a.backend.RunGC(ctx, limiter, a.set.idRange, previous)
}

// RunLocksGC does one round of collecting stale locks: see [Backend.RunLocksGC].
func (a *Allocator) RunLocksGC(ctx context.Context, previous map[string]Lock) (held map[string]Lock, deleted int, err error) {
	return a.backend.RunLocksGC(ctx, previous)
}

// RemoteCache holds the IDs of another cluster's store. They are seen by
// [Allocator.ForeachCache], [Allocator.GetByID] and the events.
type RemoteCache struct {
	name   string
	a      *Allocator
	cache  *cache
	accept func(ID, AllocatorKey) error
	cancel context.CancelFunc
	done   chan struct{}
	closed sync.Once
}

// WatchRemoteKVStore follows the IDs of another store under a name of the caller's choice,
// until the cache is closed. IDs that accept refuses (nil refuses none) are ignored and logged:
// a remote cluster must not speak for another's. Only one cache can have a name at a time.
func (a *Allocator) WatchRemoteKVStore(name string, remote Backend, accept func(ID, AllocatorKey) error) (*RemoteCache, error) {
	if name == "" || remote == nil {
		return nil, errors.New("a remote cache needs a name and a backend")
	}
	if accept == nil {
		accept = func(ID, AllocatorKey) error { return nil }
	}
	ctx, cancel := context.WithCancel(context.Background())
	rc := &RemoteCache{name: name, a: a, cache: newRemoteCache(), accept: accept, cancel: cancel, done: make(chan struct{})}
	a.mu.Lock()
	_, taken := a.remotes[name]
	closed := a.isClosed
	if !taken && !closed {
		a.remotes[name] = rc
	}
	a.mu.Unlock()
	switch {
	case closed:
		cancel()
		return nil, ErrClosed
	case taken:
		cancel()
		return nil, fmt.Errorf("the IDs of %q are watched already", name)
	}
	go func() {
		defer close(rc.done)
		if err := remote.ListAndWatch(ctx, rc); err != nil && ctx.Err() == nil {
			a.log.Warn("the watch of a remote store ended", "remote", name, "error", err)
		}
	}()
	return rc, nil
}

// WaitForSync waits until all IDs that the remote store had at the start are known.
func (rc *RemoteCache) WaitForSync(ctx context.Context) error {
	select {
	case <-rc.cache.synced:
		return nil
	case <-rc.done:
		return ErrClosed
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Close ends the watch, waits for it, and has the events report that all the cache's IDs are
// gone. Closing again does nothing.
func (rc *RemoteCache) Close() {
	rc.cancel()
	<-rc.done
	rc.a.mu.Lock()
	if rc.a.remotes[rc.name] == rc {
		delete(rc.a.remotes, rc.name)
	}
	rc.a.mu.Unlock()
	rc.closed.Do(func() {
		for _, e := range rc.cache.entries() {
			rc.notify(EventDelete, e.id, e.key)
		}
	})
}

// OnListDone implements [CacheMutations].
func (rc *RemoteCache) OnListDone(revision int64) {
	if rc.cache.listDone(revision) {
		rc.a.events.push(AllocatorEvent{Kind: EventSync, Remote: rc.name})
	}
}

// OnUpsert implements [CacheMutations].
func (rc *RemoteCache) OnUpsert(m Mapping) {
	if m.Key != nil {
		if err := rc.accept(m.ID, m.Key); err != nil {
			rc.a.log.Warn("an ID of a remote store is ignored", "remote", rc.name, "id", m.ID, "error", err)
			rc.OnDelete(m.ID, m.Revision)
			return
		}
	}
	replaced, changed := rc.cache.upsert(m)
	if replaced != nil {
		rc.notify(EventDelete, m.ID, replaced.key)
	}
	if changed {
		rc.notify(EventUpsert, m.ID, m.Key)
	}
}

// OnDelete implements [CacheMutations].
func (rc *RemoteCache) OnDelete(id ID, revision int64) {
	if gone, _ := rc.cache.remove(id, revision, func(*entry) bool { return false }); gone != nil && gone.key != nil {
		rc.notify(EventDelete, id, gone.key)
	}
}

// OnReferencesLost implements [CacheMutations]: this node has none there.
func (rc *RemoteCache) OnReferencesLost([]string) {}

func (rc *RemoteCache) notify(kind EventKind, id ID, key AllocatorKey) {
	rc.a.events.push(AllocatorEvent{Kind: kind, ID: id, Key: key, Remote: rc.name})
}

func (a *Allocator) remoteCaches() []*RemoteCache {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Collect(maps.Values(a.remotes))
}
