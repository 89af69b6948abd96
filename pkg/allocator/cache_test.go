package allocator

import (
	"math/rand/v2"
	"testing"
)

// TestTakenIsCounted has IDs come and go at random, in the range and beside it: what is counted
// is always what is there, so a full range is known without a look at each ID.
func TestTakenIsCounted(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(1, 2))
	r := Range{Min: 1, Max: 8, Mask: 1 << 16}
	c := newCache(r)
	wasFull := 0
	for i := range 20000 {
		id := ID(rng.IntN(11)) // 0, 9 and 10 are beside it
		if rng.IntN(8) > 0 {
			id |= 1 << 16
		}
		switch rng.IntN(8) {
		case 0:
			c.remove(id, int64(i), func(*entry) bool { return rng.IntN(2) == 0 })
		case 1:
			c.forget(id)
		default:
			c.upsert(Mapping{ID: id, Created: int64(i)})
		}
		n := uint64(0)
		for id := range c.byID {
			if r.Contains(id) {
				n++
			}
		}
		if c.taken != n || c.full() != (n == 8) {
			t.Fatalf("step %d: %d counted, full is %v; %d are there", i, c.taken, c.full(), n)
		}
		if n == 8 {
			wasFull++
		}
	}
	if wasFull == 0 {
		t.Error("the range was never full")
	}
	if newCache(Range{Min: 0, Max: ^ID(0)}).full() {
		t.Error("a range of all IDs is full")
	}
}
