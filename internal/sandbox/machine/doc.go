// Package machine is what the sandboxes stand on: network namespaces kept by mounts below a
// directory, links between them, processes that outlive the command that started them and are found
// again by the namespace they are in, and locks between commands.
//
// The package keeps no state and starts no goroutine that outlives a call. Namespaces are entered
// on threads of their own, which end afterwards.
package machine
