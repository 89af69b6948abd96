package policy

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/labels"
)

// Snapshot is what verdicts follow from, but for the subjects: the state of an engine at a moment.
// Rules and labels are shared with the engine and never change; the maps are the owner's.
type Snapshot struct {
	Config     Config
	Revision   uint64
	Identities map[identity.ID]labels.Set
	NamedPorts map[identity.ID]string
	Rules      map[Owner][]*Rule
}

// Snapshot copies what the engine knows. It takes time for each identity and rule, and looks at
// none of them.
func (e *Engine) Snapshot() *Snapshot {
	s := &Snapshot{
		Config: e.cfg, Revision: e.revision, Identities: make(map[identity.ID]labels.Set, len(e.peers)),
		NamedPorts: maps.Clone(e.ports), Rules: make(map[Owner][]*Rule, len(e.owners)),
	}
	for id, p := range e.peers {
		if id != identity.Unobserved {
			s.Identities[id] = p.set
		}
	}
	for o, list := range e.owners {
		rules := make([]*Rule, len(list))
		for i, er := range list {
			rules[i] = er.Rule
		}
		s.Rules[o] = rules
	}
	return s
}

// Engine returns a new engine in the state of the snapshot, without subjects. It shares no state
// with others.
func (s *Snapshot) Engine() (*Engine, error) {
	e, err := New(s.Config)
	if err != nil {
		return nil, err
	}
	for _, id := range slices.Sorted(maps.Keys(s.Identities)) {
		e.SetIdentity(id, s.Identities[id])
	}
	for _, id := range slices.Sorted(maps.Keys(s.NamedPorts)) {
		if err := e.SetNamedPorts(id, s.NamedPorts[id]); err != nil {
			return nil, fmt.Errorf("identity %s: %w", id, err)
		}
	}
	for _, o := range slices.Sorted(maps.Keys(s.Rules)) {
		if err := e.SetRules(o, s.Rules[o]); err != nil {
			return nil, err
		}
	}
	return e, nil
}

// Name is how people name a policy.
type Name struct {
	Kind string
	// Namespace is empty for a policy of the whole cluster.
	Namespace string
	Name      string
}

// String returns "kind namespace/name".
func (n Name) String() string {
	if n.Namespace == "" {
		return n.Kind + " " + n.Name
	}
	return n.Kind + " " + n.Namespace + "/" + n.Name
}

// Policy returns the policy that the owner's rules are of. An owner is k8s/kind/namespace/name for
// an object of Kubernetes and file/namespace/name for one of a file, without the namespace for a
// policy of the whole cluster.
func (o Owner) Policy() Name {
	parts := strings.Split(string(o), "/")
	var n Name
	if parts[0] == "k8s" && len(parts) > 2 {
		n.Kind = parts[1]
		parts = parts[1:]
	}
	switch parts = parts[1:]; len(parts) {
	case 0:
		n.Name = string(o)
	case 1:
		n.Name = parts[0]
	default:
		n.Namespace, n.Name = parts[0], parts[1]
	}
	switch {
	case n.Kind != "":
	case n.Namespace != "":
		n.Kind = v2.KindNetworkPolicy
	default:
		n.Kind = v2.KindClusterwideNetworkPolicy
	}
	return n
}

// Outside returns the identity by which the rules evaluate an address outside of the cluster: that
// of the longest known prefix that contains it, or the world.
func (e *Engine) Outside(a netip.Addr) identity.ID {
	if id := e.cidrs.longest(a); id != 0 {
		return id
	}
	return identity.WorldOf(a, e.cfg.DualStack)
}
