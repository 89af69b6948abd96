package clustermesh

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/ipcache"
	"github.com/hawser-net/hawser/internal/labels"
	"github.com/hawser-net/hawser/internal/node"
	"github.com/hawser-net/hawser/internal/service"
)

// peer is another cluster, as it described itself and was let in.
type peer struct {
	name string
	id   uint32
	// first and last are its range of identities.
	first, last identity.ID
}

// newPeer checks a description. self is this cluster's ID.
func newPeer(name string, d Description, self, maxClusters uint32) (peer, error) {
	switch {
	case d.ID == 0:
		return peer{}, errors.New("the cluster has no ID: its operator's --cluster-id must be 1 or more")
	case d.ID == self:
		return peer{}, fmt.Errorf("the cluster has this cluster's own ID %d: one of the two needs another --cluster-id", d.ID)
	}
	if theirs := d.Capabilities.MaxConnectedClusters; theirs != 0 && theirs != maxClusters {
		return peer{}, fmt.Errorf("the cluster allows up to %d clusters and this one %d: --max-connected-clusters must be the same in both", theirs, maxClusters)
	}
	first, last, err := identity.Range(d.ID, maxClusters)
	if err != nil {
		return peer{}, fmt.Errorf("the cluster's ID %d cannot be used here: %w", d.ID, err)
	}
	return peer{name, d.ID, first, last}, nil
}

// parseID reads the last part of an identity's key.
func parseID(text string) (identity.ID, error) {
	n, err := strconv.ParseUint(text, 10, 32)
	if err != nil || strconv.FormatUint(n, 10) != text {
		return 0, fmt.Errorf("%q is not an identity ID", clip(text))
	}
	return identity.ID(n), nil
}

// identity reads an identity of the cluster, or returns why it is not accepted.
func (p peer) identity(id identity.ID, value []byte) (labels.Set, error) {
	if id < p.first || id > p.last {
		return nil, fmt.Errorf("identity %d is outside of the cluster's range %d to %d", id, p.first, p.last)
	}
	if len(value) > maxIdentity {
		return nil, fmt.Errorf("identity %d has labels of %d bytes, more than %d", id, len(value), maxIdentity)
	}
	set, err := labels.ParseKV(string(value))
	if err == nil {
		err = set.Validate()
	}
	if err != nil {
		return nil, fmt.Errorf("identity %d: %w", id, err)
	}
	if err := labels.CheckIdentity(set); err != nil {
		return nil, fmt.Errorf("identity %d: %w", id, err)
	}
	if l, ok := set.Get(labels.KeyCluster); !ok || l.Source != labels.SourceK8s || l.Value != p.name {
		return nil, fmt.Errorf("identity %d does not carry the label %s:%s=%s", id, labels.SourceK8s, labels.KeyCluster, p.name)
	}
	return set, nil
}

// maxIdentity bounds the labels of one identity.
const maxIdentity = 64 << 10

// The least prefix lengths of a range of pods: a shorter one would make half of the world one
// node's pods.
const (
	minBits4 = 8
	minBits6 = 32
)

// node reports why a node is not accepted, and returns it as it is used here. mine are the
// addresses of this cluster's nodes and pods.
func (p peer) node(n node.Node, mine *prefixes) (node.Node, error) {
	if n.Cluster != p.name {
		return node.Node{}, fmt.Errorf("node %s is not one of cluster %s", n.Key(), p.name)
	}
	if n.ClusterID != p.id {
		return node.Node{}, fmt.Errorf("node %s has cluster ID %d, not %d", n.Key(), n.ClusterID, p.id)
	}
	for _, c := range n.PodCIDRs() {
		if err := rangeFault(c, mine); err != nil {
			return node.Node{}, fmt.Errorf("node %s: its pods' range %w", n.Key(), err)
		}
	}
	var addrs []node.Address
	for _, a := range n.Addresses {
		if mine.overlap(ipcache.Single(a.IP)) || a.IP.IsLinkLocalUnicast() {
			if a.Type == node.InternalIP || a.Type == node.RouterIP {
				return node.Node{}, fmt.Errorf("node %s has the address %s (%s), which is of this cluster or of no network", n.Key(), a.IP, a.Type)
			}
			continue // two clusters behind one address of the outside is no fault
		}
		addrs = append(addrs, a)
	}
	n.Addresses, n.Source = addrs, sourceName
	return n, nil
}

// sourceName is how nodes observed here are marked.
const sourceName = "clustermesh"

// special are networks whose addresses are no machine's.
var special = newPrefixes(node.Special())

func rangeFault(c netip.Prefix, mine *prefixes) error {
	least := minBits4
	if c.Addr().Is6() {
		least = minBits6
	}
	switch {
	case c.Bits() < least:
		return fmt.Errorf("%s is larger than a /%d", c, least)
	case mine.overlap(c):
		return fmt.Errorf("%s overlaps with addresses of this cluster", c)
	case special.overlap(c):
		return fmt.Errorf("%s has addresses that are in no network of pods, such as those of one link or of each node itself", c)
	}
	return nil
}

// address reports why an address is not accepted. host is the node of the cluster that has the
// address of the pair's host; known is false if none has.
func (p peer) address(pair ipcache.Pair, host node.Node, known bool, mine *prefixes) error {
	switch id := pair.Identity; {
	case id >= p.first && id <= p.last:
	case slices.Contains([]identity.ID{identity.RemoteNode, identity.Health, identity.Init, identity.Unmanaged, identity.Ingress}, id):
	default:
		return fmt.Errorf("address %s has identity %s, which is outside of the cluster's range %d to %d", pair.Prefix, id, p.first, p.last)
	}
	if err := rangeFault(pair.Prefix, mine); err != nil {
		return fmt.Errorf("address %w", err)
	}
	if !known {
		return fmt.Errorf("address %s is at %s, which is no node of the cluster", pair.Prefix, pair.Host)
	}
	inside := func(c netip.Prefix) bool { return c.Bits() <= pair.Prefix.Bits() && c.Contains(pair.Prefix.Addr()) }
	if cidrs := host.PodCIDRs(); len(cidrs) > 0 && !slices.ContainsFunc(cidrs, inside) {
		return fmt.Errorf("address %s is in no range of pods of node %s, which hosts it", pair.Prefix, host.Key())
	}
	return nil
}

// service reports why a service is not accepted, and returns it without those backends that are
// this cluster's own addresses.
func (p peer) service(s service.Shared, mine *prefixes) (service.Shared, error) {
	if s.Cluster != p.name || s.ClusterID != p.id {
		return service.Shared{}, fmt.Errorf("service %s says that it is of cluster %s with ID %d", s.Name, clip(s.Cluster), s.ClusterID)
	}
	var own []netip.Addr
	for a := range s.Backends {
		if mine.overlap(ipcache.Single(a)) {
			own = append(own, a)
		}
	}
	if len(own) > 0 {
		kept := make(map[netip.Addr]map[string]service.SharedPort, len(s.Backends))
		for a, ports := range s.Backends {
			if !slices.Contains(own, a) {
				kept[a] = ports
			}
		}
		s.Backends = kept
	}
	// The rest is not used here, and it is large.
	s.Frontends, s.Hostnames, s.Labels, s.Selector = nil, nil, nil, nil
	return s, nil
}

func clip(s string) string {
	if len(s) > 80 {
		return s[:80] + "..."
	}
	return s
}

// prefixes is a set of networks that can be asked whether another overlaps with any of them. The
// zero value, and nil, is the empty set.
type prefixes struct {
	members map[netip.Prefix]bool
	lengths [2][129]bool // by family
}

func newPrefixes(list []netip.Prefix) *prefixes {
	s := &prefixes{members: make(map[netip.Prefix]bool, len(list))}
	for _, p := range list {
		if p = p.Masked(); p.IsValid() {
			s.members[p] = true
			s.lengths[family(p)][p.Bits()] = true
		}
	}
	return s
}

func family(p netip.Prefix) int {
	if p.Addr().Is4() {
		return 0
	}
	return 1
}

func (s *prefixes) overlap(p netip.Prefix) bool {
	if s == nil {
		return false
	}
	for bits := p.Bits(); bits >= 0; bits-- {
		if s.lengths[family(p)][bits] && s.members[netip.PrefixFrom(p.Addr(), bits).Masked()] {
			return true
		}
	}
	if p.IsSingleIP() {
		return false
	}
	for m := range s.members {
		if m.Bits() > p.Bits() && p.Contains(m.Addr()) {
			return true
		}
	}
	return false
}

func (s *prefixes) equal(o *prefixes) bool {
	if s == nil || o == nil || len(s.members) != len(o.members) {
		return s == o
	}
	for p := range s.members {
		if !o.members[p] {
			return false
		}
	}
	return true
}
