package flows

import (
	"container/heap"
	"slices"
)

// Sender is who causes entries, as far as a packet's sender cannot choose it: the interface that
// its packets come by, and its identity.
type Sender struct {
	Interface, Identity uint32
}

// Numbered is an entry of a ring with its number.
type Numbered[T any] struct {
	Number uint64
	Entry  *T
}

// older keeps some of the entries that a ring has overwritten: if there is no room, the sender with
// most entries loses its oldest. So a sender that fills the ring displaces nothing here of those
// that send little.
type older[T any] struct {
	most    int
	sender  func(*T) (who Sender, keep bool)
	count   int
	senders map[Sender]*share[T]
	longest shares[T]
}

// share is what is kept of one sender, the oldest first.
type share[T any] struct {
	who  Sender
	list []Numbered[T]
	at   int // in the heap
}

// add keeps an entry that is younger than all that were added before.
func (o *older[T]) add(number uint64, e T) {
	who, keep := o.sender(&e)
	if !keep || o.most == 0 {
		return
	}
	s := o.senders[who]
	if o.count == o.most {
		victim := o.longest[0]
		if s != nil && len(s.list) == len(victim.list) {
			victim = s
		}
		o.drop(victim)
		s = o.senders[who] // it may have had one entry
	}
	o.count++
	if s == nil {
		s = &share[T]{who: who, list: []Numbered[T]{{number, &e}}}
		o.senders[who] = s
		heap.Push(&o.longest, s)
		return
	}
	s.list = append(s.list, Numbered[T]{number, &e})
	heap.Fix(&o.longest, s.at)
}

// drop gives up the oldest entry of a sender.
func (o *older[T]) drop(s *share[T]) {
	o.count--
	s.list[0] = Numbered[T]{}
	if s.list = s.list[1:]; len(s.list) > 0 {
		heap.Fix(&o.longest, s.at)
		return
	}
	heap.Remove(&o.longest, s.at)
	delete(o.senders, s.who)
}

// KeepOlder has the ring keep up to a number of the entries that it overwrites, besides those that
// it has room for, with equal shares for the senders that sender returns, unless it returns that
// they need not be kept. It must be called before the first entry is added.
func (r *Ring[T]) KeepOlder(most int, sender func(*T) (who Sender, keep bool)) {
	r.older = &older[T]{most: most, sender: sender, senders: map[Sender]*share[T]{}}
}

// Older returns what is kept of the entries before a number, in their order. Between them, and
// before the number, others may be missing.
func (r *Ring[T]) Older(before uint64) []Numbered[T] {
	if r.older == nil {
		return nil
	}
	r.mu.RLock()
	out := make([]Numbered[T], 0, r.older.count)
	for _, s := range r.older.senders {
		for _, e := range s.list {
			if e.Number < before {
				out = append(out, e)
			}
		}
	}
	r.mu.RUnlock()
	slices.SortFunc(out, func(a, b Numbered[T]) int {
		if a.Number < b.Number {
			return -1
		}
		return 1
	})
	return out
}

// shares is a heap: the longest is first, of several the one with the oldest entry.
type shares[T any] []*share[T]

func (h shares[T]) Len() int { return len(h) }
func (h shares[T]) Less(i, j int) bool {
	if a, b := len(h[i].list), len(h[j].list); a != b {
		return a > b
	}
	return h[i].list[0].Number < h[j].list[0].Number
}

func (h shares[T]) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].at, h[j].at = i, j
}

func (h *shares[T]) Push(x any) {
	s := x.(*share[T])
	s.at = len(*h)
	*h = append(*h, s)
}

func (h *shares[T]) Pop() any {
	old := *h
	s := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return s
}
