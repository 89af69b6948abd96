package link

import (
	"net/netip"
	"strings"
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

// TestDeviceAddresses: by which of several addresses others know a node depends neither on VIPs
// that it has at the moment, nor on addresses that come later, nor on such as go soon.
func TestDeviceAddresses(t *testing.T) {
	n := newNode(t)
	want := func(what, want4, want6 string) {
		t.Helper()
		var list []netip.Addr
		n.in(t, func() (err error) { list, err = DeviceAddresses("eth0"); return err })
		first := map[bool]string{}
		for _, a := range list {
			if first[a.Is6()] == "" {
				first[a.Is6()] = a.String()
			}
		}
		if first[false] != want4 || first[true] != want6 {
			t.Errorf("%s: %s and %s, want %s and %s, of %v", what, first[false], first[true], want4, want6, list)
		}
	}
	add := func(args ...string) { n.output(t, "ip", append([]string{"addr", "add", "dev", "eth0"}, args...)...) }
	want("one of each family", "192.0.2.1", "2001:db8::1")
	add("192.0.2.99/32")
	add("2001:db8::99/128", "nodad")
	want("with VIPs", "192.0.2.1", "2001:db8::1")
	add("192.0.2.77/24")
	add("198.51.100.1/24")
	add("2001:db8:1::1/64", "nodad")
	want("with later ones", "192.0.2.1", "2001:db8::1")
	n.output(t, "ip", "addr", "change", "2001:db8::1/64", "dev", "eth0", "preferred_lft", "0", "valid_lft", "forever")
	want("that of IPv6 is deprecated", "192.0.2.1", "2001:db8:1::1")
	n.output(t, "ip", "addr", "del", "192.0.2.1/24", "dev", "eth0")
	n.output(t, "ip", "addr", "del", "2001:db8:1::1/64", "dev", "eth0")
	want("a VIP before a deprecated one", "198.51.100.1", "2001:db8::99")
	n.in(t, func() error {
		if _, err := DeviceAddresses("eth9"); err == nil || !strings.Contains(err.Error(), "eth9") {
			t.Errorf("a device that is not there: %v", err)
		}
		return nil
	})
}
