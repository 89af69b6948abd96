// Package policy computes, from rules and identities, what a node's kernel should enforce: rule
// sets, the changes between them, and which endpoints use which.
//
// # The parts
//
//   - Parse and ParseClusterwide turn policy objects into rules, or refuse them by naming the
//     field.
//   - Engine holds rules, identities and subjects and returns the changes in Flush.
//   - Engine.Lookup evaluates one packet as the kernel would; Engine.Trace explains each rule.
//   - The package oracle evaluates packets straight from the policy objects. It is
//     slow, shares no code with the engine, and the tests hold both against each other.
//
// # What a rule means
//
//   - A rule selects endpoints by its endpointSelector; a rule of a namespace selects only inside
//     it, whatever its selector. A clusterwide rule selects everywhere.
//   - Per direction an endpoint's traffic is enforced (what nothing allows is dropped) as soon as
//     one rule that selects it has an entry for the direction and does not switch that off
//     (enableDefaultDeny). Mode "always" enforces for all endpoints, mode "never" drops nothing.
//     The endpoints that have no labels yet (reserved:init) are enforced in mode default too.
//   - An entry matches peers and ports. Absent peers are all peers; absent ports, or an empty list
//     of them (toPorts, icmps), are all ports and protocols; an entry with neither ("- {}") matches
//     nothing and only makes the direction enforced. An empty list of peers matches nothing,
//     whatever other lists there are, and an empty list within toPorts or icmps names no
//     traffic.
//   - A selector of peers in a namespaced rule is confined to the namespace unless it names the
//     namespace (or a namespace label). In a clusterwide rule it is confined to what has a
//     namespace. With Config.DefaultLocalCluster it is confined to the local cluster unless it
//     names the cluster. A selector that names a reserved label, under any operator, is confined to
//     nothing, and so are those of a clusterwide rule whose own selector names reserved:init.
//   - The label reserved:world is the outside of both families.
//   - Prefixes match identities that stand for prefixes outside the cluster, by containment, never
//     endpoints or nodes. A prefix of length 0 matches the world too.
//   - A block of addresses (the ipBlock of a NetworkPolicy) matches each address in it:
//     an endpoint, a node, the outside. Its identities are those of identity.BlockScope, which an
//     address has in addition to the identity of its owner; an entry matches by either.
//   - A deny beats every allow, whichever is more specific.
//   - protocol ANY, or none, with a port is TCP, UDP and SCTP; port "0" is every port.
//   - A named port of an ingress entry is looked up among the subject's own named ports, one of
//     an egress entry among those of the peer's identity (SetNamedPorts). A name that is not
//     found matches nothing.
//
// # Rule sets
//
// Rule sets, their keys and entries are those of internal/datapath, as the kernel has them, but for
// the IDs, which the engine gives from 1. Endpoints with the same identity and the same named
// ports are one Subject. Subjects that the same rules select share a rule set. A change of rules
// gives a new ID; an identity that comes or goes changes the rule sets it touches in place.
// Within one identity of a rule set, the most specific entry of a packet always has the final
// verdict of that identity's rules, and entries that the entries of identity 0 (any peer) make
// superfluous are left out.
//
// # Concurrency
//
// Engine is synchronous: no locks, no clock, no goroutine. Its owner calls it from one goroutine.
// Rules, selectors and updates that were handed out are never changed afterwards.
package policy
