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

// Inherit has the rule sets from before the restart evaluate each prefix's identity as the one that
// the kernel takes it for, 0 if only what they say of any peer is to count for it. Until Synced
// restored endpoints have these rule sets, which do not know the identities that the agent gives to
// prefixes and blocks since: what has such an address would get around a deny of a wider prefix,
// and lose what the wider one is allowed. It must be called before the kernel sees the identity at
// an address. After Synced it does nothing.
//
// After an error a rule set may have a part of it, and no address may get the identities.
func (p *Policy) Inherit(list []Unplaced) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.inherit(list)
}

// inherit is Inherit with mu held.
func (p *Policy) inherit(list []Unplaced) error {
	as := map[identity.ID]identity.ID{}
	for _, u := range list {
		if u.TakenFor != u.Identity {
			as[u.Identity] = u.TakenFor
		}
	}
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

// lastBefore returns, by scope, the highest IDs that rule sets from before the restart name. What
// had an ID that only they have is gone. Nothing else may get it while they are in force, or it
// would be let in instead.
func (p *Policy) lastBefore() map[identity.ID]identity.ID {
	p.mu.Lock()
	defer p.mu.Unlock()
	last := map[identity.ID]identity.ID{}
	for _, rs := range p.left {
		for key := range rs.Entries {
			id := identity.ID(key.Identity)
			last[id.Scope()] = max(last[id.Scope()], id)
		}
	}
	return last
}

// unplaced returns, sorted, what the kernel takes prefixes for that it does not have: known are
// those that it has, outside is the identity of what is in none of them.
func unplaced(missing, known map[netip.Prefix]identity.ID, outside func(netip.Prefix) identity.ID) []Unplaced {
	var list []Unplaced
	for p, id := range missing {
		list = append(list, Unplaced{p, id, cmp.Or(around(p, known), outside(p))})
	}
	slices.SortFunc(list, func(a, b Unplaced) int { return cmp.Compare(a.Identity, b.Identity) })
	return list
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
