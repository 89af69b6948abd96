package announce

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hawser-net/hawser/internal/table"
	"github.com/hawser-net/hawser/internal/validate"
	"github.com/hawser-net/hawser/pkg/kvstore"
)

// Timing defines how keys are written.
type Timing struct {
	// Resync is how often it is checked that the store has what was announced, 5 minutes by
	// default.
	Resync time.Duration
	// WriteTimeout bounds one attempt to write, 30 seconds by default; MinBackoff and MaxBackoff
	// the pause after one that failed, 200 ms to 30 seconds by default.
	WriteTimeout, MinBackoff, MaxBackoff time.Duration
}

// Defaults sets what is not set.
func (t *Timing) Defaults() {
	set := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	set(&t.Resync, 5*time.Minute)
	set(&t.WriteTimeout, 30*time.Second)
	set(&t.MinBackoff, 200*time.Millisecond)
	set(&t.MaxBackoff, 30*time.Second)
}

// Validate reports all invalid settings.
func (t *Timing) Validate() error {
	var errs validate.Errors
	errs.If(t.Resync < 0 || t.WriteTimeout < 0 || t.MinBackoff < 0, "a duration is negative")
	errs.If(t.MaxBackoff < t.MinBackoff, "backoff from %v to %v is no range", t.MinBackoff, t.MaxBackoff)
	return errs.Err()
}

// maxBytes bounds the values of one transaction, so that a change waits behind a large batch for a
// moment only. etcd refuses requests above 1.5 MB.
const maxBytes = 256 << 10

// KeysConfig is what [Keys] is made from. Prefix, What and Owned must be given.
type KeysConfig struct {
	Timing
	// Prefix is above all keys, without a slash at the end.
	Prefix string
	// What is under it, for messages: "addresses".
	What string
	// Owned reports whether a key with a value is this writer's to remove.
	Owned func(name string, value []byte) bool
	// Foreign, if not nil, reports whether a key with a value has another writer that keeps it. It
	// is neither overwritten nor removed, even if it is announced here.
	Foreign func(name string, value []byte) bool
	// Permanent keys outlive their writer. One that the store has with the announced value is not
	// written again. Other keys are leased, and each announcement is written, so that its key is on
	// this writer's lease.
	Permanent bool
	// Insist writes again at once what another writer has changed, not only at the next comparison.
	Insist bool
	// Batch bounds the keys of one transaction, [kvstore.MaxTxnOps] by default. A store that adds
	// conditions of its own, or Consul, takes fewer.
	Batch int
	// Put and Delete are called for every key that appears, changes or goes, also those of this
	// writer, and Listed after all that were there at the start. They are called one at a time; nil
	// functions are not called.
	Put    func(ctx context.Context, name string, value []byte)
	Delete func(ctx context.Context, name string)
	Listed func(ctx context.Context)
	// Observed is called for a key that is or was this writer's, or should be, after an event of
	// the store about it. It must neither block nor call back.
	Observed func(name string)
	// Log receives what is worth knowing; nil discards it.
	Log *slog.Logger
}

// Keys keeps one writer's keys under a prefix of the store, and follows all that are there.
//
// A key that is lost, with or without its lease, is written again at once. One that another writer
// changed is written again within the resync interval, or when the store is relisted. A key is only
// removed while it is this writer's. All methods are safe for concurrent use.
type Keys struct {
	cfg    KeysConfig
	store  kvstore.Backend
	wanted *table.Table[string, string] // values by name of the keys that are announced
	writer *table.Reconciler[string, string]
	synced chan struct{}

	mu sync.Mutex
	// seen has the values of this writer's keys, of those that are wanted and of foreign ones, as
	// the watch reported them.
	seen map[string]string
	// pruning means that a Prune was asked for: every listing that is complete is followed by
	// one.
	pruning bool
}

// NewKeys returns Keys in a store. The caller must call Run.
func NewKeys(cfg KeysConfig, store kvstore.Backend) (*Keys, error) {
	cfg.Timing.Defaults()
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	cfg.Batch = cmp.Or(cfg.Batch, kvstore.MaxTxnOps)
	if cfg.Foreign == nil {
		cfg.Foreign = func(string, []byte) bool { return false }
	}
	if cfg.Prefix == "" || cfg.What == "" || cfg.Owned == nil {
		return nil, errors.New("announce: keys need a prefix, a name and an owner")
	}
	if err := cfg.Timing.Validate(); err != nil {
		return nil, fmt.Errorf("announce %s: %w", cfg.What, err)
	}
	k := &Keys{
		cfg: cfg, store: store,
		wanted: table.New[string](func(a, b string) bool { return a == b }),
		synced: make(chan struct{}),
		seen:   make(map[string]string),
	}
	var err error
	k.writer, err = table.NewReconciler(table.ReconcilerConfig{
		Name: "key-value store of " + cfg.What, Log: cfg.Log, BatchSize: cfg.Batch,
		MinBackoff: cfg.MinBackoff, MaxBackoff: cfg.MaxBackoff,
	}, k.wanted, keysTarget{k})
	return k, err
}

// Announce has a key in the store until it is withdrawn, and returns a revision for
// [Keys.WaitWritten]. Announcing a name again replaces what was there before.
func (k *Keys) Announce(name string, value []byte) (revision uint64) {
	return k.wanted.Upsert(name, string(value))
}

// Withdraw ends the announcement of a name. One that is not announced is no error.
func (k *Keys) Withdraw(name string) (revision uint64) {
	revision, _ = k.wanted.Delete(name)
	return revision
}

// WaitWritten waits until an Announce or Withdraw has reached the store.
func (k *Keys) WaitWritten(ctx context.Context, name string, revision uint64) error {
	return k.writer.WaitDone(ctx, name, revision)
}

// WaitTried waits until every announcement and withdrawal up to a revision was tried once.
func (k *Keys) WaitTried(ctx context.Context, revision uint64) error {
	return k.writer.WaitTried(ctx, revision)
}

// WaitComplete waits until the store has every key that is announced, and none of this writer's
// that is not. It includes a [Keys.Prune], which does not wait for keys that the store refuses.
func (k *Keys) WaitComplete(ctx context.Context) error {
	if err := k.WaitSynced(ctx); err != nil {
		return err
	}
	upTo := k.wanted.Revision()
	if err := k.writer.WaitTried(ctx, upTo); err != nil {
		return err
	}
	k.Prune()
	if err := k.writer.WaitPruned(ctx); err != nil {
		return err
	}
	return k.writer.WaitAll(ctx, upTo)
}

// Seen returns the last value that the watch reported of a key that is this writer's, or should be:
// every other watcher was sent it too.
func (k *Keys) Seen(name string) (value []byte, ok bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	v, ok := k.seen[name]
	return []byte(v), ok
}

// WaitSynced waits until all keys were reported that the store held when Run began.
func (k *Keys) WaitSynced(ctx context.Context) error {
	select {
	case <-k.synced:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("waiting for the list of %s: %w", k.cfg.What, context.Cause(ctx))
	}
}

// Prune removes the keys of this writer that are not announced. Call it once everything current has
// been announced; it takes effect when the store has been listed. From then on each relist prunes
// again, because a store restored from a backup contains keys that were withdrawn since.
func (k *Keys) Prune() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.pruning = true
	select {
	case <-k.synced:
		k.writer.Prune()
	default:
	}
}

// Status counts the announcements by how far they have come.
func (k *Keys) Status() table.Summary { return k.writer.Summary() }

// Run watches and writes until ctx ends, and returns its cause. It is called once. The keys are
// left in the store: leased ones go with the lease.
func (k *Keys) Run(ctx context.Context) error {
	stop := k.store.ObserveLostLeases(k.cfg.Prefix+"/", func(keys []string) {
		for _, key := range keys {
			k.wanted.Touch(strings.TrimPrefix(key, k.cfg.Prefix+"/"))
		}
	})
	defer stop()
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	wg.Go(func() { _ = k.writer.Run(ctx) }) // ends with ctx only
	err := k.watch(ctx)
	cancel(err)
	return err
}

func (k *Keys) watch(ctx context.Context) error {
	resync := time.NewTicker(k.cfg.Resync)
	defer resync.Stop()
	events := k.store.Watch(ctx, k.cfg.Prefix+"/")
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-resync.C:
			k.resync()
		case e, ok := <-events:
			switch {
			case ok:
				k.event(ctx, e)
			case ctx.Err() != nil:
				return context.Cause(ctx)
			default:
				return fmt.Errorf("watching %s: %w", k.cfg.What, kvstore.ErrClosed)
			}
		}
	}
}

// resync has those announcements written again that the store has otherwise.
func (k *Keys) resync() {
	rows, _ := k.wanted.Snapshot()
	for _, r := range rows {
		k.mu.Lock()
		same := k.seen[r.Key] == r.Value
		k.mu.Unlock()
		if !same {
			k.wanted.Touch(r.Key)
		}
	}
}

func (k *Keys) event(ctx context.Context, e kvstore.Event) {
	name := strings.TrimPrefix(e.Key, k.cfg.Prefix+"/")
	switch e.Kind {
	case kvstore.EventListDone:
		k.listed(ctx)
	case kvstore.EventDelete:
		k.mu.Lock()
		_, had := k.seen[name]
		delete(k.seen, name)
		k.mu.Unlock()
		if k.cfg.Delete != nil {
			k.cfg.Delete(ctx, name)
		}
		k.wanted.Touch(name) // if it is announced it must not be gone
		if had && k.cfg.Observed != nil {
			k.cfg.Observed(name)
		}
	default:
		k.saw(name, e.Value)
		if k.cfg.Put != nil {
			k.cfg.Put(ctx, name, e.Value)
		}
	}
}

// listed is called when the store has notified of all keys.
func (k *Keys) listed(ctx context.Context) {
	// A store restored from a backup is relisted, and contains what was announced at that time.
	k.resync()
	if k.cfg.Listed != nil {
		k.cfg.Listed(ctx)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	select {
	case <-k.synced:
	default:
		close(k.synced)
	}
	if k.pruning {
		k.writer.Prune()
	}
}

// saw notes what the store has under a name if it is this writer's, should be, or must be left
// alone.
func (k *Keys) saw(name string, value []byte) {
	if name == "" || kvstore.JoinKey(name) != name {
		return // the store would refuse to remove it, and all that is removed with it
	}
	own, foreign := k.cfg.Owned(name, value), k.cfg.Foreign(name, value)
	want, wanted := k.wanted.Get(name)
	k.mu.Lock()
	if own || wanted || foreign {
		k.seen[name] = string(value)
	} else {
		delete(k.seen, name)
	}
	k.mu.Unlock()
	if wanted && want != string(value) {
		if !own && !foreign {
			k.cfg.Log.Warn("another node announces an address of this node", "of", k.cfg.What, "key", name)
		}
		if k.cfg.Insist {
			k.wanted.Touch(name)
		}
	}
	if (own || wanted) && k.cfg.Observed != nil {
		k.cfg.Observed(name)
	}
}

// keep reports whether an announcement must not be written: its key is foreign, or permanent and as
// it should be.
func (k *Keys) keep(name, value string) bool {
	k.mu.Lock()
	seen, ok := k.seen[name]
	k.mu.Unlock()
	return ok && (k.cfg.Permanent && seen == value || k.cfg.Foreign(name, []byte(seen)))
}

// removable reports whether a key with a value may be removed.
func (k *Keys) removable(name string, value []byte) bool {
	return k.cfg.Owned(name, value) && !k.cfg.Foreign(name, value)
}

// keysTarget writes announcements to the store.
type keysTarget struct{ k *Keys }

func (t keysTarget) key(name string) string { return t.k.cfg.Prefix + "/" + name }

// inParts calls f for a list, and for its halves as long as a part is more than this store can do
// at once. The indexes in f's [table.RowErrors] are those of its part, in the result those of the
// whole.
func inParts[T any](list []T, f func([]T) error) error {
	err := f(list)
	if len(list) < 2 || !errors.Is(err, kvstore.ErrTxnTooLarge) {
		return err
	}
	failed := table.RowErrors{}
	half := len(list) / 2
	for n, part := range [][]T{list[:half], list[half:]} {
		err := inParts(part, f)
		var rows table.RowErrors
		whole := err != nil && !errors.As(err, &rows)
		for i := range part {
			if whole {
				failed[n*half+i] = err
			} else if rows[i] != nil {
				failed[n*half+i] = rows[i]
			}
		}
	}
	if len(failed) == 0 {
		return nil
	}
	return failed
}

// Update implements [table.Target]: one transaction for the batch.
func (t keysTarget) Update(ctx context.Context, rows []table.Row[string, string]) error {
	ctx, cancel := context.WithTimeout(ctx, t.k.cfg.WriteTimeout)
	defer cancel()
	return inParts(rows, func(rows []table.Row[string, string]) error { return t.update(ctx, rows) })
}

func (t keysTarget) update(ctx context.Context, rows []table.Row[string, string]) error {
	lifetime := kvstore.Leased
	if t.k.cfg.Permanent {
		lifetime = kvstore.Permanent
	}
	ops, bytes := make([]kvstore.Op, 0, len(rows)), 0
	for _, r := range rows {
		if !t.k.keep(r.Key, r.Value) {
			ops = append(ops, kvstore.PutOp(t.key(r.Key), []byte(r.Value), lifetime))
			bytes += len(r.Value)
		}
	}
	if len(ops) == 0 {
		return nil
	}
	if len(ops) > 1 && bytes > maxBytes {
		return kvstore.ErrTxnTooLarge
	}
	_, err := t.k.store.Txn(ctx, kvstore.Txn{Then: ops})
	return err
}

// Delete implements [table.Target]: one transaction for the batch if the store has what was written
// last. Else that transaction returns the store's values, and a second one deletes those of this
// writer: delayed withdrawals are often of keys that were never written.
func (t keysTarget) Delete(ctx context.Context, rows []table.Row[string, string]) error {
	ctx, cancel := context.WithTimeout(ctx, t.k.cfg.WriteTimeout)
	defer cancel()
	return inParts(rows, func(rows []table.Row[string, string]) error { return t.delete(ctx, rows) })
}

func (t keysTarget) delete(ctx context.Context, rows []table.Row[string, string]) error {
	var txn kvstore.Txn
	for _, r := range rows {
		key := t.key(r.Key)
		txn.If = append(txn.If, kvstore.ValueIs(key, []byte(r.Value)))
		txn.Then = append(txn.Then, kvstore.DeleteOp(key))
		txn.Else = append(txn.Else, kvstore.GetOp(key))
	}
	res, err := t.k.store.Txn(ctx, txn)
	if err != nil || res.Succeeded {
		return err
	}
	return t.removeRead(ctx, res.Results)
}

// remove deletes those of the keys that are this writer's, at most [KeysConfig.Batch]. It returns
// [table.RowErrors] if some changed meanwhile.
func (t keysTarget) remove(ctx context.Context, names []string) error {
	var look kvstore.Txn
	for _, n := range names {
		look.Then = append(look.Then, kvstore.GetOp(t.key(n)))
	}
	res, err := t.k.store.Txn(ctx, look)
	if err != nil {
		return err
	}
	return t.removeRead(ctx, res.Results)
}

// removeRead deletes what was read if it is this writer's, and still the same. read has a key or
// none for each row.
func (t keysTarget) removeRead(ctx context.Context, read [][]kvstore.KeyValue) error {
	var txn kvstore.Txn
	var index []int
	for i, kvs := range read {
		if len(kvs) == 0 {
			continue
		}
		kv := kvs[0]
		if !t.k.removable(strings.TrimPrefix(kv.Key, t.k.cfg.Prefix+"/"), kv.Value) {
			continue // not ours, or not any more
		}
		txn.If = append(txn.If, kvstore.ModRevisionIs(kv.Key, kv.ModRevision))
		txn.Then = append(txn.Then, kvstore.DeleteOp(kv.Key))
		index = append(index, i)
	}
	if len(index) == 0 {
		return nil
	}
	res, err := t.k.store.Txn(ctx, txn)
	if err != nil || res.Succeeded {
		return err
	}
	failed := table.RowErrors{}
	for n, i := range index {
		failed[i] = fmt.Errorf("key %s, or another one removed with it, changed meanwhile", txn.Then[n].Key)
	}
	return failed
}

// Prune implements [table.Target]. It runs after the first listing.
func (t keysTarget) Prune(ctx context.Context, desired iter.Seq2[string, string]) error {
	wanted := make(map[string]bool)
	for name := range desired {
		wanted[name] = true
	}
	t.k.mu.Lock()
	var stale []string
	for name, value := range t.k.seen {
		if !wanted[name] && t.k.removable(name, []byte(value)) {
			stale = append(stale, name)
		}
	}
	t.k.mu.Unlock()
	for batch := range slices.Chunk(stale, t.k.cfg.Batch) {
		rctx, cancel := context.WithTimeout(ctx, t.k.cfg.WriteTimeout)
		err := inParts(batch, func(part []string) error { return t.remove(rctx, part) })
		cancel()
		if err != nil {
			return fmt.Errorf("removing %s that are not announced: %w", t.k.cfg.What, err) // all is tried again
		}
		t.k.cfg.Log.Info("removed stale keys of this node", "of", t.k.cfg.What, "keys", len(batch), "first", batch[0])
	}
	return nil
}
