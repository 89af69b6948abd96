package endpoints

import (
	"net/netip"
	"slices"

	"github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/k8s"
)

// publication is what all nodes observe of one of this node's pods, as it came back from the API
// server in one object.
type publication struct {
	identity identity.ID
	ips      []netip.Addr
}

// Known is how far an endpoint's state has come.
type Known int

// How far.
const (
	// KnownNot: the other nodes do not have the endpoint's addresses, or no identity behind them.
	KnownNot Known = iota
	// KnownBefore: they know the addresses, by an identity that is not, or not yet, the endpoint's.
	KnownBefore
	// KnownWhole: what they observe has come back, with addresses and identity as they are.
	KnownWhole
)

// Known returns how far the state of a pod's endpoint, as Set gave it, has come: by
// CiliumEndpointSlices if the nodes follow these, else by the pod's CiliumEndpoint. ok is false if
// there is no such endpoint. Config.OnPublished is called when the answer may have changed.
func (e *Endpoints) Known(key k8s.Key) (uid string, known Known, ok bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	want, ok := e.want[key]
	if !ok {
		return "", KnownNot, false
	}
	for _, now := range e.published[key] {
		known = max(known, now.covers(want))
	}
	return want.UID, known, true
}

// covers returns how far what is published is the state of an endpoint.
func (p publication) covers(want Local) Known {
	if p.identity == 0 {
		return KnownNot
	}
	for _, ip := range []netip.Addr{want.IPv4, want.IPv6} {
		if ip.IsValid() && !slices.Contains(p.ips, ip) {
			return KnownNot
		}
	}
	if p.identity != want.Identity {
		return KnownBefore
	}
	return KnownWhole
}

// Wanted returns the endpoint of a pod that the other nodes are to know; ok is false if there is
// none.
func (e *Endpoints) Wanted(key k8s.Key) (l Local, ok bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	l, ok = e.want[key]
	return l, ok
}

// observePublished records what came back of a pod in an object. A pod that moves from one slice to
// another is in both for a while.
func (e *Endpoints) observePublished(key k8s.Key, in string, id int64, n *v2.EndpointNetworking) {
	if e.cfg.OnPublished == nil {
		return
	}
	now := publication{identity: identity.ID(id)}
	for _, pair := range n.Addressing {
		if pair == nil {
			continue
		}
		for _, text := range []string{pair.IPv4, pair.IPv6} {
			if ip, err := netip.ParseAddr(text); err == nil {
				now.ips = append(now.ips, ip.Unmap())
			}
		}
	}
	e.mu.Lock()
	if e.published[key] == nil {
		e.published[key] = map[string]publication{}
	}
	e.published[key][in] = now
	e.mu.Unlock()
	e.cfg.OnPublished(key)
}

// withdrawn records that an object says nothing of a pod of this node, any more if it did.
func (e *Endpoints) withdrawn(key k8s.Key, in string) {
	e.mu.Lock()
	_, was := e.published[key][in]
	if delete(e.published[key], in); len(e.published[key]) == 0 {
		delete(e.published, key)
	}
	e.mu.Unlock()
	if was {
		e.cfg.OnPublished(key)
	}
}
