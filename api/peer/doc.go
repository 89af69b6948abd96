// Package peer is the service by which a relay gets the list of nodes that serve flows. The code is
// generated from peer.proto, by the directive in package flow.
package peer
