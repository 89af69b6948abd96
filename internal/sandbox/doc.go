// Package sandbox runs a whole cluster of the product on one machine, without Kubernetes: an etcd
// server, an underlay bridge, nodes and pods as network namespaces, one real agent a node, and
// pods attached by exec'ing the real CNI plugin as a container runtime does.
//
// It is the quickest way to see the product work, and what the end-to-end tests drive.
//
// # What it creates
//
// Everything lives below one directory, <Root>/<Name>: state, logs, sockets, a BPF file system a
// node, and the mounts that keep the namespaces. Nothing is put under /run/netns, into the
// machine's own network namespace or onto its BPF file system. Every process it starts runs in one
// of its namespaces. Down therefore needs no record of what Up got to: it ends the processes found
// in the sandbox's namespaces, unmounts what is below its directory and removes that. It touches
// nothing else, and it works after a crash at any point.
//
// # Concurrency
//
// A lock file serialises the commands that change a sandbox, between processes as well. The package
// starts goroutines for probing only, and waits for them. Namespaces are entered on threads of
// their own, which end afterwards.
package sandbox
