// Package network is this node's own part of the network: what its host is, its devices, its own
// addresses in the pod network, the routes to other nodes and what is taken from them through the
// tunnel, masquerading, and the programs on its devices.
//
// Network.Run follows the table of nodes and repairs what others take away. What always holds: one
// node that claims nonsense keeps neither the agent from working nor other nodes from being
// reached; and until all nodes have been observed, those that the agent before knew keep their
// routes.
package network
