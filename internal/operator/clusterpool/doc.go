// Package clusterpool gives every node blocks of addresses for its pods, out of ranges that the
// whole cluster shares (--ipam cluster-pool).
//
// A node's blocks stand in spec.ipam.podCIDRs of its CiliumNode, which this package writes and the
// node's agent reads. What cannot be done stands in status.ipam.operator-status.error.
//
// # A block is never given twice
//
// Before the first block is given, all CiliumNodes are read from the server, not from a cache, and
// what they hold is recorded. A block is recorded before it is written, stays recorded if the
// write's outcome is not known, and is released only when a read from the server itself shows that
// the node does not have it, or that the node has been gone for two minutes: an object may be
// deleted while the node's pods run, as by kubectl delete node. A recreated object gets the same
// block; its agent writes it, too, since an operator that has started since does not know of it.
// Writes carry the resource version that was read. If two nodes have the same block anyway, because
// another program wrote it, the older node keeps it, or the first by name if they have the same
// age; nothing is taken from the other, whose pods may use it, but its status explains what to do.
//
// A block that was released is given out again only after all others.
package clusterpool
