package allocator

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/hawser-net/hawser/pkg/kvstore"
)

// A number that was collected rests: RunGC leaves a record of it in the store, rest/<number>, in
// the transaction that deletes the master key. Its value is when that was, in RFC 3339. Nothing
// makes a number whose record is there, whoever leads by then, unless no other number is free.
// Writers of other programs know nothing of these records, which stand beside the directories that
// they read, and go by what they remember themselves.
//
// A record goes when its time has passed and every node has released the number: heard/<node> says
// up to which revision the node has observed the end of numbers, and goes by none of them. It is on
// the node's lease, so a node whose lease has run out is not waited for.

// restRecord is the record of a number that rests.
type restRecord struct {
	id    ID
	mod   int64
	since time.Time // the zero time if it cannot be read: it has rested longest
}

// rests reads all records.
func (b *KVStoreBackend) rests(ctx context.Context) ([]restRecord, error) {
	l, err := b.store.List(ctx, b.paths.rests())
	if err != nil {
		return nil, fmt.Errorf("listing numbers that rest: %w", err)
	}
	var out []restRecord
	for _, kv := range l.Pairs {
		id, err := ParseID(strings.TrimPrefix(kv.Key, b.paths.rests()))
		if err != nil {
			continue
		}
		since, err := time.Parse(time.RFC3339, string(kv.Value))
		if err != nil {
			since = time.Time{}
		}
		out = append(out, restRecord{id, kv.ModRevision, since})
	}
	return out, nil
}

// learnRests shows a plan and the allocator which numbers rest.
func (b *KVStoreBackend) learnRests(ctx context.Context, p *plan, numbers IDSource) error {
	list, err := b.rests(ctx)
	if err != nil {
		return err
	}
	p.rests = make(map[ID]int64, len(list))
	for _, r := range list {
		p.rests[r.id] = r.mod
		numbers.Quarantined(r.id, r.since)
	}
	return nil
}

// putRest notes that a number rests from now on.
func (b *KVStoreBackend) putRest(id ID, now time.Time) kvstore.Op {
	return kvstore.PutOp(b.paths.rest(id), now.UTC().AppendFormat(nil, time.RFC3339), kvstore.Permanent)
}

// free deletes the records of numbers that have rested: by the clock of whoever collected them, if
// an earlier round saw the record, or by this process's own, so that a clock that goes wrong
// neither ends a rest at once nor makes it last for ever.
func (b *KVStoreBackend) free(ctx context.Context, r Range, now time.Time) (stats GCStats, err error) {
	list, err := b.rests(ctx)
	if err != nil {
		return stats, err
	}
	b.mu.Lock()
	last := b.resting
	b.mu.Unlock()
	seenNow := make(map[ID]seenRest, len(list))
	var due []restRecord
	for _, rec := range list {
		if !r.Contains(rec.id) {
			continue
		}
		stats.Quarantined++
		seen, again := last[rec.id]
		if again = again && seen.mod == rec.mod; !again {
			seen = seenRest{rec.mod, now}
		}
		seenNow[rec.id] = seen
		if again && (now.Sub(rec.since) >= b.rest || now.Sub(seen.first) >= b.rest) {
			due = append(due, rec)
		}
	}
	b.mu.Lock()
	b.resting = seenNow
	b.mu.Unlock()
	if len(due) == 0 {
		return stats, nil
	}
	confirmed, err := b.confirmed(ctx)
	if err != nil {
		return stats, err
	}
	var ready []restRecord
	for _, rec := range due {
		if rec.mod > confirmed && now.Sub(seenNow[rec.id].first) < b.lost {
			stats.Unconfirmed++
			continue
		}
		ready = append(ready, rec)
	}
	for len(ready) > 0 {
		n := min(len(ready), kvstore.MaxTxnOps)
		freed, err := b.endRest(ctx, ready[:n])
		stats.Freed += freed
		stats.Quarantined -= freed
		if err != nil {
			return stats, fmt.Errorf("ending the rest of numbers: %w", err)
		}
		ready = ready[n:]
	}
	return stats, nil
}

// endRest deletes records in one transaction, and says how many. If one has changed, or they are
// too many, each half is tried alone.
func (b *KVStoreBackend) endRest(ctx context.Context, list []restRecord) (int, error) {
	var txn kvstore.Txn
	for _, rec := range list {
		txn.If = append(txn.If, kvstore.ModRevisionIs(b.paths.rest(rec.id), rec.mod))
		txn.Then = append(txn.Then, kvstore.DeleteOp(b.paths.rest(rec.id)))
	}
	return commit(ctx, b.store, txn, list, b.endRest)
}

// Confirm implements [Backend].
func (b *KVStoreBackend) Confirm(ctx context.Context, revision int64) error {
	if b.paths.suffix == "" {
		return errors.New("this allocator backend has no node suffix, so it can confirm nothing")
	}
	_, err := b.store.Txn(ctx, kvstore.Txn{Then: []kvstore.Op{
		kvstore.PutOp(b.paths.heard()+b.paths.suffix, strconv.AppendInt(nil, revision, 10), kvstore.Leased),
	}})
	if err != nil {
		return fmt.Errorf("confirm the end of numbers up to revision %d: %w", revision, err)
	}
	return nil
}

// ObserveLostConfirmation implements [Backend].
func (b *KVStoreBackend) ObserveLostConfirmation(lost func()) (stop func()) {
	return b.store.ObserveLostLeases(b.paths.heard()+b.paths.suffix, func([]string) { lost() })
}

// confirmed returns the revision up to which all nodes that confirm anything have let go of
// numbers. What cannot be read confirms nothing, nor does what was written before the store had
// reached that revision: it is of before the store went back to an old copy.
func (b *KVStoreBackend) confirmed(ctx context.Context) (int64, error) {
	l, err := b.store.List(ctx, b.paths.heard())
	if err != nil {
		return 0, fmt.Errorf("listing which nodes have released IDs: %w", err)
	}
	least := int64(math.MaxInt64)
	for _, kv := range l.Pairs {
		n, err := strconv.ParseInt(string(kv.Value), 10, 64)
		if err != nil || n >= kv.ModRevision {
			n = 0
		}
		least = min(least, n)
	}
	return least, nil
}

// seenRest is when this process first saw a record, at a revision.
type seenRest struct {
	mod   int64
	first time.Time
}
