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

// next takes the objects that are looked at next: all those that are to be, else one that is to go.
// After a reboot there are as many to go as there were pods, and until a new pod's object is
// written, the others do not know it.
func (e *Endpoints) next() map[k8s.Key]bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	wanted := map[k8s.Key]bool{}
	var superfluous k8s.Key
	for key := range e.dirty {
		if _, ok := e.want[key]; ok {
			wanted[key] = true
			delete(e.dirty, key)
			continue
		}
		superfluous = key
	}
	if len(wanted) == 0 && len(e.dirty) > 0 {
		wanted[superfluous] = true
		delete(e.dirty, superfluous)
	}
	return wanted
}
