package ui

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/hawser-net/hawser/api/health"
	"github.com/hawser-net/hawser/pkg/retry"
)

// healthEvery is how often a server is asked which nodes reach each other.
const healthEvery = 10 * time.Second

// Health is which nodes reach each other, as far as the server knows.
type Health struct {
	// Error is why nothing is known, or nothing new.
	Error string       `json:"error,omitempty"`
	Asked time.Time    `json:"asked"`
	Nodes []NodeHealth `json:"nodes"`
	// Failures are pairs of which one does not reach the other; FailuresLeftOut how many there are
	// besides.
	Failures        []Failure `json:"failures"`
	FailuresLeftOut uint32    `json:"failuresLeftOut,omitempty"`
	Slowest         []Latency `json:"slowest"`
}

// NodeHealth is what one node finds of others, and they of it.
type NodeHealth struct {
	Name    string `json:"name"`
	Problem string `json:"problem,omitempty"` // why it does not report
	// How many nodes it reaches, itself among them; how many not; how many never answered such
	// probes; how many it has not probed yet.
	Reachable   uint32 `json:"reachable"`
	Unreachable uint32 `json:"unreachable"`
	Silent      uint32 `json:"silent"`
	Unknown     uint32 `json:"unknown"`
	UnreachedBy uint32 `json:"unreachedBy"`
	// Latency of the others' answers at the median, in seconds; 0 if there is none.
	Latency float64 `json:"latencySeconds"`
}

// Failure is a node that another does not reach, or not in all ways.
type Failure struct {
	From  string    `json:"from"`
	To    string    `json:"to"`
	Since time.Time `json:"since"`
	Ways  []string  `json:"ways"` // for people
}

// Latency is how long a node takes to answer another, in seconds.
type Latency struct {
	From    string  `json:"from"`
	To      string  `json:"to"`
	Seconds float64 `json:"seconds"`
}

// Health returns what was last received.
func (f *Follower) Health() Health {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.health
}

// watchHealth periodically requests which nodes reach each other.
func (f *Follower) watchHealth(ctx context.Context) {
	for ctx.Err() == nil {
		asked, cancel := context.WithTimeout(ctx, healthEvery)
		res, err := f.Nodes.Get(asked, &health.GetRequest{})
		cancel()
		f.set(func() {
			switch {
			case err == nil:
				f.health = newHealth(res)
			case status.Code(err) == codes.Unimplemented:
				f.health = Health{Error: "the server does not report which nodes reach each other"}
			case status.Code(err) == codes.FailedPrecondition || status.Code(err) == codes.PermissionDenied:
				f.health = Health{Error: message(err)}
			default:
				f.health.Error = message(err) // what was received before stays, with its time
			}
		})
		retry.Sleep(ctx, healthEvery)
	}
}

func newHealth(res *health.GetResponse) Health {
	out := Health{
		Asked: time.Now(), Nodes: []NodeHealth{}, Failures: []Failure{}, Slowest: []Latency{}, FailuresLeftOut: res.GetFailuresLeftOut(),
	}
	for _, n := range res.GetNodes() {
		out.Nodes = append(out.Nodes, NodeHealth{
			Name: n.GetName(), Problem: n.GetProblem(), Reachable: n.GetReachable(), Unreachable: n.GetUnreachable(), Silent: n.GetSilent(),
			Unknown: n.GetUnknown(), UnreachedBy: n.GetUnreachedBy(), Latency: n.GetLatency().AsDuration().Seconds(),
		})
	}
	for _, f := range res.GetFailures() {
		one := Failure{From: f.GetFrom(), To: f.GetTo(), Since: f.GetSince().AsTime()}
		for _, w := range f.GetWays() {
			where := "node"
			if w.GetEndpoint() {
				where = "endpoint"
			}
			one.Ways = append(one.Ways, where+" "+w.GetKind()+" "+w.GetAddress()+": "+w.GetProblem())
		}
		out.Failures = append(out.Failures, one)
	}
	for _, l := range res.GetSlowest() {
		out.Slowest = append(out.Slowest, Latency{From: l.GetFrom(), To: l.GetTo(), Seconds: l.GetLatency().AsDuration().Seconds()})
	}
	return out
}
