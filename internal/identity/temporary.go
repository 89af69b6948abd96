package identity

import (
	"errors"
	"fmt"
	"sync"

	"github.com/hawser-net/hawser/internal/labels"
)

// Temporaries gives out temporary identities, one for each set of labels, with reference counts. A
// ID that was freed is given out again only after all others were, so that logs do not mean two
// label sets by one ID in a short time.
//
// It is safe for concurrent use, does no I/O and starts no goroutine.
type Temporaries struct {
	mu       sync.Mutex
	next     ID
	byLabels map[string]*localEntry
	byID     map[ID]*localEntry
}

// NewTemporaries returns one that has given out nothing.
func NewTemporaries() *Temporaries {
	return &Temporaries{next: MinTemporary, byLabels: map[string]*localEntry{}, byID: map[ID]*localEntry{}}
}

// Acquire returns the ID of the label set and takes a reference to it. It fails with
// [ErrExhausted] if all IDs are in use.
func (t *Temporaries) Acquire(s labels.Set) (ID, error) {
	if len(s) == 0 {
		return 0, errors.New("an identity needs labels")
	}
	key := s.KVString()
	t.mu.Lock()
	defer t.mu.Unlock()
	if e := t.byLabels[key]; e != nil {
		e.refs++
		return e.id, nil
	}
	for range MaxTemporary - MinTemporary + 1 {
		id := t.next
		if t.next++; t.next > MaxTemporary {
			t.next = MinTemporary
		}
		if t.byID[id] == nil {
			t.add(&localEntry{id: id, set: s, key: key, refs: 1})
			return id, nil
		}
	}
	return 0, fmt.Errorf("all %d temporary identities of this node are in use: %w", len(t.byID), ErrExhausted)
}

// Restore takes a reference to an ID that was given to the label set before a restart. It fails
// if the ID is not a temporary one or means other labels by now.
func (t *Temporaries) Restore(id ID, s labels.Set) error {
	key := s.KVString()
	t.mu.Lock()
	defer t.mu.Unlock()
	e, other := t.byID[id], t.byLabels[key]
	switch {
	case !id.IsTemporary():
		return fmt.Errorf("identity %s is not a temporary one", id)
	case len(s) == 0:
		return errors.New("an identity needs labels")
	case e != other:
		return fmt.Errorf("identity %s cannot be that of %s again: ID or labels are in use otherwise", id, s)
	case e != nil:
		e.refs++
		return nil
	}
	t.add(&localEntry{id: id, set: s, key: key, refs: 1})
	return nil
}

// add must be called with mu held.
func (t *Temporaries) add(e *localEntry) { t.byID[e.id], t.byLabels[e.key] = e, e }

// Release releases a reference. gone means that it was the last one and the ID is free. Releasing
// what is not in use does nothing.
func (t *Temporaries) Release(id ID) (gone bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.byID[id]
	if e == nil {
		return false
	}
	if e.refs--; e.refs > 0 {
		return false
	}
	delete(t.byID, e.id)
	delete(t.byLabels, e.key)
	return true
}

// Len returns how many IDs are in use.
func (t *Temporaries) Len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.byID)
}
