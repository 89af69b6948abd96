// Package table holds rows that one goroutine writes and others follow, and reconciles a target
// (the kernel, mostly) with the rows.
//
// A [Table] is a map with revisions: every change gives its row the next revision, so "what changed
// since I looked" has an answer that costs only the changes. An [Observer] pulls those changes,
// coalesced: however often a row changed since the last look, it is reported once, with its newest
// value. Nothing is lost and nothing is queued, so a slow observer costs no memory beyond one
// tombstone for each row deleted meanwhile.
//
// A [Reconciler] is an observer that writes the rows to a [Target], retries the rows that fail and
// reports for each row whether the target has it.
//
// The package owns no table and starts no goroutine: each table is owned by the package that makes
// it, whose documentation names its writers. Everything here is safe for concurrent use. Keys and
// values are shared with readers and observers; who stores a value that holds a slice, map or
// pointer must not change what it points to.
package table

import (
	"context"
	"errors"
	"iter"
	"sync"

	"github.com/hawser-net/hawser/pkg/retry"
)

// Row is one key and value with the revision of its last change.
type Row[K comparable, V any] struct {
	Key      K
	Value    V
	Revision uint64
}

// Change is what became of one row. For a deleted row Value is the last value it had.
type Change[K comparable, V any] struct {
	Row[K, V]
	Deleted bool
}

// entry is a row, the tombstone of a row, or an observer's bookmark: an element of the list that
// holds all of them in the order of their last change.
type entry[K comparable, V any] struct {
	row        Row[K, V]
	prev, next *entry[K, V]
	// unseen counts, in a tombstone, the observers that have not passed it.
	unseen int32
	kind   kind
}

type kind uint8

const (
	live kind = iota
	tombstone
	bookmark
)

// Table maps keys to values and remembers the order of changes. Make one with [New].
type Table[K comparable, V any] struct {
	equal func(a, b V) bool

	mu       sync.RWMutex
	revision uint64
	rows     map[K]*entry[K, V] // live rows and tombstones
	live     int
	// root is the sentinel of the ring: root.next changed first, root.prev last.
	root      entry[K, V]
	observers []*Observer[K, V]
}

// New returns an empty table. If equal is not nil, writing a value equal to the one present is no
// change: it has no revision and wakes no observer.
func New[K comparable, V any](equal func(a, b V) bool) *Table[K, V] {
	t := &Table[K, V]{equal: equal, rows: make(map[K]*entry[K, V])}
	t.root.kind = bookmark
	t.root.prev, t.root.next = &t.root, &t.root
	return t
}

// Upsert writes a row and returns its revision. If the value is equal to the present one, that is
// the revision the row already had.
func (t *Table[K, V]) Upsert(key K, value V) uint64 {
	t.mu.Lock()
	defer t.unlock(t.revision)
	return t.upsert(key, value)
}

// Delete removes a row and reports whether it was there. The revision is that of the deletion, or
// the table's if there was nothing to delete.
func (t *Table[K, V]) Delete(key K) (revision uint64, found bool) {
	t.mu.Lock()
	defer t.unlock(t.revision)
	return t.delete(key)
}

// Touch makes a row count as changed although it is not, so that observers look at it again, and
// reports whether the row is there.
func (t *Table[K, V]) Touch(key K) (revision uint64, found bool) {
	t.mu.Lock()
	defer t.unlock(t.revision)
	e := t.rows[key]
	if e == nil || e.kind != live {
		return t.revision, false
	}
	e.unlink()
	return t.append(e), true
}

// Txn is the table as seen and changed inside [Table.Update]. It must not be used after Update
// returned, nor by another goroutine.
type Txn[K comparable, V any] struct{ t *Table[K, V] }

// Upsert is [Table.Upsert] inside a transaction.
func (x Txn[K, V]) Upsert(key K, value V) uint64 { return x.t.upsert(key, value) }

// Delete is [Table.Delete] inside a transaction.
func (x Txn[K, V]) Delete(key K) (revision uint64, found bool) { return x.t.delete(key) }

// Get returns a row as the transaction sees it.
func (x Txn[K, V]) Get(key K) (value V, found bool) { return x.t.get(key) }

// Update calls fn, which may read and change several rows. Readers and observers see all of its
// changes or none. There is no way back: fn must know that it can finish before it changes
// anything. It must not call the table's own methods and should not block.
func (t *Table[K, V]) Update(fn func(Txn[K, V])) {
	t.mu.Lock()
	defer t.unlock(t.revision)
	fn(Txn[K, V]{t})
}

// unlock ends a write that began at a revision, and wakes the observers if anything changed.
func (t *Table[K, V]) unlock(before uint64) {
	if t.revision != before {
		for _, o := range t.observers {
			retry.Notify(o.trigger)
		}
	}
	t.mu.Unlock()
}

func (t *Table[K, V]) upsert(key K, value V) uint64 {
	e := t.rows[key]
	switch {
	case e == nil:
		e = &entry[K, V]{row: Row[K, V]{Key: key}}
		t.rows[key] = e
		t.live++
	case e.kind == tombstone:
		// Observers that did not see the deletion will see an update only.
		e.kind, e.unseen = live, 0
		e.unlink()
		t.live++
	case t.equal != nil && t.equal(e.row.Value, value):
		return e.row.Revision
	default:
		e.unlink()
	}
	e.row.Value = value
	return t.append(e)
}

func (t *Table[K, V]) delete(key K) (uint64, bool) {
	e := t.rows[key]
	if e == nil || e.kind == tombstone {
		return t.revision, false
	}
	t.live--
	e.unlink()
	if len(t.observers) == 0 {
		delete(t.rows, key)
		t.revision++
		return t.revision, true
	}
	e.kind, e.unseen = tombstone, int32(len(t.observers))
	return t.append(e), true
}

func (t *Table[K, V]) get(key K) (value V, found bool) {
	if e := t.rows[key]; e != nil && e.kind == live {
		return e.row.Value, true
	}
	return value, false
}

// append puts an unlinked entry last and gives it the next revision.
func (t *Table[K, V]) append(e *entry[K, V]) uint64 {
	t.revision++
	e.row.Revision = t.revision
	e.insertAfter(t.root.prev)
	return t.revision
}

func (e *entry[K, V]) insertAfter(at *entry[K, V]) {
	e.prev, e.next = at, at.next
	at.next.prev = e
	at.next = e
}

func (e *entry[K, V]) unlink() {
	e.prev.next, e.next.prev = e.next, e.prev
	e.prev, e.next = nil, nil
}

// Get returns the value of a row.
func (t *Table[K, V]) Get(key K) (value V, found bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.get(key)
}

// GetRow returns a row with its revision.
func (t *Table[K, V]) GetRow(key K) (row Row[K, V], found bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if e := t.rows[key]; e != nil && e.kind == live {
		return e.row, true
	}
	return row, false
}

// Len returns the number of rows.
func (t *Table[K, V]) Len() int {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.live
}

// Revision returns the revision of the last change, 0 if there was none.
func (t *Table[K, V]) Revision() uint64 {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.revision
}

// All yields the rows that were there when the loop began, least recently changed first. It works
// on a copy, so the loop may take its time and may write to the table.
func (t *Table[K, V]) All() iter.Seq2[K, V] {
	return func(yield func(K, V) bool) {
		rows, _ := t.Snapshot()
		for i := range rows {
			if !yield(rows[i].Key, rows[i].Value) {
				return
			}
		}
	}
}

// Snapshot returns a copy of all rows, least recently changed first, and the table's revision.
func (t *Table[K, V]) Snapshot() ([]Row[K, V], uint64) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	rows := make([]Row[K, V], 0, t.live)
	for e := t.root.next; e != &t.root; e = e.next {
		if e.kind == live {
			rows = append(rows, e.row)
		}
	}
	return rows, t.revision
}

// maxBatch bounds the changes that one Next returns, and with it the time the table is locked.
const maxBatch = 1024

// Observer follows the changes of one table. Its methods are for one goroutine, except Close.
type Observer[K comparable, V any] struct {
	t       *Table[K, V]
	trigger chan struct{}
	// bookmark stands in the table's list behind the last entry that was reported.
	bookmark entry[K, V]
	// since is the table's revision when the observer came: tombstones up to it do not count this
	// observer and are none of its business.
	since    uint64
	revision uint64
	batch    []Change[K, V]
	closed   bool
}

// ErrClosed is returned by the Next of an observer that was closed.
var ErrClosed = errors.New("observer is closed")

// Watch returns an observer that first reports the rows present now, then what changes. The caller
// must Close it.
func (t *Table[K, V]) Watch() *Observer[K, V] {
	t.mu.Lock()
	defer t.mu.Unlock()
	o := &Observer[K, V]{t: t, trigger: make(chan struct{}, 1), since: t.revision}
	o.bookmark.kind = bookmark
	o.bookmark.insertAfter(&t.root)
	t.observers = append(t.observers, o)
	o.trigger <- struct{}{} // look once without an event
	return o
}

// Next waits until something changed and returns the changes in the order of their revisions, at
// most some hundreds at a time. The slice is valid until the following call. A row that came and
// went since the last call is reported as deleted although it was never reported as present; one
// that went and came back is reported as present only. The error is ctx's cause or [ErrClosed].
func (o *Observer[K, V]) Next(ctx context.Context) ([]Change[K, V], error) {
	for {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		changes, err := o.Poll()
		if err != nil || len(changes) > 0 {
			return changes, err
		}
		select {
		case <-o.trigger:
		case <-ctx.Done():
		}
	}
}

// Poll is Next without waiting: it returns no changes if there are none. When it leaves some for
// the following call, Changed receives a value.
func (o *Observer[K, V]) Poll() ([]Change[K, V], error) {
	o.t.mu.Lock()
	defer o.t.mu.Unlock()
	if o.closed {
		return nil, ErrClosed
	}
	clear(o.batch) // release values reported before
	o.batch = o.batch[:0]
	for e := o.bookmark.next; e != &o.t.root && len(o.batch) < maxBatch; {
		next := e.next
		switch e.kind {
		case live:
			o.batch = append(o.batch, Change[K, V]{Row: e.row})
		case tombstone:
			if e.row.Revision > o.since {
				o.batch = append(o.batch, Change[K, V]{Row: e.row, Deleted: true})
			}
		}
		o.pass(e)
		e = next
	}
	if n := len(o.batch); n > 0 {
		o.revision = o.batch[n-1].Revision
	}
	if o.bookmark.next == &o.t.root {
		// Whatever was skipped at the end (other bookmarks, tombstones of before) is seen as well.
		o.revision = max(o.revision, o.t.revision)
	} else {
		retry.Notify(o.trigger) // no write may follow that would
	}
	return o.batch, nil
}

// pass moves the bookmark behind e, which follows it.
func (o *Observer[K, V]) pass(e *entry[K, V]) {
	o.bookmark.unlink()
	o.bookmark.insertAfter(e)
	o.saw(e)
}

// saw removes a tombstone that no observer waits for any more.
func (o *Observer[K, V]) saw(e *entry[K, V]) {
	if e.kind != tombstone || e.row.Revision <= o.since {
		return
	}
	if e.unseen--; e.unseen == 0 {
		e.unlink()
		delete(o.t.rows, e.row.Key)
	}
}

// Changed returns a channel that receives a value when there may be something for Poll. It is for
// callers that wait for other things as well; the others call Next.
func (o *Observer[K, V]) Changed() <-chan struct{} { return o.trigger }

// Revision returns the revision up to which changes were reported.
func (o *Observer[K, V]) Revision() uint64 {
	o.t.mu.RLock()
	defer o.t.mu.RUnlock()
	return o.revision
}

// Close ends the observation and wakes a Next that waits. Closing twice does nothing.
func (o *Observer[K, V]) Close() {
	o.t.mu.Lock()
	defer o.t.mu.Unlock()
	if o.closed {
		return
	}
	o.closed = true
	for e := o.bookmark.next; e != &o.t.root; {
		next := e.next
		o.saw(e)
		e = next
	}
	o.bookmark.unlink()
	o.batch = nil
	for i, other := range o.t.observers {
		if other == o {
			o.t.observers = append(o.t.observers[:i], o.t.observers[i+1:]...)
			break
		}
	}
	retry.Notify(o.trigger)
}

// changedSince counts the rows and tombstones with a later revision.
func (t *Table[K, V]) changedSince(revision uint64) int {
	t.mu.RLock()
	defer t.mu.RUnlock()
	n := 0
	for e := t.root.prev; e != &t.root && (e.kind == bookmark || e.row.Revision > revision); e = e.prev {
		if e.kind != bookmark {
			n++
		}
	}
	return n
}
