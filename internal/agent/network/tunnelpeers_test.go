package network

import (
	"net/netip"
	"testing"

	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/datapath/fake"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/ipam"
	"github.com/hawser-net/hawser/internal/ipcache"
	"github.com/hawser-net/hawser/internal/node"
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

// TestNodesOfOtherClustersHaveNoPods: where pods have single addresses, nothing but the claim of
// the pod itself shows that an address is not the one of another cluster's node.
func TestNodesOfOtherClustersHaveNoPods(t *testing.T) {
	t.Parallel()
	cache := ipcache.New()
	n := &Network{cfg: Config{Self: node.Key{Cluster: "a", Name: "n1"}, Cache: cache, Pool: &ipam.IPAM{}}}
	pod := netip.MustParsePrefix("10.0.0.9/32")
	if _, err := cache.Upsert(pod, ipcache.Claim{Source: ipcache.KVStore, Identity: 1<<16 + 5, Host: netip.MustParseAddr("10.0.0.2")}); err != nil {
		t.Fatal(err)
	}
	for cluster, want := range map[string]identity.ID{"b": 1<<16 + 5, "a": identity.RemoteNode} {
		key := node.Key{Cluster: cluster, Name: "n9"}
		n.claimNode(key, node.Node{Name: "n9", Cluster: cluster, Addresses: []node.Address{{Type: node.InternalIP, IP: pod.Addr()}}})
		if e, _ := cache.Table().Get(pod); e.Identity != want {
			t.Errorf("a node of cluster %s: the address has identity %d, want %d", cluster, e.Identity, want)
		}
		cache.DeleteNode(key.String())
	}
}
