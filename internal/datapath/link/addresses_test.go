package link

import (
	"context"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/hawser-net/hawser/internal/testenv"
)

// TestNodeAddresses: the addresses by which others reach the node are those of all its devices, but
// for Hawser's own, pods' interfaces and that of services; and watchers are notified of a change,
// of such addresses alone.
func TestNodeAddresses(t *testing.T) {
	defer testenv.VerifyNone(t)
	n := newNode(t)
	_, err := n.SetNode(tunnelNode())
	must(t, err)
	must(t, n.EnsureEndpoint(n.pod(t, 5)))
	for _, line := range [][]string{
		{"link", "add", "eth1", "type", "veth", "peer", "name", "far1"}, {"link", "set", "far1", "up"}, {"link", "set", "eth1", "up"}, {"addr", "add", "198.51.100.1/24", "dev", "eth1"},
		{"tuntap", "add", "tun1", "mode", "tun"}, {"link", "set", "tun1", "up"}, {"addr", "add", "203.0.113.1/32", "dev", "tun1"},
		{"addr", "add", "203.0.113.9/32", "dev", "lo"},
		{"link", "add", "kube-ipvs0", "type", "veth", "peer", "name", "far2"}, {"addr", "add", "10.96.0.1/32", "dev", "kube-ipvs0"},
	} {
		n.output(t, "ip", line...)
	}
	list := func() (all []string, ethernet []string) {
		t.Helper()
		addrs, err := n.NodeAddresses()
		must(t, err)
		for _, a := range addrs {
			all = append(all, a.IP.String())
			if a.Ethernet {
				ethernet = append(ethernet, a.IP.String())
			}
		}
		slices.Sort(all)
		slices.Sort(ethernet)
		return all, ethernet
	}
	all, ethernet := list()
	if want := []string{"192.0.2.1", "198.51.100.1", "2001:db8::1", "203.0.113.1", "203.0.113.9"}; !slices.Equal(all, want) {
		t.Errorf("addresses %v, want %v", all, want)
	}
	if want := []string{"192.0.2.1", "198.51.100.1", "2001:db8::1"}; !slices.Equal(ethernet, want) {
		t.Errorf("addresses of devices with Ethernet headers %v, want %v", ethernet, want)
	}
	n.output(t, "ip", "addr", "add", "169.254.20.10/32", "dev", "lo")
	n.output(t, "ip", "route", "add", "local", "203.0.113.64/26", "dev", "lo")
	own, err := n.OwnPrefixes()
	must(t, err)
	for _, want := range []string{
		"192.0.2.1/32", "198.51.100.1/32", "198.51.100.255/32", "203.0.113.1/32", "203.0.113.9/32", "169.254.20.10/32", "203.0.113.64/26", "192.0.2.255/32", "10.1.0.1/32", "2001:db8::1/128", "2001:db8::/128",
	} {
		if !slices.Contains(own, netip.MustParsePrefix(want)) {
			t.Errorf("%s is not among what the kernel takes for the node: %v", want, own)
		}
	}
	if slices.ContainsFunc(own, func(p netip.Prefix) bool {
		return p.Contains(netip.MustParseAddr("127.0.0.1")) || p.Contains(netip.IPv6Loopback()) || p.Contains(netip.MustParseAddr("fe80::1")) || p.Addr().IsMulticast()
	}) {
		t.Errorf("what means another machine to each is among what the kernel takes for the node: %v", own)
	}
	d, err := n.SetNode(tunnelNode())
	must(t, err)
	if want := []int{linkNamed(t, n.h, "eth1").Attrs().Index}; !slices.Equal(d.Others, want) {
		t.Errorf("other devices %v, want %v", d.Others, want)
	}

	ctx, cancel := context.WithCancel(context.Background())
	changed, done := make(chan struct{}, 100), make(chan error, 1)
	go func() { done <- n.WatchAddresses(ctx, func() { changed <- struct{}{} }) }()
	// The watch has begun once it sees something.
	testenv.Eventually(t, time.Minute, func() string {
		n.output(t, "ip", "addr", "add", "198.51.100.2/24", "dev", "eth1")
		n.output(t, "ip", "addr", "del", "198.51.100.2/24", "dev", "eth1")
		select {
		case <-changed:
			return ""
		case <-time.After(500 * time.Millisecond):
			return "the watch sees nothing"
		}
	})
	for quiet := false; !quiet; {
		select {
		case <-changed:
		case <-time.After(time.Second):
			quiet = true
		}
	}
	eth1 := linkNamed(t, n.h, "eth1")
	local := &netlink.Addr{IPNet: single(netip.MustParseAddr("fe80::99"))}
	must(t, n.h.AddrAdd(eth1, local))
	select {
	case <-changed:
		t.Error("an address that others do not reach is reported")
	case <-time.After(time.Second):
	}
	must(t, n.h.AddrAdd(eth1, &netlink.Addr{IPNet: single(netip.MustParseAddr("198.51.100.3"))}))
	select {
	case <-changed:
	case <-time.After(time.Minute):
		t.Error("a new address is not reported")
	}
	if all, _ := list(); !slices.Contains(all, "198.51.100.3") {
		t.Errorf("the new address is not among %v", all)
	}
	cancel()
	must(t, <-done)
}
