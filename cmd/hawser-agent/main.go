// Command hawser-agent runs on every node: it attaches pods, gives them addresses and identities,
// and keeps the kernel enforcing their policy.
package main

import (
	"os"
	"runtime/debug"

	"github.com/hawser-net/hawser/internal/agent"
	"github.com/hawser-net/hawser/internal/daemon"
)

//go:generate sh -c "go run . reference >../../docs/user/hawser-agent.md"

// version is set by the linker.
var version = "devel"

// gcPercent trades a little of the collector's time for memory: an agent runs on every node and is
// idle most of the time, and what it keeps grows with the cluster. GOGC overrides it.
const gcPercent = 50

func main() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	os.Exit(daemon.Main(agent.NewCommand(version, os.Getenv)))
}
