package link

import (
	"testing"

	"github.com/vishvananda/netlink"
)

// TestDefaultDevice: the default route of either family names the device towards other nodes;
// IPv4's goes first, and of several the one of the least metric.
func TestDefaultDevice(t *testing.T) {
	n := newNode(t)
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "eth1"
	must(t, n.h.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "eth1", PeerNamespace: netlink.NsFd(n.far)}))
	for _, args := range [][]string{{"link", "set", "eth1", "up"}, {"addr", "add", "198.51.100.1/24", "dev", "eth1"}, {"addr", "add", "2001:db8:1::1/64", "dev", "eth1", "nodad"}} {
		n.output(t, "ip", args...)
	}
	want := func(what, name string) {
		t.Helper()
		var got string
		n.in(t, func() (err error) { got, err = DefaultDevice(); return err })
		if got != name {
			t.Errorf("%s: %q, want %q", what, got, name)
		}
	}
	want("no default route", "")
	n.output(t, "ip", "-6", "route", "add", "unreachable", "default", "metric", "5")
	want("one that leads nowhere", "")
	n.output(t, "ip", "-6", "route", "add", "default", "via", "2001:db8:1::9", "dev", "eth1", "metric", "30")
	want("IPv6 only", "eth1")
	n.output(t, "ip", "-6", "route", "add", "default", "via", "2001:db8::9", "dev", "eth0", "metric", "20")
	want("another of less metric", "eth0")
	n.output(t, "ip", "route", "add", "default", "via", "198.51.100.9", "dev", "eth1", "table", "77")
	want("one of another table", "eth0")
	n.output(t, "ip", "route", "add", "default", "nexthop", "via", "198.51.100.9", "dev", "eth1", "nexthop", "via", "192.0.2.9", "dev", "eth0")
	want("IPv4 by several ways", "eth1")
}
