package endpoints

import (
	"net/netip"
	"slices"

	"github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/k8s"
)

// echo is what all nodes are told of one of this node's pods, as it came back from the API server.
type echo struct {
	identity identity.ID
	ips      []netip.Addr
}

// Known says how far the news of an endpoint has come.
type Known int

// How far.
const (
	// KnownNot: the other nodes have not been told of the endpoint's addresses, or of no identity
	// behind them.
	KnownNot Known = iota
	// KnownBefore: they know the addresses, by an identity that is not, or not yet, the endpoint's.
	KnownBefore
	// KnownWhole: what they are told has come back, with addresses and identity as they are.
	KnownWhole
)

// Known returns how far the news of a pod's endpoint, as Set said it, has come: by
// CiliumEndpointSlices if the nodes are told by these, else by the pod's CiliumEndpoint. ok is
// false if there is no such endpoint. Config.Echoed is told when the answer may have changed.
func (e *Endpoints) Known(key k8s.Key) (uid string, known Known, ok bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	want, ok := e.want[key]
	if !ok {
		return "", KnownNot, false
	}
	said, heard := e.echo[key]
	if !heard || said.identity == 0 {
		return want.UID, KnownNot, true
	}
	for _, ip := range []netip.Addr{want.IPv4, want.IPv6} {
		if ip.IsValid() && !slices.Contains(said.ips, ip) {
			return want.UID, KnownNot, true
		}
	}
	if said.identity != want.Identity {
		return want.UID, KnownBefore, true
	}
	return want.UID, KnownWhole, true
}

// Told returns the endpoint of a pod that the other nodes are to be told of; ok is false if there
// is none.
func (e *Endpoints) Told(key k8s.Key) (l Local, ok bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	l, ok = e.want[key]
	return l, ok
}

// echoed books what came back of a pod; n is nil if nothing is said of it any more.
func (e *Endpoints) echoed(key k8s.Key, id int64, n *v2.EndpointNetworking) {
	if e.cfg.Echoed == nil {
		return
	}
	e.mu.Lock()
	if n == nil {
		delete(e.echo, key)
	} else {
		now := echo{identity: identity.ID(id)}
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
		e.echo[key] = now
	}
	e.mu.Unlock()
	e.cfg.Echoed(key)
}
