package nodemanager

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/pkg/retry"
)

const (
	// resyncInterval is how often everything in the cloud is read.
	resyncInterval = time.Minute
	// refreshInterval is how often a node is looked at even if nothing has changed.
	refreshInterval = time.Minute
	// minInterval is the least time between two looks at a node, so that what comes together is
	// looked at together.
	minInterval = 10 * time.Millisecond
	// maxSteps bounds the calls to the cloud for a node before others have their turn.
	maxSteps = 16
	// The pause after a failure doubles from the first to the second.
	firstBackoff = 500 * time.Millisecond
	lastBackoff  = 5 * time.Minute
	// maxLooks is how often an instance of which nothing is known is read alone: within 15 seconds.
	maxLooks = 6
	// lookRate and lookBurst bound these reads of all nodes together, each of which is two calls:
	// CiliumNodes that have outlived their instances leave room for the calls of others. Who finds
	// none left tries again after lookRest.
	lookRate  = 1
	lookBurst = 4
	lookRest  = 4 * time.Second
	// gcBatch bounds the interfaces that one collection removes.
	gcBatch = 25

	podsOfNode      = "ipam-node"
	nodesOfInstance = "ipam-instance"
)

// Manager is the node manager. Make it with [Setup].
type Manager struct {
	cfg      Config
	provider Provider
	metrics  *Metrics
	log      *slog.Logger
	client   client.Client
	live     client.Reader
	trigger  chan event.GenericEvent
	reread   chan struct{} // of capacity 1: the cloud is to be read before its time
	looks    *rate.Limiter // of single reads for instances of which nothing is known

	mu    sync.Mutex // for what is below; held while nothing is waited for
	inv   *inventory
	fault error            // of the last description; not nil before the first
	nodes map[string]*node // by name
	owner map[string]string
	left  map[string]bool // interfaces without an owner at the last collection
	// reserved are public addresses that calls were about lately, by ID.
	reserved map[string]reservation
}

// node is what is remembered of a node: nothing that is not known again after a restart, but times.
type node struct {
	instance          string
	excess            map[netip.Prefix]time.Time
	attempts          // of calls for addresses of pods
	lacks, atCapacity bool
	// spare is how many addresses it has beyond those of its pods, below 0 if pods wait for one.
	spare int
	// looks counts how often its instance was looked for alone in vain; lookAt is when it may be
	// again. Another instance does not reset the count: a writer of the CiliumNode can name many.
	looks  int
	lookAt time.Time
	// The search for the public address and the IPv6 prefix wait on their own: the addresses of
	// pods do not wait for them, nor they for those.
	static, ipv6 attempts
}

// attempts are those of one kind of call for a node, since the last that succeeded.
type attempts struct {
	failures  int
	notBefore time.Time
	why       string // of the last failure, for people; "" if there is nothing to do
}

// failed records a failure and returns how long to wait before the next attempt.
func (a *attempts) failed(why string) time.Duration {
	d := retry.Backoff(a.failures, firstBackoff, lastBackoff)
	*a = attempts{failures: a.failures + 1, notBefore: time.Now().Add(d), why: why}
	return d
}

var errNotRead = errors.New("the cloud has not been read yet")

func newManager(cfg Config, p Provider, metrics *Metrics, log *slog.Logger) *Manager {
	return &Manager{
		cfg: cfg, provider: p, metrics: metrics, log: log, trigger: make(chan event.GenericEvent, 1024), reread: make(chan struct{}, 1), looks: rate.NewLimiter(lookRate, lookBurst),
		inv: newInventory(cfg.MaxLag), fault: errNotRead, nodes: map[string]*node{}, owner: map[string]string{}, left: map[string]bool{},
		reserved: map[string]reservation{},
	}
}

// Setup adds the node manager to m. It returns at once: the cloud is read when m has started, and
// until that has succeeded nodes get nothing, and their status shows the reason.
func Setup(ctx context.Context, m manager.Manager, cfg Config, p Provider, metrics *Metrics, log *slog.Logger) error {
	n := newManager(cfg, p, metrics, log)
	n.client, n.live = m.GetClient(), m.GetAPIReader()
	err := m.GetFieldIndexer().IndexField(ctx, &corev1.Pod{}, podsOfNode, func(o client.Object) []string {
		if name := waitingOn(o); name != "" {
			return []string{name}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("pods by node: %w", err)
	}
	err = m.GetFieldIndexer().IndexField(ctx, &v2.CiliumNode{}, nodesOfInstance, func(o client.Object) []string {
		if n, ok := o.(*v2.CiliumNode); ok && p.Instance(n) != "" {
			return []string{p.Instance(n)}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("nodes by instance: %w", err)
	}
	err = builder.ControllerManagedBy(m).Named("ipam-pool-maintainer").
		Watches(&v2.CiliumNode{}, nodeEvents(n)).
		Watches(&corev1.Pod{}, podEvents(n)).
		WatchesRawSource(source.Channel(n.trigger, nodeEvents(n))).
		WithOptions(controller.Options{
			MaxConcurrentReconciles: cfg.Workers,
			NewQueue:                newQueue,
			RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](minInterval, lastBackoff),
		}).
		Complete(reconcile.Func(n.maintain))
	if err != nil {
		return fmt.Errorf("controller ipam-pool-maintainer: %w", err)
	}
	for _, f := range []manager.RunnableFunc{n.resync, n.collect} {
		if err := m.Add(f); err != nil {
			return fmt.Errorf("node manager: %w", err)
		}
	}
	return nil
}

// waitingOn returns the node on which a pod waits for an address; "" if it does not.
func waitingOn(o client.Object) string {
	p, ok := o.(*corev1.Pod)
	if !ok || p.Spec.HostNetwork || p.Status.Phase != corev1.PodPending || len(p.Status.PodIPs) > 0 || p.DeletionTimestamp != nil {
		return ""
	}
	return p.Spec.NodeName
}

// resync reads the cloud periodically.
func (m *Manager) resync(ctx context.Context) error {
	failures := 0
	for {
		select {
		case <-m.reread: // this is what was wanted
		default:
		}
		begun := time.Now()
		s, err := m.provider.Read(ctx)
		if ctx.Err() != nil {
			return nil
		}
		m.take(ctx, s, begun, err)
		pause, next := m.pause, m.cfg.Resync
		if err != nil {
			m.log.Error("the cloud cannot be read; its last description is used, and nodes that need a newer one wait", "error", err, "cause", errors.Unwrap(err))
			pause, next = retry.Sleep, retry.Backoff(failures, firstBackoff, m.cfg.Resync)
			failures++
		} else {
			failures = 0
			m.metrics.resyncs.Inc()
		}
		if !pause(ctx, next) {
			return nil
		}
	}
}

// pause waits for the next description. It is early if a node requires one, after a short delay to
// combine the requests of several. It reports false if ctx ended.
func (m *Manager) pause(ctx context.Context, d time.Duration) bool {
	early := d / 10
	return retry.Sleep(ctx, early) && retry.SleepUnless(ctx, d-early, m.reread)
}

// rereads has the cloud be read before its time.
func (m *Manager) rereads() {
	retry.Notify(m.reread)
}

// take records a description and has nodes looked at for which it changes something.
func (m *Manager) take(ctx context.Context, s *Snapshot, begun time.Time, err error) {
	m.mu.Lock()
	all, early := m.inv.snapshot == nil, m.inv.early()
	changed := map[string]bool{}
	if m.fault = err; err == nil {
		if all {
			clear(m.owner) // the owner of an instance is decided by its present state
		}
		before := m.inv.interfaces
		m.inv.replace(s, begun)
		for id, i := range m.inv.interfaces {
			if old, ok := before[id]; !ok || !reflect.DeepEqual(old, i) {
				changed[i.Instance] = true
			}
		}
		for id, old := range before {
			if _, ok := m.inv.interfaces[id]; !ok {
				changed[old.Instance] = true
			}
		}
	}
	var names []string
	for name, n := range m.nodes {
		// One that lacks something may have it now: a subnet has been widened.
		if all || early && !m.inv.early() || changed[n.instance] || n.lacks {
			names = append(names, name)
		}
	}
	m.count()
	m.mu.Unlock()
	m.look(ctx, names...)
}

// count sets the gauge of nodes. It must be called with mu held.
func (m *Manager) count() {
	var lacks, full int
	for _, n := range m.nodes {
		if n.lacks {
			lacks++
		}
		if n.atCapacity {
			full++
		}
	}
	m.metrics.nodes.WithLabelValues("total").Set(float64(len(m.nodes)))
	m.metrics.nodes.WithLabelValues("in-deficit").Set(float64(lacks))
	m.metrics.nodes.WithLabelValues("at-capacity").Set(float64(full))
}

// look has nodes looked at.
func (m *Manager) look(ctx context.Context, names ...string) {
	for _, name := range names {
		n := &v2.CiliumNode{}
		n.Name = name
		select {
		case m.trigger <- event.GenericEvent{Object: n}:
		case <-ctx.Done():
			return
		}
	}
}

// collect removes interfaces that were made for deleted nodes, and that had no owner at two
// collections.
func (m *Manager) collect(ctx context.Context) error {
	if m.cfg.GCInterval == 0 {
		return nil
	}
	for retry.Sleep(ctx, m.cfg.GCInterval) {
		for _, i := range m.leftBehind() {
			if err := m.provider.Delete(ctx, i.ID); err != nil {
				m.log.Warn("an interface that was left behind cannot be deleted", "interface", i.ID, "error", err)
				continue
			}
			m.log.Info("deleted an interface that was left behind", "interface", i.ID, "instance", i.Instance)
			m.mu.Lock()
			m.inv.note(change{at: time.Now(), call: Delete, iface: i})
			m.mu.Unlock()
		}
	}
	return nil
}

func (m *Manager) leftBehind() (out []Interface) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fault != nil {
		return nil
	}
	left := map[string]bool{}
	for id, i := range m.inv.interfaces {
		if i.Attachment != "" || m.owner[i.Instance] != "" || len(m.cfg.GCTags) == 0 || !HasTags(i.Tags, m.cfg.GCTags) {
			continue
		}
		left[id] = true
		if m.left[id] && len(out) < gcBatch {
			out = append(out, i)
		}
	}
	m.left = left
	return out
}

// preferFirst has a node's instance be that of the node that was first, if several name it and this
// operator has not decided yet: after a restart it would be that which is looked at first, and the
// addresses of the other one's pods be released, as no pod of this one uses them.
func (m *Manager) preferFirst(ctx context.Context, o *v2.CiliumNode) error {
	instance := m.provider.Instance(o)
	m.mu.Lock()
	attached, _ := m.inv.of(instance)
	open := m.inv.snapshot != nil && m.owner[instance] == ""
	m.mu.Unlock()
	if !open {
		return nil
	}
	var all v2.CiliumNodeList
	if err := m.client.List(ctx, &all, client.MatchingFields{nodesOfInstance: instance}, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("nodes of instance %s: %w", instance, err)
	}
	first := o
	for i := range all.Items {
		if n := &all.Items[i]; n.Name != o.Name && n.DeletionTimestamp.IsZero() && wasFirst(n, first, attached) {
			first = n
		}
	}
	if first == o {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.owner[instance] == "" {
		m.claim(first.Name, instance)
	}
	return nil
}

// wasFirst reports whether x had an instance with these interfaces before y: an operator before
// this one has given it addresses of them, or else x is older.
func wasFirst(x, y *v2.CiliumNode, attached []Interface) bool {
	has := func(n *v2.CiliumNode) bool {
		for _, a := range n.Spec.IPAM.Pool {
			if slices.ContainsFunc(attached, func(i Interface) bool { return i.ID == a.Resource }) {
				return true
			}
		}
		return false
	}
	if hasX, hasY := has(x), has(y); hasX != hasY {
		return hasX
	}
	return cmp.Or(x.CreationTimestamp.Compare(y.CreationTimestamp.Time), cmp.Compare(x.Name, y.Name)) < 0
}

// claim records whose instance a node is. It returns the node that has it already.
func (m *Manager) claim(name, instance string) (n *node, other string) {
	n = m.nodes[name]
	if n == nil {
		n = &node{}
		m.nodes[name] = n
	}
	if n.instance != instance {
		if m.owner[n.instance] == name {
			delete(m.owner, n.instance)
		}
		n.instance, n.excess, n.ipv6 = instance, nil, attempts{}
	}
	if o := m.owner[instance]; o != "" && o != name {
		return n, o
	}
	m.owner[instance] = name
	return n, ""
}

// unmeasured forgets what was measured of a node, as it has no instance that can be seen, so that
// nothing is known of its addresses. It must be called with mu held.
func (m *Manager) unmeasured(name string) {
	m.metrics.forget(name)
	if n := m.nodes[name]; n != nil && (n.lacks || n.atCapacity) {
		n.lacks, n.atCapacity = false, false
		m.count()
	}
}

func (m *Manager) forget(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if n := m.nodes[name]; n != nil {
		if m.owner[n.instance] == name {
			delete(m.owner, n.instance)
		}
		delete(m.nodes, name)
		m.metrics.forget(name)
		m.count()
	}
}

// backoff records a failure and returns how long nothing is asked of the cloud for the node.
func (m *Manager) backoff(name, why string) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := m.nodes[name]
	if n == nil {
		return firstBackoff
	}
	return n.failed(why)
}

// refresh is when a node is looked at that nothing happens to: not all at once.
func refresh() time.Duration { return refreshInterval + rand.N(refreshInterval/10) }
