package endpointslices

import (
	"net/netip"

	corev1 "k8s.io/api/core/v1"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/k8s"
)

// kept keeps entries of slices whose pods have no CiliumEndpoint yet. An operator that begins after
// one of mode slim finds slices and no CiliumEndpoints: agents of that mode write none, and each
// makes those of its pods when it is restarted. If what has none were taken for gone, all slices
// would be emptied at once, and every node would forget the pods of all others.
//
// So an entry that is there at the beginning stays as long as its pod exists with its address,
// until a CiliumEndpoint says what the entry should be. It is plain memory and not safe for
// concurrent use.
type kept struct {
	begun   bool
	pods    map[key]*corev1.Pod // all of them; nil once it has begun
	entries map[key]*entry      // those that are kept
}

func newKept() *kept { return &kept{pods: map[key]*corev1.Pod{}, entries: map[key]*entry{}} }

// begin decides which entries are kept, and returns how many: it is called when everything was
// observed that exists, and before the index begins.
func (s *kept) begin(b *index) int {
	for _, k := range b.unwanted() {
		if e := b.known(k); isOf(e, s.pods[k]) {
			s.entries[k] = e
			b.set(k, e)
		}
	}
	s.begun, s.pods = true, nil
	return len(s.entries)
}

// setPod observes a pod, which may be another one of the name.
func (s *kept) setPod(b *index, p *corev1.Pod) {
	k := key{Namespace: p.Namespace, Name: p.Name}
	if !s.begun {
		s.pods[k] = p
	} else if e := s.entries[k]; e != nil && !isOf(e, p) {
		s.drop(b, k)
	}
}

// dropPod observes that a pod is gone.
func (s *kept) dropPod(b *index, k key) {
	if !s.begun {
		delete(s.pods, k)
	} else if s.entries[k] != nil {
		s.drop(b, k)
	}
}

func (s *kept) drop(b *index, k key) {
	delete(s.entries, k)
	b.set(k, nil)
}

// setEndpoint observes a CiliumEndpoint. One that is not complete does not replace what is kept.
func (s *kept) setEndpoint(b *index, o *v2.CiliumEndpoint) {
	k, e := key{Namespace: o.Namespace, Name: o.Name}, ofEndpoint(o)
	if e == nil && s.entries[k] != nil {
		return
	}
	delete(s.entries, k)
	b.set(k, e)
}

// dropEndpoint observes that a CiliumEndpoint is gone.
func (s *kept) dropEndpoint(b *index, k key) {
	if s.entries[k] == nil { // if it has one, that endpoint never was complete
		b.set(k, nil)
	}
}

// isOf reports whether an entry is of a pod and has no other addresses than the pod has now: when
// it has ended they may be another's.
func isOf(e *entry, p *corev1.Pod) bool {
	if e == nil || p == nil || e.PodUID != string(p.UID) || e.IdentityID <= 0 || e.Networking == nil || !k8s.Networked(p) {
		return false
	}
	has := map[netip.Addr]bool{}
	for _, ip := range p.Status.PodIPs {
		if a, err := netip.ParseAddr(ip.IP); err == nil {
			has[a.Unmap()] = true
		}
	}
	some := false
	for _, pair := range e.Networking.Addressing {
		if pair == nil {
			continue
		}
		for _, text := range []string{pair.IPv4, pair.IPv6} {
			if text == "" {
				continue
			}
			a, err := netip.ParseAddr(text)
			if err != nil || !has[a.Unmap()] {
				return false
			}
			some = true
		}
	}
	return some
}
