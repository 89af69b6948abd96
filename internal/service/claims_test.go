package service_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/service"
)

// TestNamedAddresses: an address that an object's author chose, however old the object is, leads to
// its backends only if the address is assigned to no other. So it diverts no packets for other
// services or host ports, nor, by a host port, for addresses that are not the node's.
func TestNamedAddresses(t *testing.T) {
	node, vip, balanced := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("10.96.0.50"), netip.MustParseAddr("198.51.100.1")
	given := func(name string, age int, change func(*service.Service)) service.Service {
		s := service.Service{
			Name: service.Name{Namespace: name, Name: name}, Created: time.Unix(int64(100-age), 0),
			Ports: []service.Port{{Name: "p", Proto: 6, Port: 80}},
		}
		change(&s)
		return s
	}
	evil := given("evil", 99, func(s *service.Service) {
		s.ExternalIPs = []netip.Addr{vip, node, balanced}
		for _, port := range []uint16{30080, 8443, 81} {
			s.Ports = append(s.Ports, service.Port{Name: "p", Proto: 6, Port: port})
		}
	})
	cluster := given("cluster", 1, func(s *service.Service) { s.ClusterIPs = []netip.Addr{vip}; s.Ports[0].NodePort = 30080 })
	balancer := given("balancer", 1, func(s *service.Service) { s.LoadBalancerIPs = []netip.Addr{node} })
	// That its author has named what it was assigned takes nothing from it.
	both := given("both", 0, func(s *service.Service) {
		s.ExternalIPs, s.LoadBalancerIPs = []netip.Addr{balanced}, []netip.Addr{balanced}
		s.LimitSources, s.Sources = true, []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
	})
	late := given("late", 0, func(s *service.Service) { s.LoadBalancerIPs = []netip.Addr{node}; s.Ports[0].Port = 30080 })
	pod := service.Name{Namespace: "pod", Name: "pod"}
	backend := netip.MustParseAddrPort("10.0.0.7:80")
	for _, kubeProxy := range []bool{false, true} {
		e := service.New(service.Local{Node: "n1", Addrs: []netip.Addr{node}, Announced: []netip.Addr{node}, KubeProxy: kubeProxy})
		e.Synced()
		e.UpsertService(evil)
		e.SetHostPorts(pod, []service.HostPort{
			{Port: 8443, Proto: 6, Backend: backend}, {Port: 30080, Proto: 6, Backend: backend},
			{Addr: netip.MustParseAddr("169.254.169.254"), Port: 80, Proto: 6, Backend: backend},
			{Addr: netip.MustParseAddr("203.0.113.9"), Port: 80, Proto: 6, Backend: backend},
			{Addr: vip, Port: 8443, Proto: 6, Backend: backend},
			{Addr: node, Port: 8444, Proto: 6, Backend: backend},
			{Addr: netip.MustParseAddr("127.0.0.2"), Port: 8444, Proto: 6, Backend: backend},
		})
		for _, s := range []service.Service{balancer, both, late, cluster} {
			e.UpsertService(s)
		}
		theirs := func(name string) string { // of clients outside, where kube-proxy serves them
			if kubeProxy {
				return ""
			}
			return name
		}
		for _, want := range []struct {
			at    string
			scope datapath.ServiceScope
			owner string
		}{
			{"10.96.0.50:80", datapath.ServiceInternal, "cluster"},
			{"10.96.0.50:81", datapath.ServiceInternal, "evil"},
			{"192.0.2.1:80", datapath.ServiceInternal, "balancer"},
			{"192.0.2.1:80", datapath.ServiceExternal, theirs("balancer")},
			{"192.0.2.1:81", datapath.ServiceExternal, theirs("evil")},
			{"198.51.100.1:80", datapath.ServiceInternal, "both"},
			{"198.51.100.1:80", datapath.ServiceExternal, theirs("both")},
			{"192.0.2.1:30080", datapath.ServiceInternal, "cluster"},
			{"192.0.2.1:30080", datapath.ServiceExternal, theirs("cluster")},
			{"192.0.2.1:8443", datapath.ServiceInternal, "pod"},
			{"192.0.2.1:8443", datapath.ServiceExternal, "pod"},
			{"192.0.2.1:8444", datapath.ServiceExternal, "pod"},
			{"127.0.0.2:8444", datapath.ServiceNode, "pod"},
			{"169.254.169.254:80", datapath.ServiceInternal, ""},
			{"203.0.113.9:80", datapath.ServiceInternal, ""},
			{"203.0.113.9:80", datapath.ServiceExternal, ""},
			{"10.96.0.50:8443", datapath.ServiceInternal, "evil"},
		} {
			r, _ := e.Table().Get(datapath.ServiceFrontend{Addr: netip.MustParseAddrPort(want.at), Proto: 6, Scope: want.scope})
			if r.Owner.Namespace != want.owner {
				t.Errorf("with kube-proxy: %t: %s from %s leads to %q, want %q", kubeProxy, want.at, want.scope, r.Owner.Namespace, want.owner)
			}
			if want.owner == "both" && !r.LimitSources {
				t.Errorf("with kube-proxy: %t: %s from %s is open to all clients", kubeProxy, want.at, want.scope)
			}
		}
		// What was given is given back.
		e.DeleteService(cluster.Name)
		if r, _ := e.Table().Get(datapath.ServiceFrontend{Addr: netip.MustParseAddrPort("10.96.0.50:80"), Proto: 6}); r.Owner != evil.Name {
			t.Errorf("an address that is assigned to no service leads to %q, want %q", r.Owner, evil.Name)
		}
	}
}
