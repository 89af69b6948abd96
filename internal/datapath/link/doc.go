// Package link makes a node's interfaces, addresses, routes, neighbours, filters and masquerading
// be as the datapath wants them. It is the only package of the agent that uses netlink and
// nftables, and implements datapath.Links.
//
// # What it owns on the host
//
//   - the devices hawser_host and hawser_net (a veth pair that carries the router addresses) and,
//     in tunnel mode, hawser_vxlan;
//   - the host side of every pod's veth pair, named "lxc" plus twelve hexadecimal digits. The CNI
//     plugin creates it, this package brings it up and removes it;
//   - every route and every rule with the routing protocol number RouteProtocol, in the main table
//     and, for interfaces of a cloud, in others. Those of any other protocol are never changed or
//     removed;
//   - the nftables table "hawser" of the inet family;
//   - the filter at priority 1, handle 1 of the clsact hooks of interfaces it was given.
//
// Everything is compared with the kernel before it is changed, so that a restart of the agent,
// which repeats all calls, changes nothing. [Links.CleanUp] removes everything but the pods'
// interfaces.
//
// [Links.Watch] notifies when something else removes any of it.
//
// # Order that keeps a pod from running unfiltered
//
// The host side of a pod is created down. Programs are attached first, then [Links.EnsureEndpoint]
// brings it up. In the same way SetNode leaves a tunnel device that it has just created down, and
// [Links.ReplaceFilter] brings it up once its ingress program is there. An interface of a cloud is
// brought up by [Interfaces] after it has its programs.
//
// # Removal
//
// Removing a network interface makes the kernel wait for a grace period, about 20 ms each, while it
// holds the lock that all other interface changes need. A group of interfaces waits once. Therefore
// [Links.DeleteEndpoint] only queues, and the goroutine that called [Links.Run] removes what has
// gathered. If the agent dies in between nothing is lost: on start it compares
// [Links.EndpointLinks] with its endpoints and deletes the rest.
//
// The package starts no goroutine of its own and owns no table. A Links is safe for concurrent use.
package link
