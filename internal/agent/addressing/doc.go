// Package addressing follows which addresses the pods of this node may have, from the
// configuration, the Node, or the node's CiliumNode, which the operator fills in. It supplies them
// to internal/ipam, whose table records which are assigned, and to whom.
//
// [Await] is the first thing an agent does in Kubernetes: nothing of the node's network can be set
// up before the node has addresses. Then the agent makes its allocator, attaches it
// ([Pools.Attach]), and has [Pools.Run] look after it.
//
// The types are safe for concurrent use. Goroutines end with the context they were begun with.
package addressing
