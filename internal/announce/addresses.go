package ipcache

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/storekeys"
	"github.com/hawser-net/hawser/internal/table"
	"github.com/hawser-net/hawser/pkg/kvstore"
)

// SharedConfig is what [Shared] is made from.
type SharedConfig struct {
	// Hosts are the addresses that this node's announcements have as their host: pairs with one
	// of them are its own.
	Hosts []netip.Addr
	// Prefix is where addresses are found in the store, that of the default address space by
	// default.
	Prefix string
	// Resync is how often it is checked that the store has what was announced, 5 minutes by
	// default.
	Resync time.Duration
	// WriteTimeout bounds one attempt to write, 30 seconds by default; MinBackoff and MaxBackoff
	// the pause after one that failed, 200 ms to 30 seconds by default.
	WriteTimeout time.Duration
	MinBackoff   time.Duration
	MaxBackoff   time.Duration
	// Echoed, if not nil, is told of an address that is or was announced here when the store has
	// said something of it; see Told. It must neither block nor call back.
	Echoed func(netip.Prefix)
	// Log receives what is worth knowing; nil discards it.
	Log *slog.Logger
}

// Defaults sets what is not set.
func (c *SharedConfig) Defaults() {
	set := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	set(&c.Resync, 5*time.Minute)
	set(&c.WriteTimeout, 30*time.Second)
	set(&c.MinBackoff, 200*time.Millisecond)
	set(&c.MaxBackoff, 30*time.Second)
	if c.Prefix == "" {
		c.Prefix = kvstore.JoinKey(storekeys.IPsPrefix, storekeys.DefaultAddressSpace)
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
}

// Validate reports all settings that make no sense.
func (c *SharedConfig) Validate() error {
	var errs []error
	if len(c.Hosts) == 0 {
		errs = append(errs, errors.New("the node has no address"))
	}
	for _, h := range c.Hosts {
		if !h.IsValid() || h.IsUnspecified() || h.Is4In6() {
			errs = append(errs, fmt.Errorf("%v is no address of the node", h))
		}
	}
	if c.Resync < 0 || c.WriteTimeout < 0 {
		errs = append(errs, errors.New("a duration is negative"))
	}
	return errors.Join(errs...)
}

// Shared shares addresses with the other nodes through the key-value store: it writes those that
// are announced, each under a key of its own on this node's lease, and claims in the cache those
// that other nodes announce.
//
// What was announced is written again when its key or lease is lost, and when another writer
// changed it, then within the resync interval, or when the store is listed anew. A key is only
// removed while it is this node's: an address that moved to another node stays. All methods are
// safe for concurrent use.
type Shared struct {
	cfg    SharedConfig
	store  kvstore.Backend
	cache  *Cache
	wanted *table.Table[netip.Prefix, string] // values of the keys that are announced
	writer *table.Reconciler[netip.Prefix, string]
	synced chan struct{}

	mu sync.Mutex
	// seen has the values of this node's keys, and of those that are wanted, as the watch told.
	seen map[netip.Prefix]string
	// pruning says that a Prune was asked for: every listing that is complete is followed by one.
	pruning bool
}

// NewShared returns a Shared that fills a cache. The caller must call Run.
func NewShared(cfg SharedConfig, store kvstore.Backend, cache *Cache) (*Shared, error) {
	cfg.Defaults()
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("ipcache: %w", err)
	}
	s := &Shared{
		cfg: cfg, store: store, cache: cache,
		wanted: table.New[netip.Prefix](func(a, b string) bool { return a == b }),
		synced: make(chan struct{}),
		seen:   make(map[netip.Prefix]string),
	}
	var err error
	s.writer, err = table.NewReconciler(table.ReconcilerConfig{
		Name: "key-value store of addresses", Log: cfg.Log, BatchSize: kvstore.MaxTxnOps,
		MinBackoff: cfg.MinBackoff, MaxBackoff: cfg.MaxBackoff,
	}, s.wanted, sharedTarget{s})
	return s, err
}

// Announce tells the other nodes of an address until it is withdrawn, and returns a revision for
// [Shared.WaitWritten]. Announcing a prefix again replaces what was told before. The host must be
// one of this node's.
func (s *Shared) Announce(p Pair) (revision uint64, err error) {
	err = p.Validate()
	if err == nil && !slices.Contains(s.cfg.Hosts, p.Host) {
		err = fmt.Errorf("host %v is not this node", p.Host)
	}
	if err != nil {
		return 0, fmt.Errorf("cannot announce %v: %w", p.Prefix, err)
	}
	value, err := json.Marshal(p)
	if err != nil {
		return 0, fmt.Errorf("cannot announce %v: %w", p.Prefix, err)
	}
	return s.wanted.Upsert(p.Prefix, string(value)), nil
}

// Withdraw ends the announcement of a prefix. One that is not announced is no error.
func (s *Shared) Withdraw(p netip.Prefix) (revision uint64) {
	revision, _ = s.wanted.Delete(p)
	return revision
}

// WaitWritten waits until an Announce or Withdraw has reached the store.
func (s *Shared) WaitWritten(ctx context.Context, p netip.Prefix, revision uint64) error {
	return s.writer.WaitDone(ctx, p, revision)
}

// Told returns under which identity the other nodes are told of an address that this one announces:
// the store has it so, and has said so to all who listen. ok is false if it has not, or has it as
// another node's.
func (s *Shared) Told(p netip.Prefix) (id identity.ID, ok bool) {
	s.mu.Lock()
	value, seen := s.seen[p]
	s.mu.Unlock()
	if !seen {
		return 0, false
	}
	pair, err := ParsePair(Pair{Prefix: p}.Key(), []byte(value))
	if err != nil || !slices.Contains(s.cfg.Hosts, pair.Host) {
		return 0, false
	}
	return pair.Identity, true
}

// WaitSynced waits until the cache holds the addresses that the store held when Run began.
func (s *Shared) WaitSynced(ctx context.Context) error {
	select {
	case <-s.synced:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("waiting for the list of addresses: %w", context.Cause(ctx))
	}
}

// Prune removes from the store the addresses of this node that are not announced: those of
// endpoints that went while no agent ran. It is to be called when all endpoints that are left were
// announced, and takes effect as soon as the store's addresses are known. From then on it does so
// whenever they are listed anew: a store that went back to an old copy has addresses again that
// were withdrawn since.
func (s *Shared) Prune() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pruning = true
	select {
	case <-s.synced:
		s.writer.Prune()
	default:
	}
}

// Status counts the announcements by how far they have come.
func (s *Shared) Status() table.Summary { return s.writer.Summary() }

// Run watches and writes until ctx ends, and returns its cause. It is called once. The keys are
// left in the store: they go with the lease.
func (s *Shared) Run(ctx context.Context) error {
	stop := s.store.ObserveLostLeases(s.cfg.Prefix+"/", func(keys []string) {
		for _, k := range keys {
			if p, err := ParseKey(strings.TrimPrefix(k, s.cfg.Prefix+"/")); err == nil {
				s.wanted.Touch(p)
			}
		}
	})
	defer stop()
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	wg.Go(func() { _ = s.writer.Run(ctx) }) // ends with ctx only
	err := s.watch(ctx)
	cancel(err)
	return err
}

func (s *Shared) watch(ctx context.Context) error {
	resync := time.NewTicker(s.cfg.Resync)
	defer resync.Stop()
	events := s.store.Watch(ctx, s.cfg.Prefix+"/")
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-resync.C:
			s.resync()
		case e, ok := <-events:
			switch {
			case ok:
				s.event(e)
			case ctx.Err() != nil:
				return context.Cause(ctx)
			default:
				return fmt.Errorf("watching addresses: %w", kvstore.ErrClosed)
			}
		}
	}
}

// resync has those announcements written again that the store has otherwise.
func (s *Shared) resync() {
	rows, _ := s.wanted.Snapshot()
	for _, r := range rows {
		s.mu.Lock()
		same := s.seen[r.Key] == r.Value
		s.mu.Unlock()
		if !same {
			s.wanted.Touch(r.Key)
		}
	}
}

func (s *Shared) event(e kvstore.Event) {
	if e.Kind == kvstore.EventListDone {
		// A store that went back to an old copy is listed anew, and has what was announced then.
		s.resync()
		s.mu.Lock()
		defer s.mu.Unlock()
		select {
		case <-s.synced:
		default:
			close(s.synced)
		}
		if s.pruning {
			s.writer.Prune()
		}
		return
	}
	key := strings.TrimPrefix(e.Key, s.cfg.Prefix+"/")
	if e.Kind == kvstore.EventDelete {
		if p, err := ParseKey(key); err == nil {
			s.mu.Lock()
			_, had := s.seen[p]
			delete(s.seen, p)
			s.mu.Unlock()
			s.cache.Delete(p, KVStore, "")
			s.wanted.Touch(p) // if it is announced it must not be gone
			s.echo(p, had)
		}
		return
	}
	pair, err := ParsePair(key, e.Value)
	if err != nil {
		// Whatever the key said before may be wrong by now, but nothing better is known.
		s.cfg.Log.Warn("ignored an address that makes no sense; what was known of it stays", "key", e.Key, "error", err)
		if p, err := ParseKey(key); err == nil {
			s.saw(p, e.Value, false)
		}
		return
	}
	own := slices.Contains(s.cfg.Hosts, pair.Host)
	s.saw(pair.Prefix, e.Value, own)
	if own {
		// This node knows better; and the address may have been another node's until now.
		s.cache.Delete(pair.Prefix, KVStore, "")
		return
	}
	if _, err := s.cache.Upsert(pair.Prefix, pair.claim()); err != nil {
		s.cfg.Log.Warn("ignored an address that makes no sense", "key", e.Key, "error", err)
	}
}

// echo tells of an address that was said something of.
func (s *Shared) echo(p netip.Prefix, ours bool) {
	if ours && s.cfg.Echoed != nil {
		s.cfg.Echoed(p)
	}
}

// saw notes what the store has under a key if it is this node's or should be.
func (s *Shared) saw(p netip.Prefix, value []byte, own bool) {
	want, wanted := s.wanted.Get(p)
	defer s.echo(p, own || wanted)
	s.mu.Lock()
	defer s.mu.Unlock()
	if !own && !wanted {
		delete(s.seen, p)
		return
	}
	s.seen[p] = string(value)
	if wanted && !own && want != string(value) {
		s.cfg.Log.Warn("another node announces an address of this one", "prefix", p)
	}
}

// sharedTarget writes announcements to the store.
type sharedTarget struct{ s *Shared }

func (t sharedTarget) key(p netip.Prefix) string {
	return t.s.cfg.Prefix + "/" + Pair{Prefix: p}.Key()
}

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
func (t sharedTarget) Update(ctx context.Context, rows []table.Row[netip.Prefix, string]) error {
	ctx, cancel := context.WithTimeout(ctx, t.s.cfg.WriteTimeout)
	defer cancel()
	return inParts(rows, func(rows []table.Row[netip.Prefix, string]) error { return t.update(ctx, rows) })
}

func (t sharedTarget) update(ctx context.Context, rows []table.Row[netip.Prefix, string]) error {
	ops := make([]kvstore.Op, len(rows))
	for i, r := range rows {
		ops[i] = kvstore.PutOp(t.key(r.Key), []byte(r.Value), kvstore.Leased)
	}
	_, err := t.s.store.Txn(ctx, kvstore.Txn{Then: ops})
	return err
}

// Delete implements [table.Target]: one transaction for the batch if the store has what was written
// last. Else that transaction says what the store has, and a second one deletes what is this
// node's: withdrawals that have waited are often of addresses which were never written.
func (t sharedTarget) Delete(ctx context.Context, rows []table.Row[netip.Prefix, string]) error {
	ctx, cancel := context.WithTimeout(ctx, t.s.cfg.WriteTimeout)
	defer cancel()
	return inParts(rows, func(rows []table.Row[netip.Prefix, string]) error { return t.delete(ctx, rows) })
}

func (t sharedTarget) delete(ctx context.Context, rows []table.Row[netip.Prefix, string]) error {
	var txn kvstore.Txn
	for _, r := range rows {
		key := t.key(r.Key)
		txn.If = append(txn.If, kvstore.ValueIs(key, []byte(r.Value)))
		txn.Then = append(txn.Then, kvstore.DeleteOp(key))
		txn.Else = append(txn.Else, kvstore.GetOp(key))
	}
	res, err := t.s.store.Txn(ctx, txn)
	if err != nil || res.Succeeded {
		return err
	}
	return t.removeRead(ctx, res.Results)
}

// remove deletes those of the keys that are this node's, at most [kvstore.MaxTxnOps]. It returns
// [table.RowErrors] if some changed meanwhile.
func (t sharedTarget) remove(ctx context.Context, prefixes []netip.Prefix) error {
	var look kvstore.Txn
	for _, p := range prefixes {
		look.Then = append(look.Then, kvstore.GetOp(t.key(p)))
	}
	res, err := t.s.store.Txn(ctx, look)
	if err != nil {
		return err
	}
	return t.removeRead(ctx, res.Results)
}

// removeRead deletes what was read if it is this node's, and still the same. read has a key or none
// for each row.
func (t sharedTarget) removeRead(ctx context.Context, read [][]kvstore.KeyValue) error {
	var txn kvstore.Txn
	var index []int
	for i, kvs := range read {
		if len(kvs) == 0 {
			continue
		}
		kv := kvs[0]
		pair, err := ParsePair(strings.TrimPrefix(kv.Key, t.s.cfg.Prefix+"/"), kv.Value)
		if err != nil || !slices.Contains(t.s.cfg.Hosts, pair.Host) {
			continue // not ours, or no more
		}
		txn.If = append(txn.If, kvstore.ModRevisionIs(kv.Key, kv.ModRevision))
		txn.Then = append(txn.Then, kvstore.DeleteOp(kv.Key))
		index = append(index, i)
	}
	if len(index) == 0 {
		return nil
	}
	res, err := t.s.store.Txn(ctx, txn)
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
func (t sharedTarget) Prune(ctx context.Context, desired iter.Seq2[netip.Prefix, string]) error {
	t.s.mu.Lock()
	var stale []netip.Prefix
	for p := range t.s.seen {
		stale = append(stale, p)
	}
	t.s.mu.Unlock()
	wanted := make(map[netip.Prefix]bool)
	for p := range desired {
		wanted[p] = true
	}
	stale = slices.DeleteFunc(stale, func(p netip.Prefix) bool { return wanted[p] })
	for batch := range slices.Chunk(stale, kvstore.MaxTxnOps) {
		rctx, cancel := context.WithTimeout(ctx, t.s.cfg.WriteTimeout)
		err := inParts(batch, func(part []netip.Prefix) error { return t.remove(rctx, part) })
		cancel()
		if err != nil {
			return fmt.Errorf("removing addresses that this node does not have: %w", err) // all is tried again
		}
		t.s.cfg.Log.Info("removed addresses that this node does not have", "addresses", len(batch), "first", batch[0])
	}
	return nil
}
