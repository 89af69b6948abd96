package allocator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hawser-net/hawser/pkg/kvstore"
	"github.com/hawser-net/hawser/pkg/retry"
)

const (
	// maxPause bounds the pause between two attempts of Allocate, whose number is not bounded: so
	// long may a call wait although the store is back, so often does each key ask one that is away.
	maxPause = 5 * time.Second
	// maxWithdrawals bounds how often Allocate gives an ID back for an older one in a row.
	maxWithdrawals = 16
	// operationTimeout bounds one repair.
	operationTimeout = 10 * time.Second
	// runGrace is how long callers wait for Run to be called.
	runGrace = 10 * time.Second
	// editTimeout bounds the wait for the watch to show whether an ID was edited.
	editTimeout = 2 * time.Second
)

// Allocator gives IDs to keys, the same one to the same key on every node. See the package doc.
type Allocator struct {
	backend Backend
	set     settings
	log     *slog.Logger
	cache   *cache
	events  eventQueue

	wakeup chan struct{} // wakes the maintenance
	doubt  atomic.Bool   // the maintenance must compare everything
	cancel context.CancelFunc
	began  chan struct{} // closed by Run
	closed chan struct{} // closed by Close
	done   chan struct{} // closed when Run has ended

	mu       sync.Mutex
	running  bool
	isClosed bool
	ctx      context.Context // of Run; nil before
	requests sync.WaitGroup  // the goroutines of pending requests
	local    map[string]*localKey
	localIDs map[ID]*localKey
	picking  map[ID]int // picked and not yet in the cache
	late     map[string]lateKey
	remotes  map[string]*RemoteCache
}

// localKey is a key that this node uses, or that a call is busy with.
type localKey struct {
	key  AllocatorKey
	text string
	// turn is held, by sending, by the call that accesses the store for this key.
	turn chan struct{}

	// The fields below are guarded by Allocator.mu.
	id ID
	// was is the ID that the users of the key have, while it has to change; id is NoID then.
	was   ID
	refs  int
	users int // those that hold or wait for the turn
	// pending is the request that calls of Allocate wait for, nil if there is none.
	pending *pending
	// unwanted: the store may hold a reference of this node that no one here uses.
	unwanted bool
	// wrong: the reference in the store must be looked at.
	wrong bool
}

// lateKey is a key of which an attempt to write a reference failed with an unknown outcome: it may
// still take effect, even after the reference was taken back.
type lateKey struct {
	key AllocatorKey
	// seen counts the syncs since.
	seen int
}

// NewAllocator checks the settings and returns an allocator that does nothing until [Allocator.Run]
// is called. The type key is any key; it is there so that a mistake in the key type shows at once.
func NewAllocator(typ AllocatorKey, backend Backend, opts ...AllocatorOption) (*Allocator, error) {
	if typ == nil {
		return nil, errors.New("an allocator needs a key type")
	}
	return newAllocator(backend, opts)
}

// NewAllocatorForGC returns an allocator for [Allocator.RunGC] and [Allocator.RunLocksGC] only; Run
// is not needed for these. Give it the same range.
func NewAllocatorForGC(backend Backend, opts ...AllocatorOption) (*Allocator, error) {
	return newAllocator(backend, opts)
}

func newAllocator(backend Backend, opts []AllocatorOption) (*Allocator, error) {
	set := defaults()
	set.backend = backend
	for _, opt := range opts {
		opt(&set)
	}
	if set.backend == nil {
		return nil, errors.New("an allocator needs a backend")
	}
	set.log = cmp.Or(set.log, slog.New(slog.DiscardHandler))
	if err := set.validate(); err != nil {
		return nil, fmt.Errorf("allocator: %w", err)
	}
	return &Allocator{
		backend: set.backend, set: set, log: set.log, cache: newCache(set.idRange),
		wakeup: make(chan struct{}, 1), began: make(chan struct{}), closed: make(chan struct{}), done: make(chan struct{}),
		local: make(map[string]*localKey), localIDs: make(map[ID]*localKey), picking: make(map[ID]int),
		remotes: make(map[string]*RemoteCache), late: make(map[string]lateKey),
	}, nil
}

// Run follows the store and keeps this node's references in order until ctx ends or
// [Allocator.Close] is called; then it returns nil. It returns an error if the store was closed
// under it. It may be called once.
func (a *Allocator) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	a.mu.Lock()
	if a.running || a.isClosed {
		a.mu.Unlock()
		return errors.New("allocator: Run is called a second time, or after Close")
	}
	a.running, a.ctx, a.cancel = true, ctx, cancel
	a.mu.Unlock()
	close(a.began)
	defer close(a.done)

	var wg sync.WaitGroup
	wg.Add(2)
	go func() {
		defer wg.Done()
		a.maintain(ctx)
	}()
	go func() {
		defer wg.Done()
		a.events.pump(ctx, a.set.events)
	}()
	err := a.backend.ListAndWatch(ctx, (*mutations)(a))
	stopped := ctx.Err() != nil
	a.mu.Lock()
	cancel() // under the lock: no request begins afterwards
	a.mu.Unlock()
	wg.Wait()
	a.requests.Wait()
	if stopped {
		return nil
	}
	return fmt.Errorf("allocator: the watch of the store ended: %w", err)
}

// Close ends Run and waits for it, and closes the remote caches. References stay in the store until
// their lease ends, so that a restart finds them.
func (a *Allocator) Close() {
	a.mu.Lock()
	first := !a.isClosed
	a.isClosed = true
	running, cancel := a.running, a.cancel
	remotes := slices.Collect(maps.Values(a.remotes))
	a.mu.Unlock()
	if first {
		close(a.closed)
	}
	for _, rc := range remotes {
		rc.Close()
	}
	if running {
		cancel()
		<-a.done
	}
}

// Delete is Close, under the name that users of such libraries know.
func (a *Allocator) Delete() { a.Close() }

// DeleteAllKeys deletes everything of this allocator in the store, for all nodes.
func (a *Allocator) DeleteAllKeys(ctx context.Context) error { return a.backend.DeleteAllKeys(ctx) }

// WaitForInitialSync waits until all IDs in the store are known. If [Allocator.Run] is not called
// within ten seconds, it fails with [ErrNotRunning].
func (a *Allocator) WaitForInitialSync(ctx context.Context) error {
	select {
	case <-a.cache.synced:
		return nil
	default:
	}
	if err := a.waitForRun(ctx); err != nil {
		return err
	}
	select {
	case <-a.cache.synced:
		return nil
	case <-a.closed:
		return ErrClosed
	case <-a.done:
		return ErrClosed
	case <-ctx.Done():
		return fmt.Errorf("waiting for the first listing of all IDs: %w", ctx.Err())
	}
}

// waitForRun waits until Run is called.
func (a *Allocator) waitForRun(ctx context.Context) error {
	select {
	case <-a.began:
		return nil
	default:
	}
	grace := time.NewTimer(runGrace)
	defer grace.Stop()
	select {
	case <-a.began:
		return nil
	case <-a.closed:
		return ErrClosed
	case <-grace.C:
		return ErrNotRunning
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", ErrNotRunning, ctx.Err())
	}
}

// GetEvents returns the channel given with [WithEvents].
func (a *Allocator) GetEvents() AllocatorEventChan { return a.set.events }

// Allocate returns the ID of key, which the node uses from now on. isNew means that this call
// created the ID. Each Allocate that succeeds needs one [Allocator.Release]. A key that is in use
// on this node already costs no round trip.
//
// Errors of the store, [ErrContended] among them, are met with new attempts while ctx lasts; after
// its end the error wraps that of ctx and that of the last attempt that failed, if any. Errors that
// no attempt can mend come at once: one that wraps [ErrExhausted] names the range that is full, one
// that wraps [ErrUnassigned] is of a backend that makes no IDs, and one that wraps
// [kvstore.ErrTxnTooLarge] is of a key that the store cannot take.
//
// All calls for one key wait for one request, which outlives them, for up to [WithTimeout]. Callers
// that still wait then start the next. An ID without waiters is released.
func (a *Allocator) Allocate(ctx context.Context, key AllocatorKey) (id ID, isNew bool, err error) {
	text, err := canonical(key)
	if err != nil {
		return NoID, false, err
	}
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, a.set.timeout)
		defer cancel()
	}
	if id := a.joinKnown(text); id != NoID {
		return id, false, nil
	}
	if err := a.WaitForInitialSync(ctx); err != nil {
		return NoID, false, err
	}
	for again := true; again; { // err is what the last request failed with
		id, isNew, again, err = a.wait(ctx, text, key, err)
	}
	if err != nil {
		return NoID, false, fmt.Errorf("allocate %.300q: %w", text, err)
	}
	return id, isNew, nil
}

func (a *Allocator) leave(lk *localKey) {
	a.mu.Lock()
	defer a.mu.Unlock()
	lk.users--
	a.tidyLocal(lk)
}

// tidyLocal must be called with mu held.
func (a *Allocator) tidyLocal(lk *localKey) {
	if lk.users == 0 && lk.refs == 0 && !lk.unwanted && a.local[lk.text] == lk {
		delete(a.local, lk.text)
	}
}

// joinKnown takes a reference if the key is in use here. It works before anything was observed of
// the store.
func (a *Allocator) joinKnown(text string) ID {
	a.mu.Lock()
	defer a.mu.Unlock()
	lk := a.local[text]
	if lk == nil || !lk.inUse() || a.isClosed {
		return NoID
	}
	lk.refs++
	return lk.id
}

// Assume takes key into use with the ID that this node had for it before it was restarted. It
// makes no round trip and works while the store is away: the reference is written, or found to be
// there, as soon as it can be. If the ID has become another key's meanwhile, or the key another
// ID's, that one is taken and announced by an [EventRenumbered], as after the loss of a lease.
// Each Assume that succeeds needs one [Allocator.Release].
func (a *Allocator) Assume(key AllocatorKey, id ID) error {
	text, err := canonical(key)
	if err != nil {
		return err
	}
	if !a.set.idRange.Contains(id) {
		return fmt.Errorf("assume %d for %q: the ID is outside of this allocator's range", id, text)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.isClosed {
		return ErrClosed
	}
	if other := a.localIDs[id]; other != nil && other.text != text {
		return fmt.Errorf("assume %d for %q: this node uses the ID for %q", id, text, other.text)
	}
	lk := a.local[text]
	switch {
	case lk == nil:
		lk = &localKey{key: key, text: text, turn: make(chan struct{}, 1)}
		a.local[text] = lk
	case lk.inUse() && lk.id == id: // as for Allocate, whoever is busy with it
	case lk.users > 0, lk.unwanted, lk.refs > 0:
		return fmt.Errorf("assume %d for %q: the key is in use already, with ID %d or one that is being looked for", id, text, lk.id)
	}
	if lk.refs == 0 {
		a.setID(lk, id)
		lk.wrong = true
		a.wake()
	}
	lk.refs++
	return nil
}

// setID notes the ID of a local key. It must be called with mu held.
func (a *Allocator) setID(lk *localKey, id ID) {
	if a.localIDs[lk.id] == lk {
		delete(a.localIDs, lk.id)
	}
	lk.id = id
	if id != NoID {
		a.localIDs[id] = lk
	}
}

// acquire gets an ID from the store, and a reference for each waiter of p, which may be nil. The
// caller has the key's turn. The key has no ID, or the one that lk.was will name, until the new one
// is certain: no caller gets an ID that may have to be withdrawn.
func (a *Allocator) acquire(ctx context.Context, lk *localKey, p *pending) (id ID, isNew bool, err error) {
	withdrawals := 0
	withdrawn := NoID
	for attempt := 0; ; {
		mark := a.cache.mark()
		if id := a.cache.editedFirst(lk.text); id != NoID {
			// Else the key would get a second ID. If it cannot have this one back it does.
			if err := a.backend.Restore(ctx, Reference{ID: id, Key: lk.key, Edited: true}); err != nil {
				a.log.Warn("an edited ID cannot have its key back", "id", id, "key", lk.text, "error", err)
			}
		}
		picks := &picker{a: a, first: withdrawn}
		got, err := a.backend.Acquire(ctx, lk.key, picks)
		again := false
		if err == nil {
			again, err = a.verify(ctx, lk, got, mark, withdrawals)
		}
		if err == nil && !again {
			a.record(lk, got.ID, p, mark)
			picks.done()
			return got.ID, got.IsNew, nil
		}
		picks.done()
		if err == nil {
			withdrawals++
			if got.IsNew {
				withdrawn = got.ID
			}
			err = retry.Wait(ctx, withdrawals, time.Millisecond, 50*time.Millisecond)
			if err == nil {
				continue
			}
		}
		attempt++
		a.noteLate(lk)
		if ctx.Err() != nil || hopeless(err) {
			a.giveBack(lk)
			return NoID, false, err
		}
		a.log.Info("allocation failed, trying again", "key", lk.text, "error", err)
		a.noteFailed(p, err)
		if perr := retry.Wait(ctx, attempt-1, 20*time.Millisecond, maxPause); perr != nil {
			a.giveBack(lk)
			return NoID, false, err
		}
	}
}

// hopeless reports whether a further attempt to allocate would end as the last one did.
func hopeless(err error) bool {
	return slices.ContainsFunc([]error{ErrExhausted, ErrUnassigned, ErrClosed, kvstore.ErrClosed, kvstore.ErrTxnTooLarge}, func(e error) bool {
		return errors.Is(err, e)
	})
}

// record notes the ID that a key has now. mark was taken before the ID was acquired.
func (a *Allocator) record(lk *localKey, id ID, p *pending, mark int) {
	a.mu.Lock()
	was := lk.was
	a.setID(lk, id)
	lk.was = NoID
	renumbered := was != NoID && was != id && lk.refs > 0
	lk.serve(p)
	// The callers may have gone meanwhile: then the reference is released.
	lk.unwanted = lk.refs == 0
	unwanted := lk.unwanted
	a.mu.Unlock()
	// From here on the watch restores an ID deleted by others; earlier events were ignored. If it
	// restarted meanwhile, the store may have been restored from a backup. A lease that was lost
	// meanwhile has marked the key already.
	doubt := !a.cache.holds(id, lk.text) || a.cache.mark() != mark
	a.mu.Lock()
	lk.wrong = lk.wrong || doubt
	doubt = lk.wrong
	a.mu.Unlock()
	if doubt || unwanted {
		a.wake()
	}
	if renumbered {
		a.log.Warn("a key in use on this node has another ID now", "key", lk.text, "was", was, "is", id)
		a.events.push(AllocatorEvent{Kind: EventRenumbered, ID: id, OldID: was, Key: lk.key})
	}
	if was != id {
		a.notifyMissing(was)
	}
}

// giveBack has the maintenance take back a reference that may have been written by an attempt that
// failed.
func (a *Allocator) giveBack(lk *localKey) {
	a.mu.Lock()
	lk.unwanted = true
	a.mu.Unlock()
	a.wake()
}
