package enforcement

import (
	"fmt"
	"maps"
	"slices"

	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/labels"
)

// known are the identities of pods that the kernel takes for known. A peer with another one has
// identity.Unobserved in rule sets: what denies by labels denies it, whether its address, or a
// packet from a tunnel, came before its labels were observed.
type known struct {
	// all means that nothing was recorded yet, as after an upgrade: each counts as known.
	all bool
	ids map[uint32]struct{}
	// stale means that a write has failed.
	stale bool

	// engine are those that the engine knows; changed were added or removed since the last flush.
	engine, changed map[uint32]struct{}
}

// loadKnown reads what the kernel has.
func (p *Policy) loadKnown() error {
	ids, all, err := p.maps.KnownIdentities()
	if err != nil {
		return fmt.Errorf("read the kernel's known identities: %w", err)
	}
	p.known = known{all: all, ids: make(map[uint32]struct{}, len(ids)), engine: map[uint32]struct{}{}, changed: map[uint32]struct{}{}}
	for _, id := range ids {
		p.known.ids[id] = struct{}{}
	}
	return nil
}

// setIdentity makes the labels of an identity known to the engine.
func (p *Policy) setIdentity(id identity.ID, set labels.Set) {
	p.engine.SetIdentity(id, set)
	if id.IsAllocated() && p.engine.Knows(id) {
		p.known.engine[uint32(id)], p.known.changed[uint32(id)] = struct{}{}, struct{}{}
	}
}

// removeIdentity makes an identity unknown to the engine.
func (p *Policy) removeIdentity(id identity.ID) {
	p.engine.RemoveIdentity(id)
	if id.IsAllocated() {
		delete(p.known.engine, uint32(id))
		p.known.changed[uint32(id)] = struct{}{}
	}
}

// forgetRemoved has the kernel not know identities any more whose entries are about to go. Before
// Synced the rule sets of before may have entries for them still.
func (p *Policy) forgetRemoved() error {
	if !p.synced {
		return nil
	}
	return p.writeKnown(nil, p.unknown(p.known.changed))
}

// forgetEnded forgets what has ended while no agent ran: the rules of now have no entries for it.
func (p *Policy) forgetEnded() error {
	return p.writeKnown(nil, p.unknown(p.known.ids))
}

// unknown returns those of some identities that the engine does not know.
func (p *Policy) unknown(ids map[uint32]struct{}) (list []uint32) {
	for id := range ids {
		if _, is := p.known.engine[id]; !is {
			list = append(list, id)
		}
	}
	return list
}

// learnAdded has the kernel know identities for which there are entries now. Before Synced the rule
// sets of before have none, so that they are made to evaluate them as not observed.
func (p *Policy) learnAdded() error {
	var added []uint32
	for id := range p.known.changed {
		if _, is := p.known.engine[id]; is {
			added = append(added, id)
		}
	}
	clear(p.known.changed)
	return p.learn(added)
}

func (p *Policy) learn(ids []uint32) error {
	if p.known.all {
		return nil
	}
	if !p.synced {
		var unlabelled []Unplaced
		for _, id := range ids {
			if _, is := p.known.ids[id]; !is {
				unlabelled = append(unlabelled, Unplaced{Identity: identity.ID(id), TakenFor: identity.Unobserved})
			}
		}
		if err := p.inherit(unlabelled); err != nil {
			p.known.stale = true
			return err
		}
	}
	return p.writeKnown(ids, nil)
}

// writeKnown writes what differs. Retry does what fails.
func (p *Policy) writeKnown(learned, forgotten []uint32) error {
	if p.known.all {
		return nil
	}
	var added, removed []uint32
	for _, id := range learned {
		if _, is := p.known.ids[id]; !is {
			added = append(added, id)
		}
	}
	for _, id := range forgotten {
		if _, is := p.known.ids[id]; is {
			removed = append(removed, id)
		}
	}
	if len(added)+len(removed) == 0 {
		return nil
	}
	if err := p.maps.UpdateKnownIdentities(added, removed); err != nil {
		p.known.stale = true
		return fmt.Errorf("peers with %d new identities are evaluated as not observed, or with %d former ones as before: %w", len(added), len(removed), err)
	}
	for _, id := range added {
		p.known.ids[id] = struct{}{}
	}
	for _, id := range removed {
		delete(p.known.ids, id)
	}
	return nil
}

// setKnown records all that the engine knows, once every endpoint has its rules.
func (p *Policy) setKnown() error {
	if err := p.maps.SetKnownIdentities(slices.Sorted(maps.Keys(p.known.engine))); err != nil {
		p.known.stale = true
		return fmt.Errorf("record which identities are known: %w", err)
	}
	p.known.all, p.known.stale, p.known.ids = false, false, maps.Clone(p.known.engine)
	return nil
}

// retryKnown records again what could not be recorded.
func (p *Policy) retryKnown() error {
	switch {
	case !p.known.stale:
		return nil
	case p.synced:
		return p.setKnown()
	}
	p.known.stale = false
	return p.learn(slices.Sorted(maps.Keys(p.known.engine)))
}
