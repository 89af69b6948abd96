package command

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hawser-net/hawser/api/rest/client"
	"github.com/hawser-net/hawser/internal/cli/output"
	"github.com/hawser-net/hawser/pkg/kvstore"
)

// Exit codes.
const (
	ExitOK          = 0
	ExitError       = 1 // the operation failed, or the state asked for is a failure
	ExitUsage       = 2 // the command line is wrong
	ExitUnreachable = 3 // no agent (or key-value store) answers
	ExitNotFound    = 4 // the thing asked for does not exist
	ExitRefused     = 5 // a preview: something that was seen would be refused
)

// Run executes a command line (without the program's name) and returns the exit code. Errors are
// printed to the root command's standard error.
func Run(ctx context.Context, root *cobra.Command, args []string) int {
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
	stderr := root.ErrOrStderr()
	var silent *silentError
	if !errors.As(err, &silent) {
		fmt.Fprintf(stderr, "%s: %s\n", root.Name(), printable(err))
	}
	code := exitCode(err)
	switch code {
	case ExitUsage:
		fmt.Fprintf(stderr, "See '%s --help'.\n", cmd.CommandPath())
	case ExitUnreachable:
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

// Usage marks an error of the command line.
func Usage(err error) error { return &usageError{err} }

// Usagef returns a fault of the command line.
func Usagef(format string, args ...any) error { return Usage(fmt.Errorf(format, args...)) }

// codedError is an error with an exit code of its own.
type codedError struct {
	code int
	err  error
}

func (e *codedError) Error() string { return e.err.Error() }

func (e *codedError) Unwrap() error { return e.err }

func (e *codedError) ExitCode() int { return e.code }

// Unreachable marks an error as that of a server that does not answer.
func Unreachable(err error) error { return &codedError{ExitUnreachable, err} }

// NotFound marks an error as that of a missing object.
func NotFound(err error) error { return &codedError{ExitNotFound, err} }

// silentError ends the command with a code after it has itself shown what is wrong.
type silentError struct{ code int }

func (e *silentError) Error() string { return "failed" }

func (e *silentError) ExitCode() int { return e.code }

// Silent ends a command with an exit code after it has itself shown what is wrong.
func Silent(code int) error { return &silentError{code} }
