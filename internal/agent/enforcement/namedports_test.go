package enforcement

import (
	"log/slog"
	"net/netip"
	"strings"
	"testing"

	"github.com/hawser-net/hawser/internal/datapath/fake"
	kernelmaps "github.com/hawser-net/hawser/internal/datapath/maps"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/ipcache"
	"github.com/hawser-net/hawser/internal/labels"
	"github.com/hawser-net/hawser/internal/policy"
	"github.com/hawser-net/hawser/internal/testenv"
)

// Policy counts as in force after one Sync: the named ports of all peers must be known by then,
// however many there are, or a deny by a port's name has no effect.
func TestNamedPortsOfManyPeers(t *testing.T) {
	t.Parallel()
	engine, err := policy.New(policy.Defaults())
	if err != nil {
		t.Fatal(err)
	}
	p, err := NewPolicy(slog.New(slog.DiscardHandler), engine, fake.New().Maps)
	if err != nil {
		t.Fatal(err)
	}
	cache := ipcache.New()
	const peers = 5000
	at := netip.MustParseAddr("10.2.0.0")
	for i := range peers {
		at = at.Next()
		claim := ipcache.Claim{Source: ipcache.KVStore, Identity: identity.ID(1000 + i), NamedPorts: []ipcache.NamedPort{{Name: "web", Port: 80, Protocol: "TCP"}}}
		if _, err := cache.Upsert(netip.PrefixFrom(at, 32), claim); err != nil {
			t.Fatal(err)
		}
	}
	named := NewNamedPorts(slog.New(slog.DiscardHandler), p, cache)
	defer named.watch.Close()
	named.Sync()
	if n := len(named.byID); n != peers {
		t.Errorf("the named ports of %d identities are known, want %d", n, peers)
	}
}

// TestNamedPortsOfOtherClusters: however many ports of one name another cluster gives an identity,
// the rule set that names it stays within its share, and its pod is not locked.
func TestNamedPortsOfOtherClusters(t *testing.T) {
	testenv.RequireRoot(t)
	c := kernelmaps.Defaults()
	c.Dir, c.CTEntries, c.PolicyEntries, c.RuleSetEntries, c.IPCacheEntries, c.IPCachePrefixes, c.Blocks = "", 4096, 4096, 256, 16, 16, 16
	kernel, pol, rules := kernelRules(t, c, 0)
	attachPod(t, pol, 1, "a")
	const theirs = identity.ID(2<<16 + 5)
	set, err := labels.PodLabels(labels.Pod{Namespace: "a", Cluster: "east", Labels: map[string]string{"app": "api"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := pol.SetIdentities(map[identity.ID]labels.Set{theirs: set}, nil); err != nil {
		t.Fatal(err)
	}
	if err := rules.Apply([]policy.Change{cnp(t, "api", "a", `{endpointSelector: {}, egress: [{
		toEndpoints: [{matchLabels: {app: api, io.cilium.k8s.policy.cluster: east}}], toPorts: [{ports: [{port: http, protocol: TCP}]}]}]}`)}); err != nil {
		t.Fatal(err)
	}
	cache, log := ipcache.New(), &testenv.Log{}
	named := NewNamedPorts(slog.New(slog.NewTextHandler(log, nil)), pol, cache)
	defer named.watch.Close()
	const addresses, each = 10, 100
	list := make([]netip.Prefix, addresses)
	for i := range list {
		list[i] = netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 2, 0, byte(i)}), 32)
	}
	for i := range addresses { // the highest first: what counts does not depend on the order
		claim := ipcache.Claim{Source: ipcache.ClusterMesh, Owner: "east", Identity: theirs, NamedPorts: []ipcache.NamedPort{{Name: "dns", Port: 53, Protocol: "UDP"}}}
		for j := range each {
			claim.NamedPorts = append(claim.NamedPorts, ipcache.NamedPort{Name: "http", Port: uint16(1000 + (addresses-1-i)*each + j), Protocol: "TCP"})
		}
		if _, err := cache.Upsert(list[i], claim); err != nil {
			t.Fatal(err)
		}
		named.Sync()
	}
	check := func(when string, want int, lowest uint16) {
		t.Helper()
		rows, err := kernel.Endpoints()
		if err != nil || len(rows) != 1 || rows[0].Locked {
			t.Fatal(when, rows, err)
		}
		sets, err := kernel.RuleSets()
		if err != nil {
			t.Fatal(err)
		}
		for _, rs := range sets {
			if rs.ID != rows[0].RuleSet {
				continue
			}
			got := 0
			for k := range rs.Entries {
				if identity.ID(k.Identity) != theirs {
					continue
				}
				if got++; k.Port < lowest || k.Port >= lowest+maxMeshPorts {
					t.Errorf("%s: an entry for port %d", when, k.Port)
				}
			}
			if got != want {
				t.Errorf("%s: %d entries, want %d", when, got, want)
			}
		}
	}
	check("all", maxMeshPorts, 1000)
	if n := strings.Count(log.String(), "too many ports of one name"); n != 1 {
		t.Errorf("%d complaints, want one:\n%s", n, log.String())
	}
	if got, want := named.refused[theirs], addresses*each-maxMeshPorts; got != want {
		t.Errorf("%d ports are refused, want %d", got, want)
	}
	cache.Delete(list[addresses-1], ipcache.ClusterMesh, "east") // that with the lowest ports
	named.Sync()
	check("without the lowest", maxMeshPorts, 1000+each)
	for _, p := range list {
		cache.Delete(p, ipcache.ClusterMesh, "east")
	}
	named.Sync()
	check("none", 0, 0)
	if len(named.refused)+len(named.byID)+len(named.byPrefix) > 0 {
		t.Errorf("something is left: %v %v %v", named.refused, named.byID, named.byPrefix)
	}
}

// TestUnion: of what other clusters say each name and protocol has a bound of its own; of what this
// cluster says nothing is left out.
func TestUnion(t *testing.T) {
	t.Parallel()
	list := func(name string, proto uint8, from, n int) string {
		var ports []policy.NamedPort
		for i := range n {
			ports = append(ports, policy.NamedPort{Name: name, Proto: proto, Port: uint16(from + i)})
		}
		return policy.FormatNamedPorts(ports)
	}
	const beyond = maxMeshPorts + 1
	for _, tt := range []struct {
		what    string
		counts  map[portsOf]int
		want    string
		refused int
	}{
		{"nothing", nil, "", 0},
		{"of this cluster", map[portsOf]int{{text: list("web", 6, 1, beyond)}: 1}, list("web", 6, 1, beyond), 0},
		{"of another", map[portsOf]int{{text: list("web", 6, 1, beyond), mesh: true}: 1}, list("web", 6, 1, maxMeshPorts), 1},
		{
			"of both", map[portsOf]int{{text: list("web", 6, beyond, 1)}: 1, {text: list("web", 6, 1, beyond), mesh: true}: 1},
			list("web", 6, 1, beyond), 1,
		},
		{
			"of two protocols", map[portsOf]int{{text: list("web", 6, 1, maxMeshPorts), mesh: true}: 1, {text: list("web", 17, 1, maxMeshPorts), mesh: true}: 1},
			list("web", 6, 1, maxMeshPorts) + "_" + list("web", 17, 1, maxMeshPorts), 0,
		},
		{
			"of two names", map[portsOf]int{{text: list("a", 6, 1, beyond), mesh: true}: 1, {text: list("b", 6, 1, beyond), mesh: true}: 1},
			list("a", 6, 1, maxMeshPorts) + "_" + list("b", 6, 1, maxMeshPorts), 2,
		},
		{
			"the same twice", map[portsOf]int{{text: list("web", 6, 1, maxMeshPorts), mesh: true}: 1, {text: list("web", 6, 2, 9), mesh: true}: 1},
			list("web", 6, 1, maxMeshPorts), 0,
		},
	} {
		if got, refused := union(tt.counts); got != tt.want || refused != tt.refused {
			t.Errorf("%s: %d refused, want %d\ngot  %s\nwant %s", tt.what, refused, tt.refused, got, tt.want)
		}
	}
}
