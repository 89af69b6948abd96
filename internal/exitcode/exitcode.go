// Package exitcode has the exit codes of Hawser's programs, and the errors that choose one.
//
// The package has no state.
package exitcode

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
)

// Exit codes.
const (
	OK          = 0
	Failure     = 1 // the operation failed, or the state asked for is a failure
	Usage       = 2 // the command line, or the configuration, is wrong
	Unreachable = 3 // no agent (or key-value store) answers
	NotFound    = 4 // the thing asked for does not exist
	Refused     = 5 // a preview: something that was seen would be refused
	Incomplete  = 6 // a preview: nothing seen would be, but not all nodes answered
)

// codedError is an error that chooses the exit code.
type codedError struct {
	error
	code int
}

func (e *codedError) Unwrap() error { return e.error }

// ExitCode is the exit code.
func (e *codedError) ExitCode() int { return e.code }

// With returns err with an exit code: the method ExitCode of the result returns it.
func With(code int, err error) error { return &codedError{err, code} }

// Usagef returns an error of the command line.
func Usagef(format string, args ...any) error { return With(Usage, fmt.Errorf(format, args...)) }

// NotFoundf returns the error that what was asked for does not exist.
func NotFoundf(format string, args ...any) error { return With(NotFound, fmt.Errorf(format, args...)) }

// IsUsage reports whether err is an error of the command line or of the configuration: the same
// command fails again.
func IsUsage(err error) bool {
	var coded *codedError
	return errors.As(err, &coded) && coded.code == Usage
}

// Execute runs the command line of root and returns the command that it names. What fails before
// the command's own code runs is an error of the command line.
func Execute(ctx context.Context, root *cobra.Command) (*cobra.Command, error) {
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
	if err != nil && !started {
		err = With(Usage, err)
	}
	return cmd, err
}

func walk(c *cobra.Command, fn func(*cobra.Command)) {
	fn(c)
	for _, sub := range c.Commands() {
		walk(sub, fn)
	}
}
