package link

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hawser-net/hawser/internal/datapath"
)

// A bad peer costs its own routes, with an error that names it and the way out, and nothing else:
// neither the devices nor the routes of the others.
func TestSetNodeWithABadPeer(t *testing.T) {
	for name, test := range map[string]struct {
		tunnel bool
		change func(*node, *datapath.Node)
		peer   string
		says   []string
	}{
		"on another network": {
			change: func(_ *node, d *datapath.Node) { d.Peers[0].IPv4 = netip.MustParseAddr("198.51.100.9") },
			peer:   "two", says: []string{"node two", "eth0", "--auto-direct-node-routes=false", "--direct-routing-skip-unreachable"},
		},
		"on another network, IPv6": {
			change: func(_ *node, d *datapath.Node) { d.Peers[0].IPv6 = netip.MustParseAddr("2001:db8:ffff::9") },
			peer:   "two", says: []string{"node two", "--auto-direct-node-routes=false"},
		},
		"a foreign route in the way": {
			change: func(n *node, _ *datapath.Node) {
				n.output(t, "ip", "route", "add", "10.2.0.0/24", "via", "192.0.2.7", "proto", "bird")
			},
			peer: "two", says: []string{"10.2.0.0/24", "not Hawser's", "remove it"},
		},
		"a foreign route in the way, with a tunnel": {
			tunnel: true,
			change: func(n *node, _ *datapath.Node) {
				n.output(t, "ip", "route", "add", "10.2.0.0/24", "via", "192.0.2.7", "proto", "bird")
			},
			peer: "two", says: []string{"10.2.0.0/24", "not Hawser's"},
		},
		"a foreign route to this node's own network": {
			change: func(n *node, _ *datapath.Node) {
				n.output(t, "ip", "route", "add", "10.1.0.0/24", "via", "192.0.2.7", "proto", "bird")
			},
			says: []string{"10.1.0.0/24", "not Hawser's"},
		},
		"claims this node's network": {
			change: func(_ *node, d *datapath.Node) {
				d.Peers[0].PodCIDRs = []netip.Prefix{netip.MustParsePrefix("10.1.0.0/24"), netip.MustParsePrefix("fd00:2::/112")}
			},
			peer: "two", says: []string{"node two", "10.1.0.0/24", "this node's", "refused"},
		},
		"claims some of this node's network": {
			tunnel: true,
			change: func(_ *node, d *datapath.Node) {
				d.Peers[0].PodCIDRs = []netip.Prefix{netip.MustParsePrefix("10.1.0.128/25"), netip.MustParsePrefix("fd00:2::/112")}
			},
			peer: "two", says: []string{"node two", "10.1.0.128/25", "this node's", "refused"},
		},
		"claims more than this node's network": {
			change: func(_ *node, d *datapath.Node) {
				d.Peers[0].PodCIDRs = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00:2::/112")}
			},
			peer: "two", says: []string{"node two", "10.0.0.0/8", "this node's", "refused"},
		},
		"claims what another has": {
			change: func(_ *node, d *datapath.Node) {
				d.Peers[1].PodCIDRs = []netip.Prefix{netip.MustParsePrefix("10.2.0.0/24"), netip.MustParsePrefix("fd00:3::/112")}
			},
			peer: "three", says: []string{"node three", "10.2.0.0/24", "node two", "refused"},
		},
		"claims everything": {
			change: func(_ *node, d *datapath.Node) {
				d.Peers[0].PodCIDRs = append(d.Peers[0].PodCIDRs, netip.MustParsePrefix("0.0.0.0/0"))
			},
			peer: "two", says: []string{"node two", "0.0.0.0/0", "refused"},
		},
		"has no address of the family": {
			change: func(_ *node, d *datapath.Node) { d.Peers[0].IPv6 = netip.Addr{} },
			peer:   "two", says: []string{"node two", "fd00:2::/112", "no address"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			// Not in parallel: the library for nftables numbers sets by a variable that it does not
			// guard.
			n := newNode(t)
			desired := nativeNode()
			if test.tunnel {
				desired = tunnelNode()
			}
			test.change(n, &desired)
			foreign := n.output(t, "ip", "route", "show", "proto", "bird")
			d, err := n.SetNode(desired)
			if d.HostIfIndex == 0 || d.NativeIfIndex == 0 {
				t.Errorf("no devices: %+v", d)
			}
			routes, rest := datapath.RouteErrors(err)
			if rest != nil {
				t.Errorf("the node does not come up: %v", rest)
			}
			if len(routes) != 1 || routes[0].Peer != test.peer {
				t.Fatalf("route errors %v, want one of peer %q", routes, test.peer)
			}
			for _, want := range test.says {
				if !strings.Contains(routes[0].Error(), want) {
					t.Errorf("the error does not say %q: %v", want, routes[0])
				}
			}
			if got := n.output(t, "ip", "route", "show", "proto", "bird"); got != foreign {
				t.Errorf("foreign routes were\n%s, are\n%s", foreign, got)
			}
			// The other peer is served, and the bad one as soon as it is good.
			good := "fd00:3::/112"
			if test.peer == "three" {
				good = "fd00:2::/112"
			}
			if out := n.output(t, "ip", "-6", "route", "show", "proto", "72"); !strings.Contains(out, good) {
				t.Errorf("no route to %s of the other peer:\n%s", good, out)
			}
			n.output(t, "ip", "route", "flush", "proto", "bird")
			desired = nativeNode()
			desired.Tunnel = test.tunnel
			_, err = n.SetNode(desired)
			must(t, err)
		})
	}
}

// Without direct routes there are none, in either family, and the former ones go. With skipping
// there are those that can be.
func TestDirectRoutes(t *testing.T) {
	n := newNode(t)
	toPeers := func() (out []string) {
		for line := range strings.Lines(n.output(t, "ip", "route", "show", "proto", "72") + n.output(t, "ip", "-6", "route", "show", "proto", "72")) {
			if fields := strings.Fields(line); fields[0] != "unreachable" {
				out = append(out, fields[0])
			}
		}
		slices.Sort(out)
		return out
	}
	desired := nativeNode()
	for _, step := range []struct {
		what   string
		change func()
		want   []string
	}{
		{"direct", func() {}, []string{"10.2.0.0/24", "10.3.0.0/24", "fd00:2::/112", "fd00:3::/112"}},
		{"left to the network", func() { desired.DirectRoutes = false }, nil},
		{"left to the network, peers elsewhere", func() {
			desired.Peers[0].IPv4, desired.Peers[0].IPv6 = netip.MustParseAddr("198.51.100.9"), netip.MustParseAddr("2001:db8:ffff::9")
		}, nil},
		{"direct, without those elsewhere", func() { desired.DirectRoutes, desired.SkipUnreachable = true, true }, []string{"10.3.0.0/24", "fd00:3::/112"}},
		{"a default route makes no peer reachable directly", func() {
			n.output(t, "ip", "route", "add", "default", "via", "192.0.2.2")
			n.output(t, "ip", "-6", "route", "add", "default", "via", "2001:db8::2")
		}, []string{"10.3.0.0/24", "fd00:3::/112"}},
		{"in a tunnel", func() { desired.Tunnel, desired.DirectRoutes = true, false },
			[]string{"10.1.0.1", "10.2.0.0/24", "10.3.0.0/24", "fd00:2::/112", "fd00:3::/112"}},
	} {
		step.change()
		_, err := n.SetNode(desired)
		must(t, err)
		if diff := cmp.Diff(step.want, toPeers()); diff != "" {
			t.Errorf("%s: routes (-want +got):\n%s", step.what, diff)
		}
	}
}
