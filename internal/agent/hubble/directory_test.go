package hubble

import (
	"errors"
	"maps"
	"net/netip"
	"testing"
	"time"

	"github.com/hawser-net/hawser/internal/endpoint"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/ipcache"
	"github.com/hawser-net/hawser/internal/node"
	"github.com/hawser-net/hawser/internal/table"
)

// TestNodesOfBothEnds: pods and nodes are on the node that the tables say; an address that two
// nodes claim is on neither, and what is outside of the cluster on none.
func TestNodesOfBothEnds(t *testing.T) {
	t.Parallel()
	nodes := table.New[node.Key](node.Node.Equal)
	put := func(name string, addrs ...string) {
		n := node.Node{Cluster: "prod", Name: name}
		for _, a := range addrs {
			n.Addresses = append(n.Addresses, node.Address{Type: node.InternalIP, IP: netip.MustParseAddr(a)})
		}
		nodes.Upsert(n.Key(), n)
	}
	put("n1", "192.0.2.1")
	put("n2", "192.0.2.2", "192.0.2.99")
	put("n3", "192.0.2.99")
	cache := ipcache.New()
	claim := func(prefix string, c ipcache.Claim) {
		if _, err := cache.Upsert(netip.MustParsePrefix(prefix), c); err != nil {
			t.Fatal(err)
		}
	}
	host := func(s string) netip.Addr { return netip.MustParseAddr(s) }
	claim("10.0.2.1/32", ipcache.Claim{Source: ipcache.KVStore, Owner: "n2", Identity: 4711, Host: host("192.0.2.2"), Namespace: "shop", Pod: "db"})
	claim("10.0.3.1/32", ipcache.Claim{Source: ipcache.KVStore, Owner: "n3", Identity: 4711, Host: host("192.0.2.99"), Namespace: "shop", Pod: "db2"})
	claim("192.0.2.2/32", ipcache.Claim{Source: ipcache.KVStore, Owner: "n2", Identity: identity.RemoteNode})
	claim("192.0.2.1/32", ipcache.Claim{Source: ipcache.KVStore, Owner: "n1", Identity: identity.Host})
	claim("0.0.0.0/0", ipcache.Claim{Source: ipcache.KVStore, Owner: "x", Identity: identity.World})
	d := newDirectory(Node{Self: node.Key{Cluster: "prod", Name: "n1"}, Nodes: nodes, Addresses: cache, Endpoints: endpoint.NewRegistry()})
	for addr, want := range map[string]string{
		"10.0.2.1": "prod/n2", "10.0.3.1": "", "192.0.2.2": "prod/n2", "192.0.2.1": "prod/n1", "198.51.100.1": "",
	} {
		if got := d.Party(netip.MustParseAddr(addr)); got.Node != want {
			t.Errorf("%s is on %q, want %q: %+v", addr, got.Node, want, got)
		}
	}
	if got := d.local(endpoint.Endpoint{ID: 7}); got.Node != "prod/n1" {
		t.Errorf("an endpoint of the node is on %q", got.Node)
	}
	// Nodes that change are read again, not for each flow.
	put("n3", "192.0.2.3")
	read := d.hosts.read
	if got := d.hosts.at(host("192.0.2.3"), nodes, read.Add(hostsAge/2)); got != "" {
		t.Errorf("nodes are read again at once: %q", got)
	}
	if got := d.hosts.at(host("192.0.2.3"), nodes, read.Add(hostsAge+time.Millisecond)); got != "prod/n3" {
		t.Errorf("a node that is new is %q", got)
	}
	if got := d.hosts.at(host("192.0.2.99"), nodes, read); got != "prod/n2" {
		t.Errorf("an address that only one node has still is on %q", got)
	}
}

// TestNamesOfInterfaces: interfaces are listed again for one that is new, not for each packet of
// one that is not known, and an earlier name counts if they cannot be listed.
func TestNamesOfInterfaces(t *testing.T) {
	t.Parallel()
	now, listed := time.Unix(1000, 0), 0
	names, failure := map[int]string{2: "eth0"}, error(nil)
	l := links{list: func() (map[int]string, error) { listed++; return maps.Clone(names), failure }}
	for step, row := range []struct {
		after  time.Duration
		change func()
		index  int
		want   string
		listed int
	}{
		{0, nil, 2, "eth0", 1},
		{0, nil, 9, "", 1},
		{linksAge, nil, 9, "", 2},
		{0, func() { names[9] = "lxc9" }, 9, "", 2},
		{linksAge, nil, 9, "lxc9", 3},
		{linksAge, func() { names[2] = "wan0" }, 2, "eth0", 3},
		{linksRenamed, nil, 2, "wan0", 4},
		{linksRenamed, func() { failure = errors.New("interrupted") }, 2, "wan0", 5},
	} {
		if row.change != nil {
			row.change()
		}
		now = now.Add(row.after)
		if got := l.name(row.index, now); got != row.want || listed != row.listed {
			t.Errorf("step %d: interface %d is %q, want %q; listed %d times, want %d", step, row.index, got, row.want, listed, row.listed)
		}
	}
	if got := (&links{}).name(2, now); got != "" {
		t.Errorf("an interface of a node that lists none is %q", got)
	}
}
