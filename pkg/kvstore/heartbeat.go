package kvstore

import (
	"sync"
	"time"
)

// DefaultHeartbeatKey is where backends look for the heartbeat unless they are configured with
// another key.
const DefaultHeartbeatKey = ".hawser/heartbeat"

// HeartbeatStaleAfter is how long the heartbeat may stay as it is before its reader should worry,
// if it is written once a minute.
const HeartbeatStaleAfter = 2 * time.Minute

// Heartbeat evaluates the age of a heartbeat: a key that one program writes at regular intervals,
// whatever it holds. A connection can look well while the part of the store behind it is cut off
// from the writers; then the beats are what is missing. It goes by the reader's own clock and by
// the revision of the key, never by a time that was written, so that clocks need not agree. A store
// in which no beat was ever seen has no writer, and is not evaluated. The zero value is ready, and
// may be used from many goroutines.
type Heartbeat struct {
	mu       sync.Mutex
	revision int64     // of the last beat seen; 0 before the first
	since    time.Time // when that revision was first seen
	missed   bool      // the store has not been read since a read failed
}

// Observe records that the key was read and has that ModRevision, 0 if it does not exist: its lease
// may have run out, which is silence as well.
func (h *Heartbeat) Observe(revision int64, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	beat := revision != 0 && revision != h.revision
	if beat {
		h.revision = revision
	}
	// After the store was unreadable it is unknown when the operator last wrote: it gets a full
	// interval.
	if beat || h.missed {
		h.since = now
	}
	h.missed = false
}

// ReadFailed records that the key could not be read. That is a fault of its own kind, and not the
// operator's.
func (h *Heartbeat) ReadFailed() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.missed = true
}

// Age returns how long the heartbeat has not changed; beats is false if none was ever seen.
func (h *Heartbeat) Age(now time.Time) (age time.Duration, beats bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.revision == 0 {
		return 0, false
	}
	return now.Sub(h.since), true
}
