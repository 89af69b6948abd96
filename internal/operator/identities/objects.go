package identities

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/identity"
	k8sids "github.com/hawser-net/hawser/internal/k8s/identities"
	"github.com/hawser-net/hawser/pkg/allocator"
)

// objects is the operator's way to CiliumIdentities for [k8sids.Prober].
type objects struct {
	client client.Client
	live   client.Reader
}

// Create implements [k8sids.Objects].
func (o objects) Create(ctx context.Context, id *v2.CiliumIdentity, _ metav1.CreateOptions) (*v2.CiliumIdentity, error) {
	return id, o.client.Create(ctx, id)
}

// Get implements [k8sids.Objects].
func (o objects) Get(ctx context.Context, name string, _ metav1.GetOptions) (*v2.CiliumIdentity, error) {
	id := &v2.CiliumIdentity{}
	return id, o.live.Get(ctx, client.ObjectKey{Name: name}, id)
}

// Update implements [k8sids.Objects].
func (o objects) Update(ctx context.Context, id *v2.CiliumIdentity, _ metav1.UpdateOptions) (*v2.CiliumIdentity, error) {
	return id, o.client.Update(ctx, id)
}

// objectStore keeps IDs as CiliumIdentities.
type objectStore struct {
	objects
	rules  *Rules
	prober k8sids.Prober
	salt   k8sids.Salt
	log    *slog.Logger
}

// newObjectStore returns one. c is the observer's cache.
func newObjectStore(o objects, rules *Rules, c *Controller, log *slog.Logger) *objectStore {
	h := &objectStore{objects: o, rules: rules, log: log}
	h.prober = k8sids.Prober{
		Objects: o, First: allocator.ID(rules.First), Last: allocator.ID(rules.Last), Salt: h.readSalt, Text: textOf, Known: c.known, Former: c.former, Full: c.full,
	}
	return h
}

// readSalt returns the cluster's salt.
func (h *objectStore) readSalt(ctx context.Context) (string, error) {
	return h.salt.Get(ctx, func(ctx context.Context) (types.UID, error) {
		var ns corev1.Namespace
		err := h.live.Get(ctx, client.ObjectKey{Name: k8sids.SaltNamespace}, &ns)
		return ns.UID, err
	})
}

func (h *objectStore) follow(ctx context.Context, informers cache.Cache, l observer) (toolscache.InformerSynced, error) {
	return handle(ctx, informers, func(o *v2.CiliumIdentity) {
		if now, ok := h.rules.idEntryOf(o); ok {
			l.setID(now)
		}
	}, func(o *v2.CiliumIdentity) {
		if id, ok := idOf(o.Name, h.rules.First, h.rules.Last); ok {
			l.dropID(id)
		}
	})
}

func (h *objectStore) run(context.Context) error { return nil }

func (h *objectStore) make(ctx context.Context, st step) (made, error) {
	got, err := h.prober.Probe(ctx, st.text, k8sids.SecurityLabels(st.labels))
	if err != nil {
		return made{}, err
	}
	h.log.Debug("made sure of an identity", "identity", got.ID, "labels", st.labels, "new", got.Made)
	if !got.Made {
		return made{}, nil
	}
	return made{id: identity.ID(got.ID), uid: got.Object.UID}, nil
}

func (h *objectStore) restore(ctx context.Context, st step) (made, error) {
	_, err := h.prober.Restore(ctx, allocator.ID(st.id), st.text, k8sids.SecurityLabels(st.labels))
	if conflict := (*allocator.ConflictError)(nil); errors.As(err, &conflict) {
		h.log.Warn("an identity in use was deleted and cannot be restored", "identity", st.id, "labels", st.labels, "error", err)
		return h.make(ctx, st)
	}
	if err == nil {
		h.log.Warn("an identity in use was deleted, and is restored", "identity", st.id, "labels", st.labels)
	}
	return made{}, err
}

func (h *objectStore) revert(ctx context.Context, st step) (made, error) {
	var edited map[string]string
	err := h.rewrite(ctx, st, "give its labels back to", func(o *v2.CiliumIdentity) {
		edited = o.SecurityLabels
		k8sids.Restore(o, k8sids.SecurityLabels(st.labels))
	})
	if err == nil {
		h.log.Warn("the labels of an identity in use were changed by hand, and are restored", "identity", st.id, "labels", st.labels, "edited", edited)
	}
	return made{}, err
}

func (h *objectStore) seal(ctx context.Context, st step) error {
	return h.rewrite(ctx, st, "give a digest to", k8sids.Seal)
}

// rewrite changes an object that is still what was decided about.
func (h *objectStore) rewrite(ctx context.Context, st step, action string, f func(*v2.CiliumIdentity)) error {
	o, err := h.Get(ctx, decimal(st.id), metav1.GetOptions{})
	if changed(err) || err == nil && (o.UID != st.uid || o.ResourceVersion != st.rv) {
		return errChanged
	}
	if err != nil {
		return fmt.Errorf("read identity %d: %w", st.id, err)
	}
	f(o)
	if err := h.client.Update(ctx, o); changed(err) {
		return errChanged
	} else if err != nil {
		return fmt.Errorf("%s identity %d: %w", action, st.id, err)
	}
	return nil
}

func (h *objectStore) withdraw(ctx context.Context, st step) error {
	err := h.rewrite(ctx, st, "withdraw", func(o *v2.CiliumIdentity) { k8sids.Quarantine(o, st.text, time.Now()) })
	if err == nil {
		h.log.Info("withdrew an identity, because an older one has the same labels", "identity", st.id, "labels", st.text)
	}
	return err
}

func (h *objectStore) labelsOf(ctx context.Context, id identity.ID) (text string, err error) {
	o, err := h.Get(ctx, decimal(id), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("read identity %d: %w", id, err)
	}
	if _, _, quarantined := k8sids.Quarantined(o); quarantined {
		return "", nil
	}
	return textOf(o), nil
}

// release has nothing to do: what keeps an object are the pods and endpoints themselves.
func (h *objectStore) release(context.Context, string) error { return nil }

// changed reports whether a write failed because the object is another than was known. What
// admission refuses is Invalid or Forbidden: every write names the version that was known, so that
// it is never mistaken for a conflict.
func changed(err error) bool { return apierrors.IsNotFound(err) || apierrors.IsConflict(err) }
