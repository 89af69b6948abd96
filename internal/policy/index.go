package policy

import (
	"net/netip"
	"slices"

	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/labels"
)

// prefixIndex holds the selectors by prefix of one kind, and the identities that stand for
// prefixes.
type prefixIndex struct {
	peers map[*peer]struct{}
	sels  map[netip.Prefix][]*activeSelector
	lens  [2][129]int // how many selectors per family and length
}

func newPrefixIndex() prefixIndex {
	return prefixIndex{peers: map[*peer]struct{}{}, sels: map[netip.Prefix][]*activeSelector{}}
}

func (x *prefixIndex) add(as *activeSelector) {
	c := as.sel.cidr
	x.sels[c] = append(x.sels[c], as)
	x.lens[family(c)][c.Bits()]++
}

func (x *prefixIndex) remove(as *activeSelector) {
	c := as.sel.cidr
	if list := without(x.sels[c], as); len(list) > 0 {
		x.sels[c] = list
	} else {
		delete(x.sels, c)
	}
	x.lens[family(c)][c.Bits()]--
}

// visitCovering calls fn for the selectors whose prefix contains p.
func (x *prefixIndex) visitCovering(p netip.Prefix, fn func(*activeSelector)) {
	lens := &x.lens[family(p)]
	for n := 0; n <= p.Bits(); n++ {
		if lens[n] == 0 {
			continue
		}
		outer, _ := p.Addr().Prefix(n) // n is within the address
		for _, as := range x.sels[outer] {
			fn(as)
		}
	}
}

// longest returns the identity whose prefix is the longest around the address, 0 if there is none.
func (x *prefixIndex) longest(a netip.Addr) identity.ID {
	best, id := -1, identity.Unknown
	for p := range x.peers {
		if p.prefix.Contains(a) && p.prefix.Bits() > best {
			best, id = p.prefix.Bits(), p.id
		}
	}
	return id
}

func family(p netip.Prefix) int {
	if p.Addr().Is6() {
		return 1
	}
	return 0
}

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
