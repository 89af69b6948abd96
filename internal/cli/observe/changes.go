package observe

import (
	"context"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/hawser-net/hawser/api/observer"
	"github.com/hawser-net/hawser/internal/cli/output"
)

// changeWindow is for how long the same change, reported by other nodes, is not shown again.
const changeWindow = 10 * time.Second

// maxChanges is how many changes of policies are shown between past flows, the latest.
const maxChanges = 10000

// maxReports is how many reports of changes are remembered, each by one node.
const maxReports = 1 << 14

// policyChanges shows changes of policies between flows. Each node reports each: the first counts.
type policyChanges struct {
	mu    sync.Mutex // guards what is written
	write func(*observer.GetAgentEventsResponse) error
	// shown are the changes of each policy, in the order in which they were shown, and count how
	// many nodes they have together.
	shown map[string][]shownChange
	count int
	// past are those that were before the flows to come, in the order of time.
	past []*observer.GetAgentEventsResponse
}

// shownChange is a change that was shown, and the nodes that reported it.
type shownChange struct {
	what  string // how the policy changed
	at    time.Time
	nodes map[string]bool
}

// add shows a change, if no other node has reported it. mu is held.
func (p *policyChanges) add(res *observer.GetAgentEventsResponse) error {
	if u := res.GetAgentEvent().GetPolicyUpdate(); u != nil {
		what := fmt.Sprint(res.GetAgentEvent().GetType(), u.GetRuleCount())
		if p.known(fmt.Sprint(u.GetLabels()), what, res.GetNodeName(), res.GetTime().AsTime()) {
			return nil
		}
	}
	return p.write(res)
}

// known reports whether another node has reported a change, and remembers that this one has. A node
// reports changes in their order: a report is of the first equal one after the last it reported.
func (p *policyChanges) known(policy, what, node string, at time.Time) bool {
	if p.count >= maxReports {
		p.forget(at)
	}
	if p.count >= maxReports { // shown too often rather than not at all
		return false
	}
	list := p.shown[policy]
	next := len(list)
	for next > 0 && !list[next-1].nodes[node] {
		next--
	}
	p.count++
	for _, c := range list[next:] {
		if c.what == what && at.Sub(c.at).Abs() < changeWindow {
			c.nodes[node] = true
			return true
		}
	}
	p.shown[policy] = append(list, shownChange{what, at, map[string]bool{node: true}})
	return false
}

// forget drops the changes to which no report of a time can belong.
func (p *policyChanges) forget(at time.Time) {
	p.count = 0
	for policy, list := range p.shown {
		list = slices.DeleteFunc(list, func(c shownChange) bool { return at.Sub(c.at).Abs() >= changeWindow })
		if p.shown[policy] = list; len(list) == 0 {
			delete(p.shown, policy)
		}
		for _, c := range list {
			p.count += len(c.nodes)
		}
	}
}

// take returns those of the past that were not after a time. mu is held.
func (p *policyChanges) take(at time.Time) []*observer.GetAgentEventsResponse {
	n := 0
	for n < len(p.past) && !p.past[n].GetTime().AsTime().After(at) {
		n++
	}
	out := p.past[:n]
	p.past = p.past[n:]
	return out
}

func (p *policyChanges) addAll(list []*observer.GetAgentEventsResponse) error {
	for _, res := range list {
		if err := p.add(res); err != nil {
			return err
		}
	}
	return nil
}

// interleaveChanges shows changes of policies between the flows that writer shows. The returned
// function must be called at the end.
func interleaveChanges(ctx context.Context, writer *flowWriter, format string, which window, q asked, conn grpc.ClientConnInterface, w, errs io.Writer) (end func() error, err error) {
	if format == "dict" {
		format = "compact"
	}
	show, err := eventWriter(format, true, w)
	if err != nil {
		return nil, err
	}
	p := &policyChanges{write: show, shown: map[string][]shownChange{}}
	req := &observer.GetAgentEventsRequest{Types: policyEvents, Follow: which.follow, Since: q.since, Until: q.until}
	if !which.follow {
		req.Number = maxChanges
		if err := readEvents(ctx, conn, req, func(res *observer.GetAgentEventsResponse) error {
			if len(p.past) < maxChanges { // a server that sends more than it was asked for
				p.past = append(p.past, res)
			}
			return nil
		}); err != nil {
			return nil, err
		}
	} else if q.number > 0 && q.since == nil {
		req.Since = timestamppb.Now()
	}
	ctx, cancel := context.WithCancel(ctx)
	var following sync.WaitGroup
	if which.follow {
		following.Go(func() {
			err := readEvents(ctx, conn, req, func(res *observer.GetAgentEventsResponse) error {
				p.mu.Lock()
				defer p.mu.Unlock()
				return p.add(res)
			})
			if err != nil && ctx.Err() == nil {
				fmt.Fprintf(errs, "changes of policies are missing from now on: %s\n", output.Printable(status.Convert(err).Message()))
			}
		})
	}
	// Without a beginning, what was before the first flow is not between flows.
	between := !which.follow && q.since == nil && !which.all
	inner := *writer
	writer.write = func(res *observer.GetFlowsResponse) error {
		p.mu.Lock()
		defer p.mu.Unlock()
		if res.GetFlow() != nil {
			list := p.take(res.GetTime().AsTime())
			if !between {
				if err := p.addAll(list); err != nil {
					return err
				}
			}
			between = false
		}
		return inner.write(res)
	}
	return func() error {
		cancel()
		following.Wait()
		if between || q.first { // there were no flows, or what follows is not between them
			return nil
		}
		return p.addAll(p.past)
	}, nil
}
