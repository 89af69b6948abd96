// Package v2alpha1 holds the Go types of the API group cilium.io, version v2alpha1: one file a
// kind. See package v2 for what holds of both.
//
// +kubebuilder:object:generate=true
// +groupName=cilium.io
package v2alpha1

//go:generate go tool -modfile=../../hack/gen/go.mod controller-gen object paths=.
