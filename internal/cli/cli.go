// Package cli is the command hawser: the tree of its commands, and its reference page. The commands
// are in a package for each whom they ask: agent (the REST API of the node's agent), policy and
// observe (a server of flows, of a node or of all), store (the key-value store itself), cluster
// (the API server, the operator, other clusters).
//
// The process's edges (streams, environment, clock of the terminal) come in through Config, so
// that every command runs in a test as it does for a user. The package keeps no state between
// commands and never exits: Run returns the exit code.
package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/hawser-net/hawser/internal/cli/agent"
	"github.com/hawser-net/hawser/internal/cli/cluster"
	"github.com/hawser-net/hawser/internal/cli/command"
	"github.com/hawser-net/hawser/internal/cli/observe"
	"github.com/hawser-net/hawser/internal/cli/policy"
	"github.com/hawser-net/hawser/internal/cli/store"
	"github.com/hawser-net/hawser/internal/exitcode"
	"github.com/hawser-net/hawser/internal/validate"
)

// Config is everything a command needs from its process. Only Stdout, Stderr and Getenv must be
// set.
type Config struct {
	// Version is shown by `hawser version`.
	Version string
	Stdout  io.Writer
	Stderr  io.Writer
	// Getenv reads the environment: CILIUM_SOCK, NO_COLOR and TERM are looked up.
	Getenv func(string) string
	// Terminal means that Stdout is a terminal; only then is there colour.
	Terminal bool
	// Commands are added to the root command. An error of theirs that has a method
	// ExitCode() int chooses the exit code.
	Commands []*cobra.Command
	// Sandboxes finds the clusters of this machine, for commands that connect them; nil where there
	// are none.
	Sandboxes cluster.Sandboxes
	// OpenKVStore connects the kvstore commands to a store; nil opens the drivers that Hawser has.
	// The caller closes the backend.
	OpenKVStore store.Opener
}

// Validate reports which edges are missing.
func (c Config) Validate() error {
	var errs validate.Errors
	errs.If(c.Stdout == nil || c.Stderr == nil, "cli: no output streams")
	errs.If(c.Getenv == nil, "cli: no environment")
	return errs.Err()
}

// Run executes the command line args (without the program's name) and returns the exit code.
// Errors are printed to Stderr.
func Run(ctx context.Context, cfg Config, args []string) int {
	if err := cfg.Validate(); err != nil {
		if cfg.Stderr != nil {
			fmt.Fprintln(cfg.Stderr, err)
		}
		return exitcode.Usage
	}
	return command.Run(ctx, NewCommand(cfg), args)
}

const rootLong = `hawser shows and changes the state of the Hawser agent on this node.

Most commands ask the agent through its socket; the kvstore commands talk to the
key-value store themselves. The format of tables may change; programs should use
-o json, -o yaml or -o jsonpath='{.path}', whose fields are those of the REST API.

Exit codes:
  0  done
  1  the operation failed, or the health asked for is a failure
  2  the command line is wrong
  3  no agent (or key-value store) answers
  4  what was asked for does not exist
  5  a preview: something that was seen would be refused
  6  a preview: nothing that was seen would be refused, but not all nodes answered

Environment:
  CILIUM_SOCK    the agent's socket, unless --host names it
  HUBBLE_SERVER  the server of flows, unless --server names it
  KUBECONFIG     how commands that need Kubernetes reach it, unless --kubeconfig names a file
  NO_COLOR       no colour, even on a terminal`

// NewCommand returns the root command with everything below it. cfg must be valid.
func NewCommand(cfg Config) *cobra.Command {
	a := &command.App{Getenv: cfg.Getenv}
	a.Colour = cfg.Terminal && cfg.Getenv("NO_COLOR") == "" && cfg.Getenv("TERM") != "dumb"
	root := command.Root(a, cfg.Stdout, cfg.Stderr, "Show and change what the Hawser agent of this node does", rootLong,
		agent.StatusCommand(a),
		agent.ConfigCommand(a),
		agent.EndpointCommand(a),
		agent.IdentityCommand(a, cfg.OpenKVStore, cluster.IdentityWhyCommand(a)),
		agent.IPCommand(a),
		agent.NodeCommand(a),
		agent.ServiceCommand(a),
		agent.BPFCommand(a),
		agent.MonitorCommand(a),
		agent.DebugInfoCommand(a),
		policy.Command(a),
		observe.Command(a),
		observe.UICommand(a),
		store.Command(cfg.OpenKVStore),
		store.MigrateCommand(a, cfg.OpenKVStore),
		cluster.MeshCommand(a, cfg.Sandboxes),
		cluster.OperatorCommand(a),
		versionCommand(cfg.Version),
		referenceCommand(),
	)
	root.AddCommand(cfg.Commands...)
	root.Example = `  hawser status
  hawser endpoint list
  hawser policy trace --from cep-name:default/front --to cep-name:default/db --dport 5432
  hawser monitor --type drop`
	root.Version = cmp.Or(cfg.Version, "dev")
	command.AddBuiltin(root)
	return root
}
