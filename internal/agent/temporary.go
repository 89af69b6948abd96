package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/hawser-net/hawser/api/rest"
	"github.com/hawser-net/hawser/internal/endpoint"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/labels"
	"github.com/hawser-net/hawser/pkg/allocator"
)

// lookWait bounds the look for a number that others have made: no store is asked that is far away.
const lookWait = 500 * time.Millisecond

// look returns the number of a set that others have given it, and takes a reference to it.
func (ids *identities) look(ctx context.Context, set labels.Set) (identity.ID, error) {
	ctx, cancel := context.WithTimeout(ctx, lookWait)
	defer cancel()
	return ids.allocate(ctx, set)
}

// acquireKnown returns the number of a set if it is known, and a temporary one if not. It takes a
// reference to it.
func (ids *identities) acquireKnown(ctx context.Context, set labels.Set) (identity.ID, error) {
	id, err := ids.look(ctx, set)
	if err == nil || ctx.Err() != nil || errors.Is(err, allocator.ErrClosed) {
		return id, err
	}
	why := err
	temporary, err := ids.temps.Acquire(set)
	if err != nil {
		return 0, fmt.Errorf("no identity is known for %s, and %w; it is the operator that makes identities (--%s): see whether it runs", set, err, identity.ManagementFlag)
	}
	ids.learn(temporary, set)
	// What became known before the temporary one was taken is found now; what comes later finds the
	// temporary one.
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
func (ids *identities) releaseTemporary(id identity.ID) {
	ids.mu.Lock()
	defer ids.mu.Unlock()
	if ids.temps.Release(id) {
		ids.pursuits.unneeded(ids.known[id])
		delete(ids.known, id)
		if since, ok := ids.since[id]; ok && ids.kept != nil {
			ids.kept.Observe(time.Since(since).Seconds())
		}
		delete(ids.since, id)
	}
}

// retake takes back the temporary identity that an endpoint had before the restart.
func (ids *identities) retake(row endpoint.Endpoint) error {
	if err := ids.temps.Restore(row.Identity, row.IdentityLabels); err != nil {
		return err
	}
	ids.learn(row.Identity, row.IdentityLabels)
	return nil
}

// announce wakes whoever replaces temporary identities, after others have become known.
func (ids *identities) announce() {
	if ids.temps.Len() == 0 {
		return
	}
	select {
	case ids.arrived <- struct{}{}:
	default: // it is awake
	}
}

// settleInterval is how often endpoints with temporary identities are looked at although nothing
// was heard.
const settleInterval = 5 * time.Second

// settleDelay is how long other nodes are given to hear of an identity before a pod whose labels
// have changed begins to use it. It is many times what an API server needs to tell all its clients.
const settleDelay = time.Second

// partTemporary is the name under which the status shows endpoints that wait for their identity.
const partTemporary = "identities"

// settleIdentities gives endpoints with temporary identities their own as soon as these are known,
// until ctx ends.
func (a *api) settleIdentities(ctx context.Context) error {
	select {
	case <-a.inForce:
	case <-ctx.Done():
		return nil
	}
	told, due := newPendingPods(), make(chan pending, eventBurst)
	var writer sync.WaitGroup
	writer.Go(func() { a.kube.writePending(ctx, due) })
	defer writer.Wait() // all below return when ctx has ended
	for {
		var waiting endpoint.Waiting
		if a.identities.temps.Len() > 0 {
			var err error
			waiting, err = a.lifecycle.Settle(ctx)
			if ctx.Err() != nil {
				return nil
			}
			if err != nil {
				a.identities.log.Warn("some endpoints keep temporary identities for now", "error", err)
			}
		}
		a.reportWaiting(waiting.Endpoints)
		a.kube.tellPending(told, due)
		again := settleInterval
		if waiting.Next > 0 {
			again = min(again, waiting.Next)
		}
		pause := time.NewTimer(again)
		select {
		case <-a.identities.arrived:
		case <-pause.C:
		case <-ctx.Done():
		}
		pause.Stop()
		if ctx.Err() != nil {
			return nil
		}
	}
}

// reportWaiting says in the status how many endpoints have temporary identities.
func (a *api) reportWaiting(n int) {
	if n == 0 {
		a.components.Set(partTemporary, rest.StateOk, "all endpoints have their identity")
		return
	}
	a.components.Set(partTemporary, rest.StateWarning, fmt.Sprintf(
		"%d endpoints wait for an identity and have a temporary one: their own policies are enforced, others see them as %s or as before", n, identity.Init))
}

// partEdited is the name under which the status shows identities that somebody edited.
const partEdited = "edited-identities"

// edited returns the numbers of which the place where identities are kept says something else than
// what they stand for.
func (a *api) edited() []allocator.ID {
	list := a.identities.alloc.Edited()
	if a.kube != nil && a.kube.numbers != nil {
		list = append(list, a.kube.numbers.Edited()...)
		slices.Sort(list)
	}
	return slices.Compact(list)
}

// reportEdited says in the status which identities somebody edited.
func (a *api) reportEdited() {
	list := a.edited()
	if len(list) == 0 {
		a.components.Set(partEdited, rest.StateOk, "all identities are as they were made")
		return
	}
	shown := list[:min(len(list), 10)]
	a.components.Set(partEdited, rest.StateWarning, fmt.Sprintf(
		"somebody edited the labels of %d identities, among them %v: on this node they mean what they meant; the log has their labels, give them these back", len(list), shown))
}
