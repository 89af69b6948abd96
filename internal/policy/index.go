package policy

import (
	"slices"

	"github.com/hawser-net/hawser/internal/labels"
)

// kv is a label without its source.
type kv struct{ key, value string }

// anchor is where a selector is filed: under a namespace, under a label, under both, or (the zero
// anchor) where everything looks.
type anchor struct {
	namespace string
	kv        kv
	// reserved says that the label is a reserved one, which few identities have.
	reserved bool
}

// index files things by anchor, and finds all that could concern a set of labels.
type index[T comparable] struct {
	global bucket[T]
	spaces map[string]*bucket[T]
}

type bucket[T comparable] struct {
	any  []T
	byKV map[kv][]T
}

func (b *bucket[T]) empty() bool { return len(b.any)+len(b.byKV) == 0 }

func (x *index[T]) add(a anchor, t T) {
	b := &x.global
	if a.namespace != "" {
		if x.spaces == nil {
			x.spaces = map[string]*bucket[T]{}
		}
		b = x.spaces[a.namespace]
		if b == nil {
			b = &bucket[T]{}
			x.spaces[a.namespace] = b
		}
	}
	if a.kv == (kv{}) {
		b.any = append(b.any, t)
		return
	}
	if b.byKV == nil {
		b.byKV = map[kv][]T{}
	}
	b.byKV[a.kv] = append(b.byKV[a.kv], t)
}

func (x *index[T]) remove(a anchor, t T) {
	b := &x.global
	if a.namespace != "" {
		if b = x.spaces[a.namespace]; b == nil {
			return
		}
	}
	if a.kv == (kv{}) {
		b.any = without(b.any, t)
	} else if list := without(b.byKV[a.kv], t); len(list) > 0 {
		b.byKV[a.kv] = list
	} else {
		delete(b.byKV, a.kv)
	}
	if a.namespace != "" && b.empty() {
		delete(x.spaces, a.namespace)
	}
}

// without removes one t from the list, whose order does not matter.
func without[T comparable](list []T, t T) []T {
	i := slices.Index(list, t)
	if i < 0 {
		return list
	}
	var zero T
	last := len(list) - 1
	list[i], list[last] = list[last], zero
	return list[:last]
}

// visit calls fn for everything filed where the labels lead; the same thing perhaps twice.
func (x *index[T]) visit(namespace string, set labels.Set, fn func(T)) {
	x.global.visit(set, fn)
	if namespace != "" {
		if b := x.spaces[namespace]; b != nil {
			b.visit(set, fn)
		}
	}
}

func (b *bucket[T]) visit(set labels.Set, fn func(T)) {
	for _, t := range b.any {
		fn(t)
	}
	if len(b.byKV) == 0 {
		return
	}
	for i := range set {
		for _, t := range b.byKV[kv{set[i].Key, set[i].Value}] {
			fn(t)
		}
	}
}
