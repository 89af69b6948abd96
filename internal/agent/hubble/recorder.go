package hubble

import (
	"context"
	"sync"
	"time"

	flowpb "github.com/hawser-net/hawser/api/flow"
	"github.com/hawser-net/hawser/internal/agent/monitor"
	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/flowmetrics"
	"github.com/hawser-net/hawser/internal/flows"
	"github.com/hawser-net/hawser/pkg/retry"
)

// recorder makes flows of the kernel's events and remembers them.
type recorder struct {
	monitor *monitor.Monitor
	record  *flows.Record
	maker   flows.Maker
	// metrics counts flows; nil if none is configured.
	metrics *flowmetrics.Metrics
	events  datapath.MonitorFlags // the kinds of which flows are made

	mu      sync.Mutex
	users   int // who want flows to come
	sub     *monitor.Subscription
	unsub   func()
	changed chan struct{} // sub is another one
}

// follow has the kernel emit events until the function returned is called. When follow returns,
// what happens next is recorded.
func (r *recorder) follow() (stop func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.users++; r.users == 1 {
		r.sub, r.unsub = r.monitor.Subscribe(r.events)
		r.notify()
	}
	return sync.OnceFunc(func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.users--; r.users == 0 {
			r.unsub()
			r.sub, r.unsub = nil, nil
			r.notify()
		}
	})
}

// notify has run look at sub again. It must be called with mu held.
func (r *recorder) notify() {
	retry.Notify(r.changed)
}

// run records what there is until ctx ends.
func (r *recorder) run(ctx context.Context) error {
	for {
		r.mu.Lock()
		sub := r.sub
		r.mu.Unlock()
		var ready <-chan struct{} // nil while no client wants any
		if sub != nil {
			ready = sub.Ready()
		}
		select {
		case <-ctx.Done():
			return nil
		case <-r.changed:
		case <-ready:
			r.take(ctx, sub)
		}
	}
}

// take records the events that wait, unless ctx ends.
func (r *recorder) take(ctx context.Context, sub *monitor.Subscription) {
	events, kernel, queue := sub.Take()
	// What was lost has the time of what comes after it: entries stay in order.
	at := time.Now()
	if len(events) > 0 {
		at = events[0].Time
	}
	lose := func(source flowpb.LostEventSource, n uint64) {
		if n == 0 {
			return
		}
		r.record.Lose(source, n, at)
		if r.metrics != nil {
			r.metrics.Lose(source, n)
		}
	}
	lose(flowpb.LostEventSource_PERF_EVENT_RING_BUFFER, kernel)
	lose(flowpb.LostEventSource_OBSERVER_EVENTS_QUEUE, queue)
	for _, ev := range events {
		if ctx.Err() != nil {
			return
		}
		f := r.maker.Flow(ev)
		if f == nil {
			continue
		}
		now := time.Now()
		if r.metrics != nil {
			var foreign flowmetrics.Foreign
			foreign.Source, foreign.Destination = r.maker.Foreign(ev)
			r.metrics.Add(f, foreign, now)
		}
		r.record.Add(f, ev.Packet.Src, ev.Packet.Dst, now)
	}
}
