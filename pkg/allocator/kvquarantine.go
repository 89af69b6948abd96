package allocator

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hawser-net/hawser/pkg/kvstore"
)

// An ID that was collected or withdrawn is in quarantine: whoever deletes the master key leaves a
// record of it in the store, quarantine/<ID>, in the same transaction. The value is the time of
// that, in RFC 3339, and behind a space the key that the ID had. An ID with a record is given to no
// other key, unless no other ID is free; its own key takes it back. Writers of other programs do
// not know these records, which stand beside the directories that they read; they use what they
// remember themselves.
//
// A record is deleted when a collector has seen it for the whole quarantine, by the clock of its
// own process that no one sets, and every node has released the ID: confirmed/<node> is the
// revision up to which the node has observed deletions of IDs and uses none of them any more. Nodes
// repeat it from time to time: only one that was written after the collector first saw the record
// counts, as the store may have been restored from an old copy before. It is on the node's lease,
// so a node whose lease has run out is not waited for.

// quarantineRecord is the record of an ID in quarantine.
type quarantineRecord struct {
	id    ID
	mod   int64
	value []byte
	since time.Time // the zero time if it cannot be read: it counts as the longest in quarantine
}

// EncodeQuarantine returns the value of the record of an ID that was the key's, and has been in
// quarantine since then. A key of "" is not known.
func EncodeQuarantine(key string, since time.Time) []byte {
	value := since.UTC().AppendFormat(nil, time.RFC3339)
	if key != "" {
		value = append(append(value, ' '), key...)
	}
	return value
}

// DecodeQuarantine is the inverse of [EncodeQuarantine]. The zero time is one that cannot be read.
func DecodeQuarantine(value []byte) (key string, since time.Time) {
	text, key, _ := strings.Cut(string(value), " ")
	since, err := time.Parse(time.RFC3339, text)
	if err != nil {
		since = time.Time{}
	}
	return key, since
}

// listQuarantined reads all records, and the revision of the store then.
func (b *KVStoreBackend) listQuarantined(ctx context.Context) (out []quarantineRecord, revision int64, err error) {
	l, err := b.store.List(ctx, b.paths.quarantine())
	if err != nil {
		return nil, 0, fmt.Errorf("list the IDs in quarantine: %w", err)
	}
	for _, kv := range l.Pairs {
		id, err := ParseID(strings.TrimPrefix(kv.Key, b.paths.quarantine()))
		if err != nil {
			continue
		}
		_, since := DecodeQuarantine(kv.Value)
		out = append(out, quarantineRecord{id, kv.ModRevision, kv.Value, since})
	}
	return out, l.Revision, nil
}

// learnQuarantined passes the IDs in quarantine to a plan and the allocator.
func (b *KVStoreBackend) learnQuarantined(ctx context.Context, p *plan, ids IDSource) error {
	list, _, err := b.listQuarantined(ctx)
	if err != nil {
		return err
	}
	p.quarantined = make(map[ID][]byte, len(list))
	for _, r := range list {
		p.quarantined[r.id] = r.value
		ids.Quarantined(r.id, r.since)
	}
	return nil
}

// Occupant is whom an ID belongs to.
type Occupant struct {
	// Key is the canonical string; "" if it is not known.
	Key string
	// Quarantined means that the ID was Key's, and is given to no other yet; Since is from when.
	Quarantined bool
	Since       time.Time
}

// Occupant returns whom the store has an ID for; ok is false if it is free.
func (b *KVStoreBackend) Occupant(ctx context.Context, id ID) (o Occupant, ok bool, err error) {
	r, err := b.store.Txn(ctx, kvstore.Txn{Then: []kvstore.Op{kvstore.GetOp(b.paths.id(id)), kvstore.GetOp(b.paths.quarantined(id))}})
	if err != nil {
		return o, false, fmt.Errorf("read whom ID %s belongs to: %w", id, err)
	}
	switch master, record := r.Results[0], r.Results[1]; {
	case len(master) > 0:
		return Occupant{Key: b.paths.owner(&master[0])}, true, nil
	case len(record) > 0:
		o.Quarantined = true
		o.Key, o.Since = DecodeQuarantine(record[0].Value)
		return o, true, nil
	}
	return o, false, nil
}

// free deletes the records of IDs whose quarantine is over: this process has seen the record for as
// long. The time in the record does not count, as clocks of machines are set, and the store may be
// an old copy. now must have a monotonic reading.
func (b *KVStoreBackend) free(ctx context.Context, r Range, now time.Time) (stats GCStats, err error) {
	list, revision, err := b.listQuarantined(ctx)
	if err != nil {
		return stats, err
	}
	b.seen.mu.Lock()
	defer b.seen.mu.Unlock()
	last := b.seen.records
	if revision < b.seen.revision { // the store was restored: IDs may have been in use since
		last = nil
	}
	seen := make(map[ID]seenRecord, len(list))
	b.seen.records, b.seen.revision = seen, revision
	var due []quarantineRecord
	for _, rec := range list {
		if !r.Contains(rec.id) {
			continue
		}
		stats.Quarantined++
		s, again := last[rec.id]
		if again = again && s.mod == rec.mod; !again {
			s = seenRecord{rec.mod, now, revision}
		}
		seen[rec.id] = s
		if again && now.Sub(s.first) >= b.quarantine {
			due = append(due, rec)
		}
	}
	if len(due) == 0 {
		return stats, nil
	}
	confirmed, written, err := b.confirmed(ctx)
	if err != nil {
		return stats, err
	}
	var ready []quarantineRecord
	for _, rec := range due {
		s := seen[rec.id]
		if (rec.mod > confirmed || s.revision >= written) && now.Sub(s.first) < b.lost {
			stats.Unconfirmed++
			continue
		}
		ready = append(ready, rec)
	}
	for len(ready) > 0 {
		n := min(len(ready), kvstore.MaxTxnOps)
		// Before they are deleted: if the store goes back to a copy that has them, they are new.
		for _, rec := range ready[:n] {
			delete(seen, rec.id)
		}
		freed, err := b.endQuarantine(ctx, ready[:n])
		stats.Freed += freed
		stats.Quarantined -= freed
		if err != nil {
			return stats, fmt.Errorf("end the quarantine of IDs: %w", err)
		}
		ready = ready[n:]
	}
	return stats, nil
}

// endQuarantine deletes records in one transaction, and returns how many. If one has changed, or
// they are too many, each half is tried alone.
func (b *KVStoreBackend) endQuarantine(ctx context.Context, list []quarantineRecord) (int, error) {
	var txn kvstore.Txn
	for _, rec := range list {
		txn.If = append(txn.If, kvstore.ModRevisionIs(b.paths.quarantined(rec.id), rec.mod))
		txn.Then = append(txn.Then, kvstore.DeleteOp(b.paths.quarantined(rec.id)))
	}
	return commit(ctx, b.store, txn, list, b.endQuarantine)
}

// Confirm implements [Backend].
func (b *KVStoreBackend) Confirm(ctx context.Context, revision int64) error {
	if b.paths.suffix == "" {
		return errors.New("this allocator backend has no node suffix, so it can confirm nothing")
	}
	_, err := b.store.Txn(ctx, kvstore.Txn{Then: []kvstore.Op{
		kvstore.PutOp(b.paths.confirmations()+b.paths.suffix, strconv.AppendInt(nil, revision, 10), kvstore.Leased),
	}})
	if err != nil {
		return fmt.Errorf("confirm the end of IDs up to revision %d: %w", revision, err)
	}
	return nil
}

// ObserveLostConfirmation implements [Backend].
func (b *KVStoreBackend) ObserveLostConfirmation(lost func()) (stop func()) {
	return b.store.ObserveLostLeases(b.paths.confirmations()+b.paths.suffix, func([]string) { lost() })
}

// confirmed returns the revision up to which all nodes that confirm anything have released deleted
// IDs, and the one at which the first of them said so. A value that cannot be read confirms
// nothing, nor does one that was written before the store had reached that revision: it is from
// before the store was restored from an old copy.
func (b *KVStoreBackend) confirmed(ctx context.Context) (least, written int64, err error) {
	l, err := b.store.List(ctx, b.paths.confirmations())
	if err != nil {
		return 0, 0, fmt.Errorf("listing which nodes have released IDs: %w", err)
	}
	least, written = math.MaxInt64, math.MaxInt64
	for _, kv := range l.Pairs {
		n, err := strconv.ParseInt(string(kv.Value), 10, 64)
		if err != nil || n >= kv.ModRevision {
			n = 0
		}
		least, written = min(least, n), min(written, kv.ModRevision)
	}
	return least, written, nil
}

// seenQuarantine is what RunGC remembers of the records of IDs in quarantine.
type seenQuarantine struct {
	mu       sync.Mutex // held for a whole round
	records  map[ID]seenRecord
	revision int64 // of the last listing
}

// seenRecord is when this process first saw a record, which was written at revision mod, and the
// revision of the store then.
type seenRecord struct {
	mod      int64
	first    time.Time
	revision int64
}
