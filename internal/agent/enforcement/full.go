package enforcement

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/identity"
)

// What happens when a map of the kernel is full: an endpoint whose verdicts would differ from the
// rules is locked until there is room again. Others are not affected.

// Unplaced is a prefix that did not fit into the kernel's map, so that the kernel sees another
// identity at its addresses.
type Unplaced struct {
	Prefix   netip.Prefix
	Identity identity.ID
	// TakenFor is the identity that the kernel knows instead, 0 if none.
	TakenFor identity.ID
}

// SetUnplaced replaces the prefixes of a kind that are missing in the kernel. An endpoint whose
// rules distinguish one of them from the identity that the kernel sees there drops all its packets
// meanwhile.
func (p *Policy) SetUnplaced(kind string, list []Unplaced) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(list) == 0 && len(p.unplaced[kind]) == 0 || slices.Equal(list, p.unplaced[kind]) {
		return nil
	}
	if p.unplaced[kind] = list; len(list) == 0 {
		delete(p.unplaced, kind)
	}
	var errs []error
	for _, id := range slices.Sorted(maps.Keys(p.sets)) {
		if rs, ok := p.engine.RuleSet(id); ok {
			errs = append(errs, p.recheck(rs))
		}
	}
	return errors.Join(errs...)
}

// recheck checks whether a rule set can be relied on, and binds its endpoints again if that has
// changed.
func (p *Policy) recheck(rs datapath.RuleSet) error {
	if !p.check(rs) {
		return nil
	}
	var errs []error
	for _, b := range p.rows {
		if !b.held && p.bindings[b.subject].RuleSet == rs.ID {
			errs = append(errs, p.bind(b))
		}
	}
	return errors.Join(errs...)
}

// check records whether a rule set distinguishes an unplaced prefix from the identity that the
// kernel has for it. It reports whether that has changed.
func (p *Policy) check(rs datapath.RuleSet) (changed bool) {
	before := p.misled[rs.ID]
	now := p.misleads(rs)
	if now == nil {
		delete(p.misled, rs.ID)
	} else {
		p.misled[rs.ID] = now
	}
	return (before == nil) != (now == nil)
}

func (p *Policy) misleads(rs datapath.RuleSet) error {
	if len(p.unplaced) == 0 {
		return nil
	}
	want := map[identity.ID]map[datapath.PolicyKey]datapath.PolicyEntry{}
	for _, list := range p.unplaced {
		for _, u := range list {
			want[u.Identity] = nil
			if u.TakenFor != 0 { // the entries of 0 are those of any
				want[u.TakenFor] = nil
			}
		}
	}
	for k, e := range rs.Entries {
		id := identity.ID(k.Identity)
		if m, wanted := want[id]; wanted {
			if m == nil {
				m = map[datapath.PolicyKey]datapath.PolicyEntry{}
				want[id] = m
			}
			k.Identity = 0
			m[k] = e
		}
	}
	var first netip.Prefix
	count := 0
	for _, list := range p.unplaced {
		for _, u := range list {
			if !maps.Equal(want[u.Identity], want[u.TakenFor]) {
				count++
				if !first.IsValid() {
					first = u.Prefix
				}
			}
		}
	}
	if count == 0 {
		return nil
	}
	return fmt.Errorf("%w: its rules name %d addresses or prefixes for which there is no room, as %s", datapath.ErrFull, count, first)
}

// failure returns why the endpoints of a rule set are locked, nil if they are not.
func (p *Policy) failure(id datapath.RuleSetID) error { return cmp.Or(p.failed[id], p.misled[id]) }

// giveWay removes the largest rule set from the kernel, if it is larger than one for which there is
// no room, and locks its endpoints. So a rule set that is no larger than the map divided by the
// number of rule sets always fits.
func (p *Policy) giveWay(rs datapath.RuleSet) bool {
	var victim datapath.RuleSetID
	most := p.partial[rs.ID].size(rs)
	for id, s := range p.sets {
		if id == rs.ID || s.number == 0 || p.isHeld(s.number) {
			continue
		}
		if other, ok := p.engine.RuleSet(id); ok && p.partial[id].size(other) > most {
			victim, most = id, p.partial[id].size(other)
		}
	}
	if victim == 0 {
		return false
	}
	s := p.sets[victim]
	number := s.number
	p.failed[victim] = fmt.Errorf("%w: with %d entries its rule set is the largest, and was removed in favour of others", datapath.ErrFull, most)
	s.number = 0
	for _, b := range p.rows {
		if b.pointsAt(number) {
			_ = p.bind(b) // which reports that the endpoint is locked
			p.log.Error("the policy map is full: an endpoint with the largest rule set drops all its packets until there is room",
				"endpoint", b.endpoint.ID, "identity", b.endpoint.Identity, "labels", b.endpoint.IdentityLabels.String(), "entries", most)
		}
	}
	if p.pointedAt(number) {
		s.number = number // a row could not be written; Retry will
		return false
	}
	if err := p.maps.DeleteRuleSet(number); err != nil {
		p.log.Error("cannot remove a rule set that was evicted from the full policy map", "error", err)
		p.left[number] = datapath.RuleSet{ID: number}
		return false
	}
	return true
}

// isHeld reports whether a row that is to stay as it is points at a rule set.
func (p *Policy) isHeld(number datapath.RuleSetID) bool {
	for _, b := range p.rows {
		if b.held && b.kernel.RuleSet == number {
			return true
		}
	}
	return false
}

// Locked returns how many endpoints drop all their packets because something does not fit into the
// kernel's maps, or because their rules have not been observed.
func (p *Policy) Locked() (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, b := range p.rows {
		if b.written && b.kernel.Locked {
			n++
		}
	}
	return n
}
