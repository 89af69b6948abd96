// Command hawser-relay answers for all nodes of a cluster who talks to whom.
package main

import (
	"os"

	"github.com/hawser-net/hawser/internal/daemon"
	"github.com/hawser-net/hawser/internal/relay"
)

//go:generate sh -c "go run . reference >../../docs/user/hawser-relay.md"

// version is set by the linker.
var version = "devel"

func main() {
	os.Exit(daemon.Main(relay.NewCommand(version, os.Getenv)))
}
