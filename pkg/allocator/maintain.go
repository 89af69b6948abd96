package allocator

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/hawser-net/hawser/pkg/retry"
)

// verify waits until the watch has delivered everything up to the ID got, and releases the ID if
// there is an older one for the same key: nodes that did not know of each other's IDs so agree on
// the oldest. again means that the caller must start over.
func (a *Allocator) verify(ctx context.Context, lk *localKey, got Acquired, mark, withdrawals int) (again bool, err error) {
	err = a.cache.waitFor(ctx, mark, got.Revision, a.done)
	switch {
	case errors.Is(err, errRelisted):
		// The store may have been put back to an earlier state. What was acquired may or may not be
		// part of it.
		return true, a.backend.Withdraw(ctx, lk.key, got)
	case err != nil:
		return false, err
	}
	if oldest := a.cache.oldest(lk.text); oldest == NoID || oldest == got.ID || got.Final || withdrawals >= maxWithdrawals {
		return false, nil
	}
	return true, a.backend.Withdraw(ctx, lk.key, got)
}

// wake has the maintenance look at the local keys soon.
func (a *Allocator) wake() {
	retry.Notify(a.wakeup)
}

// maintain keeps this node's references in order: what was lost is written again, what is no longer
// wanted is taken back. It returns when ctx ends.
func (a *Allocator) maintain(ctx context.Context) {
	sync := time.NewTimer(a.syncPause())
	defer sync.Stop()
	failures := 0
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.wakeup:
		case <-sync.C:
			a.doubt.Store(true)
			a.cache.tidy(a.set.quarantine)
			a.takeBackLate()
			sync.Reset(a.syncPause())
		}
		if a.doubt.CompareAndSwap(true, false) && !a.compare(ctx) {
			a.doubt.Store(true)
		}
		if a.repairAll(ctx) && !a.doubt.Load() {
			failures = 0
			continue
		}
		failures++
		if retry.Wait(ctx, failures, 100*time.Millisecond, 30*time.Second) != nil {
			return
		}
		a.wake()
	}
}

// syncPause is the sync interval, up to a tenth more or less: nodes that started together must not
// compare together.
func (a *Allocator) syncPause() time.Duration {
	return a.set.sync*9/10 + rand.N(a.set.sync/5+1)
}

// noteLate remembers that a reference to the key may yet be written.
func (a *Allocator) noteLate(lk *localKey) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.late[lk.text] = lateKey{key: lk.key}
}

// takeBackLate releases references that an attempt of an earlier sync interval may have written
// after all, if their keys are not in use here.
func (a *Allocator) takeBackLate() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for text, late := range a.late {
		lk := a.local[text]
		switch late.seen++; {
		case late.seen < 2, lk != nil && lk.users > 0:
			a.late[text] = late
			continue
		case lk == nil:
			a.local[text] = &localKey{key: late.key, text: text, turn: make(chan struct{}, 1), unwanted: true}
		}
		delete(a.late, text)
	}
}

// compare marks those of this node's references that the store has lost or has otherwise. It
// reports whether it saw them all.
func (a *Allocator) compare(ctx context.Context) bool {
	a.mu.Lock()
	var refs []Reference
	for _, lk := range a.local {
		if lk.refs > 0 && lk.id != NoID {
			refs = append(refs, Reference{ID: lk.id, Key: lk.key})
		}
	}
	a.mu.Unlock()
	// Other writers may have made two IDs for a key, each in good order. The oldest wins, so
	// the users of the others must look.
	var duplicates []Reference
	for _, ref := range refs {
		if id := a.cache.oldest(ref.Key.GetKey()); id != NoID && id != ref.ID {
			duplicates = append(duplicates, ref)
		}
	}
	// Check makes several requests for many references; each may have to wait for the rate limit.
	ctx, cancel := context.WithTimeout(ctx, operationTimeout+time.Duration(len(refs))*10*time.Millisecond)
	defer cancel()
	wrong, err := a.backend.Check(ctx, refs)
	if err != nil && ctx.Err() == nil {
		a.log.Warn("cannot compare the references of this node with the store", "error", err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, ref := range append(wrong, duplicates...) {
		if lk := a.local[ref.Key.GetKey()]; lk != nil && lk.id == ref.ID {
			lk.wrong = true
		}
	}
	return err == nil
}

// repairAll repairs every marked local key, and reports whether all succeeded.
func (a *Allocator) repairAll(ctx context.Context) bool {
	a.mu.Lock()
	var list []*localKey
	for _, lk := range a.local {
		if lk.unwanted || (lk.wrong && lk.refs > 0) {
			lk.users++
			list = append(list, lk)
		}
	}
	a.mu.Unlock()
	slices.SortFunc(list, func(x, y *localKey) int {
		if x.text < y.text {
			return -1
		}
		return 1
	})
	ok := true
	for _, lk := range list {
		if err := a.repair(ctx, lk); err != nil {
			ok = false
			if ctx.Err() == nil {
				a.log.Warn("cannot repair the reference of this node to an ID yet", "key", lk.text, "error", err)
			}
		}
		a.leave(lk)
	}
	return ok
}

// repair reconciles the store with what this node wants of one key.
func (a *Allocator) repair(ctx context.Context, lk *localKey) error {
	ctx, cancel := context.WithTimeout(ctx, operationTimeout)
	defer cancel()
	select {
	case lk.turn <- struct{}{}:
		defer func() { <-lk.turn }()
	case <-ctx.Done():
		return ctx.Err()
	}
	a.mu.Lock()
	refs, id, was, unwanted, wrong := lk.refs, lk.id, lk.was, lk.unwanted, lk.wrong
	// From here on whatever goes wrong marks the key again.
	lk.wrong = false
	a.mu.Unlock()
	err := func() error {
		switch {
		case refs == 0 && unwanted:
			if err := a.backend.Release(ctx, NoID, lk.key); err != nil {
				return err
			}
			a.ended(lk)
			a.notifyMissing(id)
			a.notifyMissing(was)
			return nil
		case refs == 0 || !wrong:
			return nil
		case id == NoID: // an earlier attempt to renumber failed
			_, _, err := a.acquire(ctx, lk, nil)
			return err
		}
		mark := a.cache.mark()
		err := a.backend.Restore(ctx, Reference{ID: id, Key: lk.key})
		var conflict *ConflictError
		if err == nil {
			a.log.Info("an ID and this node's reference to it are in order again", "id", id, "key", lk.text)
			return nil
		}
		if !errors.As(err, &conflict) {
			a.noteLate(lk)
			return err
		}
		// Others went on without this node's reference: it must follow. Until it knows the ID
		// in force, the key has none here.
		a.mu.Lock()
		a.setID(lk, NoID)
		lk.was = id
		a.mu.Unlock()
		if conflict.Revision != 0 {
			// The watch shows whether the ID was recreated for its owner, or edited: then it is
			// restored.
			wait, cancel := context.WithTimeout(ctx, editTimeout)
			_ = a.cache.waitFor(wait, mark, conflict.Revision, a.done) // else the key gets another ID, which is in order too
			cancel()
		}
		if !a.cache.isEdited(id, lk.text) {
			a.log.Warn("the ID of a key in use on this node must change", "key", lk.text, "because", conflict)
		}
		_, _, err = a.acquire(ctx, lk, nil)
		return err
	}()
	if err != nil {
		a.mu.Lock()
		lk.wrong = lk.wrong || wrong
		a.mu.Unlock()
	}
	return err
}

// ended records that the node's reference to a key is gone. The caller has the key's turn, and the
// key is not in use.
func (a *Allocator) ended(lk *localKey) {
	a.mu.Lock()
	defer a.mu.Unlock()
	lk.unwanted, lk.wrong, lk.was = false, false, NoID
	a.setID(lk, NoID)
}

// notifyMissing notifies of the end of an ID that the store has lost and that this node no
// longer keeps alive.
func (a *Allocator) notifyMissing(id ID) {
	if e := a.cache.forget(id); e != nil && e.key != nil {
		a.events.push(AllocatorEvent{Kind: EventDelete, ID: id, Key: e.key})
	}
}

// mutations is the allocator as the receiver of the IDs of its own store.
type mutations Allocator

// OnListDone implements [CacheMutations].
func (m *mutations) OnListDone(revision int64) {
	a := (*Allocator)(m)
	if a.cache.listDone(revision) {
		a.events.push(AllocatorEvent{Kind: EventSync})
		return
	}
	// The watch restarted, perhaps because the store was restored from a backup: nothing that this
	// node wrote is certain to be there.
	a.doubt.Store(true)
	a.wake()
}

// OnUpsert implements [CacheMutations].
func (m *mutations) OnUpsert(mapping Mapping) {
	a := (*Allocator)(m)
	if e, edited, changed := a.cache.rewrite(mapping); e != nil {
		if changed && edited {
			a.log.Error("the key of an ID in the store was edited by hand; the ID keeps its meaning; restore its key",
				"id", e.id, "key", e.text, "edited", mapping.Key)
		} else if changed {
			a.log.Info("the key of an edited ID is restored", "id", e.id, "key", e.text)
		}
	} else {
		replaced, changed := a.cache.upsert(mapping)
		if replaced != nil {
			a.events.push(AllocatorEvent{Kind: EventDelete, ID: mapping.ID, Key: replaced.key})
		}
		if changed {
			a.events.push(AllocatorEvent{Kind: EventUpsert, ID: mapping.ID, Key: mapping.Key})
		}
	}
	oldest, text := NoID, ""
	if mapping.Key != nil {
		text = mapping.Key.GetKey()
		oldest = a.cache.oldest(text)
	}
	a.mu.Lock()
	lk := a.localIDs[mapping.ID]
	stolen := lk != nil && lk.refs > 0 && (mapping.Edited || mapping.Key == nil || mapping.Key.GetKey() != lk.text)
	if stolen {
		lk.wrong = true
	}
	// One that this node uses may have an older ID, as of several that were made in the same
	// second the smallest counts.
	lk = a.local[text]
	older := lk != nil && lk.refs > 0 && lk.id != NoID && lk.id != mapping.ID && oldest == mapping.ID
	if older {
		lk.wrong = true
	}
	a.mu.Unlock()
	if stolen || older {
		a.wake()
	}
}

// OnDelete implements [CacheMutations].
func (m *mutations) OnDelete(id ID, revision int64) {
	a := (*Allocator)(m)
	gone, kept := a.cache.remove(id, revision, func(e *entry) bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		lk := a.localIDs[id]
		if lk == nil || lk.refs == 0 || lk.text != e.text {
			return false
		}
		lk.wrong = true
		return true
	})
	switch {
	case kept && a.set.protect:
		a.wake()
	case !kept && gone != nil && gone.key != nil:
		a.events.push(AllocatorEvent{Kind: EventDelete, ID: id, Key: gone.key})
	}
}

// OnReferencesLost implements [CacheMutations].
func (m *mutations) OnReferencesLost(keys []string) {
	a := (*Allocator)(m)
	a.mu.Lock()
	for _, text := range keys {
		// Even if the key is not in use yet: an Allocate may be about to succeed with the reference
		// that is gone.
		if lk := a.local[text]; lk != nil {
			lk.wrong = true
		}
	}
	a.mu.Unlock()
	a.wake()
}
