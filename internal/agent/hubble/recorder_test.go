package hubble

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/hawser-net/hawser/internal/agent/monitor"
	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/datapath/fake"
	"github.com/hawser-net/hawser/internal/flows"
)

// emitted is a kernel that has emitted some events and emits no more.
type emitted []datapath.Event

func (list emitted) Events(_ context.Context, fn func(datapath.Event)) error {
	for _, ev := range list {
		fn(ev)
	}
	return nil
}

// TestFlowsLostAlone: that events were lost is recorded, and once, also when no event waits that
// came after them.
func TestFlowsLostAlone(t *testing.T) {
	t.Parallel()
	m := monitor.New(slog.New(slog.DiscardHandler), fake.New().Maps)
	record, err := flows.NewRecord(16, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	r := &recorder{monitor: m, record: record}
	sub, stop := m.Subscribe(datapath.MonitorFlowUpdates)
	defer stop()
	if err := m.Run(t.Context(), emitted{{Type: datapath.EventTrace, Lost: 7}}); err != nil { // itself not wanted
		t.Fatal(err)
	}
	r.take(t.Context(), sub)
	r.take(t.Context(), sub)
	entries := make([]flows.Entry, 2)
	n, _, _ := record.Flows.Read(0, entries)
	if n != 1 || entries[0].Lost.GetNumEventsLost() != 7 || entries[0].Time.IsZero() {
		t.Errorf("%d entries, %v", n, entries[:n])
	}
}
