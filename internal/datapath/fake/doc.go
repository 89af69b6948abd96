// Package fake stands in for a node's kernel in tests without root: it keeps the full state that
// datapath/maps, datapath/loader and datapath/link keep for real, refuses what they refuse, and
// fails on request.
//
// A Node outlives the agent under test, as a kernel does: a restart of the agent is a new agent on
// the same Node. Everything is safe for concurrent use. The package starts no goroutine.
package fake
