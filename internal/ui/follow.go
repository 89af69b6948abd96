package ui

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/hawser-net/hawser/api/health"
	"github.com/hawser-net/hawser/api/observer"
	"github.com/hawser-net/hawser/api/policy"
	"github.com/hawser-net/hawser/pkg/retry"
)

// retryAfter is how long a Follower waits before it asks a server again that has failed.
const retryAfter = 2 * time.Second

// Status is the state of the source of flows.
type Status struct {
	Connected bool   `json:"connected"`
	Error     string `json:"error,omitempty"`
	Nodes     []Node `json:"nodes"`
	// Marks is why no changes of policies are known, if the server does not report them.
	Marks string `json:"marks,omitempty"`
}

// Node is one whose flows there are, or should be.
type Node struct {
	Name    string  `json:"name"`
	State   string  `json:"state"`
	Address string  `json:"address,omitempty"`
	Version string  `json:"version,omitempty"`
	Uptime  float64 `json:"uptimeSeconds,omitempty"`
	Flows   uint64  `json:"flows"`
	Seen    uint64  `json:"seen"`
}

// Follower adds the flows of a server to a Graph, and reconnects when the server goes.
type Follower struct {
	Client observer.ObserverClient
	// Nodes, if not nil, reports which nodes reach each other.
	Nodes health.NodeHealthClient
	// Policy, if not nil, computes allowed connections, and what other policies would change.
	Policy policy.PolicyClient
	Graph  *Graph

	mu sync.Mutex
	// The stream may be quiet for long, also because the server hangs: a periodic request of
	// another kind shows that it is alive.
	streams, answers bool
	err              string
	nodes            []Node
	health           Health
	events           string // why nothing is known of changes of policies

	reach    reachCache
	explains explainCache
}

// Status returns how it goes now.
func (f *Follower) Status() Status {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := Status{Connected: f.streams && f.answers, Nodes: append([]Node{}, f.nodes...), Marks: f.events}
	if !s.Connected {
		s.Error = f.err
	}
	return s
}

func (f *Follower) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

// Run follows until ctx ends.
func (f *Follower) Run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { f.watchNodes(ctx) })
	wg.Go(func() { f.watchEvents(ctx) })
	if f.Nodes != nil {
		wg.Go(func() { f.watchHealth(ctx) })
	}
	since, resume := time.Now().Add(-Window), newResumption()
	for ctx.Err() == nil {
		err := f.follow(ctx, since, resume)
		since = resume.since(since)
		f.set(func() { f.streams, f.err = false, message(err) })
		retry.Sleep(ctx, retryAfter)
	}
}

func message(err error) string {
	if err == nil || errors.Is(err, io.EOF) {
		return "the server has ended the stream of flows"
	}
	if st, ok := status.FromError(err); ok {
		return st.Message()
	}
	return err.Error()
}

// follow adds flows until the stream ends.
func (f *Follower) follow(ctx context.Context, since time.Time, resume *resumption) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := f.Client.GetFlows(ctx, &observer.GetFlowsRequest{Follow: true, Since: timestamppb.New(since)})
	if err != nil {
		return err
	}
	f.set(func() { f.streams = true })
	for {
		res, err := stream.Recv()
		if err != nil {
			return err
		}
		switch now := time.Now(); {
		case res.GetFlow() != nil:
			if !resume.fresh(res, now) {
				continue
			}
			if res.GetFlow().GetNodeName() == "" {
				res.GetFlow().NodeName = res.GetNodeName()
			}
			if res.GetFlow().GetTime().AsTime().Before(since) {
				// It is new, from a node whose clock is behind: none that was recorded before the
				// request is that old.
				res.GetFlow().Time = timestamppb.New(now)
			}
			f.Graph.Add(res.GetFlow())
		case res.GetLostEvents() != nil:
			if resume.fresh(res, now) {
				f.Graph.Lost(res.GetLostEvents().GetNumEventsLost())
			}
		}
	}
}

// watchNodes periodically requests the list of nodes.
func (f *Follower) watchNodes(ctx context.Context) {
	for ctx.Err() == nil {
		asked, cancel := context.WithTimeout(ctx, 5*time.Second)
		res, err := f.Client.GetNodes(asked, &observer.GetNodesRequest{})
		cancel()
		var nodes []Node
		for _, n := range res.GetNodes() {
			nodes = append(nodes, Node{
				Name: n.GetName(), State: stateName(n.GetState().String()), Address: n.GetAddress(), Version: n.GetVersion(),
				Uptime: time.Duration(n.GetUptimeNs()).Seconds(), Flows: n.GetNumFlows(), Seen: n.GetSeenFlows(),
			})
		}
		f.set(func() {
			// A server that knows of no such question has answered, too.
			f.answers = err == nil || status.Code(err) == codes.Unimplemented
			if f.answers {
				f.nodes = nodes
			} else {
				f.err = message(err)
			}
		})
		retry.Sleep(ctx, 5*time.Second)
	}
}
