package kvstore

import (
	"sort"
	"strings"
)

// WatchState is what one watch has delivered to its reader. Backends use it to turn listings and
// changes into events: whether a key is new to the reader, and what vanished while the watch was
// broken. The zero value is ready. It is not safe for concurrent use.
type WatchState struct {
	// Prefix is what all keys begin with. A watch may know a key for every pod of a cluster, so the
	// part that they share is not kept with each.
	Prefix string
	mod    map[string]int64 // by the rest of the key
	bytes  int              // of the keys of mod
}

func (w *WatchState) rest(key string) string { return strings.TrimPrefix(key, w.Prefix) }

// Size returns how many keys the reader knows, and how long they are together without the prefix.
func (w *WatchState) Size() (keys, bytes int) { return len(w.mod), w.bytes }

// Replace returns the events that bring a reader from what it knows to the state of the listing,
// closed by [EventListDone].
func (w *WatchState) Replace(l Listing) []Event {
	events := make([]Event, 0, len(l.Pairs)+1)
	now := make(map[string]int64, len(l.Pairs))
	w.bytes = 0
	for _, kv := range l.Pairs {
		rest := w.rest(kv.Key)
		old, known := w.mod[rest]
		now[strings.Clone(rest)] = kv.ModRevision
		w.bytes += len(rest)
		switch {
		case !known:
			events = append(events, Event{Kind: EventCreate, KeyValue: kv})
		case old != kv.ModRevision:
			events = append(events, Event{Kind: EventModify, KeyValue: kv})
		}
	}
	var gone []string
	for key := range w.mod {
		if _, ok := now[key]; !ok {
			gone = append(gone, key)
		}
	}
	sort.Strings(gone)
	for _, key := range gone {
		events = append(events, Event{Kind: EventDelete, KeyValue: KeyValue{Key: w.Prefix + key}})
	}
	w.mod = now
	return append(events, Event{Kind: EventListDone, Revision: l.Revision})
}

// Put returns the event for a write, or none if the reader has it already.
func (w *WatchState) Put(kv KeyValue) (Event, bool) {
	rest := w.rest(kv.Key)
	old, known := w.mod[rest]
	if known && old >= kv.ModRevision {
		return Event{}, false
	}
	if w.mod == nil {
		w.mod = make(map[string]int64)
	}
	kind := EventCreate
	if known {
		kind = EventModify
	} else {
		rest = strings.Clone(rest)
		w.bytes += len(rest)
	}
	w.mod[rest] = kv.ModRevision
	return Event{Kind: kind, KeyValue: kv, Revision: kv.ModRevision}, true
}

// Delete returns the event for a deletion at revision, or none if the reader did not know the key.
func (w *WatchState) Delete(key string, revision int64) (Event, bool) {
	rest := w.rest(key)
	if old, known := w.mod[rest]; !known || old > revision {
		return Event{}, false
	}
	delete(w.mod, rest)
	w.bytes -= len(rest)
	return Event{Kind: EventDelete, KeyValue: KeyValue{Key: key}, Revision: revision}, true
}

// Invalidate makes the next listing deliver every key again, as after a restore of the store from a
// backup: revisions may then name other content.
func (w *WatchState) Invalidate() {
	for key := range w.mod {
		w.mod[key] = -1
	}
}
