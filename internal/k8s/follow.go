package k8s

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

// Object is a pointer to an object of the API, such as *corev1.Pod.
type Object interface {
	runtime.Object
	metav1.Object
}

// Key is the namespace and name of an object; the namespace is empty for kinds that have none.
type Key = types.NamespacedName

// KeyOf returns an object's key.
func KeyOf(o metav1.Object) Key { return Key{Namespace: o.GetNamespace(), Name: o.GetName()} }

// VersionOf returns the version of an object as the number that Kubernetes promises it to be; 0 if
// it is none.
func VersionOf(o metav1.Object) uint64 {
	n, err := strconv.ParseUint(o.GetResourceVersion(), 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// Source lists and watches one kind of object.
type Source interface {
	List(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error)
	Watch(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error)
}

// Kind returns the source of a kind by a client of its group, such as
// Client.Kube.CoreV1().RESTClient() or Client.V2, and its plural name. An empty namespace is all of
// them.
func Kind(client rest.Interface, resource, namespace string) Source {
	return kind{client, resource, namespace}
}

type kind struct {
	client              rest.Interface
	resource, namespace string
}

func (k kind) List(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
	return k.client.Get().NamespaceIfScoped(k.namespace, k.namespace != "").Resource(k.resource).VersionedParams(&opts, metav1.ParameterCodec).Do(ctx).Get()
}

func (k kind) Watch(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
	opts.Watch = true
	return k.client.Get().NamespaceIfScoped(k.namespace, k.namespace != "").Resource(k.resource).VersionedParams(&opts, metav1.ParameterCodec).Watch(ctx)
}

// MetadataOf returns the source of the metadata of a kind: its objects are
// *metav1.PartialObjectMetadata.
func (c *Client) MetadataOf(gvr schema.GroupVersionResource) Source { return metadataKind{c, gvr} }

type metadataKind struct {
	client *Client
	gvr    schema.GroupVersionResource
}

func (m metadataKind) List(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
	return m.client.Metadata.Resource(m.gvr).List(ctx, opts)
}

func (m metadataKind) Watch(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
	return m.client.Metadata.Resource(m.gvr).Watch(ctx, opts)
}

// Options changes how a kind is followed.
type Options[T Object] struct {
	// Log gets a line when the kind cannot be followed, and when it can again; nil discards it.
	Log *slog.Logger
	// FieldSelector and LabelSelector narrow what is followed, at the server.
	FieldSelector, LabelSelector string
	// Transform, if not nil, drops from an object what the handler does not need. It may change and
	// return its argument, which is not shared, may be called twice for one object, and from any
	// goroutine.
	Transform func(T) T
}

// Handler is notified of objects. Its functions are called one at a time, in order; one that takes
// long holds the others up and nothing else. Upsert and Delete must not be nil.
type Handler[T Object] struct {
	// Upsert is notified of an object that is new or has changed. It may keep the object but must
	// not change it.
	Upsert func(T)
	// Delete is notified of one that is gone.
	Delete func(Key)
	// Synced is called once, when everything has been delivered that existed at the start; it may
	// be nil.
	Synced func()
	// Listing and Listed, if not nil, are called before and after what a list changes is delivered:
	// the first list, and those when a watch had to restart. A list is delivered in no order; what
	// comes between lists is delivered in the order of the objects' resource versions. revision is
	// the list's.
	Listing func()
	Listed  func(revision string)
	// Reached, if not nil, is called with the resource version of each object, gone ones included,
	// and of each list, after everything of it was delivered: what has been written up to it is
	// known.
	Reached func(version string)
}

// followBackoff is the wait between attempts: short at first, because a server that restarts is
// back in seconds, and then random, because all nodes wait.
func followBackoff() *wait.Backoff {
	return &wait.Backoff{Duration: 200 * time.Millisecond, Cap: 10 * time.Second, Steps: 50, Factor: 2, Jitter: 1}
}

// Follow notifies h of all objects of a source until ctx ends, and returns nil then. See the
// package's doc for what it promises. It returns an error only for what can never work, at once.
func Follow[T Object](ctx context.Context, src Source, opts Options[T], h Handler[T]) error {
	typ := reflect.TypeFor[T]()
	if typ.Kind() != reflect.Pointer {
		return fmt.Errorf("follow objects of Kubernetes: %s is no pointer to a kind of object", typ)
	}
	if src == nil || h.Upsert == nil || h.Delete == nil {
		return fmt.Errorf("follow %s: a source, Upsert and Delete are needed", typ)
	}
	opts.Log = cmp.Or(opts.Log, slog.New(slog.DiscardHandler))
	f := &follower[T]{opts: opts, handler: h, known: map[Key]revision{}, log: opts.Log.With("kind", typ.Elem().Name())}
	// listWatch reports client-go's errors, in the agent's terms and not at every attempt.
	ctx = klog.NewContext(ctx, logr.Discard())
	r := cache.NewReflectorWithOptions(f.listWatch(src), reflect.New(typ.Elem()).Interface(), f,
		cache.ReflectorOptions{Name: typ.String(), Clock: endingClock{ctx: ctx}, Backoff: followBackoff()})
	r.RunWithContext(ctx)
	return nil
}

// revision is what is remembered of an object: which one it is and when it last changed.
type revision struct {
	uid     types.UID
	version string
}

// follower is the store that the reflector fills: it hands on instead of keeping. Its methods are
// called from the reflector's goroutine, but note.
type follower[T Object] struct {
	opts    Options[T]
	handler Handler[T]
	log     *slog.Logger
	known   map[Key]revision
	synced  bool
	listing bool

	// Of the goroutine that lists and watches:
	failing bool
	said    time.Time
}

// followRemind is how often the log repeats that a kind cannot be followed.
const followRemind = time.Minute

// note logs the outcome of an attempt. Callers are the functions of listWatch, which the reflector
// calls one after the other.
func (f *follower[T]) note(ctx context.Context, err error) {
	switch {
	case err == nil:
		if f.failing {
			f.log.Info("Kubernetes answers again")
		}
		f.failing = false
	case ctx.Err() != nil, apierrors.IsResourceExpired(err), apierrors.IsGone(err):
		// The end, or a relist: neither is a fault.
	case !f.failing || time.Since(f.said) > followRemind:
		f.failing, f.said = true, time.Now()
		f.log.Warn("cannot follow objects of Kubernetes; what was observed before stays in force, trying again", "error", err)
	}
}

func (f *follower[T]) listWatch(src Source) *cache.ListWatch {
	narrow := func(o metav1.ListOptions) metav1.ListOptions {
		o.FieldSelector, o.LabelSelector = f.opts.FieldSelector, f.opts.LabelSelector
		return o
	}
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			list, err := src.List(ctx, narrow(o))
			f.note(ctx, err)
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			w, err := src.Watch(ctx, narrow(o))
			// A server too old for watch lists refuses them; the list that follows will show it.
			if o.SendInitialEvents == nil || !apierrors.IsInvalid(err) {
				f.note(ctx, err)
			}
			return w, err
		},
	}
}

// Transformer implements cache.TransformingStore, so that a first list is never held in full.
func (f *follower[T]) Transformer() cache.TransformFunc {
	return func(o any) (any, error) {
		if obj, ok := o.(T); ok {
			return f.strip(obj), nil
		}
		return o, nil
	}
}

func (f *follower[T]) strip(obj T) T {
	obj.SetManagedFields(nil)
	if f.opts.Transform != nil {
		obj = f.opts.Transform(obj)
	}
	return obj
}

// Add implements cache.ReflectorStore.
func (f *follower[T]) Add(o any) error { return f.Update(o) }

// Update implements cache.ReflectorStore.
func (f *follower[T]) Update(o any) error {
	obj, ok := o.(T)
	if !ok {
		return fmt.Errorf("expected %s, got %T", reflect.TypeFor[T](), o)
	}
	defer f.reached(obj.GetResourceVersion())
	key, now := KeyOf(obj), revision{obj.GetUID(), obj.GetResourceVersion()}
	old, known := f.known[key]
	if known && old == now {
		return nil
	}
	if known && old.uid != now.uid {
		f.handler.Delete(key)
	}
	f.known[key] = now
	f.handler.Upsert(f.strip(obj))
	return nil
}

// Delete implements cache.ReflectorStore.
func (f *follower[T]) Delete(o any) error {
	obj, ok := o.(metav1.Object)
	if !ok {
		return fmt.Errorf("expected %s, got %T", reflect.TypeFor[T](), o)
	}
	f.remove(KeyOf(obj))
	f.reached(obj.GetResourceVersion())
	return nil
}

// reached is called in order, but for what comes in a list, which has no effect until it is
// complete.
func (f *follower[T]) reached(version string) {
	if f.handler.Reached != nil && !f.listing {
		f.handler.Reached(version)
	}
}

func (f *follower[T]) remove(key Key) {
	if _, known := f.known[key]; known {
		delete(f.known, key)
		f.handler.Delete(key)
	}
}

// Replace implements cache.ReflectorStore: it is called with every complete list. What is gone goes
// first, so that its name or address may be another's.
func (f *follower[T]) Replace(list []any, revision string) error {
	if f.handler.Listing != nil {
		f.handler.Listing()
	}
	f.listing = true
	present := make(map[Key]bool, len(list))
	for _, o := range list {
		if obj, ok := o.(metav1.Object); ok {
			present[KeyOf(obj)] = true
		}
	}
	for key := range f.known {
		if !present[key] {
			f.remove(key)
		}
	}
	var errs []error
	for _, o := range list {
		errs = append(errs, f.Update(o))
	}
	f.listing = false
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if f.handler.Listed != nil {
		f.handler.Listed(revision)
	}
	f.reached(revision)
	if !f.synced {
		f.synced = true
		if f.handler.Synced != nil {
			f.handler.Synced()
		}
	}
	return nil
}

// Advance raises a mark to a resource version that Handler.Reached was called with, if that is a
// number and higher. Numbers are what API servers use and promise to compare.
func Advance(mark *atomic.Uint64, version string) {
	n, err := strconv.ParseUint(version, 10, 64)
	if err != nil {
		return
	}
	for {
		old := mark.Load()
		if n <= old || mark.CompareAndSwap(old, n) {
			return
		}
	}
}

// Resync implements cache.ReflectorStore; nothing is resynchronised.
func (f *follower[T]) Resync() error { return nil }

// endingClock is the real clock, but for waits that end with a context: the reflector waits in
// places where it does not look at its own.
type endingClock struct {
	clock.RealClock
	ctx context.Context
}

// After implements clock.Clock.
func (c endingClock) After(d time.Duration) <-chan time.Time {
	out := make(chan time.Time, 1)
	send := func() {
		select {
		case out <- time.Now():
		default:
		}
	}
	stop := context.AfterFunc(c.ctx, send)
	time.AfterFunc(d, func() {
		stop()
		send()
	})
	return out
}
