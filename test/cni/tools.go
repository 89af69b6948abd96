//go:build tools

// Package cni pins the plugins of the CNI project that tests delegate to. It is a module of its
// own, so that what they need is not what Hawser needs.
package cni

import _ "github.com/containernetworking/plugins/plugins/ipam/host-local"
