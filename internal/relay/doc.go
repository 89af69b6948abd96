// Package relay answers for a whole cluster what each node answers for itself: the service
// observer.Observer, with the flows of all nodes in the order of their times.
//
// It hears from an agent, by the service peer.Peer, which nodes there are, keeps a connection to
// each of them, and asks all of them what a client asks. It stores no flow. A node that is slow,
// frozen or gone holds up no other: what it has not said after a bounded wait is left out, the
// client is told so (relay.NodeStatusEvent), and a follower hears of the node again when it is
// back. A client that takes nothing is let go; nobody else notices.
//
// Run runs until its context ends, and has then ended what it started. What is known of nodes is
// held in a roster, safe for concurrent use; what a request needs belongs to it alone.
package relay
