// Package relay serves the flows of all nodes of a cluster, sorted by time: the service
// observer.Observer, which agents implement for their own node.
//
// It gets the list of nodes from an agent, by the service peer.Peer, keeps a connection to each
// node, and forwards the requests of clients to all of them. It stores no flow. A node that is
// slow, frozen or gone does not block the others: after a bounded wait its flows are left out, the
// client gets a relay.NodeStatusEvent, and another one when the node is back. A client that reads
// nothing is disconnected, without an effect on others.
//
// Run runs until its context ends, and has then stopped everything that it started. The state of
// nodes is in a roster, which is safe for concurrent use; the state of a request belongs to it
// alone.
package relay
