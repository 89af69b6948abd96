package cloud

import (
	"maps"
	"time"
)

// History is a cloud's interfaces by ID, as they are and as they were: descriptions may be a little
// old. It is for use under the cloud's lock.
type History[T any] struct {
	now  map[string]T
	past []moment[T] // oldest first
	lag  time.Duration
}

type moment[T any] struct {
	at    time.Time
	items map[string]T
}

// Lag has Seen be that old.
func (h *History[T]) Lag(d time.Duration) { h.lag = d }

// Now returns what there is. Changes that are to be seen are made by Change.
func (h *History[T]) Now() map[string]T {
	if h.now == nil {
		h.now = map[string]T{}
	}
	return h.now
}

// Put sets one item.
func (h *History[T]) Put(id string, item T) { h.Change(func(m map[string]T) { m[id] = item }) }

// Change has f change what there is.
func (h *History[T]) Change(f func(map[string]T)) {
	if h.lag > 0 {
		h.past = append(h.past, moment[T]{time.Now(), maps.Clone(h.Now())})
	}
	for len(h.past) > 0 && time.Since(h.past[0].at) > h.lag && (len(h.past) < 2 || time.Since(h.past[1].at) > h.lag) {
		h.past = h.past[1:]
	}
	f(h.Now())
}

// Seen returns what descriptions show: what was there before that which has changed within the lag.
func (h *History[T]) Seen() map[string]T {
	for _, m := range h.past {
		if time.Since(m.at) < h.lag {
			return m.items
		}
	}
	return h.now
}
