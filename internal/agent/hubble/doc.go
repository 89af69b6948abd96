// Package hubble makes flows of the kernel's events: who talked to whom, what policy decided and
// why. It keeps the last of them, counts them, and serves them on a unix socket and on TCP by the
// API that Hubble's clients, relays and user interfaces speak.
//
// [Config] is what the user chooses, [Node] is what the agent knows; [New] makes a [Hubble] of
// both. It only reads: no packet depends on it, so that what it cannot do is reported and
// does not end the agent.
package hubble
