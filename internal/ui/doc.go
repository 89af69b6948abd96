// Package ui serves a page that shows who talks to whom: workloads and services as a map, the
// flows between them, what was refused and by which policy.
//
// It reads flows from an observer.Observer, of one node or of a relay, sums them up by workload
// and time (Graph), and serves the page and its data over HTTP (Server). Nothing can be changed
// through it. Memory is bounded whatever the flows are: see Limits.
//
// The page itself is TypeScript in web/, and `make web` builds it into dist/, which is embedded.
package ui
