// Package flowserver serves what a node remembers of flows, and which nodes there are, to the
// clients, relays and user interfaces of the field: the services observer.Observer and peer.Peer,
// on a unix socket and on TCP with TLS.
//
// No client can hold up the node or another client. What there is to read is a ring that is written
// whether or not anybody reads (see package flows), every stream reads at its own pace and is told
// what it has missed, and how many streams and connections there are, and how much one may ask for,
// is bounded. A stream whose client takes nothing for a minute is ended.
//
// Serve runs until its context ends and has then ended what it started. The package keeps no state
// but counts.
package flowserver
