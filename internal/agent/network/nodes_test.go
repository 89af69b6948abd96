package network

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/ipam"
	"github.com/hawser-net/hawser/internal/ipcache"
	"github.com/hawser-net/hawser/internal/node"
	"github.com/hawser-net/hawser/internal/table"
)

// The gate of nodes opens after one call: every node must be known by then, or its host counts as
// the world.
func TestManyNodesAtOnce(t *testing.T) {
	t.Parallel()
	cache := ipcache.New()
	n := &Network{cfg: Config{Self: node.Key{Cluster: "a", Name: "self"}, Cache: cache, Pool: &ipam.IPAM{}}}
	nodes := table.New[node.Key](node.Node.Equal)
	watch := nodes.Watch()
	defer watch.Close()
	const count = 5000
	first := netip.MustParseAddr("192.168.0.0")
	for i, at := 0, first; i < count; i++ {
		at = at.Next()
		key := node.Key{Cluster: "a", Name: fmt.Sprintf("n%d", i)}
		nodes.Upsert(key, node.Node{Name: key.Name, Cluster: key.Cluster, Addresses: []node.Address{{Type: node.InternalIP, IP: at}}})
	}
	changes := 0
	n.applyNodes(watch, Cluster{Changed: func() { changes++ }})
	unknown := 0
	for i, at := 0, first; i < count; i++ {
		at = at.Next()
		if e, _ := cache.Table().Get(netip.PrefixFrom(at, 32)); e.Identity != identity.RemoteNode {
			unknown++
		}
	}
	if unknown > 0 || changes != 1 {
		t.Errorf("%d of %d nodes are not known, and %d notices of a change, want 1", unknown, count, changes)
	}
}
