// Package index finds what could concern a set of labels, by the namespace and the labels that it
// asks for. It is not safe for concurrent use.
package index

import (
	"slices"

	"github.com/hawser-net/hawser/internal/labels"
)

// KV is a label without its source.
type KV struct{ Key, Value string }

// Anchor is where a selector is filed: under a namespace, under a label, under both, or (the zero
// anchor) where everything looks.
type Anchor struct {
	Namespace string
	KV        KV
	// Reserved means that the label is a reserved one, which few identities have.
	Reserved bool
}

// Index files things by anchor, and finds all that could concern a set of labels.
type Index[T comparable] struct {
	global bucket[T]
	spaces map[string]*bucket[T]
}

type bucket[T comparable] struct {
	any  []T
	byKV map[KV][]T
}

func (b *bucket[T]) empty() bool { return len(b.any)+len(b.byKV) == 0 }

// Add files t.
func (x *Index[T]) Add(a Anchor, t T) {
	b := &x.global
	if a.Namespace != "" {
		if x.spaces == nil {
			x.spaces = map[string]*bucket[T]{}
		}
		b = x.spaces[a.Namespace]
		if b == nil {
			b = &bucket[T]{}
			x.spaces[a.Namespace] = b
		}
	}
	if a.KV == (KV{}) {
		b.any = append(b.any, t)
		return
	}
	if b.byKV == nil {
		b.byKV = map[KV][]T{}
	}
	b.byKV[a.KV] = append(b.byKV[a.KV], t)
}

// Remove takes back what Add filed.
func (x *Index[T]) Remove(a Anchor, t T) {
	b := &x.global
	if a.Namespace != "" {
		if b = x.spaces[a.Namespace]; b == nil {
			return
		}
	}
	if a.KV == (KV{}) {
		b.any = Without(b.any, t)
	} else if list := Without(b.byKV[a.KV], t); len(list) > 0 {
		b.byKV[a.KV] = list
	} else {
		delete(b.byKV, a.KV)
	}
	if a.Namespace != "" && b.empty() {
		delete(x.spaces, a.Namespace)
	}
}

// Without removes one t from the list, whose order does not matter.
func Without[T comparable](list []T, t T) []T {
	i := slices.Index(list, t)
	if i < 0 {
		return list
	}
	var zero T
	last := len(list) - 1
	list[i], list[last] = list[last], zero
	return list[:last]
}

// Empty reports whether nothing is filed.
func (x *Index[T]) Empty() bool { return len(x.spaces) == 0 && x.global.empty() }

// Visit calls fn for everything filed where the labels lead; the same thing perhaps twice.
func (x *Index[T]) Visit(namespace string, set labels.Set, fn func(T)) {
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
		for _, t := range b.byKV[KV{set[i].Key, set[i].Value}] {
			fn(t)
		}
	}
}
