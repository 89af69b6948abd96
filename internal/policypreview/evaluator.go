package policypreview

import (
	"context"
	"iter"
	"net/netip"

	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/labels"
	"github.com/hawser-net/hawser/internal/policy"
)

// Agent is what is asked of an agent. It must be safe for concurrent use.
type Agent interface {
	// Ready reports whether all policies, identities and addresses have been received.
	Ready() bool
	// PolicyLabels returns the keys of the labels that make identities. Other labels cannot be
	// evaluated yet.
	PolicyLabels() labels.Keys
	// Shares returns the policies that would not be enforced as they are written if changes were
	// applied, because their namespace names too many prefixes, and others that would be again.
	Shares(changes []policy.Change) (beyond, back []policy.Owner)
	// View runs f on the live engine, alone, for reading.
	View(f func(*policy.Engine))
	// Endpoint returns by what the engine knows a local endpoint, and the identity that others see.
	Endpoint(number uint16) (s policy.Subject, seen identity.ID, ok bool)
	// RuleLine returns in which file of the node a rule is, and at which line, by its path; no
	// file for an object of Kubernetes, 0 for a line that is not known.
	RuleLine(o policy.Owner, path string) (file string, line int)
	// Addresses lists which identity has which address.
	Addresses() iter.Seq2[netip.Addr, identity.ID]
}

// batch is how many endpoints have their rule sets at the same time: as many as a large node has,
// so that a question takes no more memory than the agent's own work. There are fewer if these are
// large: heavy is the size of all together, as policy.Engine.Recompute counts it.
const (
	batch = 128
	heavy = 4 << 20
)

// evaluator is an engine to ask, for one question. It belongs to one goroutine.
type evaluator struct {
	engine  *policy.Engine
	snap    *policy.Snapshot
	outside map[netip.Addr]identity.ID
	places  places
	names   map[string]*namesakes // by nameKey, once they are asked for
}

func newEvaluator(agent Agent) (*evaluator, error) {
	j := &evaluator{outside: map[netip.Addr]identity.ID{}}
	agent.View(func(e *policy.Engine) { j.snap = e.Snapshot() })
	var err error
	j.engine, err = j.snap.Engine()
	return j, err
}

// end is one end of a connection, as far as verdicts depend on it.
type end struct {
	// id is how the other end's rules see it.
	id identity.ID
	// subject is what its own rules follow from; the zero value has none.
	subject policy.Subject
	// addr is valid only where addresses count.
	addr netip.Addr
}

// labelsOf returns the labels of an identity, also of one that is only known from a flow.
func (j *evaluator) labelsOf(id identity.ID) labels.Set {
	if set, ok := j.engine.Labels(id); ok {
		return set
	}
	set, _ := identity.ReservedLabels(id)
	return set
}

// outsideAt is the identity of an address outside of the cluster.
func (j *evaluator) outsideAt(a netip.Addr) identity.ID {
	id, ok := j.outside[a]
	if !ok {
		id = j.engine.Outside(a)
		j.outside[a] = id
	}
	return id
}

// addressed returns the address if addresses count.
func (j *evaluator) addressed(a netip.Addr) netip.Addr {
	if !j.engine.HasBlocks() {
		return netip.Addr{}
	}
	return a
}

// enforced returns the subject if policies of this cluster are enforced on it, else none.
func (j *evaluator) enforced(s policy.Subject, set labels.Set) policy.Subject {
	cluster := set.Value(labels.SourceK8s, labels.KeyCluster)
	if j.engine.IsEndpoint(s.Identity) && (cluster == "" || cluster == j.snap.Config.ClusterName) {
		return s
	}
	return policy.Subject{}
}

// each calls f for each subject with the rule set that it has, and ends early if f fails or ctx
// ends.
func (j *evaluator) each(ctx context.Context, subjects []policy.Subject, f func(policy.Subject, datapath.RuleSetID) error) error {
	var some []policy.Subject
	size := 0
	for _, s := range subjects {
		if err := ctx.Err(); err != nil {
			return err
		}
		j.engine.AddSubject(s)
		some = append(some, s)
		size += j.engine.Recompute()
		b, _, _, _ := j.engine.RuleSetOf(s)
		if err := f(s, b.RuleSet); err != nil {
			return err
		}
		if len(some) < batch && size < heavy {
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		j.release(some)
		some, size = some[:0], 0
	}
	j.release(some)
	return nil
}

// release gives up the rule sets of subjects.
func (j *evaluator) release(some []policy.Subject) {
	for _, s := range some {
		j.engine.RemoveSubject(s)
	}
	j.engine.Recompute()
}

// fits fails if rules are more than there is room for among the identities of the cluster.
func (j *evaluator) fits(rules []*policy.Rule) error {
	n := policy.SizeOf(rules)
	who := len(j.snap.Identities) + len(policy.CIDRs(rules)) + len(policy.Blocks(rules)) // these have identities too
	const less = "ask about fewer policies at once, or name fewer of them"
	switch {
	case n.Keys > maxKeys:
		return invalid("the policies name %d ports and ranges of ports; up to %d are evaluated at once: %s", n.Keys, maxKeys, less)
	case n.Selectors > maxSelectors:
		return invalid("the policies have %d selectors, values and prefixes; up to %d are evaluated at once: %s", n.Selectors, maxSelectors, less)
	case n.Selectors*who > maxSelected:
		return invalid("the policies have %d selectors, values and prefixes, which in a cluster of %d identities are too many; up to %d are evaluated at once: %s", n.Selectors, who, maxSelected/who, less)
	case n.PeerKeys*who > maxEntries:
		return invalid("the policies name %d ports and ranges of ports of certain peers, which in a cluster of %d identities are too many; up to %d are evaluated at once: %s", n.PeerKeys, who, maxEntries/who, less)
	}
	return nil
}

// addPrefixes gives identities to the prefixes and blocks that rules name and the engine does not
// know. To rules that do not name them they are what they were: rules match prefixes by
// containment.
func (j *evaluator) addPrefixes(rules []*policy.Rule) {
	known := map[netip.Prefix]bool{}
	blocks := map[netip.Prefix]bool{}
	next := map[identity.ID]identity.ID{identity.LocalScope: identity.MaxTemporary + 1, identity.BlockScope: identity.BlockScope + 1}
	for id, set := range j.snap.Identities {
		if p, ok := identity.CIDRPrefix(set); ok && !id.IsBlock() {
			known[p] = true
		} else if p, ok := identity.BlockPrefix(set); ok {
			blocks[p] = true
		}
		if n, ok := next[id.Scope()]; ok {
			next[id.Scope()] = max(n, id+1)
		}
	}
	add := func(scope identity.ID, set labels.Set) {
		id := next[scope]
		if id.Scope() != scope {
			return // millions of prefixes: what has no identity is matched by no rule that names it
		}
		next[scope]++
		j.engine.SetIdentity(id, set)
		j.snap.Identities[id] = set
	}
	for _, p := range policy.CIDRs(rules) {
		if !known[p] {
			add(identity.LocalScope, identity.CIDRLabels(p, j.snap.Config.DualStack))
		}
	}
	for _, p := range policy.Blocks(rules) {
		if !blocks[p] {
			add(identity.BlockScope, identity.BlockLabels(p))
		}
	}
	clear(j.outside)
}

// put has the engine evaluate by other rules.
func (j *evaluator) put(changes []policy.Change) error {
	for _, ch := range changes {
		if err := j.engine.SetRules(ch.Owner, ch.Rules); err != nil {
			return err
		}
	}
	return nil
}
