// Package service computes where packets for services go: from services, the slices of their
// endpoints and host ports to the rows of the kernel's table.
//
// [Engine] holds what was observed and owns the table of frontends, one row for each address, port
// and protocol that a client may use. It alone writes it, in its own methods, and a row depends on
// what is there and never on the order in which it was observed: slices may come before their
// service, an endpoint may be in two slices while it moves, and two services may want the same
// address. Until [Engine.Synced] the table stays empty, so that a restarted agent never replaces a
// good row by one of which it has observed half.
//
// [Maps] is the target that reconciles the kernel's table there, and [Flows] has flows forget a
// backend that is no more.
//
// Nothing here knows Kubernetes, does I/O of its own, or starts a goroutine.
package service
