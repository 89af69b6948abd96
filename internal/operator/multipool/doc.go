// Package multipool gives nodes blocks of addresses for their pods out of named pools, which are CiliumPodIPPool objects (--ipam multi-pool).
//
// A node's agent says in spec.ipam.pools.requested of its CiliumNode how many addresses it needs of which pool. This package writes blocks into
// spec.ipam.pools.allocated until they have that many. It never takes a block out of there: the agent does, when no pod has an address of it. What cannot be
// done stands in status.ipam.operator-status.error.
//
// # A block is never given twice
//
// Before the first block is given, all CiliumNodes are read from the server, not from a cache, and what they hold is booked: in one book for all pools, whose
// ranges may overlap and change hands. A block is booked before it is written. It is released when the server says that its node does not have it, and the
// write by which it was given cannot arrive any more: writes carry the resource version that was read, so that is when the node's object has another. If two
// nodes have the same block anyway, because somebody wrote it there, the older node keeps it, of two of one age the one whose name sorts first; nothing is
// taken from the other, whose pods may use it, but its status says what to do.
//
// A pool that loses a range which nodes have blocks of takes nothing from them either. Their agents give no more addresses of these blocks and hand them back
// when they are unused; until then the nodes' status says so, and the addresses are nobody else's, in whatever pool the range may be.
//
// # Nodes of before
//
// A node that was given blocks by cluster-pool (spec.ipam.podCIDRs) keeps them. When its agent asks for pools for the first time, its blocks become such of
// the default pool, if the configuration allows it, in the write that takes them out of podCIDRs; no pod's address changes.
package multipool
