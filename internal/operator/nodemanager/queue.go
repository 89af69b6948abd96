package nodemanager

import (
	"container/list"
	"context"
	"slices"
	"sync"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// Nodes on which pods wait for an address come before those that are only to have some in advance:
// where thousands of nodes need calls to a cloud that allows a few a second, a pod would wait for
// all of them.

type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// nodeQueue is the controller's queue, with two priorities. That of controller-runtime may leave
// workers waiting for ever when it is shut down while nodes are in it: issue 3538.
type nodeQueue struct {
	queue
	order *order
}

var _ priorityqueue.PriorityQueue[reconcile.Request] = (*nodeQueue)(nil)

// newQueue returns an empty queue. It is for the controller's options.
func newQueue(name string, limiter workqueue.TypedRateLimiter[reconcile.Request]) queue {
	o := &order{short: map[reconcile.Request]bool{}, taken: map[reconcile.Request]int{}, at: map[reconcile.Request]place{}}
	q := workqueue.NewTypedWithConfig(workqueue.TypedQueueConfig[reconcile.Request]{Name: name, Queue: o})
	delaying := workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[reconcile.Request]{Name: name, Queue: q})
	return &nodeQueue{
		queue: workqueue.NewTypedRateLimitingQueueWithConfig(limiter, workqueue.TypedRateLimitingQueueConfig[reconcile.Request]{Name: name, DelayingQueue: delaying}),
		order: o,
	}
}

// AddWithOpts adds nodes with a priority, which counts at once for one that is there, also if it is
// to be looked at later only.
func (q *nodeQueue) AddWithOpts(o priorityqueue.AddOpts, nodes ...reconcile.Request) {
	for _, r := range nodes {
		if o.Priority != nil && *o.Priority > 0 {
			q.order.mark(r)
		}
		switch {
		case o.RateLimited:
			q.AddRateLimited(r)
		case o.After > 0:
			q.AddAfter(r, o.After)
		default:
			q.Add(r)
		}
	}
}

// GetWithPriority waits for a node, and returns the priority that it had.
func (q *nodeQueue) GetWithPriority() (r reconcile.Request, priority int, shutdown bool) {
	r, shutdown = q.Get()
	return r, q.order.priority(r), shutdown
}

// order is what a [nodeQueue] has to hand out. Its lists are the queue's, which makes one call at a
// time.
type order struct {
	urgent, others list.List // of requests
	at             map[reconcile.Request]place

	mu    sync.Mutex
	short map[reconcile.Request]bool // on which pods wait, until they are handed out
	taken map[reconcile.Request]int  // with which priority they were, until that was asked
}

// place is where a request is.
type place struct {
	in *list.List
	e  *list.Element
}

func (o *order) mark(r reconcile.Request) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.short[r] = true
}

// priority returns that of a node that has just been handed out.
func (o *order) priority(r reconcile.Request) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	defer delete(o.taken, r)
	return o.taken[r]
}

// of returns the list in which a node is to be.
func (o *order) of(r reconcile.Request) *list.List {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.short[r] {
		return &o.urgent
	}
	return &o.others
}

// Push implements [workqueue.Queue].
func (o *order) Push(r reconcile.Request) {
	in := o.of(r)
	o.at[r] = place{in, in.PushBack(r)}
}

// Touch implements [workqueue.Queue]: a node that is there is added again.
func (o *order) Touch(r reconcile.Request) {
	if p, there := o.at[r]; there && p.in != o.of(r) {
		p.in.Remove(p.e)
		o.Push(r)
	}
}

// Len implements [workqueue.Queue].
func (o *order) Len() int { return len(o.at) }

// Pop implements [workqueue.Queue].
func (o *order) Pop() reconcile.Request {
	from := &o.urgent
	if from.Len() == 0 {
		from = &o.others
	}
	r := from.Remove(from.Front()).(reconcile.Request)
	delete(o.at, r)
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.short, r)
	if from == &o.urgent {
		o.taken[r] = 1
	}
	return r
}

// priority returns that of a node in the queue.
func priority(short bool) *int {
	if short {
		return new(1)
	}
	return new(0)
}

// nodeEvents has a node looked at whose object has changed.
func nodeEvents(m *Manager) handler.EventHandler {
	add := func(o client.Object, q queue) {
		m.mu.Lock()
		n := m.nodes[o.GetName()]
		short := n != nil && n.spare < 0
		m.mu.Unlock()
		enqueue(q, o.GetName(), short)
	}
	return handler.Funcs{
		CreateFunc:  func(_ context.Context, e event.CreateEvent, q queue) { add(e.Object, q) },
		UpdateFunc:  func(_ context.Context, e event.UpdateEvent, q queue) { add(e.ObjectNew, q) },
		DeleteFunc:  func(_ context.Context, e event.DeleteEvent, q queue) { add(e.Object, q) },
		GenericFunc: func(_ context.Context, e event.GenericEvent, q queue) { add(e.Object, q) },
	}
}

// podEvents has a node looked at on which a pod waits for an address, or does not any more.
func podEvents(m *Manager) handler.EventHandler {
	// One that has begun to wait takes an address that was spare, until the node is looked at.
	begins := func(node string, q queue) {
		m.mu.Lock()
		n := m.nodes[node]
		if n != nil {
			n.spare--
		}
		short := n == nil || n.spare < 0
		m.mu.Unlock()
		enqueue(q, node, short)
	}
	return handler.Funcs{
		CreateFunc: func(_ context.Context, e event.CreateEvent, q queue) {
			if node := waitingOn(e.Object); node != "" {
				begins(node, q)
			}
		},
		UpdateFunc: func(_ context.Context, e event.UpdateEvent, q queue) {
			was, is := waitingOn(e.ObjectOld), waitingOn(e.ObjectNew)
			switch {
			case is == was:
			case is != "":
				begins(is, q)
			default:
				enqueue(q, was, false)
			}
		},
		DeleteFunc: func(_ context.Context, e event.DeleteEvent, q queue) {
			if node := waitingOn(e.Object); node != "" {
				enqueue(q, node, false)
			}
		},
	}
}

// enqueue adds a node to the queue, which is a [nodeQueue]. One that is there keeps the higher of
// two priorities.
func enqueue(q queue, name string, short bool) {
	r := reconcile.Request{}
	r.Name = name
	q.(priorityqueue.PriorityQueue[reconcile.Request]).AddWithOpts(priorityqueue.AddOpts{Priority: priority(short)}, r)
}

// ---- the order of calls ------------------------------------------------------------------------

// urgentKey is that of a context whose calls are urgent.
type urgentKey struct{}

// urgent returns a context with which a call comes before those that wait for the budget, too, and
// are not urgent: pods wait for what it brings.
func urgent(ctx context.Context) context.Context { return context.WithValue(ctx, urgentKey{}, true) }

// urgentInARow is how many urgent calls are made before one that is not: the cloud is to be read,
// too.
const urgentInARow = 7

// priorityLock is a lock that urgent callers get before others, and else in the order in which they
// ask. The zero value is free.
type priorityLock struct {
	mu             sync.Mutex
	held           bool
	urgent, others []chan struct{} // closed when it is handed over
	row            int             // urgent ones for which others waited, since the last of these
}

// lock waits for the lock until ctx ends. If it returns nil, the caller has it.
func (l *priorityLock) lock(ctx context.Context) error {
	l.mu.Lock()
	if !l.held {
		l.held = true
		l.mu.Unlock()
		return nil
	}
	list := &l.others
	if ctx.Value(urgentKey{}) != nil {
		list = &l.urgent
	}
	mine := make(chan struct{})
	*list = append(*list, mine)
	l.mu.Unlock()
	select {
	case <-mine:
		return nil
	case <-ctx.Done():
	}
	l.mu.Lock()
	i := slices.Index(*list, mine)
	if i >= 0 {
		*list = slices.Delete(*list, i, i+1)
	}
	l.mu.Unlock()
	if i < 0 { // it was handed over meanwhile
		l.unlock()
	}
	return ctx.Err()
}

// unlock hands the lock over.
func (l *priorityLock) unlock() {
	l.mu.Lock()
	defer l.mu.Unlock()
	list := &l.urgent
	switch {
	case len(l.others) == 0:
	case len(l.urgent) == 0 || l.row == urgentInARow:
		list, l.row = &l.others, 0
	default:
		l.row++
	}
	if len(*list) == 0 {
		l.held = false
		return
	}
	close((*list)[0])
	*list = slices.Delete(*list, 0, 1)
}
