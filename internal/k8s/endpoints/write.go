package endpoints

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/k8s"
)

// object is what is known of an object.
type object struct {
	uid     types.UID
	version string
	owner   types.UID // of the pod it belongs to; empty if it has none
	status  v2.EndpointStatus
}

func seen(o *v2.CiliumEndpoint) object {
	s := object{uid: o.UID, version: o.ResourceVersion, status: o.Status}
	for _, ref := range o.OwnerReferences {
		if ref.Kind == "Pod" {
			s.owner = ref.UID
		}
	}
	return s
}

// write brings this node's objects to what is wanted, until ctx ends. An object that changes is written at once.
func (e *Endpoints) write(ctx context.Context) error {
	compare := time.NewTimer(e.pause())
	defer compare.Stop()
	failing := refused{}
	for {
		e.mu.Lock()
		keys := e.dirty
		e.dirty = map[k8s.Key]bool{}
		e.mu.Unlock()
		for key := range keys {
			err := e.bring(ctx, key)
			switch {
			case ctx.Err() != nil:
				return nil
			case err != nil:
				if failing.failed(key, err) {
					e.cfg.Log.Warn("cannot tell the other nodes of a pod yet", "pod", key, "error", err)
				}
			case failing.worked(key):
				e.cfg.Log.Info("told the other nodes of a pod", "pod", key)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-e.wake:
		case <-compare.C:
			failing.tick()
			e.mu.Lock()
			for key := range e.want {
				e.dirty[key] = e.dirty[key] || failing.due(key)
			}
			for key := range e.have {
				e.dirty[key] = e.dirty[key] || failing.due(key)
			}
			maps.DeleteFunc(e.dirty, func(_ k8s.Key, dirty bool) bool { return !dirty })
			e.mu.Unlock()
			compare.Reset(e.pause())
		}
	}
}

// pause is the time between two comparisons, up to a tenth more or less: nodes that started together must not all compare at the same moment.
func (e *Endpoints) pause() time.Duration {
	return e.cfg.Interval*9/10 + rand.N(e.cfg.Interval/5+1)
}

// maxMissed is how many comparisons an object that the server refuses misses at most between two attempts.
const maxMissed = 8

// refused are the objects that could not be written. They are tried again at the comparisons, and less and less often if the server answers, since one that
// refuses a node's objects is likely to have thousands of nodes ask. One that cannot be reached is not troubled by that, and wants to be found soon when it is back.
type refused map[k8s.Key]*attempt

// attempt is when an object is tried next: after left comparisons of missed in all.
type attempt struct{ missed, left int }

// failed notes an attempt in vain. It reports whether that is news.
func (r refused) failed(key k8s.Key, err error) (news bool) {
	a := r[key]
	if a == nil {
		r[key] = &attempt{missed: 1, left: 1}
		return true
	}
	a.missed = min(2*a.missed, maxMissed)
	if status := apierrors.APIStatus(nil); !errors.As(err, &status) {
		a.missed = 1
	}
	a.left = a.missed
	return false
}

// worked forgets an object. It reports whether that is news.
func (r refused) worked(key k8s.Key) (news bool) {
	_, news = r[key]
	delete(r, key)
	return news
}

// tick counts a comparison.
func (r refused) tick() {
	for _, a := range r {
		a.left--
	}
}

// due says whether an object is to be looked at in this comparison.
func (r refused) due(key k8s.Key) bool {
	a := r[key]
	return a == nil || a.left <= 0
}

// bring does the one next thing that an object needs. What came of it is told by the watch alone, so that no answer that comes late counts; what is not as it
// should be at the next comparison is tried again.
func (e *Endpoints) bring(ctx context.Context, key k8s.Key) error {
	e.mu.Lock()
	want, wanted := e.want[key]
	have, exists := e.have[key]
	e.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, k8s.RequestTimeout)
	defer cancel()
	switch {
	case !wanted && !exists:
		return nil
	case !wanted:
		return e.delete(ctx, key, have)
	case !exists:
		return e.create(ctx, want)
	}
	return e.adjust(ctx, want, have)
}

// adjust brings an object that exists to what is wanted.
func (e *Endpoints) adjust(ctx context.Context, want Local, have object) error {
	if string(have.owner) != want.UID { // of a pod of the same name that was there before
		return e.delete(ctx, want.Key(), have)
	}
	status := want.status(e.cfg.Hosts[0])
	if e.keepIdentity(want, have) {
		status.Identity = have.status.Identity
	}
	if !same(have.status, status) {
		return e.patch(ctx, want, have, status)
	}
	e.note(want)
	return nil
}

// keepIdentity says whether the identity that an object names is to stay. It is while this node knows none; and where the operator writes it too, once it has
// been this one: the operator may have heard of labels before this node has, and neither is to undo what the other does.
func (e *Endpoints) keepIdentity(want Local, have object) bool {
	if want.Identity == 0 {
		return true
	}
	if !e.cfg.Shared || have.status.Identity == nil {
		return false
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return have.status.Identity.ID == int64(want.Identity) || e.said[want.Key()] == want.Identity
}

// note remembers which identity an object was brought to.
func (e *Endpoints) note(l Local) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if l.Identity != 0 {
		e.said[l.Key()] = l.Identity
	}
}

// same compares what this node writes; what others wrote into other fields is left alone.
func same(have, want v2.EndpointStatus) bool {
	have.Controllers, have.Health, have.Log, have.Policy = nil, nil, nil, nil
	return reflect.DeepEqual(have, want)
}

func (e *Endpoints) create(ctx context.Context, l Local) error {
	block := false
	o := &v2.CiliumEndpoint{
		ObjectMeta: metav1.ObjectMeta{
			Name: l.Pod, Namespace: l.Namespace, Labels: l.podLabels(),
			// With its pod it goes even if this node never comes back.
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: l.Pod, UID: types.UID(l.UID), BlockOwnerDeletion: &block}},
		},
		Status: l.status(e.cfg.Hosts[0]),
	}
	err := e.client.Post().Namespace(l.Namespace).Resource(v2.ResourceEndpoints).Body(o).Do(ctx).Error()
	if apierrors.IsAlreadyExists(err) {
		// The watch is behind; or the object is another node's, where a pod of the same name was.
		there := &v2.CiliumEndpoint{}
		if err = e.client.Get().Namespace(l.Namespace).Resource(v2.ResourceEndpoints).Name(l.Pod).Do(ctx).Into(there); err == nil {
			return e.adjust(ctx, l, seen(there))
		}
	}
	if err != nil {
		return fmt.Errorf("create CiliumEndpoint %s: %w", l.Key(), err)
	}
	e.note(l)
	return nil
}

func (e *Endpoints) patch(ctx context.Context, want Local, have object, status v2.EndpointStatus) error {
	key := want.Key()
	type op struct {
		Op    string `json:"op"`
		Path  string `json:"path"`
		Value any    `json:"value"`
	}
	// "add" also replaces, and works on an object without a status.
	ops := []op{{"test", "/metadata/uid", have.uid}, {"add", "/status", status}}
	if e.cfg.Shared { // what the operator wrote meanwhile must not be undone unseen
		ops = slices.Insert(ops, 1, op{"test", "/metadata/resourceVersion", have.version})
	}
	body, err := json.Marshal(ops)
	if err != nil {
		return err
	}
	err = e.client.Patch(types.JSONPatchType).Namespace(key.Namespace).Resource(v2.ResourceEndpoints).Name(key.Name).Body(body).Do(ctx).Error()
	if apierrors.IsNotFound(err) || apierrors.IsInvalid(err) { // gone, or another one: the watch tells
		return nil
	}
	if err != nil {
		return fmt.Errorf("patch CiliumEndpoint %s: %w", key, err)
	}
	e.note(want)
	return nil
}

func (e *Endpoints) delete(ctx context.Context, key k8s.Key, have object) error {
	err := e.client.Delete().Namespace(key.Namespace).Resource(v2.ResourceEndpoints).Name(key.Name).
		Body(&metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &have.uid}}).Do(ctx).Error()
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("delete CiliumEndpoint %s: %w", key, err)
	}
	return nil
}
