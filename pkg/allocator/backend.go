package allocator

import (
	"context"
	"time"

	"golang.org/x/time/rate"
)

// Backend keeps the IDs for all nodes. [KVStoreBackend] is the one on a key-value store.
type Backend interface {
	// Acquire records that this node uses key and returns the key's ID, which it finds or, with
	// the help of ids, makes. Both happen in one step: an ID is never made without the
	// reference that keeps it. After an error the reference may exist; Release takes it back.
	Acquire(ctx context.Context, key AllocatorKey, ids IDSource) (Acquired, error)

	// Withdraw takes back an Acquire at once: the reference, and the ID if it was made and
	// no other node refers to it. The ID is in quarantine then: others may have observed it.
	Withdraw(ctx context.Context, key AllocatorKey, a Acquired) error

	// Release takes back this node's reference. With NoID it does so whatever the ID. It is no
	// fault if there is none.
	Release(ctx context.Context, id ID, key AllocatorKey) error

	// Check returns those of the references that are not in order in the store: ID or reference
	// missing or different.
	Check(ctx context.Context, refs []Reference) ([]Reference, error)

	// Restore writes a reference of this node, and the ID itself if it is missing. If the store
	// has another ID in force for the key, or another key for the ID, or the ID in quarantine
	// after another key, it changes nothing and returns a [*ConflictError]. The other key of an
	// edited ID is reverted if no node uses it.
	Restore(ctx context.Context, ref Reference) error

	// Get returns the ID in force for key according to the store, NoID if there is none.
	Get(ctx context.Context, key AllocatorKey) (ID, error)

	// GetByID returns the key of an ID according to the store, or an error that wraps
	// [ErrIdentityNonExistent], or [ErrUnreadable] if what it has is no key.
	GetByID(ctx context.Context, id ID) (AllocatorKey, error)

	// ListAndWatch notifies handler of all IDs and then every change, until ctx ends. Calls
	// come from one goroutine, except OnReferencesLost.
	ListAndWatch(ctx context.Context, handler CacheMutations) error

	// RunGC deletes the IDs within r that have no reference, and that were found so, unchanged, in
	// the previous round. It returns what to pass to the next round: the dead IDs with their
	// revisions. In a store without space it deletes none, returns none, and the error wraps
	// [kvstore.ErrNoSpace].
	RunGC(ctx context.Context, limiter *rate.Limiter, r Range, previous map[ID]int64) (map[ID]int64, GCStats, error)

	// RunLocksGC deletes locks of other writers that have not moved since the previous round. It
	// returns those held now, and how many it deleted, also with an error.
	RunLocksGC(ctx context.Context, previous map[string]Lock) (held map[string]Lock, deleted int, err error)

	// Confirm states that this node uses no ID any more that was deleted up to revision, which
	// ListAndWatch has delivered. Collectors give no ID to other keys before every node that has
	// ever confirmed anything has confirmed its deletion, or counts as lost.
	Confirm(ctx context.Context, revision int64) error

	// ObserveLostConfirmation calls lost, which must not block, when the last confirmation is lost
	// with this node's lease, until stop is called.
	ObserveLostConfirmation(lost func()) (stop func())

	// DeleteAllKeys deletes everything of this allocator in the store. It is for tests and for the
	// end of a cluster.
	DeleteAllKeys(ctx context.Context) error
}

// IDSource is what a backend asks of the allocator while it looks for an ID.
type IDSource interface {
	// Known returns the ID that the cache has for key, the oldest if there are several; NoID if
	// there is none.
	Known(key string) ID
	// Pick returns a random ID of the range that is not known to be in use. It returns an error
	// that wraps [ErrExhausted] if there is none.
	Pick() (ID, error)
	// Quarantined means that an ID was deleted, and when. It is not picked if another is free.
	Quarantined(id ID, since time.Time)
	// Taken means that a picked ID turned out to be used.
	Taken(id ID)
}

// Acquired is the outcome of [Backend.Acquire].
type Acquired struct {
	ID ID
	// IsNew means that the ID was made.
	IsNew bool
	// Revision is one that the watch must have reached before it is known that no older ID for
	// the key exists; 0 if that is known already.
	Revision int64
	// Final means that the ID is to be accepted even if an older one for the key is known:
	// others use it and do not give it back.
	Final bool
}

// Reference is an ID that this node uses for a key.
type Reference struct {
	ID  ID
	Key AllocatorKey
	// Edited means that the ID was made for Key, and that another key was written over it: see
	// [Mapping].
	Edited bool
}

// Range is the IDs from Min to Max, both included, with Mask or-ed to each.
type Range struct{ Min, Max, Mask ID }

// Contains reports whether id is an ID of the range.
func (r Range) Contains(id ID) bool {
	if id&r.Mask != r.Mask {
		return false
	}
	low := id &^ r.Mask
	return low >= r.Min && low <= r.Max
}

// CacheMutations receives the IDs that a backend sees.
type CacheMutations interface {
	// OnListDone is called when all IDs have been delivered, as of revision: at the start, and
	// again whenever the watch had to restart.
	OnListDone(revision int64)
	// OnUpsert is called when an ID appears or is written again.
	OnUpsert(m Mapping)
	// OnDelete is called when an ID is gone, by a change at revision; 0 if it was missing from a
	// listing.
	OnDelete(id ID, revision int64)
	// OnReferencesLost is called with the canonical strings of keys whose reference by this node
	// was lost with its lease. It must not block.
	OnReferencesLost(keys []string)
}

// Mapping is an ID and its key as the store shows them.
type Mapping struct {
	ID ID
	// Key is nil if the store holds something that is no key; the ID is taken all the same.
	Key AllocatorKey
	// Created orders the IDs of one key by age.
	Created int64
	// Revision is that of the change, 0 during a listing.
	Revision int64
	// Incarnation names the change that made the ID. Where the store shows it, another key under
	// the same Incarnation is an edit by hand: an ID gets another key only when it is recreated. 0
	// if the store does not show it, or if the backend handles edits itself.
	Incarnation int64
	// Original means that Key is what the ID was made with, or what the nodes take it for that use
	// it, and not something that was written over it since.
	Original bool
	// Edited means that the store has another key for the ID than Key, which is what nodes go
	// by that use it.
	Edited bool
}

// GCStats reports what a round of garbage collection found and did.
type GCStats struct {
	// Alive IDs are referred to. Dead ones are not, and were left for the next round. Deleted
	// ones were, and are gone.
	Alive, Dead, Deleted int
	// Spared IDs were about to be deleted when a reference appeared or they changed.
	Spared int
	// Quarantined IDs were deleted and are not made again yet, Freed ones may be from now on.
	// Unconfirmed are those of the quarantined that only wait for nodes to confirm their end.
	Quarantined, Freed, Unconfirmed int
	// OutOfRange IDs belong to someone else and were not looked at.
	OutOfRange int
}

// Lock is a lock key of another writer.
type Lock struct {
	ModRevision int64
	Lease       string
}
