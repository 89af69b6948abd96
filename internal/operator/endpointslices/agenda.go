package endpointslices

import (
	"time"
)

const (
	// firstRetry and lastRetry bound the pause after failures in a row.
	firstRetry = 100 * time.Millisecond
	lastRetry  = 30 * time.Second
)

// agenda says which slice is to be synchronised next, and when: those of namespaces with priority
// before others, and each not before delay has passed, so that what changes in the meantime costs
// no further write. It is not safe for concurrent use.
type agenda struct {
	delay time.Duration
	items map[string]task
}

// task is a slice that is to be synchronised.
type task struct {
	name string
	fast bool
	// since is when it came, due when it may be looked at.
	since, due time.Time
	failures   int
}

func newAgenda(delay time.Duration) *agenda { return &agenda{delay: delay, items: map[string]task{}} }

// add puts a slice on the agenda. What is there already stays when it is, but may become urgent.
func (a *agenda) add(name string, fast bool, now time.Time) {
	t, there := a.items[name]
	if !there {
		t = task{name: name, since: now, due: now.Add(a.delay)}
	}
	t.fast = t.fast || fast
	a.items[name] = t
}

// retry puts a task back that failed, or brings it together with what has come for its slice since.
func (a *agenda) retry(t task, now time.Time) {
	t.failures++
	pause := lastRetry
	if n := t.failures - 1; n < 16 {
		pause = min(firstRetry<<n, lastRetry)
	}
	t.due = now.Add(pause)
	if later, there := a.items[t.name]; there {
		t.fast = t.fast || later.fast
	}
	a.items[t.name] = t
}

// take returns the task whose turn it is and takes it off the agenda; if there is none, how long it
// is until there may be: 0 for until something is added.
func (a *agenda) take(now time.Time) (t task, ok bool, wait time.Duration) {
	for _, o := range a.items {
		if o.due.After(now) {
			if d := o.due.Sub(now); wait == 0 || d < wait {
				wait = d
			}
			continue
		}
		if !ok || before(o, t) {
			t, ok = o, true
		}
	}
	if ok {
		delete(a.items, t.name)
		return t, true, 0
	}
	return task{}, false, wait
}

func before(x, y task) bool {
	if x.fast != y.fast {
		return x.fast
	}
	if c := x.due.Compare(y.due); c != 0 {
		return c < 0
	}
	return x.name < y.name
}
