package policies

import (
	"cmp"
	"encoding/json"
	"errors"
	"time"

	networkingv1 "k8s.io/api/networking/v1"

	"github.com/hawser-net/hawser/internal/diskcache"
	"github.com/hawser-net/hawser/internal/k8s"
	"github.com/hawser-net/hawser/internal/policy"
)

// kept is a policy as it was observed last.
type kept struct {
	kind   string
	key    k8s.Key
	rules  []*policy.Rule
	fault  error // nil if the rules are all of it
	loaded time.Time
}

// parseKept makes a policy of its copy: its kind and its object in JSON.
func parseKept(c diskcache.Copy) (policy.Owner, kept, error) {
	p := kept{kind: c.Label, loaded: c.Written}
	if p.kind == KindKubernetes {
		var o networkingv1.NetworkPolicy
		if err := json.Unmarshal(c.Content, &o); err != nil {
			return "", p, err
		}
		p.key = k8s.KeyOf(&o)
		p.rules, p.fault = policy.ParseNetworkPolicy(&o)
	} else {
		r := &raw{}
		if err := json.Unmarshal(c.Content, r); err != nil {
			return "", p, err
		}
		p.key = k8s.KeyOf(r)
		p.rules, p.fault = r.parse(p.kind)
	}
	return ownerOf(p.kind, p.key), p, p.check()
}

// check reports what is wrong with a copy of which nothing can be enforced.
func (p *kept) check() error {
	if p.key.Name == "" {
		return errors.New("has no name")
	}
	if len(p.rules) == 0 {
		return cmp.Or(p.fault, errors.New("has no rules"))
	}
	return nil
}

// LoadStored reads the copies of policies that an agent before has kept and returns their rules,
// sorted by owner, as what was in force last. It is to be called once, before Run. Those that Run
// then observes to be gone are taken away in its first batch.
func (p *Policies) LoadStored() []policy.Change {
	found := diskcache.Load(p.copies, p.log, parseKept)
	p.mu.Lock()
	defer p.mu.Unlock()
	for owner, old := range found {
		p.kept[owner] = old.rules
		p.objects[owner] = &Status{
			Owner: owner, Kind: old.kind, Namespace: old.key.Namespace, Name: old.key.Name,
			InForce: true, Rules: len(old.rules), Loaded: old.loaded, Err: old.fault,
		}
		if old.fault != nil {
			p.objects[owner].Failed, p.objects[owner].Loaded = old.loaded, time.Time{}
		}
	}
	return sortedChanges(p.kept)
}

// keep stores an object.
func (p *Policies) keep(owner policy.Owner, kind string, object func() ([]byte, error)) {
	if p.cfg.Keep == "" {
		return
	}
	p.keeping.Lock()
	defer p.keeping.Unlock()
	text, err := object()
	if err == nil {
		err = p.copies.Put(string(owner), kind, text)
	}
	if err != nil {
		p.log.Warn("a policy cannot be kept for a restart", "policy", owner, "error", err)
	}
}

// forget removes the copy of an object that is gone.
func (p *Policies) forget(owner policy.Owner) {
	p.keeping.Lock()
	defer p.keeping.Unlock()
	if err := p.copies.Drop(string(owner)); err != nil {
		p.log.Warn("the copy of a policy that is gone cannot be removed", "policy", owner, "error", err)
	}
}

// dropStale removes policies that were loaded from disk and are not in Kubernetes any more.
func (p *Policies) dropStale() {
	p.mu.Lock()
	var gone []policy.Owner
	for owner := range p.kept {
		gone = append(gone, owner)
		delete(p.objects, owner)
		p.note(owner, nil)
	}
	p.kept = nil
	p.mu.Unlock()
	for _, owner := range gone {
		p.log.Info("a policy from before the restart no longer exists", "policy", owner)
		p.forget(owner)
	}
}
