package enforcement

import (
	"maps"
	"slices"
	"sync"

	"github.com/hawser-net/hawser/internal/labels"
	"github.com/hawser-net/hawser/internal/policy"
)

// LabelGate holds back rules that need labels which identities may lack. What is in force is always
// what the cluster's policies once were: a change that comes after one that is held waits too. It
// does not wait for what comes later, so that nobody can hold up all others by one new label after
// the other. Its methods may be called from any goroutine; apply is called by one at a time.
type LabelGate struct {
	apply func([]policy.Change)

	mu        sync.Mutex
	permitted labels.Keys
	started   bool
	// held are the changes that wait, later those that came after them: it is empty if held is.
	held, later changesOf
	inForce     map[policy.Owner]labels.Keys
}

// changesOf has the last change of each owner.
type changesOf map[policy.Owner]policy.Change

// permitted reports whether all of it may be evaluated by these keys.
func (c changesOf) permitted(keys labels.Keys) bool {
	for _, ch := range c {
		if !keys.Covers(policy.LabelKeys(ch.Rules)) {
			return false
		}
	}
	return true
}

// sorted returns the changes by owner.
func (c changesOf) sorted() []policy.Change {
	list := make([]policy.Change, 0, len(c))
	for _, o := range slices.Sorted(maps.Keys(c)) {
		list = append(list, c[o])
	}
	return list
}

// NewLabelGate returns a gate that holds everything back; apply puts changes in force.
func NewLabelGate(put func([]policy.Change)) *LabelGate {
	return &LabelGate{apply: put, held: changesOf{}, later: changesOf{}, inForce: map[policy.Owner]labels.Keys{}}
}

// Apply puts changes in force, now or later. The first ones are all there is: nothing is known of
// what was in force before, so that of these, rules that need what is not permitted let nothing
// through until it is.
func (g *LabelGate) Apply(list []policy.Change) {
	g.mu.Lock()
	defer g.mu.Unlock()
	wait := g.held
	if len(g.held) > 0 {
		wait = g.later
	}
	for _, ch := range list {
		wait[ch.Owner] = ch
	}
	if g.started {
		g.flush()
		return
	}
	g.started = true
	first := make([]policy.Change, 0, len(list))
	for _, ch := range list {
		closed := policy.Change{Owner: ch.Owner}
		whole := true
		for _, r := range ch.Rules {
			c := policy.Closed(r, g.permitted)
			whole = whole && c == r
			closed.Rules = append(closed.Rules, c)
		}
		if whole {
			delete(g.held, ch.Owner)
		}
		first = append(first, closed)
	}
	g.enforce(first)
}

// Permit sets the keys by which rules may be evaluated from now on. Rules in force stay.
func (g *LabelGate) Permit(keys labels.Keys) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.permitted = keys
	if g.started {
		g.flush()
	}
}

// Restrict takes away what may be evaluated by, but for these keys.
func (g *LabelGate) Restrict(keys labels.Keys) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.permitted = g.permitted.Intersect(keys)
}

// flush puts in force what may be: everything, or what was held first. It must be called with mu
// held.
func (g *LabelGate) flush() {
	for len(g.held) > 0 {
		all := maps.Clone(g.held)
		maps.Copy(all, g.later) // who waited may be gone, or need less
		switch {
		case all.permitted(g.permitted):
			clear(g.held)
			clear(g.later)
			g.enforce(all.sorted())
		case g.held.permitted(g.permitted):
			first := g.held.sorted()
			g.held, g.later = g.later, changesOf{}
			g.enforce(first)
		default:
			return
		}
	}
}

// enforce must be called with mu held.
func (g *LabelGate) enforce(list []policy.Change) {
	for _, ch := range list {
		if delete(g.inForce, ch.Owner); len(ch.Rules) > 0 {
			g.inForce[ch.Owner] = policy.LabelKeys(ch.Rules)
		}
	}
	g.apply(list)
}

// Needed returns the keys that the rules in force need.
func (g *LabelGate) Needed() (keys labels.Keys) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, k := range g.inForce {
		keys = keys.Union(k)
	}
	return keys
}

// Waiting returns whose changes are held.
func (g *LabelGate) Waiting() []policy.Owner {
	g.mu.Lock()
	defer g.mu.Unlock()
	all := maps.Clone(g.held)
	maps.Copy(all, g.later)
	return slices.Sorted(maps.Keys(all))
}

// Permitted returns the keys by which rules may be evaluated.
func (g *LabelGate) Permitted() labels.Keys {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.permitted
}
