package service

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/table"
)

// Engine turns services and what belongs to them into frontends. Its methods may be called from any
// goroutine; values given to it must not be changed afterwards.
type Engine struct {
	frontends *table.Table[datapath.ServiceFrontend, Frontend]

	mu       sync.Mutex
	synced   bool
	local    Local
	at       Local              // local without the addresses of services
	vips     map[netip.Addr]int // how many services have an address as a cluster's or a balancer's
	services map[Name]Service
	slices   map[Name]Slice
	parts    map[Name]map[Name]bool     // the slices of a service
	remote   map[Name]map[string]Shared // what other clusters offer, by cluster
	ports    map[Name][]HostPort        // by pod
	// claims are the rows that each owner wants; most frontends are wanted by one.
	claims map[datapath.ServiceFrontend][]claim
	owned  map[owner][]datapath.ServiceFrontend
	excess map[Name]bool // services beyond the bounds of one
}

// owner is a service or a pod with host ports.
type owner struct {
	pod  bool
	name Name
}

type claim struct {
	owner   owner
	created time.Time
	row     Frontend
}

// before reports whether the claim counts and the other does not. Assigned addresses take
// precedence over those that a service names itself, however old that is: else a writer of services
// in one namespace would get the traffic of a cluster address that another service is assigned
// later.
func (c claim) before(o claim) bool {
	return cmp.Or(cmp.Compare(c.row.Kind.rank(), o.row.Kind.rank()), c.created.Compare(o.created), c.owner.name.Compare(o.owner.name)) < 0
}

// rank orders kinds by who chooses their addresses and ports, smaller ones count first: the API
// server, which gives each to one service; load balancer controllers; creators of pods, for nodes
// on which they run; authors of services.
func (k Kind) rank() int {
	return [...]int{ClusterIP: 0, NodePort: 0, LoadBalancer: 1, HostPortKind: 2, ExternalIP: 3}[k]
}

// New returns an engine that has observed nothing yet.
func New(at Local) *Engine {
	return &Engine{
		frontends: table.New[datapath.ServiceFrontend](Frontend.Equal),
		local:     at, at: at, vips: make(map[netip.Addr]int), services: make(map[Name]Service), slices: make(map[Name]Slice), parts: make(map[Name]map[Name]bool),
		remote: make(map[Name]map[string]Shared),
		ports:  make(map[Name][]HostPort), claims: make(map[datapath.ServiceFrontend][]claim), owned: make(map[owner][]datapath.ServiceFrontend),
		excess: make(map[Name]bool),
	}
}

// Table returns the table of frontends, to be read and followed.
func (e *Engine) Table() *table.Table[datapath.ServiceFrontend, Frontend] { return e.frontends }

// Synced means that everything that exists has been observed: from now on the table is complete.
// Calling it again does nothing.
func (e *Engine) Synced() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.synced {
		return
	}
	e.synced = true
	e.everything()
}

// UpsertService makes a service known, in place of the one of its name.
func (e *Engine) UpsertService(s Service) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.count(e.services[s.Name], -1)
	e.count(s, 1)
	e.services[s.Name] = s
	e.refreshService(s.Name)
}

// DeleteService forgets a service. Its slices stay known.
func (e *Engine) DeleteService(n Name) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.count(e.services[n], -1)
	delete(e.services, n)
	e.refreshService(n)
}

// count notes, or with -1 forgets, which addresses a service has.
func (e *Engine) count(s Service, n int) {
	for _, a := range slices.Concat(s.ClusterIPs, s.LoadBalancerIPs) {
		if e.vips[a] += n; e.vips[a] == 0 {
			delete(e.vips, a)
		}
	}
}

// refreshService recomputes a service's rows, and those of all services if an address of the node
// became a service's or stopped being one.
func (e *Engine) refreshService(n Name) {
	moved := e.locate()
	e.refresh(owner{name: n})
	if moved {
		e.everything()
	}
}

// locate leaves addresses of services out of those of the node, and reports whether these changed.
// Some software, such as a cache of names on each node, puts services' addresses on devices; with
// node ports at each of them the kernel's table would overflow. What the node is known by stays.
func (e *Engine) locate() (moved bool) {
	at := e.local
	at.Addrs = slices.DeleteFunc(slices.Clone(at.Addrs), func(a netip.Addr) bool { return e.vips[a] > 0 && !slices.Contains(at.Announced, a) })
	moved = !e.at.equal(at)
	e.at = at
	return moved
}

// UpsertSlice makes a slice known, in place of the one of its name, which may have been another
// service's.
func (e *Engine) UpsertSlice(s Slice) {
	e.mu.Lock()
	defer e.mu.Unlock()
	to := Name{s.Name.Namespace, s.Service}
	former := e.unlink(s.Name)
	e.slices[s.Name] = s
	if e.parts[to] == nil {
		e.parts[to] = make(map[Name]bool)
	}
	e.parts[to][s.Name] = true
	e.refresh(owner{name: to})
	if former != to {
		e.refresh(owner{name: former})
	}
}

// DeleteSlice forgets a slice.
func (e *Engine) DeleteSlice(n Name) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.refresh(owner{name: e.unlink(n)})
}

// LocalReady returns how many ready endpoints of a service are on this node.
func (e *Engine) LocalReady(n Name) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	ready := map[netip.Addr]bool{}
	for slice := range e.parts[n] {
		for _, to := range e.slices[slice].Endpoints {
			if to.Node == e.local.Node && to.Ready && usable(to.Addr) {
				ready[to.Addr] = true
			}
		}
	}
	return len(ready)
}

// unlink removes a slice and returns the service that it was of.
func (e *Engine) unlink(n Name) Name {
	old, ok := e.slices[n]
	if !ok {
		return Name{n.Namespace, ""}
	}
	of := Name{n.Namespace, old.Service}
	delete(e.slices, n)
	delete(e.parts[of], n)
	if len(e.parts[of]) == 0 {
		delete(e.parts, of)
	}
	return of
}

// SetShared makes known what another cluster has of a service, in place of what it had before. It
// counts for a global service, if it is offered.
func (e *Engine) SetShared(s Shared) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.remote[s.Name] == nil {
		e.remote[s.Name] = make(map[string]Shared)
	}
	e.remote[s.Name][s.Cluster] = s
	e.refresh(owner{name: s.Name})
}

// DeleteShared forgets what another cluster has of a service.
func (e *Engine) DeleteShared(cluster string, n Name) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.remote[n], cluster)
	if len(e.remote[n]) == 0 {
		delete(e.remote, n)
	}
	e.refresh(owner{name: n})
}

// Globals counts the services that backends of other clusters can belong to.
func (e *Engine) Globals() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	n := 0
	for _, s := range e.services {
		if s.Mesh.Global {
			n++
		}
	}
	return n
}

// SetHostPorts sets the host ports of a pod of this node; none to remove the pod.
func (e *Engine) SetHostPorts(pod Name, ports []HostPort) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(ports) == 0 {
		delete(e.ports, pod)
	} else {
		e.ports[pod] = ports
	}
	e.refresh(owner{pod: true, name: pod})
}

// HostPorts reports whether a pod of this node has host ports.
func (e *Engine) HostPorts() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.ports) > 0
}

// SetLocal replaces the local node.
func (e *Engine) SetLocal(at Local) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.local.equal(at) {
		return
	}
	e.local = at
	e.locate()
	e.everything()
}

func (e *Engine) everything() {
	owners := make(map[owner]bool)
	for n := range e.services {
		owners[owner{name: n}] = true
	}
	for n := range e.ports {
		owners[owner{pod: true, name: n}] = true
	}
	e.refresh(slices.Collect(maps.Keys(owners))...)
}

// refresh recomputes the rows of some owners and updates the table, in one step.
func (e *Engine) refresh(owners ...owner) {
	if !e.synced {
		return
	}
	touched := make(map[datapath.ServiceFrontend]bool)
	for _, o := range owners {
		e.claim(o, touched)
	}
	if len(touched) == 0 {
		return
	}
	e.frontends.Update(func(x table.Txn[datapath.ServiceFrontend, Frontend]) {
		for f := range touched {
			// What is kube-proxy's has no row, nor has a pod that wants the same port.
			if all := e.claims[f]; len(all) > 0 && !e.at.servedByKubeProxy(all[0].row) {
				x.Upsert(f, all[0].row)
			} else {
				x.Delete(f)
			}
		}
	})
}

// claim replaces an owner's claims and adds the frontends that it is or was about to touched.
func (e *Engine) claim(o owner, touched map[datapath.ServiceFrontend]bool) {
	for _, f := range e.owned[o] {
		touched[f] = true
		left := slices.DeleteFunc(e.claims[f], func(c claim) bool { return c.owner == o })
		if len(left) == 0 {
			delete(e.claims, f)
		} else {
			e.claims[f] = left
		}
	}
	delete(e.owned, o)
	if !o.pod {
		delete(e.excess, o.name)
	}
	var rows []Frontend
	var created time.Time
	if o.pod {
		rows = hostPortRows(e.at, o.name, e.ports[o.name])
	} else if s, ok := e.services[o.name]; ok {
		created = s.Created
		var parts []Slice
		for n := range e.parts[o.name] {
			parts = append(parts, e.slices[n])
		}
		for _, r := range e.remote[o.name] {
			if s.Mesh.Global && r.Offered {
				parts = append(parts, r.slices()...)
			}
		}
		complete := false
		if rows, complete = Rows(e.at, s, parts); !complete {
			e.excess[o.name] = true
		}
	}
	for _, r := range rows {
		f := r.ServiceFrontend
		mine := claim{owner: o, created: created, row: r}
		at, _ := slices.BinarySearchFunc(e.claims[f], mine, func(c, m claim) int {
			if c.before(m) {
				return -1
			}
			return 1
		})
		e.claims[f] = slices.Insert(e.claims[f], at, mine)
		e.owned[o] = append(e.owned[o], f)
		touched[f] = true
	}
}

// Excess returns the services that are served in part, as they have more than [MaxFrontends] or
// [MaxBackends], sorted.
func (e *Engine) Excess() []Name {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.SortedFunc(maps.Keys(e.excess), Name.Compare)
}

// Bounds of one service, which are the sizes of the kernel's tables by default. An object of the
// API server has room for far more, as each of its ports is served at each of its addresses, and
// leads to each of its endpoints; all nodes would compute and keep that for one tenant.
const (
	MaxFrontends = 1 << 16
	MaxBackends  = 1 << 18 // of all ports together
)

// Rows returns the frontends of a service whose endpoints are in the slices given, none twice.
// Those that are kube-proxy's are among them. Of a service beyond its bounds they are not complete:
// the first ports count, and a port whose backends are too many has none.
func Rows(at Local, s Service, parts []Slice) (list []Frontend, complete bool) {
	rows := make(map[datapath.ServiceFrontend]Frontend)
	node4, node6 := s.families()
	nodeAddrs, ownAddrs := at.served()
	serve, left, complete := targets(parts), MaxBackends, true
	sources := [2][]netip.Prefix{sourcesOf(s.Sources, true), sourcesOf(s.Sources, false)}
	for _, p := range s.Ports {
		if len(rows) >= MaxFrontends {
			complete = false
			break
		}
		to := serve[portName{p.Name, p.Proto}]
		wants := 0
		for _, t := range to {
			wants += len(t.endpoints)
		}
		if wants > left {
			to, wants, complete = nil, 0, false
		}
		left -= wants
		v4, v6 := collect(to)
		// Chosen once for all frontends.
		var sets [2][2][]netip.AddrPort // by family and whether only this node's count
		var exist, foreign [2]bool
		for i, b := range []backends{v4, v6} {
			sets[i][0], sets[i][1] = b.choose(at, false, s.Mesh.Prefer), b.choose(at, true, s.Mesh.Prefer)
			exist[i] = b.any()
			foreign[i] = slices.ContainsFunc(sets[i][0], func(a netip.AddrPort) bool { return b[a].Cluster != "" })
		}
		add := func(kind Kind, a netip.Addr, port uint16, scope datapath.ServiceScope, local bool) {
			anyNode := scope == datapath.ServiceRemoteNode
			if !anyNode && !usable(a) || port == 0 || a.IsLoopback() != (scope == datapath.ServiceNode) {
				return
			}
			family, only := 0, 0
			if a.Is6() {
				family = 1
			}
			if local {
				only = 1
			}
			f := datapath.ServiceFrontend{Addr: netip.AddrPortFrom(a, port), Proto: p.Proto, Scope: scope}
			old, taken := rows[f]
			if taken && old.Kind.rank() <= kind.rank() {
				return
			}
			if !taken && len(rows) >= MaxFrontends {
				complete = false
				return
			}
			row := datapath.Service{
				ServiceFrontend: f, ID: number(s.Name, p), Affinity: min(s.Affinity, datapath.MaxServiceAffinity), Backends: sets[family][only],
			}
			row.RemoteOnly = len(row.Backends) == 0 && exist[family]
			// Inside, flows remember their choice on the one node that they begin on.
			row.Maglev = at.Maglev && scope == datapath.ServiceExternal && len(row.Backends) <= datapath.MaxMaglevBackends
			// Another cluster's nodes don't know this one's frontends, nor does a frontend with
			// backends of this node alone send on. Other nodes know a node port at the addresses by
			// which they know the node.
			row.DSR = scope == datapath.ServiceExternal && !local && !foreign[family] && at.forwarding(s).direct(p.Proto) &&
				(kind != NodePort || slices.Contains(at.Announced, a))
			if kind == LoadBalancer && s.LimitSources {
				row.LimitSources, row.Sources = true, sources[family]
			}
			rows[f] = Frontend{Service: row, Owner: s.Name, Kind: kind, PortName: p.Name, Local: local}
		}
		for _, a := range s.ClusterIPs {
			add(ClusterIP, a, p.Port, datapath.ServiceInternal, s.InternalLocal)
		}
		// Clients inside of the cluster that use an address for those outside could as well use the
		// cluster's own: the policy for outside is not about them.
		both := func(kind Kind, a netip.Addr, port uint16) {
			add(kind, a, port, datapath.ServiceInternal, false)
			add(kind, a, port, datapath.ServiceExternal, s.ExternalLocal)
		}
		for _, a := range s.ExternalIPs {
			both(ExternalIP, a, p.Port)
		}
		for _, a := range s.LoadBalancerIPs {
			both(LoadBalancer, a, p.Port)
		}
		for _, a := range nodeAddrs {
			if (a.Is4() && node4) || (a.Is6() && node6) {
				both(NodePort, a, p.NodePort)
			}
		}
		for _, a := range ownAddrs {
			if (a.Is4() && node4) || (a.Is6() && node6) {
				add(NodePort, a, p.NodePort, datapath.ServiceNode, false)
			}
		}
		// Pods that use another node's address get a backend at once. There they would be taken for
		// forged packets.
		if node4 {
			add(NodePort, netip.IPv4Unspecified(), p.NodePort, datapath.ServiceRemoteNode, false)
		}
		if node6 {
			add(NodePort, netip.IPv6Unspecified(), p.NodePort, datapath.ServiceRemoteNode, false)
		}
	}
	return slices.SortedFunc(maps.Values(rows), func(a, b Frontend) int { return a.Compare(b.ServiceFrontend) }), complete
}

// sourcesOf returns the ranges of a family as a row wants them.
func sourcesOf(all []netip.Prefix, v4 bool) []netip.Prefix {
	var out []netip.Prefix
	for _, p := range all {
		if p.IsValid() && p.Addr().Is4() == v4 && !p.Addr().Is4In6() {
			out = append(out, p.Masked())
		}
	}
	slices.SortFunc(out, netip.Prefix.Compare)
	return slices.Compact(out)
}

func hostPortRows(at Local, pod Name, ports []HostPort) []Frontend {
	rows := make(map[datapath.ServiceFrontend]Frontend)
	nodeAddrs, ownAddrs := at.served()
	for _, p := range ports {
		addrs := slices.Concat(nodeAddrs, ownAddrs)
		if p.Addr.IsValid() && !p.Addr.IsUnspecified() {
			addrs = nil
			// Of another's address a pod would get what this node and its pods send there.
			if p.Addr.IsLoopback() || slices.Contains(at.Addrs, p.Addr) {
				addrs = []netip.Addr{p.Addr}
			}
		}
		for _, a := range addrs {
			if !usable(a) || a.Is4() != p.Backend.Addr().Is4() || p.Port == 0 || p.Backend.Port() == 0 {
				continue
			}
			scopes := []datapath.ServiceScope{datapath.ServiceInternal, datapath.ServiceExternal}
			if a.IsLoopback() {
				// Only the node has it: a packet from elsewhere to there is forged.
				scopes = []datapath.ServiceScope{datapath.ServiceNode}
			}
			for _, scope := range scopes {
				f := datapath.ServiceFrontend{Addr: netip.AddrPortFrom(a, p.Port), Proto: p.Proto, Scope: scope}
				rows[f] = Frontend{
					Service: datapath.Service{ServiceFrontend: f, ID: number(pod, Port{Port: p.Port, Proto: p.Proto}), Backends: []netip.AddrPort{p.Backend}},
					Owner:   pod, Kind: HostPortKind, Local: true,
				}
			}
		}
	}
	return slices.SortedFunc(maps.Values(rows), func(a, b Frontend) int { return a.Compare(b.ServiceFrontend) })
}
