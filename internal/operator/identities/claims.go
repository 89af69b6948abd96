package identities

import (
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/hawser-net/hawser/internal/identity"
	k8sids "github.com/hawser-net/hawser/internal/k8s/identities"
)

// refusal is why a claim is not believed.
//
// Who wrote an endpoint cannot be known: any agent may write any. So a claim is no reason to make
// an identity, and never changes what an ID means; all that it decides is which ID a set of
// labels gets that pods have and that has none.
type refusal string

const (
	believed refusal = ""
	// otherLabels: the ID is, or was before its quarantine, that of other labels.
	otherLabels refusal = "other-labels"
	// contested: endpoints of other labels claim the ID as well.
	contested refusal = "contested"
	// tooMany: so many IDs were restored on the claims of this node alone that this one is not.
	tooMany refusal = "too-many"
	// hasID: the labels have an ID.
	hasID refusal = "has-number"
)

// maxSpent is how many IDs are restored on the claims of one node between two full scans.
// It is more than the pods that a node has.
const maxSpent = 512

// refusal reports why an ID does not become a set's by the claim of endpoints.
func (b *index) refusal(s *setEntry, id identity.ID) refusal {
	n := b.ids[id]
	switch {
	case n != nil && n.given != "" && s.labels != nil && n.given == k8sids.Digest(k8sids.SecurityLabels(s.labels)):
		if len(s.ids) > 0 {
			return hasID
		}
		return believed // it was made for these labels, and edited
	case n != nil && n.text != s.text:
		return otherLabels
	case len(s.ids) > 0:
		return hasID
	case n != nil: // in quarantine after these labels, which is proof
		return believed
	case len(b.claimed[id]) > 1:
		return contested
	}
	for node := range s.claims[id] {
		if b.spent[node] < maxSpent {
			return believed
		}
	}
	return tooMany
}

// noteRestored counts an ID that came back.
func (b *index) noteRestored(text string, id identity.ID) {
	if s := b.sets[text]; s != nil {
		for node := range s.claims[id] {
			b.spent[node]++
		}
	}
}

// refuse counts a refused claim, and reports it in the log and at the pod, once for each ID between
// two resyncs.
func (c *Controller) refuse(fix correction) {
	c.metrics.refused.WithLabelValues(string(fix.refused)).Inc()
	c.mu.Lock()
	var pod *corev1.Pod
	if p := c.index.pods[fix.key]; p != nil && c.refused[fix.key] != fix.had {
		pod = p.obj
		c.refused[fix.key] = fix.had
	}
	c.mu.Unlock()
	if pod == nil {
		return
	}
	c.log.Warn("an endpoint claimed an ID that is not its pod's identity", "endpoint", fix.key, "node", pod.Spec.NodeName,
		"claimed", fix.had, "why-not", fix.refused, "identity", fix.id)
	c.events.Eventf(pod, nil, corev1.EventTypeWarning, "IdentityClaimRefused", "NameIdentity",
		"the CiliumEndpoint of this pod claimed ID %d for the pod's labels (%s); their security identity is %d", fix.had, fix.refused, fix.id)
}

// disputes are endpoints to which another writer repeatedly gives a wrong identity: corrections of
// one back off, so that such a writer costs the operator and the API server few requests. Others do
// not wait.
type disputes struct {
	mu sync.Mutex
	of map[key]dispute
}

type dispute struct {
	times int
	last  time.Time
}

// freeCorrections is how many corrections of an endpoint follow each other without a pause, as when
// its labels change a few times.
const freeCorrections = 4

// pause returns how long a correction must wait.
func (d *disputes) pause(k key, now time.Time, most time.Duration) time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	x := d.of[k]
	if x.times <= freeCorrections {
		return 0
	}
	return x.last.Add(min(minBackoff<<min(x.times-freeCorrections, 20), most)).Sub(now)
}

// note notes a correction. A while without any ends the dispute.
func (d *disputes) note(k key, now time.Time, most time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	x := d.of[k]
	if now.Sub(x.last) > 2*most {
		x.times = 0
	}
	d.of[k] = dispute{x.times + 1, now}
}

// tidy forgets disputes that are over.
func (d *disputes) tidy(now time.Time, most time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	maps.DeleteFunc(d.of, func(_ key, x dispute) bool { return now.Sub(x.last) > 2*most })
}
