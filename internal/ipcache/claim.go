package ipcache

import (
	"encoding/json"
	"net/netip"
	"unique"

	"github.com/hawser-net/hawser/internal/identity"
)

// Source is the origin of a claim. Larger ones take precedence.
type Source uint8

// The sources, weakest first.
const (
	// Restored is what was known before a restart.
	Restored Source = iota + 1
	// PodCIDR is the pod network of another node: an address there that nothing else claims is
	// routed to that node.
	PodCIDR
	// Generated is a prefix that a policy names. Inside of a pod network it is what that is.
	Generated
	// Health is the health endpoint of another node, as that node announces it. Any other owner of
	// the address takes precedence.
	Health
	// ClusterMesh is an endpoint of another cluster, as that announces it.
	ClusterMesh
	// MeshNode is an address of a node of another cluster. Claims of this cluster take precedence
	// over it: where pods have single addresses, no range shows whose they are.
	MeshNode
	// KVStore is an endpoint of another node, as that node announces it.
	KVStore
	// RemoteNode is an address of another node of this cluster.
	RemoteNode
	// APIServer is an address at which the Kubernetes API is served.
	APIServer
	// Endpoint is a local endpoint.
	Endpoint
	// Host is an address of this node.
	Host
)

// String returns the word that the agent's API has for the source.
func (s Source) String() string {
	switch s {
	case Restored:
		return "restored"
	case PodCIDR, Generated:
		return "generated"
	case ClusterMesh, MeshNode:
		return "clustermesh"
	case KVStore, RemoteNode, Health:
		return "kvstore"
	case APIServer:
		return "kube-apiserver"
	case Endpoint, Host:
		return "local"
	}
	return "unspec"
}

// NamedPort is a port of a pod that policies may call by its name.
type NamedPort struct {
	Name     string
	Port     uint16
	Protocol string // "TCP", "UDP", "SCTP"
}

// Claim is the statement of one owner about a prefix.
type Claim struct {
	Source Source
	// Owner distinguishes claims of the same source: the ID of an endpoint, the name of a node.
	// Claims of the same source and owner replace each other.
	Owner    string
	Identity identity.ID
	// Host is the underlay address of the node that hosts the prefix; invalid if it is local,
	// outside the cluster, or that node itself.
	Host netip.Addr
	// EncryptKey is the number of the key with which that node encrypts, 0 for none.
	EncryptKey uint8
	// The pod behind the prefix, if it is one.
	Namespace, Pod, ServiceAccount string
	NamedPorts                     []NamedPort
}

// Entry is the claim that counts for a prefix, in little space.
type Entry struct {
	Identity   identity.ID
	Source     Source
	EncryptKey uint8
	owner      unique.Handle[string]
	host       unique.Handle[netip.Addr]
	pod        *pod
}

// pod is what most prefixes outside the cluster lack. Its namespace, service account and ports are
// common to many pods.
type pod struct {
	name      string
	namespace unique.Handle[string]
	account   unique.Handle[string]
	ports     unique.Handle[string] // JSON; "" if none
}

func compact(c Claim) Entry {
	e := Entry{
		Identity: c.Identity, Source: c.Source, EncryptKey: c.EncryptKey,
		owner: unique.Make(c.Owner), host: unique.Make(c.Host),
	}
	if c.Namespace != "" || c.Pod != "" || c.ServiceAccount != "" || len(c.NamedPorts) > 0 {
		var ports []byte
		if len(c.NamedPorts) > 0 {
			ports, _ = json.Marshal(c.NamedPorts) // cannot fail
		}
		e.pod = &pod{c.Pod, unique.Make(c.Namespace), unique.Make(c.ServiceAccount), unique.Make(string(ports))}
	}
	return e
}

// Owner returns the owner of the claim.
func (e Entry) Owner() string {
	if e.owner == (unique.Handle[string]{}) {
		return ""
	}
	return e.owner.Value()
}

// Host returns the underlay address of the node that hosts the prefix, or an invalid one. For a
// prefix that a policy names it is that of the node in whose pod network the prefix lies.
func (e Entry) Host() netip.Addr {
	if e.host == (unique.Handle[netip.Addr]{}) {
		return netip.Addr{}
	}
	return e.host.Value()
}

// Pod returns the namespace and name of the pod behind the prefix, empty if there is none.
func (e Entry) Pod() (namespace, name string) {
	if e.pod == nil {
		return "", ""
	}
	return e.pod.namespace.Value(), e.pod.name
}

// NamedPorts returns the named ports of the pod behind the prefix.
func (e Entry) NamedPorts() []NamedPort {
	if e.pod == nil || e.pod.ports.Value() == "" {
		return nil
	}
	var ports []NamedPort
	_ = json.Unmarshal([]byte(e.pod.ports.Value()), &ports) // written by compact
	return ports
}

// Equal reports whether two entries are the same.
func (e Entry) Equal(o Entry) bool {
	if e.pod != nil && o.pod != nil {
		return *e.pod == *o.pod && e.withoutPod() == o.withoutPod()
	}
	return e == o
}

func (e Entry) withoutPod() Entry {
	e.pod = nil
	return e
}

// before reports whether e counts rather than o.
func (e Entry) before(o Entry) bool {
	if e.Source != o.Source {
		return e.Source > o.Source
	}
	return e.Owner() < o.Owner()
}

// same reports whether e replaces o.
func (e Entry) same(o Entry) bool { return e.Source == o.Source && e.owner == o.owner }
