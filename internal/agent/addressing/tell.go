package addressing

import "sync"

// Agent is the rest of the node's agent, as its addresses see it.
type Agent interface {
	// Refresh has the node's object written, if it is not as it is filled.
	Refresh()
	// AddressesMoved is told that the node has other addresses than before.
	AddressesMoved()
	// Report is told what is wrong with them; nil if nothing is.
	Report(error)
}

// teller keeps what the agent is to be told until somebody has time to. It blocks nobody.
type teller struct {
	wake chan struct{}
	due  *due
}

// due is what the agent is to be told.
type due struct {
	mu              sync.Mutex
	refreshed, news bool
	moved           bool
	fault           error
}

func newTeller() teller { return teller{make(chan struct{}, 1), &due{}} }

func (t teller) note(f func(*due)) {
	t.due.mu.Lock()
	f(t.due)
	t.due.mu.Unlock()
	select {
	case t.wake <- struct{}{}:
	default: // it is due already
	}
}

// again wakes whoever looks after the addresses.
func (t teller) again() { t.note(func(*due) {}) }

func (t teller) refresh()         { t.note(func(d *due) { d.refreshed = true }) }
func (t teller) moved()           { t.note(func(d *due) { d.moved = true }) }
func (t teller) report(err error) { t.note(func(d *due) { d.news, d.fault = true, err }) }

// pass tells the agent what is due.
func (t teller) pass(a Agent) {
	t.due.mu.Lock()
	now := due{refreshed: t.due.refreshed, news: t.due.news, moved: t.due.moved, fault: t.due.fault}
	t.due.refreshed, t.due.news, t.due.moved = false, false, false
	t.due.mu.Unlock()
	if now.news {
		a.Report(now.fault)
	}
	if now.moved {
		a.AddressesMoved()
	}
	if now.refreshed {
		a.Refresh()
	}
}
