package identities

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
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

// doSet does the next thing that a set of labels needs. What follows from it is done when the watch has told of it.
func (c *Controller) doSet(ctx context.Context, text string) error {
	c.mu.Lock()
	st := c.book.decideSet(text)
	c.mu.Unlock()
	switch st.verb {
	case create:
		return c.create(ctx, st)
	case restore:
		_, err := c.prober.Restore(ctx, allocator.ID(st.id), text, k8sids.SecurityLabels(st.labels))
		if err == nil {
			c.log.Warn("an identity in use was gone: it is there again", "identity", st.id, "labels", st.labels)
		}
		return err
	case revert:
		return c.revert(ctx, st)
	case withdraw:
		o := &v2.CiliumIdentity{ObjectMeta: metav1.ObjectMeta{Name: decimal(st.id)}}
		err := c.client.Delete(ctx, o, client.Preconditions{UID: &st.uid, ResourceVersion: &st.rv})
		if changed(err) {
			return errChanged
		}
		if err == nil {
			c.log.Info("took back an identity, because an older one has the same labels", "identity", st.id, "labels", text)
		}
		return err
	case nothing, wait:
	}
	return nil
}

// create makes a number for a set of labels, or finds the one that another writer has just made.
func (c *Controller) create(ctx context.Context, st step) error {
	got, err := c.prober.Probe(ctx, st.text, k8sids.SecurityLabels(st.labels))
	if err != nil {
		c.mu.Lock()
		c.book.gaveUp(st.text)
		c.flush()
		c.mu.Unlock()
		if errors.Is(err, allocator.ErrExhausted) {
			c.tell(st, err)
		}
		return err
	}
	c.mu.Lock()
	delete(c.told, st.text)
	if got.Made {
		c.book.noteMade(identity.ID(got.ID), got.Object.UID)
		c.flush()
	}
	c.mu.Unlock()
	c.log.Debug("made sure of an identity", "identity", got.ID, "labels", st.labels, "new", got.Made)
	return nil
}

// tell has pods of a set show that there is no identity for them, once.
func (c *Controller) tell(st step, err error) {
	c.mu.Lock()
	var pods []*corev1.Pod
	if s := c.book.sets[st.text]; s != nil && !c.told[st.text] {
		for _, p := range s.pods {
			if pods = append(pods, p.obj); len(pods) == maxTold {
				break
			}
		}
	}
	c.told[st.text] = true
	c.mu.Unlock()
	for _, p := range pods {
		c.events.Eventf(p, nil, corev1.EventTypeWarning, "IdentityNotMade", "MakeIdentity",
			"there is no security identity for the labels of this pod: %v", err)
	}
}

// revert gives an identity the labels back that it had before somebody changed them.
func (c *Controller) revert(ctx context.Context, st step) error {
	o, err := objects{c.client, c.live}.Get(ctx, decimal(st.id), metav1.GetOptions{})
	if changed(err) || err == nil && (o.UID != st.uid || o.ResourceVersion != st.rv) {
		return errChanged
	}
	if err != nil {
		return fmt.Errorf("read identity %d: %w", st.id, err)
	}
	edited := o.SecurityLabels
	k8sids.Revive(o, k8sids.SecurityLabels(st.labels))
	if err := c.client.Update(ctx, o); changed(err) {
		return errChanged
	} else if err != nil {
		return fmt.Errorf("give identity %d its labels back: %w", st.id, err)
	}
	c.log.Warn("somebody changed the labels of an identity in use: it has them back", "identity", st.id, "labels", st.labels, "edited", edited)
	return nil
}

// doEndpoint names the right identity in an endpoint.
func (c *Controller) doEndpoint(ctx context.Context, k key) error {
	c.mu.Lock()
	fix, ok := c.book.decideEndpoint(k)
	c.mu.Unlock()
	if !ok {
		return nil
	}
	if fix.doubt {
		if err := c.confirm(ctx, fix); err != nil {
			return err
		}
	}
	body, err := fix.patch()
	if err != nil {
		return err
	}
	o := &v2.CiliumEndpoint{ObjectMeta: metav1.ObjectMeta{Namespace: k.Namespace, Name: k.Name}}
	if err := c.client.Patch(ctx, o, client.RawPatch(types.JSONPatchType, body)); changed(err) {
		return errChanged
	} else if err != nil {
		return fmt.Errorf("name identity %d in CiliumEndpoint %s: %w", fix.id, k, err)
	}
	c.log.Debug("named an endpoint's identity", "endpoint", k, "identity", fix.id, "was", fix.had)
	return nil
}

// confirm asks the server whether an endpoint that was written after everything that is known of its pod is really wrong: its agent may know more.
func (c *Controller) confirm(ctx context.Context, fix correction) error {
	var pod corev1.Pod
	var ns corev1.Namespace
	err := c.live.Get(ctx, fix.key, &pod)
	if err == nil {
		err = c.live.Get(ctx, client.ObjectKey{Name: fix.key.Namespace}, &ns)
	}
	if apierrors.IsNotFound(err) {
		return errChanged
	}
	if err != nil {
		return fmt.Errorf("read pod %s: %w", fix.key, err)
	}
	t, err := c.book.rules.target(&pod, ns.Labels) // rules never change
	if err != nil || pod.UID != fix.pod || !counts(&pod) || !t.labels.Equal(fix.labels) {
		return errChanged
	}
	return nil
}

// patch writes the identity, if the endpoint is the one that was seen and nobody has written it since.
func (f *correction) patch() ([]byte, error) {
	type op struct {
		Op    string `json:"op"`
		Path  string `json:"path"`
		Value any    `json:"value"`
	}
	id := v2.EndpointIdentity{ID: int64(f.id), Labels: slices.Sorted(slices.Values(f.labels.Strings()))}
	last := op{"add", "/status/identity", id} // "add" also replaces
	if f.blank {
		last = op{"add", "/status", v2.EndpointStatus{Identity: &id}}
	}
	return json.Marshal([]op{{"test", "/metadata/uid", f.uid}, {"test", "/metadata/resourceVersion", f.rv}, last})
}

// changed says whether a write failed because the object is another than was known.
func changed(err error) bool {
	return apierrors.IsNotFound(err) || apierrors.IsConflict(err) || apierrors.IsInvalid(err)
}

// decimal is a number as the name of its object.
func decimal(id identity.ID) string { return fmt.Sprint(uint32(id)) }
