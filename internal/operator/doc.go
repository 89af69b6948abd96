// Package operator is the part of the product that a cluster needs once: it looks after what no
// node owns.
//
// On a key-value store it
//
//   - writes the heartbeat, by which nodes see that an operator maintains the store;
//   - writes the cluster's own description, by which other clusters recognise it;
//   - collects identities without references, where there is no Kubernetes cluster: in
//     one that is the leader's;
//   - removes locks that other writers left behind.
//
// In a Kubernetes cluster the one operator that leads
//
//   - defines the custom resources (package crds);
//   - gives nodes blocks of addresses (clusterpool, multipool, both on pool), or has a cloud give
//     them single ones (nodemanager);
//   - reports to Kubernetes which nodes have a network, and collects CiliumNodes (nodes);
//   - collects CiliumEndpoints, and restarts pods that have none (endpoints);
//   - makes CiliumEndpointSlices (endpointslices);
//   - makes identities, if it is configured to, and collects CiliumIdentities (identities), and
//     decides by which labels (relevance);
//   - reports of policies whether they can be enforced (policies), and makes policies of groups of
//     a cloud (groups);
//   - compares the places where identities are, while a cluster moves from one to the other;
//   - writes what other clusters read of this one (mesh).
//
// # Several operators
//
// Any number of operators may run on one store without an election. Each of the duties there is
// safe to do twice: the heartbeat and the description are the same key with the same content, on
// the lease of the last writer, and written again before that expires; an identity or a lock is
// deleted only by a transaction on the condition that it has not changed since this operator found
// it dead two rounds in a row, so the transaction of a late operator fails. Two operators delete at
// up to twice the rate allowed to one.
//
// The duties in a Kubernetes cluster are the leader's (package election). They are one list,
// [Operator.addControllers]. All that the leader sends goes through [election.Election.Fence]: an
// operator that does not lead any more writes nothing.
//
// # Goroutines
//
// [Operator.Run] starts one for each duty and one for each HTTP listener, and waits for all of
// them, unless leadership is lost. The operator owns no table.
package operator
