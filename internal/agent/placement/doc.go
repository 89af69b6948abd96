// Package placement publishes where the addresses of this node's endpoints are, and whose
// identities they have: this node's kernel by way of the address cache, the other nodes by way of
// the key-value store and of objects of Kubernetes. It also excepts pods' addresses from
// masquerading.
//
// What always holds: an endpoint whose rules name an address that the kernel has no room for drops
// all its packets, and nobody else does; a temporary identity is published to nobody.
package placement
