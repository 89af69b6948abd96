package agent

import (
	"context"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/hawser-net/hawser/api/rest"
	"github.com/hawser-net/hawser/api/rest/server"
	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/identity"
)

// eventSource is the kernel's stream of events.
type eventSource interface {
	// Events calls fn for every event until ctx ends.
	Events(ctx context.Context, fn func(datapath.Event)) error
}

// hub spreads the kernel's events to those who watch. While nobody does, the kernel is told to
// emit none.
type hub struct {
	log  *slog.Logger
	maps datapath.Maps

	mu   sync.Mutex
	subs map[*subscriber]struct{}
	lost uint64
}

// subscriber is one watcher. Events wait in its queue; what does not fit is counted.
type subscriber struct {
	flags datapath.MonitorFlags
	queue chan datapath.Event

	mu sync.Mutex
	// lost found no room in the kernel, dropped none in the queue.
	lost, dropped uint64
}

// subscriberQueue is how many events wait for a slow watcher before some are lost.
const subscriberQueue = 8192

func newHub(log *slog.Logger, maps datapath.Maps) *hub {
	return &hub{log: log, maps: maps, subs: map[*subscriber]struct{}{}}
}

// run spreads events until ctx ends. It first takes back what an agent before it may have wanted,
// and then repeats what is wanted before the kernel forgets it.
func (h *hub) run(ctx context.Context, src eventSource) error {
	h.repeat(true)
	done := make(chan struct{})
	defer func() { <-done }()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		defer close(done)
		tick := time.NewTicker(datapath.MonitorLifetime / 4)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				h.repeat(false)
			}
		}
	}()
	return src.Events(ctx, h.publish)
}

// repeat tells the kernel once more which kinds somebody wants; that nobody wants any only if so
// asked.
func (h *hub) repeat(always bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if always || len(h.subs) > 0 {
		h.update()
	}
}

// flagsOf are the switches of which each turns an event on.
func flagsOf(ev datapath.Event) datapath.MonitorFlags {
	switch {
	case ev.Type == datapath.EventDrop:
		return datapath.MonitorDrops
	case ev.Type == datapath.EventVerdict:
		return datapath.MonitorVerdicts
	case ev.News:
		return datapath.MonitorTraces | datapath.MonitorNews
	}
	return datapath.MonitorTraces
}

func (h *hub) publish(ev datapath.Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lost += ev.Lost
	for s := range h.subs {
		if ev.Lost > 0 {
			s.addLost(ev.Lost, 0)
		}
		if s.flags&flagsOf(ev) == 0 {
			continue
		}
		select {
		case s.queue <- ev:
		default:
			s.addLost(0, 1)
		}
	}
}

func (s *subscriber) addLost(kernel, queue uint64) {
	s.mu.Lock()
	s.lost += kernel
	s.dropped += queue
	s.mu.Unlock()
}

// takeLost returns how many events were lost since it was called last: those that found no room in
// the kernel, and in the queue.
func (s *subscriber) takeLost() (kernel, queue uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	kernel, queue = s.lost, s.dropped
	s.lost, s.dropped = 0, 0
	return kernel, queue
}

// subscribe starts watching events of the given kinds. The function returned ends it.
func (h *hub) subscribe(flags datapath.MonitorFlags) (*subscriber, func()) {
	s := &subscriber{flags: flags, queue: make(chan datapath.Event, subscriberQueue)}
	h.mu.Lock()
	h.subs[s] = struct{}{}
	h.update()
	h.mu.Unlock()
	return s, func() {
		h.mu.Lock()
		delete(h.subs, s)
		h.update()
		h.mu.Unlock()
	}
}

// update tells the kernel which kinds somebody wants. The caller holds the lock.
func (h *hub) update() {
	var flags datapath.MonitorFlags
	for s := range h.subs {
		flags |= s.flags
	}
	if err := h.maps.SetMonitor(flags); err != nil {
		h.log.Error("cannot switch the kernel's events", "error", err)
	}
}

// status reports the stream's counters.
func (h *hub) status() (subscribers int, lost uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.subs), h.lost
}

var monitorTypes = map[string]datapath.MonitorFlags{
	string(rest.MonitorEventTypeDrop):          datapath.MonitorDrops,
	string(rest.MonitorEventTypePolicyVerdict): datapath.MonitorVerdicts,
	string(rest.MonitorEventTypeTrace):         datapath.MonitorTraces,
}

// monitorBatch bounds how many events are sent in one write.
const monitorBatch = 256

// Monitor is GET /monitor: a stream of events until the client goes.
func (a *api) Monitor(ctx context.Context, req server.MonitorRequestObject) (server.MonitorResponseObject, error) {
	var flags datapath.MonitorFlags
	for _, name := range strings.Split(req.Params.Type, ",") {
		name = strings.TrimSpace(name)
		if name == "" {
			continue
		}
		f, ok := monitorTypes[name]
		if !ok {
			return nil, server.Errorf(http.StatusBadRequest, "type: %q is not one of drop, policy-verdict, trace", name)
		}
		flags |= f
	}
	if flags == 0 {
		flags = datapath.MonitorDrops | datapath.MonitorVerdicts | datapath.MonitorTraces
	}
	return server.MonitorStream(func(emit func(...rest.MonitorEvent) error) error {
		sub, stop := a.hub.subscribe(flags)
		defer stop()
		// A stream without events still has to notice that its client is gone.
		tick := time.NewTicker(15 * time.Second)
		defer tick.Stop()
		for {
			var batch []rest.MonitorEvent
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-a.stopping:
				return nil
			case <-tick.C:
			case ev := <-sub.queue:
				batch = append(batch, a.monitorEvent(ev))
			more:
				for len(batch) < monitorBatch {
					select {
					case ev := <-sub.queue:
						batch = append(batch, a.monitorEvent(ev))
					default:
						break more
					}
				}
			}
			if kernel, queue := sub.takeLost(); kernel+queue > 0 {
				batch = append(batch, rest.MonitorEvent{Type: rest.MonitorEventTypeLost, Time: time.Now(), Lost: kernel + queue})
			}
			if len(batch) > 0 {
				if err := emit(batch...); err != nil {
					return err
				}
			}
		}
	}), nil
}

// monitorEvent is the API's form of an event, with the labels of the identities as they are known
// now.
func (a *api) monitorEvent(ev datapath.Event) rest.MonitorEvent {
	out := rest.MonitorEvent{
		Time: ev.Time, Direction: ev.Direction.String(), Endpoint: int(ev.Endpoint), InterfaceIndex: ev.IfIndex, Length: ev.Length,
		Point: ev.Program.String(), SourceIdentity: int(ev.SrcIdentity), DestinationIdentity: int(ev.DstIdentity),
		Proto: ev.Packet.L4, SourcePort: int(ev.Packet.SrcPort), DestinationPort: int(ev.Packet.DstPort),
	}
	if out.Proto == "" {
		out.Proto = ev.Packet.L3
	}
	if ev.Packet.Src.IsValid() {
		out.Source, out.Destination = ev.Packet.Src.String(), ev.Packet.Dst.String()
	}
	if set, ok := a.identities.labelsOf(identity.ID(ev.SrcIdentity)); ok {
		out.SourceLabels = set.Strings()
	}
	if set, ok := a.identities.labelsOf(identity.ID(ev.DstIdentity)); ok {
		out.DestinationLabels = set.Strings()
	}
	switch ev.Type {
	case datapath.EventDrop:
		out.Type, out.Verdict, out.Reason = rest.MonitorEventTypeDrop, rest.PolicyVerdictDenied, ev.Reason.String()
	case datapath.EventVerdict:
		out.Type, out.Verdict = rest.MonitorEventTypePolicyVerdict, verdictName(ev.Reason == datapath.ReasonForwarded)
		if ev.Reason != datapath.ReasonForwarded {
			out.Reason = ev.Reason.String()
		}
	default:
		out.Type, out.Reason = rest.MonitorEventTypeTrace, "to "+ev.Outcome.String()
	}
	return out
}
