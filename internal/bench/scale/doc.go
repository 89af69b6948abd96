// Package scale measures the control plane at the size of a data centre on one machine: identities,
// endpoints and slices, with a real kube-apiserver, a real etcd and real operators, and agents that
// are stubs below and real above.
//
// A stub agent has no kernel: no programs, no maps, no links, no policy. What it writes to the API
// server, and how it processes what it receives, is done by the packages of the real agent:
// internal/k8s, internal/k8s/pods, internal/k8s/identities with pkg/allocator,
// internal/k8s/endpoints with internal/ipcache. Only the few lines between them are the harness's
// own; see agent.go. What stubs share, and what is left out, stands in the report beside the
// figures.
//
// Absolute times say little on small shared machines: what counts is how often the API server is
// asked, how much it sends, and whether every identity is right. So every scenario ends with its
// invariants, which are functions (see check.go), and a run fails when one of them does not hold.
// It does not fail because something is slow.
//
// Everything lives below one directory that [Run] removes, also when its context ends. The package
// is no part of the product.
package scale
