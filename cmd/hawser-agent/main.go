// Command hawser-agent runs on every node: it attaches pods, gives them addresses and identities,
// and keeps the kernel enforcing their policy.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/hawser-net/hawser/internal/agent"
)

//go:generate sh -c "go run . reference >../../docs/user/hawser-agent.md"

// version is set by the linker.
var version = "devel"

func main() {
	os.Exit(run())
}

// gcPercent trades a little of the collector's time for memory: an agent runs on every node and is
// idle most of the time, and what it keeps grows with the cluster. GOGC overrides it.
const gcPercent = 50

func run() int {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	cmd := agent.NewCommand(version, os.Getenv)
	if err := cmd.ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "hawser-agent:", err)
		return 1
	}
	return 0
}
