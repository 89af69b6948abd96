// Package command is what all commands of hawser have in common: what they need of their process,
// the client of the agent, completions, exit codes and how errors are shown.
//
// Each sibling package holds the commands that query one kind of server. Its constructors take an
// App, which the root command fills before any command runs.
package command

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hawser-net/hawser/api/rest"
	"github.com/hawser-net/hawser/api/rest/client"
	"github.com/hawser-net/hawser/internal/cli/output"
	"github.com/hawser-net/hawser/internal/exitcode"
)

// App is what commands need of their process.
type App struct {
	// Terminal is where answers are shown to people.
	output.Terminal
	// Getenv reads the environment.
	Getenv func(string) string

	host string
}

// Root returns the root command, which has the flags that all commands have.
func Root(a *App, stdout, stderr io.Writer, short, long string, subcommands ...*cobra.Command) *cobra.Command {
	root := Group("hawser", short, long, subcommands...)
	root.SilenceErrors = true
	root.SilenceUsage = true
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.PersistentFlags().StringVarP(&a.host, "host", "H", "",
		"`address` of the agent: unix:///path, a path, or tcp://host:port (default "+client.DefaultSocket+")")
	return root
}

// Group returns a command that only holds others. Alone it shows its help; with a word it does not
// know it fails, where cobra would show the help and succeed.
func Group(use, short, long string, subcommands ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{
		Use:   use,
		Short: short,
		Long:  long,
		Args:  cobra.ArbitraryArgs,
		RunE:  helpOrUnknown,
	}
	c.SuggestionsMinimumDistance = 2
	c.AddCommand(subcommands...)
	return c
}

// helpOrUnknown shows the help of a group, and fails with a word that it does not know.
func helpOrUnknown(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return cmd.Help()
	}
	msg := fmt.Sprintf("unknown command %q of %q", args[0], cmd.CommandPath())
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		msg += "; did you mean " + strings.Join(near, " or ") + "?"
	}
	return exitcode.Usagef("%s", msg)
}

// AddBuiltin adds the commands help and completion of the library to the root command. With a word
// that they do not know they fail, as groups do.
func AddBuiltin(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	for _, c := range root.Commands() {
		switch c.Name() {
		case "completion":
			c.Args, c.RunE = cobra.ArbitraryArgs, helpOrUnknown
		case "help":
			c.Run, c.RunE = nil, func(_ *cobra.Command, args []string) error {
				of, rest, err := root.Find(args)
				if err != nil {
					return exitcode.With(exitcode.Usage, err)
				}
				return helpOrUnknown(of, rest)
			}
		}
	}
}

// WithClient runs a command with a client of the agent.
func (a *App) WithClient(run func(cmd *cobra.Command, c *client.Client, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		c, err := a.client()
		if err != nil {
			return err
		}
		defer c.Close()
		return run(cmd, c, args)
	}
}

func (a *App) client() (*client.Client, error) {
	c, err := client.New(client.Host(a.host, a.Getenv))
	if err != nil {
		return nil, exitcode.With(exitcode.Usage, err)
	}
	return c, nil
}

// Complete offers as completions what list gets from the agent; if it fails there are none.
func (a *App) Complete(list func(ctx context.Context, c *client.Client) ([]string, error)) cobra.CompletionFunc {
	return Completions(func(ctx context.Context) ([]string, error) {
		c, err := a.client()
		if err != nil {
			return nil, err
		}
		defer c.Close()
		return list(ctx, c)
	})
}

// CompleteEndpoints offers what text gives for each endpoint of the agent, if anything.
func (a *App) CompleteEndpoints(text func(rest.Endpoint) string) cobra.CompletionFunc {
	return a.Complete(func(ctx context.Context, c *client.Client) ([]string, error) {
		eps, err := c.Endpoints(ctx, nil)
		var out []string
		for _, ep := range eps {
			if s := text(ep); s != "" {
				out = append(out, s)
			}
		}
		return out, err
	})
}

// PodName is namespace and name of an endpoint's pod; empty if it has none.
func PodName(ep rest.Endpoint) string {
	ids := ep.Status.ExternalIdentifiers
	if ids.K8SPodName == "" {
		return ""
	}
	return ids.K8SNamespace + "/" + ids.K8SPodName
}

// CompleteIdentities offers the identities that the agent knows: a prefix and the number, explained
// by the labels.
func (a *App) CompleteIdentities(prefix string) cobra.CompletionFunc {
	return a.Complete(func(ctx context.Context, c *client.Client) ([]string, error) {
		ids, err := c.Identities(ctx, nil)
		slices.SortFunc(ids, func(x, y rest.Identity) int { return cmp.Compare(x.ID, y.ID) })
		var out []string
		for _, id := range ids {
			labels := slices.Sorted(slices.Values(id.Labels))
			out = append(out, Described(prefix+strconv.Itoa(id.ID), strings.Join(labels, " ")))
		}
		return out, err
	})
}

// Described is a completion with a text that explains it, if there is one.
func Described(completion, text string) string {
	if text == "" {
		return completion
	}
	return completion + "\t" + output.Printable(text)
}

// AnyOf offers the completions of all lists. If one fails, those of the others remain.
func AnyOf(lists ...cobra.CompletionFunc) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, prefix string) ([]cobra.Completion, cobra.ShellCompDirective) {
		var out []cobra.Completion
		for _, list := range lists {
			some, _ := list(cmd, args, prefix)
			out = append(out, some...)
		}
		return out, cobra.ShellCompDirectiveNoFileComp
	}
}

// Completions offers what list gives that begins with what was typed; if it fails there are none.
func Completions(list func(ctx context.Context) ([]string, error)) cobra.CompletionFunc {
	return func(cmd *cobra.Command, _ []string, prefix string) ([]cobra.Completion, cobra.ShellCompDirective) {
		ctx := cmd.Context()
		if ctx == nil {
			ctx = context.Background()
		}
		names, err := list(ctx)
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		return slices.DeleteFunc(names, func(name string) bool { return !strings.HasPrefix(name, prefix) }), cobra.ShellCompDirectiveNoFileComp
	}
}
