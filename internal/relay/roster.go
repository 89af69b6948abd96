package relay

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"

	"google.golang.org/grpc"

	"github.com/hawser-net/hawser/api/observer"
	"github.com/hawser-net/hawser/api/relay"
)

// Bounds of what a list of nodes may hold.
const (
	maxNodes    = 8192
	maxNodeName = 320 // bytes: a cluster and the longest name of a node
)

// peerNode is a node as the list of nodes has it.
type peerNode struct{ name, address, serverName string }

// view is a snapshot of a node's state. It is immutable.
type view struct {
	peerNode
	state relay.NodeState
	// conn is nil unless the node is connected. It is closed as soon as it is not.
	conn *grpc.ClientConn
	// problem is why it is not.
	problem string
	// status is its last status; nil if it never sent one.
	status *observer.ServerStatusResponse
}

// roster holds the nodes that there are. It is safe for concurrent use.
type roster struct {
	mu      sync.Mutex
	members map[string]*member
	changed chan struct{} // closed and replaced whenever something changes
	synced  bool          // an agent has sent the list of nodes
	problem string        // why no agent sends it now; empty if one does
	refused uint64        // nodes beyond most
	most    int
}

// member is a node in the roster. Its fields are guarded by the roster.
type member struct {
	view view
	seen uint64 // the list of nodes that had it last
	end  context.CancelFunc
}

func newRoster(most int) *roster {
	return &roster{most: most, members: map[string]*member{}, changed: make(chan struct{})}
}

// notify wakes those who wait. The lock is held.
func (r *roster) notify() {
	close(r.changed)
	r.changed = make(chan struct{})
}

// nodes returns the state of all nodes, by name, and a channel that is closed when it changes.
func (r *roster) nodes() ([]view, <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make([]view, 0, len(r.members))
	for _, m := range r.members {
		out = append(out, m.view)
	}
	slices.SortFunc(out, func(a, b view) int { return strings.Compare(a.name, b.name) })
	return out, r.changed
}

// known is whether an agent has sent the list of nodes, and if not, why.
func (r *roster) known() (problem string, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.problem, r.synced
}

// full reports whether there are more nodes than the roster takes.
func (r *roster) full() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.refused > 0 && len(r.members) >= r.most
}

// setProblem records whether the list of nodes is followed.
func (r *roster) setProblem(problem string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.problem == problem && (r.synced || problem != "") {
		return
	}
	r.synced, r.problem = r.synced || problem == "", problem
	r.notify()
}

// set adds or changes a node, which run then looks after until its context ends. It fails if there
// are too many.
func (r *roster) set(ctx context.Context, p peerNode, list uint64, run func(context.Context, *member)) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if old, ok := r.members[p.name]; ok {
		old.seen = list
		if old.view.peerNode == p {
			return true
		}
		old.end()
	} else if len(r.members) >= r.most {
		r.refused++
		return false
	}
	ctx, end := context.WithCancel(ctx)
	m := &member{view: view{peerNode: p, state: relay.NodeState_UNKNOWN_NODE_STATE, problem: "it is being connected to"}, seen: list, end: end}
	r.members[p.name] = m
	r.notify()
	run(ctx, m)
	return true
}

// remove ends and forgets nodes.
func (r *roster) remove(gone func(*member) bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before := len(r.members)
	maps.DeleteFunc(r.members, func(_ string, m *member) bool {
		if gone(m) {
			m.end()
			return true
		}
		return false
	})
	if len(r.members) != before {
		r.notify()
	}
}

// update changes the state of a node, and notifies waiters if it matters to them.
func (r *roster) update(m *member, state relay.NodeState, conn *grpc.ClientConn, problem string, status *observer.ServerStatusResponse) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if status == nil {
		status = m.view.status
	}
	notify := m.view.state != state || m.view.conn != conn
	m.view = view{m.view.peerNode, state, conn, problem, status}
	if notify {
		r.notify()
	}
}
