package endpoints

import (
	"net/netip"
	"slices"

	"github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/k8s"
)

// publication is what all nodes observe of one of this node's pods, as it came back from the API
// server.
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
	now, found := e.published[key]
	if !found || now.identity == 0 {
		return want.UID, KnownNot, true
	}
	for _, ip := range []netip.Addr{want.IPv4, want.IPv6} {
		if ip.IsValid() && !slices.Contains(now.ips, ip) {
			return want.UID, KnownNot, true
		}
	}
	if now.identity != want.Identity {
		return want.UID, KnownBefore, true
	}
	return want.UID, KnownWhole, true
}

// Wanted returns the endpoint of a pod that the other nodes are to know; ok is false if there is
// none.
func (e *Endpoints) Wanted(key k8s.Key) (l Local, ok bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	l, ok = e.want[key]
	return l, ok
}

// observePublished records what came back of a pod; n is nil if nothing is published of it any
// more.
func (e *Endpoints) observePublished(key k8s.Key, id int64, n *v2.EndpointNetworking) {
	if e.cfg.OnPublished == nil {
		return
	}
	e.mu.Lock()
	if n == nil {
		delete(e.published, key)
	} else {
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
		e.published[key] = now
	}
	e.mu.Unlock()
	e.cfg.OnPublished(key)
}
