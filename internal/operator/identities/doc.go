// Package identities makes identities and names them in CiliumEndpoints, where the operator manages
// identities, and collects unused ones, wherever identities are objects.
//
// # Making
//
// Pods, Namespaces, CiliumEndpoints, CiliumEndpointSlices and CiliumIdentities go in
// ([Controller]); out come the identities that should exist, and the identity that each endpoint
// should name. What is to be done is a function of the objects (index, decide.go); an event only
// names what to reconcile. Everything is reconciled every ten minutes, and what failed is tried for
// ever.
//
//   - A set of labels that a pod has, on a node or not yet, gets one ID. Where it is looked for
//     is the same for every writer (package internal/k8s/identities), so another leader, or agents,
//     make no second one.
//   - An identity that is used and was deleted comes back with its ID; one whose labels
//     were edited gets them back.
//   - An endpoint without an identity, or with one of other labels than its pod's, is given the
//     right one, unless there is a conflict. An endpoint that names any identity of the
//     right labels is left alone, so that there is no quarrel with its agent.
//   - Pods in the network of their node, and pods that have ended, need no identity. Labels with a
//     ID by rule need no object.
//
// IDs have an identity store (identitystore.go): they are CiliumIdentities, or keys of a store
// ([Keys]). A key is in force only while there is a reference to it: the controller does for as
// long as a pod has the labels, or an endpoint names the ID, and names no ID to which it does not
// refer. Its references end with the lease of the process; another leader makes its own as soon as
// it leads. Keys are collected by package operator, which asks [Controller.InUse].
//
// # Collection
//
// An identity is in use if a CiliumEndpoint or a CiliumEndpointSlice names it, or, where the
// operator makes identities, a pod has its labels. Where agents make identities, one that was not
// used for the heartbeat timeout is marked by an annotation first; agents remove the annotation
// before they use the identity again, which gives the object another resource version. Where the
// operator alone makes them, one that was unused for less than that is spared as long as IDs are
// plenty. An identity that two looks, an interval apart, found unused (and marked) at the same
// resource version ends, if the server itself still shows no user, and on the condition of that
// very resource version. While the caches are behind the server, none ends: an operator must not
// decide by a stale cache.
//
// It ends by losing its labels: the object stays, without any, during the ID's quarantine, and
// is then deleted. So no writer gives the ID to other labels meanwhile, whether or not it saw
// the identity end; labels that come back get their ID back.
//
// An election's fence keeps an operator that does not lead any more from writing. What it cannot
// stop is a request that a process sent, or was about to send, when it stood still: an identity
// that another leader has named meanwhile may end by it. The leader then gives it its labels back,
// as to any in use that is gone.
//
// The mark is in the object: another leader goes on where the last one was, one look later. So is
// the quarantine, but its time begins anew, see docs/design/0010-reuse.md.
//
// # Goroutines
//
// [Controller] starts some for each kind of work and those that deliver events; the collection has
// one. All end with the manager. The package owns no table.
package identities
