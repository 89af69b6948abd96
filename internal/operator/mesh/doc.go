// Package mesh writes into the key-value store what other clusters read of this one: services that
// are shared and, where agents keep their state as objects of Kubernetes, nodes, identities and
// addresses of pods.
//
// For each kind a mirror announces the keys of the objects of Kubernetes: conversions are pure
// functions, an [index] has the keys of each object, and [announce.Keys] reconciles the store.
// Events only name the object to reconcile; every ten minutes all are reconciled, and keys without
// an object are removed. After the first of these rounds a canary shows that the kind is complete.
// All keys but those of identities are on the lease of the operator: they expire without an
// operator, and another operator takes them over without a gap.
//
// What agents write themselves is left alone. All goroutines belong to the manager that Setup adds
// to.
package mesh
