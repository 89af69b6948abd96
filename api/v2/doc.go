// Package v2 holds the Go types of the API group cilium.io, version v2: one file a kind. Field
// names and JSON are fixed by the manifests and objects that exist; what the fields mean is decided
// where they are used (policies: internal/policy).
//
// In policies an absent list and an empty one differ (absent peers are all peers, an empty list is
// no peer), so lists are nil when absent and are written back only when they are not nil.
//
// The types are plain data: no method does I/O, none is safe for use while another goroutine writes
// the same object. Deep copies (zz_generated.deepcopy.go) and the definitions in api/crds are
// generated from the types and the markers in their comments.
//
// +kubebuilder:object:generate=true
// +groupName=cilium.io
package v2

//go:generate go tool -modfile=../../hack/gen/go.mod controller-gen object paths=.
