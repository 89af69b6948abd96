// Package announce tells the other nodes of a cluster, through its key-value store, what this node
// has, and learns from there what they have: [Addresses] the addresses of pods, [Nodes] the nodes
// themselves. [Keys] is what both stand on: the keys that this node owns under a prefix, and the
// watch of all that are there.
//
// What is known of addresses and nodes is that of packages ipcache and node, which know no store.
package announce
