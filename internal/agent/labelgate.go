package agent

import (
	"maps"
	"slices"
	"sync"

	"github.com/hawser-net/hawser/internal/labels"
	"github.com/hawser-net/hawser/internal/policy"
)

// labelGate holds back rules that need labels which identities may lack. What is in force is always
// what the cluster's policies once were: a change that comes after one that is held waits too. Its
// methods may be called from any goroutine; put is called by one at a time.
type labelGate struct {
	put func([]policy.Change)

	mu        sync.Mutex
	permitted labels.Keys
	begun     bool
	held      map[policy.Owner]policy.Change
	inForce   map[policy.Owner]labels.Keys
}

func newLabelGate(put func([]policy.Change)) *labelGate {
	return &labelGate{put: put, held: map[policy.Owner]policy.Change{}, inForce: map[policy.Owner]labels.Keys{}}
}

// change puts changes in force, now or later. The first ones are all there is: nothing is known of
// what was in force before, so that of these, rules that need what is not permitted let nothing
// through until it is.
func (g *labelGate) change(list []policy.Change) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, ch := range list {
		g.held[ch.Owner] = ch
	}
	if g.begun {
		g.flush()
		return
	}
	g.begun = true
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

// permit says by which keys rules may be judged from now on. What is in force stays.
func (g *labelGate) permit(keys labels.Keys) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.permitted = keys
	if g.begun {
		g.flush()
	}
}

// restrict takes away what may be judged by, but for these keys.
func (g *labelGate) restrict(keys labels.Keys) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.permitted = g.permitted.Intersect(keys)
}

// flush puts in force what is held, if all of it may be. It must be called with mu held.
func (g *labelGate) flush() {
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
func (g *labelGate) enforce(list []policy.Change) {
	for _, ch := range list {
		if delete(g.inForce, ch.Owner); len(ch.Rules) > 0 {
			g.inForce[ch.Owner] = policy.LabelKeys(ch.Rules)
		}
	}
	g.put(list)
}

// uses returns the keys that the rules in force need.
func (g *labelGate) uses() (keys labels.Keys) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, k := range g.inForce {
		keys = keys.Union(k)
	}
	return keys
}

// waiting returns whose changes are held.
func (g *labelGate) waiting() []policy.Owner {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Sorted(maps.Keys(g.held))
}

// may returns the keys by which rules may be judged.
func (g *labelGate) may() labels.Keys {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.permitted
}
