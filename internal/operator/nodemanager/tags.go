package nodemanager

// Tags of the interfaces that an operator makes, in clouds that have tags. The first two are the
// field's.
const (
	ManagedTag = "io.cilium/cilium-managed"
	ClusterTag = "io.cilium/cluster-name"
	// InstanceTag reports which instance an interface is made for: a later leader that finds it
	// unattached can attach or remove it.
	InstanceTag = "io.cilium/instance-id"
)

// OwnTags are those by which the interfaces of a cluster are known. The caller may add to them.
func OwnTags(cluster string) map[string]string {
	return map[string]string{ManagedTag: "true", ClusterTag: cluster}
}

// Owned reports whether an interface with these tags is one of a cluster's.
func Owned(tags map[string]string, cluster string) bool {
	return tags[ManagedTag] == "true" && tags[ClusterTag] == cluster
}
