// Package node knows the nodes of the cluster: it tells the others of this one, and keeps a table
// of all.
//
// Nodes meet in the key-value store, under cilium/state/nodes/v1/<cluster>/<node>, in the JSON of
// [Node], which other implementations read and write as well. Each node writes its own key, on its
// lease, and watches all of them.
//
// [Nodes] owns the table of nodes. Its Announce writes the local row, its Run all others; who wants
// to follow it uses the table's observers. Run starts one goroutine, which writes to the store, and
// waits for it. In it are the local node as soon as it was announced, and every other node whose
// key could be read and made sense, in its last good version. A node whose key is gone stays for a
// while, because a key also vanishes when its owner loses touch with the store, and its pods are
// still there then; it goes at once when another node claims its addresses.
//
// Everything else here is pure: [Peers] derives from the table what the datapath must know.
package node
