package allocator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/time/rate"

	"github.com/hawser-net/hawser/pkg/kvstore"
)

// gcBatch is how many IDs are deleted in one transaction, at up to four conditions and two
// operations each.
const gcBatch = kvstore.MaxTxnOps / 4

// dead is an ID without a reference.
type dead struct {
	id  ID
	key string
	mod int64
	// rewritten means that its key was written again since it was made: it may have been edited.
	rewritten bool
	// alone means that nothing was listed in the key's directories: not even references to another
	// ID.
	alone bool
}

// RunGC implements [Backend].
//
// An ID is deleted in one transaction with the proof that it may be: its master key is unchanged
// since two rounds ago, no reference to its key exists, or only such as were found to be to other
// IDs just before, and no other writer holds the key's lock. It is in quarantine from then on, see
// [KVStoreConfig]. A limiter of nil is no limit.
//
// While the store has no space for writes, no ID is deleted: a node that was started again cannot
// write its references, and those of before run out. What was found unused counts no more. Only
// quarantines end.
func (b *KVStoreBackend) RunGC(ctx context.Context, limiter *rate.Limiter, r Range, previous map[ID]int64) (map[ID]int64, GCStats, error) {
	next, stats, err := map[ID]int64(nil), GCStats{}, kvstore.ErrNoSpace
	if !b.store.Status().Full {
		next, stats, err = b.collectUnused(ctx, limiter, r, previous)
	}
	full := errors.Is(err, kvstore.ErrNoSpace)
	if full {
		next, err = map[ID]int64{}, fmt.Errorf("no ID is collected: %w", err)
	} else if err != nil {
		return next, stats, err
	}
	freed, ferr := b.free(ctx, r, time.Now())
	stats.Quarantined, stats.Freed, stats.Unconfirmed = freed.Quarantined, freed.Freed, freed.Unconfirmed
	return next, stats, errors.Join(err, ferr)
}

// collectUnused is RunGC but for the IDs in quarantine.
func (b *KVStoreBackend) collectUnused(ctx context.Context, limiter *rate.Limiter, r Range, previous map[ID]int64) (map[ID]int64, GCStats, error) {
	var stats GCStats
	// The masters first: a reference written after their listing is in the second one, or is caught
	// by the condition on the directory.
	var masters []dead
	_, err := kvstore.ListPages(ctx, b.store, b.paths.ids(), func() { masters = nil }, func(page []kvstore.KeyValue) {
		for _, kv := range page {
			if id, err := ParseID(strings.TrimPrefix(kv.Key, b.paths.ids())); err == nil {
				masters = append(masters, dead{id: id, key: b.paths.owner(&kv), mod: kv.ModRevision, rewritten: kv.ModRevision != kv.CreateRevision})
			}
		}
	})
	if err != nil {
		return previous, stats, fmt.Errorf("listing IDs: %w", err)
	}
	var refs listedReferences
	begin := func() {
		refs = listedReferences{paths: b.paths, used: map[string]bool{}, named: map[string]bool{}, under: map[string]bool{}}
		for _, m := range masters {
			if previous[m.id] == m.mod {
				for _, dir := range b.paths.referenceDirs(m.key) {
					refs.under[dir] = false
				}
			}
		}
	}
	_, err = kvstore.ListPages(ctx, b.store, b.paths.values(), begin, func(page []kvstore.KeyValue) {
		for _, kv := range page {
			refs.add(kv.Key, string(kv.Value))
		}
	})
	if err != nil {
		return previous, stats, fmt.Errorf("listing references: %w", err)
	}
	next := make(map[ID]int64)
	var due []dead
	for _, m := range masters {
		switch seen, ok := previous[m.id]; {
		case !r.Contains(m.id):
			stats.OutOfRange++
		case refs.used[m.id.String()+" "+m.key], m.rewritten && refs.named[m.id.String()]:
			stats.Alive++
		case ok && seen == m.mod:
			m.alone = !slices.ContainsFunc(b.paths.referenceDirs(m.key), func(dir string) bool { return refs.under[dir] })
			due = append(due, m)
		default:
			stats.Dead++
			next[m.id] = m.mod
		}
	}
	for len(due) > 0 {
		n := min(gcBatch, len(due))
		if i := slices.IndexFunc(due[:n], func(d dead) bool { return !d.alone }); i >= 0 {
			n = max(i, 1) // each of these by itself: it takes more conditions
		}
		if limiter != nil && limiter.Limit() != rate.Inf {
			n = min(n, max(1, limiter.Burst()))
			if err := limiter.WaitN(ctx, n); err != nil {
				keepForLater(next, due)
				return next, stats, fmt.Errorf("waiting for the deletion rate limit: %w", err)
			}
		}
		deleted, err := b.collect(ctx, due[:n])
		stats.Deleted += deleted
		if err != nil {
			keepForLater(next, due)
			return next, stats, fmt.Errorf("deleting IDs: %w", err)
		}
		stats.Spared += n - deleted
		due = due[n:]
	}
	return next, stats, nil
}

// listedReferences is what is kept of the references while they are read.
type listedReferences struct {
	paths paths
	// used has each ID that is referred to, with its key.
	used map[string]bool
	// named has each ID that is referred to, for whatever key.
	named map[string]bool
	// under reports for the directories in it whether they contain anything, also a reference to
	// another ID, or of a longer key.
	under map[string]bool
	// dir is the directory of the last reference, and text its key: those of one key follow each
	// other, and reading a key takes time.
	dir, text string
}

// add takes in a reference.
func (l *listedReferences) add(key, value string) {
	if dir := key[:strings.LastIndexByte(key, '/')+1]; l.dir != dir {
		l.dir = dir
		l.text, _, _ = l.paths.reference(key)
	}
	if l.text != "" {
		l.used[value+" "+l.text], l.named[value] = true, true
	}
	for i := len(l.paths.values()); i < len(key); i++ {
		if key[i] != '/' {
			continue
		}
		if _, asked := l.under[key[:i+1]]; asked {
			l.under[key[:i+1]] = true
		}
	}
}

// keepForLater lets the next round go on where this one stopped.
func keepForLater(next map[ID]int64, due []dead) {
	for _, d := range due {
		next[d.id] = d.mod
	}
}

// collect deletes IDs in one transaction, and returns how many. If one may not be deleted, each
// half is tried alone.
func (b *KVStoreBackend) collect(ctx context.Context, list []dead) (deleted int, err error) {
	var txn kvstore.Txn
	var ready []dead
	now := time.Now()
	for _, d := range list {
		conds := []kvstore.Cond{kvstore.ModRevisionIs(b.paths.id(d.id), d.mod)}
		if d.key != "" { // an empty value is no key
			var v *view
			if !d.alone {
				var ok bool
				v, ok, err = b.hold(ctx, d.key, func(v *view) bool { return !v.locked && !v.refers(d.id) })
				if b.tooLarge(d, err) {
					continue
				}
				if err != nil {
					return 0, err
				}
				if !ok {
					continue
				}
			}
			conds = append(conds, b.paths.untouched(d.key, v)...)
		}
		ready = append(ready, d)
		txn.If = append(txn.If, conds...)
		txn.Then = append(txn.Then, kvstore.DeleteOp(b.paths.id(d.id)))
		if !d.alone {
			txn.Then = append(txn.Then, kvstore.DeleteOp(b.paths.marker(d.key)))
		}
		if b.quarantine > 0 {
			was := d.key
			if d.rewritten { // nodes may take it for another key's
				was = ""
			}
			txn.Then = append(txn.Then, kvstore.PutOp(b.paths.quarantined(d.id), EncodeQuarantine(was, now), kvstore.Permanent))
		}
	}
	if len(ready) == 0 {
		return 0, nil
	}
	deleted, err = commit(ctx, b.store, txn, ready, b.collect)
	if len(ready) == 1 && b.tooLarge(ready[0], err) {
		return 0, nil
	}
	return deleted, err
}

// tooLarge reports whether an ID cannot be collected because its key alone is more than the store
// takes at once. It must not keep others from being collected.
func (b *KVStoreBackend) tooLarge(d dead, err error) bool {
	if !errors.Is(err, kvstore.ErrTxnTooLarge) {
		return false
	}
	b.log.Error("an unused ID cannot be collected, because its key is too large for a transaction; delete the ID's key from the store by hand",
		"id", d.id, "path", b.paths.id(d.id), "bytes", len(d.key), "error", err)
	return true
}

// commit runs a transaction about all IDs of a list, and returns their number. If it fails because
// of one of them, or they are too many, again has each half alone.
func commit[T any](ctx context.Context, store kvstore.Backend, txn kvstore.Txn, list []T, again func(context.Context, []T) (int, error)) (int, error) {
	r, err := store.Txn(ctx, txn)
	switch {
	case errors.Is(err, kvstore.ErrTxnTooLarge) && len(list) > 1: // halves may fit
	case err != nil:
		return 0, err
	case r.Succeeded:
		return len(list), nil
	case len(list) == 1:
		return 0, nil
	}
	half := len(list) / 2
	first, err := again(ctx, list[:half])
	if err != nil {
		return first, err
	}
	second, err := again(ctx, list[half:])
	return first + second, err
}

// RunLocksGC implements [Backend]. Of each lock only the oldest key counts: the others wait behind
// it.
func (b *KVStoreBackend) RunLocksGC(ctx context.Context, previous map[string]Lock) (held map[string]Lock, deleted int, err error) {
	l, err := b.store.List(ctx, b.paths.allLocks())
	if err != nil {
		return previous, 0, fmt.Errorf("listing locks: %w", err)
	}
	oldest := make(map[string]kvstore.KeyValue)
	for _, kv := range l.Pairs {
		dir := kv.Key // a lock of its own
		if b.paths.layout == kvstore.LayoutEtcd {
			dir = kv.Key[:strings.LastIndexByte(kv.Key, '/')+1]
		}
		if have, ok := oldest[dir]; !ok || kv.CreateRevision < have.CreateRevision {
			oldest[dir] = kv
		}
	}
	held = make(map[string]Lock)
	for _, kv := range oldest {
		now := Lock{kv.ModRevision, kv.Lease}
		if was, ok := previous[kv.Key]; ok && was == now {
			gone, err := kvstore.CompareAndDelete(ctx, b.store, kv.Key, kv.ModRevision)
			if err != nil {
				return held, deleted, fmt.Errorf("deleting stale lock %q: %w", kv.Key, err)
			}
			if gone {
				deleted++
				b.log.Info("deleted a stale lock of another writer", "key", kv.Key)
				continue
			}
		}
		held[kv.Key] = now
	}
	return held, deleted, nil
}
