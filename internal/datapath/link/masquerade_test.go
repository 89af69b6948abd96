package link

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/hawser-net/hawser/internal/datapath"
)

// inThread calls fn on a thread in ns.
func inThread(t testing.TB, ns netns.NsHandle, fn func() error) {
	t.Helper()
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine
		err := netns.Set(ns)
		if err == nil {
			err = fn()
		}
		done <- err
	}()
	must(t, <-done)
}

// realPod is a pod with addresses and routes, so that it can send.
func (n *node) realPod(t testing.TB, number int) (datapath.Endpoint, netns.NsHandle) {
	t.Helper()
	ns := newNS(t)
	ep := n.podIn(t, number, ns)
	must(t, n.EnsureEndpoint(ep))
	h := handleAt(t, ns)
	link := linkNamed(t, h, fmt.Sprintf("p%d", number))
	must(t, h.LinkSetUp(link))
	for ip, gw := range map[netip.Addr]string{ep.IPv4: "10.1.0.1", ep.IPv6: "fd00:1::1"} {
		addr := &netlink.Addr{IPNet: &net.IPNet{IP: ip.AsSlice(), Mask: net.CIDRMask(ip.BitLen(), ip.BitLen())}}
		if ip.Is6() {
			addr.Flags = unix.IFA_F_NODAD
		}
		must(t, h.AddrAdd(link, addr))
		// In production the programs answer for the gateway.
		must(t, h.NeighSet(&netlink.Neigh{LinkIndex: link.Attrs().Index, State: unix.NUD_PERMANENT, IP: net.ParseIP(gw), HardwareAddr: ep.HostMAC}))
		must(t, h.RouteAdd(&netlink.Route{
			LinkIndex: link.Attrs().Index, Gw: net.ParseIP(gw), Flags: int(netlink.FLAG_ONLINK),
			Dst: &net.IPNet{IP: make(net.IP, ip.BitLen()/8), Mask: net.CIDRMask(0, ip.BitLen())},
		}))
	}
	return ep, ns
}

// sourceSeen opens a TCP connection from one namespace to an address in another and returns the
// address it comes from as the far side sees it.
func sourceSeen(t testing.TB, from, to netns.NsHandle, addr string) netip.Addr {
	t.Helper()
	var l net.Listener
	inThread(t, to, func() (err error) { l, err = net.Listen("tcp", net.JoinHostPort(addr, "0")); return err })
	defer l.Close()
	seen := make(chan netip.Addr, 1)
	go func() {
		defer close(seen)
		if c, err := l.Accept(); err == nil {
			seen <- netip.MustParseAddrPort(c.RemoteAddr().String()).Addr().Unmap()
			c.Close()
		}
	}()
	inThread(t, from, func() error {
		c, err := net.DialTimeout("tcp", l.Addr().String(), 5*time.Second)
		if err == nil {
			c.Close()
		}
		return err
	})
	return <-seen
}

func TestMasquerade(t *testing.T) {
	n := newNode(t)
	desired := tunnelNode()
	_, err := n.SetNode(desired)
	must(t, err)
	ep, pod := n.realPod(t, 7)
	eth := linkNamed(t, n.peer, "eth0").Attrs().Index
	for _, r := range [][2]string{{"10.1.0.0/24", "192.0.2.1"}, {"fd00:1::/112", "2001:db8::1"}} {
		_, dst, _ := net.ParseCIDR(r[0])
		must(t, n.peer.RouteAdd(&netlink.Route{LinkIndex: eth, Dst: dst, Gw: net.ParseIP(r[1])}))
	}
	check := func(what, to string, want string) {
		t.Helper()
		if got := sourceSeen(t, pod, n.far, to); got != netip.MustParseAddr(want) {
			t.Errorf("%s: %s sees %s, want %s", what, to, got, want)
		}
	}
	check("leaving the cluster", "192.0.2.2", "192.0.2.1")
	check("leaving the cluster", "2001:db8::2", "2001:db8::1")

	// A packet to a pod is not masqueraded, whether the pod is here or its network is the
	// cluster's.
	other, otherNS := n.realPod(t, 8)
	for _, f := range [][2]netip.Addr{{ep.IPv4, other.IPv4}, {ep.IPv6, other.IPv6}} {
		if got := sourceSeen(t, pod, otherNS, f[1].String()); got != f[0] {
			t.Errorf("pod to pod: seen from %s, want %s", got, f[0])
		}
	}
	desired.ClusterCIDRs = append(desired.ClusterCIDRs, netip.MustParsePrefix("192.0.2.0/25"), netip.MustParsePrefix("2001:db8::/64"))
	_, err = n.SetNode(desired)
	must(t, err)
	check("inside the cluster", "192.0.2.2", ep.IPv4.String())
	check("inside the cluster", "2001:db8::2", ep.IPv6.String())

	desired = tunnelNode()
	desired.Masquerade6 = false
	_, err = n.SetNode(desired)
	must(t, err)
	check("IPv4 only", "192.0.2.2", "192.0.2.1")
	check("IPv4 only", "2001:db8::2", ep.IPv6.String())

	desired.Masquerade4 = false
	_, err = n.SetNode(desired)
	must(t, err)
	if out := n.output(t, "nft", "list", "ruleset"); out != "" {
		t.Errorf("masquerading is off, but:\n%s", out)
	}
}

// A cluster has as many networks as nodes, and nodes' own addresses are not next to each other:
// each of them is in the set of those to which pods are not masqueraded, and no other is.
func TestManyNetworks(t *testing.T) {
	n := newNode(t)
	for _, many := range []int{1700, 6000, 3} {
		desired := tunnelNode()
		scattered := netip.MustParseAddr("100.64.0.0")
		scattered6 := netip.MustParseAddr("fd64::")
		for range many {
			desired.ClusterCIDRs = append(desired.ClusterCIDRs, netip.PrefixFrom(scattered, 32), netip.PrefixFrom(scattered6, 128))
			scattered, scattered6 = scattered.Next().Next(), scattered6.Next().Next()
		}
		if _, err := n.SetNode(desired); err != nil {
			t.Fatalf("%d nodes: %v", many, err)
		}
		c, err := n.nft()
		must(t, err)
		for _, m := range masqRules(desired, nil) {
			set, err := c.GetSetByName(&nftables.Table{Name: nftTable, Family: nftables.TableFamilyINet}, m.setName("cluster"))
			must(t, err)
			got, err := c.GetSetElements(set)
			must(t, err)
			if want := intervals(m.cluster); len(want) < 2*many || !sameElements(got, want) {
				t.Errorf("%d nodes: set %s has %d elements, want %d", many, set.Name, len(got), len(want))
			}
		}
	}
}

// A node without pods, which balances for others, has nothing that netfilter must track: rules that
// ask for the state of connections would turn that on.
func TestNoTableWithoutPods(t *testing.T) {
	n := newNode(t)
	desired := tunnelNode()
	desired.PodCIDRs = nil
	_, err := n.SetNode(desired)
	must(t, err)
	if out := n.output(t, "nft", "list", "ruleset"); out != "" {
		t.Errorf("there are no pods, but:\n%s", out)
	}
}

// Pods that are excepted keep their addresses outside of the cluster, those beside them do not; who
// is excepted changes without anything else changing.
func TestMasqueradeExceptions(t *testing.T) {
	n := newNode(t)
	six := netip.MustParseAddr("fd00:1::7")
	must(t, n.SetUnmasqueraded([]netip.Addr{six})) // before anything is there
	_, err := n.SetNode(tunnelNode())
	must(t, err)
	ep, pod := n.realPod(t, 7)
	_, other := n.realPod(t, 8)
	if ep.IPv6 != six {
		t.Fatalf("the pod has %s", ep.IPv6)
	}
	eth := linkNamed(t, n.peer, "eth0").Attrs().Index
	for _, r := range [][2]string{{"10.1.0.0/24", "192.0.2.1"}, {"fd00:1::/112", "2001:db8::1"}} {
		_, dst, _ := net.ParseCIDR(r[0])
		must(t, n.peer.RouteAdd(&netlink.Route{LinkIndex: eth, Dst: dst, Gw: net.ParseIP(r[1])}))
	}
	check := func(when string, four, six string) {
		t.Helper()
		for to, want := range map[string]string{"192.0.2.2": four, "2001:db8::2": six} {
			if got := sourceSeen(t, pod, n.far, to); got.String() != want {
				t.Errorf("%s: %s sees %s, want %s", when, to, got, want)
			}
		}
		for to, want := range map[string]string{"192.0.2.2": "192.0.2.1", "2001:db8::2": "2001:db8::1"} {
			if got := sourceSeen(t, other, n.far, to); got.String() != want {
				t.Errorf("%s: of the pod beside it %s sees %s, want %s", when, to, got, want)
			}
		}
	}
	check("IPv6 excepted", "192.0.2.1", ep.IPv6.String())
	handle := func() string { return n.output(t, "nft", "-s", "-a", "list", "chain", "inet", nftTable, nftChain) }
	before := handle()
	must(t, n.SetUnmasqueraded([]netip.Addr{ep.IPv6, ep.IPv4}))
	check("both excepted", ep.IPv4.String(), ep.IPv6.String())
	_, err = n.SetNode(tunnelNode())
	must(t, err)
	check("after a repair", ep.IPv4.String(), ep.IPv6.String())
	must(t, n.SetUnmasqueraded(nil))
	check("none excepted", "192.0.2.1", "2001:db8::1")
	if diff := cmp.Diff(before, handle()); diff != "" {
		t.Errorf("the rules were replaced (-before +after):\n%s", diff)
	}
}

// What others changed in our table is put right; a foreign table stays.
func TestMasqueradeRepair(t *testing.T) {
	n := newNode(t)
	_, err := n.SetNode(tunnelNode())
	must(t, err)
	n.output(t, "nft", "add", "table", "inet", "foreign")
	want := n.output(t, "nft", "list", "ruleset")
	for name, damage := range map[string][]string{
		"rule gone":       {"flush", "chain", "inet", nftTable, nftChain},
		"element added":   {"add", "element", "inet", nftTable, "cluster4", "{ 198.51.100.0/24 }"},
		"element gone":    {"flush", "set", "inet", nftTable, "pods6"},
		"pod excepted":    {"add", "element", "inet", nftTable, "unmasqueraded4", "{ 10.1.0.7 }"},
		"foreign rule":    {"add", "rule", "inet", nftTable, nftChain, "accept"},
		"chain gone":      {"delete", "chain", "inet", nftTable, nftChain},
		"any port":        {"flush", "chain", "inet", nftTable, nftMasquerade},
		"another port":    {"insert", "rule", "inet", nftTable, nftMasquerade, "tcp", "sport", "61000", "accept"},
		"tunnel tracked":  {"flush", "chain", "inet", nftTable, "tunnel_in"},
		"half tracked":    {"delete", "chain", "inet", nftTable, "tunnel_out"},
		"everything gone": {"delete", "table", "inet", nftTable},
	} {
		n.output(t, "nft", damage...)
		_, err := n.SetNode(tunnelNode())
		must(t, err)
		if diff := cmp.Diff(sortedTables(want), sortedTables(n.output(t, "nft", "list", "ruleset"))); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// The outer packets of the tunnel make no entries in connection tracking; all other packets do.
func TestTunnelUntracked(t *testing.T) {
	n := newNode(t)
	_, err := n.SetNode(tunnelNode())
	must(t, err)
	tracked := func(from netns.NsHandle, to string) (count int) {
		t.Helper()
		inThread(t, from, func() error {
			c, err := net.Dial("udp", to)
			if err != nil {
				return err
			}
			defer c.Close()
			_, err = c.Write([]byte("not a frame"))
			return err
		})
		inThread(t, n.ns, func() error {
			text, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_count")
			if err == nil {
				count, err = strconv.Atoi(strings.TrimSpace(string(text)))
			}
			return err
		})
		return count
	}
	for _, row := range []struct {
		what, to string
		from     netns.NsHandle
		want     int
	}{
		{"to the tunnel, IPv4", "192.0.2.1:8472", n.far, 0},
		{"to the tunnel, IPv6", "[2001:db8::1]:8472", n.far, 0},
		{"to another node's tunnel, IPv4", "192.0.2.2:8472", n.ns, 0},
		{"to another node's tunnel, IPv6", "[2001:db8::2]:8472", n.ns, 0},
		{"to another port", "192.0.2.1:8473", n.far, 1},
	} {
		if got := tracked(row.from, row.to); got != row.want {
			t.Errorf("%s: %d tracked flows, want %d", row.what, got, row.want)
		}
	}
}

// sortedTables makes two listings comparable whose tables come in another order.
func sortedTables(s string) map[string]bool {
	out := map[string]bool{}
	for table := range strings.SplitSeq(s, "\n}\n") {
		out[strings.TrimSpace(table)] = true
	}
	return out
}

func TestIntervals(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"":                                    "",
		"10.0.0.0/8":                          "10.0.0.0 11.0.0.0!",
		"10.1.0.0/16 10.0.0.0/8 10.2.3.4/8":   "10.0.0.0 11.0.0.0!",
		"10.0.1.0/24 10.0.0.0/24 10.0.3.0/24": "10.0.0.0 10.0.2.0! 10.0.3.0 10.0.4.0!",
		"255.255.255.0/24":                    "255.255.255.0",
		"0.0.0.0/0":                           "0.0.0.0",
		"fd00::/16 fd00:1::/64 fe00::/16":     "fd00:: fd01::! fe00:: fe01::!",
		"ffff::/16":                           "ffff::",
	} {
		var prefixes []netip.Prefix
		for _, s := range strings.Fields(in) {
			prefixes = append(prefixes, netip.MustParsePrefix(s))
		}
		var got []string
		for _, e := range intervals(disjoint(prefixes)) {
			ip, _ := netip.AddrFromSlice(e.Key)
			s := ip.String()
			if e.IntervalEnd {
				s += "!"
			}
			got = append(got, s)
		}
		if diff := cmp.Diff(want, strings.Join(got, " ")); diff != "" {
			t.Errorf("%s:\n%s", in, diff)
		}
	}
}

// FuzzIntervals compares interval sets with asking every prefix.
func FuzzIntervals(f *testing.F) {
	f.Add([]byte{10, 8, 10, 16, 11, 8}, byte(10))
	f.Fuzz(func(t *testing.T, raw []byte, probe byte) {
		var prefixes []netip.Prefix
		for i := 0; i+1 < len(raw) && i < 32; i += 2 {
			prefixes = append(prefixes, netip.PrefixFrom(netip.AddrFrom4([4]byte{raw[i]}), int(raw[i+1])%9))
		}
		ip := netip.AddrFrom4([4]byte{probe, 1, 2, 3})
		want := false
		for _, p := range prefixes {
			want = want || p.Contains(ip)
		}
		if got := inIntervals(intervals(disjoint(prefixes)), ip); got != want {
			t.Fatalf("%s in %v: %v, want %v", ip, prefixes, got, want)
		}
	})
}

func inIntervals(elems []nftables.SetElement, ip netip.Addr) bool {
	in := false
	for _, e := range elems {
		if at, _ := netip.AddrFromSlice(e.Key); at.Compare(ip) <= 0 {
			in = !e.IntervalEnd
		}
	}
	return in
}

// TestGuardOfBefore: the table by which agents before this one kept pods from addresses goes when
// RemoveGuard is called, and when all does.
func TestGuardOfBefore(t *testing.T) {
	n := newNode(t)
	_, err := n.SetNode(tunnelNode())
	must(t, err)
	for what, remove := range map[string]func() error{"alone": n.RemoveGuard, "all": n.CleanUp} {
		n.output(t, "nft", "add table inet hawser_guard; add table inet others")
		must(t, remove())
		if out := n.output(t, "nft", "list", "tables"); strings.Contains(out, "hawser_guard") || !strings.Contains(out, "others") {
			t.Errorf("%s: %s", what, out)
		}
		must(t, remove()) // which is none is no error
	}
}
