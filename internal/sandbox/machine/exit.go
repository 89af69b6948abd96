package machine

import "fmt"

// codedError chooses the exit code of the command hawser.
type codedError struct {
	error
	code int
}

func (e *codedError) Unwrap() error { return e.error }

// ExitCode is the exit code.
func (e *codedError) ExitCode() int { return e.code }

// Usage marks an error as a fault of the command line.
func Usage(err error) error { return &codedError{err, 2} }

// Usagef returns a fault of the command line.
func Usagef(format string, args ...any) error { return Usage(fmt.Errorf(format, args...)) }

// NotFoundf returns the error that what was asked for does not exist.
func NotFoundf(format string, args ...any) error { return &codedError{fmt.Errorf(format, args...), 4} }
