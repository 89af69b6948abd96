package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/hawser-net/hawser/api/rest"
	"github.com/hawser-net/hawser/internal/agent/enforcement"
	"github.com/hawser-net/hawser/internal/agent/health"
	"github.com/hawser-net/hawser/internal/announce"
	"github.com/hawser-net/hawser/internal/atomicfile"
	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/datapath/link"
	"github.com/hawser-net/hawser/internal/datapath/loader"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/ipam"
	"github.com/hawser-net/hawser/internal/ipcache"
	"github.com/hawser-net/hawser/internal/node"
	"github.com/hawser-net/hawser/internal/table"
)

// routerState remembers the router's addresses on disk: pods have them in their routes, so the
// next agent must choose the same.
type routerState struct {
	path string
}

type routerRecord struct {
	IPv4 netip.Addr `json:"ipv4,omitzero"`
	IPv6 netip.Addr `json:"ipv6,omitzero"`
}

func (r routerState) load(log *slog.Logger) []netip.Addr {
	data, err := os.ReadFile(r.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var rec routerRecord
	if err == nil {
		err = json.Unmarshal(data, &rec)
	}
	if err != nil {
		log.Warn("cannot read the router's addresses of before; others may be chosen", "file", r.path, "error", err)
		return nil
	}
	var out []netip.Addr
	for _, ip := range []netip.Addr{rec.IPv4, rec.IPv6} {
		if ip.IsValid() {
			out = append(out, ip)
		}
	}
	return out
}

func (r routerState) save(v4, v6 netip.Addr) error {
	data, err := json.Marshal(routerRecord{v4, v6})
	if err == nil {
		err = writeState(r.path, data)
	}
	if err != nil {
		return fmt.Errorf("store the router's addresses: %w", err)
	}
	return nil
}

// takeRouter gives the node its own addresses in the pod network.
func (a *api) takeRouter(before []netip.Addr) error {
	wanted, preferred := a.preferredRouters(before)
	res, err := a.pool.AllocateRouter(preferred...)
	if err != nil {
		return err
	}
	if res.IPv4 != nil {
		a.router4 = res.IPv4.IP
	}
	if res.IPv6 != nil {
		a.router6 = res.IPv6.IP
	}
	return a.checkRouters(wanted)
}

// desiredNode is what the node's own networking should be, given the nodes known now, and what of
// their claims is refused.
func (a *api) desiredNode(facts nodeFacts) (datapath.Node, []*datapath.RouteError) {
	peers, refused := a.peers()
	n := datapath.Node{
		Tunnel: a.cfg.RoutingMode == "tunnel", TunnelPort: a.cfg.TunnelPort, Device: facts.device, MTU: a.cfg.MTU,
		RouterIPv4: a.router4, RouterIPv6: a.router6,
		Masquerade4: a.cfg.MasqueradeIPv4 && a.cfg.EnableIPv4, Masquerade6: a.cfg.MasqueradeIPv6 && a.cfg.EnableIPv6,
		DirectRoutes: a.cfg.DirectRoutes, SkipUnreachable: a.cfg.SkipUnreachable,
		BigTCP4: a.cfg.BigTCPIPv4, BigTCP6: a.cfg.BigTCPIPv6,
		Peers: peers,
	}
	n.PodCIDRs = a.pool.Prefixes()
	n.ClusterCIDRs = slices.Clone(n.PodCIDRs)
	for _, p := range n.Peers {
		n.ClusterCIDRs = append(n.ClusterCIDRs, p.PodCIDRs...)
		// Nodes see pods by their own addresses, which policy on host traffic depends on.
		for _, ip := range []netip.Addr{p.IPv4, p.IPv6} {
			if ip.IsValid() {
				n.ClusterCIDRs = append(n.ClusterCIDRs, ipcache.Single(ip))
			}
		}
	}
	for _, c := range []string{a.cfg.NativeIPv4CIDR, a.cfg.NativeIPv6CIDR} {
		if c != "" {
			n.ClusterCIDRs = append(n.ClusterCIDRs, netip.MustParsePrefix(c)) // Validate has parsed it
		}
	}
	return n, refused
}

// peers are the other nodes, and what they claim in vain. Until they have all been heard of, those
// that the agent before this one knew are among them: their routes are in use, and traffic with
// them is not masqueraded.
func (a *api) peers() ([]datapath.Peer, []*datapath.RouteError) {
	a.mu.Lock()
	defer a.mu.Unlock()
	peers, refused := a.nodes.Peers(a.heldPeers, !a.peersHeard)
	a.heldPeers = peers
	return peers, refused
}

// peerState keeps the other nodes on disk for the next agent.
type peerState struct {
	path string
}

func (s peerState) load(log *slog.Logger) []datapath.Peer {
	data, err := os.ReadFile(s.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var peers []datapath.Peer
	if err == nil {
		err = json.Unmarshal(data, &peers)
	}
	if err != nil {
		log.Warn("cannot read the nodes known before; their routes come back when they are heard of", "file", s.path, "error", err)
		return nil
	}
	return peers
}

func (s peerState) save(peers []datapath.Peer) error {
	data, err := json.Marshal(peers)
	if err != nil {
		return err
	}
	return writeState(s.path, data)
}

// writeState writes a file of the state directory, atomically.
func writeState(path string, data []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	return atomicfile.Write(path, data, 0o600, atomicfile.Process)
}

// configure brings devices and programs to what they should be.
func (a *api) configure(facts nodeFacts, links *link.Links, log *slog.Logger) error {
	desired, refused := a.desiredNode(facts)
	devices, err := links.SetNode(desired)
	if err := a.routeFaults.note(err, refused, log); err != nil {
		return fmt.Errorf("set up the node's network: %w", err)
	}
	// Before the programs, which may be the first that ask for it.
	if err := a.admitPeers(desired.Peers, facts, false); err != nil {
		return fmt.Errorf("let the other nodes in: %w", err)
	}
	cgroup, err := a.cfg.cgroup()
	if err != nil {
		return err
	}
	nodePort := a.leadsOutside(devices)
	var others []int
	if nodePort {
		others = devices.Others
	}
	if nodePort && a.cfg.KubeProxyReplacement {
		// Before a port is lent the programs ask whether a socket has it; one that comes later is
		// not asked for.
		if err := links.ReservePorts(a.cfg.snatPorts()); err != nil {
			log.Warn("sockets of this node may get ports by which clients outside are sent on to other nodes", "error", err)
		}
	}
	elsewhere := func(ip netip.Addr) bool {
		if !ip.IsValid() || links.IsLocal(ip) {
			return false
		}
		log.Info("this node's address is on none of its interfaces; the tunnel's packets have the source that the route to the other node chooses", "address", ip)
		return true
	}
	if err := a.programs.Configure(datapath.Config{
		NodeIPv4Elsewhere: elsewhere(facts.ipv4), NodeIPv6Elsewhere: elsewhere(facts.ipv6),
		Tunnel: a.cfg.RoutingMode == "tunnel", TunnelIfIndex: devices.TunnelIfIndex, HostIfIndex: devices.HostIfIndex,
		NativeIfIndex: devices.NativeIfIndex, NativeMAC: devices.NativeMAC, RouterIPv4: a.router4, RouterIPv6: a.router6, HostMAC: devices.HostMAC,
		NodeIPv4: facts.ipv4, NodeIPv6: facts.ipv6, DualStackWorld: a.cfg.EnableIPv4 && a.cfg.EnableIPv6,
		CgroupRoot: cgroup, NetNSCookie: devices.NetNSCookie, TunnelPort: a.cfg.TunnelPort,
		NodePort: nodePort, OtherIfIndexes: others, NativeMTU: devices.DeviceMTU, MasqueradePorts: a.cfg.snatPorts(),
		Aggregation: a.cfg.Flows.MonitorAggregation(),
		CTTimeouts:  datapath.CTTimeouts{TCP: a.cfg.CTTCP, TCPSyn: a.cfg.CTTCPSyn, TCPFin: a.cfg.CTTCPFin, Any: a.cfg.CTAny},
	}); err != nil {
		return fmt.Errorf("load the programs: %w", err)
	}
	if err := links.RemoveFiltersBut(others, loader.FromDevice, loader.ToDevice); err != nil {
		log.Warn("programs stay on devices that need none any more", "error", err)
	}
	a.mu.Lock()
	a.devices, a.outsideLed = devices, nodePort
	a.mu.Unlock()
	a.reportBigTCP(devices, facts.device)
	return nil
}

// otherDevices says whether devices, and what is done at them, are not those that the programs were
// configured with.
func (a *api) otherDevices(now datapath.Devices) bool {
	before := a.deviceFacts()
	a.mu.Lock()
	led := a.outsideLed
	a.mu.Unlock()
	if lead := a.leadsOutside(now); lead != led || lead && !slices.Equal(now.Others, before.Others) {
		return true
	}
	return now.TunnelIfIndex != before.TunnelIfIndex || now.HostIfIndex != before.HostIfIndex ||
		now.NativeIfIndex != before.NativeIfIndex || now.NativeMAC.String() != before.NativeMAC.String() || now.HostMAC.String() != before.HostMAC.String()
}

// cgroup returns the cgroup whose processes are led to services, empty if that is not the agent's
// to do.
func (c Config) cgroup() (string, error) {
	if !c.KubeProxyReplacement {
		return "", nil
	}
	if c.CgroupRoot != "" {
		return c.CgroupRoot, nil
	}
	root, err := loader.FindCgroup()
	if err != nil {
		return "", fmt.Errorf("--kube-proxy-replacement: %w; mount one, or name it with --cgroup-root", err)
	}
	return root, nil
}

// localName is cluster/node, by which nodes are listed.
func (a *api) localName() string { return a.cfg.ClusterName + "/" + a.cfg.NodeName }

// placeSelf claims the node's own addresses for the host identity.
func (a *api) placeSelf(facts nodeFacts, log *slog.Logger) {
	a.cache.SetNode(ipcache.Node{
		Name: a.localName(), Local: true, IPs: facts.hostAddresses(log), RouterIPs: a.routers(), Host: facts.hostFor(netip.Addr{}),
	})
}

func (a *api) routers() []netip.Addr {
	var out []netip.Addr
	for _, ip := range []netip.Addr{a.router4, a.router6} {
		if ip.IsValid() {
			out = append(out, ip)
		}
	}
	return out
}

// newHealth returns what answers other nodes' probes and probes them; nil if nodes do not.
func (a *api) newHealth(facts nodeFacts, links *link.Links, log *slog.Logger) (*health.Health, error) {
	if !a.cfg.HealthChecking {
		return nil, nil
	}
	saved := routerState{path: filepath.Join(a.cfg.StateDir, "state", "health.json")}
	return health.New(health.Config{
		Self: node.Key{Cluster: a.cfg.ClusterName, Name: a.cfg.NodeName}, Nodes: a.nodes.Table(), Local: facts.hosts(),
		IPv4: a.cfg.EnableIPv4, IPv6: a.cfg.EnableIPv6, Port: a.cfg.ClusterHealthPort, Interval: a.cfg.HealthInterval, Endpoint: a.cfg.HealthEndpoint,
		Links: links, Pool: a.pool, Registry: a.registry, Lifecycle: a.lifecycle, Devices: a.deviceFacts, InForce: a.isInForce,
		Routers: func() (v4, v6 netip.Addr) { return a.router4, a.router6 },
		Before:  saved.load(log), Save: saved.save,
		Announce: func() error { return a.announceSelf(facts) }, Log: log,
	})
}

// announceSelf tells the other nodes what this one is now.
func (a *api) announceSelf(facts nodeFacts) error {
	a.announcing.Lock() // else an older version might be told after a newer one
	defer a.announcing.Unlock()
	self := a.selfNode(facts)
	err := a.nodes.Announce(self)
	if a.kube != nil {
		err = errors.Join(err, a.kube.nodes.Announce(self))
	}
	return err
}

// healthAddresses are those of this node's health endpoint.
func (a *api) healthAddresses() []netip.Addr {
	if a.health == nil {
		return nil
	}
	return a.health.Addresses()
}

// selfNode is what this node tells the others of itself.
func (a *api) selfNode(facts nodeFacts) node.Node {
	n := node.Node{Name: a.cfg.NodeName, Cluster: a.cfg.ClusterName, ClusterID: a.cfg.ClusterID, Source: node.SourceLocal}
	if a.kube != nil {
		n.Annotations = map[string]string{node.KubernetesAnnotation: "true"}
	}
	for _, ip := range facts.hosts() {
		n.Addresses = append(n.Addresses, node.Address{Type: node.InternalIP, IP: ip})
	}
	for _, ip := range a.routers() {
		n.Addresses = append(n.Addresses, node.Address{Type: node.RouterIP, IP: ip})
	}
	n.IPv4PodCIDRs, n.IPv6PodCIDRs = a.pool.CIDRs(ipam.IPv4), a.pool.CIDRs(ipam.IPv6)
	for _, ip := range a.healthAddresses() {
		if ip.Is4() {
			n.IPv4HealthIP = ip
		} else {
			n.IPv6HealthIP = ip
		}
	}
	if id, err := os.ReadFile("/proc/sys/kernel/random/boot_id"); err == nil {
		n.BootID = strings.TrimSpace(string(id))
	}
	return n
}

// nodeRepair is how often the node's network is set again even if nothing is known to have changed:
// not everything that others can damage is reported.
const nodeRepair = 5 * time.Minute

// waitNodes waits until the table of nodes has those that this cluster had when the agent started.
func (a *api) waitNodes(ctx context.Context) error {
	if err := a.nodes.WaitSynced(ctx); err != nil || a.kube == nil {
		return err
	}
	return a.kube.nodes.WaitSynced(ctx)
}

// followNodes keeps routes and the address table as the table of nodes says, and repairs what
// others take away. What cannot be set is tried again with every change, and every ten seconds.
func (a *api) followNodes(ctx context.Context, facts nodeFacts, links *link.Links, damaged <-chan struct{}, saved peerState, synced func(), log *slog.Logger) error {
	watch := a.nodes.Table().Watch()
	defer watch.Close()
	self := node.Key{Cluster: a.cfg.ClusterName, Name: a.cfg.NodeName}
	retry := time.NewTicker(10 * time.Second)
	defer retry.Stop()
	listed := make(chan struct{})
	go func() {
		if a.waitNodes(ctx) == nil && a.mesh.waitHeard(ctx) == nil {
			close(listed)
		}
	}()
	failed, all := false, false
	last := time.Now()
	for {
		var repair bool
		select {
		case <-ctx.Done():
			return nil
		case <-listed:
			listed, all = nil, true
			a.applyNodes(watch, self)
			a.mu.Lock()
			a.peersHeard = true
			a.mu.Unlock()
			synced()
		case <-watch.Changed():
		case <-damaged:
			repair = true
		case <-a.moved:
			a.placeSelf(facts, log)
		case <-a.cidrsMoved:
			// What other nodes claim of them, or of those that are not this node's any more, is
			// seen anew.
			for key, n := range a.nodes.Table().All() {
				a.claimNode(key, n, self)
			}
			a.mesh.setMine()
		case <-retry.C:
			if repair = time.Since(last) > nodeRepair; !failed && !repair {
				continue
			}
		}
		a.applyNodes(watch, self)
		desired, refused := a.desiredNode(facts)
		devices, err := links.SetNode(desired)
		if err = a.routeFaults.note(err, refused, log); err == nil && a.otherDevices(devices) {
			// Somebody removed or added one, and the programs know and are on those of before.
			log.Info("the node's devices, or what is served there, are not those of before; setting them up again")
			err = a.configure(facts, links, log)
		}
		err = errors.Join(err, a.serveAddresses(facts, links), a.admitPeers(desired.Peers, facts, all))
		if serr := saved.save(desired.Peers); serr != nil {
			log.Warn("cannot store the nodes for the next agent", "error", serr)
		}
		if repair {
			a.placeSelf(facts, log)
			last = time.Now()
			if rerr := a.lifecycle.Repair(); rerr != nil {
				err = errors.Join(err, rerr)
				last = time.Time{} // due again at the next tick
			}
		}
		err = errors.Join(err, a.routeFaults.err())
		failed = err != nil
		a.components.Report("routes", err, fmt.Sprintf("%d other nodes", len(desired.Peers)))
		if s, ok := a.store.(interface{ SetClusterSize(clients int) }); ok {
			s.SetClusterSize(len(desired.Peers) + 1)
		}
	}
}

// applyNodes claims the addresses of the nodes that changed.
func (a *api) applyNodes(watch *table.Observer[node.Key, node.Node], self node.Key) {
	changes, err := watch.Poll()
	if err != nil {
		return // closed: the agent ends
	}
	for _, ch := range changes {
		if ch.Deleted && ch.Key != self {
			a.cache.DeleteNode(ch.Key.String())
		} else if !ch.Deleted {
			a.claimNode(ch.Key, ch.Value, self)
		}
	}
	if len(changes) > 0 {
		a.mesh.setMine()
	}
	if a.kube != nil && len(changes) > 0 {
		a.kube.placeServers()
	}
}

// claimNode claims the addresses of a node that is not this one.
func (a *api) claimNode(key node.Key, n node.Node, self node.Key) {
	if key == self {
		return
	}
	host := n.UnderlayIPv4()
	if !host.IsValid() {
		host = n.UnderlayIPv6()
	}
	a.cache.SetNode(ipcache.Node{
		Name: key.String(), IPs: n.NodeIPs(), RouterIPs: n.RouterIPs(), PodCIDRs: a.notOurs(n.PodCIDRs()), HealthIPs: a.notInOurs(n.HealthIPs()), Host: host,
	})
}

// notOurs leaves out what another node claims of this node's own pod networks.
func (a *api) notOurs(cidrs []netip.Prefix) []netip.Prefix {
	own := a.pool.CIDRs(ipam.Both)
	return slices.DeleteFunc(slices.Clone(cidrs), func(c netip.Prefix) bool { return slices.ContainsFunc(own, c.Overlaps) })
}

// notInOurs leaves out addresses in this node's own pod networks.
func (a *api) notInOurs(ips []netip.Addr) []netip.Addr {
	own := a.pool.CIDRs(ipam.Both)
	return slices.DeleteFunc(ips, func(ip netip.Addr) bool {
		return slices.ContainsFunc(own, func(p netip.Prefix) bool { return p.Contains(ip) })
	})
}

// pruneWait bounds how long the end of synchronisation waits for the kernel's address map to be
// gone through; that goes on beyond.
const pruneWait = 30 * time.Second

// whenSynced removes what only an earlier agent needed, once everything has been heard that could
// still want it.
func (a *api) whenSynced(ctx context.Context, gate *syncGate, addrs *table.Reconciler[netip.Prefix, ipcache.Entry], shared *announce.Addresses, rules *enforcement.Rules, log *slog.Logger) error {
	if gate.wait(ctx) != nil {
		return nil
	}
	// The address table first: rows that the endpoints' new rules speak of must be there.
	// One that cannot be written, for want of room say, must not keep the rest from going on.
	if err := addrs.WaitTried(ctx, a.cache.Table().Revision()); err != nil {
		return nil // the agent ends
	}
	a.namedPorts.Sync()
	if err := a.policy.Synced(); err != nil {
		log.Error("policy is not in force in full", "error", err)
	}
	a.replacePrograms(log)
	close(a.inForce)
	shared.Prune()
	pruned, cancel := context.WithTimeout(ctx, pruneWait)
	defer cancel()
	if err := addrs.WaitPruned(pruned); err != nil {
		log.Warn("addresses of before the restart are still being removed from the kernel", "error", err)
	}
	if err := rules.DropRestored(); err != nil {
		log.Warn("cannot clear up after the prefixes of earlier rules", "error", err)
	}
	a.components.Set("sync", rest.StateOk, "everything was heard")
	// The first listings, and the look through the kernel's maps, take much more memory than what
	// is kept of them.
	debug.FreeOSMemory()
	log.Info("synchronised with the cluster")
	return nil
}

// outside is the identity of an address that nobody claims.
func (a *api) outside(ip netip.Addr) identity.ID {
	switch {
	case !a.cfg.EnableIPv4 || !a.cfg.EnableIPv6:
		return identity.World
	case ip.Unmap().Is4():
		return identity.WorldIPv4
	}
	return identity.WorldIPv6
}
