// Package operator is the part of the product that a cluster needs once: it looks after what no node owns.
//
// On a key-value store it
//
//   - writes the heartbeat, by which nodes see that somebody looks after the store;
//   - writes the cluster's own description, by which other clusters recognise it;
//   - collects identities that nobody refers to any more;
//   - removes locks that other writers left behind.
//
// # Several operators
//
// Any number of operators may run on one store without an election. Each of these duties is safe to do twice: the heartbeat and the description are the
// same key with the same content, on the lease of whoever wrote last and written again before that ends; an identity or a lock is deleted only by a
// transaction that proves that it is the one found dead by this very operator two rounds in a row, so an operator that comes too late finds its proof
// void. Two operators delete at up to twice the rate allowed to one.
//
// # Goroutines
//
// [Operator.Run] starts one for each duty and one for each HTTP listener, and waits for all of them. The operator owns no table.
package operator
