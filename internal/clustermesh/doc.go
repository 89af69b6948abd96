// Package clustermesh follows the key-value stores of other clusters, and adds their state to the
// tables that this cluster's own sources fill: identities, nodes, addresses of pods, backends of
// shared services.
//
// [Mesh] reads a directory with a file for each other cluster, named like it, in the format of
// etcd's client. Files may come, change and go while it runs. A cluster that cannot be reached
// changes nothing: what was observed of it stays in force. So does what its store has lost, as long
// as nothing there says that it is complete. A cluster whose file is removed is drained: all of its
// state is withdrawn.
//
// A cluster is accepted only about itself. It must describe itself with an ID of its own; its
// identities must be in the range of that ID and carry its name; its nodes must be named as its
// nodes, and neither they nor their pods may have an address of this cluster; an address of a pod
// must be in the range of the node that hosts it. Everything else is refused, counted and logged.
// The rules are pure functions, in validate.go, and are applied again when what they depend on
// changes: so it does not matter who was observed first.
//
// Mesh starts a goroutine that reads the directory and one for each cluster, which all end with
// Run. It owns no table: it is one of the writers of those in [Sinks], under names that no other
// writer has.
package clustermesh
