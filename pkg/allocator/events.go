package allocator

import (
	"container/list"
	"context"
	"sync"
)

// eventQueue holds events for a reader, so that the watch goes on however slow that is. It is
// bounded by what there is to deliver, and not by what has happened: of an ID it keeps at most
// that it has lost its old key and which one it has now, of a key at most that it has moved to an
// ID. What came and went while the reader was busy is not delivered.
type eventQueue struct {
	mu      sync.Mutex
	waiting list.List // of AllocatorEvent
	places  map[eventSubject]*list.Element
	more    chan struct{} // made by a pump that waits
	off     bool          // without a reader
}

// eventSubject is what only one event that waits is about.
type eventSubject struct {
	kind   EventKind
	remote string
	id     ID
	key    string
}

func subjectOf(ev AllocatorEvent) eventSubject {
	switch ev.Kind {
	case EventSync:
		return eventSubject{kind: ev.Kind, remote: ev.Remote}
	case EventRenumbered:
		return eventSubject{kind: ev.Kind, key: ev.Key.GetKey()}
	}
	return eventSubject{kind: ev.Kind, remote: ev.Remote, id: ev.ID}
}

func (q *eventQueue) push(ev AllocatorEvent) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.off {
		return
	}
	subject := subjectOf(ev)
	same := q.places[subject]
	switch ev.Kind {
	case EventUpsert:
		if same != nil { // after the deletion of the old key, if that waits too
			same.Value = ev
			return
		}
	case EventDelete:
		// What the reader does not know yet it need not forget; whether it knows an earlier key is
		// not known here.
		upsert := subject
		upsert.kind = EventUpsert
		q.drop(upsert)
		if same != nil {
			return
		}
	case EventRenumbered:
		q.drop(subject) // even if it moves back: Allocate has returned the ID in between
	case EventSync:
		if same != nil {
			return
		}
	}
	if q.places == nil {
		q.places = make(map[eventSubject]*list.Element)
	}
	q.places[subject] = q.waiting.PushBack(ev)
	if q.more != nil {
		close(q.more)
		q.more = nil
	}
}

// drop must be called with mu held.
func (q *eventQueue) drop(subject eventSubject) {
	if e := q.places[subject]; e != nil {
		q.waiting.Remove(e)
		delete(q.places, subject)
	}
}

// pop returns the event that waits longest; if there is none, a channel that is closed when there
// is one.
func (q *eventQueue) pop() (ev AllocatorEvent, more <-chan struct{}) {
	q.mu.Lock()
	defer q.mu.Unlock()
	front := q.waiting.Front()
	if front == nil {
		if q.more == nil {
			q.more = make(chan struct{})
		}
		return AllocatorEvent{}, q.more
	}
	ev = front.Value.(AllocatorEvent)
	q.drop(subjectOf(ev))
	return ev, nil
}

// pump sends the events to out, in order, until ctx ends. Without out it drops them.
func (q *eventQueue) pump(ctx context.Context, out AllocatorEventChan) {
	if out == nil {
		q.mu.Lock()
		q.off, q.places = true, nil
		q.waiting.Init()
		q.mu.Unlock()
		return
	}
	for {
		ev, more := q.pop()
		if more != nil {
			select {
			case <-more:
				continue
			case <-ctx.Done():
				return
			}
		}
		select {
		case out <- ev:
		case <-ctx.Done():
			return
		}
	}
}
