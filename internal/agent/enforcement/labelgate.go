package enforcement

import (
	"maps"
	"slices"
	"sync"

	"github.com/hawser-net/hawser/internal/labels"
	"github.com/hawser-net/hawser/internal/policy"
)

// LabelGate holds back rules that need labels which identities may lack. What is in force is always
// what the cluster's policies once were: a change that comes after one that is held waits too. Its
// methods may be called from any goroutine; apply is called by one at a time.
type LabelGate struct {
	apply func([]policy.Change)

	mu        sync.Mutex
	permitted labels.Keys
	started   bool
	held      map[policy.Owner]policy.Change
	inForce   map[policy.Owner]labels.Keys
}

// NewLabelGate returns a gate that holds everything back; apply puts changes in force.
func NewLabelGate(put func([]policy.Change)) *LabelGate {
	return &LabelGate{apply: put, held: map[policy.Owner]policy.Change{}, inForce: map[policy.Owner]labels.Keys{}}
}

// Apply puts changes in force, now or later. The first ones are all there is: nothing is known of
// what was in force before, so that of these, rules that need what is not permitted let nothing
// through until it is.
func (g *LabelGate) Apply(list []policy.Change) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, ch := range list {
		g.held[ch.Owner] = ch
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

// flush puts in force what is held, if all of it may be. It must be called with mu held.
func (g *LabelGate) flush() {
	if len(g.held) == 0 {
		return
	}
	list := make([]policy.Change, 0, len(g.held))
	for _, o := range slices.Sorted(maps.Keys(g.held)) {
		if ch := g.held[o]; !g.permitted.Covers(policy.LabelKeys(ch.Rules)) {
			return
		}
		list = append(list, g.held[o])
	}
	clear(g.held)
	g.enforce(list)
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
	return slices.Sorted(maps.Keys(g.held))
}

// Permitted returns the keys by which rules may be evaluated.
func (g *LabelGate) Permitted() labels.Keys {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.permitted
}
