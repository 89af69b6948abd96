package addressing

import (
	"sync"

	"github.com/hawser-net/hawser/pkg/retry"
)

// Agent is the rest of the node's agent, as its addresses see it.
type Agent interface {
	// Refresh has the node's object written, if it is not as it is filled.
	Refresh()
	// AddressesMoved is called when the node has other addresses than before.
	AddressesMoved()
	// Report is called with what is wrong with them; nil if nothing is.
	Report(error)
}

// notifier queues notifications for the agent until they are delivered. Adding one never blocks.
type notifier struct {
	trigger chan struct{}
	due     *due
}

// due is what the agent is to be notified of.
type due struct {
	mu                sync.Mutex
	refreshed, faulty bool
	moved             bool
	fault             error
}

func newNotifier() notifier { return notifier{make(chan struct{}, 1), &due{}} }

func (t notifier) note(f func(*due)) {
	t.due.mu.Lock()
	f(t.due)
	t.due.mu.Unlock()
	retry.Notify(t.trigger)
}

// again wakes the goroutine that maintains the addresses.
func (t notifier) again() { t.note(func(*due) {}) }

func (t notifier) refresh()         { t.note(func(d *due) { d.refreshed = true }) }
func (t notifier) moved()           { t.note(func(d *due) { d.moved = true }) }
func (t notifier) report(err error) { t.note(func(d *due) { d.faulty, d.fault = true, err }) }

// pass notifies the agent of what is due.
func (t notifier) pass(a Agent) {
	t.due.mu.Lock()
	now := due{refreshed: t.due.refreshed, faulty: t.due.faulty, moved: t.due.moved, fault: t.due.fault}
	t.due.refreshed, t.due.faulty, t.due.moved = false, false, false
	t.due.mu.Unlock()
	if now.faulty {
		a.Report(now.fault)
	}
	if now.moved {
		a.AddressesMoved()
	}
	if now.refreshed {
		a.Refresh()
	}
}
