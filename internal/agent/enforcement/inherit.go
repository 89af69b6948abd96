package enforcement

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/identity"
)

// Inherit has the rule sets from before the restart evaluate each identity as another one, 0 if
// only what they say of any peer is to count for it. Until Synced restored endpoints have these
// rule sets, which do not know the identities that the agent gives to prefixes and blocks since:
// what has such an address would get around a deny of a wider prefix, and lose what the wider one
// is allowed. It must be called before the kernel sees the identity at an address. After Synced it
// does nothing.
//
// After an error a rule set may have a part of it, and no address may get the identities.
func (p *Policy) Inherit(as map[identity.ID]identity.ID) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.synced || len(as) == 0 {
		return nil
	}
	var errs []error
	for _, number := range slices.Sorted(maps.Keys(p.left)) {
		rs := p.left[number]
		d, entries := inherited(rs, as)
		if len(d.Upserts)+len(d.Deletes) == 0 {
			continue
		}
		if err := p.maps.UpdateRuleSet(d); err != nil {
			errs = append(errs, fmt.Errorf("have rule set %d of before evaluate new prefixes as those around them: %w", number, err))
			continue
		}
		rs.Entries = entries
		p.left[number] = rs
	}
	return errors.Join(errs...)
}

// isSynced reports whether Synced was called: Inherit has nothing to do then.
func (p *Policy) isSynced() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.synced
}

// settled reports whether every endpoint that is not locked has the rules of now, so that nothing
// in force names prefixes and blocks that these do not.
func (p *Policy) settled() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.synced || len(p.gone) > 0 {
		return false
	}
	for _, b := range p.rows {
		want := p.bindings[b.subject]
		if b.dirty() || !b.kernel.Locked && (b.binding != want || p.failed[want.RuleSet] != nil) {
			return false
		}
	}
	return true
}

// inherited returns how a rule set changes, and its entries then.
func inherited(rs datapath.RuleSet, as map[identity.ID]identity.ID) (datapath.RuleSetDelta, map[datapath.PolicyKey]datapath.PolicyEntry) {
	of := map[identity.ID][]datapath.PolicyKey{}
	for id, other := range as {
		of[id] = nil
		if other != 0 {
			of[other] = nil
		}
	}
	for key := range rs.Entries {
		if list, wanted := of[identity.ID(key.Identity)]; wanted {
			of[identity.ID(key.Identity)] = append(list, key)
		}
	}
	d := datapath.RuleSetDelta{ID: rs.ID, Upserts: map[datapath.PolicyKey]datapath.PolicyEntry{}}
	entries := maps.Clone(rs.Entries)
	for id, other := range as {
		for _, key := range of[id] {
			delete(entries, key)
		}
		for _, key := range of[other] {
			own := key
			own.Identity = uint32(id)
			entries[own] = rs.Entries[key]
			if now, has := rs.Entries[own]; !has || now != rs.Entries[key] {
				d.Upserts[own] = rs.Entries[key]
			}
		}
		for _, key := range of[id] {
			if _, stays := entries[key]; !stays {
				d.Deletes = append(d.Deletes, key)
			}
		}
	}
	return d, entries
}

// lastBefore returns the highest ID of a scope that rule sets from before the restart name, 0 if
// they name none. What had an ID that only they have is gone. Nothing else may get it while they
// are in force, or it would be let in instead.
func (p *Policy) lastBefore(scope identity.ID) (last identity.ID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, rs := range p.left {
		for key := range rs.Entries {
			if id := identity.ID(key.Identity); id.Scope() == scope {
				last = max(last, id)
			}
		}
	}
	return last
}

// around returns the identity of the longest of the prefixes that contains one, 0 if none does.
func around(p netip.Prefix, known map[netip.Prefix]identity.ID) identity.ID {
	for bits := p.Bits(); bits >= 0; bits-- {
		wider, _ := p.Addr().Prefix(bits)
		if id, ok := known[wider]; ok {
			return id
		}
	}
	return 0
}
