// Command hawser-operator does what a cluster needs once and not on every node: it keeps the
// key-value store and the objects of Kubernetes in order.
package main

import (
	"os"

	"github.com/hawser-net/hawser/internal/daemon"
	"github.com/hawser-net/hawser/internal/operator"
)

//go:generate sh -c "go run . reference >../../docs/user/hawser-operator.md"

// version is set by the linker.
var version = "devel"

func main() {
	os.Exit(daemon.Main(operator.NewCommand(version, os.Getenv)))
}
