package loader_test

import (
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hawser-net/hawser/internal/datapath"
	services "github.com/hawser-net/hawser/internal/service"
	"github.com/hawser-net/hawser/internal/testenv"
)

// kinds is a cluster of two nodes and a client outside, whose services are computed as an agent
// does.
type kinds struct {
	t       *testing.T
	n1      *testNode
	engine  *services.Engine
	a, b, r *testPod
	outside *testenv.NetNS
}

// apply reconciles the first node's kernel with the engine.
func (k *kinds) apply() {
	k.t.Helper()
	must(k.t, services.NewMaps(k.n1.maps, func() {}).Prune(k.t.Context(), k.engine.Table().All()))
	must(k.t, services.NewFlows(k.n1.maps, k.engine.Table()).ForgetStale(k.t.Context()))
}

// who returns the names of all that answer at an address by the protocols given, "" for none.
func (k *kinds) who(from *testenv.NetNS, at netip.AddrPort, networks ...string) string {
	k.t.Helper()
	var seen []string
	for range 12 {
		for _, network := range networks {
			name := ""
			var c net.Conn
			err := from.Do(func() (err error) { c, err = net.DialTimeout(network, at.String(), time.Second); return err })
			if err == nil {
				c.SetDeadline(time.Now().Add(time.Second))
				buf := make([]byte, 10)
				if _, err = c.Write([]byte("who")); err == nil {
					var n int
					n, _ = c.Read(buf)
					name = string(buf[:n])
				}
				c.Close()
			}
			if name == "" {
				return ""
			}
			seen = append(seen, name)
		}
	}
	slices.Sort(seen)
	return strings.Join(slices.Compact(seen), " ")
}

// expect wants the same at an address of each family. Choices are random: where several answer, all
// must within some tries.
func (k *kinds) expect(what string, from *testenv.NetNS, want string, at ...netip.AddrPort) {
	k.t.Helper()
	for _, at := range at {
		got := ""
		for range 5 {
			if got = k.who(from, at, "tcp", "udp"); got == want {
				break
			}
		}
		if got != want {
			k.t.Errorf("%s: %q at %s, want %q", what, got, at, want)
		}
	}
}

// TestServiceKinds: what Kubernetes says of services and of what is behind them is what their
// clients meet, inside and outside, in both families.
func TestServiceKinds(t *testing.T) {
	n1, n2 := newTestNode(t, 1, true), newTestNode(t, 2, true)
	join(t, n1, n2)
	k := &kinds{t: t, n1: n1, outside: outsideOf(t, n1, n2)}
	k.a, k.b, k.r = n1.pod(t, 1001, n2), n1.pod(t, 1002, n2), n2.pod(t, 1003, n1)
	for name, ns := range map[string]*testenv.NetNS{"a": k.a.ns, "b": k.b.ns, "r": k.r.ns} {
		answerAs(t, ns, name)
	}
	// The balancer's and the external addresses lead to the first node.
	under := byName(t, n2.h, "eth0")
	addRoute(t, n2.h, under, "203.0.113.0/24", n1.cfg.NodeIPv4)
	addRoute(t, n2.h, under, "2001:db8:1::/48", n1.cfg.NodeIPv6)
	balancer := []netip.Addr{netip.MustParseAddr("203.0.113.5"), netip.MustParseAddr("2001:db8:1::5")}
	external := []netip.Addr{netip.MustParseAddr("203.0.113.7"), netip.MustParseAddr("2001:db8:1::7")}
	node := []netip.Addr{n1.cfg.NodeIPv4, n1.cfg.NodeIPv6}
	ports := func(port uint16, addrs ...netip.Addr) (out []netip.AddrPort) {
		for _, a := range addrs {
			out = append(out, netip.AddrPortFrom(a, port))
		}
		return out
	}
	inside := ports(80, vip4, vip6)
	outside := slices.Concat(ports(80, balancer...), ports(80, external...), ports(outsidePort, node...))

	k.engine = services.New(services.Local{Node: "n1", Zone: "z1", Addrs: node})
	k.engine.Synced()
	web := services.Service{
		Name: services.Name{Namespace: "x", Name: "web"}, ClusterIPs: []netip.Addr{vip4, vip6}, ExternalIPs: external, LoadBalancerIPs: balancer,
		Ports: []services.Port{{Name: "t", Proto: 6, Port: 80, NodePort: outsidePort}, {Name: "u", Proto: 17, Port: 80, NodePort: outsidePort}},
	}
	endpoints := func(change func(b, r *services.Endpoint)) {
		for i, family := range []string{"4", "6"} {
			b := services.Endpoint{Addr: k.b.addrs()[i], Ready: true, Serving: true, Node: "n1"}
			r := services.Endpoint{Addr: k.r.addrs()[i], Ready: true, Serving: true, Node: "n2"}
			if change != nil {
				change(&b, &r)
			}
			k.engine.UpsertSlice(services.Slice{
				Name: services.Name{Namespace: "x", Name: "web-" + family}, Service: "web", Endpoints: []services.Endpoint{b, r},
				Ports: []services.SlicePort{{Name: "t", Proto: 6, Port: service}, {Name: "u", Proto: 17, Port: service}},
			})
		}
		k.apply()
	}
	set := func(change func(*services.Service)) {
		s := web
		if change != nil {
			change(&s)
		}
		k.engine.UpsertService(s)
		k.apply()
	}
	defer func() {
		if t.Failed() {
			metrics(t, n1, n2)
		}
	}()

	// Another's service names the addresses that this one was given.
	k.engine.UpsertService(services.Service{
		Name: services.Name{Namespace: "evil", Name: "web"}, ExternalIPs: slices.Concat([]netip.Addr{vip4, vip6}, node),
		Ports: []services.Port{{Proto: 6, Port: 80}, {Proto: 17, Port: 80}, {Proto: 6, Port: outsidePort}, {Proto: 17, Port: outsidePort}},
	})
	for i, family := range []string{"4", "6"} {
		k.engine.UpsertSlice(services.Slice{
			Name: services.Name{Namespace: "evil", Name: "web-" + family}, Service: "web", Endpoints: []services.Endpoint{{Addr: k.a.addrs()[i], Ready: true, Serving: true}},
			Ports: []services.SlicePort{{Proto: 6, Port: service}, {Proto: 17, Port: service}},
		})
	}
	set(nil)
	endpoints(nil)
	k.expect("all", k.a.ns, "b r", inside...)
	k.expect("all, by the addresses for those outside", k.a.ns, "b r", outside...)
	k.expect("all", k.outside, "b r", outside...)
	set(func(s *services.Service) { s.ExternalLocal = true })
	k.expect("of this node, from outside", k.outside, "b", outside...)
	k.expect("of this node for those outside, from inside", k.a.ns, "b r", outside...)
	set(func(s *services.Service) { s.InternalLocal = true })
	k.expect("of this node, from inside", k.a.ns, "b", inside...)
	k.expect("of this node for those inside, from outside", k.outside, "b r", outside...)
	set(nil)
	endpoints(func(b, r *services.Endpoint) { b.ForZones, r.ForZones = []string{"z1"}, []string{"z2"} })
	k.expect("of the zone", k.a.ns, "b", inside...)
	endpoints(func(b, r *services.Endpoint) { b.ForNodes, r.ForNodes = []string{"n2"}, []string{"n1"} })
	k.expect("meant for the node", k.a.ns, "r", inside...)
	endpoints(func(b, r *services.Endpoint) { b.Ready, b.Terminating = false, true })
	k.expect("one on its way out", k.a.ns, "r", inside...)
	endpoints(func(b, r *services.Endpoint) { b.Ready, b.Terminating, r.Ready, r.Serving = false, true, false, false })
	k.expect("only one on its way out", k.a.ns, "b", inside...)
	k.expect("only one on its way out", k.outside, "b", outside...)
	endpoints(func(b, r *services.Endpoint) { b.Ready, b.Serving, r.Ready, r.Serving = false, false, false, false })
	refusedAt(t, "no backend", k.a.ns, inside...)
	refusedAt(t, "no backend", k.outside, outside...)
	endpoints(nil)
	set(func(s *services.Service) {
		s.LimitSources, s.Sources = true, []netip.Prefix{netip.MustParsePrefix("172.16.0.0/12"), netip.MustParsePrefix("fd98::/16")}
	})
	k.expect("the balancer's clients", k.outside, "b r", outside...)
	silentAt(t, "the balancer, not its client", k.a.ns, ports(80, balancer...)...)
	k.expect("the balancer's ranges leave other addresses alone", k.a.ns, "b r", ports(80, external...)...)
	set(func(s *services.Service) { s.Affinity = time.Hour })
	for _, at := range slices.Concat(inside, ports(outsidePort, node...)) {
		// Each port of a service has an affinity of its own.
		for _, network := range []string{"tcp", "udp"} {
			// A flow of before keeps its backend, and the client may choose a port of such a flow:
			// one try in some tens meets one, not all.
			got := ""
			for range 5 {
				if got = k.who(k.a.ns, at, network); got == "b" || got == "r" {
					break
				}
			}
			if got != "b" && got != "r" {
				t.Errorf("with affinity %q answer by %s at %s", got, network, at)
			}
		}
	}

	k.engine.SetHostPorts(services.Name{Namespace: "x", Name: "a"}, []services.HostPort{
		{Port: 8443, Proto: 6, Backend: netip.AddrPortFrom(k.a.ep.IPv4, service)}, {Port: 8443, Proto: 17, Backend: netip.AddrPortFrom(k.a.ep.IPv4, service)},
		{Port: 8443, Proto: 6, Backend: netip.AddrPortFrom(k.a.ep.IPv6, service)}, {Port: 8443, Proto: 17, Backend: netip.AddrPortFrom(k.a.ep.IPv6, service)},
		// At another pod's address, which is not the node's.
		{Addr: k.r.ep.IPv4, Port: service, Proto: 6, Backend: netip.AddrPortFrom(k.a.ep.IPv4, service)},
		{Addr: k.r.ep.IPv4, Port: service, Proto: 17, Backend: netip.AddrPortFrom(k.a.ep.IPv4, service)},
		// One for the node alone: who sends to there from elsewhere gets nothing.
		{Addr: netip.MustParseAddr("127.0.0.1"), Port: 8444, Proto: 6, Backend: netip.AddrPortFrom(k.a.ep.IPv4, service)},
	})
	k.apply()
	k.expect("a host port", k.outside, "a", ports(8443, node...)...)
	k.expect("a host port, from the pod itself", k.a.ns, "a", ports(8443, node...)...)
	k.expect("a host port, from another pod", k.b.ns, "a", ports(8443, node...)...)
	k.expect("another pod, whose address a host port names", k.b.ns, "r", ports(service, k.r.addrs()...)...)
	rows, err := n1.maps.Services()
	must(t, err)
	if i := slices.IndexFunc(rows, func(s datapath.Service) bool {
		return s.Addr.Addr().IsLoopback() && s.Scope != datapath.ServiceNode
	}); i >= 0 {
		t.Errorf("others than the node reach %s", rows[i].ServiceFrontend)
	}
}

// TestDatagramsToOtherNode: what a pod sends to a node port of another node, from one socket, stays
// with its backend while services change, as long as that is one.
func TestDatagramsToOtherNode(t *testing.T) {
	n1, n2 := newTestNode(t, 1, true), newTestNode(t, 2, true)
	join(t, n1, n2)
	k := &kinds{t: t, n1: n1}
	a, b, r := n1.pod(t, 1001, n2), n1.pod(t, 1002, n2), n2.pod(t, 1003, n1)
	answerAs(t, b.ns, "b")
	answerAs(t, r.ns, "r")
	k.engine = services.New(services.Local{Node: "n1"})
	k.engine.Synced()
	k.engine.UpsertService(services.Service{
		Name: services.Name{Namespace: "x", Name: "web"}, ClusterIPs: []netip.Addr{vip4, vip6},
		Ports: []services.Port{{Proto: 17, Port: 80, NodePort: outsidePort}},
	})
	backends := func(pods ...*testPod) {
		for i, family := range []string{"4", "6"} {
			s := services.Slice{
				Name: services.Name{Namespace: "x", Name: "web-" + family}, Service: "web", Ports: []services.SlicePort{{Proto: 17, Port: service}},
			}
			for _, p := range pods {
				s.Endpoints = append(s.Endpoints, services.Endpoint{Addr: p.addrs()[i], Ready: true, Serving: true})
			}
			k.engine.UpsertSlice(s)
		}
		k.apply()
	}
	for _, at := range []netip.Addr{n2.cfg.NodeIPv4, n2.cfg.NodeIPv6} {
		backends(b, r)
		client := newAsker(t, a.ns, netip.AddrPortFrom(at, outsidePort))
		ask := func() string {
			t.Helper()
			name, err := client.ask(3, 10*time.Second)
			must(t, err)
			return name
		}
		first := ask()
		for range 20 {
			k.apply()
			if now := ask(); now != first {
				t.Fatalf("%s: %q answered, now %q does, and nothing has changed", at, first, now)
			}
		}
		left, want := r, "r"
		if first == "r" {
			left, want = b, "b"
		}
		backends(left)
		if now := ask(); now != want {
			t.Errorf("%s: without its backend the client is answered by %q, want %q", at, now, want)
		}
	}
}
