// Package usage explains, to people, who uses an identity of Kubernetes and why it is there still:
// what `hawser identity why` shows.
//
// [Read] takes one look at the objects that refer to identities, [World.Why] answers from it. It
// decides nothing: what is collected, and when, is the operator's business, which looks again.
//
// The package is pure but for Read, starts no goroutine and owns no table.
package usage
