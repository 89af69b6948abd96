// Package announce keeps keys in the key-value store by which others learn what this process knows:
// [Addresses] those of a node's pods, [Nodes] that of the node itself, and the operator's exports
// for other clusters (package mesh). All stand on [Keys]: the keys that one writer owns under a
// prefix, and the watch of all that are there.
//
// What is known of addresses and nodes is that of packages ipcache and node, which know no store.
package announce
