// Package relay has the messages by which a relay reports connected nodes to clients. The code is
// generated from relay.proto, by the directive in package flow.
package relay
