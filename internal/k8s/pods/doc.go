// Package pods knows the pods of this node as Kubernetes describes them: their labels with those of
// their namespaces, service accounts and named ports.
//
// [Pods] follows the pods that are bound to this node, and the metadata of all namespaces.
// [Pods.Get] answers what a pod's endpoint is to have; it waits a moment for a pod that the watch
// has not shown yet, and then asks the API server itself. Whenever an answer may have changed,
// Config.Changed is called.
//
// A pod that is known is answered for however long the API server is away.
//
// Goroutines: those of [Pods.Run], which waits for them.
package pods
