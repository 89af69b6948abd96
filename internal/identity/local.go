package identity

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/hawser-net/hawser/internal/labels"
)

// ErrExhausted is returned when a scope has no ID left.
var ErrExhausted = errors.New("no identity is left in the scope")

// LocalAllocator gives out the IDs of one node-local scope, one for each set of labels, with
// reference counts. A freed ID is reused only after all others were, so that a stale reference to
// it does not soon mean another set of labels.
//
// It is safe for concurrent use.
type LocalAllocator struct {
	mu       sync.Mutex
	scope    ID
	last     ID // last ID of the scope
	next     ID // where the search goes on
	byLabels map[string]*localEntry
	byID     map[ID]*localEntry
}

type localEntry struct {
	id   ID
	set  labels.Set
	key  string
	refs int
	// restored: known from a checkpoint and not asked for since; kept until DropRestored.
	restored bool
}

// Checkpoint is the allocator's content for storage on disk.
type Checkpoint struct {
	Scope      ID                `json:"scope"`
	Next       ID                `json:"next"`
	Identities []CheckpointEntry `json:"identities"`
}

// CheckpointEntry is one allocated ID.
type CheckpointEntry struct {
	ID     ID         `json:"id"`
	Labels labels.Set `json:"labels"`
}

// NewLocalAllocator returns an empty allocator for LocalScope, RemoteNodeScope or BlockScope.
func NewLocalAllocator(scope ID) (*LocalAllocator, error) {
	if scope != LocalScope && scope != RemoteNodeScope && scope != BlockScope {
		return nil, fmt.Errorf("scope %#x is not node-local", uint32(scope))
	}
	return &LocalAllocator{
		scope:    scope,
		last:     scope | 0xffffff,
		next:     scope + 1,
		byLabels: map[string]*localEntry{},
		byID:     map[ID]*localEntry{},
	}, nil
}

// Allocate returns the ID of the label set and takes a reference on it. isNew reports whether the
// ID was not in use or restored before.
func (a *LocalAllocator) Allocate(s labels.Set) (id ID, isNew bool, err error) {
	if len(s) == 0 {
		return 0, false, errors.New("an identity needs labels")
	}
	key := s.KVString()
	a.mu.Lock()
	defer a.mu.Unlock()
	if e := a.byLabels[key]; e != nil {
		e.refs++
		e.restored = false
		return e.id, false, nil
	}
	id, err = a.free()
	if err != nil {
		return 0, false, err
	}
	e := &localEntry{id: id, set: s, key: key, refs: 1}
	a.byLabels[key], a.byID[id] = e, e
	return id, true, nil
}

// free finds the next unused ID and moves on behind it.
func (a *LocalAllocator) free() (ID, error) {
	if len(a.byID) >= int(a.last-a.scope)-int(MaxTemporary-MinTemporary)-1 {
		return 0, fmt.Errorf("scope %#x: %w", uint32(a.scope), ErrExhausted)
	}
	for {
		id := a.next
		a.advance()
		if id.IsTemporary() {
			a.next = MaxTemporary + 1
			continue
		}
		if a.byID[id] == nil {
			return id, nil
		}
	}
}

func (a *LocalAllocator) advance() {
	a.next++
	if a.next > a.last || a.next <= a.scope {
		a.next = a.scope + 1
	}
}

// Release releases a reference. gone means that it was the last one and the ID is free. Releasing
// what is not allocated does nothing.
func (a *LocalAllocator) Release(id ID) (gone bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	e := a.byID[id]
	if e == nil || e.refs == 0 {
		return false
	}
	e.refs--
	if e.refs > 0 || e.restored {
		return false
	}
	a.remove(e)
	return true
}

func (a *LocalAllocator) remove(e *localEntry) {
	delete(a.byID, e.id)
	delete(a.byLabels, e.key)
}

// Labels returns the label set of an ID, if it is allocated.
func (a *LocalAllocator) Labels(id ID) (labels.Set, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if e := a.byID[id]; e != nil {
		return e.set, true
	}
	return nil, false
}

// Len returns how many IDs are in use or restored.
func (a *LocalAllocator) Len() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.byID)
}

// Export returns the content for a checkpoint, sorted by ID: equal content exports equally.
func (a *LocalAllocator) Export() Checkpoint {
	a.mu.Lock()
	defer a.mu.Unlock()
	cp := Checkpoint{Scope: a.scope, Next: a.next, Identities: make([]CheckpointEntry, 0, len(a.byID))}
	for _, e := range a.byID {
		cp.Identities = append(cp.Identities, CheckpointEntry{e.id, e.set})
	}
	slices.SortFunc(cp.Identities, func(x, y CheckpointEntry) int { return int(int64(x.ID) - int64(y.ID)) })
	return cp
}

// Import takes over a checkpoint, before anything is allocated. Its IDs are reserved without a
// reference until DropRestored, so that the same labels get the same ID. Entries that are out of
// the scope, duplicate or without labels are skipped and reported.
func (a *LocalAllocator) Import(cp Checkpoint) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.byID) > 0 {
		return errors.New("checkpoint of local identities: the allocator is in use already")
	}
	if cp.Scope != a.scope {
		return fmt.Errorf("checkpoint of local identities: its scope is %#x, not %#x", uint32(cp.Scope), uint32(a.scope))
	}
	var errs []error
	for _, in := range cp.Identities {
		key := in.Labels.KVString()
		switch {
		case in.ID.Scope() != a.scope || in.ID == a.scope || in.ID.IsTemporary():
			errs = append(errs, fmt.Errorf("checkpoint of local identities: ID %d is not in the scope", uint32(in.ID)))
		case len(in.Labels) == 0:
			errs = append(errs, fmt.Errorf("checkpoint of local identities: ID %d has no labels", uint32(in.ID)))
		case a.byID[in.ID] != nil || a.byLabels[key] != nil:
			errs = append(errs, fmt.Errorf("checkpoint of local identities: ID %d or its labels are there twice", uint32(in.ID)))
		default:
			e := &localEntry{id: in.ID, set: in.Labels, key: key, restored: true}
			a.byID[in.ID], a.byLabels[key] = e, e
		}
	}
	if cp.Next > a.scope && cp.Next <= a.last {
		a.next = cp.Next
	}
	return errors.Join(errs...)
}

// DropRestored frees the IDs of the checkpoint that were not requested since, and returns them in
// order.
func (a *LocalAllocator) DropRestored() []ID {
	a.mu.Lock()
	defer a.mu.Unlock()
	var gone []ID
	for id, e := range a.byID {
		if e.restored {
			gone = append(gone, id)
			a.remove(e)
		}
	}
	slices.Sort(gone)
	return gone
}
