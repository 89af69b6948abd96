package mesh

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hawser-net/hawser/internal/operator/rounds"
	"github.com/hawser-net/hawser/pkg/kvstore"
)

const (
	// roundInterval is how often all objects are looked at.
	roundInterval = 10 * time.Minute
	// writers is how many keys are written at once.
	writers = 16
	// writeTimeout bounds one write, writeRetry is the pause after one that failed.
	writeTimeout = 30 * time.Second
	writeRetry   = time.Second
)

// entry is a key and its value as they stand in the store.
type entry struct{ name, value string }

// GetKeyName implements [kvstore.SharedKey].
func (e entry) GetKeyName() string { return e.name }

// Marshal implements [kvstore.SharedKey].
func (e entry) Marshal() ([]byte, error) { return []byte(e.value), nil }

// mirror keeps the keys of one kind.
type mirror struct {
	kind  string
	log   *slog.Logger
	store *kvstore.SharedStore[entry]
	// backend and canary: where to write that the kind is complete.
	backend kvstore.Backend
	canary  string
	// all reads every object of the kind from the cache.
	all func(context.Context) (map[string]said, error)
	// foreign says whether a value was written by somebody who looks after it.
	foreign func(value string) bool

	mu      sync.Mutex
	book    *book
	dirty   map[string]bool
	written map[string]bool // keys that are this operator's
	busy    bool            // keys are being written
	warned  bool
	wake    chan struct{}
	clean   chan struct{} // closed and replaced when nothing is dirty any more
}

// newMirror makes a mirror of a prefix. permanent keys outlive the operator.
func newMirror(kind, cluster, prefix string, permanent bool, backend kvstore.Backend, log *slog.Logger) (*mirror, error) {
	base, _, _ := strings.Cut(prefix, "/v1")
	m := &mirror{
		kind: kind, log: log.With("kind", kind), backend: backend, canary: kvstore.JoinKey(kvstore.SyncedPrefix, cluster, base+"/v1"),
		foreign: func(string) bool { return false },
		book:    newBook(), dirty: map[string]bool{}, written: map[string]bool{}, wake: make(chan struct{}, 1), clean: make(chan struct{}),
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
	if _, ok := m.book.value(name); ok || m.written[name] {
		m.touch(name)
	}
}

// touch marks keys. The caller holds mu.
func (m *mirror) touch(names ...string) {
	for _, n := range names {
		m.dirty[n] = true
	}
	select {
	case m.wake <- struct{}{}:
	default: // it is awake
	}
}

// take reads what an object says now, and has the store brought there. read is called with nobody else reading, so that what is read later counts.
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
	wg.Go(func() { m.write(ctx) })
	if err := m.store.WaitForSync(ctx); err != nil {
		if parent.Err() != nil {
			return nil
		}
		return err
	}
	_ = rounds.Every(ctx, roundInterval, nil, func(ctx context.Context) error {
		err := m.round(ctx)
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
	for {
		m.mu.Lock()
		clean, done := m.clean, len(m.dirty) == 0 && !m.busy
		m.mu.Unlock()
		if done {
			break
		}
		select {
		case <-clean:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	return kvstore.Put(ctx, m.backend, m.canary, []byte(time.Now().UTC().Format(time.RFC3339)), kvstore.Leased)
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
		if !m.written[key] {
			m.touch(key)
		}
	}
	m.log.Debug("looked at everything", "objects", len(all), "keys", len(m.book.speakers), "left-overs", left)
	return nil
}

// write writes what is dirty until ctx ends.
func (m *mirror) write(ctx context.Context) {
	for ctx.Err() == nil {
		m.mu.Lock()
		names := slices.Sorted(maps.Keys(m.dirty))
		if m.busy = len(names) > 0; !m.busy {
			close(m.clean)
			m.clean = make(chan struct{})
		}
		m.mu.Unlock()
		if len(names) == 0 {
			select {
			case <-m.wake:
			case <-ctx.Done():
			}
			continue
		}
		if err := m.writeAll(ctx, names); err != nil && ctx.Err() == nil {
			m.log.Warn("cannot tell other clusters of changes yet, trying again", "keys", len(names), "error", err)
			select {
			case <-time.After(writeRetry):
			case <-ctx.Done():
			}
		}
	}
}

// writeAll brings keys to the store, several at a time, and returns one of the errors.
func (m *mirror) writeAll(ctx context.Context, names []string) error {
	var wg sync.WaitGroup
	slots, failed := make(chan struct{}, writers), make(chan error, 1)
	for _, name := range names {
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			wg.Wait()
			return ctx.Err()
		}
		wg.Go(func() {
			defer func() { <-slots }()
			ctx, cancel := context.WithTimeout(ctx, writeTimeout)
			defer cancel()
			if err := m.bring(ctx, name); err != nil {
				m.mu.Lock()
				m.touch(name)
				m.mu.Unlock()
				select {
				case failed <- fmt.Errorf("%s: %w", name, err):
				default: // one is enough
				}
			}
		})
	}
	wg.Wait()
	select {
	case err := <-failed:
		return err
	default:
		return nil
	}
}

// bring writes or deletes one key, unless somebody else looks after it.
func (m *mirror) bring(ctx context.Context, name string) error {
	have, known := m.store.Get(name)
	m.mu.Lock()
	delete(m.dirty, name)
	want, ok := m.book.value(name)
	mine := m.written[name]
	theirs := known && m.foreign(have.value) && (!ok || have.value != want)
	warn := theirs && ok && !m.warned
	m.warned = m.warned || warn
	m.mu.Unlock()
	if warn {
		m.log.Warn("agents write this themselves; set --synchronize-k8s-nodes=false", "key", name)
	}
	switch {
	case theirs:
		return nil
	case ok && mine && known && have.value == want:
		return nil
	case ok:
		if err := m.store.UpdateLocalKeySync(ctx, entry{name, want}); err != nil {
			return err
		}
	case known || mine:
		if err := m.store.DeleteLocalKey(ctx, name); err != nil {
			return err
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if ok {
		m.written[name] = true
	} else {
		delete(m.written, name)
	}
	return nil
}
