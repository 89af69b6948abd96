package service_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/service"
)

// world is everything that exists, in the plainest form.
type world struct {
	at       service.Local
	services map[service.Name]service.Service
	slices   map[service.Name]service.Slice
	ports    map[service.Name][]service.HostPort
	shared   map[string]service.Shared // by cluster/namespace/name
}

// desired says where packets to a frontend should go, by asking of every service whether it wants
// them: slow, and not a line in common with the engine.
func (w world) desired(f datapath.ServiceFrontend) (owner string, backends []netip.AddrPort, found bool) {
	var best service.Service
	var bestPort service.Port
	var bestRank int // 0 if there is none
	for _, s := range w.services {
		var port service.Port
		rank := 0
		for _, p := range s.Ports {
			if r := w.wants(s, p, f); r != 0 && (rank == 0 || chosenBy[r] < chosenBy[rank]) {
				port, rank = p, r
			}
		}
		if rank == 0 {
			continue
		}
		older := s.Created.Before(best.Created) || (s.Created.Equal(best.Created) && s.Name.Compare(best.Name) < 0)
		if bestRank == 0 || chosenBy[rank] < chosenBy[bestRank] || chosenBy[rank] == chosenBy[bestRank] && older {
			best, bestPort, bestRank = s, port, rank
		}
	}
	pod, to, isPod := w.podAt(f)
	if isPod && (bestRank == 0 || chosenBy[bestRank] > chosenByPod) {
		return pod, []netip.AddrPort{to}, true
	}
	if bestRank > 0 && w.at.KubeProxy && f.Scope == datapath.ServiceExternal {
		return "", nil, false // kube-proxy's
	}
	if bestRank > 0 {
		local := (bestRank == 1 && best.InternalLocal) || (bestRank > 1 && best.ExternalLocal && f.Scope == datapath.ServiceExternal)
		v4 := f.Addr.Addr().Is4()
		backends, owner := w.endpoints(best, bestPort, v4, local), best.Name.String()
		if len(backends) == 0 && len(w.endpoints(best, bestPort, v4, false)) > 0 {
			owner += " elsewhere"
		}
		if bestRank == 3 && best.LimitSources {
			var sources []netip.Prefix
			for _, p := range best.Sources {
				if v4 {
					sources = append(sources, p)
				}
			}
			owner += fmt.Sprint(" for", sources)
		}
		if w.at.Maglev && f.Scope == datapath.ServiceExternal {
			owner += " consistent"
		}
		if f.Scope == datapath.ServiceExternal && !local && w.direct(best, bestPort, backends) &&
			(bestRank != 4 || slices.Contains(w.at.Announced, f.Addr.Addr())) {
			owner += " direct"
		}
		return owner, backends, true
	}
	return "", nil, false
}

// chosenBy orders what wants returns by who has chosen the address: the API server, a balancer's
// controller, who makes pods, and last who writes the service.
var chosenBy = map[int]int{1: 0, 4: 0, 3: 1, 2: 3}

const chosenByPod = 2

// podAt returns the pod that has a host port there, and where it leads.
func (w world) podAt(f datapath.ServiceFrontend) (string, netip.AddrPort, bool) {
	var pods []service.Name
	for n, ports := range w.ports {
		for _, p := range ports {
			if w.wantsHostPort(p, f) {
				pods = append(pods, n)
			}
		}
	}
	if len(pods) == 0 {
		return "", netip.AddrPort{}, false
	}
	pod := slices.MinFunc(pods, service.Name.Compare)
	var to netip.AddrPort
	for _, p := range w.ports[pod] {
		if w.wantsHostPort(p, f) {
			to = p.Backend // the last one counts
		}
	}
	return pod.String(), to, true
}

func (w world) wantsHostPort(p service.HostPort, f datapath.ServiceFrontend) bool {
	if p.Port != f.Addr.Port() || p.Proto != f.Proto || p.Backend.Addr().Is4() != f.Addr.Addr().Is4() {
		return false
	}
	if f.Scope == datapath.ServiceRemoteNode {
		return false // which other node has the pod is not known
	}
	if own := f.Addr.Addr().IsLoopback(); own != (f.Scope == datapath.ServiceNode) {
		return false
	}
	if p.Addr.IsValid() {
		return p.Addr == f.Addr.Addr() && (p.Addr.IsLoopback() || w.own(p.Addr))
	}
	return w.serves(f.Addr.Addr()) && (f.Addr.Addr().IsLoopback() || w.own(f.Addr.Addr()))
}

// direct reports whether clients outside are answered by the nodes of backends, all of which must
// be of this cluster.
func (w world) direct(s service.Service, p service.Port, backends []netip.AddrPort) bool {
	mode := w.at.Forwarding
	if w.at.PerService && s.Forwarding != "" {
		mode = s.Forwarding
	}
	if mode != "dsr" && (mode != "hybrid" || p.Proto != 6) {
		return false
	}
	for _, b := range backends {
		known := false
		for _, part := range w.slices {
			known = known || (part.Name.Namespace == s.Name.Namespace && part.Service == s.Name.Name &&
				slices.Contains(part.Ports, service.SlicePort{Name: p.Name, Proto: p.Proto, Port: b.Port()}) &&
				slices.ContainsFunc(part.Endpoints, func(e service.Endpoint) bool { return e.Addr == b.Addr() }))
		}
		if !known {
			return false
		}
	}
	return true
}

// wants returns 0, or as what the frontend fits: 1 for a cluster address.
func (w world) wants(s service.Service, p service.Port, f datapath.ServiceFrontend) int {
	if p.Proto != f.Proto {
		return 0
	}
	a := f.Addr.Addr()
	if f.Scope == datapath.ServiceNode || a.IsLoopback() {
		if f.Scope == datapath.ServiceNode && a.IsLoopback() && p.NodePort == f.Addr.Port() && ofFamily(s, a.Is4()) && w.serves(a) {
			return 4
		}
		return 0
	}
	if f.Scope == datapath.ServiceRemoteNode || a.IsUnspecified() {
		if f.Scope == datapath.ServiceRemoteNode && a.IsUnspecified() && p.NodePort != 0 && p.NodePort == f.Addr.Port() && ofFamily(s, a.Is4()) {
			return 4
		}
		return 0
	}
	if p.Port == f.Addr.Port() {
		switch {
		case slices.Contains(s.ClusterIPs, a) && f.Scope == datapath.ServiceInternal:
			return 1
		case slices.Contains(s.LoadBalancerIPs, a):
			return 3
		case slices.Contains(s.ExternalIPs, a):
			return 2
		}
	}
	if p.NodePort != 0 && p.NodePort == f.Addr.Port() && w.own(a) && ofFamily(s, a.Is4()) && w.serves(a) {
		return 4
	}
	return 0
}

// own reports whether an address is one of the node's, and no service's.
func (w world) own(a netip.Addr) bool {
	for _, s := range w.services {
		if (slices.Contains(s.ClusterIPs, a) || slices.Contains(s.LoadBalancerIPs, a)) && !slices.Contains(w.at.Announced, a) {
			return false
		}
	}
	return slices.Contains(w.at.Addrs, a)
}

// serves reports whether an address of the node may have node ports.
func (w world) serves(a netip.Addr) bool {
	for _, p := range w.at.Within {
		if p.Contains(a) {
			return true
		}
	}
	return len(w.at.Within) == 0
}

// ofFamily reports whether a service has node ports of a family: if it has addresses of its own, as
// these.
func ofFamily(s service.Service, v4 bool) bool {
	return len(s.ClusterIPs) == 0 || slices.ContainsFunc(s.ClusterIPs, func(a netip.Addr) bool { return a.Is4() == v4 })
}

func (w world) endpoints(of service.Service, p service.Port, v4, local bool) []netip.AddrPort {
	type state struct {
		ready, serving, terminating bool
		node                        string // of two, the one with the greater name: one address is on one node
		zones, nodes                []string
		here                        bool // a pod of this cluster
	}
	all := map[netip.AddrPort]*state{}
	for _, s := range w.slices {
		if (service.Name{Namespace: s.Name.Namespace, Name: s.Service}) != of.Name {
			continue
		}
		for _, sp := range s.Ports {
			if sp.Name != p.Name || sp.Proto != p.Proto {
				continue
			}
			for _, e := range s.Endpoints {
				if e.Addr.Is4() != v4 {
					continue
				}
				k := netip.AddrPortFrom(e.Addr, sp.Port)
				if all[k] == nil {
					all[k] = &state{}
				}
				st := all[k]
				st.here = true
				st.ready = st.ready || e.Ready
				st.serving = st.serving || e.Serving
				st.terminating = st.terminating || e.Terminating
				st.node = max(st.node, e.Node)
				st.zones, st.nodes = append(st.zones, e.ForZones...), append(st.nodes, e.ForNodes...)
			}
		}
	}
	for _, r := range w.shared {
		if r.Name != of.Name || !r.Offered || !of.Mesh.Global {
			continue
		}
		for a, ports := range r.Backends {
			sp, ok := ports[p.Name]
			if !ok || sp.Proto != p.Proto || a.Is4() != v4 {
				continue
			}
			k := netip.AddrPortFrom(a, sp.Port)
			if all[k] == nil {
				all[k] = &state{}
			}
			all[k].ready, all[k].serving = true, true
			all[k].zones = append(all[k].zones, r.Zones[a].ForZones...)
		}
	}
	pick := func(ok func(*state) bool) []netip.AddrPort {
		var out []netip.AddrPort
		for k, st := range all {
			if (!local || st.here && st.node == w.at.Node) && ok(st) {
				out = append(out, k)
			}
		}
		slices.SortFunc(out, netip.AddrPort.Compare)
		return out
	}
	if of.Mesh.Prefer != service.PreferNone {
		here, away := 0, 0
		for _, st := range all {
			switch {
			case !st.ready || local && (!st.here || st.node != w.at.Node):
			case st.here:
				here++
			default:
				away++
			}
		}
		for _, st := range all {
			if st.ready && (of.Mesh.Prefer == service.PreferLocal && here > 0 && !st.here || of.Mesh.Prefer == service.PreferRemote && away > 0 && st.here) {
				st.ready, st.serving = false, false
			}
		}
	}
	ready := pick(func(s *state) bool { return s.ready })
	if len(ready) == 0 {
		return pick(func(s *state) bool { return s.serving && s.terminating })
	}
	if local {
		return ready
	}
	for _, hint := range []struct {
		me string
		of func(*state) []string
	}{{w.at.Node, func(s *state) []string { return s.nodes }}, {w.at.Zone, func(s *state) []string { return s.zones }}} {
		hinted := pick(func(s *state) bool { return s.ready && len(hint.of(s)) > 0 })
		mine := pick(func(s *state) bool { return s.ready && slices.Contains(hint.of(s), hint.me) })
		if hint.me != "" && len(hinted) == len(ready) && len(mine) > 0 {
			return mine
		}
	}
	return ready
}

// dice makes a small world, in which everything meets everything.
type dice struct{ *rand.Rand }

func (d dice) one(of ...string) string { return of[d.IntN(len(of))] }
func (d dice) yes() bool               { return d.IntN(2) == 0 }

func (d dice) some(of ...string) []string {
	var out []string
	for _, s := range of {
		if d.IntN(3) == 0 {
			out = append(out, s)
		}
	}
	return out
}

func (d dice) addrs(of ...string) (out []netip.Addr) {
	for _, s := range d.some(of...) {
		out = append(out, netip.MustParseAddr(s))
	}
	return out
}

var (
	vips      = []string{"10.96.0.1", "10.96.0.2", "fd96::1"}
	externals = []string{"1.2.3.4", "2606::1", "10.96.0.2"}
	nodeAddrs = []string{"192.168.0.1", "fd99::1"}
	ownAddrs  = []string{"127.0.0.1", "::1"}
	anyAddrs  = []string{"0.0.0.0", "::"} // of any other node
	allAddrs  = slices.Concat(vips, externals[:2], nodeAddrs, ownAddrs, anyAddrs)
)

func (d dice) service(name service.Name) service.Service {
	s := service.Service{
		Name: name, Created: time.Unix(int64(d.IntN(2)), 0), ClusterIPs: d.addrs(vips...), ExternalIPs: d.addrs(externals...),
		LoadBalancerIPs: d.addrs(externals...), ExternalLocal: d.yes(), InternalLocal: d.IntN(4) == 0,
		Mesh: service.Mesh{Global: d.yes(), Prefer: service.Prefer(d.IntN(3))}, Forwarding: service.Forwarding(d.one("", "snat", "dsr")),
	}
	if d.IntN(3) == 0 {
		s.LimitSources = true
		for _, r := range d.some("10.0.0.0/8", "10.1.2.3/32") {
			s.Sources = append(s.Sources, netip.MustParsePrefix(r))
		}
	}
	for _, n := range d.some("a", "b", "c") {
		p := service.Port{Name: n, Proto: []uint8{6, 17}[d.IntN(2)], Port: 80}
		if n == "b" {
			p.Port = 443
		}
		if n == "c" {
			p.Port = 444
		}
		if d.yes() {
			p.NodePort = p.Port - 80 + 300
		}
		s.Ports = append(s.Ports, p)
	}
	return s
}

func (d dice) slice(name service.Name, of string) service.Slice {
	s := service.Slice{Name: name, Service: of}
	v6 := d.IntN(3) == 0
	for _, n := range d.some("a", "a", "b", "c") {
		s.Ports = append(s.Ports, service.SlicePort{Name: n, Proto: []uint8{6, 17}[d.IntN(2)], Port: uint16(8080 + d.IntN(2))})
	}
	hints := d.yes()
	for i := range d.IntN(4) {
		a := netip.AddrFrom4([4]byte{10, 0, 0, byte(1 + (i+d.IntN(3))%4)})
		if v6 {
			a = netip.AddrFrom16([16]byte{0: 0xfd, 15: byte(1 + (i+d.IntN(3))%4)})
		}
		e := service.Endpoint{Addr: a, Ready: d.IntN(3) > 0, Serving: d.yes(), Terminating: d.yes(), Node: d.one("n1", "n2")}
		if hints {
			e.ForZones, e.ForNodes = []string{d.one("z1", "z2")}, d.some("n1", "n2")
		}
		s.Endpoints = append(s.Endpoints, e)
	}
	return s
}

func (d dice) shared(cluster string, name service.Name) service.Shared {
	s := service.Shared{
		Cluster: cluster, Name: name, Offered: d.IntN(4) > 0,
		Backends: map[netip.Addr]map[string]service.SharedPort{}, Zones: map[netip.Addr]service.SharedZone{},
	}
	for range d.IntN(4) {
		a := netip.AddrFrom4([4]byte{10, byte(d.IntN(2)), 0, byte(1 + d.IntN(4))})
		if d.IntN(3) == 0 {
			a = netip.AddrFrom16([16]byte{0: 0xfd, 14: byte(d.IntN(2)), 15: byte(1 + d.IntN(4))})
		}
		s.Backends[a] = map[string]service.SharedPort{}
		for _, n := range d.some("a", "a", "b", "c") {
			s.Backends[a][n] = service.SharedPort{Proto: []uint8{6, 17}[d.IntN(2)], Port: uint16(8080 + d.IntN(2))}
		}
		if d.yes() {
			s.Zones[a] = service.SharedZone{ForZones: []string{d.one("z1", "z2")}}
		}
	}
	return s
}

func (d dice) hostPorts() (out []service.HostPort) {
	for range d.IntN(3) {
		p := service.HostPort{Port: []uint16{80, 300}[d.IntN(2)], Proto: 6, Backend: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, 7}), uint16(1+d.IntN(3)))}
		if d.yes() {
			p.Addr = netip.MustParseAddr(d.one(nodeAddrs[0], ownAddrs[0], vips[0], "203.0.113.9"))
		}
		out = append(out, p)
	}
	return out
}

// TestOracle: whatever happens, in whatever order, the table is what the plain reading of the world
// says.
func TestOracle(t *testing.T) {
	t.Parallel()
	const parts = 4
	for part := range uint64(parts) {
		t.Run(fmt.Sprint(part), func(t *testing.T) {
			t.Parallel()
			for seed := part; seed < 300; seed += parts {
				liveAndCompare(t, seed)
			}
		})
	}
}

// liveAndCompare has random things happen, and compares the table with the world after each.
func liveAndCompare(t *testing.T, seed uint64) {
	t.Helper()
	d := dice{rand.New(rand.NewPCG(seed, 1))}
	w := world{
		at:       service.Local{Node: "n1", Zone: "z1"},
		services: map[service.Name]service.Service{}, slices: map[service.Name]service.Slice{}, ports: map[service.Name][]service.HostPort{},
		shared: map[string]service.Shared{},
	}
	// Services' addresses are configured on the node, too.
	for _, a := range slices.Concat(nodeAddrs, vips[:2], externals[:1]) {
		w.at.Addrs = append(w.at.Addrs, netip.MustParseAddr(a))
	}
	w.at.Announced = w.at.Addrs[:1]
	e := service.New(w.at)
	synced := d.IntN(30)
	for step := range 60 {
		if step == synced {
			e.Synced()
		}
		n := service.Name{Namespace: d.one("x", "y"), Name: d.one("s", "t")}
		slice := service.Name{Namespace: n.Namespace, Name: d.one("1", "2", "3")}
		switch d.IntN(15) {
		case 12, 13:
			r := d.shared(d.one("c1", "c2"), n)
			w.shared[r.GetKeyName()] = r
			e.SetShared(r)
		case 14:
			c := d.one("c1", "c2")
			delete(w.shared, c+"/"+n.String())
			e.DeleteShared(c, n)
		case 0, 1, 2:
			w.services[n] = d.service(n)
			e.UpsertService(w.services[n])
		case 3:
			delete(w.services, n)
			e.DeleteService(n)
		case 4, 5, 6, 7:
			w.slices[slice] = d.slice(slice, d.one("s", "t", ""))
			e.UpsertSlice(w.slices[slice])
		case 8:
			delete(w.slices, slice)
			e.DeleteSlice(slice)
		case 9, 10:
			w.ports[n] = d.hostPorts()
			e.SetHostPorts(n, w.ports[n])
		case 11:
			w.at.Zone = d.one("z1", "z2", "")
			w.at.Maglev = d.yes()
			w.at.Forwarding = service.Forwarding(d.one("", "snat", "dsr", "hybrid"))
			w.at.PerService = d.yes()
			w.at.KubeProxy = d.yes()
			w.at.Announced = d.addrs(nodeAddrs[0], nodeAddrs[1], vips[0])
			w.at.Within = nil
			for _, p := range []string{"192.168.0.0/24", "fd99::/64", "127.0.0.0/8", "10.0.0.0/8"} {
				if d.IntN(4) == 0 {
					w.at.Within = append(w.at.Within, netip.MustParsePrefix(p))
				}
			}
			if d.yes() {
				slices.Reverse(w.at.Addrs)
				w.at.Addrs = w.at.Addrs[:1+d.IntN(len(w.at.Addrs))]
				w.at.Addrs = slices.Clone(w.at.Addrs)
			}
			e.SetLocal(w.at)
		}
		if step < synced {
			if e.Table().Len() > 0 {
				t.Fatalf("seed %d: rows before everything was observed", seed)
			}
			continue
		}
		if want, got := w.table(), engineTable(e); !maps.Equal(want, got) {
			t.Fatalf("seed %d, step %d (-want +got):\n%s", seed, step, gocmp.Diff(want, got))
		}
	}
}

// frontends are all that anybody may ask for, each with its text.
var frontends = func() map[datapath.ServiceFrontend]string {
	out := map[datapath.ServiceFrontend]string{}
	for _, a := range allAddrs {
		for _, port := range []uint16{80, 443, 444, 300, 663, 664} {
			for _, proto := range []uint8{6, 17} {
				for _, scope := range []datapath.ServiceScope{datapath.ServiceInternal, datapath.ServiceExternal, datapath.ServiceNode, datapath.ServiceRemoteNode} {
					f := datapath.ServiceFrontend{Addr: netip.AddrPortFrom(netip.MustParseAddr(a), port), Proto: proto, Scope: scope}
					out[f] = f.String()
				}
			}
		}
	}
	return out
}()

func (w world) table() map[string]string {
	out := map[string]string{}
	for f, text := range frontends {
		if owner, b, ok := w.desired(f); ok {
			out[text] = fmt.Sprint(owner, " ", b)
		}
	}
	return out
}

func engineTable(e *service.Engine) map[string]string {
	out := map[string]string{}
	for f, r := range e.Table().All() {
		if r.ServiceFrontend != f || r.Validate() != nil {
			out[f.String()] = fmt.Sprintf("invalid row: %v", r.Validate())
			continue
		}
		owner := r.Owner.String()
		if r.RemoteOnly {
			owner += " elsewhere"
		}
		if r.LimitSources {
			owner += fmt.Sprint(" for", r.Sources)
		}
		if r.Maglev {
			owner += " consistent"
		}
		if r.DSR {
			owner += " direct"
		}
		out[f.String()] = fmt.Sprint(owner, " ", r.Backends)
	}
	return out
}
