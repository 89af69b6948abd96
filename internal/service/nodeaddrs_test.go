package service_test

import (
	"net/netip"
	"testing"

	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/service"
)

// TestAddressesOfTheNode: node ports are not at services' addresses that are configured on the
// node, whichever came first, but always at those by which others know the node; and only at these
// does another node answer clients outside itself.
func TestAddressesOfTheNode(t *testing.T) {
	announced, second, vip := netip.MustParseAddr("192.168.0.1"), netip.MustParseAddr("192.168.7.1"), netip.MustParseAddr("10.96.0.10")
	dns := service.Service{Name: service.Name{Namespace: "x", Name: "dns"}, ClusterIPs: []netip.Addr{vip}, LoadBalancerIPs: []netip.Addr{announced}}
	web := service.Service{Name: service.Name{Namespace: "x", Name: "web"}, Ports: []service.Port{{Name: "p", Proto: 6, Port: 80, NodePort: 30080}}}
	e := service.New(service.Local{Node: "n1", Addrs: []netip.Addr{announced, second, vip}, Announced: []netip.Addr{announced}, Forwarding: service.ForwardDSR})
	e.Synced()
	check := func(when string, a netip.Addr, want, direct bool) {
		t.Helper()
		r, ok := e.Table().Get(datapath.ServiceFrontend{Addr: netip.AddrPortFrom(a, 30080), Proto: 6, Scope: datapath.ServiceExternal})
		if ok != want || r.DSR != direct {
			t.Errorf("%s: node port at %s: %t, direct: %t; want %t, %t", when, a, ok, r.DSR, want, direct)
		}
	}
	all := func(when string, atVIP bool) {
		t.Helper()
		check(when, announced, true, true)
		check(when, second, true, false)
		check(when, vip, atVIP, false)
	}
	e.UpsertService(web)
	all("before there is the other service", true)
	e.UpsertService(dns)
	all("the address is a service's", false)
	e.UpsertService(dns)
	all("it is set again", false)
	e.DeleteService(dns.Name)
	all("the service is gone", true)
	e.UpsertService(dns)
	moved := dns
	moved.ClusterIPs = nil
	e.UpsertService(moved)
	all("the service has another address", true)
}
