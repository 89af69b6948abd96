package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
)

// Key names a node.
type Key struct {
	Cluster string
	Name    string
}

// String returns "cluster/name".
func (k Key) String() string { return k.Cluster + "/" + k.Name }

// ParseKey reads "cluster/name".
func ParseKey(s string) (Key, error) {
	cluster, name, ok := strings.Cut(s, "/")
	if !ok || cluster == "" || name == "" || strings.Contains(name, "/") {
		return Key{}, fmt.Errorf("node key %q is not of the form cluster/name", s)
	}
	return Key{cluster, name}, nil
}

// AddressType is what a node's address is for.
type AddressType string

// The types of address. Those with names instead of addresses exist on the wire but are dropped.
const (
	InternalIP AddressType = "InternalIP"
	ExternalIP AddressType = "ExternalIP"
	// RouterIP is the node's own address in the pod network.
	RouterIP AddressType = "CiliumInternalIP"
)

// Address is one address of a node.
type Address struct {
	Type AddressType
	IP   netip.Addr
}

// SourceLocal is [Node.Source] in what an agent writes of its own node.
const SourceLocal = "local"

// KubernetesAnnotation is on what an agent writes of its own node, with the value "true", if that
// is one of Kubernetes: its keys may be deleted when Kubernetes has the node no more. A store may
// have nodes besides that Kubernetes never had.
const KubernetesAnnotation = "network.hawser.net/kubernetes-node"

// Node is what a node publishes of itself. Nodes are shared: who holds one must not change its
// slices and maps.
type Node struct {
	Name    string
	Cluster string
	// ClusterID is the number of the cluster, 0 if it has none.
	ClusterID uint32
	Addresses []Address
	// IPv4PodCIDRs and IPv6PodCIDRs are the networks of its pods. On the wire the first is apart
	// from the others.
	IPv4PodCIDRs []netip.Prefix
	IPv6PodCIDRs []netip.Prefix
	// The addresses of the node's health and ingress endpoints; invalid if there is none.
	IPv4HealthIP  netip.Addr
	IPv6HealthIP  netip.Addr
	IPv4IngressIP netip.Addr
	IPv6IngressIP netip.Addr
	// Source defines how the writer knows the node: [SourceLocal] for its own, "custom-resource",
	// "kvstore"...
	Source          string
	EncryptionKey   uint8
	Labels          map[string]string
	Annotations     map[string]string
	WireguardPubKey string
	BootID          string
}

// Key returns the name of the node.
func (n Node) Key() Key { return Key{n.Cluster, n.Name} }

// wire is the JSON of a node as it stands in the store: all fields are present and named as in Go,
// a CIDR is the JSON of a [net.IPNet], an absent address an empty string.
type wire struct {
	Name                    string
	Cluster                 string
	IPAddresses             []wireAddress
	IPv4AllocCIDR           *net.IPNet
	IPv4SecondaryAllocCIDRs []*net.IPNet
	IPv6AllocCIDR           *net.IPNet
	IPv6SecondaryAllocCIDRs []*net.IPNet
	IPv4HealthIP            net.IP
	IPv6HealthIP            net.IP
	IPv4IngressIP           net.IP
	IPv6IngressIP           net.IP
	ClusterID               uint32
	Source                  string
	EncryptionKey           uint8
	Labels                  map[string]string
	Annotations             map[string]string
	WireguardPubKey         string
	BootID                  string
}

type wireAddress struct {
	Type string
	IP   net.IP
}

// Bounds of what is read from the store.
const (
	maxValue     = 1 << 20
	maxAddresses = 256
	maxCIDRs     = 1024
)

// MarshalJSON returns the value of the node's key in the store.
func (n Node) MarshalJSON() ([]byte, error) {
	w := wire{
		Name: n.Name, Cluster: n.Cluster, ClusterID: n.ClusterID,
		IPv4HealthIP: toIP(n.IPv4HealthIP), IPv6HealthIP: toIP(n.IPv6HealthIP),
		IPv4IngressIP: toIP(n.IPv4IngressIP), IPv6IngressIP: toIP(n.IPv6IngressIP),
		Source: n.Source, EncryptionKey: n.EncryptionKey, Labels: n.Labels, Annotations: n.Annotations,
		WireguardPubKey: n.WireguardPubKey, BootID: n.BootID,
	}
	for _, a := range n.Addresses {
		w.IPAddresses = append(w.IPAddresses, wireAddress{string(a.Type), toIP(a.IP)})
	}
	w.IPv4AllocCIDR, w.IPv4SecondaryAllocCIDRs = toNets(n.IPv4PodCIDRs)
	w.IPv6AllocCIDR, w.IPv6SecondaryAllocCIDRs = toNets(n.IPv6PodCIDRs)
	return json.Marshal(w)
}

func toIP(a netip.Addr) net.IP {
	if !a.IsValid() {
		return nil
	}
	return a.AsSlice()
}

func toNets(ps []netip.Prefix) (first *net.IPNet, others []*net.IPNet) {
	for i, p := range ps {
		n := &net.IPNet{IP: toIP(p.Addr()), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
		if i == 0 {
			first = n
		} else {
			others = append(others, n)
		}
	}
	return first, others
}

// UnmarshalJSON reads the value of a node's key. It checks the form of what it reads, not whether
// the node makes sense: see [Node.Validate].
func (n *Node) UnmarshalJSON(data []byte) error {
	if len(data) > maxValue {
		return fmt.Errorf("node of %d bytes is larger than %d", len(data), maxValue)
	}
	var w wire
	if err := json.Unmarshal(data, &w); err != nil {
		return err
	}
	if len(w.IPAddresses) > maxAddresses {
		return fmt.Errorf("node has %d addresses, more than %d", len(w.IPAddresses), maxAddresses)
	}
	r := Node{
		Name: w.Name, Cluster: w.Cluster, ClusterID: w.ClusterID,
		IPv4HealthIP: fromIP(w.IPv4HealthIP), IPv6HealthIP: fromIP(w.IPv6HealthIP),
		IPv4IngressIP: fromIP(w.IPv4IngressIP), IPv6IngressIP: fromIP(w.IPv6IngressIP),
		Source: w.Source, EncryptionKey: w.EncryptionKey, Labels: w.Labels, Annotations: w.Annotations,
		WireguardPubKey: w.WireguardPubKey, BootID: w.BootID,
	}
	for _, a := range w.IPAddresses {
		if ip := fromIP(a.IP); ip.IsValid() {
			r.Addresses = append(r.Addresses, Address{AddressType(a.Type), ip})
		}
	}
	var err4, err6 error
	r.IPv4PodCIDRs, err4 = fromNets(w.IPv4AllocCIDR, w.IPv4SecondaryAllocCIDRs, 32)
	r.IPv6PodCIDRs, err6 = fromNets(w.IPv6AllocCIDR, w.IPv6SecondaryAllocCIDRs, 128)
	if err := errors.Join(err4, err6); err != nil {
		return err
	}
	*n = r
	return nil
}

func fromIP(ip net.IP) netip.Addr {
	a, _ := netip.AddrFromSlice(ip)
	return a.Unmap()
}

func fromNets(first *net.IPNet, others []*net.IPNet, bits int) ([]netip.Prefix, error) {
	if len(others) >= maxCIDRs {
		return nil, fmt.Errorf("node has %d pod CIDRs, more than %d", len(others)+1, maxCIDRs)
	}
	var ps []netip.Prefix
	for _, n := range append([]*net.IPNet{first}, others...) {
		if n == nil {
			continue
		}
		a := fromIP(n.IP)
		ones, size := n.Mask.Size()
		if !a.IsValid() || a.BitLen() != bits || size != bits {
			return nil, fmt.Errorf("pod CIDR of address %v and mask %v is not one of %d bits", n.IP, n.Mask, bits)
		}
		ps = append(ps, netip.PrefixFrom(a, ones).Masked())
	}
	return ps, nil
}

// special are networks whose addresses are no pod's: those of each node itself, of one link, of
// groups. The link-local ones have the metadata service of clouds, which gives out credentials.
var special = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("169.254.0.0/16"), netip.MustParsePrefix("224.0.0.0/4"),
	netip.MustParsePrefix("::/127"), netip.MustParsePrefix("fe80::/10"), netip.MustParsePrefix("ff00::/8"),
}

// Special returns the networks of which no address is a pod's.
func Special() []netip.Prefix { return slices.Clone(special) }

// Validate reports all that is wrong with a node. maxClusterID is the largest cluster number that
// is in use here, 255 or 511.
func (n Node) Validate(maxClusterID uint32) error {
	var errs []error
	if _, err := ParseKey(n.Key().String()); err != nil {
		errs = append(errs, err)
	}
	if n.ClusterID > maxClusterID {
		errs = append(errs, fmt.Errorf("cluster id %d is larger than %d", n.ClusterID, maxClusterID))
	}
	if len(n.IPv4PodCIDRs) > maxCIDRs || len(n.IPv6PodCIDRs) > maxCIDRs || len(n.Addresses) > maxAddresses {
		errs = append(errs, fmt.Errorf("more than %d pod CIDRs of a family or %d addresses", maxCIDRs, maxAddresses))
	}
	for _, p := range n.PodCIDRs() {
		switch {
		case !p.IsValid():
			errs = append(errs, errors.New("invalid pod CIDR"))
		// Mapped IPv4 is the same network as IPv4 to some who read it, and another one to others.
		case p.Bits() == 0 || p.Addr().Is4In6() || slices.ContainsFunc(special, p.Overlaps):
			errs = append(errs, fmt.Errorf("pod CIDR %v is no network for pods", p))
		}
	}
	for _, a := range n.Addresses {
		if !a.IP.IsValid() || a.IP.IsUnspecified() || a.IP.IsLoopback() || a.IP.IsMulticast() {
			errs = append(errs, fmt.Errorf("address %v (%s) is no address of a node", a.IP, a.Type))
		}
	}
	return errors.Join(errs...)
}

// Parse reads a node from the store: the part of its key behind the prefix, and its value. The node
// must be that of the key, and valid.
func Parse(key string, value []byte, maxClusterID uint32) (Node, error) {
	k, err := ParseKey(key)
	if err != nil {
		return Node{}, err
	}
	var n Node
	if err := n.UnmarshalJSON(value); err != nil {
		return Node{}, fmt.Errorf("node %v: %w", k, err)
	}
	if n.Key() != k {
		return Node{}, fmt.Errorf("the key of node %v holds node %v", k, n.Key())
	}
	if err := n.Validate(maxClusterID); err != nil {
		return Node{}, fmt.Errorf("node %v: %w", k, err)
	}
	return n, nil
}

// PodCIDRs returns the pod CIDRs of both families, IPv4 first.
func (n Node) PodCIDRs() []netip.Prefix {
	return slices.Concat(n.IPv4PodCIDRs, n.IPv6PodCIDRs)
}

// NodeIPs returns the addresses by which other machines know the node: all but those of its router.
func (n Node) NodeIPs() []netip.Addr {
	return n.pick(func(t AddressType) bool { return t != RouterIP })
}

// RouterIPs returns the node's own addresses in the pod network.
func (n Node) RouterIPs() []netip.Addr {
	return n.pick(func(t AddressType) bool { return t == RouterIP })
}

func (n Node) pick(want func(AddressType) bool) []netip.Addr {
	var ips []netip.Addr
	for _, a := range n.Addresses {
		if want(a.Type) && !slices.Contains(ips, a.IP) {
			ips = append(ips, a.IP)
		}
	}
	return ips
}

// HealthIPs returns the addresses of the node's health endpoint, IPv4 first. An address outside of
// the node's own pod networks would belong to another host, and is left out.
func (n Node) HealthIPs() []netip.Addr {
	return slices.DeleteFunc([]netip.Addr{n.IPv4HealthIP, n.IPv6HealthIP}, func(ip netip.Addr) bool {
		return !slices.ContainsFunc(n.PodCIDRs(), func(p netip.Prefix) bool { return p.Contains(ip) })
	})
}

// UnderlayIPv4 returns the address to which other nodes send: the first internal IPv4 address,
// else the first external one, else an invalid one.
func (n Node) UnderlayIPv4() netip.Addr { return n.underlay(netip.Addr.Is4) }

// UnderlayIPv6 is UnderlayIPv4 for IPv6.
func (n Node) UnderlayIPv6() netip.Addr { return n.underlay(netip.Addr.Is6) }

func (n Node) underlay(family func(netip.Addr) bool) netip.Addr {
	for _, t := range []AddressType{InternalIP, ExternalIP} {
		for _, a := range n.Addresses {
			if a.Type == t && family(a.IP) {
				return a.IP
			}
		}
	}
	return netip.Addr{}
}

// SameMachine reports whether two descriptions of a node can be of one machine since it was
// started: of one boot, as far as known, and with an address in common.
func (n Node) SameMachine(o Node) bool {
	if n.BootID != "" && o.BootID != "" && n.BootID != o.BootID {
		return false
	}
	others := o.NodeIPs()
	return slices.ContainsFunc(n.NodeIPs(), func(ip netip.Addr) bool { return slices.Contains(others, ip) })
}

// Equal reports whether two nodes are the same in everything.
func (n Node) Equal(o Node) bool {
	return n.Name == o.Name && n.Cluster == o.Cluster && n.ClusterID == o.ClusterID &&
		slices.Equal(n.Addresses, o.Addresses) &&
		slices.Equal(n.IPv4PodCIDRs, o.IPv4PodCIDRs) && slices.Equal(n.IPv6PodCIDRs, o.IPv6PodCIDRs) &&
		n.IPv4HealthIP == o.IPv4HealthIP && n.IPv6HealthIP == o.IPv6HealthIP &&
		n.IPv4IngressIP == o.IPv4IngressIP && n.IPv6IngressIP == o.IPv6IngressIP &&
		n.Source == o.Source && n.EncryptionKey == o.EncryptionKey &&
		maps.Equal(n.Labels, o.Labels) && maps.Equal(n.Annotations, o.Annotations) &&
		n.WireguardPubKey == o.WireguardPubKey && n.BootID == o.BootID
}
