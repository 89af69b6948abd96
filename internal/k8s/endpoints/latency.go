package endpoints

import (
	"time"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/k8s"
)

// How long it takes from a pod's creation until a node knows its identity.
//
// A node observes another node's pod by its CiliumEndpoint, which contains the pod's creation time;
// so each node measures for itself. Slices do not have that: there a pod's own node measures it,
// when the slice comes back to it that all others observe too. A pod counts once, when it gets its
// first identity. Republished objects are not measured: those of a pod with a new sandbox, a
// deleted object, and what existed before this agent, or the one that published it, was started.
//
// Kubernetes cuts the time of creation to whole seconds. So an age is up to a second too high, half
// a second on average, and never too low, as far as the clocks of API server and node agree.

// CreatedAnnotation is on the CiliumEndpoint of a pod that other nodes get to know for the first
// time: when the pod was created, in RFC 3339.
const CreatedAnnotation = "hawser.net/pod-created"

// firstTime reports whether others get to know a pod for the first time, and of when it was
// created.
func (e *Endpoints) firstTime(l Local) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return !l.PodCreated.IsZero() && e.made[l.Key()].uid != l.UID && e.lost[l.Key()] != l.UID
}

// measure reports how long ago another node's pod was created, if its object names an identity for
// the first time.
func (e *Endpoints) measure(who string, o *v2.CiliumEndpoint) {
	if e.cfg.OnIdentity == nil || identity.ID(o.Status.Identity.ID).IsReserved() || o.CreationTimestamp.Time.Before(e.began) {
		return
	}
	created, err := time.Parse(time.RFC3339, o.Annotations[CreatedAnnotation])
	if err != nil || created.After(o.CreationTimestamp.Time) { // missing or impossible
		return
	}
	if before := e.index.identityOf(who); before == 0 || before.IsReserved() {
		e.cfg.OnIdentity(max(0, time.Since(created)))
	}
}

// measureOwn reports how long ago a pod of this node was created, if a slice names an identity for
// it for the first time.
func (e *Endpoints) measureOwn(key k8s.Key, id int64) {
	if e.cfg.OnIdentity == nil || id == 0 || identity.ID(id).IsReserved() {
		return
	}
	e.mu.Lock()
	l, ok := e.want[key]
	count := ok && !l.PodCreated.IsZero() && e.counted[key] != l.UID
	if count {
		e.counted[key] = l.UID
	}
	e.mu.Unlock()
	if count {
		e.cfg.OnIdentity(max(0, time.Since(l.PodCreated)))
	}
}
