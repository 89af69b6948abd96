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

// diff returns which of some identities the engine knows and the kernel does not, and the converse.
func (k *known) diff(of map[uint32]struct{}) (added, removed []uint32) {
	for id := range of {
		_, engine := k.engine[id]
		_, kernel := k.ids[id]
		switch {
		case engine && !kernel:
			added = append(added, id)
		case kernel && !engine:
			removed = append(removed, id)
		}
	}
	return added, removed
}

// forgetRemoved has the kernel not know identities any more whose entries are about to go. Before
// Synced the rule sets of before may have entries for them still.
func (p *Policy) forgetRemoved() error {
	if !p.synced {
		return nil
	}
	_, removed := p.known.diff(p.known.changed)
	return p.writeKnown(nil, removed)
}

// forgetEnded forgets what has ended while no agent ran: the rules of now have no entries for it.
func (p *Policy) forgetEnded() error {
	_, ended := p.known.diff(p.known.ids)
	return p.writeKnown(nil, ended)
}

// learnChanged has the kernel know identities for which there are entries now.
func (p *Policy) learnChanged() error {
	added, _ := p.known.diff(p.known.changed)
	clear(p.known.changed)
	return p.learn(added)
}

// learn has the kernel know identities that are new to it. Before Synced the rule sets of before
// have no entries for them, so that they are made to evaluate them as not observed.
func (p *Policy) learn(added []uint32) error {
	if p.known.all {
		return nil
	}
	if !p.synced {
		var unobserved []Unplaced
		for _, id := range added {
			unobserved = append(unobserved, Unplaced{Identity: identity.ID(id), TakenFor: identity.Unobserved})
		}
		if err := p.inherit(unobserved); err != nil {
			p.known.stale = true
			return err
		}
	}
	return p.writeKnown(added, nil)
}

// writeKnown writes what has changed. Retry does what fails.
func (p *Policy) writeKnown(added, removed []uint32) error {
	if p.known.all || len(added)+len(removed) == 0 {
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

// setKnown records all that the engine knows, where nothing was recorded or a change of it failed.
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
	added, _ := p.known.diff(p.known.engine)
	return p.learn(added)
}
