package enforcement

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/datapath/fake"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/policy"
)

// benchServers are addresses outside of the cluster, of both families.
var benchServers = []netip.Prefix{netip.MustParsePrefix("192.0.2.9/32"), netip.MustParsePrefix("2001:db8::9/128")}

// at is the identity that the kernel has for an address.
func (m *crashBench) at(p netip.Prefix) identity.ID {
	m.t.Helper()
	known, err := m.rules.knownPrefixes()
	m.must(err)
	if id := around(p, known); id != 0 {
		return id
	}
	return m.rules.world(p)
}

// passes reports whether the first pod may send to an address if it has an identity.
func (m *crashBench) passes(p netip.Prefix, id identity.ID) bool {
	return m.node.Maps.Verdict(benchPods[0], datapath.Egress, uint32(id), p.Addr(), 6, 443) == datapath.ReasonForwarded
}

// servers sets the API servers and returns their identities.
func (m *crashBench) servers(list ...netip.Prefix) map[netip.Prefix]identity.ID {
	m.t.Helper()
	ids, err := m.rules.SetServers(list)
	m.must(err)
	if len(ids) != len(list) {
		m.t.Fatalf("%d of %d API servers have identities", len(ids), len(list))
	}
	return ids
}

// serverRules are rules of egress, with what passes to an address outside, to the same one if the
// API is served there, and if it is a node's.
var serverRules = []struct {
	name, spec              string
	outside, server, ofNode bool
}{
	{"its prefix", `"egress":[{"toCIDR":["192.0.2.9/32","2001:db8::9/128"]}]`, true, true, false},
	{"a wider prefix", `"egress":[{"toCIDR":["192.0.2.0/24","2001:db8::/32"]}]`, true, true, false},
	{"all prefixes", `"egress":[{"toCIDR":["0.0.0.0/0","::/0"]}]`, true, true, false},
	{"but its prefix", `"egress":[{"toCIDRSet":[{"cidr":"192.0.2.0/24","except":["192.0.2.9/32"]},{"cidr":"2001:db8::/32","except":["2001:db8::9/128"]}]}]`, false, false, false},
	{"world", `"egress":[{"toEntities":["world"]}]`, true, true, false},
	{"kube-apiserver", `"egress":[{"toEntities":["kube-apiserver"]}]`, false, true, true},
	{"kube-apiserver by label", `"egress":[{"toEndpoints":[{"matchLabels":{"reserved:kube-apiserver":""}}]}]`, false, true, true},
	{"remote-node", `"egress":[{"toEntities":["remote-node"]}]`, false, false, true},
	{"all pods", `"egress":[{"toEndpoints":[{}]}]`, false, false, false},
	{"deny world", `"egress":[{"toEntities":["all"]}],"egressDeny":[{"toEntities":["world"]}]`, false, false, true},
	{"deny its prefix", `"egress":[{"toEntities":["all"]}],"egressDeny":[{"toCIDR":["192.0.2.9/32","2001:db8::9/128"]}]`, false, false, true},
	{"deny all prefixes", `"egress":[{"toEntities":["all"]}],"egressDeny":[{"toCIDR":["0.0.0.0/0","::/0"]}]`, false, false, true},
	{"deny kube-apiserver", `"egress":[{"toEntities":["all"]}],"egressDeny":[{"toEntities":["kube-apiserver"]}]`, true, false, false},
	{"deny remote-node", `"egress":[{"toEntities":["all"]}],"egressDeny":[{"toEntities":["remote-node"]}]`, true, true, false},
}

// TestServersOutside: an API server outside of the cluster is what its address is to rules, and
// kube-apiserver too, whether the rules or the server come first; one on a node is not outside.
// After a restart it has the ID that it had.
func TestServersOutside(t *testing.T) {
	t.Parallel()
	for _, tt := range serverRules {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			m := &crashBench{t: t, rng: rand.New(rand.NewPCG(1, 1)), node: fake.New(), dir: t.TempDir()}
			rules := parsed(t, "p", `{"endpointSelector":{},`+tt.spec+`}`)
			none := policy.Change{Owner: "p"}
			m.start(nil)
			expect := func(what string, want bool) {
				t.Helper()
				for _, p := range benchServers {
					if id := m.at(p); m.passes(p, id) != want {
						t.Errorf("%s: to %s, which has identity %s, passes: %t", what, p, id, !want)
					}
					if m.passes(p, identity.KubeAPIServer) != tt.ofNode {
						t.Errorf("%s: to a node that serves the API passes: %t", what, !tt.ofNode)
					}
				}
			}
			m.must(m.rules.Apply([]policy.Change{rules}))
			expect("before", tt.outside)
			ids := m.servers(benchServers...)
			expect("served there", tt.server)
			for _, p := range benchServers {
				if ids[p] != m.at(p) || !ids[p].IsOutside() {
					t.Errorf("%s has identity %s in the kernel, and %s", p, m.at(p), ids[p])
				}
			}
			m.must(m.rules.Apply([]policy.Change{none}), m.rules.Apply([]policy.Change{rules}))
			expect("rules after the server", tt.server)

			// The next agent has not observed where the API is served: the kernel goes on.
			m.must(m.begin([]policy.Change{rules}))
			expect("after a restart", tt.server)
			again := m.servers(benchServers...)
			expect("observed again", tt.server)
			m.finish()
			expect("everything observed", tt.server)
			if diff := cmp.Diff(ids, again); diff != "" {
				t.Errorf("other IDs after a restart (-before +after):\n%s", diff)
			}

			// One of an earlier version took it for a node's, and so do its rule sets.
			for _, p := range benchServers {
				m.must(m.node.Maps.UpsertIPCache([]datapath.IPCacheEntry{{Prefix: p, Identity: uint32(identity.KubeAPIServer)}}))
			}
			m.must(m.begin(nil))
			m.servers(benchServers...)
			expect("by rules of an earlier version", tt.ofNode)
			m.must(m.rules.Apply([]policy.Change{rules}))
			m.finish()
			expect("by rules of this one", tt.server)

			m.servers()
			expect("no longer served there", tt.outside)
			m.must(m.rules.Apply([]policy.Change{none}))
			if n := m.rules.cidrs.alloc.Len(); n > 0 || len(m.rules.cidrs.users) > 0 {
				t.Errorf("%d identities are left over, %v", n, m.rules.cidrs.users)
			}
			for _, p := range benchServers {
				if id := m.at(p); id != m.rules.world(p) {
					t.Errorf("%s still has identity %s", p, id)
				}
			}
		})
	}
}

// TestServersBetweenWrites: whichever write is the last before an agent is killed, a pod that may
// not send to the API server does not.
func TestServersBetweenWrites(t *testing.T) {
	t.Parallel()
	for i, spec := range []string{
		`"egress":[{"toEntities":["all"]}],"egressDeny":[{"toEntities":["world"]}]`,
		`"egress":[{"toEntities":["all"]}],"egressDeny":[{"toCIDR":["192.0.2.0/24","2001:db8::/32"]}]`,
		`"egress":[{"toEntities":["remote-node"]}]`,
	} {
		rules := parsed(t, "p", `{"endpointSelector":{},`+spec+`}`)
		for writes := 0; ; writes++ {
			m := &crashBench{t: t, rng: rand.New(rand.NewPCG(uint64(writes), uint64(i))), node: fake.New(), dir: t.TempDir()}
			m.start([]policy.Change{rules})
			check := func(op string) {
				t.Helper()
				for _, p := range benchServers {
					if id := m.at(p); m.passes(p, id) {
						t.Fatalf("%s, killed before write %d, at %s: passes to %s, which has identity %s", spec, writes, op, p, id)
					}
				}
			}
			ended := m.killedAfter(writes, check, func() {
				m.servers(benchServers...)
				m.servers(benchServers[0])
				m.servers()
			})
			m.must(m.begin([]policy.Change{rules}))
			check("the restart")
			m.servers(benchServers...)
			check("observed again")
			m.finish()
			check("everything observed")
			if ended {
				break
			}
		}
	}
}

// TestServersCheckpoint: the IDs on disk are those of prefixes, as earlier versions write and read
// them.
func TestServersCheckpoint(t *testing.T) {
	t.Parallel()
	m := &crashBench{t: t, rng: rand.New(rand.NewPCG(1, 2)), node: fake.New(), dir: t.TempDir()}
	m.start(nil)
	ids := m.servers(benchServers...)
	cp, err := m.rules.readCheckpoint()
	m.must(err)
	got, want := map[identity.ID]string{}, map[identity.ID]string{}
	for _, e := range cp.Identities {
		got[e.ID] = fmt.Sprint(e.Labels)
	}
	for p, id := range maps.All(ids) {
		want[id] = fmt.Sprint(identity.CIDRLabels(p, true))
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("on disk (-want +got):\n%s", diff)
	}
}

// TestServersByBlock: an ipBlock selects an API server by its address, whatever identity that has.
func TestServersByBlock(t *testing.T) {
	t.Parallel()
	m := &crashBench{t: t, rng: rand.New(rand.NewPCG(1, 3)), node: fake.New(), dir: t.TempDir()}
	m.start(nil)
	p := benchServers[0]
	for want, rules := range map[bool]policy.Change{
		true: egress(t, "p", "192.0.2.9/32"), false: egress(t, "p", "192.0.2.0/24", "192.0.2.9/32"),
	} {
		m.must(m.rules.Apply([]policy.Change{rules}))
		m.servers()
		outside := m.at(p)
		server := m.servers(benchServers...)[p]
		for _, id := range []identity.ID{outside, server, identity.KubeAPIServer} {
			if m.passes(p, id) != want {
				t.Errorf("to %s with identity %s passes: %t", p, id, !want)
			}
		}
	}
}
