// Package identities resolves the security identities of this node's endpoints, and caches all
// identities of the cluster. If the identity store does not answer in time, labels get a temporary
// identity, which only this node knows, until theirs is available. When identities end it confirms
// that this node no longer uses them.
package identities

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

// Config defines how a node's identities are made and found.
type Config struct {
	Log *slog.Logger
	// Store is where the cluster's identities are kept.
	Store allocator.Backend
	// First and Last are the IDs that this cluster gives to label sets. Every node writes to the
	// store: entries with any other ID, or with labels that only the network sets, are rejected.
	First, Last identity.ID
	// Fixed are identities by their ID, WellKnown those that every cluster has.
	Fixed     map[string]string
	WellKnown []identity.WellKnown
	// Management is who makes identities: agents, the operator or both.
	Management identity.Management
	// Timeout bounds one request for an identity; SyncInterval is how often the allocator writes
	// again what should be in the store.
	Timeout, SyncInterval time.Duration
	// Referenced returns the IDs that addresses known here have. It may be nil: see Run.
	Referenced func() map[identity.ID]bool
	// Expect, if not nil, reminds the store what an ID meant at a time.
	Expect func(id allocator.ID, text string, at time.Time)
	// Temporary, if not nil, observes for how many seconds labels had a temporary identity.
	Temporary prometheus.Observer
}

// Identities finds the identity of a label set: reserved, fixed and well-known ones by rule, all
// others by the cluster's allocator, or temporary ones as long as that has none. It also caches all
// identities, for policy and display. Its methods may be called from any goroutine.
type Identities struct {
	cfg    Config
	log    *slog.Logger
	alloc  *allocator.Allocator
	events allocator.AllocatorEventChan
	fixed  identity.Fixed
	temps  *identity.Temporaries
	// Arrived means that an identity came for which a temporary one may stand.
	Arrived chan struct{}

	ctx    context.Context // of the goroutines of wg
	cancel context.CancelFunc
	wg     sync.WaitGroup

	// applying is held while changes of the store are written to the kernel.
	applying sync.Mutex

	mu    sync.RWMutex
	known map[identity.ID]labels.Set
	// pending are the label sets, as text, for whose ID a temporary one stands where this node may
	// ask for one.
	pending map[string]*pendingID
	// since is from when on labels have a temporary identity.
	since map[identity.ID]time.Time
	// ended are IDs of this cluster of which was observed that they stand for nothing any more,
	// until that is confirmed.
	ended map[identity.ID]struct{}
}

// New returns identities of which none is observed yet. It must be closed.
func New(cfg Config) (*Identities, error) {
	var fixed []string
	for id, name := range cfg.Fixed {
		fixed = append(fixed, id+"="+name)
	}
	fixedSet, err := identity.ParseFixed(fixed)
	if err != nil {
		return nil, fmt.Errorf("--fixed-identity-mapping: %w", err)
	}
	events := make(allocator.AllocatorEventChan, 1024)
	alloc, err := allocator.NewAllocator(k8sids.Key{}, cfg.Store, allocator.WithMin(allocator.ID(cfg.First)), allocator.WithMax(allocator.ID(cfg.Last)),
		allocator.WithEvents(events), allocator.WithMasterKeyProtection(), allocator.WithSyncInterval(cfg.SyncInterval),
		allocator.WithTimeout(cfg.Timeout), allocator.WithLogger(cfg.Log))
	if err != nil {
		return nil, err
	}
	ids := &Identities{
		cfg: cfg, log: cfg.Log, alloc: alloc, events: events, fixed: fixedSet, known: map[identity.ID]labels.Set{}, since: map[identity.ID]time.Time{},
		ended: map[identity.ID]struct{}{}, temps: identity.NewTemporaries(), Arrived: make(chan struct{}, 1),
		pending: map[string]*pendingID{},
	}
	ids.ctx, ids.cancel = context.WithCancel(context.Background())
	return ids, nil
}

// Close ends all requests for identities for which temporary ones stand, and waits for them. No
// identity may be acquired afterwards.
func (ids *Identities) Close() {
	ids.mu.Lock()
	ids.cancel() // under the lock: none begins afterwards
	ids.mu.Unlock()
	ids.wg.Wait()
}

// RunAllocator watches identities in the store, and maintains this node's there, until ctx ends.
func (ids *Identities) RunAllocator(ctx context.Context) error { return ids.alloc.Run(ctx) }

// Edited returns the IDs whose labels in the store differ from those that they stand for.
func (ids *Identities) Edited() []allocator.ID { return ids.alloc.Edited() }

// Temporary returns how many temporary identities there are.
func (ids *Identities) Temporary() int { return ids.temps.Len() }

// Sink receives what becomes known, in order.
type Sink interface {
	SetIdentities(upserts map[identity.ID]labels.Set, deletes []identity.ID) error
}

// byRule returns the ID of a label set that needs no allocation.
func (ids *Identities) byRule(set labels.Set) (identity.ID, bool, error) {
	if id, ok := identity.ReservedID(set); ok {
		return id, true, nil
	}
	if id, ok, err := ids.fixed.ForPod(set); ok || err != nil {
		return id, ok, err
	}
	id, ok := identity.LookupWellKnown(ids.cfg.WellKnown, set)
	return id, ok, nil
}

// Acquire returns the ID of the set and takes a reference to it.
func (ids *Identities) Acquire(ctx context.Context, set labels.Set) (identity.ID, error) {
	if id, ok, err := ids.byRule(set); ok || err != nil {
		return id, err
	}
	if !ids.cfg.Management.Agent() {
		return ids.acquireKnown(ctx, set)
	}
	return ids.acquireOrAllocate(ctx, set)
}

// allocate asks the allocator.
func (ids *Identities) allocate(ctx context.Context, set labels.Set) (identity.ID, error) {
	id, _, err := ids.alloc.Allocate(ctx, k8sids.Key{Set: set})
	if err != nil {
		return 0, err
	}
	if err := ids.Validate(identity.ID(id), set); err != nil {
		_, rerr := ids.alloc.Release(ctx, k8sids.Key{Set: set})
		return 0, errors.Join(err, rerr)
	}
	ids.mu.Lock()
	ids.known[identity.ID(id)] = set // the watch will deliver it too, a little later
	ids.mu.Unlock()
	return identity.ID(id), nil
}

// errInvalid means that the store gives labels an ID that it must not.
var errInvalid = errors.New("this is not believed")

// Validate reports why an ID from the store is rejected for these labels: an ID of another range
// would attach arbitrary labels to reserved, node-local or other clusters' identities, and labels
// that the network derives would make rules for a host or a prefix match a pod.
func (ids *Identities) Validate(id identity.ID, set labels.Set) error {
	if id < ids.cfg.First || id > ids.cfg.Last {
		return fmt.Errorf("the store gives %s the ID %d, which is outside of this cluster's %d to %d; if --cluster-id was changed, set it back, else delete that key from the store: %w", set, id, ids.cfg.First, ids.cfg.Last, errInvalid)
	}
	if err := labels.CheckIdentity(set); err != nil {
		return fmt.Errorf("the store gives ID %d to labels of which %w; delete that key from the store: %w", id, err, errInvalid)
	}
	return nil
}

// Release gives the reference back.
func (ids *Identities) Release(ctx context.Context, id identity.ID, set labels.Set) error {
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

// Restore takes the identities of restored endpoints into use as they were, so that neither these
// nor new pods with the same labels have to wait for a store that is away. The function it returns
// gives these uses back, when the endpoints have their own. Temporary identities are the endpoints'
// own from here on.
func (ids *Identities) Restore(rows []endpoint.Endpoint) (release func(ctx context.Context)) {
	var assumed []labels.Set
	for _, row := range rows {
		if _, ok, err := ids.byRule(row.IdentityLabels); ok || err != nil || row.Identity == 0 {
			continue
		}
		if row.Identity.IsTemporary() {
			if err := ids.restoreTemporary(row); err != nil {
				ids.log.Error("an endpoint's temporary identity cannot be kept over the restart", "endpoint", row.ID, "error", err)
			}
			continue
		}
		err := ids.Validate(row.Identity, row.IdentityLabels)
		if err == nil {
			err = ids.alloc.Assume(k8sids.Key{Set: row.IdentityLabels}, allocator.ID(row.Identity))
		}
		if err != nil {
			// Two endpoints cannot disagree about an ID but by damage; the first is right.
			ids.log.Warn("an endpoint's identity cannot be kept over the restart", "endpoint", row.ID, "identity", row.Identity, "error", err)
			continue
		}
		assumed = append(assumed, row.IdentityLabels)
		if ids.cfg.Expect != nil {
			ids.cfg.Expect(allocator.ID(row.Identity), k8sids.Key{Set: row.IdentityLabels}.GetKey(), row.Stored)
		}
		ids.Add(row.Identity, row.IdentityLabels)
	}
	return func(ctx context.Context) {
		for _, set := range assumed {
			if _, err := ids.alloc.Release(ctx, k8sids.Key{Set: set}); err != nil {
				ids.log.Warn("cannot release an identity from before the restart", "labels", set.String(), "error", err)
			}
		}
	}
}

// static returns the identities that exist without allocation.
func (ids *Identities) static() map[identity.ID]labels.Set {
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
	for _, w := range ids.cfg.WellKnown {
		out[w.ID] = w.Labels
	}
	return out
}

// maxIdentityBatch bounds how many events are handed on together.
const maxIdentityBatch = 4096

// releasePause is how often is looked whether an ID that was deleted is still an address's.
const releasePause = time.Second

// Run hands every identity that appears, changes or goes to sink, in batches, until ctx ends. An ID
// that is deleted while pods have it, by hand for example, keeps its meaning until the last of
// their addresses has gone: their packets carry it. It calls synced once, after delivering the
// first listing, and renumbered for a label set in use on this node whose ID has changed.
func (ids *Identities) Run(ctx context.Context, sink Sink, synced func(), renumbered func(set labels.Set, id identity.ID)) error {
	if err := ids.Apply(sink, ids.static(), nil); err != nil {
		ids.log.Error("policy is not fully in force", "error", err)
	}
	deletes := map[identity.ID]struct{}{} // with those of IDs in use, which wait
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
				if err := ids.Validate(id, key.Set); err != nil {
					ids.log.Warn("ignored an identity", "identity", id, "error", err)
					break
				}
				upserts[id] = key.Set
				delete(deletes, id)
			case allocator.EventDelete:
				if id < ids.cfg.First || id > ids.cfg.Last {
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
			ended = ids.unreferenced(deletes)
			looked = time.Now()
		}
		for _, id := range ended {
			delete(deletes, id)
		}
		if len(deletes) > waiting {
			ids.log.Info("IDs that pods use were deleted: they keep their meaning until the pods are gone", "identities", len(deletes))
		}
		if len(upserts)+len(ended) > 0 {
			if err := ids.Apply(sink, upserts, ended); err != nil {
				ids.log.Error("policy is not fully in force", "error", err)
			}
		}
		if len(upserts) > 0 {
			ids.notify() // after the rule sets of others know the IDs
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

// unreferenced returns those IDs, sorted, that no address has any more.
func (ids *Identities) unreferenced(deleted map[identity.ID]struct{}) []identity.ID {
	if len(deleted) == 0 {
		return nil
	}
	var used map[identity.ID]bool
	if ids.cfg.Referenced != nil {
		used = ids.cfg.Referenced()
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

// Apply hands identities that appeared or went to sink, and remembers them.
func (ids *Identities) Apply(sink Sink, upserts map[identity.ID]labels.Set, deletes []identity.ID) error {
	ids.applying.Lock()
	defer ids.applying.Unlock()
	ids.mu.Lock()
	maps.Copy(ids.known, upserts)
	for id := range upserts {
		delete(ids.ended, id)
	}
	for _, id := range deletes {
		delete(ids.known, id)
		if ids.inRange(id) { // others are not this cluster's to use again
			ids.ended[id] = struct{}{}
		}
	}
	ids.mu.Unlock()
	return sink.SetIdentities(upserts, deletes)
}

// inRange reports whether an ID is one that this cluster gives to labels.
func (ids *Identities) inRange(id identity.ID) bool { return id >= ids.cfg.First && id <= ids.cfg.Last }

// assigned reports whether an ID of this cluster stands for labels, by what was observed.
func (ids *Identities) assigned(id identity.ID) bool { return ids.alloc.IsAllocated(allocator.ID(id)) }

// unconfirmed returns the IDs that have ended since that was confirmed last, once what was observed
// them is in the kernel.
func (ids *Identities) unconfirmed() []identity.ID {
	ids.applying.Lock()
	defer ids.applying.Unlock()
	ids.mu.RLock()
	defer ids.mu.RUnlock()
	return slices.Collect(maps.Keys(ids.ended))
}

// confirmed forgets these.
func (ids *Identities) confirmed(list []identity.ID) {
	ids.mu.Lock()
	defer ids.mu.Unlock()
	for _, id := range list {
		delete(ids.ended, id)
	}
}

// Add adds an identity that this node made for itself.
func (ids *Identities) Add(id identity.ID, set labels.Set) {
	ids.mu.Lock()
	defer ids.mu.Unlock()
	ids.add(id, set)
}

// add is Add. It must be called with mu held.
func (ids *Identities) add(id identity.ID, set labels.Set) {
	if _, has := ids.since[id]; !has && id.IsTemporary() {
		ids.since[id] = time.Now()
	}
	ids.known[id] = set
}

// Remove takes one back.
func (ids *Identities) Remove(id identity.ID) {
	ids.mu.Lock()
	defer ids.mu.Unlock()
	delete(ids.known, id)
}

// Labels returns the labels of a known identity.
func (ids *Identities) Labels(id identity.ID) (labels.Set, bool) {
	ids.mu.RLock()
	defer ids.mu.RUnlock()
	set, ok := ids.known[id]
	return set, ok
}

// Identity is an ID with its labels.
type Identity struct {
	ID     identity.ID
	Labels labels.Set
}

// List returns all known identities by ID.
func (ids *Identities) List() []Identity {
	ids.mu.RLock()
	out := make([]Identity, 0, len(ids.known))
	for id, set := range ids.known {
		out = append(out, Identity{id, set})
	}
	ids.mu.RUnlock()
	slices.SortFunc(out, func(a, b Identity) int { return cmp.Compare(a.ID, b.ID) })
	return out
}
