package allocator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hawser-net/hawser/pkg/kvstore"
	"github.com/hawser-net/hawser/pkg/retry"
)

// maxSteps bounds the transactions spent on one call while others keep changing the same keys.
// Waiting for a lock does not count.
const maxSteps = 32

// ErrContended means that others changed the same keys too often for a call to come through. It may
// be repeated.
var ErrContended = errors.New("too many others are changing the same keys")

// KVStoreConfig configures where an allocator lives in a key-value store.
type KVStoreConfig struct {
	// Store is the connection. The backend does not close it.
	Store kvstore.Backend
	// BasePath is above all keys of the allocator, for example "cluster/ids".
	BasePath string
	// Suffix names this node in its references: its address. Two nodes must not have the same. May
	// be empty for garbage collection and reading.
	Suffix string
	// KeyType is any key; it is used to read others.
	KeyType AllocatorKey
	// Quarantine is how long an ID that RunGC deleted is not given to another key, if any other is
	// free: a record in the store shows that to all writers, and is deleted by RunGC. 0 leaves no
	// records; existing ones are still honoured. It is counted from when this process first saw the
	// record: another collector begins anew.
	Quarantine time.Duration
	// ConfirmTimeout is how long RunGC waits, from its deletion, for nodes to confirm that they go
	// by such an ID no more; 0 for not at all. It counts like Quarantine. A node whose lease has
	// ended is not waited for.
	ConfirmTimeout time.Duration
	// Logger is optional.
	Logger *slog.Logger
}

// KVStoreBackend is the [Backend] on a key-value store.
type KVStoreBackend struct {
	store      kvstore.Backend
	paths      paths
	typ        AllocatorKey
	quarantine time.Duration
	lost       time.Duration
	log        *slog.Logger

	seen seenQuarantine

	mu sync.Mutex
	// written has, by key, the revision at which this node's reference was written last, as far as
	// is known.
	written map[string]int64
}

var _ Backend = (*KVStoreBackend)(nil)

// NewKVStoreBackend checks the settings. It does no I/O.
func NewKVStoreBackend(cfg KVStoreConfig) (*KVStoreBackend, error) {
	var errs []error
	if cfg.Store == nil {
		errs = append(errs, errors.New("no key-value store given"))
	}
	base := strings.TrimSuffix(cfg.BasePath, "/")
	if base == "" {
		errs = append(errs, errors.New("no base path given"))
	}
	if strings.Contains(cfg.Suffix, "/") {
		errs = append(errs, fmt.Errorf("node suffix %q holds a slash", cfg.Suffix))
	}
	if cfg.Quarantine < 0 || cfg.ConfirmTimeout < 0 {
		errs = append(errs, fmt.Errorf("a quarantine of %s and a timeout for confirmations of %s: neither may be negative", cfg.Quarantine, cfg.ConfirmTimeout))
	}
	if cfg.KeyType == nil {
		errs = append(errs, errors.New("no key type given"))
	}
	if len(errs) > 0 {
		return nil, fmt.Errorf("allocator backend: %w", errors.Join(errs...))
	}
	log := cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	return &KVStoreBackend{store: cfg.Store, paths: paths{base, cfg.Suffix, cfg.Store.Layout(), cfg.KeyType}, typ: cfg.KeyType, quarantine: cfg.Quarantine, lost: cfg.ConfirmTimeout, log: log, written: make(map[string]int64)}, nil
}

func canonical(key AllocatorKey) (string, error) {
	if s := key.GetKey(); s != "" {
		return s, nil
	}
	return "", errors.New("a key must not be empty")
}

// Acquire implements [Backend].
func (b *KVStoreBackend) Acquire(ctx context.Context, key AllocatorKey, ids IDSource) (Acquired, error) {
	text, err := canonical(key)
	if err != nil {
		return Acquired{}, err
	}
	p := &plan{paths: b.paths, key: text}
	s, r, err := b.execute(ctx, p, ids)
	if err != nil {
		return Acquired{}, err
	}
	a := Acquired{ID: s.id, IsNew: s.fresh && !s.reused, Final: p.yielded >= maxYields}
	switch {
	case s.creates:
		a.Revision = r.Revision
	case s.trusted:
	case len(r.Results[1]) > 0: // the master key, read in the same transaction
		a.Revision = r.Results[1][0].CreateRevision
	}
	return a, nil
}

// execute runs the steps of a plan until one goes through.
func (b *KVStoreBackend) execute(ctx context.Context, p *plan, ids IDSource) (step, kvstore.TxnResult, error) {
	if b.paths.suffix == "" {
		return step{}, kvstore.TxnResult{}, errors.New("this allocator backend has no node suffix, so it can hold no references")
	}
	var v *view
	var last step
	waits := 0
	for tries := 0; tries < maxSteps; {
		s, err := p.next(v, ids)
		if err != nil {
			return step{}, kvstore.TxnResult{}, err
		}
		if s.conflict != nil {
			return step{}, kvstore.TxnResult{}, s.conflict
		}
		if s.wait {
			if waits == 10 {
				b.log.Info("another writer holds the lock of a key, waiting", "key", p.key)
			}
			if err := retry.Wait(ctx, waits, 2*time.Millisecond, 250*time.Millisecond); err != nil {
				return step{}, kvstore.TxnResult{}, fmt.Errorf("waiting for other writers of key %q, one of which may hold its lock: %w", p.key, err)
			}
			waits++
			if s.txn.Then == nil {
				// Look again with the last transaction: its conditions hold once the lock is gone.
				s = last
			}
		} else {
			tries++
			if tries > 4 {
				if err := retry.Wait(ctx, tries-4, time.Millisecond, 100*time.Millisecond); err != nil {
					return step{}, kvstore.TxnResult{}, err
				}
			}
		}
		r, err := b.store.Txn(ctx, s.txn)
		if s.marks && errors.Is(err, kvstore.ErrTxnTooLarge) {
			p.unmarked = true // IDs that heal, if the store goes back just now, are better than none
			continue
		}
		if err != nil {
			return step{}, kvstore.TxnResult{}, err
		}
		if r.Succeeded && !s.marks {
			b.note(p.key, r.Revision)
			return s, r, nil
		}
		last, v = s, p.see(s, r)
		if s.fresh && p.restsForOthers(v) {
			if err := b.learnQuarantined(ctx, p, ids); err != nil {
				return step{}, kvstore.TxnResult{}, err
			}
		}
	}
	return step{}, kvstore.TxnResult{}, fmt.Errorf("key %q: %w", p.key, ErrContended)
}

// Withdraw implements [Backend]. Other nodes may have observed the ID, and be cut off now, so that
// it is in quarantine like one that was collected.
func (b *KVStoreBackend) Withdraw(ctx context.Context, key AllocatorKey, a Acquired) error {
	text := key.GetKey()
	if a.IsNew {
		r, err := b.store.Txn(ctx, kvstore.Txn{
			If: []kvstore.Cond{
				kvstore.ModRevisionIs(b.paths.id(a.ID), a.Revision), kvstore.ModRevisionIs(b.paths.ownValue(text), a.Revision),
				kvstore.PrefixUnchangedSince(b.paths.value(text), a.Revision),
			},
			Then: []kvstore.Op{
				kvstore.DeleteOp(b.paths.id(a.ID)), kvstore.DeleteOp(b.paths.ownValue(text)),
				kvstore.PutOp(b.paths.quarantined(a.ID), EncodeQuarantine(text, time.Now()), kvstore.Permanent),
			},
		})
		if err != nil || r.Succeeded {
			return err
		}
	}
	return b.Release(ctx, a.ID, key)
}

func (b *KVStoreBackend) note(key string, revision int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if revision == 0 {
		delete(b.written, key)
		return
	}
	b.written[key] = revision
}

// Release implements [Backend]. It deletes the reference as it was written last and no later one: a
// request may reach the store long after it was given up, when the key is in use again. That costs
// a second round trip only if this node does not know when it wrote the reference.
func (b *KVStoreBackend) Release(ctx context.Context, id ID, key AllocatorKey) error {
	text := key.GetKey()
	own := b.paths.ownValue(text)
	b.mu.Lock()
	revision := b.written[text]
	b.mu.Unlock()
	for range maxSteps {
		txn := kvstore.Txn{If: []kvstore.Cond{kvstore.ModRevisionIs(own, revision)}, Then: []kvstore.Op{kvstore.DeleteOp(own)}, Else: []kvstore.Op{kvstore.GetOp(own)}}
		if id != NoID {
			txn.If = append(txn.If, kvstore.ValueIs(own, []byte(id.String())))
		}
		r, err := b.store.Txn(ctx, txn)
		if err != nil {
			return err
		}
		if r.Succeeded || len(r.Results[0]) == 0 {
			b.note(text, 0)
			return nil
		}
		have := r.Results[0][0]
		if id != NoID && string(have.Value) != id.String() {
			return nil
		}
		revision = have.ModRevision
	}
	return fmt.Errorf("key %q: %w", text, ErrContended)
}

// Check implements [Backend]. It reads many references in one request.
func (b *KVStoreBackend) Check(ctx context.Context, refs []Reference) ([]Reference, error) {
	var wrong []Reference
	for part := range slices.Chunk(refs, kvstore.MaxTxnOps/2) {
		found, err := b.check(ctx, part)
		wrong = append(wrong, found...)
		if err != nil {
			return wrong, err
		}
	}
	return wrong, nil
}

// check reads references in one request, or each half of them if they are too many for the store.
func (b *KVStoreBackend) check(ctx context.Context, refs []Reference) (wrong []Reference, err error) {
	var txn kvstore.Txn
	for _, ref := range refs {
		txn.Then = append(txn.Then, kvstore.GetOp(b.paths.id(ref.ID)), kvstore.GetOp(b.paths.ownValue(ref.Key.GetKey())))
	}
	r, err := b.store.Txn(ctx, txn)
	if errors.Is(err, kvstore.ErrTxnTooLarge) && len(refs) > 1 {
		half := len(refs) / 2
		if wrong, err = b.check(ctx, refs[:half]); err != nil {
			return wrong, err
		}
		more, err := b.check(ctx, refs[half:])
		return append(wrong, more...), err
	}
	if err != nil {
		return nil, err
	}
	for i, ref := range refs {
		master, own := r.Results[2*i], r.Results[2*i+1]
		ok := len(master) > 0 && b.paths.owner(&master[0]) == ref.Key.GetKey() &&
			len(own) > 0 && string(own[0].Value) == ref.ID.String() && own[0].Lease != ""
		if !ok {
			wrong = append(wrong, ref)
		}
	}
	return wrong, nil
}

// Restore implements [Backend].
func (b *KVStoreBackend) Restore(ctx context.Context, ref Reference) error {
	text, err := canonical(ref.Key)
	if err != nil {
		return err
	}
	_, _, err = b.execute(ctx, &plan{paths: b.paths, key: text, held: ref.ID}, nil)
	var c *ConflictError
	if !ref.Edited || !errors.As(err, &c) || c.InForce != NoID {
		return err
	}
	undone, rerr := b.revert(ctx, ref.ID, text, c.Owner)
	if rerr != nil || !undone {
		return errors.Join(err, rerr)
	}
	b.log.Warn("the key of an ID in use was edited by hand, and is restored", "id", ref.ID, "key", text, "edited", c.Owner)
	_, _, err = b.execute(ctx, &plan{paths: b.paths, key: text, held: ref.ID}, nil)
	return err
}

// revert gives an edited ID its key back, unless a node uses the other one, which is owner, or may
// be about to. It overwrites what is there, as the edit did: a node that knows what the ID was made
// with sees that it is as it was, and one that does not adopts it.
func (b *KVStoreBackend) revert(ctx context.Context, id ID, text, owner string) (undone bool, err error) {
	master, err := b.store.Get(ctx, b.paths.id(id))
	if errors.Is(err, kvstore.ErrNotFound) || err == nil && b.paths.owner(&master) != owner {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("restore the key of ID %s, %q: %w", id, text, err)
	}
	own, ok, err := b.hold(ctx, text, func(v *view) bool { // references of any form
		return !slices.ContainsFunc(v.references, func(r reference) bool { return r.id != id })
	})
	if err != nil {
		return false, fmt.Errorf("list the references to key %q: %w", text, err)
	}
	if !ok {
		return false, nil
	}
	txn := kvstore.Txn{
		If:   append(b.paths.unreferred(text, own), kvstore.ModRevisionIs(master.Key, master.ModRevision)),
		Then: []kvstore.Op{kvstore.PutOp(master.Key, []byte(b.paths.layout.Encode(text)), kvstore.Permanent), kvstore.DeleteOp(b.paths.marker(text))},
	}
	if owner != "" { // an empty value is no key
		v, ok, err := b.hold(ctx, owner, func(v *view) bool { return !v.locked && !v.refers(id) })
		if err != nil {
			return false, fmt.Errorf("list the references to ID %s as %q: %w", id, owner, err)
		}
		if !ok {
			return false, nil
		}
		txn.If = append(txn.If, b.paths.untouched(owner, v)...)
		txn.Then = append(txn.Then, kvstore.DeleteOp(b.paths.marker(owner)))
	}
	r, err := b.store.Txn(ctx, txn)
	if err != nil {
		return false, fmt.Errorf("restore the key of ID %s, %q: %w", id, text, err)
	}
	return r.Succeeded, nil
}

// lookAt returns the references to a key, and the holder of its lock.
func (b *KVStoreBackend) lookAt(ctx context.Context, key string) (*view, error) {
	r, err := b.store.Txn(ctx, kvstore.Txn{Then: append([]kvstore.Op{b.paths.lookLocks(key)}, b.paths.lookReferences(key)...)})
	if err != nil {
		return nil, err
	}
	return b.paths.shown(key, r.Revision, r.Results[0], r.Results[1:]), nil
}

// hold is lookAt for a transaction that relies on the view, if that is accepted: a view that
// needs a marker has one, see [plan.mark].
func (b *KVStoreBackend) hold(ctx context.Context, key string, accept func(v *view) bool) (v *view, ok bool, err error) {
	if v, err = b.lookAt(ctx, key); err != nil || !accept(v) {
		return nil, false, err
	}
	if b.paths.needsMarker(v) {
		if v, err = b.mark(ctx, key); err != nil || !accept(v) {
			return nil, false, err
		}
	}
	return v, true, nil
}

// mark is lookAt with this node's marker. If there is too much to see for the store to write it in
// one transaction, the view has none.
func (b *KVStoreBackend) mark(ctx context.Context, key string) (*view, error) {
	look := append([]kvstore.Op{b.paths.lookLocks(key)}, b.paths.lookReferences(key)...)
	r, err := b.store.Txn(ctx, kvstore.Txn{Then: append(look, b.paths.putMarker(key))})
	if errors.Is(err, kvstore.ErrTxnTooLarge) {
		return b.lookAt(ctx, key)
	}
	if err != nil {
		return nil, err
	}
	v := b.paths.shown(key, r.Revision, r.Results[0], r.Results[1:])
	v.marked = true
	return v, nil
}

// Get implements [Backend]. An ID without a reference is not in force.
func (b *KVStoreBackend) Get(ctx context.Context, key AllocatorKey) (ID, error) {
	return b.GetIf(ctx, key)
}

// ErrConditionFailed means that a condition of [KVStoreBackend.GetIf] did not hold.
var ErrConditionFailed = errors.New("a condition does not hold")

// GetIf is Get under conditions on the store, for example that a lock is still held: if one does
// not hold, the error wraps [ErrConditionFailed].
func (b *KVStoreBackend) GetIf(ctx context.Context, key AllocatorKey, conds ...kvstore.Cond) (ID, error) {
	text, err := canonical(key)
	if err != nil {
		return NoID, err
	}
	r, err := b.store.Txn(ctx, kvstore.Txn{If: conds, Then: b.paths.lookReferences(text)})
	if err != nil {
		return NoID, err
	}
	if !r.Succeeded {
		return NoID, fmt.Errorf("ID of key %q: %w", text, ErrConditionFailed)
	}
	var found []ID
	for i, dir := range b.paths.referenceDirs(text) {
		for _, ref := range references(r.Results[i], dir) {
			if !slices.Contains(found, ref.id) {
				found = append(found, ref.id)
			}
		}
	}
	switch len(found) {
	case 0:
		return NoID, nil
	case 1:
		return found[0], nil
	}
	return b.oldest(ctx, text, found)
}

// oldest returns that of the IDs, all of which have references to the key, which is in force:
// the oldest that belongs to the key. A node that was cut off while the store lost its data may
// still refer to an ID that has another owner now.
func (b *KVStoreBackend) oldest(ctx context.Context, key string, found []ID) (ID, error) {
	found = found[:min(len(found), kvstore.MaxTxnOps)]
	var txn kvstore.Txn
	for _, id := range found {
		txn.Then = append(txn.Then, kvstore.GetOp(b.paths.id(id)))
	}
	r, err := b.store.Txn(ctx, txn)
	if err != nil {
		return NoID, err
	}
	best, created := NoID, int64(0)
	for i, id := range found {
		if m := r.Results[i]; len(m) > 0 && b.paths.owner(&m[0]) == key && (best == NoID || m[0].CreateRevision < created) {
			best, created = id, m[0].CreateRevision
		}
	}
	return best, nil
}

// GetByID implements [Backend].
func (b *KVStoreBackend) GetByID(ctx context.Context, id ID) (AllocatorKey, error) {
	kv, err := b.store.Get(ctx, b.paths.id(id))
	if errors.Is(err, kvstore.ErrNotFound) {
		return nil, fmt.Errorf("ID %s: %w", id, ErrIdentityNonExistent)
	}
	if err != nil {
		return nil, err
	}
	key, err := b.typ.PutKey(b.paths.owner(&kv))
	if err != nil {
		return nil, fmt.Errorf("ID %s: %w: %w", id, ErrUnreadable, err)
	}
	return key, nil
}

// ListAndWatch implements [Backend].
func (b *KVStoreBackend) ListAndWatch(ctx context.Context, handler CacheMutations) error {
	defer b.store.ObserveLostLeases(b.paths.values(), func(lost []string) {
		var keys []string
		for _, path := range lost {
			if key, node, ok := b.paths.reference(path); ok && node == b.paths.suffix {
				keys = append(keys, key)
			}
		}
		if len(keys) > 0 {
			handler.OnReferencesLost(keys)
		}
	})()
	originals := make(map[ID]int64) // when IDs were made of which the handler knows what they were made with
	made := uses{backend: b}
	for ev := range b.store.Watch(ctx, b.paths.ids()) {
		made.reach(max(ev.Revision, ev.ModRevision))
		if ev.Kind == kvstore.EventListDone {
			made.looks = 0
			handler.OnListDone(ev.Revision)
			continue
		}
		id, err := ParseID(strings.TrimPrefix(ev.Key, b.paths.ids()))
		if err != nil {
			b.log.Warn("a key below the path of IDs is not an ID", "key", ev.Key, "error", err)
			continue
		}
		if ev.Kind == kvstore.EventDelete {
			delete(originals, id)
			handler.OnDelete(id, ev.Revision)
			continue
		}
		m := Mapping{ID: id, Created: ev.CreateRevision, Revision: ev.Revision, Incarnation: ev.CreateRevision, Original: ev.CreateRevision == ev.ModRevision}
		if key, err := b.typ.PutKey(b.paths.layout.Decode(string(ev.Value))); err == nil && key.GetKey() != "" { // an empty value is no key
			m.Key = key
		} else {
			b.log.Warn("an ID has an unreadable key in the store", "id", id, "error", err)
		}
		if !m.Original && originals[id] != m.Incarnation {
			u, err := made.of(ctx, id, &ev.KeyValue)
			if err != nil {
				break // ctx has ended, or the store is closed
			}
			b.believe(&m, u)
		}
		if m.Original {
			originals[id] = m.Incarnation
		}
		handler.OnUpsert(m)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return kvstore.ErrClosed
}

// DeleteAllKeys implements [Backend].
func (b *KVStoreBackend) DeleteAllKeys(ctx context.Context) error {
	return kvstore.DeletePrefix(ctx, b.store, b.paths.base+"/")
}
