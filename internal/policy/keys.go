package policy

import (
	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/labels"
)

// LabelKeys returns the keys of the labels that decide what the rules mean for whom: those of their
// selectors of subjects and of peers, whatever the operator, for the absence of a label selects
// too. Labels with other keys can be left out of identities without a change of any verdict, but
// those that always count (labels.Label.Always). Selectors of addresses and entities need none.
//
// A named port of egress is looked up among all ports of the peer's identity. Endpoints that share
// an identity for want of labels would share their ports too, so that such a rule needs all keys.
func LabelKeys(rules []*Rule) labels.Keys {
	var keys []string
	add := func(s *Selector) {
		for i := range s.reqs {
			if !labels.New(s.reqs[i].source, s.reqs[i].key, "").Always() {
				keys = append(keys, s.reqs[i].key)
			}
		}
	}
	for _, r := range rules {
		add(r.Subject)
		for i := range r.Clauses {
			c := &r.Clauses[i]
			for _, s := range c.Peers {
				add(s)
			}
			for _, p := range c.Ports {
				if p.Name != "" && c.Direction == datapath.Egress {
					return labels.AllKeys()
				}
			}
		}
	}
	return labels.KeysOf(keys...)
}

// Closed returns a rule that never allows what r forbids, whatever the values of labels with
// unknown keys: if r depends on any of these, the result allows nothing, in the directions of r,
// for all endpoints that r may select. A rule that depends on none is returned unchanged.
func Closed(r *Rule, known labels.Keys) *Rule {
	if known.Covers(LabelKeys([]*Rule{r})) {
		return r
	}
	c := *r
	if r.Subject.kind == byLabels {
		var reqs []requirement
		for _, q := range r.Subject.reqs {
			if known.Has(q.key) || labels.New(q.source, q.key, "").Always() {
				reqs = append(reqs, q)
			}
		}
		c.Subject = newLabelSelector(r.Subject.namespace, r.Subject.hasNamespace, r.Subject.localCluster, reqs)
	}
	c.Clauses = nil
	for _, d := range []datapath.Direction{datapath.Ingress, datapath.Egress} {
		if !r.has(d) && !r.DefaultDeny[d] {
			continue
		}
		deny := Clause{Direction: d, Deny: true, Ports: []PortMatch{{Last: 65535}}, Path: r.Path}
		if r.Tier == TierOrdinary {
			deny.AllPeers = true
		} else {
			deny.Peers = anyTieredPeer(d)
		}
		c.Clauses = append(c.Clauses, deny)
	}
	return &c
}

// Knows reports whether the labels of an identity are known, so that selectors of peers select it.
func (e *Engine) Knows(id identity.ID) bool { return e.peers[id] != nil }
