package monitor

import (
	"context"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/datapath/fake"
)

// silence is a kernel without events.
type silence struct{}

func (silence) Events(ctx context.Context, _ func(datapath.Event)) error {
	<-ctx.Done()
	return nil
}

// TestMonitorTakesBack: what an agent wanted that was killed while a client watched, the next one
// takes back when it starts.
func TestMonitorTakesBack(t *testing.T) {
	t.Parallel()
	maps := fake.New().Maps
	killed := New(slog.New(slog.DiscardHandler), maps)
	killed.Subscribe(datapath.MonitorDrops | datapath.MonitorTraces) // and never ends it
	if maps.Monitor() == 0 {
		t.Fatal("nothing is wanted")
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	m := New(slog.New(slog.DiscardHandler), maps)
	go func() { done <- m.Run(ctx, silence{}) }()
	for deadline := time.Now().Add(time.Minute); maps.Monitor() != 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%v is wanted still", maps.Monitor())
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestMonitorAggregates: who watches every packet does not have those who asked for a selection get
// more.
func TestMonitorAggregates(t *testing.T) {
	t.Parallel()
	m := New(slog.New(slog.DiscardHandler), fake.New().Maps)
	all, _ := m.Subscribe(datapath.MonitorTraces)
	some, _ := m.Subscribe(datapath.MonitorFlowUpdates)
	for i := range 10 {
		m.publish(datapath.Event{Type: datapath.EventTrace, FlowUpdate: i%5 == 0})
	}
	m.publish(datapath.Event{Type: datapath.EventDrop})
	every, _, _ := all.Take()
	selection, _, _ := some.Take()
	if len(every) != 10 || len(selection) != 2 {
		t.Errorf("%d of every packet and %d of the selection, want 10 and 2", len(every), len(selection))
	}
}

// TestMonitorKeepsKindsApart: traces that no reader takes displace no drop, what is lost of a kind
// is reported to those who want that kind, and events come in the order of their times.
func TestMonitorKeepsKindsApart(t *testing.T) {
	t.Parallel()
	m := New(slog.New(slog.DiscardHandler), fake.New().Maps)
	both, stop := m.Subscribe(datapath.MonitorDrops | datapath.MonitorFlowUpdates)
	defer stop()
	drops, stop := m.Subscribe(datapath.MonitorDrops)
	defer stop()
	start := time.Now()
	for i := range 2 * queueSize {
		m.publish(datapath.Event{Type: datapath.EventTrace, FlowUpdate: true, Time: start.Add(time.Duration(i))})
	}
	m.publish(datapath.Event{Type: datapath.EventTrace, Lost: 7})
	const others = 100
	for i := range others {
		m.publish(datapath.Event{Type: datapath.EventTrace, FlowUpdate: true, IfIndex: 9, SrcIdentity: uint32(i), Time: start})
	}
	m.publish(datapath.Event{Type: datapath.EventDrop, Time: start.Add(5)})
	events, kernel, queue := both.Take()
	const ofOne = queueSize/2 + senderShare
	if len(events) != ofOne+others+1 || kernel != 7 || queue != 2*queueSize-ofOne {
		t.Errorf("%d events, %d and %d lost", len(events), kernel, queue)
	}
	if !slices.IsSortedFunc(events, func(a, b datapath.Event) int { return a.Time.Compare(b.Time) }) {
		t.Error("the events are not in the order of their times")
	}
	if !slices.ContainsFunc(events, func(ev datapath.Event) bool { return ev.Type == datapath.EventDrop }) {
		t.Error("the drop is lost")
	}
	if events, kernel, queue := drops.Take(); len(events) != 1 || kernel+queue != 0 {
		t.Errorf("a subscriber of drops only gets %d events, and %d and %d as lost", len(events), kernel, queue)
	}
	if lost := m.Lost(); lost[datapath.EventTrace] != 7 || lost[datapath.EventDrop] != 0 {
		t.Errorf("lost: %v", lost)
	}
}
