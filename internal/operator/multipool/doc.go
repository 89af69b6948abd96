// Package multipool gives nodes blocks of addresses for their pods out of named pools, which are
// CiliumPodIPPool objects (--ipam multi-pool).
//
// A node's agent requests addresses of pools in spec.ipam.pools.requested of its CiliumNode. This
// package writes blocks into spec.ipam.pools.allocated until they have that many. It never takes a
// block out of there: the agent does, when no pod has an address of it. Failures are in
// status.ipam.operator-status.error.
//
// # A block is never given twice
//
// Before the first block is given, all CiliumNodes are read from the server, not from a cache, and
// what they have is indexed: in one index for all pools, whose ranges may overlap and change hands.
// A block is recorded before it is written. A block in any node's object is never assigned to
// another, whoever wrote it there.
//
// A block that is no longer in its node's object may still be in use: the object may have been
// deleted, or edited by another program, and the agent writes it again. So the block stays the
// node's for two minutes, also that of a node that is gone, and is its own again if it comes back.
// A write that is under way cannot arrive after that: writes carry the resource version that was
// read.
//
// If two nodes have the same block anyway, because another program wrote it there, the first owner
// keeps it. It stays in the object of the other, whose pods may use it, and is marked there
// ([ippools.DisputedAnnotation]): its agent assigns no more addresses of it, releases it when it is
// unused, and its status explains what to do. An operator that starts goes by these marks, and
// where there are none by the nodes' age.
//
// A pool that loses a range which nodes have blocks of takes nothing from them either. Their agents
// assign no more addresses of these blocks and release them when they are unused; until then the
// nodes' status shows it, and the blocks are not reassigned, whatever pool the range is in.
//
// # Nodes of before
//
// A node that was given blocks by cluster-pool (spec.ipam.podCIDRs) keeps them. When its agent asks
// for pools for the first time, its blocks become such of the default pool, if the configuration
// allows it, in the write that takes them out of podCIDRs; no pod's address changes.
package multipool
