// Package k8s is the only user of client-go in the agent: how it reaches the Kubernetes API, and
// how it follows what is there.
//
// [Client] holds the connections. It does no I/O until it is used, and stays usable however long
// the server is away.
//
// The agent observes objects by [Follow] only. It lists a kind, then watches it, and notifies a
// [Handler] of each object that appears, changes or goes, from one goroutine and in order. What it
// promises:
//
//   - After the first complete list it calls Synced, once. Whatever existed then has been delivered
//     before.
//   - Connection loss, restarts of the server and expired watches (410 Gone) cost time only. What
//     was observed stays; after a new list the handler is notified of what is missing from it, and
//     of what changed, but not of what did not.
//   - An object that was replaced by another one of the same name is deleted first, then delivered
//     as new.
//   - Nothing of an object is kept by Follow but its name, UID and version: the handler keeps what
//     it needs. Options.Transform drops unneeded fields before even a first list is held in full;
//     managedFields are dropped always.
//
// [Client.WaitForKinds] waits until custom resources are defined, and names those that are not.
//
// What is made of the objects is the business of the packages below this one, a package for each
// concern: what the agent reads and writes, and identities as objects, the backend of the
// allocator. What administrators do is in internal/admin.
//
// Goroutines: those of Run and Follow functions, which end with their context and are waited for by
// their callers, and client-go's for connections.
package k8s
