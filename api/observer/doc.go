// Package observer is the service by which clients read flows from a node or a relay. The code is
// generated from observer.proto, by the directive in package flow.
package observer
