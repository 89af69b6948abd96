// Package ipcache maps addresses to identities: of each pod, node and network that policy
// distinguishes, and the node to send to.
//
// Several sources make statements about a prefix: local endpoints, the key-value store, the nodes,
// CIDR policies. Each statement is a [Claim]. For each prefix the claim of the strongest [Source]
// counts; between equal ones the first by owner, so that what counts depends on the claims and not
// on the order in which they were made. When a claim goes, the next one counts.
//
// [Cache] owns the table of entries, one for each prefix with a claim. It alone writes it, in its
// own methods; who wants to follow it uses the table's observers. [Maps] is the target that
// reconciles the kernel's map with the table. A [Pair] is what the nodes of a cluster publish about
// an address, in JSON.
//
// An entry is small, because every node has one for every pod of the cluster: about 230 bytes for a
// remote pod, with all that is known of it (see BenchmarkMemory).
package ipcache
