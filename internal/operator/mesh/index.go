package mesh

import (
	"maps"
	"slices"
)

// index has the keys that each object stands for. Several objects may stand for one key, as slices
// do while an endpoint moves from one to the other, or pods that have the same address one after
// the other: then the one written last counts. It is not safe for concurrent use.
type index struct {
	exports map[string]export          // by object
	objects map[string]map[string]bool // by key
}

// export is what one object stands for.
type export struct {
	// order is when it was written: the object's resource version.
	order  uint64
	values map[string]string // by key
}

func newIndex() *index {
	return &index{exports: map[string]export{}, objects: map[string]map[string]bool{}}
}

// set replaces what an object stands for, and returns the keys that this may change. No values: it
// stands for nothing.
func (x *index) set(object string, e export) []string {
	old := x.exports[object]
	var changed []string
	for key, v := range old.values {
		if now, still := e.values[key]; !still || now != v || e.order != old.order {
			changed = append(changed, key)
		}
		if _, still := e.values[key]; !still {
			delete(x.objects[key], object)
			if len(x.objects[key]) == 0 {
				delete(x.objects, key)
			}
		}
	}
	for key := range e.values {
		if _, had := old.values[key]; !had {
			changed = append(changed, key)
		}
		if x.objects[key] == nil {
			x.objects[key] = map[string]bool{}
		}
		x.objects[key][object] = true
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
	var best export
	for _, object := range slices.Sorted(maps.Keys(x.objects[key])) {
		if e := x.exports[object]; !ok || e.order > best.order {
			best, ok = e, true
		}
	}
	return best.values[key], ok
}
