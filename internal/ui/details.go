package ui

import (
	"cmp"
	"slices"
)

// seen is the first and the last bucket of time in which there was something.
type seen struct{ first, last int64 }

func (s seen) sight() seen { return s }

// with is s with a further bucket.
func (s seen) with(bucket int64) seen { return seen{min(s.first, bucket), max(s.last, bucket)} }

// within reports whether there was something between two buckets, as far as that is kept.
func (s seen) within(lo, hi int64) bool { return s.first <= hi && s.last >= lo }

// makeRoom makes room for one more that was seen in a bucket: the one that was not for longest has
// to go. It reports whether there is room.
func makeRoom[V interface{ sight() seen }](m map[string]V, limit int, bucket int64) bool {
	if len(m) < limit {
		return true
	}
	oldest, at := "", int64(0)
	for name, v := range m {
		if last := v.sight().last; oldest == "" || last < at || last == at && name < oldest {
			oldest, at = name, last
		}
	}
	if at > bucket {
		return false
	}
	delete(m, oldest)
	return true
}

// names is a bounded set of what was seen, and when.
type names map[string]seen

// add notes that something was seen; the one that was not for longest makes room.
func (n *names) add(limit int, s string, bucket int64) {
	if s == "" {
		return
	}
	s = cut(s)
	if *n == nil {
		*n = make(names)
	}
	if have, ok := (*n)[s]; ok {
		(*n)[s] = have.with(bucket)
	} else if makeRoom(*n, limit, bucket) {
		(*n)[s] = seen{bucket, bucket}
	}
}

// within returns those that were seen between two buckets, sorted.
func (n names) within(lo, hi int64) (out []string) {
	for name, at := range n {
		if at.within(lo, hi) {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// podAddresses is how many addresses of a pod are kept: one of each family, and the former ones.
const podAddresses = 4

// podState is what was seen of a pod.
type podState struct {
	seen
	addresses names
	identity  uint32
	node      string
}

// pods is a bounded set of pods, by name.
type pods map[string]*podState

// add records the data of a pod in a node's flow, displacing the pod that was not seen for longest.
func (p *pods) add(limit int, s side, node string, bucket int64) {
	name := cut(s.endpoint.GetPodName())
	if name == "" {
		return
	}
	if *p == nil {
		*p = make(pods)
	}
	have := (*p)[name]
	if have == nil {
		if !makeRoom(*p, limit, bucket) {
			return
		}
		have = &podState{seen: seen{bucket, bucket}}
		(*p)[name] = have
	}
	if bucket >= have.last {
		have.identity = cmp.Or(s.endpoint.GetIdentity(), have.identity)
		if s.endpoint.GetID() != 0 { // the node's own
			have.node = cut(node)
		}
	}
	have.seen = have.with(bucket)
	have.addresses.add(podAddresses, s.address, bucket)
}

// within returns those that were seen between two buckets, sorted.
func (p pods) within(lo, hi int64) (out []Endpoint) {
	for name, have := range p {
		if have.within(lo, hi) {
			out = append(out, Endpoint{Pod: name, Addresses: have.addresses.within(lo, hi), Identity: have.identity, Node: have.node})
		}
	}
	slices.SortFunc(out, func(a, b Endpoint) int { return cmp.Compare(a.Pod, b.Pod) })
	return out
}
