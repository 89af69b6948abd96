package identities

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/identity"
	k8sids "github.com/hawser-net/hawser/internal/k8s/identities"
	"github.com/hawser-net/hawser/pkg/allocator"
	"github.com/hawser-net/hawser/pkg/retry"
)

const (
	// minBackoff is the pause before the second try of what failed.
	minBackoff = 50 * time.Millisecond
	// writeTimeout bounds the requests of one try.
	writeTimeout = 30 * time.Second
	// maxNotified bounds how many pods of one set of labels are notified that there is no identity
	// for them.
	maxNotified = 10
)

// Controller makes identities and names them in endpoints. It runs in a manager, which [Setup] adds
// it to.
type Controller struct {
	cfg           Control
	client        client.Client
	live          client.Reader
	events        events.EventRecorder
	asker         *asker
	log           *slog.Logger
	metrics       *controlMetrics
	identityStore identityStore

	sets      queue[string]
	seals     queue[string] // sets with objects to seal
	endpoints queue[key]
	// writes bounds what is written of identities that no pod waits for, see [pace].
	writes *rate.Limiter

	mu       sync.Mutex
	index    *index
	running  bool                // all there was at the start is in the index
	differ   int                 // nodes whose agents make other labels count, as agree saw last
	notified map[string]bool     // sets of labels whose pods know that there is no ID
	refused  map[key]identity.ID // claims whose pods know that they were refused

	disputes disputes
}

// queue is what waits to be looked at. One that failed comes again after a pause that doubles up to
// a bound, for ever.
type queue[T comparable] struct {
	workqueue.TypedRateLimitingInterface[T]
	resource string
	mu       sync.Mutex
	since    map[T]time.Time
}

// Setup adds the controller to m. IDs are kept as objects, or, if keys is not nil, in a
// key-value store.
func Setup(m manager.Manager, cfg Control, rules *Rules, keys *Keys, reg prometheus.Registerer, log *slog.Logger) (*Controller, error) {
	c := &Controller{
		cfg: cfg, client: m.GetClient(), live: m.GetAPIReader(), events: m.GetEventRecorder("hawser-operator"), log: log,
		writes: rate.NewLimiter(leastPerSecond, leastPerSecond), index: newIndex(rules, cfg.Budget), notified: map[string]bool{}, refused: map[key]identity.ID{}, disputes: disputes{of: map[key]dispute{}},
	}
	c.index.agents = cfg.Agents
	var err error
	if c.asker, err = newAsker(m, c); err != nil {
		return nil, err
	}
	if keys != nil {
		h, err := newKeyStore(*keys, rules, log)
		if err != nil {
			return nil, err
		}
		c.identityStore, c.index.references = h, true
	} else {
		c.identityStore = newObjectStore(objects{c.client, c.live}, rules, c, log)
	}
	c.metrics = newControlMetrics(c)
	if err := reg.Register(c.metrics); err != nil {
		return nil, fmt.Errorf("metrics of the identity controller: %w", err)
	}
	return c, m.Add(manager.RunnableFunc(func(ctx context.Context) error { return c.run(ctx, m.GetCache()) }))
}

// run follows the cluster and does what is to be done until ctx ends.
func (c *Controller) run(ctx context.Context, informers cache.Cache) error {
	c.sets.init("identity", c.cfg.MaxBackoff)
	c.seals.init("digest", c.cfg.MaxBackoff)
	c.endpoints.init("endpoint", c.cfg.MaxBackoff)
	if c.cfg.Await != nil {
		c.cfg.Await(ctx)
	}
	sub, cancel := context.WithCancelCause(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := c.identityStore.run(sub); err != nil {
			cancel(fmt.Errorf("the identity store: %w", err))
		}
	})
	err := c.follow(sub, informers)
	if err == nil {
		c.serve(sub, &wg)
	}
	failed := context.Cause(sub) // by the identity store
	c.sets.ShutDown()
	c.seals.ShutDown()
	c.endpoints.ShutDown()
	cancel(nil)
	wg.Wait()
	switch {
	case ctx.Err() != nil:
		return nil
	case failed != nil:
		return failed
	}
	return err
}

// serve processes the queue, with a periodic resync, until ctx ends.
func (c *Controller) serve(ctx context.Context, wg *sync.WaitGroup) {
	for range c.cfg.Workers {
		wg.Go(func() { work(ctx, c, &c.sets, c.doSet) })
		wg.Go(func() { work(ctx, c, &c.endpoints, c.doEndpoint) })
	}
	wg.Go(func() { work(ctx, c, &c.seals, c.doSeal) })
	c.mu.Lock()
	c.running = true
	c.flush()
	summary := c.index.summary()
	c.mu.Unlock()
	c.log.Info("all identities were compared", "ready", summary.ready, "missing", summary.missing, "duplicates", summary.duplicates, "quarantined", summary.quarantined)
	for retry.Sleep(ctx, c.cfg.Resync) {
		c.resync()
	}
}

// resync has everything looked at again.
func (c *Controller) resync() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.index.all()
	clear(c.notified)
	clear(c.refused)
	c.disputes.tidy(time.Now(), c.cfg.MaxBackoff)
	c.flush()
	if n := c.index.summary(); n.missing > 0 {
		c.log.Warn("pods wait for identities", "sets-of-labels", n.missing, "of-these-for-the-budget", n.waiting,
			"budget", c.cfg.Budget, "identities-of-unscheduled-pods", n.unscheduled)
	}
}

// flush queues what must be looked at. It must be called with mu held.
func (c *Controller) flush() {
	if !c.running {
		return
	}
	sets, endpoints := c.index.take()
	for _, text := range sets {
		c.sets.add(text)
	}
	for _, k := range endpoints {
		c.endpoints.add(k)
	}
}

func (q *queue[T]) init(resource string, maxBackoff time.Duration) {
	q.resource, q.since = resource, map[T]time.Time{}
	q.TypedRateLimitingInterface = workqueue.NewTypedRateLimitingQueueWithConfig(
		workqueue.NewTypedItemExponentialFailureRateLimiter[T](min(minBackoff, maxBackoff), maxBackoff),
		workqueue.TypedRateLimitingQueueConfig[T]{Name: "identities-" + resource})
}

func (q *queue[T]) add(item T) {
	q.mu.Lock()
	if _, waits := q.since[item]; !waits {
		q.since[item] = time.Now()
	}
	q.mu.Unlock()
	q.Add(item)
}

// waited returns how long an item has waited since it was first added.
func (q *queue[T]) waited(item T) time.Duration {
	q.mu.Lock()
	defer q.mu.Unlock()
	since, ok := q.since[item]
	delete(q.since, item)
	if !ok {
		return 0
	}
	return time.Since(since)
}

// errChanged means that an object is not as it was known to be. What it is now will be observed, or
// is read at the next try.
var errChanged = errors.New("the object has changed meanwhile")

// work does what is queued until the queue is shut down.
func work[T comparable](ctx context.Context, c *Controller, q *queue[T], do func(context.Context, T) error) {
	for {
		item, closed := q.Get()
		if closed {
			return
		}
		c.metrics.latency.WithLabelValues(q.resource, "enqueued").Observe(q.waited(item).Seconds())
		began := time.Now()
		try, cancel := context.WithTimeout(ctx, writeTimeout)
		err := do(try, item)
		cancel()
		c.metrics.latency.WithLabelValues(q.resource, "processing").Observe(time.Since(began).Seconds())
		switch {
		case ctx.Err() != nil:
		case err == nil:
			q.Forget(item)
			c.metrics.count.WithLabelValues(q.resource, "success").Inc()
		default:
			n := q.NumRequeues(item)
			level := slog.LevelDebug
			if n%10 == 0 && (n > 0 || !errors.Is(err, errChanged)) {
				level = slog.LevelWarn
			}
			c.log.Log(ctx, level, "cannot do this yet, trying again", q.resource, item, "error", err, "tries", n+1)
			c.metrics.count.WithLabelValues(q.resource, "fail").Inc()
			q.AddRateLimited(item)
		}
		q.Done(item)
	}
}

// known gives the prober what the cache has.
func (c *Controller) known(id allocator.ID) (k8sids.Entry, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.index.ids[identity.ID(id)]
	if n == nil || n.given != "" { // the owner of an edited one is only known from the object
		return k8sids.Entry{}, false
	}
	return k8sids.Entry{Text: n.text, Quarantined: n.quarantined, Since: n.since, Life: n.life, Certain: n.certain}, true
}

// former returns the smallest ID that is in quarantine after labels, NoID if there is none.
func (c *Controller) former(text string) allocator.ID {
	c.mu.Lock()
	defer c.mu.Unlock()
	if ids := c.index.former[text]; len(ids) > 0 {
		return allocator.ID(slices.Min(ids))
	}
	return allocator.NoID
}

// full reports whether the cache shows that every ID is other labels'.
func (c *Controller) full(text string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.index.allTaken(text)
}

// InUse returns a function that reports whether an ID must not be collected, according to the
// caches. ok is false as long as they are not filled.
func (c *Controller) InUse() (used func(identity.ID) bool, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return func(id identity.ID) bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.index.used(id)
	}, c.running
}

// Users reads from the server itself which of some IDs must not be collected, and joins that with
// the caches; other IDs, and those for which it is unknown, count as in use. It fails while the
// caches are not filled, or show less than the server, or agents make other identities than the
// operator. A few IDs are looked up one by one, and for none it makes no request.
func (c *Controller) Users(ctx context.Context, ids []identity.ID) (used func(identity.ID) bool, err error) {
	cached, ok := c.InUse()
	if !ok {
		return nil, errEmpty
	}
	if err := c.agree(ctx, c.client); err != nil {
		return nil, err
	}
	ask := map[identity.ID]string{}
	for _, id := range ids {
		if text, ok := c.textOf(id); ok && !cached(id) {
			ask[id] = text
		}
	}
	if len(ask) > 0 {
		if err := c.agree(ctx, c.live); err != nil {
			return nil, err
		}
	}
	free := map[identity.ID]bool{}
	check := c.asker.newLiveCheck(ctx, len(ask))
	for id, text := range ask {
		now, err := check.current(id, text)
		switch {
		case err != nil && (check.over() || ctx.Err() != nil):
			return nil, err
		case err != nil: // it keeps nothing else from being collected
			c.log.Warn("an identity is not collected: whether it is in use is unknown", "identity", id, "error", err)
			continue
		}
		free[id] = !check.inUse(now, id, text)
	}
	return func(id identity.ID) bool { return !free[id] || cached(id) }, nil
}

// textOf returns what an ID stands for; ok is false if it is not known.
func (c *Controller) textOf(id identity.ID) (text string, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.index.ids[id]
	if n == nil {
		return "", false
	}
	return n.text, true
}

// Count is how many identities there are, wherever they are kept.
type Count struct {
	// Total are those with labels. InUse are those of them that must not be collected; Duplicates
	// those whose labels an older one has.
	Total, InUse, Duplicates int
	// Quarantined are IDs of collected ones.
	Quarantined int
}

// Count counts what the caches have; ok is false as long as they are not filled. IDs of other
// clusters do not count.
func (c *Controller) Count() (n Count, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, number := range c.index.ids {
		switch {
		case id < c.index.rules.First || id > c.index.rules.Last:
			continue
		case number.quarantined:
			n.Quarantined++
			continue
		}
		n.Total++
		if c.index.used(id) {
			n.InUse++
		}
		if c.index.spare(id) {
			n.Duplicates++
		}
	}
	return n, c.running
}

// spare is [index.spare].
func (c *Controller) spare(id identity.ID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.index.spare(id)
}

// hold keeps an unused ID from being assigned while f collects it. It does not call f if the ID is
// in use.
func (c *Controller) hold(id identity.ID, f func() (bool, error)) (bool, error) {
	c.mu.Lock()
	free := c.index.hold(id)
	c.mu.Unlock()
	if !free {
		return false, nil
	}
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.index.release(id)
		c.flush()
	}()
	return f()
}

// follow puts everything into the index. It returns when that is in it which was there at the
// start.
func (c *Controller) follow(ctx context.Context, informers cache.Cache) error {
	var synced []toolscache.InformerSynced
	var errs []error
	add := func(s toolscache.InformerSynced, err error) { synced, errs = append(synced, s), append(errs, err) }
	if c.cfg.Agents { // else no agent vouches for its endpoints
		add(handle(ctx, informers, indexed(c, c.index.setNode), indexed(c, func(o *v2.CiliumNode) { c.index.dropNode(client.ObjectKeyFromObject(o)) })))
	}
	add(follow(ctx, c, informers, kindNamespaces, c.index.setNamespace, func(k key) { c.index.dropNamespace(k.Name) }))
	add(c.identityStore.follow(ctx, informers, indexObserver{c}))
	add(follow(ctx, c, informers, kindSlices, c.index.setSlice, func(k key) { c.index.dropSlice(k.Name) }))
	add(follow(ctx, c, informers, kindPods, c.index.setPod, c.index.dropPod))
	add(follow(ctx, c, informers, kindEndpoints, c.index.setEndpoint, c.index.dropEndpoint))
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if !toolscache.WaitForCacheSync(ctx.Done(), synced...) {
		return errors.New("the identity controller was stopped before it knew the cluster")
	}
	return nil
}

// follow has objects of a kind that uses identities change the index, and notes up to which version
// it did.
func follow[T any, P object[T]](ctx context.Context, c *Controller, informers cache.Cache, kind string, set func(P), drop func(key)) (toolscache.InformerSynced, error) {
	return handle(ctx, informers, indexed(c, func(o P) {
		set(o)
		c.index.have.note(kind, o)
	}), indexed(c, func(o P) {
		drop(client.ObjectKeyFromObject(o))
		c.index.have.note(kind, o)
	}))
}

// observed returns the highest versions of what is in the index, by kind.
func (c *Controller) observed() versions {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.index.have)
}

// indexed has f change the index.
func indexed[T any](c *Controller, f func(T)) func(T) {
	return func(o T) {
		c.mu.Lock()
		defer c.mu.Unlock()
		f(o)
		c.flush()
	}
}

// indexObserver is the [observer] that writes into the index.
type indexObserver struct{ c *Controller }

func (k indexObserver) setID(now *idEntry)    { indexed(k.c, k.c.index.setID)(now) }
func (k indexObserver) dropID(id identity.ID) { indexed(k.c, k.c.index.dropID)(id) }

// object is a pointer to a kind of object.
type object[T any] interface {
	*T
	client.Object
}

// handle calls set and drop with objects of one kind. What drop gets is the object as it was when
// it was deleted, or as it was known last.
func handle[T any, P object[T]](ctx context.Context, informers cache.Cache, set, drop func(P)) (toolscache.InformerSynced, error) {
	informer, err := informers.GetInformer(ctx, P(new(T)))
	if err != nil {
		return nil, fmt.Errorf("follow %T: %w", P(nil), err)
	}
	upsert := func(o any) {
		if o, ok := o.(P); ok {
			set(o)
		}
	}
	reg, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc: upsert, UpdateFunc: func(_, o any) { upsert(o) },
		DeleteFunc: func(o any) {
			if t, ok := o.(toolscache.DeletedFinalStateUnknown); ok {
				o = t.Obj
			}
			if o, ok := o.(P); ok {
				drop(o)
			}
		},
	})
	if err != nil {
		return nil, fmt.Errorf("follow %T: %w", P(nil), err)
	}
	return reg.HasSynced, nil
}
