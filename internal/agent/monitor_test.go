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
