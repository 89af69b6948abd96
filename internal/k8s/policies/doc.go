// Package policies follows the network policies that Kubernetes has, and passes changes to the
// owner of the rules.
//
// [Policies] follows CiliumNetworkPolicy, CiliumClusterwideNetworkPolicy, NetworkPolicy and, where
// it is defined, ClusterNetworkPolicy, and keeps a status of each object. It owns no table. What it
// promises:
//
//   - The first batch of changes comes when every kind has been observed in full, and holds
//     everything; later ones hold what has changed since, each owner once. Batches do not overlap.
//   - Of an object that is faulty, what can be enforced is in force (policy.Parse says what that
//     is), and nothing of earlier versions; its status says so. Faulty is also an object of our own
//     kinds, or a ClusterNetworkPolicy, with a field that is not known here, or a null: leaving it
//     out could make the policy mean more.
//   - An API server that is away changes nothing.
//   - Policies are kept on disk as they were observed last, for an agent that starts while the
//     server is away: see [Policies.LoadStored].
//
// A fault is written into no object by the agent: the conditions of policies are the operator's.
//
// Goroutines: those of [Policies.Run], which waits for them.
package policies
