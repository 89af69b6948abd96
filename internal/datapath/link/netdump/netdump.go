// Package netdump lists objects of the kernel's network by netlink. It holds no state.
package netdump

import (
	"errors"

	"github.com/vishvananda/netlink"
)

// attempts bounds how often a listing is repeated: on a busy node every one may be interrupted.
const attempts = 5

// List returns what list does. The kernel marks a dump during which something changed
// (NLM_F_DUMP_INTR, Documentation/userspace-api/netlink/intro.rst): it may lack what was there all
// the time, so it is repeated a few times. If each was interrupted, List returns the last one with
// [netlink.ErrDumpInterrupted]: what that has is there, what it lacks may be, too.
func List[T any](list func() ([]T, error)) (all []T, err error) {
	for range attempts {
		if all, err = list(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return all, err
}
