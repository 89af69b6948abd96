// Command hawser-relay answers for all nodes of a cluster who talks to whom.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/hawser-net/hawser/internal/relay"
)

//go:generate sh -c "go run . reference >../../docs/user/hawser-relay.md"

// version is set by the linker.
var version = "devel"

func main() {
	os.Exit(run())
}

func run() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := relay.NewCommand(version, os.Getenv).ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "hawser-relay:", err)
		return 1
	}
	return 0
}
