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

// Save writes the records of endpoints that could not be written, and removes those that could not
// be removed, as on a disk that is full or read-only. Call it periodically. It skips endpoints that
// are being changed. The error says how many records are outdated.
func (l *Lifecycle) Save() error {
	var ids []uint16
	for _, row := range l.cfg.Registry.List() {
		if row.Unsaved {
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
	if !row.Unsaved {
		return nil
	}
	if err := l.cfg.Store.Put(row); err != nil {
		return err
	}
	row.Unsaved = false
	l.set(row, row.State, "on disk")
	return nil
}
