package ipcache

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/testenv"
)

func TestMain(m *testing.M) { testenv.VerifyTestMain(m) }

func ip(s string) netip.Addr { return netip.MustParseAddr(s) }

func pfx(s string) netip.Prefix { return netip.MustParsePrefix(s) }

// dump returns the rows for the kernel as text.
func dump(c *Cache) map[string]string {
	m := map[string]string{}
	for p, e := range c.All() {
		r := Row(p, e, true)
		s := fmt.Sprint(r.Identity)
		if r.TunnelEndpoint.IsValid() {
			s += " via " + r.TunnelEndpoint.String()
		}
		m[p.String()] = s
	}
	return m
}

func want(t *testing.T, c *Cache, rows map[string]string) {
	t.Helper()
	if got := dump(c); !maps.Equal(got, rows) {
		t.Errorf("got  %v\nwant %v", got, rows)
	}
}

func TestPrecedence(t *testing.T) {
	t.Parallel()
	p := pfx("10.0.0.1/32")
	host := ip("192.0.2.1")
	claims := []Claim{
		{Source: Restored, Identity: 10},
		{Source: Generated, Identity: 11},
		{Source: KVStore, Identity: 300, Host: host},
		{Source: Endpoint, Owner: "a", Identity: 301},
		{Source: Endpoint, Owner: "b", Identity: 302},
		{Source: Host, Identity: identity.Host},
	}
	winners := []string{"10", "11", "300 via 192.0.2.1", "301", "301", "1"}
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 5))
		c := New()
		made := map[int]bool{}
		for range 60 {
			i := r.IntN(len(claims))
			if made[i] {
				c.Delete(p, claims[i].Source, claims[i].Owner)
				delete(made, i)
			} else {
				if _, err := c.Upsert(p, claims[i]); err != nil {
					t.Fatal(err)
				}
				made[i] = true
			}
			rows := map[string]string{}
			for i := range claims {
				if made[i] && (i != 4 || !made[3]) {
					rows[p.String()] = winners[i]
				}
				if i == 4 && made[4] && !made[3] {
					rows[p.String()] = "302"
				}
			}
			want(t, c, rows)
		}
		for _, cl := range claims {
			c.Delete(p, cl.Source, cl.Owner)
		}
		if c.Table().Len() != 0 || len(c.rivals) != 0 || len(c.generated) != 0 || c.lengths != [2][129]int{} {
			t.Errorf("left over: %+v", c)
		}
	}
}

func TestInvalidClaims(t *testing.T) {
	t.Parallel()
	c := New()
	ok := Claim{Source: KVStore, Identity: 300}
	for name, tt := range map[string]struct {
		p  netip.Prefix
		cl Claim
	}{
		"nothing":     {netip.Prefix{}, ok},
		"host bits":   {pfx("10.0.0.1/24"), ok},
		"mapped":      {pfx("::ffff:10.0.0.1/128"), ok},
		"no source":   {pfx("10.0.0.1/32"), Claim{Identity: 1}},
		"no identity": {pfx("10.0.0.1/32"), Claim{Source: KVStore}},
		"odd source":  {pfx("10.0.0.1/32"), Claim{Source: 99, Identity: 1}},
	} {
		if _, err := c.Upsert(tt.p, tt.cl); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := c.UpsertGenerated("policy", map[netip.Prefix]identity.ID{pfx("10.0.0.0/8"): 0}); !errors.Is(err, ErrInvalid) {
		t.Errorf("generated without identity: %v", err)
	}
	want(t, c, map[string]string{})
}

// TestNodesAndGenerated: a prefix that a rule names inside of another node's pod network is what
// the network is, and not outside of the cluster: its pods that are not observed yet would pass for
// it, to the rules of everybody. Whichever comes first, and it has its own identity when the
// network is gone.
func TestNodesAndGenerated(t *testing.T) {
	t.Parallel()
	c := New()
	if _, err := c.UpsertGenerated("policy", map[netip.Prefix]identity.ID{
		pfx("10.0.1.128/25"): 1<<24 + 1, // inside a peer's pods
		pfx("10.0.1.0/24"):   1<<24 + 2, // just those
		pfx("10.0.0.0/8"):    1<<24 + 3, // around them
		pfx("10.0.2.0/28"):   1<<24 + 4,
	}); err != nil {
		t.Fatal(err)
	}
	base := map[string]string{
		"10.0.1.128/25": "16777217", "10.0.1.0/24": "16777218", "10.0.0.0/8": "16777219", "10.0.2.0/28": "16777220",
	}
	want(t, c, base)
	with := func(changes map[string]string) map[string]string {
		m := maps.Clone(base)
		maps.Copy(m, changes)
		return m
	}

	n2 := Node{
		Name: "n2", Host: ip("192.0.2.2"), PodCIDRs: []netip.Prefix{pfx("10.0.1.0/24"), pfx("fd00:1::/64"), {}},
		IPs: []netip.Addr{ip("192.0.2.2"), ip("2001:db8::2"), {}}, RouterIPs: []netip.Addr{ip("10.0.1.1")},
	}
	all := with(map[string]string{
		"10.0.1.128/25": "3 via 192.0.2.2", "10.0.1.0/24": "3 via 192.0.2.2",
		"fd00:1::/64": "3 via 192.0.2.2", "10.0.1.1/32": "6 via 192.0.2.2", "192.0.2.2/32": "6", "2001:db8::2/128": "6",
	})
	c.SetNode(n2)
	want(t, c, all)
	if _, err := c.UpsertGenerated("policy", map[netip.Prefix]identity.ID{pfx("10.0.1.64/26"): 1<<24 + 5, pfx("10.0.1.0/24"): 1<<24 + 2}); err != nil {
		t.Fatal(err)
	}
	later := maps.Clone(all)
	later["10.0.1.64/26"] = "3 via 192.0.2.2"
	want(t, c, later)
	c.Delete(pfx("10.0.1.64/26"), Generated, "policy")
	want(t, c, all)
	rev := c.Table().Revision()
	c.SetNode(n2)
	if c.Table().Revision() != rev {
		t.Error("the same node again is a change")
	}

	// The node moves to another address and another pod network.
	n2.Host, n2.IPs = ip("192.0.2.3"), []netip.Addr{ip("192.0.2.3")}
	n2.PodCIDRs = []netip.Prefix{pfx("10.0.2.0/24")}
	n2.RouterIPs = []netip.Addr{ip("10.0.2.1")}
	c.SetNode(n2)
	want(t, c, with(map[string]string{
		"10.0.2.0/28": "3 via 192.0.2.3", "10.0.2.0/24": "3 via 192.0.2.3",
		"10.0.2.1/32": "6 via 192.0.2.3", "192.0.2.3/32": "6",
	}))

	// The local node has no pod network to find elsewhere.
	c.SetNode(Node{Name: "n1", Local: true, Host: ip("192.0.2.1"), IPs: []netip.Addr{ip("192.0.2.1")},
		RouterIPs: []netip.Addr{ip("10.0.0.1")}, PodCIDRs: []netip.Prefix{pfx("10.0.0.0/24")}})
	c.DeleteNode("n2")
	c.DeleteNode("n2")
	want(t, c, with(map[string]string{"192.0.2.1/32": "1", "10.0.0.1/32": "1"}))

	// Two nodes claim a network; when one goes the other has it.
	c.DeleteNode("n1")
	a := Node{Name: "a", Host: ip("192.0.2.7"), PodCIDRs: []netip.Prefix{pfx("10.0.2.0/24")}}
	b := a
	b.Name, b.Host = "b", ip("192.0.2.8")
	c.SetNode(b)
	c.SetNode(a)
	want(t, c, with(map[string]string{"10.0.2.0/28": "3 via 192.0.2.7", "10.0.2.0/24": "3 via 192.0.2.7"}))
	c.DeleteNode("a")
	want(t, c, with(map[string]string{"10.0.2.0/28": "3 via 192.0.2.8", "10.0.2.0/24": "3 via 192.0.2.8"}))
	c.DeleteNode("b")
	want(t, c, base)
	for p := range base {
		c.Delete(pfx(p), Generated, "policy")
	}
	if len(c.nodes) != 0 || len(c.podCIDRs) != 0 || len(c.generated) != 0 || c.Table().Len() != 0 {
		t.Errorf("left over: %+v", c)
	}
}

// TestNodesOfOtherClusters: a node of another cluster has no address that a pod or a node of this
// cluster has, whoever comes first.
func TestNodesOfOtherClusters(t *testing.T) {
	t.Parallel()
	pod, other := pfx("10.0.0.9/32"), pfx("10.0.0.8/32")
	foreign := func(c *Cache) {
		c.SetNode(Node{Name: "b/n1", Foreign: true, Host: ip("203.0.113.1"), IPs: []netip.Addr{ip("203.0.113.1"), ip("10.0.0.9"), ip("192.0.2.2")}, RouterIPs: []netip.Addr{ip("10.0.0.8")}})
	}
	own := func(c *Cache) {
		c.SetNode(Node{Name: "a/n2", Host: ip("192.0.2.2"), IPs: []netip.Addr{ip("192.0.2.2")}})
		for p, id := range map[netip.Prefix]identity.ID{pod: 300, other: 301} {
			if _, err := c.Upsert(p, Claim{Source: KVStore, Identity: id, Host: ip("192.0.2.2")}); err != nil {
				t.Fatal(err)
			}
		}
	}
	rows := map[string]string{"10.0.0.9/32": "300 via 192.0.2.2", "10.0.0.8/32": "301 via 192.0.2.2", "192.0.2.2/32": "6", "203.0.113.1/32": "6"}
	for _, order := range [][]func(*Cache){{foreign, own}, {own, foreign}} {
		c := New()
		for _, do := range order {
			do(c)
		}
		want(t, c, rows)
		if e, _ := c.Table().Get(pfx("192.0.2.2/32")); e.Owner() != "a/n2" {
			t.Errorf("a node's address is that of %s", e.Owner())
		}
		// Of another cluster's own pods and nodes the node counts.
		if _, err := c.Upsert(pfx("203.0.113.1/32"), Claim{Source: ClusterMesh, Owner: "b", Identity: 1<<17 + 5, Host: ip("203.0.113.1")}); err != nil {
			t.Fatal(err)
		}
		want(t, c, rows)
	}
}

func TestEntryKeepsTheClaim(t *testing.T) {
	t.Parallel()
	c := New()
	in := Claim{
		Source: KVStore, Owner: "o", Identity: 300, Host: ip("192.0.2.1"), EncryptKey: 5,
		Namespace: "ns", Pod: "p", ServiceAccount: "sa",
		NamedPorts: []NamedPort{{"http", 80, "TCP"}, {"dns", 53, "UDP"}},
	}
	rev, err := c.Upsert(pfx("10.0.0.1/32"), in)
	if err != nil {
		t.Fatal(err)
	}
	_, e, ok := c.Lookup(ip("10.0.0.1"))
	if !ok || fmt.Sprint(e.Claim()) != fmt.Sprint(in) {
		t.Errorf("got %+v, want %+v", e.Claim(), in)
	}
	if again, err := c.Upsert(pfx("10.0.0.1/32"), in); again != rev || err != nil {
		t.Errorf("the same claim again is a change: %d, %v", again, err)
	}
	in.NamedPorts = in.NamedPorts[:1]
	if again, err := c.Upsert(pfx("10.0.0.1/32"), in); again != rev+1 || err != nil {
		t.Errorf("another port is no change: %d, %v", again, err)
	}
	var zero Entry
	if zero.Host().IsValid() || zero.Owner() != "" || zero.NamedPorts() != nil || zero.Claim().Pod != "" {
		t.Error("the zero entry says something")
	}
}

// TestModel compares random claims with a naive model: a list of claims, searched each time.
func TestModel(t *testing.T) {
	t.Parallel()
	type claim struct {
		p  netip.Prefix
		cl Claim
	}
	var prefixes []netip.Prefix
	for _, s := range []string{"0.0.0.0/0", "10.0.0.0/8", "10.0.0.0/24", "10.0.0.0/26", "10.0.0.7/32", "10.0.1.0/24",
		"10.0.1.9/32", "::/0", "fd00::/64", "fd00::/100", "fd00::7/128"} {
		prefixes = append(prefixes, pfx(s))
	}
	hosts := []netip.Addr{{}, ip("192.0.2.1"), ip("192.0.2.2")}
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 6))
		c := New()
		var claims []claim
		nodes := map[string]Node{}
		remove := func(p netip.Prefix, s Source, owner string) {
			claims = slices.DeleteFunc(claims, func(x claim) bool { return x.p == p && x.cl.Source == s && x.cl.Owner == owner })
		}
		for step := range 200 {
			p := prefixes[r.IntN(len(prefixes))]
			s := []Source{Restored, Generated, KVStore, Endpoint, Host}[r.IntN(5)]
			owner := string(rune('a' + r.IntN(2)))
			name := string(rune('x' + r.IntN(2)))
			switch r.IntN(6) {
			case 0, 1, 2:
				cl := Claim{Source: s, Owner: owner, Identity: identity.ID(1 + r.IntN(9))}
				if s == KVStore {
					cl.Host = hosts[r.IntN(3)]
				}
				remove(p, s, owner)
				claims = append(claims, claim{p, cl})
				if _, err := c.Upsert(p, cl); err != nil {
					t.Fatal(err)
				}
			case 3:
				remove(p, s, owner)
				c.Delete(p, s, owner)
			case 4:
				n := Node{Name: name, Host: hosts[1+r.IntN(2)], PodCIDRs: []netip.Prefix{prefixes[r.IntN(len(prefixes))]}, IPs: []netip.Addr{ip("10.0.0.7")}}
				nodes[name] = n
				c.SetNode(n)
			case 5:
				delete(nodes, name)
				c.DeleteNode(name)
			}

			now := slices.Clone(claims)
			for _, n := range nodes {
				now = append(now, claim{n.PodCIDRs[0], Claim{Source: PodCIDR, Owner: n.Name, Identity: 3, Host: n.Host}})
				single := claim{Single(n.IPs[0]), Claim{Source: RemoteNode, Owner: n.Name, Identity: 6}}
				if single.p == n.PodCIDRs[0] { // the address is said last
					now[len(now)-1] = single
				} else {
					now = append(now, single)
				}
			}
			best := func(p netip.Prefix, only Source) (b claim, found bool) {
				for _, x := range now {
					if x.p == p && (only == 0 || x.cl.Source == only) &&
						(!found || x.cl.Source > b.cl.Source || x.cl.Source == b.cl.Source && x.cl.Owner < b.cl.Owner) {
						b, found = x, true
					}
				}
				return b, found
			}
			model := map[string]string{}
			winner := map[netip.Prefix]identity.ID{}
			for _, x := range now {
				b, _ := best(x.p, 0)
				id, host := b.cl.Identity, b.cl.Host
				if b.cl.Source == Generated {
					for bits := x.p.Bits(); bits >= 0; bits-- {
						n, _ := x.p.Addr().Prefix(bits)
						if around, ok := best(n, PodCIDR); ok {
							id, host = around.cl.Identity, around.cl.Host
							break
						}
					}
				}
				s := fmt.Sprint(uint32(id))
				if host.IsValid() {
					s += " via " + host.String()
				}
				model[x.p.String()], winner[x.p] = s, id
			}
			if got := dump(c); !maps.Equal(got, model) {
				t.Fatalf("seed %d step %d:\ngot  %v\nwant %v", seed, step, got, model)
			}
			for _, a := range []netip.Addr{ip("10.0.0.7"), ip("10.0.0.70"), ip("10.9.9.9"), ip("1.1.1.1"), ip("fd00::7"), ip("fd00::9"), ip("::ffff:10.0.1.9")} {
				var long netip.Prefix
				for p := range winner {
					if p.Contains(a.Unmap()) && (!long.IsValid() || p.Bits() > long.Bits()) {
						long = p
					}
				}
				p, e, ok := c.Lookup(a)
				if p != long || ok != long.IsValid() || e.Identity != winner[long] {
					t.Fatalf("seed %d step %d: Lookup(%v) = %v %d %v, want %v %d", seed, step, a, p, e.Identity, ok, long, winner[long])
				}
			}
		}
	}
}

func TestRow(t *testing.T) {
	t.Parallel()
	host := ip("192.0.2.1")
	for _, tt := range []struct {
		p      string
		source Source
		tunnel bool
		want   netip.Addr
	}{
		{"10.0.0.1/32", KVStore, true, host},
		{"10.0.0.1/32", KVStore, false, netip.Addr{}},
		{"10.0.0.0/24", PodCIDR, true, host},
		{"192.0.2.1/32", KVStore, true, netip.Addr{}}, // the node itself
		{"10.0.0.1/32", Endpoint, true, netip.Addr{}},
	} {
		got := Row(pfx(tt.p), compact(Claim{Source: tt.source, Identity: 7, Host: host}), tt.tunnel)
		if want := (datapath.IPCacheEntry{Prefix: pfx(tt.p), Identity: 7, TunnelEndpoint: tt.want}); got != want {
			t.Errorf("%+v: %+v", tt, got)
		}
	}
}

// TestHealthEndpoints: the health endpoint of another node is reached by that node, and has the
// identity of its own; a pod that has the address counts before it.
func TestHealthEndpoints(t *testing.T) {
	t.Parallel()
	c := New()
	health, host := netip.MustParseAddr("10.0.2.9"), netip.MustParseAddr("192.0.2.2")
	other := Node{Name: "c/n2", IPs: []netip.Addr{host}, PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.2.0/24")}, HealthIPs: []netip.Addr{health}, Host: host}
	c.SetNode(other)
	want := func(what string, id identity.ID) {
		t.Helper()
		if _, e, ok := c.Lookup(health); !ok || e.Identity != id || e.Host() != host {
			t.Errorf("%s: identity %s at %s, want %s", what, e.Identity, e.Host(), id)
		}
	}
	want("announced", identity.Health)
	if _, err := c.Upsert(Single(health), Claim{Source: KVStore, Owner: "x", Identity: 300, Host: host}); err != nil {
		t.Fatal(err)
	}
	want("a pod has the address", 300)
	c.Delete(Single(health), KVStore, "x")
	want("the pod is gone", identity.Health)
	other.HealthIPs = nil
	c.SetNode(other)
	want("taken back", identity.Unmanaged)
}

// Claim returns the claim in full. Its Host is that of [Entry.Host].
func (e Entry) Claim() Claim {
	c := Claim{
		Source: e.Source, Owner: e.Owner(), Identity: e.Identity, Host: e.Host(), EncryptKey: e.EncryptKey,
	}
	if e.pod != nil {
		c.Namespace, c.Pod, c.ServiceAccount = e.pod.namespace.Value(), e.pod.name, e.pod.account.Value()
		c.NamedPorts = e.NamedPorts()
	}
	return c
}
