package agent

import (
	"context"
	"log/slog"
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

// TestHubTakesBack: what an agent wanted that was killed while somebody watched, the next one takes
// back when it starts.
func TestHubTakesBack(t *testing.T) {
	t.Parallel()
	maps := fake.New().Maps
	killed := newHub(slog.New(slog.DiscardHandler), maps)
	killed.subscribe(datapath.MonitorDrops | datapath.MonitorTraces) // and never ends it
	if maps.Monitor() == 0 {
		t.Fatal("nothing is wanted")
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	h := newHub(slog.New(slog.DiscardHandler), maps)
	go func() { done <- h.run(ctx, silence{}) }()
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

// TestHubAggregates: who watches every packet does not have those who asked for a selection get
// more.
func TestHubAggregates(t *testing.T) {
	t.Parallel()
	h := newHub(slog.New(slog.DiscardHandler), fake.New().Maps)
	all, _ := h.subscribe(datapath.MonitorTraces)
	some, _ := h.subscribe(datapath.MonitorNews)
	for i := range 10 {
		h.publish(datapath.Event{Type: datapath.EventTrace, News: i%5 == 0})
	}
	h.publish(datapath.Event{Type: datapath.EventDrop})
	if len(all.queue) != 10 || len(some.queue) != 2 {
		t.Errorf("%d of every packet and %d of the selection, want 10 and 2", len(all.queue), len(some.queue))
	}
}
