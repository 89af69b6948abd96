// Package cni is Hawser's CNI plugin: the commands ADD, DEL, CHECK, STATUS, GC and VERSION of the
// CNI specification 1.1 for the versions 0.1.0 to 1.1.0.
//
// The plugin is a short-lived process that the container runtime starts for every pod, so start-up
// time counts: it links neither a Kubernetes client nor an eBPF library. It makes the pod's network
// interface and asks the agent over its REST API for everything else: addresses, identity, policy
// and programs. It reads no annotation: what those of a pod or namespace ask for is in the agent's
// answers.
//
// # ADD
//
//  1. read the agent's configuration, waiting for an agent that is starting;
//  2. have the agent allocate addresses, which it takes back unless an endpoint claims them;
//  3. create the veth pair with its peer directly in the pod's namespace. Moving it there later
//     would cost a grace period of the kernel, about 16 ms;
//  4. configure the pod's end: addresses, routes through the router address, kernel parameters. The
//     routes of a pod's further interfaces are in a table each, for what has their address;
//  5. PUT the endpoint. The agent attaches programs to the host side, writes its maps, and only
//     then brings the host side up: a pod never has a working interface without its program;
//  6. print the result.
//
// A failure at any step undoes all of the steps before it. If the plugin is killed nothing is
// undone, but the runtime then sends DEL, or GC, and the addresses expire.
//
// Where the configuration names an IPAM plugin (ipam.type) and the agent leaves addresses to it
// (--ipam=delegated-plugin), that plugin takes the place of the agent in step 2, and is called for
// every other command, too. It is undone last: what it frees may be another pod's at once.
//
// # DEL
//
// The agent removes the endpoint together with the host side, several pods at once. If the agent
// does not answer, the deletion is queued for it (see package deletequeue) and the interface
// removed here. DEL of what does not exist succeeds.
//
// # STATUS and GC
//
// Runtimes call these with configurations of version 1.1.0 or newer. STATUS fails until the agent
// was ready once, which a file next to its socket says, and where it attaches no pods: the whole
// node is NotReady then. GC removes what belongs to none of the attachments that the runtime lists.
//
// # Configuration
//
// Besides the standard keys the plugin understands those of Cilium's configuration (enable-debug,
// log-file, chaining-mode, ipam) and one of Hawser's own, "socket-path", the agent's socket, for
// runtimes that pass no environment; the queue of deletions lies next to the socket. Pod labels for
// runtimes without Kubernetes come by the convention "args": {"cni": {"labels": [{"key": ...,
// "value": ...}]}} and reach the agent as "cni:key=value".
//
// The package starts no goroutine and owns no table.
package cni
