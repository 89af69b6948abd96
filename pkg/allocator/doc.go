// Package allocator gives IDs to keys, the same ID to the same key on every node, through a
// store that all nodes share.
//
// A key is anything with a canonical string, such as a set of labels. A node that allocates a key
// holds a reference to its ID until it releases the key as often. An ID without references
// is no longer found by [Allocator.GetNoCache] and is deleted by garbage collection some time
// later.
//
// # Promises
//
//   - The same key has the same ID on every node that uses it at the same time.
//   - An ID in use is neither given to another key nor collected.
//   - An ID that is deleted from the store while a node uses it is written again: at once
//     with [WithMasterKeyProtection], else with the next comparison ([WithSyncInterval]). So is
//     everything after the store has lost its data. If by then others use another ID for the
//     key, this node follows them and reports it with [EventRenumbered].
//   - An ID whose key is overwritten by hand keeps its meaning for every node that saw it being
//     made ([Allocator.Edited], an error in the log). A node that uses the ID writes the key
//     back. Only an ID that is recreated gets another key.
//   - The references of a node that dies end with its lease.
//   - IDs lie between [WithMin] and [WithMax], with [WithPrefixMask] or-ed to them. A full
//     range is reported by [ErrExhausted]. An ID that was collected is in quarantine: it is
//     not used again for a while, as long as others are free ([WithQuarantine]).
//   - A key in use on the node costs no round trip; any other costs one transaction in the common
//     case, new or not. No lock is taken.
//
// # The store
//
// [KVStoreBackend] uses the key layout of Cilium's allocator, so that both can work on one store:
//
//	<base>/id/<ID>                the canonical key; permanent
//	<base>/value/<key>/<node>     the ID; a reference, on the node's lease
//	<base>/locks/<key>/...        locks of other writers, which are honoured
//
// In addition to these, which others may read and write, there are three of its own:
//
//	<base>/quarantine/<ID>        an ID that was collected, for its quarantine
//	<base>/confirmed/<node>           the last revision of [KVStoreBackend.Confirm]
//	<base>/marker/<key>/<node>    for a moment: a request has seen references that do not count
//
// On Consul the key stands encoded in all three, and its lock is one key; see [kvstore.Layout].
//
// A new ID is made by one transaction: if nothing stands under value/<key>/, no lock is held
// and id/<ID> is free, put both, else show what is there. Two nodes that do not know of each
// other can at most make two IDs for one key one after the other, when the first has lost all
// its references in between; the later one is given back as soon as the watch shows the older,
// before any caller gets it. Duplicates that other writers have made and used are resolved when
// the watch shows them: the oldest wins, and the users of the others follow with
// [EventRenumbered].
//
// # Use
//
// Make a backend ([NewKVStoreBackend]) and an [Allocator], start [Allocator.Run] in a goroutine,
// and call [Allocator.Allocate] and [Allocator.Release]. All methods may be called from many
// goroutines. One process of the cluster calls [Allocator.RunGC] from time to time; it needs no
// Run.
//
// Those who come from the package of the same name in Cilium 1.6 find every name of it in
// README.md, with what it is here.
package allocator
