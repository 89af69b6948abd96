package maps

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/cilium/ebpf"

	"github.com/hawser-net/hawser/internal/datapath"
)

// classAnyProto is KEY_CLASS_ANY_PROTO of bpf/lib/maps.h; classes 0 to 16 are a protocol with 16-n
// bits of port.
const (
	classAnyProto = 17
	keyClasses    = 18
)

// Kinds of peers in rule_set.key_classes, as in bpf/lib/maps.h.
const (
	peerOne = iota
	peerAny
	peerBlock
	peerKinds
)

// ruleSetState is what the kernel holds of one rule set.
type ruleSetState struct {
	described  bool // it has a descriptor; if not, a crash interrupted its making or removal
	enforced   [2]bool
	entries    map[datapath.PolicyKey]datapath.PolicyEntry
	classCount [2][peerKinds][keyClasses]int
}

func newRuleSetState() *ruleSetState {
	return &ruleSetState{entries: make(map[datapath.PolicyKey]datapath.PolicyEntry)}
}

// keyClass returns where a key counts: direction, kind of peer, and class.
func keyClass(k datapath.PolicyKey) (dir, who, class int) {
	switch {
	case k.Identity == 0:
		who = peerAny
	case k.IsBlock():
		who = peerBlock
	default:
		who = peerOne
	}
	if k.Proto == 0 {
		return int(k.Direction), who, classAnyProto
	}
	return int(k.Direction), who, 16 - int(k.PortBits)
}

func (s *ruleSetState) add(k datapath.PolicyKey, e datapath.PolicyEntry) (added bool) {
	_, known := s.entries[k]
	s.entries[k] = e
	if !known {
		d, w, f := keyClass(k)
		s.classCount[d][w][f]++
	}
	return !known
}

func (s *ruleSetState) remove(k datapath.PolicyKey) (removed bool) {
	if _, known := s.entries[k]; !known {
		return false
	}
	delete(s.entries, k)
	d, w, f := keyClass(k)
	s.classCount[d][w][f]--
	return true
}

// descriptor returns the kernel's descriptor, with the classes of further keys included.
func (s *ruleSetState) descriptor(more map[datapath.PolicyKey]datapath.PolicyEntry) (d kernelRuleSet) {
	for dir := range 2 {
		if s.enforced[dir] {
			d.Enforced[dir] = 1
		}
		for who := range peerKinds {
			for class, n := range s.classCount[dir][who] {
				if n > 0 {
					d.KeyClasses[dir][who] |= 1 << class
				}
			}
		}
	}
	for k := range more {
		dir, who, class := keyClass(k)
		d.KeyClasses[dir][who] |= 1 << class
	}
	return d
}

func toKernelPolicyKey(id datapath.RuleSetID, k datapath.PolicyKey) kernelPolicyKey {
	return kernelPolicyKey{
		RuleSet: uint32(id), Identity: k.Identity, Port: k.Port,
		PortBits: k.PortBits, Proto: k.Proto, Direction: uint8(k.Direction),
	}
}

// Values of enum ordinary in bpf/lib/maps.h.
const (
	ordinaryAllow = iota
	ordinaryDeny
	ordinarySilent
)

func toKernelPolicyValue(e datapath.PolicyEntry) kernelPolicyValue {
	v := kernelPolicyValue{Ordinary: ordinarySilent, Admin: uint16(e.Admin), Baseline: uint16(e.Baseline)}
	switch {
	case e.Deny:
		v.Ordinary = ordinaryDeny
	case e.Allow:
		v.Ordinary = ordinaryAllow
	}
	return v
}

// load reads the rule sets that the kernel holds.
func (m *Maps) load() error {
	ruleSets, err := m.readRuleSets()
	if err != nil {
		return fmt.Errorf("maps: read rule sets: %w", err)
	}
	m.ruleSets = ruleSets
	m.entries = 0
	for _, s := range ruleSets {
		m.entries += len(s.entries)
	}
	if m.services, err = m.readServices(); err != nil {
		return fmt.Errorf("maps: read services: %w", err)
	}
	return nil
}

func (m *Maps) readRuleSets() (map[datapath.RuleSetID]*ruleSetState, error) {
	ruleSets := make(map[datapath.RuleSetID]*ruleSetState)
	at := func(id uint32) *ruleSetState {
		s := ruleSets[datapath.RuleSetID(id)]
		if s == nil {
			s = newRuleSetState()
			ruleSets[datapath.RuleSetID(id)] = s
		}
		return s
	}
	err := each(m.maps[kernelMapRuleSets], func(id uint32, d kernelRuleSet) bool {
		s := at(id)
		s.described = true
		s.enforced = [2]bool{d.Enforced[0] != 0, d.Enforced[1] != 0}
		return true
	})
	if err != nil {
		return nil, err
	}
	err = each(m.maps[kernelMapPolicy], func(k kernelPolicyKey, v kernelPolicyValue) bool {
		at(k.RuleSet).add(datapath.PolicyKey{
			Direction: datapath.Direction(k.Direction), Identity: k.Identity,
			Proto: k.Proto, Port: k.Port, PortBits: k.PortBits,
		}, datapath.PolicyEntry{
			Deny: v.Ordinary == ordinaryDeny, Allow: v.Ordinary == ordinaryAllow,
			Admin: datapath.TierRule(v.Admin), Baseline: datapath.TierRule(v.Baseline),
		})
		return true
	})
	return ruleSets, err
}

// mostSpecificFirst returns the keys in the order in which they come into force: what covers others
// must not be there before them.
func mostSpecificFirst(entries map[datapath.PolicyKey]datapath.PolicyEntry) []datapath.PolicyKey {
	var at [keyClasses + 1]int // where the keys of a class start
	for k := range entries {
		_, _, class := keyClass(k)
		at[class+1]++
	}
	for class := range keyClasses {
		at[class+1] += at[class]
	}
	order := make([]datapath.PolicyKey, len(entries))
	for k := range entries {
		_, _, class := keyClass(k)
		order[at[class]] = k
		at[class]++
	}
	return order
}

// putEntries writes entries of a rule set and keeps the state in step with what was written.
func (m *Maps) putEntries(id datapath.RuleSetID, s *ruleSetState, entries map[datapath.PolicyKey]datapath.PolicyEntry) error {
	order := mostSpecificFirst(entries)
	keys := make([]kernelPolicyKey, 0, len(entries))
	values := make([]kernelPolicyValue, 0, len(entries))
	for _, k := range order {
		keys = append(keys, toKernelPolicyKey(id, k))
		values = append(values, toKernelPolicyValue(entries[k]))
	}
	n, err := putAll(m.maps[kernelMapPolicy], keys, values)
	for _, k := range order[:n] {
		if s.add(k, entries[k]) {
			m.entries++
		}
	}
	return err
}

func (m *Maps) deleteEntries(id datapath.RuleSetID, s *ruleSetState, del []datapath.PolicyKey) error {
	keys := make([]kernelPolicyKey, len(del))
	for i, k := range del {
		keys[i] = toKernelPolicyKey(id, k)
	}
	if err := deleteAll(m.maps[kernelMapPolicy], keys); err != nil {
		return err
	}
	for _, k := range del {
		if s.remove(k) {
			m.entries--
		}
	}
	return nil
}

// describe writes the descriptor of a rule set, in one atomic step.
func (m *Maps) describe(id datapath.RuleSetID, s *ruleSetState, more map[datapath.PolicyKey]datapath.PolicyEntry) error {
	if err := m.maps[kernelMapRuleSets].Put(uint32(id), s.descriptor(more)); err != nil {
		return fmt.Errorf("describe: %w", classify(err))
	}
	s.described = true
	return nil
}

// InstallRuleSet implements datapath.Maps. The content of a number in use is changed entry by
// entry: new ones first, then changed ones, then those to go.
func (m *Maps) InstallRuleSet(rs datapath.RuleSet) error {
	if err := rs.Validate(); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.ruleSets[rs.ID]
	fresh := s == nil
	if fresh {
		s = newRuleSetState()
		m.ruleSets[rs.ID] = s
	}
	added := make(map[datapath.PolicyKey]datapath.PolicyEntry)
	changed := make(map[datapath.PolicyKey]datapath.PolicyEntry)
	for k, e := range rs.Entries {
		if old, known := s.entries[k]; !known {
			added[k] = e
		} else if old != e {
			changed[k] = e
		}
	}
	var stale []datapath.PolicyKey
	for k := range s.entries {
		if _, wanted := rs.Entries[k]; !wanted {
			stale = append(stale, k)
		}
	}

	err := m.install(rs, s, added, changed, stale)
	if err == nil {
		return nil
	}
	err = fmt.Errorf("rule set %d, %d entries: %w", rs.ID, len(rs.Entries), err)
	// Give back what was written, so that a rule set too large costs the others nothing.
	if undoErr := m.deleteEntries(rs.ID, s, slices.Collect(maps.Keys(added))); undoErr != nil {
		return errors.Join(err, fmt.Errorf("rule set %d: undo: %w", rs.ID, undoErr))
	}
	if fresh {
		return errors.Join(err, m.drop(rs.ID, s))
	}
	return err
}

// room returns why a rule set with so many entries, some of them new, cannot be written. The kernel
// would find out too, but only after filling the map for all others.
func (m *Maps) room(entries, added int) error {
	if entries > m.setMax {
		return fmt.Errorf("%w: %w: it would have %d entries, and one may have %d (--bpf-policy-rule-set-max)", datapath.ErrFull, datapath.ErrShare, entries, m.setMax)
	}
	if free := int(m.maps[kernelMapPolicy].MaxEntries()) - m.entries; added > free {
		return fmt.Errorf("%w: the policy map has room for %d more entries", datapath.ErrFull, free)
	}
	return nil
}

func (m *Maps) install(rs datapath.RuleSet, s *ruleSetState, added, changed map[datapath.PolicyKey]datapath.PolicyEntry, stale []datapath.PolicyKey) error {
	if err := m.room(len(rs.Entries), len(added)); err != nil {
		return err
	}
	// If the rule set is in use, its descriptor must know the new key classes before they matter.
	if s.described {
		if err := m.describe(rs.ID, s, added); err != nil {
			return err
		}
	}
	if err := m.putEntries(rs.ID, s, added); err != nil {
		return err
	}
	if err := m.putEntries(rs.ID, s, changed); err != nil {
		return err
	}
	s.enforced = [2]bool{rs.IngressEnforced, rs.EgressEnforced}
	if err := m.describe(rs.ID, s, nil); err != nil {
		return err
	}
	if len(stale) == 0 {
		return nil
	}
	if err := m.deleteEntries(rs.ID, s, stale); err != nil {
		return err
	}
	return m.describe(rs.ID, s, nil)
}

// UpdateRuleSet implements datapath.Maps.
func (m *Maps) UpdateRuleSet(d datapath.RuleSetDelta) error {
	for k := range d.Upserts {
		if err := k.Validate(); err != nil {
			return fmt.Errorf("rule set %d: %w", d.ID, err)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.ruleSets[d.ID]
	if s == nil || !s.described {
		return fmt.Errorf("rule set %d is not installed", d.ID)
	}
	added := 0
	for k := range d.Upserts {
		if _, known := s.entries[k]; !known {
			added++
		}
	}
	if added > 0 {
		gone := 0
		for _, k := range d.Deletes {
			if _, known := s.entries[k]; known {
				gone++
			}
		}
		if err := m.room(len(s.entries)+added-gone, added); err != nil {
			return fmt.Errorf("rule set %d: %w", d.ID, err)
		}
	}
	before := s.descriptor(nil)
	if with := s.descriptor(d.Upserts); with != before {
		if err := m.describe(d.ID, s, d.Upserts); err != nil {
			return fmt.Errorf("rule set %d: %w", d.ID, err)
		}
		before = with
	}
	if err := m.putEntries(d.ID, s, d.Upserts); err != nil {
		return fmt.Errorf("rule set %d: %w", d.ID, err)
	}
	if err := m.deleteEntries(d.ID, s, d.Deletes); err != nil {
		return fmt.Errorf("rule set %d: %w", d.ID, err)
	}
	if s.descriptor(nil) != before {
		if err := m.describe(d.ID, s, nil); err != nil {
			return fmt.Errorf("rule set %d: %w", d.ID, err)
		}
	}
	return nil
}

// DeleteRuleSet implements datapath.Maps.
func (m *Maps) DeleteRuleSet(id datapath.RuleSetID) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.ruleSets[id]
	if s == nil {
		return nil
	}
	return m.drop(id, s)
}

// drop removes a rule set: the descriptor first, so that an endpoint that points at it by mistake
// is refused everything instead of evaluated by half.
func (m *Maps) drop(id datapath.RuleSetID, s *ruleSetState) error {
	err := m.maps[kernelMapRuleSets].Delete(uint32(id))
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("rule set %d: remove its descriptor: %w", id, err)
	}
	s.described = false
	if err := m.deleteEntries(id, s, slices.Collect(maps.Keys(s.entries))); err != nil {
		return fmt.Errorf("rule set %d: remove its entries: %w", id, err)
	}
	delete(m.ruleSets, id)
	return nil
}

// RuleSetCount returns how many rule sets there are, as this process has read and written them.
func (m *Maps) RuleSetCount() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.ruleSets)
}

// RuleSets implements datapath.Maps. It reads the kernel. A rule set without a descriptor, which a
// crash can leave, is listed as enforcing both directions; it has no owner and may be deleted.
func (m *Maps) RuleSets() ([]datapath.RuleSet, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	states, err := m.readRuleSets()
	if err != nil {
		return nil, err
	}
	list := make([]datapath.RuleSet, 0, len(states))
	for id, s := range states {
		list = append(list, datapath.RuleSet{
			ID:              id,
			IngressEnforced: s.enforced[0] || !s.described,
			EgressEnforced:  s.enforced[1] || !s.described,
			Entries:         maps.Clone(s.entries),
		})
	}
	return list, nil
}
