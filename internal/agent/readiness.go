package agent

import (
	"context"
	"net/netip"
	"time"

	"github.com/hawser-net/hawser/internal/endpoint"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/ipcache"
	"github.com/hawser-net/hawser/internal/k8s"
	"github.com/hawser-net/hawser/internal/k8s/endpoints"
)

// gates are this node's pods whose readiness gates are to be looked at. It is safe for concurrent
// use.
type gates struct {
	*podQueue
	registry *endpoint.Registry
}

func newGates(registry *endpoint.Registry) *gates { return &gates{newPodQueue(), registry} }

// storeObserved triggers a check of the gate of the pod with an address that changed in the store.
func (g *gates) storeObserved(p netip.Prefix) {
	if row, ok := g.registry.ByAddr(p.Addr()); ok && row.PodName != "" {
		g.add(k8s.Key{Namespace: row.Namespace, Name: row.PodName})
	}
}

// gateRetry is the pause before gates are tried again that could not be written.
const gateRetry = 2 * time.Second

// keepGates opens the readiness gates of pods whose address and identity have come back by the way
// on which all nodes are notified, until ctx ends. A gate that is open stays so while labels
// change, because the others know the pod by its earlier identity; it is closed if the pod has got
// another address.
func (k *kube) keepGates(ctx context.Context) error {
	select {
	case <-k.objects.pods.Synced():
	case <-ctx.Done():
		return nil
	}
	// What was not observed yet after a restart must not close the gates of pods that are known.
	synced := k.objects.endpoints.WaitSynced
	if k.cfg.KVStore != "" {
		synced = k.tables.shared.WaitSynced
	}
	if synced(ctx) != nil {
		return nil
	}
	return k.tables.gates.run(ctx, 1, gateRetry, k.updateGate, func(key k8s.Key, err error) {
		k.log.Warn("a pod's readiness gate stays as it is for now", "pod", key, "error", err)
	})
}

// updateGate updates one pod's gate.
func (k *kube) updateGate(ctx context.Context, key k8s.Key) error {
	uid, known, ok := k.knownToAll(key)
	if !ok {
		return nil
	}
	declared, met := k.objects.pods.Gate(key, uid)
	switch {
	case !declared, known == endpoints.KnownBefore, met == (known == endpoints.KnownWhole):
		return nil
	case known == endpoints.KnownWhole:
		k.log.Debug("a pod's identity is known to all nodes", "pod", key)
		return k.objects.pods.SetGate(ctx, key, uid, true, "IdentityKnown", "the pod's address and identity are published to all nodes")
	}
	return k.objects.pods.SetGate(ctx, key, uid, false, "AddressUnknown", "the pod's address is not published to other nodes yet")
}

// knownToAll returns how far the state of a pod's endpoint has come, by the way on which the other
// nodes observe it: the key-value store if there is one, even if objects are published as well,
// else objects of Kubernetes. ok is false if there is no such endpoint.
func (k *kube) knownToAll(key k8s.Key) (uid string, known endpoints.Known, ok bool) {
	if k.cfg.KVStore == "" {
		return k.objects.endpoints.Known(key)
	}
	want, ok := k.objects.endpoints.Wanted(key)
	if !ok {
		return "", endpoints.KnownNot, false
	}
	known = endpoints.KnownWhole
	for _, ip := range []netip.Addr{want.IPv4, want.IPv6} {
		if !ip.IsValid() {
			continue
		}
		// A pod that has had none but a temporary identity is published as init.
		switch id, observed := k.tables.shared.Observed(ipcache.Single(ip)); {
		case !observed, id == identity.Init:
			return want.UID, endpoints.KnownNot, true
		case id != want.Identity:
			known = endpoints.KnownBefore
		}
	}
	return want.UID, known, true
}
