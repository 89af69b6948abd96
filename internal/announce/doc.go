// Package announce publishes the state of this process to the key-value store: [Addresses] a node's
// pods, [Nodes] the node itself, and package mesh the operator's exports for other clusters. All
// use [Keys]: the keys that one writer owns under a prefix, and a watch of all keys there.
//
// Packages ipcache and node hold the state of addresses and nodes; they know of no store.
package announce
