package endpointslices

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/api/v2alpha1"
)

const (
	// PriorityAnnotation on a namespace, with the value PriorityValue, has its slices written
	// before others.
	PriorityAnnotation = "cilium.io/ces-namespace"
	// PriorityValue is the value of PriorityAnnotation that counts.
	PriorityValue = "priority"
)

const (
	// requestTimeout bounds one request to the API server.
	requestTimeout = 30 * time.Second
	// firstRetry and lastRetry bound the pause after failures in a row.
	firstRetry = 100 * time.Millisecond
	lastRetry  = 30 * time.Second
)

// Setup adds what makes slices to m; or, if there are to be none, their deletion. resolve is needed
// in slim mode only.
func Setup(m manager.Manager, cfg Config, resolve Resolve, reg prometheus.Registerer, log *slog.Logger) error {
	if err := cfg.Validate(); err != nil {
		return err
	}
	if !cfg.Enable {
		return setupWipe(m, log)
	}
	mt, err := newMetrics(reg)
	if err != nil {
		return err
	}
	rates, err := ParseRates(cfg.Rates)
	if err != nil {
		return err
	}
	c := &controller{
		client: m.GetClient(), live: m.GetAPIReader(), cache: m.GetCache(), log: log, metrics: mt, rates: rates,
		index: newIndex(cfg.Max, randomName), delay: cfg.Delay, since: map[string]time.Time{}, urgent: map[string]bool{}, nodes: map[string]bool{},
	}
	c.limiter = rate.NewLimiter(limitOf(rates.For(0)))
	switch {
	case cfg.Mode != ModeSlim:
		c.kept = newKept()
	case resolve == nil:
		return errors.New("slices without CiliumEndpoints: no filter of identity labels is set")
	default:
		c.slim = newSlim(resolve)
	}
	return m.Add(c)
}

func limitOf(r Rate) (rate.Limit, int) { return rate.Limit(r.Limit), r.Burst }

// controller keeps the slices of the server in line with the index.
type controller struct {
	client  client.Client
	live    client.Reader
	cache   cache.Cache
	log     *slog.Logger
	metrics *metrics
	rates   Rates
	limiter *rate.Limiter
	// delay is the time from the first change of a slice to its write, so that what changes in the
	// meantime costs no further write.
	delay time.Duration

	mu      sync.Mutex
	index   *index
	queue   priorityqueue.PriorityQueue[string] // of slices to be written; nil until the index has begun
	since   map[string]time.Time                // when the oldest change came that is not written
	writing string                              // the slice that is being written
	row     int                                 // slices with priority since the last of the others
	slim    *slim                               // nil if CiliumEndpoints are the source
	kept    *kept                               // nil if they are not
	urgent  map[string]bool                     // namespaces with priority
	nodes   map[string]bool
}

// Start implements [manager.Runnable].
func (c *controller) Start(ctx context.Context) error {
	allSynced, err := c.watch(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return fmt.Errorf("controller of CiliumEndpointSlices: %w", err)
	}
	if !toolscache.WaitForCacheSync(ctx.Done(), allSynced...) {
		return nil
	}
	c.mu.Lock()
	kept := 0
	if c.slim != nil {
		c.slim.apply(c.index)
	} else {
		kept = c.kept.begin(c.index)
	}
	c.index.begin()
	c.queue = newQueue()
	c.plan()
	slices, endpoints := len(c.index.slices), len(c.index.want)
	c.mu.Unlock()
	c.log.Info("making CiliumEndpointSlices", "slices", slices, "endpoints", endpoints, "without-object", kept)
	c.work(ctx)
	return nil
}

// ---- watches ------------------------------------------------------------------------------------

// watch starts informers that keep the index up to date. What it returns reports when all has been
// observed that exists.
func (c *controller) watch(ctx context.Context) ([]toolscache.InformerSynced, error) {
	var allSynced []toolscache.InformerSynced
	add := func(synced toolscache.InformerSynced, err error) error {
		allSynced = append(allSynced, synced)
		return err
	}
	err := errors.Join(
		add(follow(ctx, c, &v2alpha1.CiliumEndpointSlice{}, c.index.observe, func(o *v2alpha1.CiliumEndpointSlice) { c.index.gone(o.Name, o.UID) })),
		add(follow(ctx, c, &corev1.Namespace{}, c.namespace, func(o *corev1.Namespace) {
			delete(c.urgent, o.Name)
			if c.slim != nil {
				c.slim.dropNamespace(o.Name)
			}
		})),
		add(follow(ctx, c, &v2.CiliumNode{}, c.node, func(o *v2.CiliumNode) {
			delete(c.nodes, o.Name)
			c.limit()
			if c.slim != nil {
				c.slim.dropNode(o.Name)
			}
		})),
	)
	if err != nil {
		return nil, err
	}
	if c.slim == nil {
		err = errors.Join(
			add(follow(ctx, c, &corev1.Pod{}, func(o *corev1.Pod) { c.kept.setPod(c.index, o) },
				func(o *corev1.Pod) { c.kept.dropPod(c.index, client.ObjectKeyFromObject(o)) })),
			add(follow(ctx, c, &v2.CiliumEndpoint{}, func(o *v2.CiliumEndpoint) { c.kept.setEndpoint(c.index, o) },
				func(o *v2.CiliumEndpoint) { c.kept.dropEndpoint(c.index, client.ObjectKeyFromObject(o)) })),
		)
		return allSynced, err
	}
	err = errors.Join(
		add(follow(ctx, c, &corev1.Pod{}, c.slim.setPod, func(o *corev1.Pod) { c.slim.dropPod(client.ObjectKeyFromObject(o)) })),
		add(follow(ctx, c, &v2.CiliumIdentity{}, c.slim.setIdentity, func(o *v2.CiliumIdentity) { c.slim.dropIdentity(o.Name) })),
	)
	return allSynced, err
}

// follow calls set and drop with a kind's objects, one at a time, with the lock held; what then may
// have to be written is queued.
func follow[T client.Object](ctx context.Context, c *controller, kind T, set, drop func(T)) (toolscache.InformerSynced, error) {
	informer, err := c.cache.GetInformer(ctx, kind, cache.BlockUntilSynced(false))
	if err != nil {
		return nil, fmt.Errorf("watching %T: %w", kind, err)
	}
	notify := func(f func(T), o any) {
		if gone, ok := o.(toolscache.DeletedFinalStateUnknown); ok {
			o = gone.Obj
		}
		obj, ok := o.(T)
		if !ok {
			return
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		f(obj)
		c.plan()
	}
	reg, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc: func(o any) { notify(set, o) }, UpdateFunc: func(_, o any) { notify(set, o) }, DeleteFunc: func(o any) { notify(drop, o) },
	})
	if err != nil {
		return nil, fmt.Errorf("watching %T: %w", kind, err)
	}
	return reg.HasSynced, nil
}

func (c *controller) namespace(o *corev1.Namespace) {
	if o.Annotations[PriorityAnnotation] == PriorityValue {
		c.urgent[o.Name] = true
	} else {
		delete(c.urgent, o.Name)
	}
	if c.slim != nil {
		c.slim.setNamespace(o)
	}
}

func (c *controller) node(o *v2.CiliumNode) {
	if !c.nodes[o.Name] {
		c.nodes[o.Name] = true
		c.limit()
	}
	if c.slim != nil {
		c.slim.setNode(o)
	}
}

// limit sets the limit of writes for the nodes that there are.
func (c *controller) limit() {
	l, b := limitOf(c.rates.For(len(c.nodes)))
	c.limiter.SetLimit(l)
	c.limiter.SetBurst(b)
}

const (
	// urgent is the priority of slices in a namespace with priority; that of others is 0.
	urgent = 1
	// turn is the priority of what has waited for its turn, and of the end.
	turn = urgent + 1
	// urgentInARow is how many slices with priority are looked at before one that has waited
	// without: a namespace that changes more than may be written must not keep the pods of all
	// others from being known.
	urgentInARow = 7
)

func newQueue() priorityqueue.PriorityQueue[string] {
	return priorityqueue.New("ciliumendpointslices", func(o *priorityqueue.Opts[string]) {
		o.RateLimiter = workqueue.NewTypedItemExponentialFailureRateLimiter[string](firstRetry, lastRetry)
	})
}

// plan queues what has changed. It must be called with the lock held.
func (c *controller) plan() {
	if !c.index.begun {
		return // what little is known must not be taken for all there is
	}
	if c.slim != nil {
		c.slim.apply(c.index)
	}
	for _, name := range c.index.takeDirty() {
		if name != c.writing { // that is looked at again when it is done
			c.add(name)
		}
	}
}

// add queues a slice. It must be called with the lock held.
func (c *controller) add(name string) {
	if _, there := c.since[name]; !there {
		c.since[name] = time.Now()
	}
	c.queue.AddWithOpts(priorityqueue.AddOpts{After: c.delay, Priority: c.priority(name)}, name)
}

// priority returns that of a slice. It must be called with the lock held.
func (c *controller) priority(name string) *int {
	if s := c.index.slices[name]; s != nil && c.urgent[s.namespace] {
		return new(urgent)
	}
	return new(0)
}

// takeTurns has the slice that has waited longest without priority come next, when it is its turn.
// Those that failed have their own pauses. It must be called with the lock held.
func (c *controller) takeTurns(was int) {
	if was != urgent {
		c.row = 0
		return
	}
	if c.row++; c.row < urgentInARow {
		return
	}
	next, longest := "", c.delay
	for name, since := range c.since {
		if waits := time.Since(since); waits >= longest && *c.priority(name) != urgent && c.queue.NumRequeues(name) == 0 {
			next, longest = name, waits
		}
	}
	if next != "" {
		c.row = 0
		c.queue.AddWithOpts(priorityqueue.AddOpts{Priority: new(turn)}, next)
	}
}

// ---- writing ------------------------------------------------------------------------------------

// work writes what is queued until ctx ends.
func (c *controller) work(ctx context.Context) {
	defer c.queue.ShutDown()
	// Shutting down a queue while a goroutine waits in Get can leave one that delivers an item
	// without a receiver, and holds the queue's lock. So the waiter is ended first, by an empty
	// name.
	defer context.AfterFunc(ctx, func() { c.queue.AddWithOpts(priorityqueue.AddOpts{Priority: new(turn)}, "") })()
	for {
		name, priority, closed := c.queue.GetWithPriority()
		if closed || ctx.Err() != nil {
			return
		}
		c.do(ctx, name, priority)
		c.queue.Done(name)
	}
}

// do reconciles one slice, or queues it again.
func (c *controller) do(ctx context.Context, name string, priority int) {
	c.mu.Lock()
	c.writing = name
	since, known := c.since[name]
	if !known { // queued again while it was taken, and the change of now came after that was written
		since = time.Now()
	}
	delete(c.since, name)
	c.mu.Unlock()
	err := c.sync(ctx, name, priority, since)
	failures := c.queue.NumRequeues(name)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.writing = ""
	c.takeTurns(priority)
	switch {
	case ctx.Err() != nil:
	case err == nil:
		c.queue.Forget(name)
		if c.toDo(name) {
			c.add(name)
		}
		if failures > 3 {
			c.log.Info("a CiliumEndpointSlice could be written", "slice", name, "failures", failures)
		}
	default:
		kind := fatal
		if passing(err) {
			kind = transient
		}
		c.metrics.syncs.WithLabelValues(failed, kind).Inc()
		level := slog.LevelDebug // others may have written it: that is no fault
		if !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) && (failures == 0 || failures%10 == 9) {
			level = slog.LevelWarn
		}
		c.log.Log(ctx, level, "cannot write a CiliumEndpointSlice, trying again", "slice", name, "failures", failures+1, "error", err)
		c.since[name] = since
		c.queue.AddWithOpts(priorityqueue.AddOpts{RateLimited: true, Priority: c.priority(name)}, name)
	}
}

// toDo reports whether a slice is to be written or looked at. It must be called with the lock held.
func (c *controller) toDo(name string) bool {
	return c.index.doubtful(name) || c.index.plan(name).action != leave
}

// passing reports whether a failure is transient.
func passing(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return true // the server was not reached
	}
	code := status.Status().Code
	return code == 409 || code == 429 || code >= 500 || code == 0
}

// sync writes one slice if it must be written.
func (c *controller) sync(ctx context.Context, name string, priority int, since time.Time) error {
	c.mu.Lock()
	doubtful, idle := c.index.doubtful(name), !c.toDo(name)
	c.mu.Unlock()
	if idle {
		return nil
	}
	if err := c.limiter.Wait(ctx); err != nil {
		return err
	}
	if doubtful {
		if err := c.look(ctx, name); err != nil {
			return err
		}
	}
	c.mu.Lock()
	w := c.index.plan(name) // there may be more to write by now
	c.mu.Unlock()
	if w.action == leave {
		return nil
	}
	c.metrics.waited.WithLabelValues(queueOf(priority == urgent)).Observe(time.Since(since).Seconds())
	if err := c.write(ctx, w); err != nil {
		return err
	}
	c.metrics.wrote(w)
	return nil
}

// write does what the index has planned, and notes what came of it.
func (c *controller) write(ctx context.Context, w write) error {
	uid, version := w.slice.UID, w.slice.ResourceVersion
	request, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	var err error
	switch w.action {
	case create:
		w.slice.UID = ""
		err = c.client.Create(request, w.slice)
	case update:
		var patch []byte
		// What others have put into the metadata is left alone.
		patch, err = json.Marshal(map[string]any{
			"metadata":  map[string]any{"uid": uid, "resourceVersion": version},
			"namespace": w.slice.Namespace, "endpoints": w.slice.Endpoints,
		})
		if err == nil {
			err = c.client.Patch(request, w.slice, client.RawPatch(types.MergePatchType, patch))
		}
	case remove:
		err = c.client.Delete(request, w.slice, client.Preconditions{UID: &uid, ResourceVersion: &version})
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	defer c.plan()
	switch {
	case err != nil:
		c.index.doubt(w.slice.Name)
		return fmt.Errorf("CiliumEndpointSlice %s: %w", w.slice.Name, err)
	case w.action == remove:
		c.index.gone(w.slice.Name, uid)
	default:
		c.index.observe(w.slice)
	}
	return nil
}

// look asks the server for a slice and notifies the index.
func (c *controller) look(ctx context.Context, name string) error {
	c.mu.Lock()
	uid := c.index.uidOf(name)
	c.mu.Unlock()
	request, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	o := &v2alpha1.CiliumEndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: name}}
	err := c.live.Get(request, client.ObjectKeyFromObject(o), o)
	c.mu.Lock()
	defer c.mu.Unlock()
	defer c.plan()
	switch {
	case apierrors.IsNotFound(err):
		c.index.lacks(name, uid)
	case err != nil:
		return fmt.Errorf("CiliumEndpointSlice %s: %w", name, err)
	default:
		c.index.observe(o)
	}
	return nil
}
