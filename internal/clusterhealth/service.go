package clusterhealth

import (
	"cmp"
	"context"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/hawser-net/hawser/api/health"
)

const (
	// maxListed is how many unreached nodes are listed one by one.
	maxListed = 256
	// maxSlow is how many of the slowest are.
	maxSlow = 8
)

// Service reports to clients what a node finds, as [health.NodeHealthServer]. The answer is bounded
// however many nodes there are. It is safe for concurrent use.
type Service struct {
	health.UnimplementedNodeHealthServer
	// Self is the name of the node that probes, as [Target] has it.
	Self string
	// Statuses is that of a [Prober]; nil if this node probes no other.
	Statuses func() ([]Status, time.Duration)
	// Refused, unless it is empty, is why requests are refused.
	Refused string
}

// Get implements [health.NodeHealthServer].
func (s *Service) Get(context.Context, *health.GetRequest) (*health.GetResponse, error) {
	if s.Refused != "" {
		return nil, status.Error(codes.PermissionDenied, s.Refused)
	}
	if s.Statuses == nil {
		return nil, status.Error(codes.FailedPrecondition, "nodes do not probe each other: --enable-health-checking is false")
	}
	all, round := s.Statuses()
	view := &health.NodeView{Name: s.Self, Round: durationpb.New(round)}
	out := &health.GetResponse{Nodes: []*health.NodeView{view}}
	var latencies []time.Duration
	for _, to := range all {
		state, since := StateOf(slices.Concat(to.Node, to.Endpoint))
		switch state {
		case Reachable:
			view.Reachable++
		case Silent:
			view.Silent++
		case Unknown:
			view.Unknown++
		case Unreachable:
			if view.Unreachable++; len(out.Failures) == maxListed {
				out.FailuresLeftOut++
				continue
			}
			out.Failures = append(out.Failures, &health.Failure{From: s.Self, To: to.Name, Since: timestamppb.New(since), Ways: slices.Concat(ways(to.Node, false), ways(to.Endpoint, true))})
		}
		if took := latency(to.Node); took > 0 && to.Name != s.Self {
			latencies = append(latencies, took)
			out.Slowest = append(out.Slowest, &health.Latency{From: s.Self, To: to.Name, Latency: durationpb.New(took)})
		}
	}
	if n := len(latencies); n > 0 {
		slices.Sort(latencies)
		view.Latency = durationpb.New(latencies[n/2])
	}
	out.Slowest = Slowest(out.Slowest, maxSlow)
	return out, nil
}

// Slowest returns the n slowest, slowest first. It changes the order of what it is given.
func Slowest(all []*health.Latency, n int) []*health.Latency {
	slices.SortFunc(all, func(a, b *health.Latency) int {
		return cmp.Or(cmp.Compare(b.GetLatency().AsDuration(), a.GetLatency().AsDuration()), cmp.Compare(a.GetFrom(), b.GetFrom()), cmp.Compare(a.GetTo(), b.GetTo()))
	})
	return all[:min(n, len(all))]
}

// latency is how long the slower of a node's own addresses takes to answer an echo; 0 if neither
// does.
func latency(paths []Path) (most time.Duration) {
	for _, p := range paths {
		most = max(most, p.ICMP.Latency)
	}
	return most
}

// ways are those that do not work.
func ways(paths []Path, endpoint bool) (out []*health.Way) {
	for _, p := range paths {
		for _, way := range []struct {
			kind string
			c    Connectivity
		}{{"icmp", p.ICMP}, {"http", p.HTTP}} {
			if way.c.Failing() {
				out = append(out, &health.Way{Endpoint: endpoint, Kind: way.kind, Address: p.Addr.String(), Problem: way.c.Err, Since: timestamppb.New(way.c.Since)})
			}
		}
	}
	return out
}
