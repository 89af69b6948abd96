package agent

import (
	"context"
	"net/netip"
	"sync"
	"time"

	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/ipcache"
	"github.com/hawser-net/hawser/internal/k8s"
	"github.com/hawser-net/hawser/internal/k8s/endpoints"
	"github.com/hawser-net/hawser/internal/k8s/pods"
)

// Values of --pod-readiness.
const (
	readinessLoose  = "loose"
	readinessStrict = "strict"
)

// gates keeps the readiness gates of this node's pods: which of them are to be looked at. It is
// safe for concurrent use.
type gates struct {
	mu    sync.Mutex
	dirty map[k8s.Key]bool
	wake  chan struct{}
}

func newGates() *gates { return &gates{dirty: map[k8s.Key]bool{}, wake: make(chan struct{}, 1)} }

// touch has a pod's gate looked at soon.
func (g *gates) touch(key k8s.Key) {
	g.mu.Lock()
	g.dirty[key] = true
	g.mu.Unlock()
	select {
	case g.wake <- struct{}{}:
	default: // it is awake
	}
}

// take returns the pods to look at.
func (g *gates) take() map[k8s.Key]bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	out := g.dirty
	g.dirty = map[k8s.Key]bool{}
	return out
}

// gateRetry is the pause before gates are tried again that could not be written.
const gateRetry = 2 * time.Second

// keepGates opens the readiness gates of pods whose address and identity have come back by the way
// on which all nodes are told, until ctx ends. A gate that is open stays so while labels change,
// because the others know the pod by its earlier identity; it is closed if the pod has got another
// address.
func (k *kube) keepGates(ctx context.Context) error {
	select {
	case <-k.pods.Synced():
	case <-ctx.Done():
		return nil
	}
	// What was not heard yet after a restart must not close the gates of pods that are known.
	heard := k.endpoints.WaitSynced
	if k.cfg.KVStore != "" {
		heard = k.shared.WaitSynced
	}
	if heard(ctx) != nil {
		return nil
	}
	for {
		failed := false
		for key := range k.gates.take() {
			if err := k.bringGate(ctx, key); err != nil && ctx.Err() == nil {
				k.log.Warn("a pod's readiness gate stays as it is for now", "pod", key, "error", err)
				k.gates.touch(key)
				failed = true
			}
		}
		if failed {
			select {
			case <-time.After(gateRetry):
			case <-ctx.Done():
			}
		}
		select {
		case <-k.gates.wake:
		case <-ctx.Done():
			return nil
		}
	}
}

// bringGate brings one pod's gate to what is known.
func (k *kube) bringGate(ctx context.Context, key k8s.Key) error {
	uid, known, ok := k.knownToAll(key)
	if !ok {
		return nil
	}
	declared, met := k.pods.Gate(key, uid)
	switch {
	case !declared, known == endpoints.KnownBefore, met == (known == endpoints.KnownWhole):
		return nil
	case known == endpoints.KnownWhole:
		k.log.Debug("a pod's identity is known to all nodes", "pod", key)
		return k.pods.SetGate(ctx, key, uid, true, "IdentityKnown", "all nodes are told of the pod's address and identity")
	}
	return k.pods.SetGate(ctx, key, uid, false, "AddressUnknown", "other nodes are not told of the pod's address yet")
}

// knownToAll returns how far the news of a pod's endpoint has come, by the way on which the other
// nodes hear of it: the key-value store if there is one, whatever is told of the pod beside it,
// else objects of Kubernetes. ok is false if there is no such endpoint.
func (k *kube) knownToAll(key k8s.Key) (uid string, known endpoints.Known, ok bool) {
	if k.cfg.KVStore == "" {
		return k.endpoints.Known(key)
	}
	want, ok := k.endpoints.Told(key)
	if !ok {
		return "", endpoints.KnownNot, false
	}
	known = endpoints.KnownWhole
	for _, ip := range []netip.Addr{want.IPv4, want.IPv6} {
		if !ip.IsValid() {
			continue
		}
		// A pod that has had none but a temporary identity is told of as init.
		switch id, told := k.shared.Told(ipcache.Single(ip)); {
		case !told, id == identity.Init:
			return want.UID, endpoints.KnownNot, true
		case id != want.Identity:
			known = endpoints.KnownBefore
		}
	}
	return want.UID, known, true
}

// storeEchoed has the gate of the pod looked at that has an address of which the store has said
// something.
func (k *kube) storeEchoed(p netip.Prefix) {
	if row, ok := k.a.registry.ByAddr(p.Addr()); ok && row.PodName != "" {
		k.gates.touch(k8s.Key{Namespace: row.Namespace, Name: row.PodName})
	}
}

// gateConfig adds to what the parts are made from whatever strict readiness needs.
func (k *kube) gateConfig(p *pods.Config, e *endpoints.Config) {
	if k.cfg.PodReadiness == readinessStrict {
		p.Gated, e.Echoed = k.gates.touch, k.gates.touch
	}
}
