package maps

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/hawser-net/hawser/internal/datapath"
)

// A reader that waits for the first event must still end with its context.
func TestEventsEndWithContext(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("needs root: makes BPF maps")
	}
	cfg := Defaults()
	cfg.Dir, cfg.CTEntries, cfg.PolicyEntries, cfg.IPCacheEntries, cfg.IPCachePrefixes = "", 1024, 1024, 1024, 1024
	m, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- m.Events(ctx, func(datapath.Event) {}) }()
	time.AfterFunc(20*time.Millisecond, cancel) // most likely while the reader waits
	select {
	case err := <-done:
		if err != nil {
			t.Errorf("Events: %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("Events did not return when its context ended")
	}
}
