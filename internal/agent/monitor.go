package agent

import (
	"context"
	"log/slog"
	"maps"
	"net/http"
	"slices"
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
	lost map[datapath.EventType]uint64
}

// subscriber is one watcher. Events wait for it, those of each kind apart, so that what there is
// much of displaces nothing else; what does not fit is counted.
type subscriber struct {
	flags datapath.MonitorFlags
	ready chan struct{} // something waits

	mu      sync.Mutex
	waiting map[datapath.EventType][]datapath.Event
	// senders is who has had how much of what was left when half of it was taken.
	senders map[sender]int
	// lost found no room in the kernel, dropped none here.
	lost, dropped uint64
}

// subscriberQueue is how many events of a kind wait for a slow watcher before some are lost.
const subscriberQueue = 8192

// senderShare is how many events of one sender may wait in the second half of a queue: the rest is
// for others, however much one sends. The programs keep to the same in the kernel's buffers.
const senderShare = 64

// sender is who causes events, as far as a packet's sender cannot choose it.
type sender struct {
	kind     datapath.EventType
	ifIndex  int
	identity uint32
}

func newHub(log *slog.Logger, maps datapath.Maps) *hub {
	return &hub{log: log, maps: maps, subs: map[*subscriber]struct{}{}, lost: map[datapath.EventType]uint64{}}
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

// flagsOf are the switches of which each turns events of a kind on, or some of them.
func flagsOf(kind datapath.EventType) datapath.MonitorFlags {
	switch kind {
	case datapath.EventDrop:
		return datapath.MonitorDrops
	case datapath.EventVerdict:
		return datapath.MonitorVerdicts
	}
	return datapath.MonitorTraces | datapath.MonitorNews
}

// wants says whether an event is of a kind that the subscriber has asked for.
func (s *subscriber) wants(ev datapath.Event) bool {
	flags := s.flags & flagsOf(ev.Type)
	return flags != 0 && (flags != datapath.MonitorNews || ev.News)
}

func (h *hub) publish(ev datapath.Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if ev.Lost > 0 {
		h.lost[ev.Type] += ev.Lost
	}
	for s := range h.subs {
		if s.flags&flagsOf(ev.Type) != 0 {
			s.add(ev)
		}
	}
}

// add has an event wait, and notes what was lost of its kind.
func (s *subscriber) add(ev datapath.Event) {
	s.mu.Lock()
	s.lost += ev.Lost
	wanted := s.wants(ev)
	if wanted && s.room(ev) {
		s.waiting[ev.Type] = append(s.waiting[ev.Type], ev)
	} else if wanted {
		s.dropped++
	}
	s.mu.Unlock()
	if !wanted {
		return
	}
	select {
	case s.ready <- struct{}{}:
	default: // it knows
	}
}

// room says whether an event may wait. The caller holds the lock.
func (s *subscriber) room(ev datapath.Event) bool {
	n := len(s.waiting[ev.Type])
	if n < subscriberQueue/2 || n == subscriberQueue {
		return n < subscriberQueue
	}
	who := sender{ev.Type, ev.IfIndex, ev.SrcIdentity}
	s.senders[who]++
	return s.senders[who] <= senderShare
}

// take returns the events that wait, in the order of their times, and how many were lost since it
// was called last: those that found no room in the kernel, and here.
func (s *subscriber) take() (events []datapath.Event, kernel, queue uint64) {
	s.mu.Lock()
	waiting := s.waiting
	s.waiting = map[datapath.EventType][]datapath.Event{}
	clear(s.senders)
	kernel, queue = s.lost, s.dropped
	s.lost, s.dropped = 0, 0
	s.mu.Unlock()
	for _, list := range waiting {
		events = append(events, list...)
	}
	slices.SortStableFunc(events, func(a, b datapath.Event) int { return a.Time.Compare(b.Time) })
	return events, kernel, queue
}

// subscribe starts watching events of the given kinds. The function returned ends it.
func (h *hub) subscribe(flags datapath.MonitorFlags) (*subscriber, func()) {
	s := &subscriber{flags: flags, ready: make(chan struct{}, 1), waiting: map[datapath.EventType][]datapath.Event{}, senders: map[sender]int{}}
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

// status reports how many watch, and how many events of each kind the kernel could not store.
func (h *hub) status() (subscribers int, lost map[datapath.EventType]uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.subs), maps.Clone(h.lost)
}

// allLost is how many events of any kind the kernel could not store.
func (h *hub) allLost() (n int) {
	_, lost := h.status()
	for _, of := range lost {
		n += int(of)
	}
	return n
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
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-a.stopping:
				return nil
			case <-tick.C:
			case <-sub.ready:
			}
			events, kernel, queue := sub.take()
			for list := range slices.Chunk(events, monitorBatch) {
				batch := make([]rest.MonitorEvent, len(list))
				for i, ev := range list {
					batch[i] = a.monitorEvent(ev)
				}
				if err := emit(batch...); err != nil {
					return err
				}
			}
			if kernel+queue > 0 {
				if err := emit(rest.MonitorEvent{Type: rest.MonitorEventTypeLost, Time: time.Now(), Lost: kernel + queue}); err != nil {
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
		if ev.Outcome == datapath.OutcomeAudited {
			out.Verdict = rest.PolicyVerdictAudit
		}
	default:
		out.Type, out.Reason = rest.MonitorEventTypeTrace, "to "+ev.Outcome.String()
	}
	return out
}
