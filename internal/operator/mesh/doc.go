// Package mesh writes into the key-value store what other clusters read of this one: services that
// are shared and, where agents keep their state as objects of Kubernetes, nodes, identities and
// addresses of pods.
//
// For each kind a mirror announces the keys that the objects of Kubernetes stand for: conversions
// are pure functions, an [index] has the keys of each object, and [announce.Keys] reconciles the
// store there. Events only say which object to look at again; every ten minutes all are looked at,
// and keys that no object stands for are removed. After the first of these rounds a canary says
// that the kind is complete. All keys but those of identities hang on the lease of the operator:
// they go if nobody looks after them, and another operator takes them over without a gap.
//
// What agents write themselves is left alone. All goroutines belong to the manager that Setup adds
// to.
package mesh
