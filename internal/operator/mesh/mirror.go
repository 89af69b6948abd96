package mesh

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/hawser-net/hawser/internal/announce"
	"github.com/hawser-net/hawser/internal/clustermesh"
	"github.com/hawser-net/hawser/internal/operator/rounds"
	"github.com/hawser-net/hawser/internal/storekeys"
	"github.com/hawser-net/hawser/pkg/kvstore"
)

const (
	// roundInterval is how often all objects are looked at.
	roundInterval = 10 * time.Minute
	// batchKeys is how many keys one transaction writes: what every store accepts, of which Consul
	// accepts least, with a condition or two for each.
	batchKeys = 60
	// writeTimeout bounds the write of the canary.
	writeTimeout = 30 * time.Second
	// maxValue bounds a value: etcd takes requests of 1.5 MB.
	maxValue = 1 << 20
	// maxConsulValue is that of Consul, which takes requests of 512 KiB, with values in base64.
	maxConsulValue = 376 << 10
)

// mirror keeps the keys of one kind.
//
// Changes are written before everything else. A new leader must write keys that are already correct
// again, to move them to its lease. That is not urgent, as they stay on the last leader's lease for
// minutes: they are announced in batches, so that a change waits for one batch only. Keys without a
// lease are left as they are.
type mirror struct {
	kind    string
	log     *slog.Logger
	keys    *announce.Keys
	backend kvstore.Backend
	// canary is the key that shows that the kind is complete.
	canary    string
	permanent bool
	// all reads every object of the kind from the cache.
	all func(context.Context) (map[string]export, error)
	// admit returns an error if the store is another cluster's.
	admit func(context.Context) error
	// own reports whether a key that no object stands for is this cluster's to remove.
	own func(name, value string) bool
	// foreign reports whether a value is maintained by another writer.
	foreign func(value string) bool
	// most is how long a value may be.
	most int

	mu    sync.Mutex
	index *index
	// refused has the objects with values that are longer, and how many: the store would take none
	// of them, and the kind would never be complete.
	refused map[string]int
	// refresh has keys that are as they should be, on the lease of a former leader. As long as
	// there are any, keys that are not announced must not be removed.
	refresh  map[string]bool
	surveyed bool // all objects were looked at once, and what they stand for is announced
	warned   bool
	complete time.Time // when the store had everything last
}

// mirrorConfig is what a mirror is made from.
type mirrorConfig struct {
	kind, cluster, prefix string
	permanent             bool // keys outlive the operator
	// own reports whether a key without an object is this cluster's to remove, foreign whether a
	// value is maintained by another writer. By default all keys are the cluster's, and none is
	// foreign.
	own     func(name, value string) bool
	foreign func(value string) bool
}

func newMirror(cfg mirrorConfig, backend kvstore.Backend, log *slog.Logger) (*mirror, error) {
	if cfg.own == nil {
		cfg.own = func(string, string) bool { return true }
	}
	if cfg.foreign == nil {
		cfg.foreign = func(string) bool { return false }
	}
	base, _, _ := strings.Cut(cfg.prefix, "/v1")
	m := &mirror{
		kind: cfg.kind, log: log.With("kind", cfg.kind), permanent: cfg.permanent, own: cfg.own, foreign: cfg.foreign,
		backend: backend, canary: kvstore.JoinKey(storekeys.SyncedPrefix, cfg.cluster, base+"/v1"),
		admit: func(ctx context.Context) error { return clustermesh.CheckOwner(ctx, backend, cfg.cluster) },
		most:  maxValue, index: newIndex(), refused: map[string]int{}, refresh: map[string]bool{},
	}
	if backend.Layout() != kvstore.LayoutEtcd {
		m.most = maxConsulValue
	}
	var err error
	m.keys, err = announce.NewKeys(announce.KeysConfig{
		Prefix: cfg.prefix, What: cfg.kind, Permanent: cfg.permanent, Insist: true, Batch: batchKeys, Log: m.log,
		Owned:   func(name string, value []byte) bool { return cfg.own(name, string(value)) },
		Foreign: func(_ string, value []byte) bool { return cfg.foreign(string(value)) },
		Put: func(_ context.Context, name string, value []byte) {
			m.stored(name, string(value))
		},
	}, backend)
	return m, err
}

// stored takes note of a key that was written to the store.
func (m *mirror) stored(name, value string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, ok := m.index.value(name)
	switch {
	case ok:
		m.check(name, value)
	case m.surveyed && len(m.refresh) == 0 && m.own(name, value):
		m.keys.Prune() // it may be from an old copy of the store
	}
}

// check warns, once, if the key of an object is maintained by another writer. The caller holds mu.
func (m *mirror) check(name, value string) {
	if m.foreign(value) && !m.warned {
		m.warned = true
		m.log.Warn("agents write this themselves; set --synchronize-k8s-nodes=false", "key", name)
	}
}

// update reads the current state of an object, and has the store reconciled. Calls of read are
// serialized, so that the last read counts.
func (m *mirror) update(object string, read func() (export, error)) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	e, err := read()
	if err == nil {
		m.announce(m.set(object, e))
	}
	return err
}

// set replaces what an object stands for, without what is too large, and returns the keys that this
// may change. The caller holds mu.
func (m *mirror) set(object string, e export) []string {
	before := m.refused[object]
	delete(m.refused, object)
	for key, value := range e.values {
		if len(value) <= m.most {
			continue
		}
		if m.refused[object]++; before == 0 {
			m.log.Warn("an object is too large to be exported to other clusters", "object", object, "key", key, "bytes", len(value), "most", m.most)
		}
	}
	if m.refused[object] > 0 {
		e.values = maps.Clone(e.values)
		maps.DeleteFunc(e.values, func(_, value string) bool { return len(value) > m.most })
	}
	return m.index.set(object, e)
}

// announce announces keys as they are in the index, once that is complete. The caller holds mu.
func (m *mirror) announce(names []string) (revision uint64) {
	if !m.surveyed {
		return 0
	}
	for _, name := range names {
		delete(m.refresh, name)
		if value, ok := m.index.value(name); ok {
			if have, there := m.keys.Seen(name); there { // since before the object was known
				m.check(name, string(have))
			}
			revision = m.keys.Announce(name, []byte(value))
		} else {
			revision = m.keys.Withdraw(name)
		}
	}
	return revision
}

// run keeps the store until ctx ends.
func (m *mirror) run(parent context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancelCause(parent)
	defer cancel(nil)
	if err := m.start(ctx, func() { wg.Go(func() { cancel(m.keys.Run(ctx)) }) }); err == nil {
		// The lease of the canary is asked for after those of the keys: when it is known to be lost
		// they are known to be.
		lost, stop := kvstore.LostLease(m.backend, m.canary)
		defer stop()
		_ = rounds.Every(ctx, roundInterval, lost, m.logged(m.round))
	}
	if parent.Err() != nil {
		return nil
	}
	return context.Cause(ctx)
}

// start calls f as soon as the store is not another cluster's, and waits until the keys are known.
func (m *mirror) start(ctx context.Context, f func()) error {
	ask, admitted := context.WithCancel(ctx)
	defer admitted()
	_ = rounds.Every(ask, roundInterval, nil, m.logged(func(ctx context.Context) error {
		err := m.admit(ctx)
		if err == nil {
			admitted()
		}
		return err
	}))
	if ctx.Err() != nil {
		return ctx.Err()
	}
	f()
	return m.keys.WaitSynced(ctx)
}

func (m *mirror) logged(f func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		err := f(ctx)
		if err != nil && ctx.Err() == nil {
			m.log.Warn("cannot reconcile the store with the cluster, trying again", "error", err)
		}
		return err
	}
}

// round looks at every object, and at every key that is in the store.
func (m *mirror) round(ctx context.Context) error {
	if err := m.admit(ctx); err != nil {
		return err
	}
	if err := m.survey(ctx); err != nil {
		return err
	}
	// A key that the store refuses must not keep everything from being looked at again.
	wctx, cancel := context.WithTimeout(ctx, roundInterval)
	err := m.write(wctx)
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

// write waits until the store has everything that is announced, and announces meanwhile what is to
// be refreshed.
func (m *mirror) write(ctx context.Context) error {
	for {
		revision, more := m.refreshBatch()
		if !more {
			return m.keys.WaitComplete(ctx)
		}
		if err := m.keys.WaitTried(ctx, revision); err != nil {
			return err
		}
	}
}

// refreshBatch announces some of the keys that are to be refreshed.
func (m *mirror) refreshBatch() (revision uint64, more bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	names := make([]string, 0, batchKeys)
	for name := range m.refresh {
		if names = append(names, name); len(names) == batchKeys {
			break
		}
	}
	return m.announce(names), len(names) > 0
}

// survey looks at all objects.
func (m *mirror) survey(ctx context.Context) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	all, err := m.all(ctx)
	if err != nil {
		return err
	}
	for object := range m.index.exports {
		if _, still := all[object]; !still {
			m.announce(m.set(object, export{}))
		}
	}
	maps.DeleteFunc(m.refused, func(object string, _ int) bool {
		_, still := all[object]
		return !still
	})
	for object, e := range all {
		m.announce(m.set(object, e))
	}
	m.log.Debug("looked at everything", "objects", len(all), "keys", len(m.index.objects))
	if m.surveyed {
		return nil
	}
	m.surveyed = true
	var announced []string
	for key := range m.index.objects {
		want, _ := m.index.value(key)
		if have, ok := m.keys.Seen(key); ok && string(have) == want && !m.permanent {
			m.refresh[key] = true
		} else {
			announced = append(announced, key)
		}
	}
	m.announce(announced)
	return nil
}

// tooLarge returns how many keys are not exported because their values are too large.
func (m *mirror) tooLarge() (keys int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, n := range m.refused {
		keys += n
	}
	return keys
}

// left returns how many keys wait to be written, and when the store had everything last, zero for
// never.
func (m *mirror) left() (keys int, complete time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.surveyed {
		return len(m.index.objects), m.complete
	}
	s := m.keys.Status()
	return s.Pending + s.Failed + len(m.refresh), m.complete
}
