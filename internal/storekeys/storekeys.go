// Package storekeys names the keys and prefixes of a cluster's key-value store. They are those of
// Cilium, so that both can work on one store.
package storekeys

// The keys and prefixes that are fixed. Prefixes have no slash at the end.
const (
	// BasePrefix is above every key.
	BasePrefix = "cilium"
	// StatePrefix is the prefix of the state of a cluster's nodes.
	StatePrefix = BasePrefix + "/state"
	// CachePrefix is above mirrored state of other clusters.
	CachePrefix = BasePrefix + "/cache"
	// IdentitiesPrefix is the allocator's base path for security identities.
	IdentitiesPrefix = StatePrefix + "/identities/v1"
	// NodesPrefix is above one key a node: <cluster>/<node>.
	NodesPrefix = StatePrefix + "/nodes/v1"
	// IPsPrefix is above one key an address: <address space>/<ip or cidr>.
	IPsPrefix = StatePrefix + "/ip/v1"
	// ServicesPrefix is above one key a service: <cluster>/<namespace>/<service>.
	ServicesPrefix = StatePrefix + "/services/v1"
	// DefaultAddressSpace is the address space of all IP keys.
	DefaultAddressSpace = "default"
	// HeartbeatKey holds the time at which the operator last wrote it, RFC 3339.
	HeartbeatKey = BasePrefix + "/.heartbeat"
	// ClusterConfigPrefix is above one key a cluster.
	ClusterConfigPrefix = BasePrefix + "/cluster-config"
	// SyncedPrefix is the prefix of the keys that show that a cluster's state was written in full.
	SyncedPrefix = BasePrefix + "/synced"
)
