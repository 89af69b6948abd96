package endpoints

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"reflect"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"

	"github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/k8s"
	"github.com/hawser-net/hawser/internal/k8s/pods"
)

// object is the cached state of an object.
type object struct {
	uid     types.UID
	version string
	own     bool      // it names this node
	owner   types.UID // of the pod it belongs to; empty if it has none
	labels  map[string]string
	status  v2.EndpointStatus
}

// creation is when an object was made here last, and for which pod.
type creation struct {
	uid string
	at  time.Time
}

// recent reports whether the object was made for this pod less than the given time ago.
func (c creation) recent(uid string, within time.Duration) bool {
	return c.uid == uid && time.Since(c.at) < within
}

// relabelling is which labels were written to an object last, and when.
type relabelling struct {
	labels map[string]string
	at     time.Time
}

// errGone means that the pod of an endpoint is not the one that has its name now, if any has.
var errGone = errors.New("it is not written, as the pod does not exist any more: it was deleted by force, or while this node was cut off")

func seen(o *v2.CiliumEndpoint, own bool) object {
	s := object{own: own, uid: o.UID, version: o.ResourceVersion, labels: o.Labels, status: o.Status}
	for _, ref := range o.OwnerReferences {
		if ref.Kind == "Pod" {
			s.owner = ref.UID
		}
	}
	return s
}

// requests are a way to make requests: at the configured rate, or without a limit.
type requests struct {
	objects rest.Interface // of cilium.io/v2
	pods    corev1.PodsGetter
}

// write reconciles this node's objects, until ctx ends. An object that changes is
// written at once.
func (e *Endpoints) write(ctx context.Context) error {
	compare := time.NewTimer(e.pause())
	defer compare.Stop()
	tried, begun := attempts{}, newFlights()
	limit, done := flowcontrol.NewTokenBucketRateLimiter(urgentQPS, urgentBurst), make(chan step, workers)
	defer func() {
		for range len(begun.steps) {
			<-done
		}
	}()
	for {
		for s, ok := e.next(begun); ok; s, ok = e.next(begun) {
			begun.begin(s)
			go func() { done <- e.take(ctx, s, limit) }()
		}
		select {
		case <-ctx.Done():
			return nil
		case <-e.trigger:
		case s := <-done:
			begun.end(s)
			switch {
			case ctx.Err() != nil:
				return nil
			case s.err != nil:
				if tried.failed(s.key, s.err) {
					e.cfg.Log.Warn("cannot publish a pod to other nodes yet", "pod", s.key, "error", s.err)
				}
			case s.wrote && tried.wrote(s.key), !s.wrote && tried.done(s.key):
				e.cfg.Log.Info("published a pod to other nodes", "pod", s.key)
			}
		case <-compare.C:
			tried.tick()
			begun.forget()
			e.compare(tried, begun)
			compare.Reset(e.pause())
		}
	}
}

// take does a step, an urgent one as soon as their limit lets it.
func (e *Endpoints) take(ctx context.Context, s step, limit flowcontrol.RateLimiter) step {
	by := e.limited
	if s.urgent {
		if by = e.urgent; limit.Wait(ctx) != nil {
			return s // ctx has ended
		}
	}
	began := time.Now()
	s.wrote, s.err = e.syncObject(ctx, by, s.key)
	s.took = time.Since(began)
	return s
}

// compare has all objects looked at whose turn it is, and forgets what is over.
func (e *Endpoints) compare(tried attempts, begun *flights) {
	e.mu.Lock()
	defer e.mu.Unlock()
	look := func(key k8s.Key) { e.dirty[key] = e.dirty[key] || !begun.has(key) && tried.due(key) }
	for key := range e.want {
		look(key)
	}
	for key := range e.have {
		look(key)
	}
	maps.DeleteFunc(tried, func(key k8s.Key, _ *attempt) bool { _, known := e.dirty[key]; return !known })
	maps.DeleteFunc(e.dirty, func(_ k8s.Key, dirty bool) bool { return !dirty })
	maps.DeleteFunc(e.ended, func(key k8s.Key, _ bool) bool { _, exists := e.have[key]; return !exists && !begun.has(key) })
}

// pause is the time between two comparisons, up to a tenth more or less: nodes that started
// together must not all compare at the same moment.
func (e *Endpoints) pause() time.Duration {
	return e.cfg.Interval*9/10 + rand.N(e.cfg.Interval/5+1)
}

// maxMissed is how many comparisons an object misses at most between two attempts.
const maxMissed = 8

// attempts are the objects that were written in vain, or which the watch has not shown yet. They
// are tried again at the comparisons, and less and less often: a server that is late with one
// node's objects is likely to have thousands of nodes ask, and each attempt that comes too early
// makes all the others later. One that cannot be reached is not troubled by that, and wants to be
// found soon when it is back.
type attempts map[k8s.Key]*attempt

// attempt is when an object is tried next: after left comparisons of missed in all.
type attempt struct {
	missed, left int
	failed       bool // the last one was in vain
}

// wait has an object left alone for some comparisons, after an attempt.
func (r attempts) wait(key k8s.Key, missed int) *attempt {
	a := r[key]
	if a == nil {
		a = &attempt{}
		r[key] = a
	}
	a.missed, a.left = missed, missed
	return a
}

// failed notes an attempt in vain. It reports whether that is a change.
func (r attempts) failed(key k8s.Key, err error) (changed bool) {
	missed := 1
	if last := r[key]; last != nil && (busy(err) || errors.Is(err, errGone)) {
		missed = min(2*last.missed, maxMissed)
	}
	a := r.wait(key, missed)
	changed, a.failed = !a.failed, true
	return changed
}

// wrote notes an attempt that the server has accepted; the watch is to show what came of it, and
// one that is late is no reason to write the same again. It reports whether that is a change.
func (r attempts) wrote(key k8s.Key) (changed bool) {
	a := r.wait(key, maxMissed)
	changed, a.failed = a.failed, false
	return changed
}

// done forgets an object, which is as it should be. It reports whether that is a change.
func (r attempts) done(key k8s.Key) (changed bool) {
	a := r[key]
	delete(r, key)
	return a != nil && a.failed
}

// busy reports whether a server is there that has too much to do: it has refused, or not answered
// in time.
func busy(err error) bool {
	if status := apierrors.APIStatus(nil); errors.As(err, &status) {
		return true
	}
	if op := (*net.OpError)(nil); errors.As(err, &op) && op.Op == "dial" {
		return false
	}
	return errors.Is(err, context.DeadlineExceeded)
}

// tick counts a comparison.
func (r attempts) tick() {
	for _, a := range r {
		a.left--
	}
}

// due reports whether an object is to be looked at in this comparison.
func (r attempts) due(key k8s.Key) bool {
	a := r[key]
	return a == nil || a.left <= 0
}

// syncObject does the one next thing that an object needs, and reports whether there was any. What
// came of it is shown by the watch alone, so that no answer that comes late counts; what is not as
// it should be at the next comparison is tried again.
func (e *Endpoints) syncObject(ctx context.Context, by requests, key k8s.Key) (wrote bool, err error) {
	e.mu.Lock()
	want, wanted := e.want[key]
	have, exists := e.have[key]
	e.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, k8s.RequestTimeout)
	defer cancel()
	switch {
	case !wanted && (!exists || !have.own):
		return false, nil
	case !wanted:
		if runs, err := e.runsAllTheSame(ctx, by, key, have); runs || err != nil {
			return true, err // it is looked at again
		}
		return true, e.delete(ctx, by, key, have)
	case !exists:
		return true, e.create(ctx, by, want)
	}
	return e.adjust(ctx, by, want, have)
}

// adjust updates an existing object. It reports whether there was anything to
// do.
func (e *Endpoints) adjust(ctx context.Context, by requests, want Local, have object) (wrote bool, err error) {
	if string(have.owner) != want.UID {
		// Of a pod of the same name that was there before, or that is there now, on another node: a
		// pod that was deleted by force may run here still, and a node that was cut off may know
		// pods that are gone. Only the API server knows which of them exists.
		uid, err := e.podUID(ctx, by, want.Key())
		if err != nil {
			return false, err
		}
		if uid != want.UID {
			if e.speaksFor(want.Key(), uid) {
				return true, nil // it is looked at again
			}
			return false, fmt.Errorf("CiliumEndpoint %s: %w", want.Key(), errGone)
		}
		return true, e.delete(ctx, by, want.Key(), have)
	}
	status := want.status(e.cfg.Hosts[0])
	if e.keepIdentity(want, have) {
		status.Identity = have.status.Identity
	}
	relabel := e.mustRelabel(want, have)
	if relabel || !same(have.status, status) {
		return true, e.patch(ctx, by, want, have, status, relabel)
	}
	e.note(want)
	return false, nil
}

// podUID asks the API server for the pod that has a name now, and remembers it. It is empty if
// there is none.
func (e *Endpoints) podUID(ctx context.Context, by requests, key k8s.Key) (string, error) {
	var uid string
	pod, err := by.pods.Pods(key.Namespace).Get(ctx, key.Name, metav1.GetOptions{})
	switch {
	case err == nil:
		uid = string(pod.UID)
		if runtime := pods.StaticUID(pod); runtime != "" {
			e.Mirror(key, runtime, uid)
		}
	case !apierrors.IsNotFound(err):
		return "", fmt.Errorf("get pod %s, to find out whose its CiliumEndpoint is: %w", key, err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.locals[key]) > 0 { // else Remove has forgotten it
		e.exists[key] = uid
	}
	// Only if there is another to publish: an immediate retry would not help.
	if e.want[key].UID != uid && slices.ContainsFunc(e.locals[key], func(l Local) bool { return l.UID == uid }) {
		e.choose(key)
	}
	return uid, nil
}

// speaksFor reports whether the object is to describe the pod with this UID.
func (e *Endpoints) speaksFor(key k8s.Key, uid string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	want, ok := e.want[key]
	return ok && want.UID == uid
}

// mustRelabel reports whether the object's labels are to become those of the pod. If another
// writer, such as an admission webhook, changes them at once, they are not written over and over.
func (e *Endpoints) mustRelabel(want Local, have object) bool {
	labels := want.podLabels()
	if maps.Equal(have.labels, labels) {
		return false
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	last := e.relabelled[want.Key()]
	return !maps.Equal(last.labels, labels) || time.Since(last.at) >= maxMissed*e.cfg.Interval
}

// keepIdentity reports whether the identity that an object names is to stay. It is while this node
// knows none; and where the operator writes it too, once it has been this one: the operator may
// have observed labels before this node has, and neither is to undo what the other does.
func (e *Endpoints) keepIdentity(want Local, have object) bool {
	if want.Identity == 0 {
		return true
	}
	if !e.cfg.Shared || have.status.Identity == nil {
		return false
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return have.status.Identity.ID == int64(want.Identity) || e.said[want.Key()].identity == want.Identity
}

// note remembers what was written to an object.
func (e *Endpoints) note(l Local) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.said[l.Key()] = word{uid: l.UID, v4: l.IPv4, v6: l.IPv6, identity: cmp.Or(l.Identity, e.said[l.Key()].identity)}
}

// same compares what this node writes; what others wrote into other fields is left alone.
func same(have, want v2.EndpointStatus) bool {
	have.Controllers, have.Health, have.Log, have.Policy = nil, nil, nil, nil
	return reflect.DeepEqual(have, want)
}

func (e *Endpoints) create(ctx context.Context, by requests, l Local) error {
	e.mu.Lock()
	lost := e.lost[l.Key()] == l.UID
	e.mu.Unlock()
	if lost { // it may have made room for a pod of this name that is on another node now
		if uid, err := e.podUID(ctx, by, l.Key()); err != nil {
			return err
		} else if uid != l.UID {
			if e.speaksFor(l.Key(), uid) {
				return nil // that is looked at next
			}
			return fmt.Errorf("CiliumEndpoint %s: %w", l.Key(), errGone)
		}
	}
	var annotations map[string]string
	if e.firstTime(l) {
		annotations = map[string]string{CreatedAnnotation: l.PodCreated.UTC().Format(time.RFC3339)}
	}
	block := false
	o := &v2.CiliumEndpoint{
		ObjectMeta: metav1.ObjectMeta{
			Name: l.Pod, Namespace: l.Namespace, Labels: l.podLabels(), Annotations: annotations,
			// With its pod it goes even if this node never comes back.
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: l.Pod, UID: types.UID(l.UID), BlockOwnerDeletion: &block}},
		},
		Status: l.status(e.cfg.Hosts[0]),
	}
	err := by.objects.Post().Namespace(l.Namespace).Resource(v2.ResourceEndpoints).Body(o).Do(ctx).Error()
	if apierrors.IsAlreadyExists(err) {
		// The watch is behind; or the object is another node's, where a pod of the same name was.
		there := &v2.CiliumEndpoint{}
		if err = by.objects.Get().Namespace(l.Namespace).Resource(v2.ResourceEndpoints).Name(l.Pod).Do(ctx).Into(there); err == nil {
			found := seen(there, e.own(there.Status.Networking))
			_, err = e.adjust(ctx, by, l, found)
			if err == nil && string(found.owner) != l.UID && there.DeletionTimestamp == nil {
				// It has made room. Who observes its own objects only does not see that.
				e.mu.Lock()
				e.touch(l.Key())
				e.mu.Unlock()
			}
			return err
		}
	}
	if err != nil {
		return fmt.Errorf("create CiliumEndpoint %s: %w", l.Key(), err)
	}
	e.mu.Lock()
	if key := l.Key(); e.want[key].UID == l.UID { // it may have gone meanwhile: choose has forgotten it
		e.made[key] = creation{uid: l.UID, at: time.Now()}
		e.relabelled[key] = relabelling{labels: l.podLabels(), at: time.Now()}
		delete(e.lost, key)
	}
	e.mu.Unlock()
	e.note(l)
	return nil
}

// patch writes status, and with relabel the pod's labels. It returns nil if the object is another
// one by now, or was changed by the operator where that writes too: the watch shows it.
func (e *Endpoints) patch(ctx context.Context, by requests, want Local, have object, status v2.EndpointStatus, relabel bool) error {
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
	if relabel {
		labels := want.podLabels()
		if labels == nil {
			labels = map[string]string{}
		}
		ops = append(ops, op{"add", "/metadata/labels", labels})
	}
	body, err := json.Marshal(ops)
	if err != nil {
		return err
	}
	err = by.objects.Patch(types.JSONPatchType).Namespace(key.Namespace).Resource(v2.ResourceEndpoints).Name(key.Name).Body(body).Do(ctx).Error()
	if apierrors.IsNotFound(err) || apierrors.IsInvalid(err) && e.replaced(ctx, by, key, have) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("patch CiliumEndpoint %s: %w", key, err)
	}
	if relabel {
		e.mu.Lock()
		if e.want[key].UID == want.UID {
			e.relabelled[key] = relabelling{labels: want.podLabels(), at: time.Now()}
		}
		e.mu.Unlock()
	}
	e.note(want)
	return nil
}

// replaced reports whether a patch was refused because the object is not the known one; if not, the
// server refuses the contents of the patch.
func (e *Endpoints) replaced(ctx context.Context, by requests, key k8s.Key, have object) bool {
	now := &v2.CiliumEndpoint{}
	err := by.objects.Get().Namespace(key.Namespace).Resource(v2.ResourceEndpoints).Name(key.Name).Do(ctx).Into(now)
	return apierrors.IsNotFound(err) || err == nil && (now.UID != have.uid || e.cfg.Shared && now.ResourceVersion != have.version)
}

func (e *Endpoints) delete(ctx context.Context, by requests, key k8s.Key, have object) error {
	err := by.objects.Delete().Namespace(key.Namespace).Resource(v2.ResourceEndpoints).Name(key.Name).
		Body(&metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &have.uid}}).Do(ctx).Error()
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("delete CiliumEndpoint %s: %w", key, err)
	}
	return nil
}
