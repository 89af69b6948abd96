package mesh

import (
	"maps"
	"slices"
)

// index has the keys that each object stands for. Several objects may stand for one key, as slices
// do while an endpoint moves from one to the other, or pods that have the same address one after
// the other: then the one counts that was written last with another value. A slice is written for
// any of its endpoints, so its other, unchanged entries are not newer for that. It is not safe for
// concurrent use.
type index struct {
	exports map[string]export            // by object
	objects map[string]map[string]uint64 // by key: the order of each object's value, see export
}

// export is what one object stands for.
type export struct {
	// order is when it was written: the object's resource version.
	order  uint64
	values map[string]string // by key
}

func newIndex() *index {
	return &index{exports: map[string]export{}, objects: map[string]map[string]uint64{}}
}

// set replaces what an object stands for, and returns the keys that this may change. No values: it
// stands for nothing.
func (x *index) set(object string, e export) []string {
	old := x.exports[object]
	var changed []string
	for key := range old.values {
		if _, still := e.values[key]; still {
			continue
		}
		changed = append(changed, key)
		delete(x.objects[key], object)
		if len(x.objects[key]) == 0 {
			delete(x.objects, key)
		}
	}
	for key, v := range e.values {
		// An older version means that the server was restored from a backup.
		if was, had := old.values[key]; had && was == v && x.objects[key][object] <= e.order {
			continue
		}
		changed = append(changed, key)
		if x.objects[key] == nil {
			x.objects[key] = map[string]uint64{}
		}
		x.objects[key][object] = e.order
	}
	if len(e.values) == 0 {
		delete(x.exports, object)
	} else {
		x.exports[object] = e
	}
	return changed
}

// value returns what counts for a key.
func (x *index) value(key string) (value string, ok bool) {
	best, order := "", uint64(0)
	for _, object := range slices.Sorted(maps.Keys(x.objects[key])) {
		if now := x.objects[key][object]; best == "" || now > order {
			best, order = object, now
		}
	}
	value, ok = x.exports[best].values[key]
	return value, ok
}
