package agent

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/types/known/timestamppb"

	flowpb "github.com/hawser-net/hawser/api/flow"
	"github.com/hawser-net/hawser/api/rest"
	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/flowmetrics"
	"github.com/hawser-net/hawser/internal/flows"
	"github.com/hawser-net/hawser/internal/flowserver"
	"github.com/hawser-net/hawser/internal/node"
	"github.com/hawser-net/hawser/internal/policy"
)

// flowRecorder makes flows of the kernel's events and remembers them.
type flowRecorder struct {
	hub    *hub
	record *flows.Record
	maker  flows.Maker
	// metrics counts flows; nil if nobody asked for any.
	metrics *flowmetrics.Metrics
	events  datapath.MonitorFlags // the kinds of which flows are made

	mu    sync.Mutex
	users int // who want flows to come
	sub   *subscriber
	unsub func()
	moved chan struct{} // sub has changed
}

// follow has the kernel emit events until the function returned is called. When follow returns,
// what happens next is recorded.
func (r *flowRecorder) follow() (stop func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.users++; r.users == 1 {
		r.sub, r.unsub = r.hub.subscribe(r.events)
		r.wake()
	}
	return sync.OnceFunc(func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.users--; r.users == 0 {
			r.unsub()
			r.sub, r.unsub = nil, nil
			r.wake()
		}
	})
}

// wake has run look at sub again. It must be called with mu held.
func (r *flowRecorder) wake() {
	select {
	case r.moved <- struct{}{}:
	default: // it is about to
	}
}

// run records what there is until ctx ends.
func (r *flowRecorder) run(ctx context.Context) error {
	for {
		r.mu.Lock()
		sub := r.sub
		r.mu.Unlock()
		var ready <-chan struct{} // nil while nobody wants any
		if sub != nil {
			ready = sub.ready
		}
		select {
		case <-ctx.Done():
			return nil
		case <-r.moved:
		case <-ready:
			r.take(ctx, sub)
		}
	}
}

// take records the events that wait, unless ctx ends.
func (r *flowRecorder) take(ctx context.Context, sub *subscriber) {
	events, kernel, queue := sub.take()
	// What was lost has the time of what comes after it: entries stay in order.
	at := time.Now()
	if len(events) > 0 {
		at = events[0].Time
	}
	lose := func(source flowpb.LostEventSource, n uint64) {
		if n == 0 {
			return
		}
		r.record.Lose(source, n, at)
		if r.metrics != nil {
			r.metrics.Lose(source, n)
		}
	}
	lose(flowpb.LostEventSource_PERF_EVENT_RING_BUFFER, kernel)
	lose(flowpb.LostEventSource_OBSERVER_EVENTS_QUEUE, queue)
	for _, ev := range events {
		if ctx.Err() != nil {
			return
		}
		f := r.maker.Flow(ev)
		if f == nil {
			continue
		}
		now := time.Now()
		if r.metrics != nil {
			r.metrics.Add(f, now)
		}
		r.record.Add(f, ev.Packet.Src, ev.Packet.Dst, now)
	}
}

// newFlowRecorder returns a recorder that records nothing yet; nil if none is wanted.
func newFlowRecorder(a *api) (*flowRecorder, error) {
	if !a.cfg.Flows.Enable {
		return nil, nil
	}
	capacity := a.cfg.Flows.Capacity
	if capacity == 0 {
		capacity = 1024 // for those who follow, to read from
	}
	record, err := flows.NewRecord(capacity, time.Now())
	if err != nil {
		return nil, err
	}
	metrics, err := newFlowMetrics(a.cfg.Flows.Metrics)
	if err != nil {
		return nil, err
	}
	return &flowRecorder{
		hub: a.hub, record: record, moved: make(chan struct{}, 1), metrics: metrics, events: a.cfg.Flows.events(),
		maker: flows.Maker{Node: a.localName(), Directory: newFlowDirectory(a)},
	}, nil
}

// startFlows begins to record flows and to serve them, if that is wanted.
func (a *api) startFlows(run *group, log *slog.Logger) error {
	if a.flows == nil {
		return nil
	}
	cfg := a.cfg.Flows
	sc := flowserver.Config{
		Record: a.flows.record, Self: node.Key{Cluster: a.cfg.ClusterName, Name: a.cfg.NodeName}, Nodes: a.nodes.Table(), PeerPort: cfg.port(), PeerTLS: !cfg.NoTLS,
		Version: a.version, Log: log,
	}
	if cfg.Capacity == 0 && a.flows.metrics == nil {
		sc.Follow = a.flows.follow
	} else {
		a.flows.follow() // for as long as the agent runs; the kernel forgets it afterwards
	}
	srv, err := flowserver.New(sc)
	if err != nil {
		return err
	}
	local, err := listenAPI(cfg.SocketPath, "--hubble-socket-path", log)
	if err != nil {
		return err
	}
	a.flows.record.Events.Add(flows.Event{Time: time.Now(), Event: &flowpb.AgentEvent{
		Type:         flowpb.AgentEventType_AGENT_STARTED,
		Notification: &flowpb.AgentEvent_AgentStart{AgentStart: &flowpb.TimeNotification{Time: timestamppb.Now()}},
	}})
	run.start("flows", a.flows.run)
	run.start("flow-socket", func(ctx context.Context) error {
		defer os.Remove(cfg.SocketPath)
		return srv.Serve(ctx, local, nil)
	})
	if cfg.ListenAddress != "" {
		run.start("flow-server", func(ctx context.Context) error { return a.serveFlows(ctx, srv, log) })
	}
	if a.flows.metrics != nil {
		run.start("flow-metrics", func(ctx context.Context) error { return a.serveFlowMetrics(ctx, log) })
		run.start("flow-metrics-sweep", a.sweepFlowMetrics)
	}
	return nil
}

// flowRetry is the time between two attempts to serve flows on TCP.
const flowRetry = 5 * time.Second

// serveFlows serves flows on TCP until ctx ends.
func (a *api) serveFlows(ctx context.Context, srv *flowserver.Server, log *slog.Logger) error {
	cfg := a.cfg.Flows
	return a.keepServing(ctx, "flow-server", cfg.ListenAddress, log, func(l func() (net.Listener, error)) error {
		var creds credentials.TransportCredentials
		if !cfg.NoTLS {
			tlsCfg, err := cfg.TLS.Config()
			if err != nil {
				return err
			}
			creds = credentials.NewTLS(tlsCfg)
		}
		at, err := l()
		if err != nil {
			return err
		}
		return srv.Serve(ctx, at, creds)
	})
}

// keepServing calls serve, which begins to listen at an address when it has what it needs, until
// ctx ends, and again when it failed. What is missing may come: certificates are often made when
// the agents run already. Nobody's packets depend on it, so that it is no reason for the agent to
// end.
func (a *api) keepServing(ctx context.Context, part, addr string, log *slog.Logger, serve func(listen func() (net.Listener, error)) error) error {
	var before string
	for {
		err := serve(func() (net.Listener, error) {
			l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
			if err == nil {
				a.parts.report(part, nil, "served at "+addr)
				before = ""
			}
			return l, err
		})
		if ctx.Err() != nil {
			return nil
		}
		if err != nil && err.Error() != before {
			before = err.Error()
			log.Warn("nothing is served on TCP; this is tried again", "what", part, "address", addr, "error", err)
			a.parts.set(part, rest.StateWarning, err.Error())
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(flowRetry):
		}
	}
}

// flowStatus is what GET /healthz says of flows.
func (a *api) flowStatus() rest.Status {
	if a.flows == nil {
		return rest.Status{State: rest.StateDisabled}
	}
	oldest, next := a.flows.record.Flows.Bounds()
	seen, _ := a.flows.record.Seen()
	return rest.Status{State: rest.StateOk, Msg: fmt.Sprintf("%d of %d flows kept, %d seen, %.1f/s",
		next-oldest, a.flows.record.Flows.Cap(), seen, a.flows.record.Rate(time.Now()))}
}

// noteRules tells readers of the agent's events of policies that changed.
func (a *api) noteRules(changes []policy.Change) {
	if a.flows == nil {
		return
	}
	now := time.Now()
	for _, ch := range changes {
		ev := &flowpb.AgentEvent{Type: flowpb.AgentEventType_POLICY_UPDATED}
		if len(ch.Rules) == 0 {
			ev.Type = flowpb.AgentEventType_POLICY_DELETED
		}
		ev.Notification = &flowpb.AgentEvent_PolicyUpdate{PolicyUpdate: &flowpb.PolicyUpdateNotification{
			Labels: policyNamed(ch.Owner).GetLabels(), Revision: a.policy.Revision(), RuleCount: int64(len(ch.Rules)),
		}}
		a.flows.record.Events.Add(flows.Event{Time: now, Event: ev})
	}
}
