package flowserver

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/hawser-net/hawser/api/flow"
	"github.com/hawser-net/hawser/api/observer"
	"github.com/hawser-net/hawser/internal/flows"
)

// GetFlows implements [observer.ObserverServer].
func (s *Server) GetFlows(req *observer.GetFlowsRequest, stream observer.Observer_GetFlowsServer) error {
	filter, err := flows.Compile(req.GetWhitelist(), req.GetBlacklist())
	if err != nil {
		return invalid("%v", err)
	}
	q, err := newQuery(req)
	if err != nil {
		return err
	}
	if q.follow && s.cfg.Follow != nil {
		defer s.cfg.Follow()()
	}
	lost := func(l *flow.LostEvent, at time.Time) *observer.GetFlowsResponse {
		return &observer.GetFlowsResponse{
			ResponseTypes: &observer.GetFlowsResponse_LostEvents{LostEvents: l}, NodeName: s.nodeName(), Time: timestamppb.New(at),
		}
	}
	return Watch(stream.Context(), s.cfg.Stall, func(ctx context.Context, send func(func() error) error) error {
		return read(ctx, s.cfg.Record.Flows, q, reader[flows.Entry]{
			at:     func(e *flows.Entry) time.Time { return e.Time },
			match:  filter.Match,
			counts: func(e *flows.Entry) bool { return e.Flow != nil },
			send: func(e *flows.Entry) error {
				res := lost(e.Lost, e.Time)
				if e.Flow != nil {
					res = &observer.GetFlowsResponse{
						ResponseTypes: &observer.GetFlowsResponse_Flow{Flow: e.Flow}, NodeName: e.Flow.GetNodeName(), Time: e.Flow.GetTime(),
					}
				}
				return send(func() error { return stream.Send(res) })
			},
			missed: func(n uint64) error {
				res := lost(flows.Lost(flow.LostEventSource_HUBBLE_RING_BUFFER, n), time.Now())
				return send(func() error { return stream.Send(res) })
			},
		})
	})
}

// GetAgentEvents implements [observer.ObserverServer].
func (s *Server) GetAgentEvents(req *observer.GetAgentEventsRequest, stream observer.Observer_GetAgentEventsServer) error {
	q, err := newQuery(req)
	if err != nil {
		return err
	}
	types, err := EventTypes(req)
	if err != nil {
		return err
	}
	ring := s.cfg.Record.Events
	if len(types) > 0 && !slices.ContainsFunc(types, func(t flow.AgentEventType) bool { return !flows.AboutPolicy(t) }) {
		ring = s.cfg.Record.Policies
	}
	return Watch(stream.Context(), s.cfg.Stall, func(ctx context.Context, send func(func() error) error) error {
		return read(ctx, ring, q, reader[flows.Event]{
			at:     func(e *flows.Event) time.Time { return e.Time },
			match:  func(e *flows.Event) bool { return len(types) == 0 || slices.Contains(types, e.Event.GetType()) },
			counts: func(*flows.Event) bool { return true },
			send: func(e *flows.Event) error {
				res := &observer.GetAgentEventsResponse{AgentEvent: e.Event, NodeName: s.nodeName(), Time: timestamppb.New(e.Time)}
				return send(func() error { return stream.Send(res) })
			},
			// Also if some types are asked for: what was lost may have been of any.
			missed: func(n uint64) error {
				res := &observer.GetAgentEventsResponse{
					AgentEvent: flows.LostEvents(flow.LostEventSource_HUBBLE_RING_BUFFER, n), NodeName: s.nodeName(), Time: timestamppb.Now(),
				}
				return send(func() error { return stream.Send(res) })
			},
		})
	})
}

// EventTypes returns the types of events that a request wants, each once; none means all.
func EventTypes(req *observer.GetAgentEventsRequest) ([]flow.AgentEventType, error) {
	if len(req.GetTypes()) > maxEventTypes {
		return nil, invalid("types: %d are too many; up to %d are asked for at once", len(req.GetTypes()), maxEventTypes)
	}
	return slices.Compact(slices.Sorted(slices.Values(req.GetTypes()))), nil
}

// maxEventTypes is how many types of events a request names at most: more than there are.
const maxEventTypes = 64

// query is what a request wants of a ring.
type query struct {
	number        uint64 // 0 for all
	first, follow bool
	since, until  time.Time // zero for no bound
}

// during reports whether a time is within the bounds.
func (q *query) during(at time.Time) bool {
	return !at.Before(q.since) && !q.after(at) // no time is before the zero one
}

// after reports whether a time is after the last one.
func (q *query) after(at time.Time) bool { return !q.until.IsZero() && at.After(q.until) }

// Request is what requests of streams have in common.
type Request interface {
	GetNumber() uint64
	GetFirst() bool
	GetFollow() bool
	GetSince() *timestamppb.Timestamp
	GetUntil() *timestamppb.Timestamp
}

// Check fails with InvalidArgument if the bounds of a request are invalid.
func Check(req Request) error {
	_, err := newQuery(req)
	return err
}

func newQuery(req Request) (query, error) {
	q := query{number: req.GetNumber(), first: req.GetFirst(), follow: req.GetFollow()}
	for _, bound := range []struct {
		name string
		in   *timestamppb.Timestamp
		out  *time.Time
	}{{"since", req.GetSince(), &q.since}, {"until", req.GetUntil(), &q.until}} {
		if bound.in == nil {
			continue
		}
		if err := bound.in.CheckValid(); err != nil {
			return q, invalid("%s: %v", bound.name, err)
		}
		*bound.out = bound.in.AsTime()
	}
	switch {
	case q.first && q.follow:
		return q, invalid("first: the oldest entries cannot be followed by those to come; leave out first or follow")
	case q.first && q.number == 0:
		return q, invalid("first: number must be set")
	case !q.since.IsZero() && !q.until.IsZero() && q.until.Before(q.since):
		return q, invalid("until: %s is before since", q.until.Format(time.RFC3339Nano))
	}
	return q, nil
}

// reader is what is done with the entries of a ring.
type reader[T any] struct {
	at func(*T) time.Time
	// match reports whether an entry is wanted, counts whether it is one of those whose number is
	// bounded.
	match, counts func(*T) bool
	send          func(*T) error
	// missed reports entries that were overwritten before they were read.
	missed func(n uint64) error
}

// batch is how many entries are copied at once out of a ring.
const batch = 64

// read sends what a query wants. It ends with the history if nothing to come is wanted, else with
// ctx.
func read[T any](ctx context.Context, ring *flows.Ring[T], q query, r reader[T]) error {
	oldest, end := ring.Bounds()
	past := span[T]{from: oldest}
	bounded := q.number
	switch {
	case q.number > 0 && !q.first:
		var err error
		if past, err = last(ctx, ring, q, r, oldest, end); err != nil {
			return err
		}
		bounded = 0 // there are no more, but for those to come
	case q.number == 0 && q.follow && q.since.IsZero():
		past.from = end
	default:
		past.older = ring.Older(oldest)
	}
	var late <-chan time.Time
	if q.follow && !q.until.IsZero() {
		timer := time.NewTimer(time.Until(q.until))
		defer timer.Stop()
		late = timer.C
	}
	sent := uint64(0)
	// pass sends an entry if it is wanted, and reports whether it was the last one.
	pass := func(e *T) (done bool, err error) {
		if ctx.Err() != nil { // to match may take long
			return false, ctx.Err()
		}
		// A flow after the end of a following is the end. Of what is there already, entries are
		// only nearly in the order of their times.
		if q.follow && r.counts(e) && q.after(r.at(e)) {
			return true, nil
		}
		if !q.during(r.at(e)) || !r.match(e) {
			return false, nil
		}
		if err := r.send(e); err != nil {
			return false, err
		}
		if r.counts(e) {
			sent++
		}
		return r.counts(e) && sent == bounded, nil
	}
	if done, err := past.pass(q, r, pass); done || err != nil {
		return err
	}
	next := past.from
	buf := make([]T, batch)
	for q.follow || next < end {
		into := buf
		if !q.follow {
			into = buf[:min(batch, end-next)]
		}
		n, missed, wait := ring.Read(next, into)
		if missed > 0 {
			if err := r.missed(missed); err != nil {
				return err
			}
		}
		next += missed + uint64(n)
		for i := range n {
			if next-uint64(n-i) >= end {
				// What was recorded after the request is to come, also if the clock was set back:
				// else whoever follows would miss it until the clock is there again.
				q.since = time.Time{}
			}
			if done, err := pass(&into[i]); done || err != nil {
				return err
			}
		}
		if wait == nil {
			continue
		}
		clear(buf) // hold nothing back while waiting
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-late:
			return nil
		case <-wait:
		}
	}
	return nil
}

// span is where reading begins: with some of the entries before a number, then with all from it.
type span[T any] struct {
	older []flows.Numbered[T]
	from  uint64
}

// pass sends the older entries, and then how many are missing among them and up to the rest. It
// reports whether that was all that is wanted.
func (s *span[T]) pass(q query, r reader[T], pass func(*T) (bool, error)) (done bool, err error) {
	missing := s.missing(q, r)
	for _, e := range s.older {
		if done, err := pass(e.Entry); done || err != nil {
			return done, err
		}
	}
	s.older = nil
	if missing > 0 {
		return false, r.missed(missing)
	}
	return false, nil
}

// missing is how many entries were overwritten since the first older one that is within the bounds
// of a query, up to the first that is behind them.
func (s *span[T]) missing(q query, r reader[T]) uint64 {
	first := slices.IndexFunc(s.older, func(e flows.Numbered[T]) bool { return q.during(r.at(e.Entry)) })
	if first < 0 {
		return 0
	}
	kept, end := s.older[first:], s.from
	if behind := slices.IndexFunc(kept, func(e flows.Numbered[T]) bool { return q.after(r.at(e.Entry)) }); behind >= 0 {
		kept, end = kept[:behind], kept[behind].Number
	}
	return end - kept[0].Number - uint64(len(kept))
}

// last returns where the last entries begin that a query wants, of those from oldest up to end, or
// of the older ones. It fails if ctx ends.
func last[T any](ctx context.Context, ring *flows.Ring[T], q query, r reader[T], oldest, end uint64) (span[T], error) {
	buf := make([]T, batch)
	found := uint64(0)
	wanted := func(e *T) (bool, error) {
		if q.during(r.at(e)) && r.counts(e) && r.match(e) {
			found++
		}
		return found == q.number, ctx.Err() // to match may take long
	}
	at := end
	for at > oldest {
		from := max(oldest, at-min(at, batch))
		_, missed, _ := ring.Read(from, buf[:at-from])
		from = min(from+missed, at)
		for i := int(at-from) - 1; i >= 0; i-- {
			if done, err := wanted(&buf[i]); done || err != nil {
				return span[T]{from: from + uint64(i)}, err
			}
		}
		if at = from; missed > 0 {
			break // the ring went round meanwhile
		}
	}
	older := ring.Older(at)
	for i := len(older) - 1; i >= 0; i-- {
		if done, err := wanted(older[i].Entry); done || err != nil {
			return span[T]{older[i:], at}, err
		}
	}
	return span[T]{older, at}, nil
}

// Watch runs what sends to a client, each time through send, and ends it if the client is gone or
// takes nothing for as long as stall. It may return before run does, which then is at its end: a
// handler that returns ends what is being sent.
func Watch(ctx context.Context, stall time.Duration, run func(ctx context.Context, send func(func() error) error) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	began := time.Now()    // what follows is by the monotonic clock, which cannot be set
	var since atomic.Int64 // when after that the message was begun that is being sent; 0 if none is
	send := func(f func() error) error {
		since.Store(int64(max(1, time.Since(began))))
		defer since.Store(0)
		return f()
	}
	done := make(chan error, 1)
	// When the handler returns, gRPC ends what is being sent, and so this goroutine.
	go func() { done <- run(ctx, send) }()
	tick := time.NewTicker(stall / 4)
	defer tick.Stop()
	for {
		select {
		case err := <-done:
			return err
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		case now := <-tick.C:
			if at := since.Load(); at != 0 && now.Sub(began)-time.Duration(at) > stall {
				return status.Errorf(codes.DeadlineExceeded, "nothing was taken of what there was to read for %s", stall)
			}
		}
	}
}
