package flows

import (
	"fmt"
	"sync"
)

// MaxCapacity bounds a ring.
const MaxCapacity = 65535

// Ring keeps the last entries that were added to it. Adding one takes the same little time however
// many read. It is safe for concurrent use.
//
// Entries have numbers, from 0 on in the order in which they were added; a reader is nothing but
// the number that it wants next, and so holds nobody up.
type Ring[T any] struct {
	mu    sync.Mutex
	slots []T
	next  uint64
	wake  chan struct{} // closed by the next entry; nil while nobody waits
}

// NewRing returns an empty ring for a number of entries, 1 to [MaxCapacity].
func NewRing[T any](capacity int) (*Ring[T], error) {
	if capacity < 1 || capacity > MaxCapacity {
		return nil, fmt.Errorf("a ring of %d entries is outside 1 to %d", capacity, MaxCapacity)
	}
	return &Ring[T]{slots: make([]T, capacity)}, nil
}

// Add adds an entry, in place of the oldest if the ring is full.
func (r *Ring[T]) Add(e T) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.slots[r.next%uint64(len(r.slots))] = e
	r.next++
	if r.wake != nil {
		close(r.wake)
		r.wake = nil
	}
}

// Cap returns how many entries the ring can keep.
func (r *Ring[T]) Cap() int { return len(r.slots) }

// Bounds returns the number of the oldest entry there is and the one that the next will have. They
// are the same if the ring is empty.
func (r *Ring[T]) Bounds() (oldest, next uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.oldest(), r.next
}

func (r *Ring[T]) oldest() uint64 { return r.next - min(r.next, uint64(len(r.slots))) }

// Read copies entries from a number on into a slice, as many as there are and fit. It returns how
// many, and how many of those asked for were overwritten before; the reader goes on behind both. If
// there is nothing to read yet, wait is closed when there is.
func (r *Ring[T]) Read(from uint64, into []T) (n int, missed uint64, wait <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
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
		if r.wake == nil {
			r.wake = make(chan struct{})
		}
		wait = r.wake
	}
	return n, missed, wait
}
