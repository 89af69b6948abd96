package policies

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
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
	if c.Outdated {
		// The kernel has what was in force last; this would take the place of prefixes there.
		return "", p, errors.New("there was a later version of the policy, which could not be stored")
	}
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

// unkept is an object whose copy could not be stored.
type unkept struct {
	kind   string
	object func() ([]byte, error)
	err    error
}

// keepAgain is how often it is tried again to store what could not be.
const keepAgain = 10 * time.Second

// keep stores an object.
func (p *Policies) keep(owner policy.Owner, kind string, object func() ([]byte, error)) {
	if p.cfg.Keep == "" {
		return
	}
	p.keeping.Lock()
	defer p.keeping.Unlock()
	p.store(owner, kind, object)
	p.reportUnkept()
}

// store has keeping held.
func (p *Policies) store(owner policy.Owner, kind string, object func() ([]byte, error)) {
	text, err := object()
	if err == nil {
		err = p.copies.Put(string(owner), kind, text)
	}
	if err == nil {
		delete(p.unkept, owner)
		return
	}
	if p.unkept[owner].err == nil {
		p.log.Warn("a policy cannot be kept for a restart", "policy", owner, "error", err)
	}
	p.unkept[owner] = unkept{kind, object, err}
}

// keepUnkept stores what could not be stored before.
func (p *Policies) keepUnkept() {
	p.keeping.Lock()
	defer p.keeping.Unlock()
	for owner, u := range p.unkept {
		p.store(owner, u.kind, u.object)
	}
	p.reportUnkept()
}

// reportUnkept has keeping held.
func (p *Policies) reportUnkept() {
	if p.cfg.Unkept == nil {
		return
	}
	var err error
	if len(p.unkept) > 0 {
		first := slices.Min(slices.Collect(maps.Keys(p.unkept)))
		err = fmt.Errorf("%d policies cannot be kept for a restart, as %s: %w", len(p.unkept), first, p.unkept[first].err)
	}
	if text := fmt.Sprint(err); text != p.reported {
		p.reported = text
		p.cfg.Unkept(err)
	}
}

// forget removes the copy of an object that is gone.
func (p *Policies) forget(owner policy.Owner) {
	p.keeping.Lock()
	defer p.keeping.Unlock()
	if err := p.copies.Drop(string(owner)); err != nil {
		p.log.Warn("the copy of a policy that is gone cannot be removed", "policy", owner, "error", err)
	}
	delete(p.unkept, owner)
	p.reportUnkept()
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
