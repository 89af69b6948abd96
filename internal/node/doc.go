// Package node knows the nodes of the cluster. It knows no store: who observes nodes hands them to
// [Nodes].
//
// [Nodes] owns the table of nodes. Its SetLocal writes the local row, its Run all others; who wants
// to follow it uses the table's observers. It contains the local node once set, and every other
// node that was observed, in its last valid version. A node whose key is deleted stays for a while:
// the key also vanishes when the node loses its connection to the store, and its pods still run
// then. It is removed at once when another node claims its addresses.
//
// Everything else here is pure: [Peers] derives from the table what the datapath must know.
package node
