// Package kvstore is a small interface to a strongly consistent key-value store: etcd, Consul, or
// memory.
//
// [Backend] holds what a store must do itself: reads at one revision, transactions with conditions,
// watches that never lose a change for good, and leases. Everything else is built from those in
// this package: [Put], [CreateIfAbsent], [CompareAndSwap] and [Delete].
//
// # Promises of every backend
//
//   - Reads and transactions are linearizable. A transaction is atomic; its conditions and its
//     effects happen at one revision.
//   - Revisions grow with every change. [KeyValue.ModRevision] names the last change of a key,
//     [KeyValue.CreateRevision] the one that made it.
//   - [Backend.List] shows the whole prefix as it was at one revision, however many pages it took.
//   - A watch delivers the present state, then [EventListDone], then every change in order. After a
//     break it resumes; where the store no longer holds the changes in between, it lists again,
//     delivers what is new, what changed and what vanished, and closes with another EventListDone.
//     A store that keeps no history, Consul, may deliver only the last of several quick changes of
//     one key.
//   - A leased key lives as long as the client that wrote it, and one lease TTL longer. The backend
//     makes the leases, keeps them alive, puts at most [MaxKeysPerLease] keys on each, and replaces
//     one that was lost. A lost lease takes its keys with it; the functions given to
//     [Backend.ObserveLostLeases] are then called with them, so that their owner writes them
//     again.
//   - Every call ends when its context ends. An error that is none of [ErrNotFound], [ErrClosed]
//     and [ErrTxnTooLarge] leaves open whether a write took place, unless it says otherwise: repeat
//     it in a way that is safe to repeat. A write under way when the backend is closed has such an
//     error.
//   - All methods may be called from many goroutines at once.
//
// The suite in package conformance checks these promises; it runs on every backend.
//
// [NewMemory] is a complete store in memory, with switches for faults, for tests and single-process
// use.
package kvstore
