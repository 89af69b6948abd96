package command

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hawser-net/hawser/api/rest/client"
	"github.com/hawser-net/hawser/internal/cli/output"
	"github.com/hawser-net/hawser/internal/exitcode"
	"github.com/hawser-net/hawser/pkg/kvstore"
)

// Run executes a command line (without the program's name) and returns the exit code. Errors are
// printed to the root command's standard error.
func Run(ctx context.Context, root *cobra.Command, args []string) int {
	root.SetArgs(args)
	cmd, err := exitcode.Execute(ctx, root)
	if err == nil {
		return exitcode.OK
	}
	stderr := root.ErrOrStderr()
	var silent *silentError
	if !errors.As(err, &silent) {
		fmt.Fprintf(stderr, "%s: %s\n", root.Name(), printable(err))
	}
	code := exitCode(err)
	switch code {
	case exitcode.Usage:
		fmt.Fprintf(stderr, "See '%s --help'.\n", cmd.CommandPath())
	case exitcode.Unreachable:
		if client.Unreachable(err) {
			fmt.Fprintf(stderr, "Another agent's socket is named with --host or %s.\n", client.EnvSocket)
		}
	}
	return code
}

// printable is an error for a terminal. Errors quote servers, and names and labels of the cluster.
func printable(err error) string {
	lines := strings.Split(err.Error(), "\n")
	for i, line := range lines {
		lines[i] = output.Printable(line)
	}
	return strings.Join(lines, "\n")
}

func exitCode(err error) int {
	var coded interface{ ExitCode() int }
	switch {
	case errors.As(err, &coded):
		return coded.ExitCode()
	case client.Unreachable(err):
		return exitcode.Unreachable
	case client.NotFound(err), errors.Is(err, kvstore.ErrNotFound):
		return exitcode.NotFound
	}
	return exitcode.Failure
}

// silentError ends the command with a code after it has itself shown what is wrong.
type silentError struct{ code int }

func (e *silentError) Error() string { return "failed" }

func (e *silentError) ExitCode() int { return e.code }

// Silent ends a command with an exit code after it has itself shown what is wrong.
func Silent(code int) error { return &silentError{code} }
