package identities

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/k8s"
	"github.com/hawser-net/hawser/pkg/allocator"
)

// doSet does the next thing that a set of labels needs. What follows from it is done when the
// identity store has reported it.
func (c *Controller) doSet(ctx context.Context, text string) error {
	c.mu.Lock()
	st := c.index.decideSet(text)
	c.mu.Unlock()
	var did made
	var err error
	switch st.action {
	case create:
		did, err = c.identityStore.make(ctx, st)
	case restore:
		did, err = c.identityStore.restore(ctx, st)
	case revert:
		did, err = c.identityStore.revert(ctx, st)
	case withdraw:
		return c.identityStore.withdraw(ctx, st)
	case seal: // no pod waits for it, and it is limited
		c.seals.add(text)
		return nil
	case release:
		return c.release(ctx, text)
	case nothing, wait:
		return nil
	}
	c.mu.Lock()
	if err != nil && st.action == create {
		c.index.gaveUp(text)
	}
	if err == nil {
		delete(c.notified, text)
	}
	if err == nil && st.action == restore {
		c.index.noteRestored(text, st.id)
	}
	if did.uid != "" {
		c.index.noteMade(did.id, did.uid)
	}
	if did.held {
		c.index.keep(text)
	}
	c.flush()
	c.mu.Unlock()
	if errors.Is(err, allocator.ErrExhausted) {
		c.notify(st, err)
	}
	return err
}

// doSeal seals an object of a set of labels, if that is still what the set needs.
func (c *Controller) doSeal(ctx context.Context, text string) error {
	if err := c.writes.Wait(ctx); err != nil {
		return fmt.Errorf("waiting to give identities their digests: %w", err)
	}
	c.mu.Lock()
	st := c.index.decideSet(text)
	c.mu.Unlock()
	if st.action != seal {
		return nil
	}
	return c.identityStore.seal(ctx, st)
}

// release releases the reference to an unneeded ID. Whatever the identity store answers, there is
// none from here on.
func (c *Controller) release(ctx context.Context, text string) error {
	err := c.identityStore.release(ctx, text)
	c.mu.Lock()
	delete(c.index.kept, text)
	c.index.dirtySets[text] = struct{}{} // it may be needed by now
	c.flush()
	c.mu.Unlock()
	return err
}

// notify has pods of a set show that there is no identity for them, once.
func (c *Controller) notify(st step, err error) {
	c.mu.Lock()
	var pods []*corev1.Pod
	if s := c.index.sets[st.text]; s != nil && !c.notified[st.text] {
		for _, p := range s.pods {
			if pods = append(pods, p.obj); len(pods) == maxNotified {
				break
			}
		}
	}
	c.notified[st.text] = true
	c.mu.Unlock()
	for _, p := range pods {
		c.noIdentity(p, err)
	}
}

// noIdentity has a pod show that there is no identity for it.
func (c *Controller) noIdentity(p *corev1.Pod, err error) {
	c.events.Eventf(p, nil, corev1.EventTypeWarning, "IdentityNotMade", "MakeIdentity",
		"there is no security identity for the labels of this pod: %v", err)
}

// doEndpoint names the right identity in a pod's endpoint, or reports why there can be none.
func (c *Controller) doEndpoint(ctx context.Context, k key) error {
	c.mu.Lock()
	fix, ok := c.index.decideEndpoint(k)
	faulty, why := c.index.fault(k)
	c.mu.Unlock()
	if faulty != nil {
		c.log.Warn("the labels of a pod make no identity", "pod", k, "node", faulty.Spec.NodeName, "error", why)
		c.noIdentity(faulty, why)
	}
	if !ok {
		return nil
	}
	if wait := c.disputes.pause(k, time.Now(), c.cfg.MaxBackoff); wait > 0 {
		c.endpoints.AddAfter(k, wait)
		return nil
	}
	if fix.had != 0 {
		c.disputes.note(k, time.Now(), c.cfg.MaxBackoff)
	}
	if fix.doubt {
		if err := c.confirm(ctx, fix); err != nil {
			return err
		}
	}
	if fix.unseen || fix.refused != believed { // its ID may have been made a moment ago
		text, err := c.identityStore.labelsOf(ctx, fix.had)
		if err != nil {
			return err
		}
		if text == fix.labels.KVString() || fix.unseen && text != "" {
			return errChanged
		}
	}
	if err := c.name(ctx, fix); err != nil {
		return err
	}
	c.log.Debug("named an endpoint's identity", "endpoint", k, "identity", fix.id, "was", fix.had)
	if fix.refused != believed {
		c.refuse(fix)
	}
	return nil
}

// confirm asks the server whether an endpoint about which there is doubt is really wrong.
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
	t, err := c.index.rules.target(&pod, ns.Labels) // rules never change
	if err != nil || pod.UID != fix.pod || !k8s.Networked(&pod) || !t.labels.Equal(fix.labels) {
		return errChanged
	}
	return nil
}

// name writes an endpoint's identity, if the endpoint is the one that was seen and has not
// been written since.
func (c *Controller) name(ctx context.Context, fix correction) error {
	body, err := fix.patch()
	if err != nil {
		return fmt.Errorf("name identity %d in CiliumEndpoint %s: %w", fix.id, fix.key, err)
	}
	o := &v2.CiliumEndpoint{ObjectMeta: metav1.ObjectMeta{Namespace: fix.key.Namespace, Name: fix.key.Name}}
	err = c.client.Patch(ctx, o, client.RawPatch(types.MergePatchType, body))
	switch {
	case changed(err):
		return errChanged
	case err != nil:
		return fmt.Errorf("name identity %d in CiliumEndpoint %s: %w", fix.id, fix.key, err)
	}
	return nil
}

// patch is what name writes.
func (f *correction) patch() ([]byte, error) {
	id := v2.EndpointIdentity{ID: int64(f.id), Labels: slices.Sorted(slices.Values(f.labels.Strings()))}
	return json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": f.uid, "resourceVersion": f.rv}, "status": map[string]any{"identity": id},
	})
}

// decimal is an ID as the name of its object.
func decimal(id identity.ID) string { return fmt.Sprint(uint32(id)) }
