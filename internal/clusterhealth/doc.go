// Package clusterhealth finds out which nodes reach each other. Each node probes all nodes, by ICMP
// echo and by HTTP, at their own addresses and at those of their health endpoints, which are pods
// of the node itself. What is found is this node's view: that another one cannot answer is reported
// by all who ask it.
//
// The work is bounded. A [Prober] begins with one node after the other at even intervals,
// Config.Rate a second at most, so that a round takes the longer the more nodes there are, and
// neither bursts nor load grow with their number. A probe has its own goroutine and its own time: a
// dead node delays no other. There are never more than Rate times Timeout of them, and a few.
//
// Prober and [Echoer] are safe for concurrent use; each documents which goroutines it starts and
// how they end. The package owns no table and keeps nothing on disk: after a restart of the agent
// all is unknown until it is probed.
package clusterhealth
