package relay

import (
	"context"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/hawser-net/hawser/api/health"
	"github.com/hawser-net/hawser/internal/clusterhealth"
)

const (
	// healthAge is how old an answer about the nodes' health may be.
	healthAge = 5 * time.Second
	// maxFailures is how many pairs that do not reach each other are listed.
	maxFailures = 1024
	// maxWays is how many ways of a pair are, and maxWayText is the length of what went wrong.
	maxWays, maxWayText = 8, 96
	// maxSlowest is how many of the slowest pairs are listed.
	maxSlowest = 16
)

// nodeHealth answers which nodes reach each other: what all of them find, put together.
type nodeHealth struct {
	health.UnimplementedNodeHealthServer
	relay   *Relay
	timeout time.Duration // of a question to all nodes
	recent  recent[*health.GetResponse]
}

func newNodeHealth(r *Relay) *nodeHealth {
	return &nodeHealth{relay: r, timeout: r.cfg.DialTimeout, recent: newRecent[*health.GetResponse]()}
}

// Get implements [health.NodeHealthServer]. However many ask, nodes are asked once in a few
// seconds.
func (h *nodeHealth) Get(ctx context.Context, _ *health.GetRequest) (*health.GetResponse, error) {
	return h.recent.get(ctx, healthAge, h.ask)
}

// ask asks all nodes.
func (h *nodeHealth) ask(ctx context.Context) *health.GetResponse {
	ctx, cancel := context.WithTimeout(ctx, h.timeout)
	defer cancel()
	views, _ := h.relay.roster.nodes()
	sum := newHealthSum(len(views))
	var mu sync.Mutex
	askEach(len(views), func(i int) {
		v := views[i]
		var res *health.GetResponse
		var err error
		if v.conn != nil {
			res, err = health.NewNodeHealthClient(v.conn).Get(ctx, &health.GetRequest{})
		}
		mu.Lock()
		defer mu.Unlock()
		switch {
		case v.conn == nil:
			sum.problem(v.name, "no answer to the relay: "+unavailable(v))
		case status.Code(err) == codes.Unimplemented:
			sum.problem(v.name, "its version does not report it")
		case err != nil:
			sum.problem(v.name, text(err))
		default:
			sum.add(v.name, res)
		}
	})
	return sum.response()
}

// healthSum combines the answers of nodes. Its size is bounded by the number of nodes, whatever
// they answer.
type healthSum struct {
	share     int // of the listed failures, for each node
	nodes     map[string]*health.NodeView
	unreached map[string]uint32 // by how many others
	failures  []*health.Failure
	leftOut   uint32
	slowest   []*health.Latency
}

func newHealthSum(nodes int) *healthSum {
	return &healthSum{share: max(1, maxFailures/max(nodes, 1)), nodes: make(map[string]*health.NodeView, nodes), unreached: map[string]uint32{}}
}

// problem records a node that reports nothing.
func (s *healthSum) problem(name, problem string) {
	s.nodes[name] = &health.NodeView{Name: name, Problem: clip(problem, maxProblem)}
}

// add adds a node's answer. It counts as this node's, and only about others.
func (s *healthSum) add(name string, res *health.GetResponse) {
	view := &health.NodeView{Name: name}
	if len(res.GetNodes()) != 1 {
		s.problem(name, "it does not report its own findings")
		return
	}
	own := res.GetNodes()[0]
	view.Reachable, view.Unreachable, view.Silent, view.Unknown = own.GetReachable(), own.GetUnreachable(), own.GetSilent(), own.GetUnknown()
	view.Latency, view.Round, view.Problem = own.GetLatency(), own.GetRound(), clip(own.GetProblem(), maxProblem)
	s.nodes[name] = view
	s.leftOut = plus(s.leftOut, res.GetFailuresLeftOut())
	listed := 0
	seen := map[string]bool{}
	for _, f := range res.GetFailures() {
		to := f.GetTo()
		if to == "" || len(to) > maxNodeName || seen[to] {
			continue // one statement of each node about each
		}
		seen[to] = true
		if to != name && (s.unreached[to] > 0 || len(s.unreached) < 2*maxNodes) {
			s.unreached[to]++
		}
		if listed == s.share || len(s.failures) == maxFailures {
			s.leftOut = plus(s.leftOut, 1)
			continue
		}
		listed++
		out := &health.Failure{From: name, To: to, Since: f.GetSince()}
		for _, w := range f.GetWays()[:min(len(f.GetWays()), maxWays)] {
			out.Ways = append(out.Ways, &health.Way{
				Endpoint: w.GetEndpoint(), Kind: clip(w.GetKind(), 8), Address: clip(w.GetAddress(), 64), Problem: clip(w.GetProblem(), maxWayText), Since: w.GetSince(),
			})
		}
		s.failures = append(s.failures, out)
	}
	for _, l := range res.GetSlowest()[:min(len(res.GetSlowest()), maxSlowest)] {
		if to := l.GetTo(); to != "" && len(to) <= maxNodeName {
			s.slowest = append(s.slowest, &health.Latency{From: name, To: to, Latency: l.GetLatency()})
		}
	}
	s.slowest = clusterhealth.Slowest(s.slowest, maxSlowest)
}

// response is all of it, in order. Nodes that others report and this relay does not ask, such as
// those of another cluster, are in it where they are not reached.
func (s *healthSum) response() *health.GetResponse {
	for name, n := range s.unreached {
		view := s.nodes[name]
		if view == nil {
			view = &health.NodeView{Name: name, Problem: "this relay does not ask it"}
			s.nodes[name] = view
		}
		view.UnreachedBy = n
	}
	out := &health.GetResponse{Failures: s.failures, FailuresLeftOut: s.leftOut, Slowest: s.slowest}
	out.Nodes = slices.SortedFunc(maps.Values(s.nodes), func(a, b *health.NodeView) int { return strings.Compare(a.GetName(), b.GetName()) })
	slices.SortStableFunc(out.Failures, func(a, b *health.Failure) int { return strings.Compare(a.GetFrom(), b.GetFrom()) })
	return out
}

// plus adds, up to what there is room for.
func plus(a, b uint32) uint32 { return uint32(min(uint64(a)+uint64(b), math.MaxUint32)) }

// clip is a text of at most n bytes, and valid UTF-8, which messages must be.
func clip(s string, n int) string {
	if len(s) > n {
		s = s[:n]
	}
	return strings.ToValidUTF8(s, "")
}
