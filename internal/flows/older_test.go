package flows_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/hawser-net/hawser/internal/flows"
)

// sent is an entry with its number and whose it is.
type sent struct {
	number uint64
	who    uint32
}

// TestOlderEntriesAreShared: whoever sends how much, of what the ring overwrites each has an equal
// share; a naive list says which entries these are.
func TestOlderEntriesAreShared(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 0))
		capacity, most, senders := 1+rng.IntN(8), rng.IntN(12), 1+rng.IntN(9)
		ring, err := flows.NewRing[sent](capacity)
		if err != nil {
			t.Fatal(err)
		}
		ring.KeepOlder(most, func(e *sent) (flows.Sender, bool) { return flows.Sender{Identity: e.who}, e.who != 0 })
		var all, kept []sent // the oracle
		for n := range uint64(300) {
			e := sent{n, uint32(rng.IntN(senders))}
			if rng.IntN(2) == 0 {
				e.who = 1 // sends most
			}
			ring.Add(e)
			all = append(all, e)
			if at := len(all) - capacity - 1; at >= 0 && all[at].who != 0 && most > 0 {
				kept = append(withRoom(kept, most, all[at].who), all[at])
			}
			oldest, _ := ring.Bounds()
			var got []sent
			for _, o := range ring.Older(oldest) {
				if got = append(got, *o.Entry); o.Number != o.Entry.number {
					t.Fatalf("seed %d: entry %d has the number %d", seed, o.Entry.number, o.Number)
				}
			}
			if !slices.Equal(got, kept) {
				t.Fatalf("seed %d, capacity %d and %d older, entry %d: %v are kept, want %v", seed, capacity, most, n, got, kept)
			}
		}
	}
}

// withRoom is a list with room for one more entry of a sender: if it is full, the sender with most
// entries gives up its oldest; among several with as many, the new entry's sender, else the one
// that has the oldest.
func withRoom(kept []sent, most int, who uint32) []sent {
	if len(kept) < most {
		return kept
	}
	have := map[uint32]int{}
	for _, e := range kept {
		have[e.who]++
	}
	longest := 0
	for _, n := range have {
		longest = max(longest, n)
	}
	at := slices.IndexFunc(kept, func(e sent) bool {
		if have[who] == longest {
			return e.who == who
		}
		return have[e.who] == longest
	})
	return slices.Delete(slices.Clone(kept), at, at+1)
}
