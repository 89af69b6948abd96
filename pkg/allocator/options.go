package allocator

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"time"
)

// settings are what the options set.
type settings struct {
	idRange    Range
	events     AllocatorEventChan
	protect    bool
	sync       time.Duration
	timeout    time.Duration
	quarantine time.Duration
	log        *slog.Logger
	backend    Backend
}

// DefaultQuarantine is how long the ID of a collected key is in quarantine, see [WithQuarantine].
const DefaultQuarantine = 15 * time.Minute

func defaults() settings {
	return settings{
		idRange:    Range{Min: 1, Max: math.MaxUint64},
		sync:       5 * time.Minute,
		timeout:    2 * time.Minute,
		quarantine: DefaultQuarantine,
		log:        slog.New(slog.DiscardHandler),
	}
}

func (s settings) validate() error {
	var errs []error
	n := s.idRange
	if n.Min < 1 {
		errs = append(errs, errors.New("the smallest ID must be at least 1"))
	}
	if n.Max < n.Min {
		errs = append(errs, fmt.Errorf("the largest ID %s is below the smallest, %s", n.Max, n.Min))
	}
	if n.Mask != 0 && n.Max >= n.Mask&-n.Mask {
		errs = append(errs, fmt.Errorf("the prefix mask %#x overlaps the range %s to %s", uint64(n.Mask), n.Min, n.Max))
	}
	if s.sync <= 0 || s.timeout <= 0 {
		errs = append(errs, errors.New("the sync interval and the allocation timeout must be above 0"))
	}
	return errors.Join(errs...)
}

// AllocatorOption changes how an [Allocator] works.
type AllocatorOption func(*settings)

// WithEvents sends the changes of the IDs to events. The channel is not closed. A slow reader
// holds nothing up: events queue in memory, at most two for each ID that there is or was when
// the reader read last. What comes and goes in between is not delivered, and an ID may be
// reported gone that was not delivered before.
func WithEvents(events AllocatorEventChan) AllocatorOption {
	return func(s *settings) { s.events = events }
}

// WithMin sets the smallest ID, 1 if not given.
func WithMin(id ID) AllocatorOption { return func(s *settings) { s.idRange.Min = id } }

// WithMax sets the largest ID, the largest there is if not given.
func WithMax(id ID) AllocatorOption { return func(s *settings) { s.idRange.Max = id } }

// WithPrefixMask or-s mask to every ID chosen, for example a cluster's own bits. It must not
// overlap the range.
func WithPrefixMask(mask ID) AllocatorOption { return func(s *settings) { s.idRange.Mask = mask } }

// WithMasterKeyProtection writes an ID again when it is deleted from the store while this node uses
// it. Without it the sync does so, later.
func WithMasterKeyProtection() AllocatorOption { return func(s *settings) { s.protect = true } }

// WithoutGC does nothing: an allocator never collects garbage by itself, see [Allocator.RunGC]. It
// exists because users of such libraries look for it.
func WithoutGC() AllocatorOption { return func(*settings) {} }

// WithBackend has the allocator use that backend in place of the argument of [NewAllocator] and
// [NewAllocatorForGC], which may be nil then.
func WithBackend(b Backend) AllocatorOption { return func(s *settings) { s.backend = b } }

// WithSyncInterval sets how often all references of this node are compared with the store and
// repaired, 5 minutes if not given.
func WithSyncInterval(d time.Duration) AllocatorOption { return func(s *settings) { s.sync = d } }

// WithTimeout bounds one request for an ID, and an Allocate whose context has no deadline, 2
// minutes if not given.
func WithTimeout(d time.Duration) AllocatorOption { return func(s *settings) { s.timeout = d } }

// WithQuarantine sets how long a deleted ID is not chosen again if others are free,
// [DefaultQuarantine] if not given: nodes that have not observed its end must not take its next
// owner for the last one.
func WithQuarantine(d time.Duration) AllocatorOption { return func(s *settings) { s.quarantine = d } }

// WithLogger sets the log, none if not given.
func WithLogger(log *slog.Logger) AllocatorOption { return func(s *settings) { s.log = log } }

// EventKind is what happened to an ID.
type EventKind uint8

// The kinds of [AllocatorEvent].
const (
	// EventUpsert: the ID has that key now.
	EventUpsert EventKind = iota + 1
	// EventDelete: the ID is gone.
	EventDelete
	// EventSync: all IDs that were there at the start have been delivered. It comes once.
	EventSync
	// EventRenumbered: a key that this node uses had to change its ID, from OldID to ID, since
	// the store has the key or the ID otherwise. It can only happen after this node's reference
	// was lost, by its lease or with the store's data.
	EventRenumbered
)

// String returns the kind's name.
func (k EventKind) String() string {
	switch k {
	case EventUpsert:
		return "upsert"
	case EventDelete:
		return "delete"
	case EventSync:
		return "sync"
	case EventRenumbered:
		return "renumbered"
	}
	return fmt.Sprintf("EventKind(%d)", uint8(k))
}

// AllocatorEvent is a change of the IDs.
type AllocatorEvent struct {
	Kind EventKind
	ID   ID
	// OldID is set for EventRenumbered.
	OldID ID
	// Key is the ID's key, for EventDelete the one it had.
	Key AllocatorKey
	// Remote names the remote cache that saw the change; empty for the allocator's own store.
	Remote string
}

// AllocatorEventChan carries events.
type AllocatorEventChan chan AllocatorEvent

// RangeFunc is called by [Allocator.ForeachCache] for each ID.
type RangeFunc func(ID, AllocatorKey)
