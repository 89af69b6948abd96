// Package allocator gives numbers to keys, the same number to the same key on every node, through a
// store that all nodes share.
//
// A key is anything with a canonical string, such as a set of labels. A node that allocates a key
// holds a reference to its number until it releases the key as often. A number without references
// is no longer found by [Allocator.GetNoCache] and is deleted by garbage collection some time
// later.
//
// # Promises
//
//   - The same key has the same number on every node that uses it at the same time.
//   - A number in use is neither given to another key nor collected.
//   - A number that somebody deletes from the store while a node uses it is written again: at once
//     with [WithMasterKeyProtection], else with the next comparison ([WithSyncInterval]). So is
//     everything after the store has lost its data. If by then others use another number for the
//     key, this node follows them and says so with [EventRenumbered].
//   - What somebody writes over the key of a number changes nothing of what the number means to
//     whoever saw it made ([Allocator.Edited], an error in the log). Whoever uses the number gives
//     it its key back. Another key comes with a number that was made anew.
//   - The references of a node that dies end with its lease.
//   - Numbers lie between [WithMin] and [WithMax], with [WithPrefixMask] or-ed to them. A full
//     range is reported by [ErrExhausted]. A number that was collected is in quarantine: it is
//     not used again for a while, as long as others are free ([WithQuarantine]).
//   - A key in use on the node costs no round trip; any other costs one transaction in the common
//     case, new or not. No lock is taken.
//
// # The store
//
// [KVStoreBackend] uses the key layout of Cilium's allocator, so that both can work on one store:
//
//	<base>/id/<number>            the canonical key; permanent
//	<base>/value/<key>/<node>     the number; a reference, on the node's lease
//	<base>/locks/<key>/...        locks of other writers, which are honoured
//
// Beside these, which others may read and write, stand three of its own:
//
//	<base>/rest/<number>          a number that was collected, for its quarantine
//	<base>/heard/<node>           what [KVStoreBackend.Confirm] has said last
//	<base>/marker/<key>/<node>    for a moment: a request has seen references that do not count
//
// On Consul the key stands encoded in all three, and its lock is one key; see [kvstore.Layout].
//
// A new number is made by one transaction: if nothing stands under value/<key>/, no lock is held
// and id/<number> is free, put both, else show what is there. Two nodes that do not know of each
// other can at most make two numbers for one key one after the other, when the first has lost all
// its references in between; the later one is given back as soon as the watch shows the older,
// before anybody gets it. Duplicates that others have made, and have used, heal when the watch
// shows them: the oldest wins, and the users of the rest follow with [EventRenumbered].
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
