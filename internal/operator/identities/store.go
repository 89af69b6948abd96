package identities

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"github.com/hawser-net/hawser/internal/identity"
	k8sids "github.com/hawser-net/hawser/internal/k8s/identities"
	"github.com/hawser-net/hawser/internal/storekeys"
	"github.com/hawser-net/hawser/pkg/allocator"
	"github.com/hawser-net/hawser/pkg/kvstore"
)

// Keys defines which key-value store keeps the IDs.
type Keys struct {
	// Store is the connection. It must stay open while the controller runs, and is not closed.
	Store kvstore.Backend
	// Suffix names this process in its references. No other may have the same, not even one that
	// was on this machine before: each takes back its own.
	Suffix string
	// SyncInterval is how often all references are compared with the store; 0 for what the
	// allocator thinks best.
	SyncInterval time.Duration
}

// keyStore keeps IDs as keys of a store, by the allocator that agents have too. For each set of
// labels in use it holds a reference on the lease of this process. After a failover both leaders'
// references stand side by side, until the lease of the one that is gone has run out.
type keyStore struct {
	rules   *Rules
	backend *allocator.KVStoreBackend
	alloc   *allocator.Allocator
	log     *slog.Logger

	observer observer
	followed chan struct{} // closed when observer is set
	listed   atomic.Bool
}

func newKeyStore(cfg Keys, rules *Rules, log *slog.Logger) (*keyStore, error) {
	b, err := allocator.NewKVStoreBackend(allocator.KVStoreConfig{
		Store: cfg.Store, BasePath: storekeys.IdentitiesPrefix, Suffix: cfg.Suffix, KeyType: k8sids.Key{}, Logger: log,
	})
	if err != nil {
		return nil, err
	}
	if cfg.Suffix == "" {
		return nil, errors.New("identities in a key-value store: this process needs a name of its own")
	}
	h := &keyStore{rules: rules, backend: b, log: log, followed: make(chan struct{})}
	opts := []allocator.AllocatorOption{
		allocator.WithMin(allocator.ID(rules.First)), allocator.WithMax(allocator.ID(rules.Last)), allocator.WithMasterKeyProtection(), allocator.WithLogger(log),
	}
	if cfg.SyncInterval > 0 {
		opts = append(opts, allocator.WithSyncInterval(cfg.SyncInterval))
	}
	h.alloc, err = allocator.NewAllocator(k8sids.Key{}, &keyBackend{b, h}, opts...)
	return h, err
}

func (h *keyStore) follow(_ context.Context, _ cache.Cache, l observer) (toolscache.InformerSynced, error) {
	h.observer = l
	close(h.followed)
	return h.listed.Load, nil
}

func (h *keyStore) run(ctx context.Context) error {
	select {
	case <-h.followed:
		return h.alloc.Run(ctx)
	case <-ctx.Done():
		return nil
	}
}

// parseKey reads the labels of a set.
func parseKey(text string) (k8sids.Key, error) {
	k, err := k8sids.Key{}.PutKey(text)
	if err != nil {
		return k8sids.Key{}, fmt.Errorf("labels %q: %w", text, err)
	}
	return k.(k8sids.Key), nil
}

func (h *keyStore) make(ctx context.Context, st step) (made, error) {
	id, isNew, err := h.alloc.Allocate(ctx, k8sids.Key{Set: st.labels})
	if err != nil {
		return made{}, err
	}
	h.log.Debug("made sure of an identity", "identity", id, "labels", st.labels, "new", isNew)
	return made{held: true}, nil
}

// restore has the allocator go on with the ID as if this process had had it before. If it has
// become others', the allocator takes another one. One in quarantine after other labels is not
// taken.
func (h *keyStore) restore(ctx context.Context, st step) (made, error) {
	o, _, err := h.backend.Occupant(ctx, allocator.ID(st.id))
	if err != nil {
		return made{}, err
	}
	if o.Quarantined && o.Key != st.text {
		h.log.Warn("an identity in use is in quarantine after other labels: its labels get another one", "identity", st.id, "labels", st.labels, "after", o.Key)
		return h.make(ctx, st)
	}
	if err := h.alloc.Assume(k8sids.Key{Set: st.labels}, allocator.ID(st.id)); err != nil {
		h.log.Warn("an identity in use was deleted and cannot be restored", "identity", st.id, "labels", st.labels, "error", err)
		return h.make(ctx, st)
	}
	h.log.Warn("an identity in use was deleted or edited: restoring it", "identity", st.id, "labels", st.labels)
	return made{held: true}, nil
}

func (h *keyStore) revert(ctx context.Context, st step) (made, error) { return h.restore(ctx, st) }

func (h *keyStore) labelsOf(ctx context.Context, id identity.ID) (text string, err error) {
	key, err := h.backend.GetByID(ctx, allocator.ID(id))
	if errors.Is(err, allocator.ErrIdentityNonExistent) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("read identity %d: %w", id, err)
	}
	return key.GetKey(), nil
}

// seal has nothing to do: a store records with what a key was made.
func (h *keyStore) seal(context.Context, step) error { return nil }

// withdraw has nothing to do: the allocator withdraws an ID if there is an older one.
func (h *keyStore) withdraw(context.Context, step) error { return nil }

func (h *keyStore) release(ctx context.Context, text string) error {
	k, err := parseKey(text)
	if err != nil {
		return err
	}
	if _, err := h.alloc.Release(ctx, k); err != nil {
		h.log.Info("a reference to an unused identity stays for now", "labels", text, "error", err)
	}
	return nil
}

// keyBackend is the store as the allocator sees it. It notifies the observer of what it notifies
// the allocator.
type keyBackend struct {
	*allocator.KVStoreBackend
	identityStore *keyStore
}

// ListAndWatch implements [allocator.Backend].
func (b *keyBackend) ListAndWatch(ctx context.Context, handler allocator.CacheMutations) error {
	return b.KVStoreBackend.ListAndWatch(ctx, &notifyingHandler{handler, b.identityStore, make(map[allocator.ID]int64)})
}

// notifyingHandler notifies the observer of what the allocator is notified of.
type notifyingHandler struct {
	allocator.CacheMutations
	identityStore *keyStore
	// originals are the IDs of which is known what they were made with, and when they were
	// made.
	originals map[allocator.ID]int64
}

// OnListDone implements [allocator.CacheMutations].
func (t *notifyingHandler) OnListDone(revision int64) {
	t.CacheMutations.OnListDone(revision)
	t.identityStore.listed.Store(true)
}

// OnUpsert implements [allocator.CacheMutations]. An ID stands for its original labels, whatever is
// written over it; where these are not known, it is not assigned.
func (t *notifyingHandler) OnUpsert(m allocator.Mapping) {
	t.CacheMutations.OnUpsert(m)
	if !t.ours(m.ID) {
		return
	}
	now := &idEntry{id: identity.ID(m.ID), uid: types.UID(strconv.FormatInt(m.Created, 10)), born: m.Created}
	now.life = now.uid
	if m.Original {
		t.originals[m.ID] = m.Incarnation
	}
	if m.Key != nil && t.originals[m.ID] == m.Incarnation {
		now.text, now.nowText, now.certain = m.Key.GetKey(), m.Key.GetKey(), true
	}
	if m.Edited {
		now.nowText = ""
	}
	t.identityStore.observer.setID(now)
}

// OnDelete implements [allocator.CacheMutations].
func (t *notifyingHandler) OnDelete(id allocator.ID, revision int64) {
	t.CacheMutations.OnDelete(id, revision)
	delete(t.originals, id)
	if t.ours(id) {
		t.identityStore.observer.dropID(identity.ID(id))
	}
}

func (t *notifyingHandler) ours(id allocator.ID) bool {
	return id >= allocator.ID(t.identityStore.rules.First) && id <= allocator.ID(t.identityStore.rules.Last)
}
