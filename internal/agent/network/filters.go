package network

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/time/rate"
)

// filterCheck is how often the programs of all interfaces are checked, in case a notification was
// missed.
const filterCheck = 5 * time.Second

// GuardFilters reattaches programs that another process detached, as soon as the kernel reports it.
// A pod's interface to which they cannot be reattached is set down; see
// docs/design/0009-attachment.md. reattach does so for pods, restored is called with the number of
// interfaces and hooks that were repaired.
func (n *Network) GuardFilters(ctx context.Context, reattach func(ifIndex int) (int, error), restored func(int)) error {
	log := n.cfg.Log
	often := rate.Sometimes{First: 10, Interval: time.Second}
	failed := false
	return n.cfg.Links.WatchFilters(ctx, filterCheck, func(ifIndex int) {
		hooks, err := n.cfg.Programs.ReattachNode(ifIndex)
		pods, perr := reattach(ifIndex)
		err = errors.Join(err, perr)
		if back := hooks + pods; back > 0 {
			restored(back)
			often.Do(func() {
				log.Warn("programs were detached from interfaces, and are attached again. Look for another network plugin, or a script, that removes"+
					" clsact or filters of tc", "ifindex", ifIndex, "interfaces", back)
			})
		}
		switch {
		case err != nil:
			often.Do(func() {
				log.Error("programs cannot be attached to interfaces again; pods' interfaces are set down, trying again", "error", err)
			})
			n.cfg.Components.Report("filters", err, "")
			failed = true
		case ifIndex == 0 || !failed:
			failed = false
			n.cfg.Components.Report("filters", nil, fmt.Sprintf("all programs are in place; checked every %v, and when the kernel reports a change", filterCheck))
		}
	})
}
