// Package maps keeps the kernel's BPF maps: it makes and pins them, and reads and writes them as
// the plain values of package datapath. Maps implements datapath.Maps.
//
// The maps outlive the process. They are pinned below Config.Dir in a directory named after the
// layout version, so that an agent that starts finds what the last one left, and one whose maps
// look different creates new ones next to those that programs still use.
//
// Endpoints, addresses, rule sets, policy and ipcache are written here only; conntrack, fragments,
// metrics and events by the programs. One process writes; any number may list. A Maps is safe for
// concurrent use. The package starts no goroutine except in Events, which waits for its own.
//
// What always holds in the kernel: an endpoint row under an address also stands under its
// interface; a rule set that an endpoint points at is whole, except while UpdateRuleSet runs; a
// rule set's descriptor names every class of key that its entries have.
package maps
