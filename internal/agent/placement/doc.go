// Package placement publishes where the addresses of this node's endpoints are, and whose
// identities they have: this node's kernel by way of the address cache, the other nodes by way of
// the key-value store and of objects of Kubernetes. It also excepts pods' addresses from
// masquerading, and claims the addresses of API servers.
//
// Invariants: an endpoint whose rules name an address for which the kernel has no room drops all
// its packets, and no other endpoint does; a temporary identity is never published.
package placement
