package policy

import (
	"cmp"
	"maps"
	"slices"

	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/identity"
)

// Update is what changed between two calls of Flush. It is deterministic: the same calls give
// the same updates.
type Update struct {
	// Revision counts the updates that were not empty.
	Revision uint64
	// Install are new rule sets, to be written before Bind.
	Install []datapath.RuleSet
	// Deltas change rule sets that stay.
	Deltas []Delta
	// Bind are the subjects whose binding changed, if only in its generation.
	Bind map[Subject]Binding
	// Remove are rule sets that nothing points at after Bind.
	Remove []datapath.RuleSetID
}

// Empty reports whether nothing changed.
func (u *Update) Empty() bool {
	return len(u.Install)+len(u.Deltas)+len(u.Bind)+len(u.Remove) == 0
}

func (e *Engine) drop(rs *ruleSet) {
	delete(e.idle, rs)
	delete(e.dirtySets, rs)
	delete(e.ruleSets, rs.key)
	delete(e.byID, rs.id)
	e.leave(rs)
}

// Flush returns everything that changed since the last call.
func (e *Engine) Flush() Update {
	u, _ := e.flush(true)
	return u
}

// Recompute updates everything as Flush does, for callers that only read: it takes memory for the
// contents of rule sets, and not for all their entries. It returns the size of the new ones: how
// many identities they know and how many keys they hold.
func (e *Engine) Recompute() int {
	_, size := e.flush(false)
	return size
}

// flush is Flush; entries reports whether those of new rule sets are wanted. size is that of these.
func (e *Engine) flush(entries bool) (_ Update, size int) {
	e.recompute()
	var u Update

	for rs := range e.idle {
		if rs.installed {
			u.Remove = append(u.Remove, rs.id)
		}
		e.drop(rs)
	}
	slices.Sort(u.Remove)

	for rs := range e.dirtySets {
		if d, ok := rs.delta(); ok {
			u.Deltas = append(u.Deltas, d)
		}
	}
	slices.SortFunc(u.Deltas, func(a, b Delta) int { return cmp.Compare(a.ID, b.ID) })

	// What a rule set no longer passes must stop for flows that it admitted before.
	for rs := range e.dirtySets {
		if rs.reevaluate {
			rs.reevaluate = false
			for _, s := range rs.subjects {
				e.markRebind(s)
			}
		}
	}
	clear(e.dirtySets)

	e.rebind = slices.DeleteFunc(e.rebind, func(s *subject) bool { return s.removed })
	if len(e.rebind) > 0 {
		e.lastGen++
		u.Bind = make(map[Subject]Binding, len(e.rebind))
	}
	for _, s := range e.rebind {
		s.gen, s.rebind = e.lastGen, false
		b := Binding{Generation: s.gen}
		if rs := s.set; rs != nil {
			b.RuleSet = rs.id
			if !rs.installed {
				rs.installed = true
				rs.fill()
				if entries {
					u.Install = append(u.Install, rs.content())
				} else {
					size += rs.size()
				}
			}
		}
		u.Bind[s.Subject] = b
	}
	e.rebind = nil
	slices.SortFunc(u.Install, func(a, b datapath.RuleSet) int { return cmp.Compare(a.ID, b.ID) })

	if !u.Empty() {
		e.revision++
	}
	u.Revision = e.revision
	return u, size
}

// size returns how much memory a rule set takes, in identities and keys: many share the same keys.
func (rs *ruleSet) size() (n int) {
	for dir := range rs.dirs {
		d := &rs.dirs[dir]
		n += d.base.len() + len(d.peers) + len(d.combos)
		for i := range d.groups {
			n += len(d.groups[i].as.ids)
		}
		seen := map[*portSet]struct{}{}
		for _, ps := range d.peers {
			if _, ok := seen[ps]; !ok {
				seen[ps] = struct{}{}
				n += ps.len()
			}
		}
	}
	return n
}

// len counts the entries.
func (rs *ruleSet) len() (n int) {
	for dir := range rs.dirs {
		d := &rs.dirs[dir]
		n += d.base.len()
		for _, ps := range d.peers {
			n += ps.len()
		}
	}
	return n
}

// content returns all entries.
func (rs *ruleSet) content() datapath.RuleSet {
	out := datapath.RuleSet{ID: rs.id, IngressEnforced: rs.dirs[datapath.Ingress].enforced, EgressEnforced: rs.dirs[datapath.Egress].enforced}
	out.Entries = make(map[datapath.PolicyKey]datapath.PolicyEntry, rs.len())
	for i := range rs.dirs {
		dir, d := datapath.Direction(i), &rs.dirs[i]
		put := func(id identity.ID, s *portSet) {
			s.each(func(k portKey, says datapath.PolicyEntry) { out.Entries[k.key(dir, id)] = says })
		}
		put(0, d.base)
		for id, s := range d.peers {
			put(id, s)
		}
	}
	return out
}

func (s *portSet) len() int {
	if s == nil {
		return 0
	}
	return len(s.deny) + len(s.allow) + len(s.tiers)
}

// each calls f for each entry, in no particular order.
func (s *portSet) each(f func(portKey, datapath.PolicyEntry)) {
	if s == nil {
		return
	}
	for _, k := range s.deny {
		f(k, datapath.PolicyEntry{Deny: true})
	}
	for _, k := range s.allow {
		f(k, datapath.PolicyEntry{Allow: true})
	}
	for _, d := range s.tiers {
		f(d.portKey, d.PolicyEntry)
	}
}

func (k portKey) key(dir datapath.Direction, id identity.ID) datapath.PolicyKey {
	return datapath.PolicyKey{Direction: dir, Identity: uint32(id), Proto: k.proto, Port: k.port, PortBits: k.bits}
}

// delta brings the rule set up to date with the identities that were touched. It notes in
// reevaluate whether an established flow may have lost what admitted it. ok is false if nothing
// changed.
func (rs *ruleSet) delta() (Delta, bool) {
	out := Delta{ID: rs.id, Ordered: rs.dirs[datapath.Ingress].places != nil || rs.dirs[datapath.Egress].places != nil}
	ids := slices.Sorted(maps.Keys(rs.touched))
	rs.touched = nil
	var gone []Entry
	for _, dir := range []datapath.Direction{datapath.Ingress, datapath.Egress} {
		d := &rs.dirs[dir]
		for _, id := range ids {
			old, now := d.peers[id], rs.recompute(dir, id)
			if old == now {
				continue
			}
			d.set(id, now)
			was := old.decisions()
			is := now.decisions()
			for k, says := range is {
				before, had := was[k]
				if had && before == says {
					continue
				}
				out.Upserts = append(out.Upserts, Entry{k.key(dir, id), says})
				// Where order counts, any other answer may be a worse one.
				rs.reevaluate = rs.reevaluate || says.Denies() || d.places != nil && (had || says.Tiered())
			}
			for k, says := range was {
				if _, has := is[k]; !has {
					gone = append(gone, Entry{k.key(dir, id), says})
					rs.reevaluate = rs.reevaluate || !says.Deny || says.Tiered()
				}
			}
		}
	}
	if out.Ordered {
		slices.SortFunc(out.Upserts, func(a, b Entry) int { return bySpecificity(a.PolicyKey, b.PolicyKey) })
		slices.SortFunc(gone, func(a, b Entry) int { return bySpecificity(b.PolicyKey, a.PolicyKey) })
	} else {
		deniesFirst := func(a, b Entry) int {
			return cmp.Or(cmp.Compare(rank(a.Deny), rank(b.Deny)), compareKeys(a.PolicyKey, b.PolicyKey))
		}
		slices.SortFunc(out.Upserts, deniesFirst)
		slices.SortFunc(gone, func(a, b Entry) int {
			return cmp.Or(cmp.Compare(rank(b.Deny), rank(a.Deny)), compareKeys(a.PolicyKey, b.PolicyKey))
		})
	}
	for _, e := range gone {
		out.Deletes = append(out.Deletes, e.PolicyKey)
	}
	return out, len(out.Upserts)+len(out.Deletes) > 0
}

func rank(deny bool) int {
	if deny {
		return 0
	}
	return 1
}

// decisions returns the entries as a map.
func (s *portSet) decisions() map[portKey]datapath.PolicyEntry {
	if s == nil {
		return nil
	}
	m := make(map[portKey]datapath.PolicyEntry, s.len())
	s.each(func(k portKey, says datapath.PolicyEntry) { m[k] = says })
	return m
}

// bySpecificity puts what is more specific first.
func bySpecificity(a, b datapath.PolicyKey) int {
	return cmp.Or(cmp.Compare(rank(a.Proto != 0), rank(b.Proto != 0)), cmp.Compare(b.PortBits, a.PortBits), compareKeys(a, b))
}

func compareKeys(a, b datapath.PolicyKey) int {
	return cmp.Or(cmp.Compare(a.Direction, b.Direction), cmp.Compare(a.Identity, b.Identity),
		cmp.Compare(a.Proto, b.Proto), cmp.Compare(a.PortBits, b.PortBits), cmp.Compare(a.Port, b.Port))
}
