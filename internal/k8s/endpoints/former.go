package endpoints

import (
	"net/netip"

	"github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/k8s"
	"github.com/hawser-net/hawser/internal/k8s/pods"
)

// addressesOf returns the addresses that an object gives to a pod.
func addressesOf(pod k8s.Key, uid string, n *v2.EndpointNetworking) (out []pods.Address) {
	if n == nil {
		return nil
	}
	for _, pair := range n.Addressing {
		if pair == nil {
			continue
		}
		for _, text := range []string{pair.IPv4, pair.IPv6} {
			if ip, err := netip.ParseAddr(text); err == nil {
				out = append(out, pods.Address{IP: ip.Unmap(), Pod: pod, UID: uid})
			}
		}
	}
	return out
}

// Addresses returns, in no order, those of a node's addresses that objects give to pods: to its
// own, whether they are here or not, and to other nodes', which had them before this node.
func (e *Endpoints) Addresses(ofNode func(netip.Addr) bool) []pods.Address {
	out := e.index.addresses(ofNode)
	add := func(list []pods.Address) {
		for _, a := range list {
			if ofNode(a.IP) {
				out = append(out, a)
			}
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for key, o := range e.have {
		if o.own {
			add(addressesOf(key, string(o.owner), o.status.Networking))
		}
	}
	for _, list := range e.sliced {
		add(list)
	}
	return out
}

// noteSlice records which addresses a slice gives to this node's pods.
func (e *Endpoints) noteSlice(slice string, list []pods.Address) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if delete(e.sliced, slice); len(list) > 0 {
		e.sliced[slice] = list
	}
}

// next takes the object that is looked at next, of those that may be now: one that other nodes do
// not know as it is, else one that is wanted, else one that is to go. After a reboot there are as
// many to go as there were pods, and until a new pod's object is written, the others do not know
// it.
func (e *Endpoints) next(f *flights) (next step, ok bool) {
	admits := f.admission()
	e.mu.Lock()
	defer e.mu.Unlock()
	const toGo, toStay, unknown = 1, 2, 3
	best := 0
	for key := range e.dirty {
		s, rank := step{key: key}, toGo
		if want, wanted := e.want[key]; wanted {
			if rank = toStay; !e.said[key].tells(want) {
				s.urgent, rank = true, unknown
			}
		}
		if rank <= best || !admits(s) {
			continue
		}
		if next, best = s, rank; best == unknown {
			break
		}
	}
	delete(e.dirty, next.key)
	return next, best > 0
}
