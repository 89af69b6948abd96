//go:build tools

// Package containerd names the container runtime of a cluster on one machine. It is a module of its
// own: Kubernetes pins an older k8s.io/cri-api than containerd compiles with.
package containerd

import (
	_ "github.com/containerd/containerd/v2/cmd/containerd"
	_ "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2"
	_ "github.com/containerd/containerd/v2/cmd/ctr"
)
