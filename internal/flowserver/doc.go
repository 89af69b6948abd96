// Package flowserver serves the recorded flows of a node, and the list of nodes, to clients, relays
// and user interfaces of Hubble: the services observer.Observer and peer.Peer, on a unix socket and
// on TCP with TLS.
//
// No client can block the node or another client. Flows are in a ring that never waits for its
// readers (see package flows); every stream reads at its own pace and gets the number of flows that
// it missed. The numbers of streams and connections, and the size of requests, are bounded. A
// stream whose client reads nothing for a minute is closed.
//
// Serve runs until its context ends and has then ended what it started. The package keeps no state
// but counts.
package flowserver
