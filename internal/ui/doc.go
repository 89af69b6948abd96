// Package ui serves a page that shows who talks to whom: workloads and services as a map, the flows
// between them, and what was denied by which policy.
//
// It reads flows from an observer.Observer, of one node or of a relay, aggregates them by workload
// and time (Graph), and serves the page and its data over HTTP (Server). The page cannot change
// anything. Memory is bounded for any flows: see Limits.
//
// The page itself is TypeScript in web/, and `make web` builds it into dist/, which is embedded.
package ui
