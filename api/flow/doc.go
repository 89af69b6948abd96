// Package flow is the vocabulary of flows: what a node saw of packets, in the messages that
// Hubble's clients, relays and user interfaces speak. flow.proto has the numbers; the Go code
// is generated from it.
//
// A message that was handed out is immutable: readers share it.
package flow

//go:generate go -C ../../hack/protogen run . -root ../../api flow/flow.proto relay/relay.proto peer/peer.proto observer/observer.proto policy/policy.proto health/health.proto
