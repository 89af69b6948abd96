package agent

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/hawser-net/hawser/pkg/kvstore/kvstoretest"
)

// tunnelFrom waits until the kernel takes tunnelled packets from exactly these addresses, and from
// each with these identities.
func (n *machineNode) tunnelFrom(what string, want map[string]string) {
	n.t.Helper()
	for deadline := time.Now().Add(60 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		rows, err := n.client.Map(n.t.Context(), "tunnel")
		got := map[string]string{}
		for _, r := range rows.Cache {
			got[r.Key] = r.Value
		}
		if err == nil && maps.Equal(got, want) {
			return
		}
		if time.Now().After(deadline) {
			n.t.Fatalf("%s: the tunnel is open to %v (%v), want %v", what, got, err, want)
		}
	}
}

// TestTunnelPeersFollowNodes: the kernel observes through the tunnel the addresses of the nodes
// that there are, of either family, through changes of a node, its end, and restarts of the agent.
func TestTunnelPeersFollowNodes(t *testing.T) {
	t.Parallel()
	n, _ := newNode(t)
	etcd := kvstoretest.StartEtcd(t)
	store, err := clientv3.New(clientv3.Config{Endpoints: []string{etcd.Endpoint()}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	n.flags = append(n.flags, "--kvstore", "etcd", "--kvstore-opt", "etcd.address="+etcd.Endpoint(), "--node-delete-delay", "1s")
	put := func(name, cidr string, addrs ...string) {
		t.Helper()
		var list []string
		for i, a := range addrs {
			typ := []string{"InternalIP", "InternalIP", "ExternalIP"}[i]
			list = append(list, fmt.Sprintf(`{"Type":%q,"IP":%q}`, typ, a))
		}
		text := fmt.Sprintf(`{"Name":%q,"Cluster":"default","ClusterID":0,"IPAddresses":[%s],"IPv4AllocCIDR":{"IP":%q,"Mask":"////AA=="}}`,
			name, strings.Join(list, ","), cidr)
		if _, err := store.Put(t.Context(), "cilium/state/nodes/v1/default/"+name, text); err != nil {
			t.Fatal(err)
		}
	}
	remove := func(name string) {
		t.Helper()
		if _, err := store.Delete(t.Context(), "cilium/state/nodes/v1/default/"+name); err != nil {
			t.Fatal(err)
		}
	}
	own := "identities 256 to 65535"
	open := func(addrs ...string) map[string]string {
		out := map[string]string{}
		for a := range slices.Values(addrs) {
			out[a] = own
		}
		return out
	}
	put("n2", "10.0.2.0", "192.0.2.2", "2001:db8::2", "198.51.100.2")
	put("n3", "10.0.3.0", "2001:db8::3") // joined by IPv6 alone
	n.start()
	n.tunnelFrom("at first", open("192.0.2.2", "2001:db8::2", "198.51.100.2", "2001:db8::3"))
	put("n2", "10.0.2.0", "192.0.2.22", "2001:db8::2")
	n.tunnelFrom("after a change of addresses", open("192.0.2.22", "2001:db8::2", "2001:db8::3"))
	put("n4", "10.0.4.0", node4, "2001:db8::4") // claims this node's own address
	n.tunnelFrom("after one came that claims to be this", open("192.0.2.22", "2001:db8::2", "2001:db8::3", "2001:db8::4"))
	remove("n3")
	n.tunnelFrom("after one went", open("192.0.2.22", "2001:db8::2", "2001:db8::4"))
	n.kill()
	remove("n2")
	put("n5", "10.0.5.0", "192.0.2.5")
	n.start()
	n.tunnelFrom("after nodes came and went while no agent ran", open("2001:db8::4", "192.0.2.5"))
	// Without the store those that are known stay, a restart included.
	n.kill()
	etcd.Stop()
	n.launch()
	n.serving(false)
	n.tunnelFrom("without the store", open("2001:db8::4", "192.0.2.5"))
	n.kill()
}
