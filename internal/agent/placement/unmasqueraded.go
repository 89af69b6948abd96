package placement

import (
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"

	"github.com/hawser-net/hawser/internal/endpoint"
)

// Unmasqueraded are the addresses of this node's endpoints under which packets leave the
// cluster as they are. It is safe for concurrent use.
type Unmasqueraded struct {
	// apply has the kernel leave these addresses, and no others, as they are.
	apply func([]netip.Addr) error
	log   *slog.Logger

	mu     sync.Mutex // held while the kernel is updated, so that the last word is the last change
	owners map[netip.Addr]uint16
	stale  bool // the kernel has not taken them
}

// NewUnmasqueraded returns none. apply has the kernel leave addresses, and no others, as they are.
func NewUnmasqueraded(apply func([]netip.Addr) error, log *slog.Logger) *Unmasqueraded {
	return &Unmasqueraded{apply: apply, log: log, owners: map[netip.Addr]uint16{}}
}

// Restore is called with the endpoints from before a restart, before the node's network is set up:
// their flows must not be masqueraded in between.
func (u *Unmasqueraded) Restore(rows []endpoint.Endpoint) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, row := range rows {
		for _, ip := range row.Plain() {
			u.owners[ip] = row.ID
		}
	}
	return u.push()
}

// set applies the row's setting to its addresses in the kernel. Without a change it does nothing.
func (u *Unmasqueraded) set(row endpoint.Endpoint) error {
	plain := row.Plain()
	u.mu.Lock()
	defer u.mu.Unlock()
	changed := false
	for _, ip := range row.Addresses() {
		_, is := u.owners[ip]
		switch want := slices.Contains(plain, ip); {
		case want:
			changed = changed || !is
			u.owners[ip] = row.ID
		case is: // of an endpoint that had the address before
			changed = true
			delete(u.owners, ip)
		}
	}
	if !changed && !u.stale {
		return nil
	}
	return u.push()
}

// remove forgets the row's addresses, unless they are another endpoint's by now.
func (u *Unmasqueraded) remove(row endpoint.Endpoint) {
	u.mu.Lock()
	defer u.mu.Unlock()
	changed := false
	for _, ip := range row.Addresses() {
		if owner, is := u.owners[ip]; is && owner == row.ID {
			changed = true
			delete(u.owners, ip)
		}
	}
	if !changed && !u.stale {
		return
	}
	if err := u.push(); err != nil {
		u.log.Warn("the address of a pod that is gone is still left unmasqueraded; it is tried again", "endpoint", row.ID, "error", err)
	}
}

// push updates the kernel. It is called with mu held. What fails is tried again with the next
// endpoint that comes, changes or goes, and with the node's next change or repair.
func (u *Unmasqueraded) push() error {
	err := u.apply(slices.Collect(maps.Keys(u.owners)))
	if u.stale = err != nil; u.stale {
		return fmt.Errorf("except pods from masquerading: %w", err)
	}
	return nil
}
