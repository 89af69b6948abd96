package network

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/hawser-net/hawser/api/rest"
	"github.com/hawser-net/hawser/internal/agent/component"
	"github.com/hawser-net/hawser/internal/announce"
	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/datapath/link"
	"github.com/hawser-net/hawser/internal/datapath/loader"
	"github.com/hawser-net/hawser/internal/endpoint"
	"github.com/hawser-net/hawser/internal/ipam"
	"github.com/hawser-net/hawser/internal/ipcache"
	"github.com/hawser-net/hawser/internal/node"
	"github.com/hawser-net/hawser/pkg/retry"
)

// TunnelPeers is the kernel's map of the other nodes, from whom it takes tunnelled packets.
type TunnelPeers interface {
	UpsertTunnelPeers(peers []datapath.TunnelPeer) error
	DeleteTunnelPeers(addrs []netip.Addr) error
	TunnelPeers() ([]datapath.TunnelPeer, error)
}

// Config is what a node's network consists of, and gives it what it uses.
type Config struct {
	Options
	// Self is this node, ClusterID the number of its cluster, of MaxClusters.
	Self                   node.Key
	ClusterID, MaxClusters uint32
	Host                   Host
	// KubeProxyReplacement has the programs lead the node's own processes, and all clients
	// outside, to services. CgroupRoot is the cgroup of these processes; empty for the mounted
	// hierarchy. MasqueradePorts are those in whose name clients outside are sent on.
	KubeProxyReplacement bool
	CgroupRoot           string
	MasqueradePorts      datapath.PortRange
	// HostPorts reports whether a pod of this node had host ports under the agent before.
	HostPorts bool
	// Interfaces has packets of pods leave by the network interfaces that their addresses are of,
	// and NotForPods are addresses that no pod reaches.
	Interfaces bool
	NotForPods []netip.Addr
	// Aggregation and CTTimeouts are for the programs.
	Aggregation datapath.Aggregation
	CTTimeouts  datapath.CTTimeouts
	// Dir is where state is kept, and Write writes a file there, whole or not at all.
	Dir   string
	Write func(path string, data []byte) error

	Links      *link.Links
	Programs   *loader.Loader
	Peers      TunnelPeers
	Pool       *ipam.IPAM
	Registry   *endpoint.Registry
	Cache      *ipcache.Cache
	Nodes      *announce.Nodes
	Components *component.Statuses
	Log        *slog.Logger
}

// Network is the node's own networking. Its methods may be called from any goroutine; Configure
// comes before Run.
type Network struct {
	cfg           Config
	faults        faults
	routerFile    AddressFile
	routersBefore []netip.Addr
	peerFile      peerFile

	// moved means that the node's addresses have changed, or what is served there; cidrsMoved that
	// its pod CIDRs have, and the other nodes have been notified; damaged that another process has
	// changed something.
	moved, cidrsMoved, damaged chan struct{}
	misplaced                  string // what the status says of the node's addresses; of Run alone
	// contested are addresses of other nodes that lie in the pod CIDR of a third; of Run alone.
	contested map[node.Key][]netip.Addr

	mu               sync.Mutex
	router4, router6 netip.Addr
	own              []netip.Prefix // what the kernel takes for the node, as last seen
	devices          datapath.Devices
	// hostPorts reports whether a pod of this node has host ports, outsideLed whether the programs
	// are configured to lead clients outside to services, translated for which of the node's
	// addresses they are configured as not its own.
	hostPorts, outsideLed bool
	translated            translated
	// heldPeers are the other nodes as last given to the kernel, at first by the agent before;
	// peersSynced means that this one has observed all.
	heldPeers   []datapath.Peer
	peersSynced bool
	// keeping: the pods' packets are still evaluated by the programs and maps of an agent before.
	keeping bool
}

// New returns the network as the agent before has left it. It changes nothing.
func New(cfg Config) *Network {
	n := &Network{
		cfg: cfg, hostPorts: cfg.HostPorts, moved: make(chan struct{}, 1), cidrsMoved: make(chan struct{}, 1), damaged: make(chan struct{}, 1),
		routerFile: AddressFile{Path: filepath.Join(cfg.Dir, "router.json"), Write: cfg.Write},
		peerFile:   peerFile{path: filepath.Join(cfg.Dir, "peers.json"), write: cfg.Write},
	}
	n.routersBefore = n.routerFile.Load(cfg.Log)
	n.heldPeers = n.peerFile.load(cfg.Log)
	return n
}

// Devices are the node's devices as they were last set up.
func (n *Network) Devices() datapath.Devices {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.devices
}

// Unrouted returns the names of the nodes whose pods are not reached.
func (n *Network) Unrouted() []string { return n.faults.nodes() }

// NoteMoved has the node's addresses, and what is served there, looked at again.
func (n *Network) NoteMoved() { retry.Notify(n.moved) }

// NoteCIDRs has what other nodes claim of this one's pod CIDRs looked at again.
func (n *Network) NoteCIDRs() { retry.Notify(n.cidrsMoved) }

// SetHostPorts records whether a pod of this node has host ports.
func (n *Network) SetHostPorts(some bool) {
	n.mu.Lock()
	n.hostPorts = some
	n.mu.Unlock()
	n.NoteMoved()
}

// leadsOutside reports whether the programs lead clients outside to services: to all in
// kube-proxy's place, or to host ports, of which kube-proxy knows nothing, where a pod has some.
func (n *Network) leadsOutside(devices datapath.Devices) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return devices.NativeIfIndex != 0 && (n.cfg.KubeProxyReplacement || n.hostPorts)
}

// NodeAddresses are the addresses at which node ports and host ports can be served now, sorted.
func (n *Network) NodeAddresses() ([]netip.Addr, error) {
	all, err := n.cfg.Links.NodeAddresses()
	if err != nil {
		return nil, fmt.Errorf("serve node ports at the node's addresses: %w", err)
	}
	ips := n.cfg.Host.Addresses()
	for _, at := range all {
		ips = append(ips, at.IP)
	}
	slices.SortFunc(ips, netip.Addr.Compare)
	return slices.Compact(ips), nil
}

// WatchDamage triggers the repair of changes by other processes, until ctx ends.
func (n *Network) WatchDamage(ctx context.Context) error {
	return n.cfg.Links.Watch(ctx, func(reason string) {
		n.cfg.Log.Warn("the node's network was changed from outside; repairing it", "what", reason)
		retry.Notify(n.damaged)
	})
}

// WatchAddresses follows the node's addresses until ctx ends.
func (n *Network) WatchAddresses(ctx context.Context) error {
	return n.cfg.Links.WatchAddresses(ctx, n.NoteMoved)
}

// desired is what the node's own networking should be, given the nodes known now, and what of
// their claims is refused.
func (n *Network) desired() (datapath.Node, []*datapath.RouteError) {
	peers, refused := n.peers()
	router4, router6 := n.Routers()
	d := datapath.Node{
		Tunnel: n.cfg.Tunnel(), TunnelPort: n.cfg.TunnelPort, Device: n.cfg.Host.Device, MTU: n.cfg.MTU,
		RouterIPv4: router4, RouterIPv6: router6,
		Masquerade4: n.cfg.MasqueradeIPv4 && n.cfg.EnableIPv4, Masquerade6: n.cfg.MasqueradeIPv6 && n.cfg.EnableIPv6,
		KubeProxy: !n.cfg.KubeProxyReplacement, MasqueradePorts: n.cfg.MasqueradePorts, DirectRoutes: n.cfg.DirectRoutes, SkipUnreachable: n.cfg.SkipUnreachable,
		BigTCP4: n.cfg.BigTCPIPv4, BigTCP6: n.cfg.BigTCPIPv6,
		Interfaces: n.cfg.Interfaces,
		Peers:      peers,
		Balance4:   n.cfg.NoPods && n.cfg.EnableIPv4, Balance6: n.cfg.NoPods && n.cfg.EnableIPv6,
	}
	d.PodCIDRs = n.cfg.Pool.Prefixes()
	d.ClusterCIDRs = slices.Clone(d.PodCIDRs)
	for _, p := range d.Peers {
		d.ClusterCIDRs = append(d.ClusterCIDRs, p.PodCIDRs...)
		// Nodes see pods by their own addresses, which policy on host traffic depends on.
		for _, ip := range valid(p.IPv4, p.IPv6) {
			d.ClusterCIDRs = append(d.ClusterCIDRs, ipcache.Single(ip))
		}
	}
	d.ClusterCIDRs = append(d.ClusterCIDRs, n.cfg.NativeCIDRs()...)
	return d, refused
}

// Configure reconciles devices and programs.
func (n *Network) Configure() error {
	desired, refused := n.desired()
	devices, err := n.cfg.Links.SetNode(desired)
	if err := n.faults.note(err, refused, n.cfg.Log); err != nil {
		return fmt.Errorf("set up the node's network: %w", err)
	}
	// Before the programs, which may be the first that ask for it.
	if err := n.admitPeers(desired.Peers, false); err != nil {
		return fmt.Errorf("let the other nodes in: %w", err)
	}
	cgroup, err := n.cgroup()
	if err != nil {
		return err
	}
	nodePort := n.leadsOutside(devices)
	var others []int
	if nodePort {
		others = devices.Others
	}
	if nodePort && n.cfg.KubeProxyReplacement {
		// The programs check that no socket has a port before they use it; sockets must not take
		// it later.
		if err := n.cfg.Links.ReservePorts(n.cfg.MasqueradePorts); err != nil {
			n.cfg.Log.Warn("sockets of this node may get ports by which clients outside are sent on to other nodes", "error", err)
		}
	}
	host, away := n.cfg.Host, n.addressesTranslated()
	for ip, is := range map[netip.Addr]bool{host.IPv4: away.v4, host.IPv6: away.v6} {
		if is {
			n.cfg.Log.Info("this node's address is on none of its interfaces; the tunnel's packets have the source that the route to the other node chooses", "address", ip)
		}
	}
	if err := n.cfg.Programs.Configure(datapath.Config{
		NodeIPv4Translated: away.v4, NodeIPv6Translated: away.v6,
		Tunnel: n.cfg.Tunnel(), TunnelIfIndex: devices.TunnelIfIndex, HostIfIndex: devices.HostIfIndex,
		NativeIfIndex: devices.NativeIfIndex, NativeMAC: devices.NativeMAC, RouterIPv4: desired.RouterIPv4, RouterIPv6: desired.RouterIPv6, HostMAC: devices.HostMAC,
		NodeIPv4: host.IPv4, NodeIPv6: host.IPv6, DualStackWorld: n.cfg.EnableIPv4 && n.cfg.EnableIPv6,
		CgroupRoot: cgroup, NetNSCookie: devices.NetNSCookie, TunnelPort: n.cfg.TunnelPort,
		NodePort: nodePort, OtherIfIndexes: others, NativeMTU: devices.DeviceMTU, MasqueradePorts: n.cfg.MasqueradePorts,
		Interfaces: n.cfg.Interfaces, NotForPods: n.cfg.NotForPods,
		Aggregation: n.cfg.Aggregation, CTTimeouts: n.cfg.CTTimeouts,
	}); err != nil {
		return fmt.Errorf("load the programs: %w", err)
	}
	if err := n.cfg.Links.RemoveFiltersBut(others, loader.FromDevice, loader.ToDevice); err != nil {
		n.cfg.Log.Warn("programs stay on devices that need none any more", "error", err)
	}
	if !n.Keeping() {
		n.removeGuard()
	}
	n.mu.Lock()
	n.devices, n.outsideLed, n.translated = devices, nodePort, away
	n.mu.Unlock()
	n.reportBigTCP(devices)
	return nil
}

// translated reports which of the node's addresses are on none of its interfaces.
type translated struct{ v4, v6 bool }

// addressesTranslated returns which are so now. The kernel takes an IPv6 address for the node's own
// a moment after it was added.
func (n *Network) addressesTranslated() translated {
	away := func(ip netip.Addr) bool { return ip.IsValid() && !n.cfg.Links.IsLocal(ip) }
	return translated{away(n.cfg.Host.IPv4), away(n.cfg.Host.IPv6)}
}

// reportAddresses shows in the status whether the node has the addresses by which others know it.
// Those of the options may be on none of its interfaces, if nobody is sent on in their name.
func (n *Network) reportAddresses() {
	const part = "node-addresses"
	leads := n.leadsOutside(n.Devices())
	var lost, translated []string
	for _, own := range []struct {
		given string
		ip    netip.Addr
	}{{n.cfg.NodeIPv4, n.cfg.Host.IPv4}, {n.cfg.NodeIPv6, n.cfg.Host.IPv6}} {
		switch {
		case !own.ip.IsValid() || n.cfg.Links.IsLocal(own.ip):
		case own.given == "":
			lost = append(lost, own.ip.String())
		case leads:
			translated = append(translated, own.ip.String())
		}
	}
	state, msg := rest.StateOk, "the node has the addresses by which others know it"
	if len(translated) > 0 {
		state = rest.StateWarning
		msg = fmt.Sprintf("clients outside reach through this node no backends elsewhere but pods behind the tunnel: it would send them on as %s, which is on none of its interfaces",
			strings.Join(translated, " and "))
	}
	if len(lost) > 0 {
		state = rest.StateWarning
		msg = fmt.Sprintf("others know this node by %s, which it has no more: give it back, or restart the agent, which announces another address of device %s",
			strings.Join(lost, " and "), n.cfg.Host.Device)
	}
	if state != rest.StateOk && msg != n.misplaced {
		n.cfg.Log.Warn("the node does not have its addresses", "reason", msg)
	}
	n.misplaced = msg
	n.cfg.Components.Set(part, state, msg)
}

// otherDevices reports whether devices, what is done at them, and the node's addresses are not
// those that the programs were configured with.
func (n *Network) otherDevices(now datapath.Devices) bool {
	before := n.Devices()
	n.mu.Lock()
	led, away := n.outsideLed, n.translated
	n.mu.Unlock()
	if lead := n.leadsOutside(now); lead != led || lead && !slices.Equal(now.Others, before.Others) || away != n.addressesTranslated() {
		return true
	}
	return now.TunnelIfIndex != before.TunnelIfIndex || now.HostIfIndex != before.HostIfIndex ||
		now.NativeIfIndex != before.NativeIfIndex || now.NativeMAC.String() != before.NativeMAC.String() || now.HostMAC.String() != before.HostMAC.String()
}

// cgroup returns the cgroup whose processes are led to services, empty if that is not the agent's
// to do.
func (n *Network) cgroup() (string, error) {
	if !n.cfg.KubeProxyReplacement {
		return "", nil
	}
	if n.cfg.CgroupRoot != "" {
		return n.cfg.CgroupRoot, nil
	}
	root, err := loader.FindCgroup()
	if err != nil {
		return "", fmt.Errorf("--kube-proxy-replacement: %w; mount one, or name it with --cgroup-root", err)
	}
	return root, nil
}
