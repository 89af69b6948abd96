package maps

import (
	"fmt"
	"net/netip"

	"github.com/hawser-net/hawser/internal/datapath"
)

// UpsertTunnelPeers implements datapath.Maps.
func (m *Maps) UpsertTunnelPeers(peers []datapath.TunnelPeer) error {
	keys := make([]kernelAddr, 0, len(peers))
	values := make([]kernelTunnelPeer, 0, len(peers))
	for _, p := range peers {
		if err := p.Validate(); err != nil {
			return err
		}
		v := kernelTunnelPeer{Node: p.Node, First: p.First, Last: p.Last}
		if p.Own {
			v.SameCluster = 1
		}
		keys, values = append(keys, toKernelAddr(p.Addr)), append(values, v)
	}
	if _, err := putAll(m.maps[kernelMapTunnelPeers], keys, values); err != nil {
		return fmt.Errorf("tunnel peers: write %d addresses: %w", len(keys), err)
	}
	return nil
}

// DeleteTunnelPeers implements datapath.Maps.
func (m *Maps) DeleteTunnelPeers(addrs []netip.Addr) error {
	keys := make([]kernelAddr, 0, len(addrs))
	for _, a := range addrs {
		keys = append(keys, toKernelAddr(a))
	}
	if err := deleteAll(m.maps[kernelMapTunnelPeers], keys); err != nil {
		return fmt.Errorf("tunnel peers: remove %d addresses: %w", len(keys), err)
	}
	return nil
}

// TunnelPeers implements datapath.Maps.
func (m *Maps) TunnelPeers() ([]datapath.TunnelPeer, error) {
	var list []datapath.TunnelPeer
	err := each(m.maps[kernelMapTunnelPeers], func(k kernelAddr, v kernelTunnelPeer) bool {
		list = append(list, datapath.TunnelPeer{
			Addr: netip.AddrFrom16(k.B).Unmap(), Node: v.Node, First: v.First, Last: v.Last, Own: v.SameCluster != 0,
		})
		return true
	})
	if err != nil {
		return nil, fmt.Errorf("tunnel peers: %w", err)
	}
	return list, nil
}
