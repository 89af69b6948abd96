package identities

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hawser-net/hawser/internal/endpoint"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/labels"
	"github.com/hawser-net/hawser/pkg/allocator"
	"github.com/hawser-net/hawser/pkg/retry"
)

// lookWait bounds the look for an ID that others have made: no store is asked that is far away.
const lookWait = 500 * time.Millisecond

// look returns the ID of a set that others have given it, and takes a reference to it.
func (ids *Identities) look(ctx context.Context, set labels.Set) (identity.ID, error) {
	ctx, cancel := context.WithTimeout(ctx, lookWait)
	defer cancel()
	return ids.allocate(ctx, set)
}

// acquireKnown returns the ID of a set if it is known, and a temporary one if not. It takes a
// reference to it.
func (ids *Identities) acquireKnown(ctx context.Context, set labels.Set) (identity.ID, error) {
	id, err := ids.look(ctx, set)
	if err == nil || ctx.Err() != nil || errors.Is(err, allocator.ErrClosed) {
		return id, err
	}
	why := err
	temporary, err := ids.temps.Acquire(set)
	if err != nil {
		return 0, fmt.Errorf("no identity is known for %s, and %w; it is the operator that makes identities (--%s): see whether it runs", set, err, identity.ManagementFlag)
	}
	ids.Add(temporary, set)
	// What became known before the temporary one was taken notified no goroutine, and is found now;
	// what comes later finds the temporary one. Where the first look took too long, the second may
	// wait for the same request and miss what became known since it began: then the endpoint finds
	// it when it looks again by itself.
	if id, err := ids.look(ctx, set); err == nil {
		ids.releaseTemporary(temporary)
		return id, nil
	}
	if !errors.Is(why, allocator.ErrUnassigned) {
		ids.log.Warn("cannot look for an identity; a temporary one is used", "labels", set.String(), "identity", temporary, "error", why)
	}
	return temporary, nil
}

// releaseTemporary gives back a reference to a temporary identity.
func (ids *Identities) releaseTemporary(id identity.ID) {
	ids.mu.Lock()
	defer ids.mu.Unlock()
	if ids.temps.Release(id) {
		ids.endPending(ids.known[id])
		delete(ids.known, id)
		if since, ok := ids.since[id]; ok && ids.cfg.Temporary != nil {
			ids.cfg.Temporary.Observe(time.Since(since).Seconds())
		}
		delete(ids.since, id)
	}
}

// restoreTemporary takes back the temporary identity that an endpoint had before the restart.
func (ids *Identities) restoreTemporary(row endpoint.Endpoint) error {
	if err := ids.temps.Restore(row.Identity, row.IdentityLabels); err != nil {
		return err
	}
	ids.Add(row.Identity, row.IdentityLabels)
	return nil
}

// notify wakes the goroutine that replaces temporary identities, after others have become known.
func (ids *Identities) notify() {
	if ids.temps.Len() == 0 {
		return
	}
	retry.Notify(ids.Arrived)
}
