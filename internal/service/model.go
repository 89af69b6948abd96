package service

import (
	"cmp"
	"hash/fnv"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/hawser-net/hawser/internal/datapath"
)

// Name is the namespace and name of a service, a slice or a pod.
type Name struct{ Namespace, Name string }

// String returns "namespace/name".
func (n Name) String() string { return n.Namespace + "/" + n.Name }

// Compare orders names by namespace, then name.
func (n Name) Compare(o Name) int {
	return cmp.Or(cmp.Compare(n.Namespace, o.Namespace), cmp.Compare(n.Name, o.Name))
}

// Service is what a service asks for. Who stores one must not change what it points to.
type Service struct {
	Name Name
	// Created decides who gets an address that two services want with equal right: the older.
	Created time.Time
	// ClusterIPs are its own addresses; none for a headless service.
	ClusterIPs []netip.Addr
	// ExternalIPs and LoadBalancerIPs are addresses that lead to the nodes from outside.
	ExternalIPs     []netip.Addr
	LoadBalancerIPs []netip.Addr
	Ports           []Port
	// Affinity is how long a client keeps its backend; 0 if it need not.
	Affinity time.Duration
	// ExternalLocal has traffic from outside, InternalLocal traffic to the cluster addresses, go to
	// backends of this node only.
	ExternalLocal bool
	InternalLocal bool
	// HealthPort is where balancers ask whether this node has endpoints of it; 0 if they do not.
	HealthPort uint16
	// Mesh is what it is to other clusters.
	Mesh Mesh
	// Forwarding is how clients outside reach backends on other nodes, if not as the node does it.
	Forwarding Forwarding
	// LimitSources has the LoadBalancerIPs serve clients of the source ranges Sources only.
	LimitSources bool
	Sources      []netip.Prefix
}

// families returns the families of the service's node ports: those of its own addresses.
func (s Service) families() (v4, v6 bool) {
	for _, a := range s.ClusterIPs {
		v4, v6 = v4 || a.Is4(), v6 || a.Is6()
	}
	if !v4 && !v6 {
		return true, true
	}
	return v4, v6
}

// Port is a port of a service.
type Port struct {
	Name     string
	Proto    uint8
	Port     uint16
	NodePort uint16 // 0 if there is none
}

// Slice is a part of a service's endpoints. All its endpoints have all its ports.
type Slice struct {
	Name      Name
	Service   string // in the slice's namespace
	Ports     []SlicePort
	Endpoints []Endpoint
}

// SlicePort is a port on which endpoints serve what the service's port of that name promises.
type SlicePort struct {
	Name  string
	Proto uint8
	Port  uint16
}

// Endpoint is one of those that serve.
type Endpoint struct {
	// Addr is its address; endpoints of several addresses are taken for as many endpoints.
	Addr netip.Addr
	// Ready endpoints get traffic. Those that are terminating but serving get it when none is
	// ready.
	Ready, Serving, Terminating bool
	// Node is the node it is on, if known.
	Node string
	// ForZones and ForNodes are hints: whose clients should be sent here.
	ForZones, ForNodes []string
	// Cluster is the other cluster that it is in; empty for this one.
	Cluster string
}

// HostPort is a port of the node that leads to a pod of this node.
type HostPort struct {
	// Addr is the node's address; the zero Addr means all of them.
	Addr    netip.Addr
	Port    uint16
	Proto   uint8
	Backend netip.AddrPort
}

// Local is what depends on the node.
type Local struct {
	// Node is its name, Zone where it is, if known.
	Node, Zone string
	// Addrs are the addresses of the node at which node ports and host ports are served, besides
	// those of loopback; Within are the ranges of which an address must be for that, none if any
	// may.
	Addrs  []netip.Addr
	Within []netip.Prefix
	// Announced are those addresses of the node that other nodes know. Only for these do they
	// answer clients outside themselves.
	Announced []netip.Addr
	// KubeProxy means that kube-proxy serves clients outside, except host ports, which it does not
	// know.
	KubeProxy bool
	// Maglev has every node choose the same backend for a client outside.
	Maglev bool
	// Forwarding is how clients outside reach backends on other nodes. PerService has services
	// decide that for themselves.
	Forwarding Forwarding
	PerService bool
}

// servedByKubeProxy reports whether a frontend is kube-proxy's.
func (l Local) servedByKubeProxy(f Frontend) bool {
	return l.KubeProxy && f.Scope == datapath.ServiceExternal && f.Kind != HostPortKind
}

// forwarding is how clients outside reach a service's backends on other nodes.
func (l Local) forwarding(s Service) Forwarding {
	if l.PerService && s.Forwarding != "" {
		return s.Forwarding
	}
	return l.Forwarding
}

// equal reports whether two are the same.
func (l Local) equal(o Local) bool {
	return l.Node == o.Node && l.Zone == o.Zone && slices.Equal(l.Addrs, o.Addrs) && slices.Equal(l.Within, o.Within) &&
		slices.Equal(l.Announced, o.Announced) &&
		l.KubeProxy == o.KubeProxy && l.Maglev == o.Maglev &&
		l.Forwarding == o.Forwarding && l.PerService == o.PerService
}

// served returns the addresses at which node ports and host ports are served: to all clients, and
// to the node's own processes only.
func (l Local) served() (addrs, own []netip.Addr) {
	outside := func(a netip.Addr) bool {
		return len(l.Within) > 0 && !slices.ContainsFunc(l.Within, func(p netip.Prefix) bool { return p.Contains(a) })
	}
	loopbacks := []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()}
	return slices.DeleteFunc(slices.Clone(l.Addrs), outside), slices.DeleteFunc(loopbacks, outside)
}

// Kind is the sort of frontend of a row.
type Kind uint8

// The kinds of frontend.
const (
	ClusterIP Kind = iota
	ExternalIP
	LoadBalancer
	NodePort
	HostPortKind
)

// String returns the name that listings use.
func (k Kind) String() string {
	return [...]string{"ClusterIP", "ExternalIPs", "LoadBalancer", "NodePort", "HostPort"}[k]
}

// Frontend is a row of the table: the kernel's row and whose it is.
type Frontend struct {
	datapath.Service
	// Owner is the service, or for a host port the pod.
	Owner    Name
	Kind     Kind
	PortName string
	// Local means that only backends of this node count.
	Local bool
}

// Equal reports whether two rows are the same.
func (f Frontend) Equal(o Frontend) bool {
	return f.Owner == o.Owner && f.Kind == o.Kind && f.PortName == o.PortName && f.Local == o.Local && f.Service.Equal(o.Service)
}

// number is the stable number of a service's port: see datapath.Service.
func number(n Name, p Port) uint32 {
	h := fnv.New32a()
	h.Write([]byte(n.String() + ":" + strconv.Itoa(int(p.Port)) + "/" + strconv.Itoa(int(p.Proto))))
	return h.Sum32()
}
