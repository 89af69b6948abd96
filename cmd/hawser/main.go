// Command hawser shows and changes what the Hawser agent of this node does.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/hawser-net/hawser/internal/cli"
	"github.com/hawser-net/hawser/internal/sandbox"
)

//go:generate sh -c "go run . reference >../../docs/user/cli.md"

// version is set by the linker.
var version = "dev"

func main() { os.Exit(run()) }

func run() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return cli.Run(ctx, cli.Config{
		Version:   version,
		Stdout:    os.Stdout,
		Stderr:    os.Stderr,
		Getenv:    os.Getenv,
		Terminal:  term.IsTerminal(int(os.Stdout.Fd())),
		Commands:  commands(),
		Sandboxes: sandbox.Clusters{Out: os.Stdout},
	}, os.Args[1:])
}

// commands are those that live outside package cli.
func commands() []*cobra.Command {
	return []*cobra.Command{sandbox.NewCommand()}
}
