package agent

import (
	"log/slog"
	"testing"
	"time"

	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/datapath/fake"
	"github.com/hawser-net/hawser/internal/flows"
)

// TestFlowsLostAlone: that events were lost is recorded, and once, also when no event waits that
// came after them.
func TestFlowsLostAlone(t *testing.T) {
	t.Parallel()
	h := newHub(slog.New(slog.DiscardHandler), fake.New().Maps)
	record, err := flows.NewRecord(16, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	r := &flowRecorder{hub: h, record: record}
	sub, stop := h.subscribe(datapath.MonitorNews)
	defer stop()
	h.publish(datapath.Event{Type: datapath.EventTrace, Lost: 7}) // itself not wanted
	r.take(t.Context(), sub)
	r.take(t.Context(), sub)
	entries := make([]flows.Entry, 2)
	n, _, _ := record.Flows.Read(0, entries)
	if n != 1 || entries[0].Lost.GetNumEventsLost() != 7 || entries[0].Time.IsZero() {
		t.Errorf("%d entries, %v", n, entries[:n])
	}
}
