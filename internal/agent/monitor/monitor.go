// Package monitor spreads the events that the kernel emits to those who watch them.
package monitor

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"

	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/pkg/retry"
)

// Source is the kernel's stream of events.
type Source interface {
	// Events calls fn for every event until ctx ends.
	Events(ctx context.Context, fn func(datapath.Event)) error
}

// Kernel is configured with which kinds of event to emit.
type Kernel interface {
	// SetMonitor has the kernel emit events of some kinds for [datapath.MonitorLifetime].
	SetMonitor(datapath.MonitorFlags) error
}

// Monitor distributes the kernel's events to its subscribers. Without any the kernel emits none. It
// is safe for concurrent use.
type Monitor struct {
	log    *slog.Logger
	kernel Kernel

	mu   sync.Mutex
	subs map[*Subscription]struct{}
	lost map[datapath.EventType]uint64
}

// Subscription is what one watcher has of the events. It is safe for concurrent use. Events wait
// for it, those of each kind apart, so that what there is much of displaces nothing else; what does
// not fit is counted.
type Subscription struct {
	flags datapath.MonitorFlags
	ready chan struct{} // something waits

	mu      sync.Mutex
	waiting map[datapath.EventType][]datapath.Event
	// senders has each sender's use of the second half of the buffer.
	senders map[sender]int
	// lost found no room in the kernel, dropped none here.
	lost, dropped uint64
}

// queueSize is how many events of a kind wait for a slow watcher before some are lost.
const queueSize = 8192

// senderShare is how many events of one sender may wait in the second half of a queue: the rest is
// for others, however much one sends. The programs keep to the same in the kernel's buffers.
const senderShare = 64

// sender is who causes events, as far as a packet's sender cannot choose it.
type sender struct {
	kind     datapath.EventType
	ifIndex  int
	identity uint32
}

// New returns a monitor of a kernel, which it touches only once there is a subscription, or it
// runs.
func New(log *slog.Logger, kernel Kernel) *Monitor {
	return &Monitor{log: log, kernel: kernel, subs: map[*Subscription]struct{}{}, lost: map[datapath.EventType]uint64{}}
}

// Run spreads events until ctx ends. It first takes back what an agent before it may have wanted,
// and then repeats what is wanted before the kernel forgets it.
func (m *Monitor) Run(ctx context.Context, src Source) error {
	m.repeat(true)
	done := make(chan struct{})
	defer func() { <-done }()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		defer close(done)
		for retry.Sleep(ctx, datapath.MonitorLifetime/4) {
			m.repeat(false)
		}
	}()
	return src.Events(ctx, m.publish)
}

// repeat configures the wanted kinds in the kernel once more; an empty set only if so asked.
func (m *Monitor) repeat(always bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if always || len(m.subs) > 0 {
		m.update()
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
	return datapath.MonitorTraces | datapath.MonitorFlowUpdates
}

// wants reports whether an event is of a kind that the watcher has asked for.
func (s *Subscription) wants(ev datapath.Event) bool {
	flags := s.flags & flagsOf(ev.Type)
	return flags != 0 && (flags != datapath.MonitorFlowUpdates || ev.FlowUpdate)
}

func (m *Monitor) publish(ev datapath.Event) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if ev.Lost > 0 {
		m.lost[ev.Type] += ev.Lost
	}
	for s := range m.subs {
		if s.flags&flagsOf(ev.Type) != 0 {
			s.add(ev)
		}
	}
}

// add has an event wait, and notes what was lost of its kind.
func (s *Subscription) add(ev datapath.Event) {
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
	retry.Notify(s.ready)
}

// room reports whether an event may wait. The caller holds the lock.
func (s *Subscription) room(ev datapath.Event) bool {
	n := len(s.waiting[ev.Type])
	if n < queueSize/2 || n == queueSize {
		return n < queueSize
	}
	who := sender{ev.Type, ev.IfIndex, ev.SrcIdentity}
	s.senders[who]++
	return s.senders[who] <= senderShare
}

// Take returns the events that wait, in the order of their times, and how many were lost since it
// was called last: those that found no room in the kernel, and here.
func (s *Subscription) Take() (events []datapath.Event, kernel, queue uint64) {
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

// Ready returns a channel that has a value when events wait that were not taken.
func (s *Subscription) Ready() <-chan struct{} { return s.ready }

// Subscribe starts watching events of the given kinds. The function returned ends it.
func (m *Monitor) Subscribe(flags datapath.MonitorFlags) (*Subscription, func()) {
	s := &Subscription{flags: flags, ready: make(chan struct{}, 1), waiting: map[datapath.EventType][]datapath.Event{}, senders: map[sender]int{}}
	m.mu.Lock()
	m.subs[s] = struct{}{}
	m.update()
	m.mu.Unlock()
	return s, func() {
		m.mu.Lock()
		delete(m.subs, s)
		m.update()
		m.mu.Unlock()
	}
}

// update configures the wanted kinds in the kernel. The caller holds the lock.
func (m *Monitor) update() {
	var flags datapath.MonitorFlags
	for s := range m.subs {
		flags |= s.flags
	}
	if err := m.kernel.SetMonitor(flags); err != nil {
		m.log.Error("cannot switch the kernel's events", "error", err)
	}
}

// Lost returns how many events of each kind the kernel could not store.
func (m *Monitor) Lost() map[datapath.EventType]uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.lost)
}

// AllLost returns how many events of any kind the kernel could not store.
func (m *Monitor) AllLost() (n int) {
	for _, of := range m.Lost() {
		n += int(of)
	}
	return n
}
