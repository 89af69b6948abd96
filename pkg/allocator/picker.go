package allocator

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

const (
	// randomPicks is how many IDs are drawn before the range is searched from one end to the
	// other. With 99 of 100 IDs taken, one draw in about fifty million misses this often.
	randomPicks = 1 << 11
	// scanLimit bounds the search: beyond, a range is never full in practice.
	scanLimit = 1 << 24
)

// picker is what a backend sees of the allocator during one [Backend.Acquire]. The IDs it
// picked are reserved until done, so that no two calls of this node try the same one.
type picker struct {
	a *Allocator
	// first is picked first, if it is free: an ID of the same key that was withdrawn. It is in
	// quarantine, and the key takes it back, so that one key puts no more than one ID there.
	first  ID
	picked []ID
	taken  map[ID]bool
	// quarantined are IDs that are in quarantine according to the store, and since when.
	quarantined map[ID]time.Time
}

// Known implements [IDSource].
func (p *picker) Known(key string) ID { return p.a.cache.oldest(key) }

// Taken implements [IDSource].
func (p *picker) Taken(id ID) {
	if p.taken == nil {
		p.taken = make(map[ID]bool)
	}
	p.taken[id] = true
}

// Quarantined implements [IDSource].
func (p *picker) Quarantined(id ID, since time.Time) {
	if p.quarantined == nil {
		p.quarantined = make(map[ID]time.Time)
	}
	p.quarantined[id] = since
	p.unreserve(id) // it may be picked again, as the last that is left
}

// Pick implements [IDSource]. IDs in quarantine are passed over unless no other is free; then the
// one that is in quarantine longest, of those that it looked at, is taken.
func (p *picker) Pick() (ID, error) {
	r := p.a.set.idRange
	exhausted := func() error {
		return fmt.Errorf("%w: all of %s to %s are taken", ErrExhausted, r.Min|r.Mask, r.Max|r.Mask)
	}
	if p.a.cache.full() { // no need to look at each
		return NoID, exhausted()
	}
	size := uint64(r.Max-r.Min) + 1 // 0: all of them
	draw := func() uint64 {
		if size == 0 {
			return rand.Uint64()
		}
		return rand.Uint64N(size)
	}
	var quarantined ID
	var since time.Time
	try := func(offset uint64) (ID, bool) {
		id := (r.Min + ID(offset)) | r.Mask
		taken, deleted := p.a.cache.used(id)
		if taken || p.taken[id] || id == NoID || p.a.reserved(id) {
			return NoID, false
		}
		noted, waits := p.quarantined[id]
		if waits {
			deleted = noted
		} else {
			waits = !deleted.IsZero() && time.Since(deleted) < p.a.set.quarantine
		}
		if waits {
			if quarantined == NoID || deleted.Before(since) {
				quarantined, since = id, deleted
			}
			return NoID, false
		}
		return id, p.reserve(id)
	}
	if first := p.first; first != NoID {
		p.first = NoID
		if taken, _ := p.a.cache.used(first); !taken && !p.taken[first] && p.reserve(first) {
			return first, nil
		}
	}
	for {
		for range randomPicks {
			if id, ok := try(draw()); ok {
				return id, nil
			}
		}
		if size != 0 && size <= scanLimit {
			start := draw()
			for i := range size {
				if id, ok := try((start + i) % size); ok {
					return id, nil
				}
			}
		}
		switch {
		case quarantined == NoID:
			return NoID, exhausted()
		case p.reserve(quarantined):
			return quarantined, nil
		}
		quarantined = NoID // another call was faster
	}
}

// reserve keeps other calls of this node from picking the ID.
func (p *picker) reserve(id ID) bool {
	p.a.mu.Lock()
	defer p.a.mu.Unlock()
	if p.a.picking[id] > 0 || p.a.localIDs[id] != nil {
		return false
	}
	p.a.picking[id]++
	p.picked = append(p.picked, id)
	return true
}

// unreserve ends the reservation of an ID that this picker picked.
func (p *picker) unreserve(id ID) {
	p.a.mu.Lock()
	defer p.a.mu.Unlock()
	if i := slices.Index(p.picked, id); i >= 0 {
		p.picked = slices.Delete(p.picked, i, i+1)
		if p.a.picking[id]--; p.a.picking[id] <= 0 {
			delete(p.a.picking, id)
		}
	}
}

func (a *Allocator) reserved(id ID) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.picking[id] > 0 || a.localIDs[id] != nil
}

// done ends the reservations.
func (p *picker) done() {
	p.a.mu.Lock()
	defer p.a.mu.Unlock()
	for _, id := range p.picked {
		if p.a.picking[id]--; p.a.picking[id] <= 0 {
			delete(p.a.picking, id)
		}
	}
	p.picked = nil
}
