// Package validate collects what is wrong with a configuration, so that all of it can be reported
// at once.
package validate

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"
)

// Errors are what is wrong. The zero value is empty; errors that are made elsewhere may be
// appended, nil ones too.
type Errors []error

// Add adds an error.
func (e *Errors) Add(format string, args ...any) { *e = append(*e, fmt.Errorf(format, args...)) }

// If adds an error if something is wrong. It is for checks that happen seldom: args are evaluated
// whether it is or not.
func (e *Errors) If(wrong bool, format string, args ...any) {
	if wrong {
		e.Add(format, args...)
	}
}

// OneOf checks an option that has a few values.
func (e *Errors) OneOf(flag, value string, allowed ...string) {
	e.If(!slices.Contains(allowed, value), "--%s: %q is not one of %s", flag, value, strings.Join(allowed, ", "))
}

// AtLeastSecond checks an option that must not be shorter than a second.
func (e *Errors) AtLeastSecond(flag string, d time.Duration) {
	e.If(d < time.Second, "--%s: %s is below one second", flag, d)
}

// Interval checks an option that is the time between two rounds of something, or 0 for none: with
// less than a second there would be no pause between them.
func (e *Errors) Interval(flag string, d time.Duration) {
	e.If(d < 0 || d > 0 && d < time.Second, "--%s: %s must be 0 or at least a second", flag, d)
}

// Address checks an option that is host:port, or empty.
func (e *Errors) Address(flag, hostPort string) {
	_, _, err := net.SplitHostPort(hostPort)
	e.If(hostPort != "" && err != nil, "--%s: %q is not host:port", flag, hostPort)
}

// Err returns all of them as one error, or nil if there are none.
func (e Errors) Err() error { return errors.Join(e...) }

// maxShown is how many faults of one object a log or a status names.
const maxShown = 10

// Few returns the first of what is wrong with an object, and how many more there are: it may be
// thousands, too many for a log.
func Few(faults []string) []string { return few(faults, maxShown) }

func few(faults []string, most int) []string {
	if len(faults) <= most {
		return faults
	}
	return append(faults[:most:most], fmt.Sprintf("and %d more", len(faults)-most))
}

// MaxLogged is how many bytes of the faults of one object a log or a status has.
const MaxLogged = 4096

// Brief returns what of an error, which may join thousands, a log or a status has room for: the
// first lines, of which each is a fault, and how many more there are; no more bytes than length,
// which is to be 100 at least.
func Brief(err error, length int) string {
	faults := strings.Split(err.Error(), "\n")
	for most := maxShown; ; most-- {
		text := strings.Join(few(faults, most), "\n")
		excess := len(text) - length
		if excess <= 0 {
			return text
		}
		if most == 1 {
			kept := faults[0][:len(faults[0])-excess-len("...")]
			return strings.ToValidUTF8(kept, "") + "..." + text[len(faults[0]):]
		}
	}
}
