package identity

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/hawser-net/hawser/internal/labels"
)

// ID is a security identity.
type ID uint32

// Reserved identities. They mean the same on every node and in every cluster.
const (
	Unknown       ID = 0
	Host          ID = 1
	World         ID = 2
	Unmanaged     ID = 3
	Health        ID = 4
	Init          ID = 5
	RemoteNode    ID = 6
	KubeAPIServer ID = 7
	Ingress       ID = 8
	WorldIPv4     ID = 9
	WorldIPv6     ID = 10

	// 11 to 14, the aggregates, stand for groups of identities in the policy of other
	// implementations. Hawser neither allocates nor sends them, and only knows their names.
	AggregateRemoteNode ID = 14
)

// Bounds of the ranges within scope 0.
const (
	// MinUserReserved to MaxUserReserved are given out by --fixed-identity-mapping.
	MinUserReserved ID = 128
	MaxUserReserved ID = 255
	// MinGlobal is the first ID that may be allocated in cluster 0.
	MinGlobal ID = 256
)

// Scopes, which are the ID's upper byte.
const (
	GlobalScope     ID = 0
	LocalScope      ID = 1 << 24
	RemoteNodeScope ID = 2 << 24
	// BlockScope holds the IDs that stand for blocks of addresses in rule sets, whatever identities
	// the addresses have. They are no identities: no packet and no endpoint ever has one.
	BlockScope ID = 3 << 24
	// Unobserved stands in rule sets for peers with allocated identities that the node has not
	// observed yet. It is no identity either.
	Unobserved ID = 4 << 24
	scopeMask  ID = 0xff << 24
)

// Temporary identities stand for a local endpoint until its cluster-wide ID is known. They lie
// in the local scope, never leave the node and are never allocated by LocalAllocator but by
// Temporaries.
const (
	MinTemporary ID = 0x01010000
	MaxTemporary ID = 0x010103ff
)

// Names of reserved labels that do not have an ID of their own.
const (
	nameCluster     = "cluster"
	nameClusterMesh = "cluster-mesh"
	nameNone        = "none"
	nameUnobserved  = "unobserved"
)

// reservedNames returns the names in the order of the IDs. It is a function because a slice
// variable could be changed.
func reservedNames() []string {
	return []string{
		"unknown", "host", "world", "unmanaged", "health", "init", "remote-node", "kube-apiserver",
		"ingress", "world-ipv4", "world-ipv6", "aggregate-cluster", "aggregate-cluster-mesh",
		"aggregate-world", "aggregate-remote-node",
	}
}

// temporaryPrefix precedes the ID of a temporary identity, to show that it has no meaning on other
// nodes.
const temporaryPrefix = "temporary-"

// String returns the name of a reserved identity, "temporary-" and the ID of a temporary one,
// and the decimal ID of any other.
func (id ID) String() string {
	switch {
	case id <= AggregateRemoteNode:
		return reservedNames()[id]
	case id == Unobserved:
		return nameUnobserved
	case id.IsTemporary():
		return temporaryPrefix + strconv.FormatUint(uint64(id), 10)
	}
	return strconv.FormatUint(uint64(id), 10)
}

// Parse reads what String writes: a reserved name or a decimal ID. The IDs of temporary
// identities may have their prefix or not; other IDs may not have it.
func Parse(s string) (ID, error) {
	for i, name := range reservedNames() {
		if s == name {
			return ID(i), nil
		}
	}
	digits, temporary := strings.CutPrefix(s, temporaryPrefix)
	n, err := strconv.ParseUint(digits, 10, 32)
	if err != nil || (temporary && !ID(n).IsTemporary()) {
		return 0, fmt.Errorf("identity %q is neither an ID of 32 bits nor the name of a reserved identity", clip(s))
	}
	return ID(n), nil
}

// Scope returns the scope's bits.
func (id ID) Scope() ID { return id & scopeMask }

// IsReserved reports whether the ID is below those that can be allocated: reserved proper,
// well-known or user-reserved.
func (id ID) IsReserved() bool { return id < MinGlobal }

// IsGlobal reports whether the ID means the same on every node of its cluster.
func (id ID) IsGlobal() bool { return id.Scope() == GlobalScope }

// IsLocal reports whether the ID means something on this node only.
func (id ID) IsLocal() bool { return id.Scope() != GlobalScope }

// IsAllocated reports whether the ID was allocated for labels of pods, here or in another cluster.
func (id ID) IsAllocated() bool { return id.IsGlobal() && !id.IsReserved() }

// IsBlock reports whether the ID stands for a block of addresses.
func (id ID) IsBlock() bool { return id.Scope() == BlockScope }

// IsOutside reports whether the ID stands for what is outside of the cluster: it follows from
// the address and the rules.
func (id ID) IsOutside() bool {
	switch id {
	case World, WorldIPv4, WorldIPv6:
		return true
	}
	return id.Scope() == LocalScope && !id.IsTemporary()
}

// IsTemporary reports whether the ID is one of those that stand in for a global one.
func (id ID) IsTemporary() bool { return id >= MinTemporary && id <= MaxTemporary }

// clusterShift returns by how many bits the cluster's ID is shifted.
func clusterShift(maxConnected uint32) (uint, error) {
	switch maxConnected {
	case 0, 255:
		return 16, nil
	case 511:
		return 15, nil
	}
	return 0, fmt.Errorf("max-connected-clusters is %d: it can be 255 or 511", maxConnected)
}

// Range returns the first and last ID that cluster clusterID may allocate. maxConnected is 255
// (0 means the same) or 511.
func Range(clusterID, maxConnected uint32) (first, last ID, err error) {
	shift, err := clusterShift(maxConnected)
	if err != nil {
		return 0, 0, err
	}
	limit := cmp.Or(maxConnected, 255)
	if clusterID > limit {
		return 0, 0, fmt.Errorf("cluster-id is %d: it can be 0 to %d", clusterID, limit)
	}
	if clusterID == 0 {
		return MinGlobal, ID(1<<shift - 1), nil
	}
	return ID(clusterID << shift), ID((clusterID+1)<<shift - 1), nil
}

// ReservedLabels returns the labels of a reserved identity proper (not well-known or
// user-reserved ones).
func ReservedLabels(id ID) (labels.Set, bool) {
	switch {
	case id > AggregateRemoteNode && id != Unobserved:
		return nil, false
	case id == KubeAPIServer:
		return labels.NewSet(labels.Reserved(id.String()), labels.Reserved(RemoteNode.String())), true
	}
	return labels.NewSet(labels.Reserved(id.String())), true
}

// ReservedID returns the ID of a label set that is a reserved identity's own, such as
// "reserved:host". kube-apiserver is found with or without the label remote-node.
func ReservedID(s labels.Set) (ID, bool) {
	for id := Unknown; id <= AggregateRemoteNode; id++ {
		if want, _ := ReservedLabels(id); want.Equal(s) {
			return id, true
		}
	}
	if len(s) == 1 && s[0] == labels.Reserved(KubeAPIServer.String()) {
		return KubeAPIServer, true
	}
	return Unknown, false
}

// ReservedIDs returns the reserved identities that traffic can have, in order: host to world-ipv6.
func ReservedIDs() []ID {
	ids := make([]ID, 0, WorldIPv6)
	for id := Host; id <= WorldIPv6; id++ {
		ids = append(ids, id)
	}
	return ids
}

// isReservedName reports whether name may follow "reserved:" without being user-reserved.
func isReservedName(name string) bool {
	switch name {
	case nameCluster, nameClusterMesh, nameNone:
		return true
	}
	return slices.Contains(reservedNames(), name)
}

func clip(s string) string {
	if len(s) > 80 {
		return s[:80] + "..."
	}
	return s
}
