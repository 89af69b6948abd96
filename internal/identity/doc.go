// Package identity holds the numbers that stand for sets of labels: the reserved ones, the ranges
// of each cluster, the well-known ones, and the node-local ones with their allocator.
//
// A number is 32 bits: 16 (or 15) of identity, 8 (or 9) of cluster and 8 of scope. Scope 0 is
// cluster-wide and on the wire, scope 1 (LocalScope) stands for prefixes outside the cluster and is
// known on one node only, scope 2 is for remote nodes.
//
// Everything but LocalAllocator is a pure value or function. LocalAllocator is safe for concurrent
// use, does no I/O and starts no goroutine.
package identity
