// Package v2 holds the Go types of the API group cilium.io, version v2: one file a kind. Field
// names and JSON are fixed by the manifests that exist; what the fields mean is decided where they
// are used (policies: internal/policy).
//
// In policies an absent list and an empty one differ (absent peers are all peers, an empty list is
// no peer), so lists are nil when absent and are written back only when they are not nil.
//
// The types are plain data without methods that do I/O.
package v2
