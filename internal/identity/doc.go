// Package identity holds the IDs that stand for sets of labels: the reserved ones, the ranges
// of each cluster, the well-known ones, and the node-local ones with their allocator.
//
// An ID is 32 bits: 16 (or 15) of identity, 8 (or 9) of cluster and 8 of scope. Scope 0 is
// cluster-wide and on the wire, scope 1 (LocalScope) stands for prefixes outside the cluster and is
// known on one node only, scope 2 is for remote nodes. In scope 1 there is also a range for
// temporary identities: see Temporaries.
//
// Everything but LocalAllocator and Temporaries is a pure value or function. These two are safe for
// concurrent use, do no I/O and start no goroutine.
package identity
