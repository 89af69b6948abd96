package network

import (
	"net/netip"
	"testing"

	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/datapath/fake"
)

// TestNodesAreKnownWithoutTunnel: the kernel knows the other nodes in both modes of routing, and of
// which cluster each is: pods find node ports at those of their own.
func TestNodesAreKnownWithoutTunnel(t *testing.T) {
	for _, mode := range []string{"tunnel", "native"} {
		t.Run(mode, func(t *testing.T) {
			options := Defaults()
			options.RoutingMode = mode
			kernel := fake.New().Maps
			n := &Network{cfg: Config{Options: options, ClusterID: 1, MaxClusters: 255, Peers: kernel}}
			ours, foreign := netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("192.0.2.9")
			peers := []datapath.Peer{{Name: "n2", IPv4: ours}, {Name: "other/n9", Cluster: "other", ClusterID: 2, IPv4: foreign}}
			if err := n.admitPeers(peers, true); err != nil {
				t.Fatal(err)
			}
			rows, err := kernel.TunnelPeers()
			if err != nil {
				t.Fatal(err)
			}
			own := map[netip.Addr]bool{}
			for _, r := range rows {
				own[r.Addr] = r.Own
			}
			if is, known := own[ours]; !known || !is {
				t.Errorf("the kernel does not know %s as a node of this cluster: %+v", ours, rows)
			}
			if is, known := own[foreign]; !known || is {
				t.Errorf("the kernel does not know %s as a node of another cluster: %+v", foreign, rows)
			}
		})
	}
}
