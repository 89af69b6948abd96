// Package nodes speaks with the other nodes about nodes, by CiliumNode objects.
//
// [Nodes] follows the objects of all nodes and hands the others' to a [Sink], the owner of the
// table of nodes. The object of this node is reconciled with what [Nodes.Announce] got: made with
// the Kubernetes node as its owner, and changed by updates that fail on a conflict. Fields that
// belong to others (what the operator assigns, what a cloud's controller writes) are left as they
// are.
//
// Goroutines: those of [Nodes.Run], which waits for them.
package nodes
