// Package agent is the node's agent: it wires the sources (the REST API, the key-value store, the
// policy directory) to the tables and the tables to the kernel, and serves the API.
//
// Agent.Run reads from top to bottom in the order in which things start; what is started last is
// stopped first. The package owns no table itself: the endpoint registry belongs to
// internal/endpoint, nodes to internal/node, addresses to internal/ipcache and internal/ipam. It
// starts a goroutine for each Run of those, for the policy directory, the identity watch, the
// event stream and the servers, and Run returns when all have ended.
//
// What always holds: the kernel keeps forwarding and enforcing when the agent stops, however it
// stops; and an agent that starts changes nothing about a pod that was there before until it has
// observed everything that policy depends on.
package agent
