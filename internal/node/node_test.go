package node

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/table"
	"github.com/hawser-net/hawser/internal/testenv"
)

func TestMain(m *testing.M) { testenv.VerifyTestMain(m) }

var compare = cmp.Options{
	cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
	cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
}

func pfxs(ss ...string) (ps []netip.Prefix) {
	for _, s := range ss {
		ps = append(ps, netip.MustParsePrefix(s))
	}
	return ps
}

func full() Node {
	return Node{
		Name: "n1", Cluster: "default", ClusterID: 3,
		Addresses: []Address{
			{InternalIP, netip.MustParseAddr("192.0.2.1")},
			{InternalIP, netip.MustParseAddr("2001:db8::1")},
			{RouterIP, netip.MustParseAddr("10.0.1.1")},
		},
		IPv4PodCIDRs: pfxs("10.0.1.0/24", "10.0.9.0/24"),
		IPv6PodCIDRs: pfxs("fd00:0:0:1::/64"),
		IPv4HealthIP: netip.MustParseAddr("10.0.1.2"),
		Source:       "local", EncryptionKey: 7,
		Labels: map[string]string{"zone": "a"}, WireguardPubKey: "key", BootID: "boot",
	}
}

const fullJSON = `{"Name":"n1","Cluster":"default",` +
	`"IPAddresses":[{"Type":"InternalIP","IP":"192.0.2.1"},{"Type":"InternalIP","IP":"2001:db8::1"},{"Type":"CiliumInternalIP","IP":"10.0.1.1"}],` +
	`"IPv4AllocCIDR":{"IP":"10.0.1.0","Mask":"////AA=="},"IPv4SecondaryAllocCIDRs":[{"IP":"10.0.9.0","Mask":"////AA=="}],` +
	`"IPv6AllocCIDR":{"IP":"fd00:0:0:1::","Mask":"//////////8AAAAAAAAAAA=="},"IPv6SecondaryAllocCIDRs":null,` +
	`"IPv4HealthIP":"10.0.1.2","IPv6HealthIP":"","IPv4IngressIP":"","IPv6IngressIP":"",` +
	`"ClusterID":3,"Source":"local","EncryptionKey":7,"Labels":{"zone":"a"},"Annotations":null,"WireguardPubKey":"key","BootID":"boot"}`

func TestWireFormat(t *testing.T) {
	t.Parallel()
	got, err := json.Marshal(full())
	if err != nil || string(got) != fullJSON {
		t.Errorf("got  %s (%v)\nwant %s", got, err, fullJSON)
	}
	back, err := Parse("default/n1", got, 255)
	if diff := cmp.Diff(full(), back, compare); diff != "" || err != nil {
		t.Errorf("read back: %v %s", err, diff)
	}
	if !back.Equal(full()) || back.Equal(Node{}) {
		t.Error("Equal is wrong")
	}
	empty, err := json.Marshal(Node{Name: "a", Cluster: "b"})
	if err != nil {
		t.Fatal(err)
	}
	if n, err := Parse("b/a", empty, 255); err != nil || !n.Equal(Node{Name: "a", Cluster: "b"}) {
		t.Errorf("empty node: %+v, %v", n, err)
	}
}

func TestParseRefuses(t *testing.T) {
	t.Parallel()
	edit := func(old, new string) string {
		if !strings.Contains(fullJSON, old) {
			t.Fatalf("no %s in the value", old)
		}
		return strings.Replace(fullJSON, old, new, 1)
	}
	for name, tt := range map[string]struct{ key, value, want string }{
		"another name":     {"default/n2", fullJSON, "holds node default/n1"},
		"another cluster":  {"c2/n1", fullJSON, "holds node default/n1"},
		"no cluster":       {"n1", fullJSON, "cluster/name"},
		"too deep":         {"default/n1/x", fullJSON, "cluster/name"},
		"not JSON":         {"default/n1", "{", "unexpected end"},
		"wrong type":       {"default/n1", `[]`, "cannot unmarshal"},
		"cluster id":       {"default/n1", edit(`"ClusterID":3`, `"ClusterID":256`), "256"},
		"mask of holes":    {"default/n1", edit(`"Mask":"////AA=="`, `"Mask":"/wD/AA=="`), "mask"},
		"mask too long":    {"default/n1", edit(`"Mask":"////AA=="`, `"Mask":"//////////8AAAAAAAAAAA=="`), "mask"},
		"IPv6 as IPv4":     {"default/n1", edit(`{"IP":"10.0.1.0"`, `{"IP":"fd00::"`), "pod CIDR"},
		"no network":       {"default/n1", edit(`"Mask":"////AA=="`, `"Mask":"AAAAAA=="`), "no network for pods"},
		"loopback network": {"default/n1", edit(`10.0.1.0`, `127.0.0.0`), "no network for pods"},
		"loopback address": {"default/n1", edit(`192.0.2.1`, `127.0.0.1`), "no address of a node"},
		"bad address":      {"default/n1", edit(`192.0.2.1`, `192.0.2.1.1`), "192.0.2.1.1"},
		"too large":        {"default/n1", `"` + strings.Repeat("x", maxValue) + `"`, "larger than"},
		"many addresses": {"default/n1", edit(`{"Type":"InternalIP","IP":"192.0.2.1"}`,
			strings.Repeat(`{"Type":"InternalIP","IP":"192.0.2.1"},`, maxAddresses)+`{}`), "addresses"},
	} {
		if _, err := Parse(tt.key, []byte(tt.value), 255); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want an error with %q", name, err, tt.want)
		}
	}
	if _, err := Parse("default/n1", []byte(edit(`"ClusterID":3`, `"ClusterID":511`)), 511); err != nil {
		t.Error(err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add("default/n1", []byte(fullJSON))
	f.Add("c/n", []byte(`{"Name":"n","Cluster":"c","IPv4AllocCIDR":{}}`))
	f.Fuzz(func(t *testing.T, key string, value []byte) {
		n, err := Parse(key, value, 255)
		if err != nil {
			return
		}
		again, err := json.Marshal(n)
		if err != nil {
			t.Fatal(err)
		}
		back, err := Parse(key, again, 255)
		if err != nil || !back.Equal(n) {
			t.Fatalf("wrote %+v\nread  %+v (%v)", n, back, err)
		}
		Peers(maps.All(map[Key]Node{n.Key(): n}), Key{}, nil, false)
	})
}

func TestAddresses(t *testing.T) {
	t.Parallel()
	n := full()
	n.Addresses = append([]Address{{ExternalIP, netip.MustParseAddr("198.51.100.1")}}, n.Addresses...)
	if got := n.UnderlayIPv4().String(); got != "192.0.2.1" {
		t.Errorf("underlay %s", got)
	}
	n.Addresses = n.Addresses[:1]
	if got := n.UnderlayIPv4().String(); got != "198.51.100.1" || n.UnderlayIPv6().IsValid() {
		t.Errorf("underlay %s, %v", got, n.UnderlayIPv6())
	}
	n = full()
	if len(n.NodeIPs()) != 2 || len(n.RouterIPs()) != 1 || len(n.PodCIDRs()) != 3 {
		t.Errorf("%v %v %v", n.NodeIPs(), n.RouterIPs(), n.PodCIDRs())
	}
}

func TestPeers(t *testing.T) {
	t.Parallel()
	mk := func(cluster, name, ip string, cidrs ...string) Node {
		n := Node{Cluster: cluster, Name: name, IPv4PodCIDRs: pfxs(cidrs...)}
		if ip != "" {
			n.Addresses = []Address{{InternalIP, netip.MustParseAddr(ip)}}
		}
		return n
	}
	nodes := []Node{
		mk("c", "self", "192.0.2.9", "10.9.0.0/24"),
		mk("c", "b", "192.0.2.2", "10.0.2.0/24", "10.0.1.128/25"), // the second is inside a's
		mk("c", "a", "192.0.2.1", "10.0.1.0/24"),
		mk("d", "a", "2001:db8::1", "10.0.0.0/16", "10.1.0.0/16"), // the first has a's inside
		mk("c", "silent", "", "10.0.3.0/24"),
	}
	nodes[1].Addresses = append(nodes[1].Addresses, Address{ExternalIP, netip.MustParseAddr("203.0.113.2")}, Address{RouterIP, netip.MustParseAddr("10.0.2.1")})
	nodes[3].ClusterID = 4
	want := []datapath.Peer{
		{Name: "a", IPv4: netip.MustParseAddr("192.0.2.1"), PodCIDRs: pfxs("10.0.1.0/24"), Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.1")}},
		{Name: "b", IPv4: netip.MustParseAddr("192.0.2.2"), PodCIDRs: pfxs("10.0.2.0/24"), Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("203.0.113.2")}},
		{Name: "d/a", IPv6: netip.MustParseAddr("2001:db8::1"), PodCIDRs: pfxs("10.1.0.0/16"), Addresses: []netip.Addr{netip.MustParseAddr("2001:db8::1")}, Cluster: "d", ClusterID: 4},
	}
	for range 2 {
		tb := table.New[Key](Node.Equal)
		for _, n := range nodes {
			tb.Upsert(n.Key(), n)
		}
		got, refused := Peers(tb.All(), Key{"c", "self"}, nil, false)
		if diff := cmp.Diff(want, got, compare); diff != "" {
			t.Error(diff)
		}
		if len(refused) != 2 || refused[0].Peer != "b" || !strings.Contains(refused[0].Error(), "10.0.1.128/25") ||
			!strings.Contains(refused[0].Error(), "node a's") || refused[1].Peer != "d/a" {
			t.Errorf("refused %v", refused)
		}
		slices.Reverse(nodes) // the order must not matter
	}
}

// A node that claims what another has does not get it, whatever its name, whenever it comes, and
// whether or not this process has observed the other yet.
func TestPeersKeepWhatTheyHave(t *testing.T) {
	t.Parallel()
	mk := func(name, ip string, cidrs ...string) Node {
		return Node{Cluster: "c", Name: name, IPv4PodCIDRs: pfxs(cidrs...), Addresses: []Address{{InternalIP, netip.MustParseAddr(ip)}}}
	}
	all := func(nodes ...Node) map[Key]Node {
		out := map[Key]Node{}
		for _, n := range nodes {
			out[n.Key()] = n
		}
		return out
	}
	self := mk("self", "192.0.2.9", "10.9.0.0/24")
	victim := mk("victim", "192.0.2.2", "10.0.2.0/24")
	thief := mk("a", "192.0.2.3", "10.0.2.128/25", "10.0.0.0/16", "10.9.0.0/25", "10.0.3.0/24")
	held := []datapath.Peer{{Name: "victim", IPv4: netip.MustParseAddr("192.0.2.2"), PodCIDRs: pfxs("10.0.2.0/24")}}
	for name, tt := range map[string]struct {
		nodes map[Key]Node
		await bool
		held  []datapath.Peer
		want  map[string][]netip.Prefix
		bad   int
	}{
		"both are there":                   {all(self, victim, thief), false, held, map[string][]netip.Prefix{"victim": pfxs("10.0.2.0/24"), "a": pfxs("10.0.3.0/24")}, 3},
		"the holder is not known yet":      {all(self, thief), true, held, map[string][]netip.Prefix{"victim": pfxs("10.0.2.0/24"), "a": pfxs("10.0.3.0/24")}, 3},
		"the holder is gone":               {all(self, thief), false, held, map[string][]netip.Prefix{"a": pfxs("10.0.2.128/25", "10.0.3.0/24")}, 2},
		"the holder has given it up":       {all(self, mk("victim", "192.0.2.2"), thief), true, held, map[string][]netip.Prefix{"victim": nil, "a": pfxs("10.0.2.128/25", "10.0.3.0/24")}, 2},
		"an earlier process held our own":  {all(self), true, []datapath.Peer{{Name: "old", PodCIDRs: pfxs("10.9.0.0/24", "10.4.0.0/24")}}, map[string][]netip.Prefix{"old": pfxs("10.4.0.0/24")}, 0},
		"two that are held overlap":        {all(self), true, []datapath.Peer{{Name: "x", PodCIDRs: pfxs("10.4.0.0/24")}, {Name: "y", PodCIDRs: pfxs("10.4.0.0/25")}}, map[string][]netip.Prefix{"x": pfxs("10.4.0.0/24"), "y": nil}, 0},
		"nothing was held, by name":        {all(self, victim, thief), false, nil, map[string][]netip.Prefix{"victim": nil, "a": pfxs("10.0.2.128/25", "10.0.3.0/24")}, 3},
		"what is held of ours is not kept": {all(self, thief), false, []datapath.Peer{{Name: "a", PodCIDRs: pfxs("10.9.0.0/25")}}, map[string][]netip.Prefix{"a": pfxs("10.0.2.128/25", "10.0.3.0/24")}, 2},
	} {
		peers, refused := Peers(maps.All(tt.nodes), Key{"c", "self"}, tt.held, tt.await)
		got := map[string][]netip.Prefix{}
		for _, p := range peers {
			got[p.Name] = p.PodCIDRs
		}
		if diff := cmp.Diff(tt.want, got, compare, cmpopts.EquateEmpty()); diff != "" || len(refused) != tt.bad {
			t.Errorf("%s: refused %v, want %d; (-want +got):\n%s", name, refused, tt.bad, diff)
		}
	}
}

func TestIDs(t *testing.T) {
	t.Parallel()
	rows := func(names string) (rs []table.Row[Key, Node]) {
		for _, n := range strings.Fields(names) {
			rs = append(rs, table.Row[Key, Node]{Key: Key{"c", n}})
		}
		return rs
	}
	var d ids
	for _, tt := range []struct {
		nodes string
		want  map[string]uint16
	}{
		{"b self a", map[string]uint16{"a": 1, "b": 2}},
		{"b", map[string]uint16{"b": 2}},
		{"b c d", map[string]uint16{"c": 1, "b": 2, "d": 3}},
	} {
		got := map[string]uint16{}
		for _, id := range d.assign(rows(tt.nodes), Key{"c", "self"}) {
			got[id.Key.Name] = id.ID
		}
		if !maps.Equal(got, tt.want) {
			t.Errorf("%s: %v, want %v", tt.nodes, got, tt.want)
		}
	}
}

// TestHealthIPs: what a node says of its health endpoint counts in its own pod networks only.
func TestHealthIPs(t *testing.T) {
	t.Parallel()
	n := Node{
		IPv4PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.1.0/24"), netip.MustParsePrefix("10.0.9.0/24")},
		IPv6PodCIDRs: []netip.Prefix{netip.MustParsePrefix("fd00:1::/112")},
	}
	for _, tt := range []struct{ v4, v6, want string }{
		{"10.0.1.7", "fd00:1::7", "[10.0.1.7 fd00:1::7]"},
		{"10.0.9.7", "", "[10.0.9.7]"},
		{"10.0.2.7", "fd00:2::7", "[]"},
		{"192.0.2.1", "fd00:1::7", "[fd00:1::7]"},
		{"", "", "[]"},
	} {
		n.IPv4HealthIP, n.IPv6HealthIP = netip.Addr{}, netip.Addr{}
		if tt.v4 != "" {
			n.IPv4HealthIP = netip.MustParseAddr(tt.v4)
		}
		if tt.v6 != "" {
			n.IPv6HealthIP = netip.MustParseAddr(tt.v6)
		}
		if got := fmt.Sprint(n.HealthIPs()); got != tt.want {
			t.Errorf("%q and %q: %s, want %s", tt.v4, tt.v6, got, tt.want)
		}
	}
}

// TestPodNetworks: what no pod can have an address of is no node's pod network, whatever an object
// or a key says, nor is a wider network that it is in.
func TestPodNetworks(t *testing.T) {
	t.Parallel()
	valid := func(cidr string) error {
		n, p := full(), netip.MustParsePrefix(cidr)
		n.IPv4PodCIDRs, n.IPv6PodCIDRs = nil, []netip.Prefix{p}
		if p.Addr().Is4() {
			n.IPv4PodCIDRs, n.IPv6PodCIDRs = n.IPv6PodCIDRs, nil
		}
		return n.Validate(255)
	}
	for _, cidr := range []string{"10.0.1.0/24", "10.0.0.7/32", "198.51.100.0/24", "fd00:1::/64", "2001:db8::/48"} {
		if err := valid(cidr); err != nil {
			t.Errorf("%s: %v", cidr, err)
		}
	}
	for _, cidr := range []string{
		"0.0.0.0/0", "0.0.0.0/1", "128.0.0.0/1", "127.0.0.0/8", "127.0.0.1/32", "169.254.169.254/32", "169.252.0.0/14", "224.0.0.0/24",
		"::/0", "::/8", "::1/128", "fe80::/64", "ff02::/16", "8000::/1", "::ffff:10.0.1.0/120", "::ffff:0.0.0.0/96",
	} {
		if err := valid(cidr); err == nil {
			t.Errorf("%s is a pod network", cidr)
		}
	}
	n := full()
	for range maxCIDRs + 1 {
		n.IPv4PodCIDRs = append(n.IPv4PodCIDRs, pfxs("10.0.1.0/24")...)
	}
	if err := n.Validate(255); err == nil {
		t.Errorf("a node has %d pod networks", len(n.IPv4PodCIDRs))
	}
	n = full()
	for range maxAddresses + 1 {
		n.Addresses = append(n.Addresses, n.Addresses[0])
	}
	if err := n.Validate(255); err == nil {
		t.Errorf("a node has %d addresses", len(n.Addresses))
	}
}
