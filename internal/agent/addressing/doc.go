// Package addressing finds out which addresses the pods of this node may have, and keeps that as
// whoever says it changes it: the configuration, the Node, or the node's CiliumNode, which the
// operator fills in. What is given out of them, to whom, is the table of internal/ipam; this
// package fills in that table what there is.
//
// [Await] is the first thing an agent does in Kubernetes: nothing of the node's network can be set
// up before the node has addresses. Then the agent makes its allocator, attaches it
// ([Pools.Attach]), and has [Pools.Run] look after it.
//
// The types are safe for concurrent use. Goroutines end with the context they were begun with.
package addressing
