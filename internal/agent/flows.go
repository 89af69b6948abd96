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

	mu    sync.Mutex
	users int // who want flows to come
	sub   *subscriber
	unsub func()
	moved chan struct{} // sub has changed
}

// flowEvents are the kinds of event of which flows are made: a connection that begins is judged,
// and so has a verdict.
const flowEvents = datapath.MonitorDrops | datapath.MonitorVerdicts

// follow has the kernel emit events until the function returned is called. When follow returns,
// what happens next is recorded.
func (r *flowRecorder) follow() (stop func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.users++; r.users == 1 {
		r.sub, r.unsub = r.hub.subscribe(flowEvents)
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
		var queue <-chan datapath.Event // nil while nobody wants any
		if sub != nil {
			queue = sub.queue
		}
		select {
		case <-ctx.Done():
			return nil
		case <-r.moved:
		case ev := <-queue:
			r.take(sub, ev)
		}
	}
}

func (r *flowRecorder) take(sub *subscriber, ev datapath.Event) {
	kernel, queue := sub.takeLost()
	// What was lost has the time of what comes after it: entries stay in order.
	if kernel > 0 {
		r.record.Lose(flowpb.LostEventSource_PERF_EVENT_RING_BUFFER, kernel, ev.Time)
	}
	if queue > 0 {
		r.record.Lose(flowpb.LostEventSource_OBSERVER_EVENTS_QUEUE, queue, ev.Time)
	}
	if f := r.maker.Flow(ev); f != nil {
		r.record.Add(f, ev.Packet.Src, ev.Packet.Dst, time.Now())
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
	return &flowRecorder{
		hub: a.hub, record: record, moved: make(chan struct{}, 1),
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
	if cfg.Capacity == 0 {
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
	return nil
}

// flowRetry is the time between two attempts to serve flows on TCP.
const flowRetry = 5 * time.Second

// serveFlows serves flows on TCP until ctx ends. What is missing may come: certificates are often
// made when the agents run already. Nobody's packets depend on it, so that it is no reason for the
// agent to end.
func (a *api) serveFlows(ctx context.Context, srv *flowserver.Server, log *slog.Logger) error {
	cfg := a.cfg.Flows
	var before string
	for {
		err := func() error {
			var creds credentials.TransportCredentials
			if !cfg.NoTLS {
				tlsCfg, err := cfg.TLS.Config()
				if err != nil {
					return err
				}
				creds = credentials.NewTLS(tlsCfg)
			}
			l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", cfg.ListenAddress)
			if err != nil {
				return err
			}
			a.parts.report("flow-server", nil, "flows are served at "+cfg.ListenAddress)
			before = ""
			return srv.Serve(ctx, l, creds)
		}()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil && err.Error() != before {
			before = err.Error()
			log.Warn("flows are not served on TCP; this is tried again", "address", cfg.ListenAddress, "error", err)
			a.parts.set("flow-server", rest.StateWarning, err.Error())
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
