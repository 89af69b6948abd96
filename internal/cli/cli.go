// Package cli is the command hawser: it asks the agent of a node through its REST API, and the
// key-value store directly, and shows the answer to people as tables and to programs as JSON, YAML
// or a JSONPath template.
//
// The process's edges (streams, environment, clock of the terminal) come in through Config, so
// that every command runs in a test as it does for a user. The package keeps no state between
// commands, starts no goroutine and never exits: Run returns the exit code.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hawser-net/hawser/api/rest/client"
	"github.com/hawser-net/hawser/pkg/kvstore"
)

// Exit codes.
const (
	ExitOK          = 0
	ExitError       = 1 // the operation failed, or the state asked for is a failure
	ExitUsage       = 2 // the command line is wrong
	ExitUnreachable = 3 // no agent (or key-value store) answers
	ExitNotFound    = 4 // the thing asked for does not exist
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
	// Terminal says that Stdout is a terminal; only then is there colour.
	Terminal bool
	// Commands are added to the root command. An error of theirs that has a method
	// ExitCode() int chooses the exit code.
	Commands []*cobra.Command
	// Sandboxes finds the clusters of this machine, for commands that connect them; nil where there
	// are none.
	Sandboxes Sandboxes
	// OpenKVStore connects the kvstore commands to a store; nil opens the drivers that Hawser has.
	// The caller closes the backend.
	OpenKVStore func(ctx context.Context, driver string, options map[string]string) (kvstore.Backend, error)
}

// Validate reports which edges are missing.
func (c Config) Validate() error {
	var errs []error
	if c.Stdout == nil || c.Stderr == nil {
		errs = append(errs, errors.New("cli: no output streams"))
	}
	if c.Getenv == nil {
		errs = append(errs, errors.New("cli: no environment"))
	}
	return errors.Join(errs...)
}

// Run executes the command line args (without the program's name) and returns the exit code.
// Errors are printed to Stderr.
func Run(ctx context.Context, cfg Config, args []string) int {
	if err := cfg.Validate(); err != nil {
		if cfg.Stderr != nil {
			fmt.Fprintln(cfg.Stderr, err)
		}
		return ExitUsage
	}
	root := NewCommand(cfg)
	root.SetArgs(args)
	// Whatever fails before a command's own code runs is a fault of the command line.
	started := false
	walk(root, func(c *cobra.Command) {
		if run := c.RunE; run != nil {
			c.RunE = func(cmd *cobra.Command, args []string) error {
				started = true
				return run(cmd, args)
			}
		}
	})
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return ExitOK
	}
	var usage *usageError
	if !started && !errors.As(err, &usage) {
		err = &usageError{err}
	}
	var silent *silentError
	if !errors.As(err, &silent) {
		fmt.Fprintf(cfg.Stderr, "hawser: %v\n", err)
	}
	code := exitCode(err)
	switch code {
	case ExitUsage:
		fmt.Fprintf(cfg.Stderr, "See '%s --help'.\n", cmd.CommandPath())
	case ExitUnreachable:
		if client.Unreachable(err) {
			fmt.Fprintf(cfg.Stderr, "Another agent's socket is named with --host or %s.\n", client.EnvSocket)
		}
	}
	return code
}

func walk(c *cobra.Command, fn func(*cobra.Command)) {
	fn(c)
	for _, sub := range c.Commands() {
		walk(sub, fn)
	}
}

func exitCode(err error) int {
	var usage *usageError
	var coded interface{ ExitCode() int }
	switch {
	case errors.As(err, &usage):
		return ExitUsage
	case errors.As(err, &coded):
		return coded.ExitCode()
	case client.Unreachable(err):
		return ExitUnreachable
	case client.NotFound(err), errors.Is(err, kvstore.ErrNotFound):
		return ExitNotFound
	}
	return ExitError
}

// usageError is a fault of the command line.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }

func (e *usageError) Unwrap() error { return e.err }

func usagef(format string, args ...any) error {
	return &usageError{fmt.Errorf(format, args...)}
}

// codedError is an error with an exit code of its own.
type codedError struct {
	code int
	err  error
}

func (e *codedError) Error() string { return e.err.Error() }

func (e *codedError) Unwrap() error { return e.err }

func (e *codedError) ExitCode() int { return e.code }

// silentError ends the command with a code after it has itself shown what is wrong.
type silentError struct{ code int }

func (e *silentError) Error() string { return "failed" }

func (e *silentError) ExitCode() int { return e.code }

// app is what all commands share.
type app struct {
	cfg    Config
	host   string
	colour bool
}

const rootLong = `hawser shows and changes what the Hawser agent of this node does.

Most commands ask the agent through its socket; the kvstore commands talk to the
key-value store themselves. Tables are for people and may change; programs use
-o json, -o yaml or -o jsonpath='{.path}', whose fields are those of the REST API.

Exit codes:
  0  done
  1  the operation failed, or the health asked for is a failure
  2  the command line is wrong
  3  no agent (or key-value store) answers
  4  what was asked for does not exist
  5  a preview: something that was seen would be refused

Environment:
  CILIUM_SOCK  the agent's socket, unless --host names it
  NO_COLOR     no colour, even on a terminal`

// NewCommand returns the root command with everything below it. cfg must be valid.
func NewCommand(cfg Config) *cobra.Command {
	a := &app{cfg: cfg}
	a.colour = cfg.Terminal && cfg.Getenv("NO_COLOR") == "" && cfg.Getenv("TERM") != "dumb"
	root := a.group("hawser", "Show and change what the Hawser agent of this node does", rootLong,
		a.statusCommand(),
		a.configCommand(),
		a.endpointCommand(),
		a.identityCommand(),
		a.ipCommand(),
		a.nodeCommand(),
		a.policyCommand(),
		a.serviceCommand(),
		a.clusterMeshCommand(),
		a.bpfCommand(),
		a.monitorCommand(),
		a.observeCommand(),
		a.uiCommand(),
		a.kvstoreCommand(),
		a.migrateCommand(),
		a.operatorCommand(),
		a.versionCommand(),
		referenceCommand(),
	)
	root.AddCommand(cfg.Commands...)
	root.Example = `  hawser status
  hawser endpoint list
  hawser policy trace --from cep-name:default/front --to cep-name:default/db --dport 5432
  hawser monitor --type drop`
	root.SilenceErrors = true
	root.SilenceUsage = true
	root.SetOut(cfg.Stdout)
	root.SetErr(cfg.Stderr)
	root.PersistentFlags().StringVarP(&a.host, "host", "H", "",
		"`address` of the agent: unix:///path, a path, or tcp://host:port (default "+client.DefaultSocket+")")
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	return root
}

// group returns a command that only holds others. Alone it shows its help; with a word it does not
// know it fails, where cobra would show the help and succeed.
func (a *app) group(use, short, long string, subcommands ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{
		Use:   use,
		Short: short,
		Long:  long,
		Args:  cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cmd.Help()
			}
			msg := fmt.Sprintf("unknown command %q of %q", args[0], cmd.CommandPath())
			if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
				msg += "; did you mean " + strings.Join(near, " or ") + "?"
			}
			return usagef("%s", msg)
		},
	}
	c.SuggestionsMinimumDistance = 2
	c.AddCommand(subcommands...)
	return c
}

// withClient runs a command with a client of the agent.
func (a *app) withClient(run func(cmd *cobra.Command, c *client.Client, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		c, err := a.client()
		if err != nil {
			return err
		}
		defer c.Close()
		return run(cmd, c, args)
	}
}

func (a *app) client() (*client.Client, error) {
	c, err := client.New(client.Host(a.host, a.cfg.Getenv))
	if err != nil {
		return nil, &usageError{err}
	}
	return c, nil
}

// complete offers what list gives as completions; if it fails there are none.
func (a *app) complete(list func(ctx context.Context, c *client.Client) ([]string, error)) func(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return func(cmd *cobra.Command, args []string, prefix string) ([]cobra.Completion, cobra.ShellCompDirective) {
		c, err := a.client()
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		defer c.Close()
		ctx := cmd.Context()
		if ctx == nil {
			ctx = context.Background()
		}
		names, err := list(ctx, c)
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		var out []cobra.Completion
		for _, name := range names {
			if strings.HasPrefix(name, prefix) {
				out = append(out, name)
			}
		}
		return out, cobra.ShellCompDirectiveNoFileComp
	}
}
