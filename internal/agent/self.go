package agent

import (
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"sync"

	"github.com/hawser-net/hawser/internal/agent/network"
	"github.com/hawser-net/hawser/internal/ipam"
	"github.com/hawser-net/hawser/internal/node"
)

// partPodCIDRs is the name under which the status shows the node's pod CIDRs.
const partPodCIDRs = "pod-cidrs"

// announcer publishes to the other nodes what this one is.
type announcer struct {
	cfg     Config
	log     *slog.Logger
	host    network.Host
	tables  *tables
	network *network.Network
	objects *objects // nil outside of Kubernetes
	// health are the addresses of the node's health endpoint.
	health func() []netip.Addr

	announcing sync.Mutex // what is newest is published last
}

// self is what this node publishes of itself.
func (a *announcer) self() node.Node {
	n := node.Node{Name: a.cfg.NodeName, Cluster: a.cfg.ClusterName, ClusterID: a.cfg.ClusterID, Source: node.SourceLocal}
	if a.objects != nil {
		n.Annotations = map[string]string{node.KubernetesAnnotation: "true"}
	}
	for _, ip := range a.host.Addresses() {
		n.Addresses = append(n.Addresses, node.Address{Type: node.InternalIP, IP: ip})
	}
	for _, ip := range a.network.RouterAddresses() {
		n.Addresses = append(n.Addresses, node.Address{Type: node.RouterIP, IP: ip})
	}
	n.IPv4PodCIDRs, n.IPv6PodCIDRs = a.tables.pool.CIDRs(ipam.IPv4), a.tables.pool.CIDRs(ipam.IPv6)
	for _, ip := range a.health() {
		if ip.Is4() {
			n.IPv4HealthIP = ip
		} else {
			n.IPv6HealthIP = ip
		}
	}
	n.BootID = bootID()
	return n
}

// announce publishes to the other nodes what this one is now.
func (a *announcer) announce() error {
	a.announcing.Lock()
	defer a.announcing.Unlock()
	self := a.self()
	err := a.tables.nodes.Announce(self)
	if a.objects != nil {
		err = errors.Join(err, a.objects.nodes.Announce(self))
	}
	return err
}

// podCIDRs are those of this node.
func (t *tables) podCIDRs() []netip.Prefix {
	return slices.Concat(t.pool.CIDRs(ipam.IPv4), t.pool.CIDRs(ipam.IPv6))
}

// refuseAddresses stops the assignment of addresses, as pods of another node may have them, and
// reports the reason in the status; nil ends that.
func (t *tables) refuseAddresses(why error) {
	t.components.Report(partPodCIDRs, why, "as assigned")
	t.pool.Refuse(why)
}

// Refresh implements [addressing.Agent]: it has the node's object written.
func (a *announcer) Refresh() { a.objects.nodes.Refresh() }

// Report implements [addressing.Agent]: it reports the state of the node's addresses.
func (a *announcer) Report(err error) { a.tables.components.Report(partPodCIDRs, err, "as assigned") }

// AddressesMoved implements [addressing.Agent]: it publishes to the other nodes this one's pod
// CIDRs.
func (a *announcer) AddressesMoved() {
	if err := a.announce(); err != nil {
		a.log.Error("cannot publish this node's pod CIDRs", "error", err)
	}
	a.network.NoteCIDRs()
}
