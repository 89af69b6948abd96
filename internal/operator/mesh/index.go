package mesh

import (
	"maps"
	"slices"
)

// book has what each object says of which key. Several may speak of one, as slices do while an
// endpoint moves from one to the other, or pods that have the same address one after the other:
// then the one written last counts. It is not safe for concurrent use.
type book struct {
	said     map[string]said            // by object
	speakers map[string]map[string]bool // by key
}

// said is what one object says.
type said struct {
	// order is when it was written: the object's resource version.
	order  uint64
	values map[string]string // by key
}

func newBook() *book { return &book{said: map[string]said{}, speakers: map[string]map[string]bool{}} }

// set replaces what an object says, and returns the keys that this may change. No values: it says
// nothing.
func (b *book) set(object string, s said) []string {
	old := b.said[object]
	var changed []string
	for key, v := range old.values {
		if now, still := s.values[key]; !still || now != v || s.order != old.order {
			changed = append(changed, key)
		}
		if _, still := s.values[key]; !still {
			delete(b.speakers[key], object)
			if len(b.speakers[key]) == 0 {
				delete(b.speakers, key)
			}
		}
	}
	for key := range s.values {
		if _, had := old.values[key]; !had {
			changed = append(changed, key)
		}
		if b.speakers[key] == nil {
			b.speakers[key] = map[string]bool{}
		}
		b.speakers[key][object] = true
	}
	if len(s.values) == 0 {
		delete(b.said, object)
	} else {
		b.said[object] = s
	}
	return changed
}

// value returns what counts for a key.
func (b *book) value(key string) (value string, ok bool) {
	var best said
	for _, object := range slices.Sorted(maps.Keys(b.speakers[key])) {
		if s := b.said[object]; !ok || s.order > best.order {
			best, ok = s, true
		}
	}
	return best.values[key], ok
}
