package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hawser-net/hawser/internal/endpoint"
	"github.com/hawser-net/hawser/internal/identity"
	k8sids "github.com/hawser-net/hawser/internal/k8s/identities"
	"github.com/hawser-net/hawser/internal/labels"
	"github.com/hawser-net/hawser/pkg/allocator"
)

// identities numbers label sets: reserved, fixed and well-known ones by rule, all others by the
// cluster's allocator, or by temporary numbers as long as that has none. It also keeps what is
// known of all identities, for policy and display.
type identities struct {
	log       *slog.Logger
	alloc     *allocator.Allocator
	events    allocator.AllocatorEventChan
	fixed     identity.Fixed
	wellKnown []identity.WellKnown
	// The numbers that this cluster gives to label sets. The store is written by every node: what
	// it says of any other number, or of labels that nobody can choose, is not believed.
	first, last identity.ID
	// mode says who makes numbers.
	mode  identity.Management
	temps *identity.Temporaries
	// kept, if not nil, is told for how many seconds labels had a temporary number.
	kept prometheus.Observer
	// pursuits are the searches for numbers, where this node may make them.
	pursuits *pursuits
	// arrived says that a number came for which a temporary one may stand.
	arrived chan struct{}

	// expect says what a number meant at a time, to where it is kept; nil if that does not ask.
	expect func(id allocator.ID, text string, at time.Time)

	// inUse returns the numbers that addresses known here have; nil for none. See run.
	inUse func() map[identity.ID]bool

	// handing is held while what was heard is brought to the kernel.
	handing sync.Mutex

	mu    sync.RWMutex
	known map[identity.ID]labels.Set
	// since is from when on labels have a temporary number.
	since map[identity.ID]time.Time
	// ended are numbers of which was heard that they stand for nothing any more, until that is
	// confirmed.
	ended map[identity.ID]struct{}
}

// identitySink is told what becomes known, in order.
type identitySink interface {
	SetIdentities(upserts map[identity.ID]labels.Set, deletes []identity.ID) error
}

// byRule returns the number of a label set that needs no allocation.
func (ids *identities) byRule(set labels.Set) (identity.ID, bool, error) {
	if id, ok := identity.ReservedID(set); ok {
		return id, true, nil
	}
	if id, ok, err := ids.fixed.ForPod(set); ok || err != nil {
		return id, ok, err
	}
	id, ok := identity.LookupWellKnown(ids.wellKnown, set)
	return id, ok, nil
}

// Acquire returns the number of the set and takes a reference to it.
func (ids *identities) Acquire(ctx context.Context, set labels.Set) (identity.ID, error) {
	if id, ok, err := ids.byRule(set); ok || err != nil {
		return id, err
	}
	if !ids.mode.Agent() {
		return ids.acquireKnown(ctx, set)
	}
	return ids.acquireAny(ctx, set)
}

// allocate asks the allocator.
func (ids *identities) allocate(ctx context.Context, set labels.Set) (identity.ID, error) {
	id, _, err := ids.alloc.Allocate(ctx, k8sids.Key{Set: set})
	if err != nil {
		return 0, err
	}
	if err := ids.believable(identity.ID(id), set); err != nil {
		_, rerr := ids.alloc.Release(ctx, k8sids.Key{Set: set})
		return 0, errors.Join(err, rerr)
	}
	ids.mu.Lock()
	ids.known[identity.ID(id)] = set // the watch will say so too, a little later
	ids.mu.Unlock()
	return identity.ID(id), nil
}

// errUnbelievable says that the store gives labels a number that it must not.
var errUnbelievable = errors.New("this is not believed")

// believable tells why a number from the store is not taken for the identity of these labels: a
// number of another range would give reserved, node-local or other clusters' identities labels of
// somebody's choice, and labels that the network derives would turn a pod into a host or a prefix.
func (ids *identities) believable(id identity.ID, set labels.Set) error {
	if id < ids.first || id > ids.last {
		return fmt.Errorf("the store gives %s the number %d, which is outside of this cluster's %d to %d; delete that key from the store: %w", set, id, ids.first, ids.last, errUnbelievable)
	}
	if err := labels.CheckIdentity(set); err != nil {
		return fmt.Errorf("the store gives number %d to labels of which %w; delete that key from the store: %w", id, err, errUnbelievable)
	}
	return nil
}

// Release gives the reference back.
func (ids *identities) Release(ctx context.Context, id identity.ID, set labels.Set) error {
	if id.IsTemporary() {
		ids.releaseTemporary(id)
		return nil
	}
	if _, ok, err := ids.byRule(set); ok || err != nil {
		return nil
	}
	_, err := ids.alloc.Release(ctx, k8sids.Key{Set: set})
	return err
}

// recall takes the identities of restored endpoints into use as they were, so that neither these
// nor new pods with the same labels have to wait for a store that is away. The function it returns
// gives these uses back, when the endpoints have their own. Temporary identities are the endpoints'
// own from here on.
func (ids *identities) recall(rows []endpoint.Endpoint) (forgo func(ctx context.Context)) {
	var assumed []labels.Set
	for _, row := range rows {
		if _, ok, err := ids.byRule(row.IdentityLabels); ok || err != nil || row.Identity == 0 {
			continue
		}
		if row.Identity.IsTemporary() {
			if err := ids.retake(row); err != nil {
				ids.log.Error("an endpoint's temporary identity cannot be kept over the restart", "endpoint", row.ID, "error", err)
			}
			continue
		}
		err := ids.believable(row.Identity, row.IdentityLabels)
		if err == nil {
			err = ids.alloc.Assume(k8sids.Key{Set: row.IdentityLabels}, allocator.ID(row.Identity))
		}
		if err != nil {
			// Two endpoints cannot disagree about a number but by damage; the first is right.
			ids.log.Warn("an endpoint's identity cannot be kept over the restart", "endpoint", row.ID, "identity", row.Identity, "error", err)
			continue
		}
		assumed = append(assumed, row.IdentityLabels)
		if ids.expect != nil {
			ids.expect(allocator.ID(row.Identity), k8sids.Key{Set: row.IdentityLabels}.GetKey(), row.Stored)
		}
		ids.learn(row.Identity, row.IdentityLabels)
	}
	return func(ctx context.Context) {
		for _, set := range assumed {
			if _, err := ids.alloc.Release(ctx, k8sids.Key{Set: set}); err != nil {
				ids.log.Warn("cannot give back an identity of before the restart", "labels", set.String(), "error", err)
			}
		}
	}
}

// static returns the identities that exist without allocation.
func (ids *identities) static() map[identity.ID]labels.Set {
	out := map[identity.ID]labels.Set{}
	for _, id := range identity.ReservedIDs() {
		if set, ok := identity.ReservedLabels(id); ok {
			out[id] = set
		}
	}
	for _, id := range ids.fixed.IDs() {
		if set, ok := ids.fixed.Labels(id); ok {
			out[id] = set
		}
	}
	for _, w := range ids.wellKnown {
		out[w.ID] = w.Labels
	}
	return out
}

// maxIdentityBatch bounds how many events are handed on together.
const maxIdentityBatch = 4096

// releasePause is how often is looked whether a number that was deleted is still an address's.
const releasePause = time.Second

// run hands every identity that appears, changes or goes to sink, in batches, until ctx ends. A
// number that goes while pods have it, as somebody deleted it by hand and whoever writes it again
// is slow, means what it meant until the last of their addresses has gone: their packets carry it.
// It calls synced once, after the first listing was handed on, and renumbered for a label set in
// use on this node whose number is another than before.
func (ids *identities) run(ctx context.Context, sink identitySink, synced func(), renumbered func(set labels.Set, id identity.ID)) error {
	if err := ids.hand(sink, ids.static(), nil); err != nil {
		ids.log.Error("policy is not in force in full", "error", err)
	}
	deletes := map[identity.ID]struct{}{} // with those of numbers in use, which wait
	var looked time.Time
	for {
		var first allocator.AllocatorEvent
		var look <-chan time.Time
		if len(deletes) > 0 {
			look = time.After(time.Until(looked.Add(releasePause)))
		}
		select {
		case <-ctx.Done():
			return nil
		case first = <-ids.events:
		case <-look:
		}
		upserts, waiting := map[identity.ID]labels.Set{}, len(deletes)
		done := false
		var moved []allocator.AllocatorEvent
		take := func(ev allocator.AllocatorEvent) {
			id := identity.ID(ev.ID)
			switch ev.Kind {
			case allocator.EventSync:
				done = true
			case allocator.EventUpsert:
				key, ok := ev.Key.(k8sids.Key)
				if !ok {
					break
				}
				if err := ids.believable(id, key.Set); err != nil {
					ids.log.Warn("ignored an identity", "identity", id, "error", err)
					break
				}
				upserts[id] = key.Set
				delete(deletes, id)
			case allocator.EventDelete:
				if id < ids.first || id > ids.last {
					break
				}
				delete(upserts, id)
				deletes[id] = struct{}{}
			case allocator.EventRenumbered:
				moved = append(moved, ev)
			}
		}
		take(first) // nothing, if it was time to look
	drain:
		for range maxIdentityBatch {
			select {
			case ev := <-ids.events:
				take(ev)
			default:
				break drain
			}
		}
		var ended []identity.ID
		if len(deletes) > 0 && time.Since(looked) >= releasePause { // it costs a look at all addresses
			ended = ids.released(deletes)
			looked = time.Now()
		}
		for _, id := range ended {
			delete(deletes, id)
		}
		if len(deletes) > waiting {
			ids.log.Info("numbers were deleted that pods have: they mean what they meant until the pods are gone", "numbers", len(deletes))
		}
		if len(upserts)+len(ended) > 0 {
			if err := ids.hand(sink, upserts, ended); err != nil {
				ids.log.Error("policy is not in force in full", "error", err)
			}
		}
		if len(upserts) > 0 {
			ids.announce() // after the rule sets of others know the numbers
		}
		for _, ev := range moved {
			if key, ok := ev.Key.(k8sids.Key); ok {
				renumbered(key.Set, identity.ID(ev.ID))
			}
		}
		if done {
			synced()
		}
	}
}

// released returns those numbers, sorted, that no address has any more.
func (ids *identities) released(deleted map[identity.ID]struct{}) []identity.ID {
	if len(deleted) == 0 {
		return nil
	}
	var used map[identity.ID]bool
	if ids.inUse != nil {
		used = ids.inUse()
	}
	out := make([]identity.ID, 0, len(deleted))
	for id := range deleted {
		if !used[id] {
			out = append(out, id)
		}
	}
	slices.Sort(out)
	return out
}

func (ids *identities) hand(sink identitySink, upserts map[identity.ID]labels.Set, deletes []identity.ID) error {
	ids.handing.Lock()
	defer ids.handing.Unlock()
	ids.mu.Lock()
	maps.Copy(ids.known, upserts)
	for id := range upserts {
		delete(ids.ended, id)
	}
	for _, id := range deletes {
		delete(ids.known, id)
		if ids.ended == nil {
			ids.ended = map[identity.ID]struct{}{}
		}
		ids.ended[id] = struct{}{}
	}
	ids.mu.Unlock()
	return sink.SetIdentities(upserts, deletes)
}

// ours says whether a number is one that this cluster gives to labels.
func (ids *identities) ours(id identity.ID) bool { return id >= ids.first && id <= ids.last }

// stands says whether a number of this cluster stands for labels, by what was heard.
func (ids *identities) stands(id identity.ID) bool { return ids.alloc.Stands(allocator.ID(id)) }

// endings returns the numbers that have ended since that was confirmed last, once what was heard of
// them is in the kernel.
func (ids *identities) endings() []identity.ID {
	ids.handing.Lock()
	defer ids.handing.Unlock()
	ids.mu.RLock()
	defer ids.mu.RUnlock()
	return slices.Collect(maps.Keys(ids.ended))
}

// confirmed forgets endings.
func (ids *identities) confirmed(list []identity.ID) {
	ids.mu.Lock()
	defer ids.mu.Unlock()
	for _, id := range list {
		delete(ids.ended, id)
	}
}

// learn adds an identity that this node made for itself.
func (ids *identities) learn(id identity.ID, set labels.Set) {
	ids.mu.Lock()
	defer ids.mu.Unlock()
	if _, has := ids.since[id]; !has && id.IsTemporary() {
		if ids.since == nil {
			ids.since = map[identity.ID]time.Time{}
		}
		ids.since[id] = time.Now()
	}
	ids.known[id] = set
}

// forget takes one back.
func (ids *identities) forget(id identity.ID) {
	ids.mu.Lock()
	defer ids.mu.Unlock()
	delete(ids.known, id)
}

// labelsOf returns the labels of a known identity.
func (ids *identities) labelsOf(id identity.ID) (labels.Set, bool) {
	ids.mu.RLock()
	defer ids.mu.RUnlock()
	set, ok := ids.known[id]
	return set, ok
}

// knownIdentity is a number with its labels.
type knownIdentity struct {
	id  identity.ID
	set labels.Set
}

// list returns all known identities by number.
func (ids *identities) list() []knownIdentity {
	ids.mu.RLock()
	out := make([]knownIdentity, 0, len(ids.known))
	for id, set := range ids.known {
		out = append(out, knownIdentity{id, set})
	}
	ids.mu.RUnlock()
	slices.SortFunc(out, func(a, b knownIdentity) int { return cmp.Compare(a.id, b.id) })
	return out
}
