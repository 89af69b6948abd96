// Package doublewrite keeps identities in two places at once while a cluster moves from one to the
// other: as keys of a key-value store, and as CiliumIdentity objects.
//
// A [Backend] reads from one of the two, and writes to both. What it promises is that a set of
// labels has the same ID in both places, also while some nodes read from the one and some from
// the other, and while some write to one of them only:
//
//   - an ID that the key-value store has in force is taken over, because nodes that know nothing
//     of objects may use it;
//   - a new ID is looked for by objects, where all writers try the same IDs in the same
//     order, and then made in the store under the same ID;
//   - if the store has that ID for other labels, these get their object, and the search goes on
//     behind it;
//   - an ID that is in quarantine in either place is given to no other labels in both, unless no
//     other is free.
//
// If both had different IDs for the same labels before double write began, they keep them: the ID
// of the place that is read counts, the conflict is logged, and the operator counts it.
//
// While the place that is only written to is unavailable no new ID can be allocated, since it may
// be in use there; labels that have an ID are not affected. What is missing there is written when
// the allocator next compares its references with the store.
//
// The backend owns no table. It starts goroutines in ListAndWatch only, which waits for them.
package doublewrite

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/hawser-net/hawser/pkg/allocator"
)

// Place is one of the two places.
type Place interface {
	allocator.Backend
	// Occupant returns whom an ID belongs to; ok is false if it is free.
	Occupant(ctx context.Context, id allocator.ID) (o allocator.Occupant, ok bool, err error)
}

// Objects are the place whose writers all try the same IDs in the same order.
type Objects interface {
	Place
	// AcquireExcept is Acquire that skips IDs which, according to elsewhere, belong to other
	// labels: those in quarantine there are taken last.
	AcquireExcept(ctx context.Context, key allocator.AllocatorKey, ids allocator.IDSource,
		elsewhere func(context.Context, allocator.ID) (allocator.Occupant, bool, error)) (allocator.Acquired, error)
}

// Config is what a [Backend] is made from.
type Config struct {
	// Objects and Keys are the two places.
	Objects Objects
	Keys    Place
	// ReadObjects has identities read from the objects, else from the keys.
	ReadObjects bool
	// Log is optional.
	Log *slog.Logger
}

// Backend is described with the package. Its methods may be called from many goroutines.
type Backend struct {
	// reads is Objects or Keys, other the other one.
	reads, other Place
	objects      Objects
	keys         Place
	log          *slog.Logger
}

var _ allocator.Backend = (*Backend)(nil)

// New checks the settings. It does no I/O.
func New(cfg Config) (*Backend, error) {
	if cfg.Objects == nil || cfg.Keys == nil {
		return nil, errors.New("identities in two places: both are needed")
	}
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	b := &Backend{reads: cfg.Keys, other: cfg.Objects, objects: cfg.Objects, keys: cfg.Keys, log: cfg.Log}
	if cfg.ReadObjects {
		b.reads, b.other = cfg.Objects, cfg.Keys
	}
	return b, nil
}

// maxTries bounds how often a new ID is looked for, each time because other labels had the last
// one.
const maxTries = 32

var (
	// errTaken means that the one ID that was offered is used for other labels, or in quarantine
	// after them.
	errTaken = errors.New("the ID is used for other labels, or in quarantine after them")
	// errNone means that labels have no ID.
	errNone = errors.New("the labels have no ID")
)

// existing offers no new ID.
type existing struct{ allocator.IDSource }

func (existing) Pick() (allocator.ID, error) { return allocator.NoID, errNone }

// nowhere keeps objects from being made.
func nowhere(context.Context, allocator.ID) (allocator.Occupant, bool, error) {
	return allocator.Occupant{}, false, errNone
}

// only offers one ID.
type only struct {
	id allocator.ID
	// last means that it was in quarantine after other labels, and that no other is free.
	last    bool
	offered bool
}

func (o *only) Known(string) allocator.ID { return allocator.NoID }

func (o *only) Taken(allocator.ID) {}

// Quarantined offers the ID again if no other is free.
func (o *only) Quarantined(id allocator.ID, _ time.Time) {
	if id == o.id && o.last {
		o.offered = false
	}
}

func (o *only) Pick() (allocator.ID, error) {
	if o.offered {
		return allocator.NoID, errTaken
	}
	o.offered = true
	return o.id, nil
}

// known is the ID of the key that is looked for.
type known struct {
	allocator.IDSource
	id allocator.ID
}

func (k known) Known(string) allocator.ID { return k.id }

// current knows no ID of which the objects have said that it is the labels' no more: what a watch
// has shown may be older.
type current struct {
	allocator.IDSource
	gone map[allocator.ID]bool
}

func (c *current) Known(key string) allocator.ID {
	if id := c.IDSource.Known(key); !c.gone[id] {
		return id
	}
	return allocator.NoID
}

// unlike offers no ID that is other labels' in another place.
type unlike struct {
	allocator.IDSource
	ctx   context.Context
	place Place
	noted map[allocator.ID]bool // as in quarantine there
}

func (u unlike) Pick() (allocator.ID, error) {
	for range maxTries {
		id, err := u.IDSource.Pick()
		if err != nil || u.noted[id] { // no other is free
			return id, err
		}
		o, ok, err := u.place.Occupant(u.ctx, id)
		switch {
		case err != nil:
			return allocator.NoID, err
		case !ok:
			return id, nil
		case o.Quarantined:
			u.noted[id] = true
			u.Quarantined(id, o.Since)
		default:
			u.Taken(id)
		}
	}
	return allocator.NoID, allocator.ErrContended
}

// differs logs that a set of labels has different IDs in the two places, and stays so.
func (b *Backend) differs(key allocator.AllocatorKey, id allocator.ID, err error) {
	b.log.Warn("an identity cannot have the same ID in both places", "labels", key.GetKey(), "identity", id, "error", err)
}

// Acquire implements [allocator.Backend].
func (b *Backend) Acquire(ctx context.Context, key allocator.AllocatorKey, ids allocator.IDSource) (allocator.Acquired, error) {
	now := &current{IDSource: ids, gone: map[allocator.ID]bool{}}
	for range maxTries {
		a, again, err := b.acquire(ctx, key, now)
		if !again {
			return a, err
		}
	}
	return allocator.Acquired{}, fmt.Errorf("labels %s: %w", key.GetKey(), allocator.ErrContended)
}

func (b *Backend) acquire(ctx context.Context, key allocator.AllocatorKey, ids *current) (a allocator.Acquired, again bool, err error) {
	a, err = b.known(ctx, key, ids)
	if !errors.Is(err, errNone) {
		return a, false, err
	}
	if b.reads == b.keys {
		return b.make(ctx, key, ids)
	}
	inForce, err := b.keys.Get(ctx, key)
	if err != nil {
		return a, false, err
	}
	if inForce == allocator.NoID {
		return b.make(ctx, key, ids)
	}
	a, err = b.takeOver(ctx, key, inForce)
	if conflict(err) { // the store has an ID that is other labels' object: what is read counts
		b.differs(key, inForce, err)
		a, _, err = b.makeObject(ctx, key, ids)
	}
	return a, false, err
}

// otherTimeout bounds how long an ID that one place has waits for the other one. A store that is
// away answers when the request's time is up, and pods would wait that long.
const otherTimeout = 2 * time.Second

// known takes an ID into use that the place that is read has, else it returns errNone. The other
// place may be away.
func (b *Backend) known(ctx context.Context, key allocator.AllocatorKey, ids allocator.IDSource) (a allocator.Acquired, err error) {
	if b.reads == b.keys {
		a, err = b.keys.Acquire(ctx, key, existing{ids})
	} else if ids.Known(key.GetKey()) == allocator.NoID {
		err = errNone
	} else {
		a, err = b.objects.AcquireExcept(ctx, key, ids, nowhere)
	}
	if err != nil {
		return a, err
	}
	bounded, cancel := context.WithTimeout(ctx, otherTimeout)
	defer cancel()
	err = b.other.Restore(bounded, allocator.Reference{ID: a.ID, Key: key})
	switch {
	case err == nil:
	case conflict(err):
		b.differs(key, a.ID, err)
	default:
		b.log.Warn("an identity is not in both places yet", "labels", key.GetKey(), "identity", a.ID, "error", err)
	}
	return a, nil
}

func conflict(err error) bool {
	var c *allocator.ConflictError
	return errors.As(err, &c)
}

// takeOver has the objects, which are read, follow what the store has in force.
func (b *Backend) takeOver(ctx context.Context, key allocator.AllocatorKey, id allocator.ID) (allocator.Acquired, error) {
	ref := allocator.Reference{ID: id, Key: key}
	if err := b.objects.Restore(ctx, ref); err != nil {
		return allocator.Acquired{}, err
	}
	if err := b.keys.Restore(ctx, ref); err != nil && !conflict(err) {
		b.log.Warn("an identity has no reference in the store yet", "labels", key.GetKey(), "identity", id, "error", err)
	}
	return allocator.Acquired{ID: id, Final: true}, nil
}

// makeObject finds an ID by objects that is not other labels' in the store. last says that it is in
// quarantine there after other labels, and no other is free.
func (b *Backend) makeObject(ctx context.Context, key allocator.AllocatorKey, ids *current) (o allocator.Acquired, last bool, err error) {
	there, err := b.objects.Get(ctx, key)
	if err != nil {
		return o, false, err
	}
	if ids.gone[there] {
		there = allocator.NoID
	}
	quarantined := map[allocator.ID]bool{}
	o, err = b.objects.AcquireExcept(ctx, key, known{ids, there}, func(ctx context.Context, id allocator.ID) (allocator.Occupant, bool, error) {
		owner, ok, err := b.keys.Occupant(ctx, id)
		switch {
		case err != nil || !ok || owner.Key == key.GetKey():
		case owner.Quarantined:
			quarantined[id] = true
		default: // these labels need their object, and then the next one need not ask
			err = b.fill(ctx, id)
		}
		return owner, ok, err
	})
	return o, quarantined[o.ID], err
}

// make finds an ID by objects, and has the store agree. again says that it is to be tried again.
func (b *Backend) make(ctx context.Context, key allocator.AllocatorKey, ids *current) (a allocator.Acquired, again bool, err error) {
	o, last, err := b.makeObject(ctx, key, ids)
	if err != nil {
		return a, false, err
	}
	undo := func() error {
		if !o.IsNew {
			return nil
		}
		ids.gone[o.ID] = true
		return b.objects.Withdraw(ctx, key, o)
	}
	k, err := b.keys.Acquire(ctx, key, &only{id: o.ID, last: last})
	switch {
	case errors.Is(err, errTaken) && o.IsNew: // by a writer of keys only, a moment ago
		return a, true, undo()
	case errors.Is(err, errTaken): // the object was there before, and so was the key of other labels
		b.differs(key, o.ID, err)
		if b.reads == b.objects {
			return o, false, nil
		}
		a, err = b.keys.Acquire(ctx, key, unlike{ids, ctx, b.objects, map[allocator.ID]bool{}})
		return a, false, err
	case err != nil:
		return a, false, errors.Join(err, undo())
	case k.ID == o.ID && b.reads == b.objects:
		// The store's transaction fails if this process stood still for so long that others have
		// the key. But the object was unused until now: it may have been collected meanwhile, and
		// the ID be other labels'.
		there, ok, err := b.objects.Occupant(ctx, o.ID)
		if err != nil || ok && !there.Quarantined && there.Key == key.GetKey() {
			return o, false, err
		}
		ids.gone[o.ID] = true
		return a, true, b.keys.Withdraw(ctx, key, k)
	case k.ID == o.ID:
		return k, false, nil
	}
	// A writer of keys only was faster.
	if err := undo(); err != nil {
		return a, false, err
	}
	if b.reads == b.objects && o.IsNew {
		return a, true, b.keys.Release(ctx, k.ID, key)
	}
	err = b.objects.Restore(ctx, allocator.Reference{ID: k.ID, Key: key})
	switch {
	case err == nil:
	case !conflict(err):
		return a, false, err
	default:
		b.differs(key, k.ID, err)
		if b.reads == b.objects {
			return o, false, b.keys.Release(ctx, k.ID, key)
		}
	}
	if b.reads == b.objects {
		k = allocator.Acquired{ID: k.ID, Final: true}
	}
	return k, false, nil
}

// fill gives the labels that the store has an ID for their object.
func (b *Backend) fill(ctx context.Context, id allocator.ID) error {
	owner, err := b.keys.GetByID(ctx, id)
	if errors.Is(err, allocator.ErrIdentityNonExistent) || errors.Is(err, allocator.ErrUnreadable) {
		return nil // gone again, or without readable labels
	}
	if err != nil {
		return err
	}
	if err := b.objects.Restore(ctx, allocator.Reference{ID: id, Key: owner}); err != nil && !conflict(err) {
		return err
	}
	return nil
}

// Withdraw implements [allocator.Backend]. What is left in the other place is collected.
func (b *Backend) Withdraw(ctx context.Context, key allocator.AllocatorKey, a allocator.Acquired) error {
	return errors.Join(b.reads.Withdraw(ctx, key, a), b.other.Release(ctx, a.ID, key))
}

// Release implements [allocator.Backend].
func (b *Backend) Release(ctx context.Context, id allocator.ID, key allocator.AllocatorKey) error {
	err := b.reads.Release(ctx, id, key)
	bounded, cancel := context.WithTimeout(ctx, otherTimeout)
	defer cancel()
	return errors.Join(err, b.other.Release(bounded, id, key))
}

// Check implements [allocator.Backend]: a reference is in order if it is in both places.
func (b *Backend) Check(ctx context.Context, refs []allocator.Reference) ([]allocator.Reference, error) {
	wrong, err := b.reads.Check(ctx, refs)
	if err != nil {
		return wrong, err
	}
	more, err := b.other.Check(ctx, refs)
	if err != nil {
		b.log.Warn("cannot compare identities with the place that is not read", "error", err)
	}
	seen := make(map[allocator.ID]bool, len(wrong))
	for _, r := range wrong {
		seen[r.ID] = true
	}
	for _, r := range more {
		if !seen[r.ID] {
			wrong = append(wrong, r)
		}
	}
	return wrong, nil
}

// Restore implements [allocator.Backend]. That the other place has another ID is no conflict:
// this one counts. But an ID that is gone here is not made again while it is in quarantine there
// after other labels.
func (b *Backend) Restore(ctx context.Context, ref allocator.Reference) error {
	// If the other place is away the ID comes back all the same: pods have it.
	bounded, cancel := context.WithTimeout(ctx, otherTimeout)
	defer cancel()
	if there, ok, err := b.other.Occupant(bounded, ref.ID); err == nil && ok && there.Quarantined && there.Key != ref.Key.GetKey() {
		here, ok, err := b.reads.Occupant(ctx, ref.ID)
		if err != nil {
			return err
		}
		if !ok || here.Quarantined {
			return &allocator.ConflictError{Key: ref.Key.GetKey(), Held: ref.ID, Owner: there.Key, Quarantined: true}
		}
	}
	if err := b.reads.Restore(ctx, ref); err != nil {
		return err
	}
	err := b.other.Restore(bounded, ref)
	if conflict(err) {
		b.differs(ref.Key, ref.ID, err)
		return nil
	}
	return err
}

// Get implements [allocator.Backend].
func (b *Backend) Get(ctx context.Context, key allocator.AllocatorKey) (allocator.ID, error) {
	return b.reads.Get(ctx, key)
}

// GetByID implements [allocator.Backend].
func (b *Backend) GetByID(ctx context.Context, id allocator.ID) (allocator.AllocatorKey, error) {
	return b.reads.GetByID(ctx, id)
}

// silent receives events of the place that is not read: only that references were lost is of
// interest.
type silent struct{ allocator.CacheMutations }

func (silent) OnListDone(int64)             {}
func (silent) OnUpsert(allocator.Mapping)   {}
func (silent) OnDelete(allocator.ID, int64) {}

// ListAndWatch implements [allocator.Backend]. It follows both places, because both need that to be
// written to.
func (b *Backend) ListAndWatch(ctx context.Context, handler allocator.CacheMutations) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		if err := b.other.ListAndWatch(ctx, silent{handler}); err != nil && ctx.Err() == nil {
			cancel(fmt.Errorf("identities in the place that is not read: %w", err))
		}
	})
	err := b.reads.ListAndWatch(ctx, handler)
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	cancel(nil)
	return err
}

// RunGC implements [allocator.Backend], for the place that is read. The operator collects in both.
func (b *Backend) RunGC(ctx context.Context, limiter *rate.Limiter, r allocator.Range, previous map[allocator.ID]int64) (map[allocator.ID]int64, allocator.GCStats, error) {
	return b.reads.RunGC(ctx, limiter, r, previous)
}

// RunLocksGC implements [allocator.Backend]. Only the store has locks.
func (b *Backend) RunLocksGC(ctx context.Context, previous map[string]allocator.Lock) (map[string]allocator.Lock, int, error) {
	return b.keys.RunLocksGC(ctx, previous)
}

// Confirm implements [allocator.Backend], for the place that is read: its revisions are those that
// were observed.
func (b *Backend) Confirm(ctx context.Context, revision int64) error {
	return b.reads.Confirm(ctx, revision)
}

// ObserveLostConfirmation implements [allocator.Backend], for the place that is read.
func (b *Backend) ObserveLostConfirmation(lost func()) (stop func()) {
	return b.reads.ObserveLostConfirmation(lost)
}

// DeleteAllKeys implements [allocator.Backend], in both places.
func (b *Backend) DeleteAllKeys(ctx context.Context) error {
	return errors.Join(b.reads.DeleteAllKeys(ctx), b.other.DeleteAllKeys(ctx))
}
