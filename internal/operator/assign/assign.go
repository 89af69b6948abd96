// Package assign has nodes be given blocks of addresses: it is the loop around an index that
// decides which. It reads a node from the server itself before the index is asked, writes what the
// index answers into spec.ipam of the node's CiliumNode, if that is still as it was read, and what
// cannot be done into status.ipam.operator-status.error.
//
// A node that, according to the index, needs nothing costs no request. One that could not be served
// is retried whenever something was released, and every 15 seconds.
package assign

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/operator/kube"
)

const (
	// workers is how many nodes are looked after at once: each that needs something waits for the
	// server twice.
	workers = 16
	// WaitingRetry is how often a node that could not be served is looked at again, whether or not
	// something was released.
	WaitingRetry = 15 * time.Second
)

// Index decides what nodes have. Its methods are called one at a time, and must not wait for
// anything.
type Index interface {
	// Agrees reports whether a view of a node that may be old leaves nothing to do.
	Agrees(n *v2.CiliumNode) bool
	// Reconcile decides about a node, which is as the server has it now.
	Reconcile(n *v2.CiliumNode) Answer
	// Wrote means that the node has what Reconcile answered; served means that nothing was wrong.
	Wrote(name string, served bool)
	// Forget is called when a node is gone. It reports whether anything became free.
	Forget(name string) bool
}

// Answer is what is to become of a node.
type Answer struct {
	// IPAM are the fields of spec.ipam that are to be others, by their names; nil if none is.
	IPAM map[string]any
	// Annotations are those of the node that are to be others, nil for one that is to go. They
	// count only with IPAM.
	Annotations map[string]any
	// Faults are for people, in the node's status.
	Faults []string
	// Displaced are nodes that lost something to this one, which is older. Their status must show
	// that.
	Displaced []string
	// Released is set if something became free.
	Released bool
}

// Config is what a [Controller] is made from.
type Config struct {
	// Name is the controller's, by which a manager distinguishes it from others.
	Name  string
	Index Index
	// Measure is called when what is held may have changed, like the methods of Index.
	Measure func()
	// Waits counts the nodes that wait for something.
	Waits prometheus.Gauge
	Log   *slog.Logger
}

// Controller keeps the nodes in line with the index. Make it with New and give it nodes with Add.
type Controller struct {
	cfg     Config
	log     *slog.Logger
	client  client.Client
	live    client.Reader
	trigger chan event.GenericEvent

	mu      sync.Mutex      // for the index; not held while the server is asked
	waiting map[string]bool // nodes that would be better off if something were released
}

// New returns a controller that does nothing yet.
func New(m manager.Manager, cfg Config) *Controller {
	return &Controller{
		cfg: cfg, log: cfg.Log, client: m.GetClient(), live: m.GetAPIReader(), trigger: make(chan event.GenericEvent, 1024), waiting: map[string]bool{},
	}
}

// EachNode calls do with every CiliumNode, read from the server itself. begin is called before the
// first, and again when the list restarts. While the server does not answer it tries again until
// ctx ends.
func (c *Controller) EachNode(ctx context.Context, begin func(), do func(*v2.CiliumNode)) error {
	err := kube.Persist(ctx, c.log, "cannot read the CiliumNodes, trying again", func() error {
		return kube.EachPage(ctx, c.live, func() *v2.CiliumNodeList { return &v2.CiliumNodeList{} }, begin, func(page *v2.CiliumNodeList) error {
			for i := range page.Items {
				do(&page.Items[i])
			}
			return nil
		})
	})
	if err != nil {
		return fmt.Errorf("CiliumNodes cannot be read, and without them no block of addresses can be given out: %w", err)
	}
	return nil
}

// Add has m run the controller. What nodes hold must have been recorded.
func (c *Controller) Add(m manager.Manager) error {
	c.measure()
	err := builder.ControllerManagedBy(m).Named(c.cfg.Name).
		For(&v2.CiliumNode{}).
		WatchesRawSource(source.Channel(c.trigger, &handler.EnqueueRequestForObject{})).
		WithOptions(controller.Options{
			MaxConcurrentReconciles: workers,
			RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](100*time.Millisecond, 30*time.Second),
		}).
		Complete(reconcile.Func(c.reconcile))
	if err != nil {
		return fmt.Errorf("controller %s: %w", c.cfg.Name, err)
	}
	return nil
}

// With calls f as the methods of Index are called.
func (c *Controller) With(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
}

// Look has nodes looked at. It waits until there is room to note that, or ctx ends.
func (c *Controller) Look(ctx context.Context, names []string) {
	for _, name := range names {
		select {
		case c.trigger <- eventFor(name):
		case <-ctx.Done():
			return
		}
	}
}

func (c *Controller) measure() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cfg.Measure()
	c.cfg.Waits.Set(float64(len(c.waiting)))
}

// reconcile looks after one node.
func (c *Controller) reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	defer c.measure()
	cached := &v2.CiliumNode{}
	err := c.client.Get(ctx, req.NamespacedName, cached)
	if err != nil && !apierrors.IsNotFound(err) {
		return reconcile.Result{}, fmt.Errorf("CiliumNode %s: %w", req.Name, err)
	}
	if err == nil && cached.Status.IPAM.OperatorStatus.Error == "" && c.agrees(cached) {
		return reconcile.Result{}, nil
	}
	// What the cache shows may be old; what is given or released depends on what is.
	live := &v2.CiliumNode{}
	err = c.live.Get(ctx, req.NamespacedName, live)
	if apierrors.IsNotFound(err) {
		c.forget(req.Name)
		return reconcile.Result{}, nil
	}
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("CiliumNode %s: %w", req.Name, err)
	}
	if !live.DeletionTimestamp.IsZero() {
		return reconcile.Result{}, nil // it comes again when it is gone
	}
	return c.apply(ctx, live)
}

// agrees reports whether a node as the cache shows it needs nothing.
func (c *Controller) agrees(cached *v2.CiliumNode) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	ok := c.cfg.Index.Agrees(cached)
	if ok {
		delete(c.waiting, cached.Name)
	}
	return ok
}

// forget records that a node is gone.
func (c *Controller) forget(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.waiting, name)
	if c.cfg.Index.Forget(name) {
		c.log.Info("a node is gone, and addresses are free", "node", name)
		c.enqueueWaiting()
	}
}

// decide asks the index about a node as the server has it now.
func (c *Controller) decide(live *v2.CiliumNode) Answer {
	c.mu.Lock()
	defer c.mu.Unlock()
	a := c.cfg.Index.Reconcile(live)
	if a.Released {
		c.enqueueWaiting()
	}
	for _, name := range a.Displaced {
		c.log.Warn("an older node has the same addresses", "node", name, "older", live.Name)
		c.enqueue(name)
	}
	return a
}

// note records what has been written of a node. It reports whether the node waits for something.
func (c *Controller) note(name string, a Answer) (waits bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	served := len(a.Faults) == 0
	c.cfg.Index.Wrote(name, served)
	if served {
		delete(c.waiting, name)
		return false
	}
	c.waiting[name] = true
	return true
}

// apply reconciles a node, as the server has it now, with the index.
func (c *Controller) apply(ctx context.Context, live *v2.CiliumNode) (reconcile.Result, error) {
	a := c.decide(live)
	if a.IPAM != nil {
		if err := c.write(ctx, live, a); err != nil {
			if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
				return reconcile.Result{RequeueAfter: time.Millisecond}, nil
			}
			return reconcile.Result{}, err
		}
		c.log.Info("gave addresses to a node", "node", live.Name, "podCIDRs", live.Spec.IPAM.PodCIDRs, "pools", live.Spec.IPAM.Pools.Allocated)
	}
	if err := c.writeStatus(ctx, live, strings.Join(a.Faults, "; ")); err != nil {
		return reconcile.Result{}, err
	}
	if c.note(live.Name, a) {
		return reconcile.Result{RequeueAfter: WaitingRetry}, nil
	}
	return reconcile.Result{}, nil
}

// write applies an assignment to a node, if that is still as it was read, and leaves everything
// else alone. live is as written afterwards.
func (c *Controller) write(ctx context.Context, live *v2.CiliumNode, a Answer) error {
	meta := map[string]any{"resourceVersion": live.ResourceVersion, "uid": live.UID}
	if a.Annotations != nil {
		meta["annotations"] = a.Annotations
	}
	patch, err := json.Marshal(map[string]any{"metadata": meta, "spec": map[string]any{"ipam": a.IPAM}})
	if err == nil {
		err = c.client.Patch(ctx, live, client.RawPatch(types.MergePatchType, patch))
	}
	if err != nil {
		return fmt.Errorf("spec.ipam of CiliumNode %s: %w", live.Name, err)
	}
	return nil
}

// writeStatus writes what is wrong into the node's status, or that nothing is.
func (c *Controller) writeStatus(ctx context.Context, live *v2.CiliumNode, fault string) error {
	if live.Status.IPAM.OperatorStatus.Error == fault {
		return nil
	}
	var value any = fault
	if fault == "" {
		value = nil
	} else {
		c.log.Warn("a node cannot get what it needs", "node", live.Name, "fault", fault)
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": live.UID},
		"status":   map[string]any{"ipam": map[string]any{"operator-status": map[string]any{"error": value}}},
	})
	if err == nil {
		err = c.client.Status().Patch(ctx, live, client.RawPatch(types.MergePatchType, patch))
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("status of CiliumNode %s: %w", live.Name, err)
	}
	return nil
}

// enqueueWaiting has nodes looked at that wait for something to be released. It must be called with
// mu held.
func (c *Controller) enqueueWaiting() {
	for name := range c.waiting {
		c.enqueue(name)
	}
}

// enqueue has a node looked at soon. If the channel is full it is looked at when its time comes.
func (c *Controller) enqueue(name string) {
	select {
	case c.trigger <- eventFor(name):
	default:
	}
}

func eventFor(name string) event.GenericEvent {
	n := &v2.CiliumNode{}
	n.Name = name
	return event.GenericEvent{Object: n}
}
