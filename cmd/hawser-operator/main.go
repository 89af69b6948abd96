// Command hawser-operator does what a cluster needs once and not on every node: it keeps the
// key-value store and the objects of Kubernetes in order.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/hawser-net/hawser/internal/operator"
)

//go:generate sh -c "go run . reference >../../docs/user/hawser-operator.md"

// version is set by the linker.
var version = "devel"

func main() {
	os.Exit(run())
}

func run() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := operator.NewCommand(version, os.Getenv).ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "hawser-operator:", err)
		return 1
	}
	return 0
}
