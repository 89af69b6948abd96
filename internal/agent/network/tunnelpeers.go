package network

import (
	"fmt"
	"hash/fnv"
	"net/netip"
	"slices"
	"strings"

	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/identity"
)

// tunnelPeers returns the addresses from which the tunnel accepts packets, and which identities
// these may carry: from a node of this cluster the cluster's identities, from one of another that
// cluster's. Of two nodes with one address the first in the list has it, so one of this cluster if
// any; mine are this node's own addresses, which no other node can have.
func (c *Config) tunnelPeers(peers []datapath.Peer, mine ...netip.Addr) ([]datapath.TunnelPeer, error) {
	taken := make(map[netip.Addr]bool, len(peers))
	for _, a := range mine {
		taken[a] = true
	}
	var out []datapath.TunnelPeer
	for _, p := range peers {
		// Stored by an older agent for a node of another cluster: without the range of its
		// identities.
		if p.Cluster == "" && strings.Contains(p.Name, "/") {
			continue
		}
		id := p.ClusterID
		if p.Cluster == "" {
			id = c.ClusterID
		}
		first, last, err := identity.Range(id, c.MaxClusters)
		if err != nil {
			return nil, fmt.Errorf("identities of node %s: %w", p.Name, err)
		}
		row := datapath.TunnelPeer{Node: nodeNumber(p.Name), First: uint32(first), Last: uint32(last), Own: p.Cluster == ""}
		for _, row.Addr = range append([]netip.Addr{p.IPv4, p.IPv6}, p.Addresses...) {
			if row.Validate() == nil && !taken[row.Addr] {
				taken[row.Addr] = true
				out = append(out, row)
			}
		}
	}
	return out, nil
}

// refuseNumbers takes out the nodes of clusters whose number no cluster here can have, so that
// nothing is believed of them. Tables refuse such nodes; an agent that allowed more clusters may
// have stored one.
func (c *Config) refuseNumbers(peers []datapath.Peer) (good []datapath.Peer, refused []*datapath.RouteError) {
	for _, p := range peers {
		if _, _, err := identity.Range(p.ClusterID, c.MaxClusters); p.Cluster != "" && err != nil {
			refused = append(refused, &datapath.RouteError{Peer: p.Name, Err: fmt.Errorf(
				"node %s of cluster %s is refused, with its pods: %w; see --max-connected-clusters", p.Name, p.Cluster, err)})
			continue
		}
		good = append(good, p)
	}
	return good, refused
}

// nodeNumber identifies a node in the kernel. It depends on the name alone, so that it survives a
// restart. Two nodes with the same one, which is very unlikely, could send with each other's
// addresses and nothing more.
func nodeNumber(name string) uint32 {
	h := fnv.New32a()
	h.Write([]byte(name))
	return h.Sum32()
}

// admitPeers has the kernel know the other nodes: it takes tunnelled packets from them, and leads
// pods that use a node port of one to the service. Nodes that are not among peers any more are
// taken out only if all have been observed: until then what the agent before this one has written
// stands.
func (n *Network) admitPeers(peers []datapath.Peer, all bool) error {
	wanted, err := n.cfg.tunnelPeers(peers, n.cfg.Host.Addresses()...)
	if err != nil {
		return err
	}
	present, err := n.cfg.Peers.TunnelPeers()
	if err != nil {
		return err
	}
	known := make(map[netip.Addr]datapath.TunnelPeer, len(present))
	for _, p := range present {
		known[p.Addr] = p
	}
	stale := make(map[netip.Addr]bool, len(present))
	for addr := range known {
		stale[addr] = all
	}
	// This node's own address may have been another's.
	for _, addr := range n.cfg.Host.Addresses() {
		if _, there := known[addr]; there {
			stale[addr] = true
		}
	}
	for _, p := range wanted {
		delete(stale, p.Addr)
	}
	wanted = slices.DeleteFunc(wanted, func(p datapath.TunnelPeer) bool { return known[p.Addr] == p })
	if err := n.cfg.Peers.UpsertTunnelPeers(wanted); err != nil {
		return err
	}
	var gone []netip.Addr
	for addr, yes := range stale {
		if yes {
			gone = append(gone, addr)
		}
	}
	return n.cfg.Peers.DeleteTunnelPeers(gone)
}
