package fabric

import (
	"net/netip"
	"os"
	"slices"
	"testing"

	"github.com/hawser-net/hawser/internal/sandbox/cloud"
	"github.com/hawser-net/hawser/internal/testenv"
)

// ipv6 gives an instance's first interface an IPv6 address, and its second one as configure does
// some of a prefix.
func (i *instance) ipv6(t *testing.T, own string) {
	t.Helper()
	i.first.IPv6 = []netip.Addr{netip.MustParseAddr(own)}
	for _, path := range []string{"conf/default/accept_dad", "conf/eth0/accept_dad"} {
		i.ns.Must(t, func() error { return os.WriteFile("/proc/sys/net/ipv6/"+path, []byte("0"), 0o644) })
	}
	in(t, i.ns, "ip", "addr", "add", own+"/128", "dev", "eth0", "nodad")
	in(t, i.ns, "ip", "-6", "route", "add", "default", "via", IPv6Gateway().String(), "dev", "eth0")
}

func (i instance) configureIPv6(t *testing.T, dev string, addrs ...string) {
	t.Helper()
	in(t, i.ns, "ip", "link", "set", dev, "up")
	in(t, i.ns, "ip", "-6", "route", "replace", "default", "via", IPv6Gateway().String(), "dev", dev, "onlink", "table", "100")
	for _, a := range addrs {
		in(t, i.ns, "ip", "addr", "add", a+"/128", "dev", "lo", "nodad")
		in(t, i.ns, "ip", "-6", "rule", "add", "from", a, "lookup", "100", "priority", "111")
	}
}

// TestIPv6: an address of a delegated prefix, whichever, is reached at the interface that has the
// prefix and nowhere else; what comes under an address of no prefix, or of another interface, is
// dropped; a prefix that moves is led to whom it has moved to.
func TestIPv6(t *testing.T) {
	t.Parallel()
	testenv.RequireRoot(t)
	router := testenv.NewNetNS(t)
	for path, value := range map[string]string{"ipv4/ip_forward": "1", "ipv4/conf/all/rp_filter": "0", "ipv6/conf/all/forwarding": "1"} {
		router.Must(t, func() error { return os.WriteFile("/proc/sys/net/"+path, []byte(value), 0o644) })
	}
	in(t, router, "ip", "addr", "add", "10.9.0.1/32", "dev", "lo")
	a, b := newInstance(t, router, 1), newInstance(t, router, 2)
	a.ipv6(t, "2001:db8:0:9::11")
	b.ipv6(t, "2001:db8:0:9::12")
	f := Fabric{Router: router.Path(), Hosts: []Host{a.host, b.host}, Gateway: func(p netip.Prefix) netip.Addr { return p.Addr().Next() }}
	view := cloud.View{Subnets: []cloud.Subnet{
		{ID: "nodes", CIDR: netip.MustParsePrefix("10.9.0.0/24"), IPv6: netip.MustParsePrefix("2001:db8:0:9::/64")},
		{ID: "pods", CIDR: netip.MustParsePrefix("10.8.0.0/24"), IPv6: netip.MustParsePrefix("2001:db8:0:8::/64")},
	}}
	apply := func(more ...cloud.Interface) {
		t.Helper()
		view.Interfaces = append([]cloud.Interface{a.first, b.first}, more...)
		for range 2 { // the second finds nothing to do, and breaks nothing
			if err := f.Apply(view); err != nil {
				t.Fatal(err)
			}
		}
	}
	apply()
	if !reaches(t, a, "2001:db8:0:9::11", b, "2001:db8:0:9::12") {
		t.Fatal("the first interfaces do not reach each other")
	}
	a1, b1 := a.eni(1, "10.8.0.5"), b.eni(1, "10.8.0.7")
	pa, pb := netip.MustParsePrefix("2001:db8:0:8:1::/80"), netip.MustParsePrefix("2001:db8:0:8:2::/80")
	a1.IPv6Prefixes, b1.IPv6Prefixes = []netip.Prefix{pa}, []netip.Prefix{pb}
	apply(a1, b1)
	a.configureIPv6(t, "eth1", "2001:db8:0:8:1::6", "2001:db8:0:8:1:ffff:ffff:ffff", "2001:db8:0:8:7::6")
	b.configureIPv6(t, "eth1", "2001:db8:0:8:2::8", "2001:db8:0:8:7::8")
	for _, src := range []string{"2001:db8:0:8:1::6", "2001:db8:0:8:1:ffff:ffff:ffff"} {
		if !reaches(t, a, src, b, "2001:db8:0:8:2::8") || !reaches(t, b, "2001:db8:0:9::12", a, src) {
			t.Errorf("%s of a prefix does not reach another, or is not reached", src)
		}
	}
	if reaches(t, a, "2001:db8:0:8:1::6", b, "2001:db8:0:8:7::8") {
		t.Error("an address is reached that is in no prefix")
	}
	if reaches(t, a, "2001:db8:0:8:7::6", b, "2001:db8:0:8:2::8") {
		t.Error("a packet passes under an address that is in no prefix")
	}
	a.configureIPv6(t, "eth1", "2001:db8:0:8:2::9")
	if reaches(t, a, "2001:db8:0:8:2::9", b, "2001:db8:0:9::12") {
		t.Error("a packet passes under an address of another instance's prefix")
	}
	in(t, a.ns, "ip", "-6", "route", "replace", "2001:db8:0:9::12", "via", IPv6Gateway().String(), "dev", "eth1", "onlink")
	if reaches(t, a, "2001:db8:0:9::11", b, "2001:db8:0:9::12") {
		t.Error("a packet passes under the address of another interface of the instance")
	}
	in(t, a.ns, "ip", "-6", "route", "del", "2001:db8:0:9::12")

	// A prefix moves to another instance, and one goes with its interface.
	a1.IPv6Prefixes, b1.IPv6Prefixes = nil, []netip.Prefix{pb, pa}
	apply(a1, b1)
	if reaches(t, b, "2001:db8:0:9::12", a, "2001:db8:0:8:1::6") {
		t.Error("an address is reached where its prefix was")
	}
	b.configureIPv6(t, "eth1", "2001:db8:0:8:1::7")
	if !reaches(t, b, "2001:db8:0:8:1::7", a, "2001:db8:0:9::11") || !reaches(t, a, "2001:db8:0:9::11", b, "2001:db8:0:8:1::7") {
		t.Error("an address is not reached where its prefix is now")
	}
	apply(a1)
	if slices.Contains(b.ns.LinkNames(t), "eth1") || reaches(t, a, "2001:db8:0:9::11", b, "2001:db8:0:8:1::7") {
		t.Error("an address is reached whose interface is gone")
	}
}
