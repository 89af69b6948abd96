// Package bench measures the product against baselines of the machine it runs on.
//
// Absolute times say little on small shared machines. So every row has a baseline that is measured
// in the same run, round by round in turn with the figure itself, and what counts is the ratio: the
// median over rounds of figure divided by baseline. Nothing here fails because something is slow; a
// row fails when the product does the wrong thing while it is measured.
//
// The machine is real: agents are processes in network namespaces, pods are attached by executing
// the plugin as a container runtime does, etcd writes to disk. Everything lives below one
// directory and in namespaces kept there; Run removes all of it, also when its context ends.
//
// The package is no part of the product. It runs as root.
package bench
