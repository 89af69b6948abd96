package kvstore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"
)

// SharedKey is an object that many writers keep side by side under one prefix: a node, a service.
type SharedKey interface {
	// GetKeyName is the object's key without the prefix, for example "cluster/node". It must not
	// change.
	GetKeyName() string
	// Marshal returns the object as it stands in the store.
	Marshal() ([]byte, error)
}

// SharedObserver is told what a [SharedStore] sees. Calls come one at a time, in the order of the
// changes, from the goroutine that runs the store; they should be short. Functions left nil are not
// called.
type SharedObserver[K SharedKey] struct {
	// OnUpdate is called when an object appears or is written again.
	OnUpdate func(key K)
	// OnDelete is called with the last known form of an object that is gone.
	OnDelete func(key K)
	// OnSync is called once, when everything has been told that was there at the start.
	OnSync func()
}

// SharedConfig says what a [SharedStore] shares.
type SharedConfig[K SharedKey] struct {
	// Backend is the connection. The shared store does not close it.
	Backend Backend
	// Prefix is above all keys, without a slash at the end, for example "cluster/nodes".
	Prefix string
	// Unmarshal reads an object from its value. It must check the value as far as it can: any
	// writer of the store may have written it.
	Unmarshal func(name string, value []byte) (K, error)
	// Observer is told of changes.
	Observer SharedObserver[K]
	// SyncInterval is how often the local keys are compared with the store; 5 minutes if 0.
	SyncInterval time.Duration
	// WriteTimeout bounds one request of the comparison and of a repair; 30 seconds if 0.
	WriteTimeout time.Duration
	// Permanent makes the local keys outlive their writer. Otherwise they are leased.
	Permanent bool
	// Logger is optional.
	Logger *slog.Logger
}

// Validate reports all faults of the settings at once.
func (c SharedConfig[K]) Validate() error {
	var errs []error
	if c.Backend == nil {
		errs = append(errs, errors.New("no key-value store given"))
	}
	if strings.Trim(c.Prefix, "/") == "" {
		errs = append(errs, errors.New("no prefix given"))
	}
	if c.Unmarshal == nil {
		errs = append(errs, errors.New("no function given that reads values"))
	}
	if c.SyncInterval < 0 || c.WriteTimeout < 0 {
		errs = append(errs, errors.New("an interval is negative"))
	}
	return errors.Join(errs...)
}

// SharedStore is the view of all objects under a prefix, whoever wrote them, and the keeper of
// those that this process writes: its local keys.
//
// A local key is written again when somebody deletes it, when its lease is lost, and when the
// comparison every [SharedConfig.SyncInterval], and after each listing, finds it missing or
// different. If several writers claim one key, the last write stands until the next comparison of
// the others.
//
// An object that cannot be read, or that stands under another name than its own, is logged and
// ignored; if an earlier form of it was known, that one stays.
//
// All methods may be called from many goroutines.
type SharedStore[K SharedKey] struct {
	cfg    SharedConfig[K]
	prefix string // with a slash at the end
	log    *slog.Logger
	synced chan struct{}
	dirty  chan struct{} // a local key must be written or deleted
	listed chan struct{} // the store was listed anew
	reap   chan struct{} // a local key was given up

	mu      sync.Mutex
	running bool
	stop    context.CancelFunc // of JoinSharedStore
	done    chan struct{}
	shared  map[string]sharedEntry[K]
	local   map[string]*localEntry
}

// sharedEntry is an object as the store shows it.
type sharedEntry[K SharedKey] struct {
	key K
	// gone: the store has it no more, but it is a local key that is about to be written again.
	gone bool
}

// localEntry is a key that this process wants to exist, or to be deleted. Its fields are guarded by
// the store's mutex.
type localEntry struct {
	name string
	// busy holds one token; who has it may write the key.
	busy   chan struct{}
	wanted bool
	value  []byte
	// gen counts what was asked for, done what the store has: they differ while there is something
	// to write.
	gen, done uint64
	// revision is that of the last write.
	revision int64
}

// NewSharedStore checks the settings. The caller must call [SharedStore.Run].
func NewSharedStore[K SharedKey](cfg SharedConfig[K]) (*SharedStore[K], error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("shared store: %w", err)
	}
	if cfg.SyncInterval == 0 {
		cfg.SyncInterval = 5 * time.Minute
	}
	if cfg.WriteTimeout == 0 {
		cfg.WriteTimeout = 30 * time.Second
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return &SharedStore[K]{
		cfg: cfg, prefix: JoinKey(cfg.Prefix) + "/", log: cfg.Logger.With("prefix", cfg.Prefix),
		synced: make(chan struct{}), dirty: make(chan struct{}, 1), listed: make(chan struct{}, 1), reap: make(chan struct{}, 1), done: make(chan struct{}),
		shared: make(map[string]sharedEntry[K]), local: make(map[string]*localEntry),
	}, nil
}

// JoinSharedStore makes a shared store, runs it, and returns when it knows everything that was
// there, or when ctx ends, with an error. Call [SharedStore.Close] when done with it.
func JoinSharedStore[K SharedKey](ctx context.Context, cfg SharedConfig[K]) (*SharedStore[K], error) {
	s, err := NewSharedStore(cfg)
	if err != nil {
		return nil, err
	}
	run, stop := context.WithCancel(context.Background())
	s.stop = stop
	go func() {
		if err := s.Run(run); err != nil {
			s.log.Error("a shared store has ended", "error", err)
		}
	}()
	if err := s.WaitForSync(ctx); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// Run follows the store and keeps the local keys in place until ctx ends; then it returns nil. It
// returns an error if the backend was closed under it. It may be called once, and not after
// [JoinSharedStore].
func (s *SharedStore[K]) Run(ctx context.Context) error {
	s.mu.Lock()
	again := s.running
	s.running = true
	s.mu.Unlock()
	if again {
		return errors.New("shared store: Run is called a second time")
	}
	defer close(s.done)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer s.cfg.Backend.ObserveLostLeases(s.prefix, s.lost)()
	var wg sync.WaitGroup
	wg.Add(1)
	go func() {
		defer wg.Done()
		s.maintain(ctx)
	}()
	defer wg.Wait()
	defer cancel()
	return s.follow(ctx)
}

// Close ends what [JoinSharedStore] started and waits for it. Local keys stay in the store until
// their lease ends.
func (s *SharedStore[K]) Close() {
	if s.stop != nil {
		s.stop()
		<-s.done
	}
}

// WaitForSync waits until everything has been told that was there at the start.
func (s *SharedStore[K]) WaitForSync(ctx context.Context) error {
	select {
	case <-s.synced:
		return nil
	case <-s.done:
		return fmt.Errorf("the shared store of %q ended before it had listed everything", s.cfg.Prefix)
	case <-ctx.Done():
		return fmt.Errorf("waiting for the list of %q: %w", s.cfg.Prefix, ctx.Err())
	}
}

// SharedKeysMap returns all objects by name.
func (s *SharedStore[K]) SharedKeysMap() map[string]K {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make(map[string]K, len(s.shared))
	for name, e := range s.shared {
		out[name] = e.key
	}
	return out
}

// Get returns one object.
func (s *SharedStore[K]) Get(name string) (key K, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e, ok := s.shared[name]
	return e.key, ok
}

// UpdateLocalKeySync makes key a local key, in place of one of the same name, and returns when the
// store has it. After an error of the store it is a local key all the same: Run goes on trying to
// write it.
func (s *SharedStore[K]) UpdateLocalKeySync(ctx context.Context, key K) error {
	name, value, err := encode(key)
	if err != nil {
		return err
	}
	return s.set(ctx, name, true, value)
}

// encode returns the name of a key, which it checks, and its value.
func encode[K SharedKey](key K) (name string, value []byte, err error) {
	name = key.GetKeyName()
	if name == "" || strings.HasPrefix(name, "/") || JoinKey(name) != name {
		return "", nil, fmt.Errorf("shared store: %q is no name for a key", name)
	}
	if value, err = key.Marshal(); err != nil {
		return "", nil, fmt.Errorf("shared store: encoding %q: %w", name, err)
	}
	return name, value, nil
}

// DeleteLocalKey deletes a key from the store, and from the local keys if it is one. Keys of other
// writers may be deleted too; who keeps one writes it again. After an error of the store Run goes
// on trying.
func (s *SharedStore[K]) DeleteLocalKey(ctx context.Context, name string) error {
	if name == "" {
		return errors.New("shared store: the name of a key to delete is empty")
	}
	return s.set(ctx, name, false, nil)
}

// Apply is [SharedStore.UpdateLocalKeySync] for all keys of update and [SharedStore.DeleteLocalKey]
// for all names of remove, in one transaction: all are written or none. There may be at most
// [MaxTxnOps], and each name only once. After an error of the store Run goes on trying, with fewer
// at a time.
func (s *SharedStore[K]) Apply(ctx context.Context, update []K, remove []string) error {
	values := make(map[string][]byte, len(update)+len(remove))
	for _, key := range update {
		name, value, err := encode(key)
		if err != nil {
			return err
		}
		values[name] = value
	}
	for _, name := range remove {
		if name == "" {
			return errors.New("shared store: the name of a key to delete is empty")
		}
		values[name] = nil
	}
	if n := len(update) + len(remove); n > MaxTxnOps || n != len(values) {
		return fmt.Errorf("shared store: %d keys for %d names in one transaction, which takes %d at most, each once", n, len(values), MaxTxnOps)
	}
	if len(values) == 0 {
		return nil
	}
	removed := make(map[string]bool, len(remove))
	for _, name := range remove {
		removed[name] = true
	}
	entries := make([]*localEntry, 0, len(values))
	var gen uint64 // counts only if there is one
	s.mu.Lock()
	for _, name := range sortedKeys(values) {
		var e *localEntry
		e, gen = s.want(name, !removed[name], values[name])
		entries = append(entries, e)
	}
	s.mu.Unlock()
	err := s.write(ctx, entries, gen)
	if err != nil {
		signal(s.dirty)
	}
	return err
}

// Pending returns how many local keys are still to be written or deleted: those for which a call
// has failed, and those that were lost with their lease.
func (s *SharedStore[K]) Pending() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.local {
		if e.gen != e.done {
			n++
		}
	}
	return n
}

// want books what is wanted of a key. The caller holds mu.
func (s *SharedStore[K]) want(name string, wanted bool, value []byte) (e *localEntry, gen uint64) {
	e = s.local[name]
	if e == nil {
		e = &localEntry{name: name, busy: make(chan struct{}, 1)}
		s.local[name] = e
	}
	e.wanted, e.value = wanted, value
	e.gen++
	return e, e.gen
}

func (s *SharedStore[K]) set(ctx context.Context, name string, wanted bool, value []byte) error {
	s.mu.Lock()
	e, gen := s.want(name, wanted, value)
	s.mu.Unlock()
	err := s.write(ctx, []*localEntry{e}, gen)
	if err != nil {
		signal(s.dirty)
	}
	return err
}

// write brings keys to the store in one transaction. A single key that has reached generation
// atLeast meanwhile is left alone.
func (s *SharedStore[K]) write(ctx context.Context, entries []*localEntry, atLeast uint64) error {
	// Whoever waits for a second token has all smaller names' already, so there is no circle.
	for i, e := range entries {
		select {
		case e.busy <- struct{}{}:
		case <-ctx.Done():
			release(entries[:i])
			return fmt.Errorf("shared store: waiting to write %q: %w", e.name, ctx.Err())
		}
	}
	defer release(entries)
	lifetime := Leased
	if s.cfg.Permanent {
		lifetime = Permanent
	}
	var txn Txn
	var written []*localEntry
	var gens []uint64
	s.mu.Lock()
	for _, e := range entries {
		// Somebody else may have done the work since the entry was picked. One that was deleted
		// then is forgotten, and its key may be another entry's by now.
		if s.local[e.name] != e || e.done == e.gen || (len(entries) == 1 && e.done >= atLeast) {
			continue
		}
		if e.wanted {
			txn.Then = append(txn.Then, PutOp(s.prefix+e.name, e.value, lifetime))
		} else {
			txn.Then = append(txn.Then, DeleteOp(s.prefix+e.name))
		}
		written, gens = append(written, e), append(gens, e.gen)
	}
	s.mu.Unlock()
	if len(txn.Then) == 0 {
		return nil
	}
	r, err := s.cfg.Backend.Txn(ctx, txn)
	if err != nil {
		return fmt.Errorf("shared store: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, e := range written {
		e.done, e.revision = gens[i], r.Revision
		if !e.wanted && e.gen == e.done {
			delete(s.local, e.name)
			signal(s.reap)
		}
	}
	return nil
}

func release(entries []*localEntry) {
	for _, e := range entries {
		<-e.busy
	}
}

func signal(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default: // it is signalled already
	}
}

// lost is told of keys whose lease is gone.
func (s *SharedStore[K]) lost(keys []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, key := range keys {
		if e := s.local[strings.TrimPrefix(key, s.prefix)]; e != nil && e.wanted {
			e.gen++
		}
	}
	signal(s.dirty)
}

// follow turns the events of the watch into objects.
func (s *SharedStore[K]) follow(ctx context.Context) error {
	events := s.cfg.Backend.Watch(ctx, s.prefix)
	synced := false
	for {
		select {
		case <-s.reap:
			s.reapGone()
		case ev, ok := <-events:
			switch {
			case !ok && ctx.Err() != nil:
				return nil
			case !ok:
				return fmt.Errorf("shared store of %q: %w", s.cfg.Prefix, ErrClosed)
			case ev.Kind == EventListDone:
				if synced {
					signal(s.listed) // it may have gone back to an old copy, with what was written then
				} else {
					synced = true
					close(s.synced)
					if s.cfg.Observer.OnSync != nil {
						s.cfg.Observer.OnSync()
					}
				}
			case ev.Kind == EventDelete:
				s.deleted(strings.TrimPrefix(ev.Key, s.prefix), ev.Revision)
			default:
				s.updated(strings.TrimPrefix(ev.Key, s.prefix), ev.Value)
			}
		}
	}
}

func (s *SharedStore[K]) updated(name string, value []byte) {
	key, err := s.cfg.Unmarshal(name, value)
	if err == nil && key.GetKeyName() != name {
		err = fmt.Errorf("it says that it is %q", key.GetKeyName())
	}
	if err != nil {
		s.log.Warn("a key of the key-value store cannot be used", "key", s.prefix+name, "error", err)
		return
	}
	s.mu.Lock()
	s.shared[name] = sharedEntry[K]{key: key}
	s.mu.Unlock()
	if s.cfg.Observer.OnUpdate != nil {
		s.cfg.Observer.OnUpdate(key)
	}
}

func (s *SharedStore[K]) deleted(name string, revision int64) {
	s.mu.Lock()
	if e := s.local[name]; e != nil && e.wanted {
		// A deletion older than the last write was followed by that write. 0 is a key missing from
		// a listing.
		if revision == 0 || revision > e.revision {
			e.gen++
			signal(s.dirty)
		}
		if have, ok := s.shared[name]; ok {
			have.gone = true
			s.shared[name] = have
		}
		s.mu.Unlock()
		return
	}
	have, ok := s.shared[name]
	delete(s.shared, name)
	s.mu.Unlock()
	if ok && s.cfg.Observer.OnDelete != nil {
		s.cfg.Observer.OnDelete(have.key)
	}
}

// reapGone tells of keys that were deleted by others first and given up here before they were
// written again: no event tells of those.
func (s *SharedStore[K]) reapGone() {
	var gone []K
	s.mu.Lock()
	for name, have := range s.shared {
		if e := s.local[name]; have.gone && (e == nil || !e.wanted) {
			gone = append(gone, have.key)
			delete(s.shared, name)
		}
	}
	s.mu.Unlock()
	for _, key := range gone {
		if s.cfg.Observer.OnDelete != nil {
			s.cfg.Observer.OnDelete(key)
		}
	}
}

// maintain writes local keys that need it, and compares all of them from time to time, until ctx
// ends.
func (s *SharedStore[K]) maintain(ctx context.Context) {
	next := func() time.Duration { // up to a tenth more or less, so that a cluster's nodes do not write in step
		return s.cfg.SyncInterval*9/10 + rand.N(s.cfg.SyncInterval/5+1)
	}
	compare := time.NewTimer(next())
	defer compare.Stop()
	retry := time.NewTimer(time.Hour)
	retry.Stop()
	defer retry.Stop()
	pause, size := 100*time.Millisecond, MaxTxnOps
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.dirty:
		case <-retry.C:
		case <-s.listed:
			s.compare(ctx)
		case <-compare.C:
			s.compare(ctx)
			compare.Reset(next())
		}
		if err := s.flush(ctx, size); err != nil && ctx.Err() == nil {
			s.log.Warn("cannot write this node's keys to the key-value store yet", "error", err)
			retry.Reset(pause/2 + rand.N(pause/2+1))
			// Smaller batches, so that a key that the store refuses holds up no other in the end.
			pause, size = min(2*pause, 30*time.Second), max(size/4, 1)
		} else {
			pause, size = 100*time.Millisecond, MaxTxnOps
		}
	}
}

// batches calls f with the local entries that pick chooses, sorted by name, up to size at a time.
func (s *SharedStore[K]) batches(ctx context.Context, size int, pick func(*localEntry) bool, f func(context.Context, []*localEntry) error) error {
	s.mu.Lock()
	var list []*localEntry
	for _, name := range sortedKeys(s.local) {
		if e := s.local[name]; pick(e) {
			list = append(list, e)
		}
	}
	s.mu.Unlock()
	var errs []error
	for len(list) > 0 && ctx.Err() == nil {
		n := min(len(list), size)
		batch, cancel := context.WithTimeout(ctx, s.cfg.WriteTimeout)
		errs = append(errs, f(batch, list[:n]))
		cancel()
		list = list[n:]
	}
	return errors.Join(errs...)
}

// flush writes what has to be written.
func (s *SharedStore[K]) flush(ctx context.Context, size int) error {
	return s.batches(ctx, size, func(e *localEntry) bool { return e.gen != e.done }, func(ctx context.Context, batch []*localEntry) error {
		s.mu.Lock()
		gen := batch[0].gen
		s.mu.Unlock()
		return s.write(ctx, batch, gen)
	})
}

// compare marks the local keys that the store does not have as they should be.
func (s *SharedStore[K]) compare(ctx context.Context) {
	wanted := func(e *localEntry) bool { return e.wanted && e.gen == e.done }
	err := s.batches(ctx, MaxTxnOps, wanted, func(ctx context.Context, batch []*localEntry) error {
		var txn Txn
		for _, e := range batch {
			txn.Then = append(txn.Then, GetOp(s.prefix+e.name))
		}
		r, err := s.cfg.Backend.Txn(ctx, txn)
		if err != nil {
			return err
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		for i, e := range batch {
			have := r.Results[i]
			ok := len(have) > 0 && string(have[0].Value) == string(e.value) && (have[0].Lease != "") != s.cfg.Permanent
			if !ok && e.wanted && e.gen == e.done {
				e.gen++
			}
		}
		return nil
	})
	if err != nil && ctx.Err() == nil {
		s.log.Warn("cannot compare this node's keys with the key-value store", "error", err)
	}
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
