package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"golang.org/x/time/rate"

	"github.com/hawser-net/hawser/internal/datapath/link"
)

// filterCheck is how often all interfaces are looked at for their programs, for what the kernel did
// not tell.
const filterCheck = 5 * time.Second

// guardFilters puts programs back on interfaces from which somebody else took them, as soon as the
// kernel tells of it. A pod's interface that cannot have them back is shut; see
// docs/design/0009-attachment.md.
func (a *api) guardFilters(ctx context.Context, links *link.Links, log *slog.Logger) error {
	often := rate.Sometimes{First: 10, Interval: time.Second}
	failed := false
	return links.WatchFilters(ctx, filterCheck, func(ifIndex int) {
		hooks, err := a.programs.ReattachNode(ifIndex)
		pods, perr := a.lifecycle.Reattach(ifIndex)
		err = errors.Join(err, perr)
		if n := hooks + pods; n > 0 {
			a.metrics.reattached.Add(float64(n))
			often.Do(func() {
				log.Warn("somebody took programs off interfaces; they are back. Look for another network plugin, or a script, that removes"+
					" clsact or filters of tc", "ifindex", ifIndex, "interfaces", n)
			})
		}
		switch {
		case err != nil:
			often.Do(func() {
				log.Error("interfaces cannot have their programs back; pods' are shut, and it is tried again", "error", err)
			})
			a.components.Report("filters", err, "")
			failed = true
		case ifIndex == 0 || !failed:
			failed = false
			a.components.Report("filters", nil, fmt.Sprintf("all programs are in place; looked at every %v, and when the kernel tells of a change", filterCheck))
		}
	})
}
