package allocator

import (
	"context"
	"time"

	"golang.org/x/time/rate"
)

// Backend keeps the numbers for all nodes. [KVStoreBackend] is the one on a key-value store.
type Backend interface {
	// Acquire records that this node uses key and returns the key's number, which it finds or, with
	// the help of numbers, makes. Both happen in one step: a number is never made without the
	// reference that keeps it. After an error the reference may exist; Release takes it back.
	Acquire(ctx context.Context, key AllocatorKey, numbers IDSource) (Acquired, error)

	// Withdraw takes back an Acquire at once: the reference, and the number if it was made and
	// nobody else refers to it.
	Withdraw(ctx context.Context, key AllocatorKey, a Acquired) error

	// Release takes back this node's reference. With NoID it does so whatever the number. It is no
	// fault if there is none.
	Release(ctx context.Context, id ID, key AllocatorKey) error

	// Check returns those of the references that are not in order in the store: number or reference
	// missing, or saying something else.
	Check(ctx context.Context, refs []Reference) ([]Reference, error)

	// Restore writes a reference of this node, and the number itself if it is missing. If the store
	// has another number in force for the key, or another key for the number, it changes nothing
	// and returns a [*ConflictError]. The other key of an edited number is taken back, if nobody
	// goes by it.
	Restore(ctx context.Context, ref Reference) error

	// Get returns the number in force for key according to the store, NoID if there is none.
	Get(ctx context.Context, key AllocatorKey) (ID, error)

	// GetByID returns the key of a number according to the store, or an error that wraps
	// [ErrIdentityNonExistent].
	GetByID(ctx context.Context, id ID) (AllocatorKey, error)

	// ListAndWatch notifies handler of all numbers and then every change, until ctx ends. Calls
	// come from one goroutine, except OnReferencesLost.
	ListAndWatch(ctx context.Context, handler CacheMutations) error

	// RunGC deletes the numbers that nobody refers to, that are within r, and that were found so,
	// unchanged, in the previous round. It returns what to pass to the next round: the dead numbers
	// with their revisions.
	RunGC(ctx context.Context, limiter *rate.Limiter, r Range, previous map[ID]int64) (map[ID]int64, GCStats, error)

	// RunLocksGC deletes locks of other writers that have not moved since the previous round. It
	// returns those held now.
	RunLocksGC(ctx context.Context, previous map[string]Lock) (map[string]Lock, error)

	// Confirm means that this node goes by no number any more that ended up to revision, which
	// ListAndWatch has delivered. Whoever collects gives no number to other keys before every node
	// that has ever confirmed anything has confirmed its end, or counts as lost.
	Confirm(ctx context.Context, revision int64) error

	// ObserveLostConfirmation calls lost, which must not block, when what Confirm said last is lost
	// with this node's lease, until stop is called.
	ObserveLostConfirmation(lost func()) (stop func())

	// DeleteAllKeys deletes everything of this allocator in the store. It is for tests and for the
	// end of a cluster.
	DeleteAllKeys(ctx context.Context) error
}

// IDSource is what a backend asks of the allocator while it looks for a number.
type IDSource interface {
	// Known returns the number that the cache has for key, the oldest if there are several; NoID if
	// there is none.
	Known(key string) ID
	// Pick returns a number of the range that nobody is known to use, at random. It returns an
	// error that wraps [ErrExhausted] if there is none.
	Pick() (ID, error)
	// Quarantined means that a number was deleted, and when. It is not picked if another is free.
	Quarantined(id ID, since time.Time)
	// Taken means that a picked number turned out to be used.
	Taken(id ID)
}

// Acquired is the outcome of [Backend.Acquire].
type Acquired struct {
	ID ID
	// IsNew means that the number was made.
	IsNew bool
	// Revision is one that the watch must have reached before it is known that no older number for
	// the key exists; 0 if that is known already.
	Revision int64
	// Final means that the number is to be accepted even if an older one for the key is known:
	// others use it and do not give it back.
	Final bool
}

// Reference is a number that this node uses for a key.
type Reference struct {
	ID  ID
	Key AllocatorKey
	// Edited means that the number was made for Key, and that somebody has written another key
	// over it: see [Mapping].
	Edited bool
}

// Range is the numbers from Min to Max, both included, with Mask or-ed to each.
type Range struct{ Min, Max, Mask ID }

// Contains reports whether id is a number of the range.
func (r Range) Contains(id ID) bool {
	if id&r.Mask != r.Mask {
		return false
	}
	low := id &^ r.Mask
	return low >= r.Min && low <= r.Max
}

// CacheMutations receives the numbers that a backend sees.
type CacheMutations interface {
	// OnListDone is called when all numbers have been delivered, as of revision: at the start, and
	// again whenever the watch had to begin anew.
	OnListDone(revision int64)
	// OnUpsert is called when a number appears or is written again.
	OnUpsert(m Mapping)
	// OnDelete is called when a number is gone, by a change at revision; 0 if it was missing from a
	// listing.
	OnDelete(id ID, revision int64)
	// OnReferencesLost is called with the canonical strings of keys whose reference by this node
	// was lost with its lease. It must not block.
	OnReferencesLost(keys []string)
}

// Mapping is a number and its key as the store shows them.
type Mapping struct {
	ID ID
	// Key is nil if the store holds something that is no key; the number is taken all the same.
	Key AllocatorKey
	// Created orders the numbers of one key by age.
	Created int64
	// Revision is that of the change, 0 during a listing.
	Revision int64
	// Incarnation names the change that made the number. Where the store shows it, another key
	// under the same Incarnation is an edit by hand: a number gets another key only when it is made
	// anew. 0 if the store does not show it, or if the backend sees to edits itself.
	Incarnation int64
	// Original means that Key is what the number was made with, or what nodes go by that use it,
	// and not something that was written over it since.
	Original bool
	// Edited means that the store has another key for the number than Key, which is what nodes go
	// by that use it.
	Edited bool
}

// GCStats reports what a round of garbage collection found and did.
type GCStats struct {
	// Alive numbers are referred to. Dead ones are not, and were left for the next round. Deleted
	// ones were, and are gone.
	Alive, Dead, Deleted int
	// Spared numbers were about to be deleted when a reference appeared or they changed.
	Spared int
	// Quarantined numbers were deleted and are not made again yet, Freed ones may be from now on.
	// Unconfirmed are those of the quarantined that only wait for nodes to confirm their end.
	Quarantined, Freed, Unconfirmed int
	// OutOfRange numbers belong to someone else and were not looked at.
	OutOfRange int
}

// Lock is a lock key of another writer.
type Lock struct {
	ModRevision int64
	Lease       string
}
