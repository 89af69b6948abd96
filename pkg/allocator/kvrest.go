package allocator

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/hawser-net/hawser/pkg/kvstore"
)

// A number that was collected rests: RunGC leaves a record of it in the store, rest/<number>, in the transaction that deletes the master key. Its value is when
// that was, in RFC 3339. Nothing makes a number whose record is there, whoever leads by then, unless no other number is free. Writers of other programs
// know nothing of these records, which stand beside the directories that they read, and go by what they remember themselves.

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

// learnRests tells a plan and the allocator which numbers rest.
func (b *KVStoreBackend) learnRests(ctx context.Context, p *plan, numbers Numbers) error {
	list, err := b.rests(ctx)
	if err != nil {
		return err
	}
	p.rests = make(map[ID]int64, len(list))
	for _, r := range list {
		p.rests[r.id] = r.mod
		numbers.Rests(r.id, r.since)
	}
	return nil
}

// putRest notes that a number rests from now on.
func (b *KVStoreBackend) putRest(id ID, now time.Time) kvstore.Op {
	return kvstore.PutOp(b.paths.rest(id), now.UTC().AppendFormat(nil, time.RFC3339), kvstore.Permanent)
}

// free deletes the records of numbers that have rested: by the clock of whoever collected them, if an earlier round saw the record, or by this process's own, so
// that a clock that goes wrong neither ends a rest at once nor makes it last for ever.
func (b *KVStoreBackend) free(ctx context.Context, r Range, now time.Time) (resting, freed int, err error) {
	list, err := b.rests(ctx)
	if err != nil {
		return 0, 0, err
	}
	b.mu.Lock()
	last := b.resting
	b.resting = make(map[ID]seenRest, len(list))
	b.mu.Unlock()
	var errs []error
	for _, rec := range list {
		if !r.Contains(rec.id) {
			continue
		}
		seen := seenRest{rec.mod, now}
		if was, ok := last[rec.id]; ok && was.mod == rec.mod {
			seen = was
			if now.Sub(rec.since) >= b.rest || now.Sub(seen.first) >= b.rest {
				done, err := kvstore.CompareAndDelete(ctx, b.store, b.paths.rest(rec.id), rec.mod)
				errs = append(errs, err)
				if done {
					freed++
					continue
				}
			}
		}
		resting++
		b.mu.Lock()
		b.resting[rec.id] = seen
		b.mu.Unlock()
	}
	if err := errors.Join(errs...); err != nil {
		return resting, freed, fmt.Errorf("ending the rest of numbers: %w", err)
	}
	return resting, freed, nil
}

// seenRest is when this process first saw a record, at a revision.
type seenRest struct {
	mod   int64
	first time.Time
}
