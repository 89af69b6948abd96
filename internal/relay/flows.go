package relay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/hawser-net/hawser/api/observer"
	policypb "github.com/hawser-net/hawser/api/policy"
	"github.com/hawser-net/hawser/api/relay"
	"github.com/hawser-net/hawser/internal/flowserver"
)

var (
	errSilent   = errors.New("it did not answer in time; what it knows is missing")
	errEndless  = errors.New("it sends more than a node keeps; the rest is left out")
	errStopping = status.Error(codes.Unavailable, "the relay is being stopped; ask again")
)

// lookEvery is how often a follower looks at the nodes, if they change all the time.
const lookEvery = 100 * time.Millisecond

// GetFlows implements [observer.ObserverServer].
func (r *Relay) GetFlows(req *observer.GetFlowsRequest, stream observer.Observer_GetFlowsServer) error {
	return r.search(stream.Context(), flowsQuestion{req}, func(e entry) error {
		res := e.(*observer.GetFlowsResponse)
		if res.GetFlow() != nil {
			r.metrics.flows.Inc()
		}
		return stream.Send(res)
	})
}

// GetAgentEvents implements [observer.ObserverServer]: those of all agents, in the order of time.
// Changes of the states of nodes are sent as events of the type [NodeStateEvent], whichever types
// are asked for; that they are connected only of those that were away.
func (r *Relay) GetAgentEvents(req *observer.GetAgentEventsRequest, stream observer.Observer_GetAgentEventsServer) error {
	types, err := flowserver.EventTypes(req)
	if err != nil {
		return err
	}
	return r.search(stream.Context(), eventsQuestion{req, types}, func(e entry) error {
		res, ok := e.(*observer.GetAgentEventsResponse)
		if !ok {
			res = stateEvent(e.(*observer.GetFlowsResponse))
		}
		return stream.Send(res)
	})
}

// search asks all nodes and sends what they answer, in the order of time.
func (r *Relay) search(ctx context.Context, q question, send func(entry) error) error {
	if err := flowserver.Check(q); err != nil {
		return err
	}
	if problem, ok := r.roster.known(); !ok {
		return status.Errorf(codes.Unavailable, "no agent has reported the nodes at %s yet: %s", r.cfg.PeerService, problem)
	}
	done := r.requests.add()
	if done == nil {
		return errStopping
	}
	return flowserver.Watch(ctx, r.cfg.stall, func(ctx context.Context, watched func(func() error) error) error {
		defer done()
		s := &search{relay: r, req: q, start: time.Now(), nodes: map[string]*tracked{}, changes: newStateChanges(r.cfg.ErrorWindow)}
		_, s.greet = q.(flowsQuestion)
		s.send = func(e entry) error { return watched(func() error { return send(e) }) }
		return s.run(ctx)
	})
}

// search is one request for flows, or for events of agents. It belongs to one goroutine, but for
// what its readers use of the merge.
type search struct {
	relay *Relay
	req   question
	send  func(entry) error
	start time.Time
	// greet means that the client also gets the nodes that are connected from the beginning.
	greet   bool
	merge   *merge
	nodes   map[string]*tracked
	changes *stateChanges
	// keep holds the last flows of the past until there are no more; nil if they are not bounded.
	keep    *kept
	sent    uint64
	readers sync.WaitGroup
	// asked is how many times a node was asked, and refusals how often it refused the request as
	// invalid.
	asked, refusals int
}

// tracked is what a search knows of a node.
type tracked struct {
	source *source // nil if there never was one
	over   bool    // the source has ended
	conn   *grpc.ClientConn
	state  relay.NodeState // that the client has got
	again  time.Time       // when it may be asked again on the same connection
}

func (s *search) run(ctx context.Context) (err error) {
	r := s.relay
	ctx, cancel := context.WithCancel(ctx)
	defer func() {
		cancel()
		s.readers.Wait()
		if s.merge != nil {
			s.merge.free()
		}
	}()
	timeout := r.cfg.DialTimeout
	if s.req.GetFollow() {
		timeout = r.cfg.SortDrain
	}
	s.merge = newMerge(s.req.GetFollow(), s.start, timeout, r.cfg.SortDrain, r.cfg.SortBuffer, &r.large, s.req.lost)
	s.merge.past = r.cfg.past
	switch until := s.req.GetUntil(); {
	case !s.req.GetFollow(), until != nil && until.AsTime().Before(s.start):
		s.merge.end = s.start
	case until != nil:
		s.merge.end = until.AsTime()
	}
	// Of more than all nodes have, such as clients ask for who want everything, all are the last.
	if n := s.req.GetNumber(); n > 0 && n < maxNodes*maxPast && !s.req.GetFirst() {
		s.keep = &kept{number: s.req.GetNumber(), all: &r.kept, most: r.cfg.keep}
		defer func() {
			if s.keep != nil {
				s.keep.free()
			}
		}()
	}
	changed, err := s.look(ctx, true)
	if err != nil {
		return err
	}
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	looked, dirty := time.Now(), false
	follow := s.req.GetFollow()
	for {
		now := time.Now()
		if since := now.Sub(looked); follow && (dirty && since >= lookEvery || since >= r.cfg.RetryTimeout) {
			looked, dirty = now, false
			if changed, err = s.look(ctx, false); err != nil {
				return err
			}
		}
		n := s.merge.next(now, s.sources)
		over, err := s.ended(now)
		if err != nil {
			return err
		}
		dirty = dirty || over
		wait, err := s.sendChanges(now, n)
		if err != nil {
			return err
		}
		if n.item != nil {
			if end, err := s.entry(n); end || err != nil {
				return err
			}
			continue
		}
		if n.caughtUp {
			if err := s.flush(); err != nil {
				return err
			}
		}
		if s.complete(now, n) {
			return nil
		}
		var change <-chan struct{}
		if follow {
			if wait = least(wait, r.cfg.RetryTimeout); dirty {
				wait = least(wait, lookEvery)
			} else {
				change = changed
			}
			if until := s.req.GetUntil(); until != nil {
				wait = least(wait, max(lookEvery, until.AsTime().Sub(now)))
			}
		}
		var tick <-chan time.Time
		if wait > 0 {
			timer.Reset(wait)
			tick = timer.C
		}
		stopping := r.requests.stopping
		if !follow {
			stopping = nil // it comes to its end, if there is time
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-stopping:
			return errStopping
		case <-change:
			dirty = true
		case <-s.merge.woken:
		case <-tick:
		}
	}
}

// sendChanges sends state changes of nodes, if they are due, and returns for how long there is
// nothing to do at most; 0 if that is not known.
func (s *search) sendChanges(now time.Time, n next) (wait time.Duration, err error) {
	left, ok := s.changes.due(now)
	if !ok {
		return n.wait, nil
	}
	if left > 0 && (s.req.GetFollow() || !n.done) {
		return least(n.wait, left), nil
	}
	for _, res := range s.changes.take(now) {
		if err := s.send(res); err != nil {
			return 0, err
		}
	}
	return n.wait, nil
}

// complete reports whether nothing more is to come.
func (s *search) complete(now time.Time, n next) bool {
	until := s.req.GetUntil()
	switch {
	case !s.req.GetFollow():
		return n.done
	case until == nil || now.Before(until.AsTime()):
		return false
	}
	// Nodes end then by themselves, those that are well.
	return n.done || now.After(s.merge.end.Add(s.relay.cfg.DialTimeout))
}

// least is the smaller of two times to wait, of which the first may be none.
func least(a, b time.Duration) time.Duration {
	if a == 0 || b < a {
		return b
	}
	return a
}

// look asks the nodes that are connected, and not yet asked, and records the state changes of those
// that are not. It returns what is closed when it is worth to look again.
func (s *search) look(ctx context.Context, first bool) (<-chan struct{}, error) {
	views, changed := s.relay.roster.nodes()
	now := time.Now()
	there := make(map[string]bool, len(views))
	for _, v := range views {
		there[v.name] = true
		t := s.nodes[v.name]
		if t == nil {
			t = &tracked{}
			s.nodes[v.name] = t
		}
		if v.conn == nil {
			if t.state != relay.NodeState_NODE_UNAVAILABLE {
				t.state = relay.NodeState_NODE_UNAVAILABLE
				s.changes.add(v.name, t.state, unavailable(v))
			}
			continue
		}
		if !s.mayAsk(t, v.conn, now) {
			continue
		}
		if err := s.ask(ctx, v, t, len(views), first); err != nil {
			if first {
				return nil, err
			}
			// The client has the flows of others. This one is asked again with the next look.
			if t.again = now.Add(s.relay.cfg.RetryTimeout); t.state != relay.NodeState_NODE_ERROR {
				t.state = relay.NodeState_NODE_ERROR
				s.changes.add(v.name, t.state, text(err))
			}
			continue
		}
		if before := t.state; before != relay.NodeState_NODE_CONNECTED {
			t.state = relay.NodeState_NODE_CONNECTED
			if s.greet || before != relay.NodeState_UNKNOWN_NODE_STATE {
				s.changes.add(v.name, t.state, "")
			}
		}
	}
	for name := range s.nodes {
		if !there[name] {
			delete(s.nodes, name)
			s.changes.add(name, relay.NodeState_NODE_GONE, "")
		}
	}
	return changed, nil
}

// mayAsk reports whether to ask a node: if it was not yet, or has ended on a connection that is no
// more, or long enough ago.
func (s *search) mayAsk(t *tracked, conn *grpc.ClientConn, now time.Time) bool {
	return t.source == nil || t.over && (conn != t.conn || now.After(t.again))
}

// ask has a node send what is wanted of it.
func (s *search) ask(ctx context.Context, v view, t *tracked, of int, first bool) error {
	if s.relay.upstreams.Add(1) > s.relay.cfg.upstreams {
		s.relay.upstreams.Add(-1)
		return status.Errorf(codes.ResourceExhausted, "%d streams from nodes are being read, as many as the relay reads at once; end some clients", s.relay.cfg.upstreams)
	}
	req := s.req
	if !first {
		// It goes on where it was by its own clock; else with what is to come, and so it does after
		// what it cannot send to the relay.
		since := s.req.GetSince()
		switch src := t.source; {
		case src != nil && tooLarge(src.err):
			since = nil
		case src != nil && !src.last.IsZero():
			since = timestamppb.New(src.last.Add(1))
		}
		req = s.req.again(since)
	}
	var last time.Time
	if t.source != nil {
		last = t.source.last
	}
	ctx, end := context.WithCancel(ctx)
	past := !s.req.GetFollow() || s.req.GetNumber() > 0 || s.req.GetSince() != nil
	src := s.merge.add(v.name, of, first && past, end)
	src.last = last
	t.source, t.conn, t.over = src, v.conn, false
	s.asked++
	s.readers.Go(func() {
		defer s.relay.upstreams.Add(-1)
		defer end()
		s.merge.finish(src, s.read(ctx, v, req, src))
	})
	return nil
}

// read passes on what a node sends until that ends. In place of what is too large, it reports a
// loss, of the time of what the node sent before.
func (s *search) read(ctx context.Context, v view, req question, src *source) error {
	codec := newLenientCodec()
	receive, err := req.ask(ctx, v.conn, v.name, codec.options()...)
	if err != nil {
		return err
	}
	at := timestamppb.New(s.start.Add(-1)) // with the past, if it is asked for
	for {
		res, end := receive()
		switch {
		case errors.Is(end, io.EOF):
			return nil
		case tooLarge(end), end == nil && codec.refused:
			res = req.lost(v.name, at)
		case end != nil:
			return end
		case res == nil:
			continue
		}
		if err := s.merge.put(ctx, src, res); err != nil {
			return err
		}
		if end != nil {
			return end
		}
		if t := res.GetTime(); t.IsValid() {
			at = t
		}
	}
}

func (s *search) sources(each func(*source)) {
	for _, t := range s.nodes {
		if t.source != nil {
			each(t.source)
		}
	}
}

// ended records the state changes of nodes that ended before they sent everything, and reports
// whether any has ended. It fails if all did because of what was asked.
func (s *search) ended(now time.Time) (any bool, err error) {
	for _, src := range s.merge.ended() {
		t := s.nodes[src.node]
		if t == nil || t.source != src {
			continue // it is gone
		}
		any, t.over, t.again = true, true, now.Add(s.relay.cfg.RetryTimeout)
		if src.err == nil {
			continue
		}
		t.state = relay.NodeState_NODE_ERROR
		switch code := status.Code(src.err); code {
		case codes.InvalidArgument, codes.FailedPrecondition:
			s.refusals++
			err = status.Error(code, text(src.err))
		case codes.Unavailable, codes.Canceled:
			t.state = relay.NodeState_NODE_UNAVAILABLE
		}
		s.changes.add(src.node, t.state, text(src.err))
	}
	// What one node does not understand, others may.
	if s.refusals < s.asked || s.sent > 0 {
		err = nil
	}
	return any, err
}

// entry handles the next entry. It reports whether it was the last one.
func (s *search) entry(n next) (end bool, err error) {
	counts := s.req.counts(n.item.res)
	if counts {
		if t := n.item.res.GetTime(); t.IsValid() && !t.AsTime().After(time.Now()) {
			n.source.latest(t.AsTime())
		}
	}
	if s.keep != nil {
		if !s.req.GetFollow() || n.item.key.Before(s.start) {
			return false, s.keep.add(n.item.res, counts)
		}
		if err := s.flush(); err != nil {
			return false, err
		}
	}
	if err := s.send(n.item.res); err != nil {
		return false, err
	}
	if counts {
		s.sent++
	}
	return s.req.GetFirst() && s.sent == s.req.GetNumber(), nil
}

// flush sends what was kept of the past.
func (s *search) flush() error {
	if s.keep == nil {
		return nil
	}
	k := s.keep
	s.keep = nil
	defer k.free()
	// Nodes send the past nearly in order, and all of it is here.
	slices.SortStableFunc(k.entries, func(a, b keptEntry) int { return a.GetTime().AsTime().Compare(b.GetTime().AsTime()) })
	for _, e := range k.entries {
		if err := s.send(e.entry); err != nil {
			return err
		}
		if e.counts {
			s.sent++
		}
	}
	return nil
}

type keptEntry struct {
	entry
	counts bool
}

// kept holds the last entries that count, and the messages between them.
type kept struct {
	number  uint64
	entries []keptEntry
	counted uint64
	bytes   int64
	all     *atomic.Int64 // bytes that all requests hold
	most    int64
}

// add adds an entry and drops those that are not among the last any more.
func (k *kept) add(e entry, counts bool) error {
	size := int64(policypb.Cost(e))
	k.entries = append(k.entries, keptEntry{e, counts})
	k.bytes += size
	held := k.all.Add(size)
	if counts {
		k.counted++
	}
	for k.counted > k.number {
		old := k.entries[0]
		k.entries[0] = keptEntry{}
		k.entries = k.entries[1:]
		size := int64(policypb.Cost(old.entry))
		k.bytes -= size
		held = k.all.Add(-size)
		if old.counts {
			k.counted--
		}
	}
	// One request may take half of what there is.
	if k.bytes > k.most/2 || held > k.most {
		return status.Error(codes.ResourceExhausted, fmt.Sprintf(
			"the last %d of all nodes are more than the relay can hold; ask for fewer, or for a time with since and until", k.number))
	}
	return nil
}

func (k *kept) free() { k.all.Add(-k.bytes) }
