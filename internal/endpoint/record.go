package endpoint

import (
	"fmt"
	"maps"
	"slices"
)

// save writes the record of a row that is in force already. One that cannot be written takes
// nothing back: the endpoint goes on, and Save tries again. Only an agent that starts before that
// begins with the earlier row.
func (l *Lifecycle) save(row Endpoint) Endpoint {
	err := l.cfg.Store.Put(row)
	first := err != nil && !row.Unsaved
	row.Unsaved = err != nil
	if first {
		l.cfg.Log.Error("an endpoint's change is in force, but not on disk; trying again", "endpoint", row.ID, "error", err)
		row, _ = l.fail(row, row.State, "in force, but not on disk: "+err.Error())
	}
	return row
}

// forget removes the record of an endpoint, now or by Save.
func (l *Lifecycle) forget(id uint16) error {
	err := l.cfg.Store.Delete(id)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		l.left[id] = struct{}{}
	} else {
		delete(l.left, id)
	}
	return err
}

// Save writes the records of endpoints that could not be written, as on a disk that is full or
// read-only, or that another program has removed, and removes those that could not be removed. Call
// it periodically. It skips endpoints that are being changed. The error says how many records are
// outdated.
func (l *Lifecycle) Save() error {
	var ids []uint16
	for _, row := range l.cfg.Registry.List() {
		if row.Unsaved || l.unrecorded(row) {
			ids = append(ids, row.ID)
		}
	}
	l.mu.Lock()
	ids = append(ids, slices.Sorted(maps.Keys(l.left))...)
	l.mu.Unlock()
	outdated := 0
	var last error
	for _, id := range ids {
		if err := l.saveAgain(id); err != nil {
			outdated++
			last = err
		}
	}
	if last != nil {
		return fmt.Errorf("the records of %d endpoints are outdated; an agent that starts begins with these: %w", outdated, last)
	}
	return nil
}

// unrecorded reports whether the record of an endpoint is gone. One that is only being made has
// none yet.
func (l *Lifecycle) unrecorded(row Endpoint) bool {
	return row.State != StateCreating && !l.cfg.Store.Has(row.ID)
}

func (l *Lifecycle) saveAgain(id uint16) error {
	unlock, free := l.tryLock(id)
	if !free {
		return nil
	}
	defer unlock()
	row, ok := l.cfg.Registry.Get(id)
	if !ok {
		return l.forget(id)
	}
	l.mu.Lock()
	delete(l.left, id) // the record is that of another endpoint by now
	l.mu.Unlock()
	gone := l.unrecorded(row)
	if !row.Unsaved && !gone {
		return nil
	}
	if err := l.cfg.Store.Put(row); err != nil {
		return err
	}
	if gone {
		l.cfg.Log.Warn("an endpoint's record was removed by another program, and is written again", "endpoint", id)
	}
	row.Unsaved = false
	l.set(row, row.State, "on disk")
	return nil
}
