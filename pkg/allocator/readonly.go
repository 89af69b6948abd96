package allocator

import (
	"context"
	"fmt"

	"golang.org/x/time/rate"
)

// ReadOnly returns a backend that observes what b observes and writes nothing: IDs are made,
// and kept alive, by others. [Allocator.Allocate] returns the ID that is in force for a key, or
// an error that wraps [ErrUnassigned]. If the ID of a key in use changes, the allocator
// notifies by an [EventRenumbered], as always; if it vanishes, it stays in use here until there is
// one again.
func ReadOnly(b Backend) Backend { return readOnly{b} }

type readOnly struct{ Backend }

// Acquire implements [Backend].
func (r readOnly) Acquire(ctx context.Context, key AllocatorKey, _ IDSource) (Acquired, error) {
	id, err := r.Get(ctx, key)
	if err != nil {
		return Acquired{}, err
	}
	if id == NoID {
		return Acquired{}, fmt.Errorf("key %q: %w", key.GetKey(), ErrUnassigned)
	}
	// Which of several IDs counts was decided by the store a moment ago; the cache may be
	// behind.
	return Acquired{ID: id, Final: true}, nil
}

// Withdraw implements [Backend]. There is nothing to take back.
func (r readOnly) Withdraw(context.Context, AllocatorKey, Acquired) error { return nil }

// Release implements [Backend]. There is no reference.
func (r readOnly) Release(context.Context, ID, AllocatorKey) error { return nil }

// Check implements [Backend]: an ID is in order if it is the one in force.
func (r readOnly) Check(ctx context.Context, refs []Reference) ([]Reference, error) {
	var wrong []Reference
	for _, ref := range refs {
		id, err := r.Get(ctx, ref.Key)
		if err != nil {
			return wrong, err
		}
		if id != ref.ID {
			wrong = append(wrong, ref)
		}
	}
	return wrong, nil
}

// Restore implements [Backend]: it reports why a reference is not in order, and changes nothing.
func (r readOnly) Restore(ctx context.Context, ref Reference) error {
	id, err := r.Get(ctx, ref.Key)
	switch {
	case err != nil:
		return err
	case id == NoID:
		return fmt.Errorf("ID %s of key %q is gone from the store, and is for others to make again: %w", ref.ID, ref.Key.GetKey(), ErrUnassigned)
	case id != ref.ID:
		return &ConflictError{Key: ref.Key.GetKey(), Held: ref.ID, InForce: id}
	}
	return nil
}

// errReadOnly is what the collectors of a read-only backend return.
func errReadOnly(what string) error { return fmt.Errorf("%s: this backend only reads", what) }

// RunGC implements [Backend]. It fails.
func (r readOnly) RunGC(context.Context, *rate.Limiter, Range, map[ID]int64) (map[ID]int64, GCStats, error) {
	return nil, GCStats{}, errReadOnly("collect IDs")
}

// RunLocksGC implements [Backend]. It fails.
func (r readOnly) RunLocksGC(context.Context, map[string]Lock) (map[string]Lock, int, error) {
	return nil, 0, errReadOnly("collect locks")
}

// DeleteAllKeys implements [Backend]. It fails.
func (r readOnly) DeleteAllKeys(context.Context) error { return errReadOnly("delete all keys") }
