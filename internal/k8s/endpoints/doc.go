// Package endpoints speaks with the other nodes about pods, by CiliumEndpoint objects, or by
// CiliumEndpointSlices.
//
// [Endpoints] follows the objects of all nodes. Those of other nodes become claims in the address
// cache, whose only source they are. This node's own objects are reconciled with the calls of
// [Endpoints.Set] and [Endpoints.Remove]: made with the pod as their owner, changed by patches that
// name the object's UID, taken over if an agent before this one made them, and deleted when their
// endpoint is gone. With slices it is the operator that makes them from these objects, and only the
// claims come from there; then no object of another node is observed, if the definition lets a node
// select its own.
//
// Invariants: an object is changed or deleted only if it is this node's, and is the version that
// was read; a claim is made only for an identity that the caller's Accept approves; of several
// objects that claim an address the one that began last counts. An address is kept while any object
// claims it, in whatever order a list arrives: so a pod that moves from one slice to another is
// known throughout.
//
// In status.go an object or an entry of a slice becomes a claim, and an endpoint of this node the
// contents of its object; index.go decides which claim counts; write.go writes, several objects at
// a time, and each by one goroutine; flights.go decides which may be: a namespace in which the
// server is slow keeps no other waiting, and a pod that others do not know yet does not wait for
// the configured rate. former.go returns which addresses objects name, so that after a reboot no
// new pod gets a former pod's: nothing is written before that is known, and of what may be written
// what must exist comes before what must go. latency.go only measures.
//
// An API server that is away changes nothing: claims stay, and what is to be written is written
// when it is back.
//
// Goroutines: those of [Endpoints.Run], which waits for them.
package endpoints
