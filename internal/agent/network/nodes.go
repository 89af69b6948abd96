package network

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"github.com/hawser-net/hawser/internal/atomicfile"
	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/ipam"
	"github.com/hawser-net/hawser/internal/ipcache"
	"github.com/hawser-net/hawser/internal/node"
	"github.com/hawser-net/hawser/internal/table"
)

// Cluster is the rest of the agent, as far as Run uses it.
type Cluster struct {
	// Wait returns when the table of nodes has those that there were when the agent started, of
	// all clusters, or ctx ends. Synced is called once they are in the kernel's tables.
	Wait   func(context.Context) error
	Synced func()
	// Changed is called when the table of nodes, or this node's pod CIDRs, have changed, Size how
	// many nodes there are.
	Changed func()
	Size    func(nodes int)
	// Serve has node ports and host ports served at the addresses that the node has now.
	Serve func() error
	// Repair repairs the interfaces of endpoints.
	Repair func() error
}

// peers are the other nodes, and what they claim in vain. Until they have all been observed, those
// that the agent before this one knew are among them: their routes are in use, and traffic with
// them is not masqueraded.
func (n *Network) peers() ([]datapath.Peer, []*datapath.RouteError) {
	n.mu.Lock()
	defer n.mu.Unlock()
	peers, refused := n.cfg.Nodes.Peers(n.heldPeers, !n.peersSynced)
	n.heldPeers = peers
	peers, more := n.cfg.refuseNumbers(peers)
	return peers, append(refused, more...)
}

// peerFile keeps the other nodes on disk for the next agent.
type peerFile struct {
	path  string
	write func(path string, data []byte) error
}

func (f peerFile) load(log *slog.Logger) []datapath.Peer {
	var peers []datapath.Peer
	if err := atomicfile.ReadJSON(f.path, &peers); err != nil {
		log.Warn("cannot read the nodes known before; their routes come back when they are observed", "file", f.path, "error", err)
		return nil
	}
	return peers
}

func (f peerFile) save(peers []datapath.Peer) error {
	data, err := json.Marshal(peers)
	if err != nil {
		return err
	}
	return f.write(f.path, data)
}

// PlaceSelf claims the node's own addresses for the host identity: all by which the kernel takes a
// packet for the node, or a pod that is kept from its node would reach it by another of them.
func (n *Network) PlaceSelf() {
	own, err := n.cfg.Links.OwnPrefixes()
	n.mu.Lock()
	if err != nil {
		n.cfg.Log.Warn("cannot list the kernel's local addresses; the last known ones count as the node's", "error", err)
		own = n.own
	}
	n.own = own
	n.mu.Unlock()
	n.cfg.Cache.SetNode(ipcache.Node{
		Name: n.cfg.Self.String(), Local: true, IPs: n.cfg.Host.All(n.cfg.Log), RouterIPs: n.RouterAddresses(), Own: own, Host: n.cfg.Host.Underlay(),
	})
}

// RepairInterval is how often the node's network, and the kernel's maps, are compared with what
// they should be even if nothing is known to have changed: not everything that others can damage is
// reported.
const RepairInterval = 5 * time.Minute

// retryInterval is how long what could not be set waits to be tried again, unless something
// changes.
const retryInterval = 10 * time.Second

// pacer makes changes of nodes wait after a pass, nine times as long as the pass took and at most
// maxPause: every pass looks at all nodes, so in a cluster of thousands of nodes of which some
// always change, passes without a pause between them would take a processor of each node. A change
// after a quiet time waits for nothing.
type pacer struct {
	changes <-chan struct{}
	next    <-chan struct{} // changes; nil during the pause
	pause   *time.Timer     // resume is to be called when it fires
}

const maxPause = time.Second

func newPacer(changes <-chan struct{}) *pacer {
	pause := time.NewTimer(0)
	pause.Stop()
	return &pacer{changes: changes, next: changes, pause: pause}
}

// passed begins the pause after a pass.
func (p *pacer) passed(took time.Duration) {
	p.next = nil
	p.pause.Reset(min(9*took, maxPause))
}

func (p *pacer) resume() { p.next = p.changes }

// Run reconciles routes and the address table with the table of nodes, and repairs what other
// processes remove, until ctx ends. Changes that follow a pass wait for its pause (see pacer).
// Failures are retried with every change, and every ten seconds.
func (n *Network) Run(ctx context.Context, c Cluster) error {
	watch := n.cfg.Nodes.Table().Watch()
	defer watch.Close()
	retry := time.NewTicker(retryInterval)
	defer retry.Stop()
	listed := make(chan struct{})
	go func() {
		if c.Wait(ctx) == nil {
			close(listed)
		}
	}()
	n.reportAddresses()
	failed, all := false, false
	last := time.Now()
	pace := newPacer(watch.Changed())
	defer pace.pause.Stop()
	for {
		var repair bool
		select {
		case <-ctx.Done():
			return nil
		case <-listed:
			listed, all = nil, true
			n.mu.Lock()
			n.peersSynced = true
			n.mu.Unlock()
			n.applyNodes(watch, c)
			c.Synced()
		case <-pace.pause.C:
			pace.resume()
			continue
		case <-pace.next:
		case <-n.damaged:
			repair = true
		case <-n.moved:
			n.PlaceSelf()
			n.reportAddresses()
		case <-n.cidrsMoved:
			// Claims of other nodes to these, or to those that this node lost, are evaluated again.
			for key, other := range n.cfg.Nodes.Table().All() {
				n.claimNode(key, other)
			}
			c.Changed()
		case <-retry.C:
			if repair = time.Since(last) > RepairInterval; !failed && !repair {
				continue
			}
		}
		began := time.Now()
		n.applyNodes(watch, c)
		peers, err := n.syncHost(c, all)
		if repair {
			n.PlaceSelf()
			last = time.Now()
			if rerr := c.Repair(); rerr != nil {
				err = errors.Join(err, rerr)
				last = time.Time{} // due again at the next tick
			}
		}
		err = errors.Join(err, n.faults.err())
		failed = err != nil
		n.cfg.Components.Report("routes", err, fmt.Sprintf("%d other nodes", peers))
		c.Size(peers + 1)
		pace.passed(time.Since(began))
	}
}

// syncHost reconciles the node's own networking with the table of nodes, and returns how many
// others there are. all means that all have been observed.
func (n *Network) syncHost(c Cluster, all bool) (peers int, err error) {
	desired, refused := n.desired()
	devices, err := n.cfg.Links.SetNode(desired)
	if err = n.faults.note(err, refused, n.cfg.Log); err == nil && n.otherDevices(devices) {
		// A device was removed or added, and the programs are on the former ones.
		n.cfg.Log.Info("the node's devices or addresses, or what is served there, have changed; setting them up again")
		err = n.Configure()
	}
	// First: the next agent must not admit a node again that this one has refused.
	if serr := n.peerFile.save(desired.Peers); serr != nil {
		n.cfg.Log.Warn("cannot store the nodes for the next agent", "error", serr)
	}
	err = errors.Join(err, c.Serve(), n.admitPeers(desired.Peers, all))
	return len(desired.Peers), err
}

// applyNodes claims the addresses of all nodes that have changed until now, or of which other
// addresses count now.
func (n *Network) applyNodes(watch *table.Observer[node.Key, node.Node], c Cluster) {
	some, moved := false, map[node.Key]node.Node{}
	for {
		changes, err := watch.Poll()
		if err != nil {
			return // closed: the agent ends
		}
		if len(changes) == 0 {
			break
		}
		for _, ch := range changes {
			if !ch.Deleted {
				moved[ch.Key] = ch.Value
				continue
			}
			delete(moved, ch.Key)
			if ch.Key != n.cfg.Self {
				n.cfg.Cache.DeleteNode(ch.Key.String())
			}
		}
		some = true
	}
	for key := range n.noteContested() {
		if other, ok := n.cfg.Nodes.Table().Get(key); ok {
			moved[key] = other
		}
	}
	for key, other := range moved {
		n.claimNode(key, other)
	}
	if some {
		c.Changed()
	}
}

// noteContested finds out which addresses of the pod network that nodes have lie in pod CIDRs of
// other nodes, and returns the nodes of which these are others than before. A node that has lost a
// CIDR may have an address of it left for itself, and its claim would take precedence over that of
// the pod that has the address by now.
func (n *Network) noteContested() map[node.Key]bool {
	peers, _ := n.peers()
	holders, lengths := map[netip.Prefix]string{}, map[int]bool{}
	for _, p := range peers {
		for _, c := range p.PodCIDRs {
			holders[c.Masked()], lengths[c.Bits()] = p.Name, true
		}
	}
	now := map[node.Key][]netip.Addr{}
	for key, other := range n.cfg.Nodes.Table().All() {
		if key == n.cfg.Self {
			continue
		}
		name := key.Name
		if key.Cluster != n.cfg.Self.Cluster {
			name = key.String()
		}
		for _, ip := range slices.Concat(other.RouterIPs(), other.HealthIPs()) {
			for bits := range lengths {
				c, err := ip.Prefix(bits)
				if holder, ok := holders[c]; err == nil && ok && holder != name {
					now[key] = append(now[key], ip)
				}
			}
		}
	}
	moved := map[node.Key]bool{}
	for _, list := range []map[node.Key][]netip.Addr{now, n.contested} {
		for key := range list {
			if !slices.Equal(now[key], n.contested[key]) {
				moved[key] = true
			}
		}
	}
	n.contested = now
	return moved
}

// claimNode claims the addresses of a node that is not this one.
func (n *Network) claimNode(key node.Key, other node.Node) {
	if key == n.cfg.Self {
		return
	}
	host := other.UnderlayIPv4()
	if !host.IsValid() {
		host = other.UnderlayIPv6()
	}
	free := func(ips []netip.Addr) []netip.Addr {
		return slices.DeleteFunc(ips, func(ip netip.Addr) bool { return slices.Contains(n.contested[key], ip) })
	}
	n.cfg.Cache.SetNode(ipcache.Node{
		Name: key.String(), Foreign: key.Cluster != n.cfg.Self.Cluster, IPs: other.NodeIPs(), RouterIPs: free(other.RouterIPs()), PodCIDRs: n.notOurs(other.PodCIDRs()),
		HealthIPs: free(n.notInOurs(other.HealthIPs())), Host: host,
	})
}

// notOurs leaves out what another node claims of this node's own pod networks.
func (n *Network) notOurs(cidrs []netip.Prefix) []netip.Prefix {
	own := n.cfg.Pool.CIDRs(ipam.Both)
	return slices.DeleteFunc(slices.Clone(cidrs), func(c netip.Prefix) bool { return slices.ContainsFunc(own, c.Overlaps) })
}

// notInOurs leaves out addresses in this node's own pod networks.
func (n *Network) notInOurs(ips []netip.Addr) []netip.Addr {
	own := n.cfg.Pool.CIDRs(ipam.Both)
	return slices.DeleteFunc(ips, func(ip netip.Addr) bool {
		return slices.ContainsFunc(own, func(p netip.Prefix) bool { return p.Contains(ip) })
	})
}
