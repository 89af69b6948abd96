// Package node knows the nodes of the cluster. It knows no store: who observes nodes hands them to
// [Nodes].
//
// [Nodes] owns the table of nodes. Its SetLocal writes the local row, its Run all others; who wants
// to follow it uses the table's observers. In it are the local node as soon as it was set, and
// every other node that was learned, in its last good version. A node that is forgotten stays for a
// while, because its key in a store also vanishes when its owner loses touch with the store, and
// its pods are still there then; it goes at once when another node claims its addresses.
//
// Everything else here is pure: [Peers] derives from the table what the datapath must know.
package node
