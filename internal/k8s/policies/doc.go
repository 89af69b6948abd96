// Package policies follows the network policies that Kubernetes has, and tells whoever puts rules in force what changes.
//
// [Policies] follows CiliumNetworkPolicy, CiliumClusterwideNetworkPolicy, NetworkPolicy and, where it is defined, ClusterNetworkPolicy, and keeps a status of each object. It owns no table. What it
// promises:
//
//   - The first batch of changes comes when every kind has been heard in full, and holds everything; later ones hold what has changed since, each owner once.
//     Batches do not overlap.
//   - An object counts whole or not at all. If it becomes faulty, its last good version stays in force, and its status says so; one that never was good is
//     not in force. Faulty is also an object of our own kinds, or a ClusterNetworkPolicy, with a field that is not known here, or a null: leaving it out could make the policy mean more.
//   - An API server that is away changes nothing.
//   - The last good versions are kept on disk, for an agent that starts while the server is away or the object is faulty: see [Policies.Recall].
//
// A fault is written into no object by the agent: the conditions of policies are the operator's.
//
// Goroutines: those of [Policies.Run], which waits for them.
package policies
