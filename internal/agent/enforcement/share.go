package enforcement

import (
	"cmp"
	"fmt"
	"log/slog"
	"maps"
	"slices"

	"github.com/hawser-net/hawser/internal/policy"
)

// prefixShares bounds how many prefixes the policies of a namespace name. Each prefix costs an
// entry in every rule set that allows or denies what is around it, whoever that rule set is for.
// With a bound, no namespace takes the room of others. Clusterwide policies have none.
//
// The policies of a namespace get their prefixes in the order of their numbers of them, so that
// the largest go without, and every node decides alike.
type prefixShares struct {
	max int // of one namespace, 0 for no bound
	log *slog.Logger

	namespaces map[string]map[policy.Owner]*namingRules
	of         map[policy.Owner]string // the namespace of an owner
}

// namingRules are the rules of an owner that name prefixes.
type namingRules struct {
	rules    []*policy.Rule
	prefixes int
	refused  bool // the prefixes are beyond the share
}

func newPrefixShares(limit int, log *slog.Logger) *prefixShares {
	return &prefixShares{max: limit, log: log, namespaces: map[string]map[policy.Owner]*namingRules{}, of: map[policy.Owner]string{}}
}

// limit returns changes with rules that stay within the shares. Owners for whose rules there is
// room now, or none any more, are added.
func (s *prefixShares) limit(changes []policy.Change) []policy.Change {
	if s.max == 0 {
		return changes
	}
	touched := map[string]bool{}
	for _, ch := range changes {
		refused := false
		if ns, known := s.of[ch.Owner]; known {
			touched[ns], refused = true, s.namespaces[ns][ch.Owner].refused
			delete(s.namespaces[ns], ch.Owner)
			delete(s.of, ch.Owner)
		}
		prefixes := len(policy.CIDRs(ch.Rules)) + len(policy.Blocks(ch.Rules))
		if prefixes == 0 || ch.Rules[0].Namespace == "" {
			continue
		}
		ns := ch.Rules[0].Namespace
		if s.namespaces[ns] == nil {
			s.namespaces[ns] = map[policy.Owner]*namingRules{}
		}
		s.namespaces[ns][ch.Owner] = &namingRules{rules: ch.Rules, prefixes: prefixes, refused: refused}
		s.of[ch.Owner], touched[ns] = ns, true
	}
	other := map[policy.Owner]*namingRules{} // whose rules in force are not those of before
	for ns := range touched {
		s.divide(ns, other)
	}
	out := make([]policy.Change, 0, len(changes)+len(other))
	for _, ch := range changes {
		if ns, names := s.of[ch.Owner]; names {
			ch.Rules = s.inForce(s.namespaces[ns][ch.Owner])
		}
		delete(other, ch.Owner)
		out = append(out, ch)
	}
	for _, o := range slices.Sorted(maps.Keys(other)) {
		out = append(out, policy.Change{Owner: o, Rules: s.inForce(other[o])})
	}
	return out
}

// divide decides which owners of a namespace may name prefixes, and adds those to changed for which
// that is another answer than before.
func (s *prefixShares) divide(ns string, changed map[policy.Owner]*namingRules) {
	owners := s.namespaces[ns]
	if len(owners) == 0 {
		delete(s.namespaces, ns)
		return
	}
	room := s.max
	for _, o := range slices.SortedFunc(maps.Keys(owners), func(a, b policy.Owner) int {
		return cmp.Or(cmp.Compare(owners[a].prefixes, owners[b].prefixes), cmp.Compare(a, b))
	}) {
		n := owners[o]
		room -= n.prefixes
		refused := room < 0
		if refused == n.refused {
			continue
		}
		n.refused, changed[o] = refused, n
		if refused {
			s.log.Warn("a policy is not enforced as it is written: "+s.fault(), "policy", o, "prefixes", n.prefixes)
		}
	}
}

// inForce returns the rules of an owner as they can be enforced.
func (s *prefixShares) inForce(n *namingRules) []*policy.Rule {
	if !n.refused {
		return n.rules
	}
	return policy.WithoutPrefixes(n.rules, s.fault())
}

// beyond returns the owners whose prefixes are beyond the share of their namespace, sorted.
func (s *prefixShares) beyond() (out []policy.Owner) {
	for _, owners := range s.namespaces {
		for o, n := range owners {
			if n.refused {
				out = append(out, o)
			}
		}
	}
	slices.Sort(out)
	return out
}

// after returns the owners whose prefixes would be beyond the share after changes, of those that
// are changed and those that are not beyond it now; and back, those that would be within it again,
// although they are not changed. Both are sorted.
func (s *prefixShares) after(changes []policy.Change) (beyond, back []policy.Owner) {
	next := newPrefixShares(s.max, slog.New(slog.DiscardHandler))
	next.of = maps.Clone(s.of)
	for ns, owners := range s.namespaces {
		next.namespaces[ns] = make(map[policy.Owner]*namingRules, len(owners))
		for o, n := range owners {
			c := *n
			next.namespaces[ns][o] = &c
		}
	}
	changed := map[policy.Owner]bool{}
	for _, ch := range changes {
		changed[ch.Owner] = true
	}
	for _, ch := range next.limit(changes) {
		switch n := next.namespaces[next.of[ch.Owner]][ch.Owner]; {
		case n != nil && n.refused:
			beyond = append(beyond, ch.Owner)
		case !changed[ch.Owner]:
			back = append(back, ch.Owner)
		}
	}
	slices.Sort(beyond)
	return beyond, back
}

func (s *prefixShares) fault() string {
	return fmt.Sprintf("the policies of its namespace name more than %d prefixes (--policy-namespace-prefix-max), and this one is among the largest: its prefixes allow nothing, and deny everything", s.max)
}
