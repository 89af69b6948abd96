package policy

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/labels"
	"github.com/hawser-net/hawser/internal/policy/index"
)

// Selector selects identities: by labels, by a prefix outside the cluster, by a block of addresses,
// or as an entity. It is immutable. Two selectors with the same String select the same under the
// same Config.
type Selector struct {
	kind selectorKind

	// By labels: all of the following hold.
	namespace    string        // if set, the namespace is this one
	hasNamespace bool          // there is a namespace at all
	localCluster bool          // confined to the local cluster if Config requires it
	reqs         []requirement // sorted by text

	// By prefix or block: inside cidr, outside all of except, which are sorted and inside cidr.
	cidr   netip.Prefix
	except []netip.Prefix

	entity identity.Entity

	text string
}

type selectorKind uint8

const (
	byLabels selectorKind = iota
	byCIDR
	byBlock
	byEntity
)

type operator uint8

const (
	opIn operator = iota
	opNotIn
	opExists
	opDoesNotExist
)

// requirement relates one key to values. An empty source is any source.
type requirement struct {
	source string
	key    string
	op     operator
	values []string // sorted
}

func (r *requirement) String() string {
	source := r.source
	if source == "" {
		source = labels.SourceAny
	}
	key := source + ":" + r.key
	switch r.op {
	case opExists:
		return key
	case opDoesNotExist:
		return "!" + key
	case opNotIn:
		return key + " notin (" + strings.Join(r.values, ",") + ")"
	}
	if len(r.values) == 1 {
		return key + "=" + r.values[0]
	}
	return key + " in (" + strings.Join(r.values, ",") + ")"
}

// equality returns the only value that satisfies the requirement, if there is just one.
func (r *requirement) equality() (string, bool) {
	if r.op == opIn && len(r.values) == 1 {
		return r.values[0], true
	}
	return "", false
}

// worldwide reports whether the requirement is about reserved:world, which whatever is outside has,
// be it of one family only.
func (r *requirement) worldwide() bool {
	return r.source == labels.SourceReserved && r.key == identity.World.String()
}

func (r *requirement) match(s labels.Set) bool {
	l, ok := s.Get(r.key)
	ok = ok && (r.source == "" || r.source == l.Source)
	if !ok && r.worldwide() {
		l, ok = labels.Label{}, s.HasReserved(identity.WorldIPv4.String()) || s.HasReserved(identity.WorldIPv6.String())
	}
	switch r.op {
	case opExists:
		return ok
	case opDoesNotExist:
		return !ok
	case opNotIn:
		return !ok || !slices.Contains(r.values, l.Value)
	}
	return ok && slices.Contains(r.values, l.Value)
}

// newLabelSelector returns a selector by labels, with its canonical text.
func newLabelSelector(namespace string, hasNamespace, localCluster bool, reqs []requirement) *Selector {
	s := &Selector{namespace: namespace, hasNamespace: hasNamespace, localCluster: localCluster, reqs: reqs}
	parts := make([]string, 0, len(reqs)+3)
	for i := range reqs {
		parts = append(parts, reqs[i].String())
	}
	slices.Sort(parts)
	parts = slices.Compact(parts)
	// What is structural is written apart from the labels, so that no label can look like it.
	var scope string
	switch {
	case namespace != "":
		scope = "@" + namespace
	case hasNamespace:
		scope = "@*"
	}
	if localCluster {
		scope += "@local"
	}
	s.text = "{" + strings.Join(parts, ", ") + "}" + scope
	return s
}

func newCIDRSelector(cidr netip.Prefix, except []netip.Prefix) *Selector {
	return newPrefixSelector(byCIDR, labels.SourceCIDR, cidr, except)
}

func newBlockSelector(cidr netip.Prefix, except []netip.Prefix) *Selector {
	return newPrefixSelector(byBlock, labels.SourceBlock, cidr, except)
}

func newPrefixSelector(kind selectorKind, name string, cidr netip.Prefix, except []netip.Prefix) *Selector {
	s := &Selector{kind: kind, cidr: cidr, except: except, text: name + ":" + cidr.String()}
	if len(except) > 0 {
		parts := make([]string, len(except))
		for i, p := range except {
			parts[i] = p.String()
		}
		s.text += " except (" + strings.Join(parts, ",") + ")"
	}
	return s
}

func newEntitySelector(e identity.Entity) *Selector {
	return &Selector{kind: byEntity, entity: e, text: "entity:" + string(e)}
}

// String returns the canonical text, such as "{any:app=web}@default", where "@" starts the
// namespace that confines the selector ("@*": any namespace; "@local": the local cluster).
func (s *Selector) String() string { return s.text }

// peer is an identity with what selectors ask about it, computed once.
type peer struct {
	id  identity.ID
	set labels.Set
	// matched are set, and world-ipv4 or world-ipv6 of what is outside of a one-family cluster.
	matched labels.Set
	// namespace and cluster are those that the network itself gave.
	namespace    string
	hasNamespace bool
	cluster      string
	// anyNamespace is the value of the namespace label whatever its source, for the index.
	anyNamespace string
	// prefix is valid if the identity stands for a prefix outside the cluster or, with block, for a
	// block of addresses.
	prefix netip.Prefix
	block  bool
	// reserved: one of the labels is.
	reserved   bool
	namedPorts []NamedPort
	// selectors holds the active selectors that select this identity.
	selectors []*activeSelector
}

func newPeer(cfg *Config, id identity.ID, set labels.Set) *peer {
	p := &peer{id: id, set: set, matched: set}
	if id.IsBlock() {
		// Nothing but its prefix counts. Labels never report whether an ID is a block's.
		p.prefix, _ = identity.BlockPrefix(set)
		p.block = true
		return p
	}
	hasCIDR := false
	for i := range set {
		l := &set[i]
		switch l.Source {
		case labels.SourceCIDR:
			hasCIDR = true
		case labels.SourceReserved:
			p.reserved = true
		}
		switch l.Key {
		case labels.KeyNamespace:
			p.anyNamespace = l.Value
			if l.Source == labels.SourceK8s {
				p.namespace, p.hasNamespace = l.Value, true
			}
		case labels.KeyCluster:
			if l.Source == labels.SourceK8s {
				p.cluster = l.Value
			}
		}
	}
	if hasCIDR {
		p.prefix, _ = identity.CIDRPrefix(set)
	}
	if p.reserved && !cfg.DualStack && set.HasReserved(identity.World.String()) {
		p.matched = set.With(labels.Reserved(worldOf(p.prefix.Addr().Is6() || !p.prefix.IsValid() && cfg.IPv6Only).String()))
	}
	return p
}

func worldOf(v6 bool) identity.ID {
	if v6 {
		return identity.WorldIPv6
	}
	return identity.WorldIPv4
}

// match reports whether the selector selects the identity.
func (s *Selector) match(cfg *Config, p *peer) bool {
	if p.block != (s.kind == byBlock) {
		return false // a block is no peer; each address in it has an identity of its own
	}
	switch s.kind {
	case byBlock:
		return p.prefix.IsValid() && s.matchPrefix(p.prefix)
	case byCIDR:
		return s.matchCIDR(p)
	case byEntity:
		return s.entity.Is(p.matched, cfg.ClusterName)
	}
	if p.id == identity.Unobserved && !s.isReserved() && !s.isWildcard() {
		return false // its labels may be any
	}
	if s.namespace != "" && (!p.hasNamespace || p.namespace != s.namespace) || s.hasNamespace && !p.hasNamespace {
		return false
	}
	if s.localCluster && cfg.confinesCluster() && p.cluster != cfg.ClusterName {
		return false
	}
	for i := range s.reqs {
		if !s.reqs[i].match(p.matched) {
			return false
		}
	}
	return true
}

func (s *Selector) matchCIDR(p *peer) bool {
	if !p.prefix.IsValid() {
		// No identity stands for a prefix of length 0, also not for one that is excepted.
		return s.cidr.Bits() == 0 && !s.excepts(s.cidr) && p.matched.HasReserved(worldOf(s.cidr.Addr().Is6()).String())
	}
	return s.matchPrefix(p.prefix)
}

// matchPrefix reports whether a prefix is inside of what the selector names.
func (s *Selector) matchPrefix(p netip.Prefix) bool {
	return containsPrefix(s.cidr, p) && !s.excepts(p)
}

// excepts reports whether a prefix is inside of one of the exceptions. A policy may have tens of
// thousands of them, each of which is a prefix that is asked about.
func (s *Selector) excepts(p netip.Prefix) bool {
	if len(s.except) <= scanLimit {
		return slices.ContainsFunc(s.except, func(e netip.Prefix) bool { return containsPrefix(e, p) })
	}
	for n := p.Bits(); n >= s.cidr.Bits(); n-- {
		around, _ := p.Addr().Prefix(n)
		if _, found := slices.BinarySearchFunc(s.except, around, netip.Prefix.Compare); found {
			return true
		}
	}
	return false
}

// containsPrefix reports whether all of inner lies in outer.
func containsPrefix(outer, inner netip.Prefix) bool {
	return outer.Bits() <= inner.Bits() && outer.Contains(inner.Addr())
}

// isWildcard reports whether the selector matches every peer there can be, known or not.
func (s *Selector) isWildcard() bool {
	return s.kind == byEntity && s.entity == identity.EntityAll ||
		s.kind == byLabels && s.namespace == "" && !s.hasNamespace && !s.localCluster && len(s.reqs) == 0
}

// isReserved reports whether the selector is by reserved labels alone.
func (s *Selector) isReserved() bool {
	return len(s.reqs) > 0 && !slices.ContainsFunc(s.reqs, func(r requirement) bool { return r.source != labels.SourceReserved })
}

// selectsPods reports whether the selector is about pods, which have no reserved labels.
func (s *Selector) selectsPods() bool {
	return s.entity == identity.EntityCluster || s.entity == identity.EntityClusterMesh ||
		s.kind == byLabels && !slices.ContainsFunc(s.reqs, func(r requirement) bool { return r.source == labels.SourceReserved && !r.match(nil) })
}

// unlabelled select the peers whose labels are not known.
var unlabelled = []*Selector{
	newEntitySelector(identity.EntityInit), newEntitySelector(identity.EntityUnmanaged),
	newLabelSelector("", false, false, []requirement{{labels.SourceReserved, identity.Unobserved.String(), opIn, []string{""}}}),
}

// isNone reports whether the selector can never match.
func (s *Selector) isNone() bool { return s.kind == byEntity && s.entity == identity.EntityNone }

// anchors returns the places of the index under which everything that the selector can match is
// found. An anchor that is neither a namespace nor a label is "everything".
func (s *Selector) anchors(cfg *Config) []index.Anchor {
	outside := []index.Anchor{
		{KV: index.KV{Key: identity.World.String()}, Reserved: true},
		{KV: index.KV{Key: identity.WorldIPv4.String()}, Reserved: true},
		{KV: index.KV{Key: identity.WorldIPv6.String()}, Reserved: true},
	}
	switch s.kind {
	case byBlock:
		return nil // found by prefix instead
	case byCIDR:
		if s.cidr.Bits() > 0 {
			return nil // found by prefix instead
		}
		return outside
	case byEntity:
		if s.entity == identity.EntityAll {
			return []index.Anchor{{}}
		}
		reserved, local, anyCluster, _ := identity.EntityMembers(s.entity)
		if anyCluster {
			return []index.Anchor{{}}
		}
		var out []index.Anchor
		for _, name := range reserved {
			out = append(out, index.Anchor{KV: index.KV{Key: name}, Reserved: true})
		}
		if local {
			out = append(out, index.Anchor{KV: index.KV{Key: labels.KeyCluster, Value: cfg.ClusterName}})
		}
		return out
	}
	a := index.Anchor{Namespace: s.namespace}
	for i := range s.reqs {
		v, ok := s.reqs[i].equality()
		switch {
		case !ok || s.reqs[i].key == labels.KeyCluster:
		case s.reqs[i].worldwide():
			return outside
		case s.reqs[i].key == labels.KeyNamespace:
			if a.Namespace == "" {
				a.Namespace = v
			}
		case a.KV.Key == "":
			a.KV = index.KV{Key: s.reqs[i].key, Value: v}
		}
	}
	return []index.Anchor{a}
}

// isAround reports whether the selector names a block that the address is in.
func (s *Selector) isAround(a netip.Addr) bool {
	return s.kind == byBlock && a.IsValid() && s.matchPrefix(netip.PrefixFrom(a, a.BitLen()))
}
