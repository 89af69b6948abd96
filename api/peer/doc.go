// Package peer is the service by which a relay learns which nodes can be asked for flows. The code
// is generated from peer.proto, by the directive in package flow.
package peer
