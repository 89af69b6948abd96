package mesh

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/hawser-net/hawser/internal/clustermesh"
	"github.com/hawser-net/hawser/internal/operator/rounds"
	"github.com/hawser-net/hawser/internal/storekeys"
	"github.com/hawser-net/hawser/pkg/kvstore"
)

const (
	// roundInterval is how often all objects are looked at.
	roundInterval = 10 * time.Minute
	// batchKeys and batchBytes are how much one transaction writes: what every store takes, of
	// which Consul takes least, with a condition or two beside, and little enough that a change
	// waits for a moment only.
	batchKeys, batchBytes = 60, 256 << 10
	// writeTimeout bounds one write, writeRetry is the pause after one that failed.
	writeTimeout = 30 * time.Second
	writeRetry   = time.Second
	// pendingPoll is how often it is looked whether the store has written what failed before.
	pendingPoll = 200 * time.Millisecond
)

// entry is a key and its value as they stand in the store.
type entry struct{ name, value string }

// GetKeyName implements [kvstore.SharedKey].
func (e entry) GetKeyName() string { return e.name }

// Marshal implements [kvstore.SharedKey].
func (e entry) Marshal() ([]byte, error) { return []byte(e.value), nil }

// mirror keeps the keys of one kind.
//
// Changes are written before everything else. What a new leader finds as it should be is backlog:
// it must be written again, to be on the lease of this operator, but nobody waits for it, as it
// stays on the lease of the last one for minutes. Keys without a lease are left as they are.
type mirror struct {
	kind      string
	log       *slog.Logger
	store     *kvstore.SharedStore[entry]
	permanent bool
	// backend and canary: where to write that the kind is complete.
	backend kvstore.Backend
	canary  string
	// all reads every object of the kind from the cache.
	all func(context.Context) (map[string]said, error)
	// admit returns an error if the store is another cluster's.
	admit func(context.Context) error
	// foreign says whether a value was written by somebody who looks after it.
	foreign func(value string) bool
	// own says whether a key that no object stands for is this cluster's to remove.
	own func(name, value string) bool

	mu       sync.Mutex
	book     *book
	changed  map[string]bool // keys to look at
	backlog  map[string]bool // keys to write again, when nothing else is to be done
	written  map[string]bool // keys that are as they should be, on the lease of this operator if on any
	busy     bool            // keys are being written
	warned   bool
	surveyed bool      // all objects were looked at once
	limit    int       // keys of a transaction
	complete time.Time // when the store had everything last
	wake     chan struct{}
	clean    chan struct{} // closed and replaced when nothing is left to write
}

// newMirror makes a mirror of a prefix. permanent keys outlive the operator.
func newMirror(kind, cluster, prefix string, permanent bool, backend kvstore.Backend, log *slog.Logger) (*mirror, error) {
	base, _, _ := strings.Cut(prefix, "/v1")
	m := &mirror{
		kind: kind, log: log.With("kind", kind), permanent: permanent,
		backend: backend, canary: kvstore.JoinKey(storekeys.SyncedPrefix, cluster, base+"/v1"),
		admit:   func(ctx context.Context) error { return clustermesh.CheckOwner(ctx, backend, cluster) },
		foreign: func(string) bool { return false }, own: func(string, string) bool { return true },
		book: newBook(), changed: map[string]bool{}, backlog: map[string]bool{}, written: map[string]bool{}, wake: make(chan struct{}, 1), clean: make(chan struct{}),
		limit: batchKeys,
	}
	look := func(e entry) { m.look(e.name) }
	var err error
	m.store, err = kvstore.NewSharedStore(kvstore.SharedConfig[entry]{
		Backend: backend, Prefix: prefix, Permanent: permanent, Logger: m.log,
		Unmarshal: func(name string, value []byte) (entry, error) { return entry{name, string(value)}, nil },
		Observer:  kvstore.SharedObserver[entry]{OnUpdate: look, OnDelete: look},
	})
	return m, err
}

// look has a key looked at again whose value in the store has changed.
func (m *mirror) look(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	// What no object stands for may be what an old copy of the store has brought back.
	if _, ok := m.book.value(name); ok || m.written[name] || m.surveyed {
		m.touch(name)
	}
}

// touch marks keys. The caller holds mu.
func (m *mirror) touch(names ...string) {
	for _, n := range names {
		m.changed[n] = true
		delete(m.backlog, n)
	}
	select {
	case m.wake <- struct{}{}:
	default: // it is awake
	}
}

// take reads what an object says now, and has the store brought there. read is called with nobody
// else reading, so that what is read later counts.
func (m *mirror) take(object string, read func() (said, error)) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	s, err := read()
	if err != nil {
		return err
	}
	m.touch(m.book.set(object, s)...)
	return nil
}

// run keeps the store until ctx ends.
func (m *mirror) run(parent context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancelCause(parent)
	defer cancel(nil)
	wg.Go(func() {
		if err := m.store.Run(ctx); err != nil {
			cancel(err)
		}
	})
	if err := m.store.WaitForSync(ctx); err != nil {
		if parent.Err() != nil {
			return nil
		}
		return err
	}
	lost, stop := kvstore.LostLease(m.backend, m.canary)
	defer stop()
	writing := false
	_ = rounds.Every(ctx, roundInterval, lost, func(ctx context.Context) error {
		err := m.admit(ctx)
		if err == nil && !writing {
			writing = true
			wg.Go(func() { m.write(ctx) })
		}
		if err == nil {
			err = m.round(ctx)
		}
		if err != nil && ctx.Err() == nil {
			m.log.Warn("cannot bring the store in line with the cluster, trying again", "error", err)
		}
		return err
	})
	if parent.Err() != nil {
		return nil
	}
	return context.Cause(ctx)
}

// round looks at every object, and at every key that is in the store.
func (m *mirror) round(ctx context.Context) error {
	if err := m.survey(ctx); err != nil {
		return err
	}
	// A key that the store refuses must not keep everything from being looked at again.
	wctx, cancel := context.WithTimeout(ctx, roundInterval)
	err := m.settled(wctx)
	cancel()
	if err != nil {
		return fmt.Errorf("not everything is written: %w", err)
	}
	ctx, cancel = context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	if err := kvstore.Put(ctx, m.backend, m.canary, []byte(time.Now().UTC().Format(time.RFC3339)), kvstore.Leased); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.complete = time.Now()
	return nil
}

// settled waits until nothing is left to write.
func (m *mirror) settled(ctx context.Context) error {
	poll := time.NewTicker(pendingPoll)
	defer poll.Stop()
	for {
		m.mu.Lock()
		clean, done := m.clean, len(m.changed)+len(m.backlog) == 0 && !m.busy
		m.mu.Unlock()
		if done && m.store.Pending() == 0 {
			return nil
		}
		if done {
			clean = nil // what has failed is written by the store itself
		}
		select {
		case <-clean:
		case <-poll.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (m *mirror) survey(ctx context.Context) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	all, err := m.all(ctx)
	if err != nil {
		return err
	}
	for object := range m.book.said {
		if _, still := all[object]; !still {
			m.touch(m.book.set(object, said{})...)
		}
	}
	for object, s := range all {
		m.touch(m.book.set(object, s)...)
	}
	left := 0
	for name := range m.store.SharedKeysMap() {
		if _, ok := m.book.value(name); !ok {
			m.touch(name)
			left++
		}
	}
	for key := range m.book.speakers { // what is there may be another's, or on another operator's lease
		if !m.written[key] && !m.backlog[key] {
			m.touch(key)
		}
	}
	m.surveyed = true
	m.log.Debug("looked at everything", "objects", len(all), "keys", len(m.book.speakers), "left-overs", left)
	return nil
}

// left returns how many keys wait to be written, and when the store had everything last, zero for
// never.
func (m *mirror) left() (keys int, complete time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.changed) + len(m.backlog) + m.store.Pending(), m.complete
}

// write writes what has changed, and then the backlog, until ctx ends.
func (m *mirror) write(ctx context.Context) {
	for ctx.Err() == nil {
		b := m.next()
		if b.empty() {
			select {
			case <-m.wake:
			case <-ctx.Done():
			}
			continue
		}
		wctx, cancel := context.WithTimeout(ctx, writeTimeout)
		err := m.store.Apply(wctx, b.update, b.remove)
		cancel()
		if errors.Is(err, kvstore.ErrTxnTooLarge) {
			m.mu.Lock()
			m.limit = max(m.limit/2, 1)
			m.mu.Unlock()
		}
		if err != nil && ctx.Err() == nil {
			// From here on the store tries, each key alone in the end.
			m.log.Warn("cannot tell other clusters of changes yet, trying again", "keys", len(b.update)+len(b.remove), "error", err)
			select {
			case <-time.After(writeRetry):
			case <-ctx.Done():
			}
		}
	}
}

// batch is what one transaction writes.
type batch struct {
	update []entry
	remove []string
	bytes  int
}

func (b *batch) empty() bool { return len(b.update)+len(b.remove) == 0 }

func (b *batch) full(limit int) bool {
	return len(b.update)+len(b.remove) >= limit || b.bytes >= batchBytes
}

// next takes up to a batch of keys, those of changes first. It is empty if there is nothing to do.
func (m *mirror) next() (b batch) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for name := range m.changed {
		if b.full(m.limit) {
			break
		}
		delete(m.changed, name)
		if m.decide(name, &b) {
			m.backlog[name] = true
		}
	}
	// What is left of the batch, so that changes that never end do not keep the backlog from
	// getting done before the lease of the last leader ends.
	for name := range m.backlog {
		if b.full(m.limit) {
			break
		}
		delete(m.backlog, name)
		if m.decide(name, &b) {
			want, _ := m.book.value(name)
			m.put(name, want, &b)
		}
	}
	if m.busy = !b.empty(); !m.busy {
		close(m.clean)
		m.clean = make(chan struct{})
	}
	return b
}

// decide adds to a batch what a key needs now. It reports whether the key is as it should be but on
// the lease of another operator. The caller holds mu.
func (m *mirror) decide(name string, b *batch) (refresh bool) {
	if name == "" || strings.HasPrefix(name, "/") || kvstore.JoinKey(name) != name {
		return false // whoever wrote that, the store refuses it, and all that is written with it
	}
	have, known := m.store.Get(name)
	want, ok := m.book.value(name)
	equal := ok && known && have.value == want
	switch {
	case known && m.foreign(have.value) && !equal: // somebody else looks after it
		if ok && !m.warned {
			m.warned = true
			m.log.Warn("agents write this themselves; set --synchronize-k8s-nodes=false", "key", name)
		}
	case equal && (m.permanent || m.written[name]):
		m.written[name] = true
	case equal:
		return true
	case ok:
		m.put(name, want, b)
	case m.written[name] || known && m.own(name, have.value):
		delete(m.written, name)
		b.remove = append(b.remove, name)
		b.bytes += len(name)
	}
	return false
}

// put adds a key to a batch. The caller holds mu.
func (m *mirror) put(name, value string, b *batch) {
	m.written[name] = true
	b.update = append(b.update, entry{name, value})
	b.bytes += len(name) + len(value)
}
