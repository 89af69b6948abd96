// Package endpointslices makes CiliumEndpointSlices: what other nodes must know of pods, many pods
// to an object.
//
// There are two ways to know the pods. With mode default it is their CiliumEndpoints, which agents
// write. With mode slim there are none: what would be in one follows from the Pod, the
// CiliumIdentity of its labels and the CiliumNode that it runs on, so that a pod costs nothing but
// its share of a slice.
//
// Invariants of what is written: slices have endpoints of one namespace, at most as many as the
// option allows, each with an identity and an address. In the steady state an endpoint is in
// exactly one slice. It stays where it is, also when an operator starts; a new one goes into the
// fullest slice of its namespace that has room. One that must move is in the other slice before it
// leaves the one it was in. An operator that starts writes nothing if nothing has changed, and
// nothing at all before it knows everything. What a slice says of a pod that has no CiliumEndpoint
// when the operator starts stays until it has one or ends, so that a cluster can leave mode slim
// (see kept).
//
// Several operators at once, which leadership should prevent, do no harm: every change names the
// version of the slice that was looked at, and where an endpoint belongs is decided by what the
// server has, so all decide the same (see index).
//
// # Costs
//
// A slice that is to be written waits for half a second, or longer if the limit of writes demands
// it, and is written once with all that came meanwhile. The limit depends on the number of nodes,
// because each of them observes every write. Slices of namespaces with the annotation
// cilium.io/ces-namespace: priority go before all others, of which one in eight has its turn.
//
// # Goroutines
//
// One that writes; it lives as long as the manager. Watches notify the index in goroutines of the
// manager's cache. The package keeps no table but the index.
package endpointslices
