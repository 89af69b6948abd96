package identity

import "github.com/hawser-net/hawser/internal/labels"

// Entity is a group of peers that policies name without labels.
type Entity string

// The entities.
const (
	EntityAll           Entity = "all"
	EntityWorld         Entity = "world"
	EntityWorldIPv4     Entity = "world-ipv4"
	EntityWorldIPv6     Entity = "world-ipv6"
	EntityCluster       Entity = "cluster"
	EntityClusterMesh   Entity = "cluster-mesh"
	EntityHost          Entity = "host"
	EntityInit          Entity = "init"
	EntityIngress       Entity = "ingress"
	EntityUnmanaged     Entity = "unmanaged"
	EntityRemoteNode    Entity = "remote-node"
	EntityHealth        Entity = "health"
	EntityNone          Entity = "none"
	EntityKubeAPIServer Entity = "kube-apiserver"
)

// Entities returns all entities, in no particular order.
func Entities() []Entity {
	return []Entity{
		EntityAll, EntityWorld, EntityWorldIPv4, EntityWorldIPv6, EntityCluster, EntityClusterMesh,
		EntityHost, EntityInit, EntityIngress, EntityUnmanaged, EntityRemoteNode, EntityHealth,
		EntityNone, EntityKubeAPIServer,
	}
}

// EntityMembers returns the labels that make up an entity: by any of the reserved labels listed, or
// by a cluster label (anyCluster: whatever its value; localCluster: the local cluster's). ok is
// false if there is no such entity. EntityAll matches everything and EntityNone nothing; both list
// no labels.
func EntityMembers(e Entity) (reserved []string, localCluster, anyCluster, ok bool) {
	inCluster := []string{"host", "remote-node", "init", "ingress", "health", "unmanaged", "kube-apiserver"}
	switch e {
	case EntityAll, EntityNone:
		return nil, false, false, true
	case EntityWorld:
		return []string{"world", "world-ipv4", "world-ipv6"}, false, false, true
	case EntityCluster:
		return append(inCluster, "aggregate-cluster"), true, false, true
	case EntityClusterMesh:
		return append(inCluster, "aggregate-cluster-mesh"), false, true, true
	case EntityWorldIPv4, EntityWorldIPv6, EntityHost, EntityInit, EntityIngress, EntityUnmanaged,
		EntityRemoteNode, EntityHealth, EntityKubeAPIServer:
		return []string{string(e)}, false, false, true
	}
	return nil, false, false, false
}

// Is reports whether an identity with these labels belongs to the entity. localCluster is the
// name of this cluster.
func (e Entity) Is(s labels.Set, localCluster string) bool {
	if e == EntityAll {
		return true
	}
	reserved, local, anyCluster, ok := EntityMembers(e)
	if !ok {
		return false
	}
	for _, name := range reserved {
		if s.HasReserved(name) {
			return true
		}
	}
	cluster, has := s.Get(labels.KeyCluster)
	has = has && cluster.Source == labels.SourceK8s
	return has && (anyCluster || local && cluster.Value == localCluster)
}
