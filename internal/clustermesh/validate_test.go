package clustermesh

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/ipcache"
	"github.com/hawser-net/hawser/internal/node"
	"github.com/hawser-net/hawser/internal/service"
)

func addr(s string) netip.Addr  { return netip.MustParseAddr(s) }
func pfx(s string) netip.Prefix { return netip.MustParsePrefix(s) }

// checkErr compares an error with what it should contain; empty for none.
func checkErr(t *testing.T, name string, err error, want string) {
	t.Helper()
	if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
		t.Errorf("%s: %v; want %q", name, err, want)
	}
}

func testPeer(t *testing.T) peer {
	t.Helper()
	p, err := newPeer("b", Description{ID: 2}, 1, 255)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// mineForTests are the addresses of this cluster.
func mineForTests() *prefixes {
	return newPrefixes([]netip.Prefix{pfx("10.1.0.0/24"), pfx("192.0.2.1/32"), pfx("fd00:1::/112")})
}

func TestNewPeer(t *testing.T) {
	for _, tt := range []struct {
		name string
		desc Description
		want string
	}{
		{"good", Description{ID: 2}, ""},
		{"as many clusters", Description{ID: 2, Capabilities: Capabilities{MaxConnectedClusters: 255}}, ""},
		{"no ID", Description{}, "has no ID"},
		{"own ID", Description{ID: 1}, "own ID 1"},
		{"out of range", Description{ID: 256}, "cannot be used"},
		{"more clusters", Description{ID: 2, Capabilities: Capabilities{MaxConnectedClusters: 511}}, "--max-connected-clusters"},
	} {
		_, err := newPeer("b", tt.desc, 1, 255)
		checkErr(t, tt.name, err, tt.want)
	}
}

func TestIdentity(t *testing.T) {
	p := testPeer(t)
	const good = "k8s:app=a;k8s:io.cilium.k8s.policy.cluster=b;k8s:io.kubernetes.pod.namespace=ns;"
	for _, tt := range []struct {
		name   string
		id     identity.ID
		labels string
		want   string
	}{
		{"good", 2<<16 + 5, good, ""},
		{"the first", 2 << 16, good, ""},
		{"this cluster's", 1<<16 + 5, good, "outside"},
		{"of no cluster", 300, good, "outside"},
		{"reserved", identity.Host, good, "outside"},
		{"another scope", identity.LocalScope + 2<<16, good, "outside"},
		{"above", 3 << 16, good, "outside"},
		{"no cluster", 2<<16 + 5, "k8s:app=a;", "does not carry"},
		{"this cluster's name", 2<<16 + 5, "k8s:app=a;k8s:io.cilium.k8s.policy.cluster=a;", "does not carry"},
		{"the name from another source", 2<<16 + 5, "cni:io.cilium.k8s.policy.cluster=b;", "does not carry"},
		{"a host", 2<<16 + 5, good + "reserved:host=;", "not a label of a pod"},
		{"a prefix", 2<<16 + 5, "cidr:0.0.0.0/0=;" + good, "not a label of a pod"},
		{"a block of addresses", 2<<16 + 5, "block:0.0.0.0/0=;" + good, "not a label of a pod"},
		{"ports that its agent derived", 2<<16 + 5, good + "gen:io.cilium.k8s.named-ports=http.TCP.80;", ""},
		{"nonsense", 2<<16 + 5, "\x00", "identity"},
		{"large", 2<<16 + 5, strings.Repeat("x", maxIdentity+1), "more than"},
	} {
		_, err := p.identity(tt.id, []byte(tt.labels))
		checkErr(t, tt.name, err, tt.want)
	}
	for _, text := range []string{"", "x", "-1", "01", "4294967296", "1 "} {
		if id, err := parseID(text); err == nil {
			t.Errorf("%q is %d", text, id)
		}
	}
}

func testNode(change func(*node.Node)) node.Node {
	n := node.Node{
		Name: "n1", Cluster: "b", ClusterID: 2, IPv4PodCIDRs: []netip.Prefix{pfx("10.2.1.0/24")}, IPv6PodCIDRs: []netip.Prefix{pfx("fd00:2::/112")},
		Addresses: []node.Address{{Type: node.InternalIP, IP: addr("192.0.2.2")}, {Type: node.RouterIP, IP: addr("10.2.1.9")}},
	}
	if change != nil {
		change(&n)
	}
	return n
}

func TestNode(t *testing.T) {
	p := testPeer(t)
	for _, tt := range []struct {
		name   string
		change func(*node.Node)
		want   string
	}{
		{"good", nil, ""},
		{"of another cluster", func(n *node.Node) { n.Cluster = "a" }, "not one of cluster b"},
		{"another ID", func(n *node.Node) { n.ClusterID = 1 }, "cluster ID 1"},
		{"no ID", func(n *node.Node) { n.ClusterID = 0 }, "cluster ID 0"},
		{"half of the world", func(n *node.Node) { n.IPv4PodCIDRs[0] = pfx("0.0.0.0/1") }, "larger than"},
		{"much of IPv6", func(n *node.Node) { n.IPv6PodCIDRs[0] = pfx("2000::/3") }, "larger than"},
		{"our pods", func(n *node.Node) { n.IPv4PodCIDRs[0] = pfx("10.1.0.128/25") }, "overlaps"},
		{"around our pods", func(n *node.Node) { n.IPv4PodCIDRs[0] = pfx("10.0.0.0/8") }, "overlaps"},
		{"our node", func(n *node.Node) { n.Addresses[0].IP = addr("192.0.2.1") }, "of this cluster"},
		{"our pod", func(n *node.Node) { n.Addresses[1].IP = addr("10.1.0.7") }, "of this cluster"},
		{"link-local", func(n *node.Node) { n.Addresses[0].IP = addr("169.254.1.1") }, "of no network"},
		{"the same outside", func(n *node.Node) {
			n.Addresses = append(n.Addresses, node.Address{Type: node.ExternalIP, IP: addr("192.0.2.1")})
		}, ""},
	} {
		got, err := p.node(testNode(tt.change), mineForTests())
		checkErr(t, tt.name, err, tt.want)
		if err == nil && (len(got.Addresses) != 2 || got.Source != "clustermesh") {
			t.Errorf("%s: %+v", tt.name, got)
		}
	}
}

func TestAddress(t *testing.T) {
	p := testPeer(t)
	for _, tt := range []struct {
		name  string
		pair  ipcache.Pair
		known bool
		want  string
	}{
		{"good", ipcache.Pair{Prefix: pfx("10.2.1.5/32"), Identity: 2<<16 + 5}, true, ""},
		{"health", ipcache.Pair{Prefix: pfx("10.2.1.5/32"), Identity: identity.Health}, true, ""},
		{"this cluster's identity", ipcache.Pair{Prefix: pfx("10.2.1.5/32"), Identity: 1<<16 + 5}, true, "outside of the cluster's range"},
		{"kube-apiserver", ipcache.Pair{Prefix: pfx("10.2.1.5/32"), Identity: identity.KubeAPIServer}, true, "outside of the cluster's range"},
		{"our DNS", ipcache.Pair{Prefix: pfx("10.2.1.5/32"), Identity: 104}, true, "outside of the cluster's range"},
		{"our pod", ipcache.Pair{Prefix: pfx("10.1.0.5/32"), Identity: 2<<16 + 5}, true, "overlaps"},
		{"our node", ipcache.Pair{Prefix: pfx("192.0.2.1/32"), Identity: 2<<16 + 5}, true, "overlaps"},
		{"everything", ipcache.Pair{Prefix: pfx("0.0.0.0/1"), Identity: 2<<16 + 5}, true, "larger than"},
		{"elsewhere", ipcache.Pair{Prefix: pfx("8.8.8.8/32"), Identity: 2<<16 + 5}, true, "in no range of pods"},
		{"of no node", ipcache.Pair{Prefix: pfx("10.2.1.5/32"), Identity: 2<<16 + 5}, false, "no node of the cluster"},
	} {
		checkErr(t, tt.name, p.address(tt.pair, testNode(nil), tt.known, mineForTests()), tt.want)
	}
	bare := testNode(func(n *node.Node) { n.IPv4PodCIDRs, n.IPv6PodCIDRs = nil, nil })
	checkErr(t, "a node without ranges", p.address(ipcache.Pair{Prefix: pfx("172.31.0.5/32"), Identity: 2<<16 + 5}, bare, true, mineForTests()), "")
	for _, special := range []string{"169.254.169.254/32", "169.0.0.0/8", "127.0.0.1/32", "224.0.0.1/32", "0.0.0.0/32", "fe80::1/128", "ff02::1/128", "::1/128"} {
		checkErr(t, special, p.address(ipcache.Pair{Prefix: pfx(special), Identity: 2<<16 + 5}, bare, true, mineForTests()), "in no network of pods")
		wide := testNode(func(n *node.Node) { n.IPv4PodCIDRs = []netip.Prefix{pfx(special)} })
		_, err := p.node(wide, mineForTests())
		checkErr(t, special, err, "in no network of pods")
	}
}

func TestService(t *testing.T) {
	p := testPeer(t)
	port := map[string]service.SharedPort{"": {Proto: 6, Port: 80}}
	s := service.Shared{
		Cluster: "b", ClusterID: 2, Name: service.Name{Namespace: "ns", Name: "web"}, Offered: true,
		Backends: map[netip.Addr]map[string]service.SharedPort{addr("10.2.1.5"): port, addr("10.1.0.5"): port},
	}
	got, err := p.service(s, mineForTests())
	if err != nil || len(got.Backends) != 1 || got.Backends[addr("10.2.1.5")] == nil {
		t.Errorf("%+v, %v", got, err)
	}
	s.ClusterID = 1
	_, err = p.service(s, nil)
	checkErr(t, "another ID", err, "says that it is of cluster b with ID 1")
}

// TestPrefixes compares overlap with a look at every member.
func TestPrefixes(t *testing.T) {
	members := []netip.Prefix{pfx("10.0.0.0/8"), pfx("192.0.2.1/32"), pfx("192.0.2.128/25"), pfx("fd00::/16"), pfx("2001:db8::1/128")}
	set := newPrefixes(members)
	for _, text := range []string{
		"10.1.0.0/16", "0.0.0.0/0", "11.0.0.0/8", "192.0.2.0/24", "192.0.2.1/32", "192.0.2.2/32", "192.0.2.129/32", "fd00:1::/32", "fe00::/16",
		"::/0", "2001:db8::/32", "2001:db8::1/128", "2001:db8::2/128",
	} {
		want := false
		for _, m := range members {
			want = want || m.Overlaps(pfx(text))
		}
		if got := set.overlap(pfx(text)); got != want {
			t.Errorf("%s: %v, want %v", text, got, want)
		}
	}
	if (*prefixes)(nil).overlap(pfx("10.0.0.0/8")) || !set.equal(newPrefixes(members)) || set.equal(nil) || set.equal(newPrefixes(members[1:])) {
		t.Error("sets")
	}
}

// FuzzRemote: whatever another cluster's store holds, what is let through keeps the rules.
func FuzzRemote(f *testing.F) {
	f.Add("131077", []byte("k8s:app=a;k8s:io.cilium.k8s.policy.cluster=b;"))
	f.Add("n1", []byte(`{"Name":"n1","Cluster":"b","ClusterID":2,"IPAddresses":[{"Type":"InternalIP","IP":"192.0.2.2"}],"IPv4AllocCIDR":{"IP":"10.2.1.0","Mask":"////AA=="}}`))
	f.Add("10.2.1.5", []byte(`{"IP":"10.2.1.5","Mask":null,"HostIP":"192.0.2.2","ID":131077,"Key":0,"Metadata":""}`))
	f.Add("ns/web", []byte(`{"cluster":"b","namespace":"ns","name":"web","clusterID":2,"shared":true,"backends":{"10.2.1.5":{"":{"Protocol":"TCP","Port":80}}}}`))
	f.Add("", []byte(`{"id":2,"capabilities":{"syncedCanaries":true}}`))
	mine := mineForTests()
	f.Fuzz(func(t *testing.T, key string, value []byte) {
		p, err := newPeer("b", Description{ID: 2}, 1, 255)
		if err != nil {
			t.Fatal(err)
		}
		if d, err := ParseDescription(value); err == nil {
			_, _ = newPeer("b", d, 1, 255)
		}
		if id, err := parseID(key); err == nil {
			if set, err := p.identity(id, value); err == nil && (id>>16 != 2 || set.Value("k8s", "io.cilium.k8s.policy.cluster") != "b") {
				t.Fatalf("%d: %s", id, set)
			}
		}
		if n, err := node.Parse("b/"+key, value, 255); err == nil {
			if n, err := p.node(n, mine); err == nil {
				for _, c := range n.PodCIDRs() {
					if mine.overlap(c) {
						t.Fatalf("%+v", n)
					}
				}
			}
		}
		if pair, err := ipcache.ParsePair(key, value); err == nil {
			if p.address(pair, testNode(nil), true, mine) == nil && (mine.overlap(pair.Prefix) || pair.Identity >= 3<<16) {
				t.Fatalf("%+v", pair)
			}
		}
		if s, err := service.ParseShared("b/"+key, value); err == nil {
			if s, err := p.service(s, mine); err == nil {
				for a := range s.Backends {
					if mine.overlap(ipcache.Single(a)) {
						t.Fatalf("%+v", s)
					}
				}
			}
		}
	})
}
