package relay

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/hawser-net/hawser/api/observer"
	"github.com/hawser-net/hawser/api/relay"
)

const (
	// namesAtOnce is how many nodes one message names: a client takes messages of a few MiB.
	namesAtOnce = 1000
	// problemsAtOnce is how many different reasons are distinguished at once.
	problemsAtOnce = 16
)

// stateChanges collects changes of the states of nodes that one client is to get.
type stateChanges struct {
	window  time.Duration
	last    time.Time // when some were sent
	pending map[string]stateChange
}

type stateChange struct {
	state   relay.NodeState
	problem string
}

func newStateChanges(window time.Duration) *stateChanges {
	return &stateChanges{window: window, pending: map[string]stateChange{}}
}

// add replaces the pending change of a node.
func (n *stateChanges) add(node string, state relay.NodeState, problem string) {
	n.pending[node] = stateChange{state, problem}
}

// due returns how long it takes until changes are to be sent; ok is false if there are none.
func (n *stateChanges) due(now time.Time) (wait time.Duration, ok bool) {
	if len(n.pending) == 0 {
		return 0, false
	}
	return max(0, n.last.Add(n.window).Sub(now)), true
}

// take returns all pending changes as messages.
func (n *stateChanges) take(now time.Time) []*observer.GetFlowsResponse {
	names := map[stateChange][]string{}
	for name, what := range n.pending {
		names[what] = append(names[what], name)
	}
	groups := slices.SortedFunc(maps.Keys(names), func(a, b stateChange) int {
		return cmp.Or(cmp.Compare(a.state, b.state), -cmp.Compare(len(names[a]), len(names[b])), cmp.Compare(a.problem, b.problem))
	})
	if len(groups) > problemsAtOnce {
		rest := map[relay.NodeState]int{}
		for _, g := range groups[problemsAtOnce:] {
			sum := stateChange{g.state, "for several reasons; `hawser observe nodes` has them"}
			names[sum] = append(names[sum], names[g]...)
			rest[g.state]++
		}
		groups = groups[:problemsAtOnce]
		for state := range rest {
			groups = append(groups, stateChange{state, "for several reasons; `hawser observe nodes` has them"})
		}
	}
	var out []*observer.GetFlowsResponse
	for _, g := range groups {
		list := names[g]
		slices.Sort(list)
		for part := range slices.Chunk(list, namesAtOnce) {
			out = append(out, &observer.GetFlowsResponse{
				ResponseTypes: &observer.GetFlowsResponse_NodeStatus{NodeStatus: &relay.NodeStatusEvent{StateChange: g.state, NodeNames: part, Message: g.problem}},
				Time:          timestamppb.New(now),
			})
		}
	}
	n.last = now
	clear(n.pending)
	return out
}

// unavailable returns why a node is not connected.
func unavailable(v view) string {
	if v.problem == "" {
		return fmt.Sprintf("%s is not connected", v.address)
	}
	return v.problem
}
