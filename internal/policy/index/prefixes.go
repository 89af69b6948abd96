package index

import "net/netip"

// Prefixes has values by prefix, to be found by what is inside of it. The zero Prefixes is empty.
// It must not be used by several goroutines at a time.
type Prefixes[T comparable] struct {
	values map[netip.Prefix][]T
	lens   [2][129]int // how many values per family and length
}

// Add adds a value for a masked prefix.
func (x *Prefixes[T]) Add(p netip.Prefix, value T) {
	if x.values == nil {
		x.values = map[netip.Prefix][]T{}
	}
	x.values[p] = append(x.values[p], value)
	x.lens[family(p)][p.Bits()]++
}

// Remove is the inverse of Add.
func (x *Prefixes[T]) Remove(p netip.Prefix, value T) {
	if list := Without(x.values[p], value); len(list) > 0 {
		x.values[p] = list
	} else {
		delete(x.values, p)
	}
	x.lens[family(p)][p.Bits()]--
}

// Len returns how many prefixes have values.
func (x *Prefixes[T]) Len() int { return len(x.values) }

// VisitCovering calls fn for the values whose prefix contains p, those of the widest first.
func (x *Prefixes[T]) VisitCovering(p netip.Prefix, fn func(T)) {
	lens := &x.lens[family(p)]
	for n := 0; n <= p.Bits(); n++ {
		if lens[n] == 0 {
			continue
		}
		outer, _ := p.Addr().Prefix(n) // n is within the address
		for _, value := range x.values[outer] {
			fn(value)
		}
	}
}

func family(p netip.Prefix) int {
	if p.Addr().Is6() {
		return 1
	}
	return 0
}
