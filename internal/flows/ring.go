package flows

import (
	"fmt"
	"sync"
	"time"
)

// MaxCapacity bounds a ring.
const MaxCapacity = 65535

// WakeEvery is how often readers that wait are woken at most, however fast entries come: to wake
// many of them takes longer than to add an entry.
const WakeEvery = 5 * time.Millisecond

// Ring keeps the last entries that were added to it. Adding one wakes no reader, and waits at
// most for readers that are copying what they read. It is safe for concurrent use.
//
// Entries have numbers, from 0 on in the order in which they were added; a reader is just the
// number of its next entry, and so cannot block writers.
type Ring[T any] struct {
	mu    sync.RWMutex
	slots []T
	next  uint64
	wake  chan struct{} // closed soon after the next entry
	awake bool          // that is about to happen
	older *older[T]     // nil if nothing is kept of what is overwritten

	// sizes are those of the entries in slots, and size is their sum; sizeOf is nil if it is not
	// bounded. Entries before first were dropped although they had not been overwritten.
	sizeOf     func(T) int
	sizes      []int
	size, most int
	first      uint64
}

// NewRing returns an empty ring for a number of entries, 1 to [MaxCapacity].
func NewRing[T any](capacity int) (*Ring[T], error) {
	if capacity < 1 || capacity > MaxCapacity {
		return nil, fmt.Errorf("a ring of %d entries is outside 1 to %d", capacity, MaxCapacity)
	}
	return &Ring[T]{slots: make([]T, capacity), wake: make(chan struct{})}, nil
}

// Bound has the ring drop its oldest entries, but not the last one, while all together are larger
// than most. It must be called before the first entry is added.
func (r *Ring[T]) Bound(most int, size func(T) int) {
	r.sizeOf, r.most, r.sizes = size, most, make([]int, len(r.slots))
}

// Add adds an entry, in place of the oldest if the ring is full.
func (r *Ring[T]) Add(e T) {
	size := 0
	if r.sizeOf != nil {
		size = r.sizeOf(e)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	at := r.next % uint64(len(r.slots))
	slot := &r.slots[at]
	if r.older != nil && r.next >= uint64(len(r.slots)) {
		r.older.add(r.next-uint64(len(r.slots)), *slot)
	}
	*slot = e
	r.next++
	if r.sizeOf != nil {
		r.size += size - r.sizes[at]
		r.sizes[at] = size
		r.shrink()
	}
	if !r.awake {
		r.awake = true
		time.AfterFunc(WakeEvery, r.rouse)
	}
}

// shrink drops the oldest entries until the others are small enough. It must be called with mu
// held.
func (r *Ring[T]) shrink() {
	for r.size > r.most && r.oldest() < r.next-1 {
		r.first = r.oldest() + 1
		at := (r.first - 1) % uint64(len(r.slots))
		r.size -= r.sizes[at]
		var none T
		r.slots[at], r.sizes[at] = none, 0
	}
}

// rouse wakes all who wait.
func (r *Ring[T]) rouse() {
	r.mu.Lock()
	defer r.mu.Unlock()
	close(r.wake)
	r.wake, r.awake = make(chan struct{}), false
}

// Cap returns how many entries the ring can keep.
func (r *Ring[T]) Cap() int { return len(r.slots) }

// Bounds returns the number of the oldest entry there is and the one that the next will have. They
// are the same if the ring is empty.
func (r *Ring[T]) Bounds() (oldest, next uint64) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.oldest(), r.next
}

func (r *Ring[T]) oldest() uint64 {
	return max(r.first, r.next-min(r.next, uint64(len(r.slots))))
}

// Read copies entries from a number on into a slice, as many as there are and fit. It returns how
// many, and how many of those asked for were overwritten or dropped before; the reader goes on
// behind both. If there is nothing to read yet, wait is closed soon after there is.
func (r *Ring[T]) Read(from uint64, into []T) (n int, missed uint64, wait <-chan struct{}) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if oldest := r.oldest(); from < oldest {
		missed = oldest - from
		from = oldest
	}
	for n < len(into) && from < r.next {
		into[n] = r.slots[from%uint64(len(r.slots))]
		n++
		from++
	}
	if n == 0 && missed == 0 {
		wait = r.wake
	}
	return n, missed, wait
}
