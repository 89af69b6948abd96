package agent

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/agent/addressing"
	"github.com/hawser-net/hawser/internal/ipam"
)

// validateMultiPool checks what counts with pools only.
func (c *Config) validateMultiPool() error {
	_, err := addressing.ParsePreAllocation(c.PreAllocation, c.DefaultPool)
	errs := []error{err}
	if c.DefaultPool == "" {
		errs = append(errs, errors.New("--ipam-default-ip-pool: must not be empty"))
	}
	if c.IPv4Range != "" || c.IPv6Range != "" {
		errs = append(errs, fmt.Errorf("--ipv4-range and --ipv6-range cannot be used with --ipam=%s: the pools say which addresses pods get", addressing.MultiPool))
	}
	return errors.Join(errs...)
}

// validateSingles checks what counts where a node has single addresses.
func (c *Config) validateSingles() error {
	var errs []error
	if c.RoutingMode != "native" {
		errs = append(errs, fmt.Errorf("--ipam=%s: the network leads to each pod's own address, and no tunnel does: set --routing-mode=native", c.IPAM))
	}
	if c.IPAM == addressing.CRD && (c.EnableIPv4 && c.MasqueradeIPv4 && c.NativeIPv4CIDR == "" || c.EnableIPv6 && c.MasqueradeIPv6 && c.NativeIPv6CIDR == "") {
		errs = append(errs, fmt.Errorf("--ipam=%s: pods of other nodes are in no pod CIDR: say with --ipv4-native-routing-cidr and --ipv6-native-routing-cidr "+
			"where packets are not masqueraded, or switch masquerading off", c.IPAM))
	}
	if c.IPv4Range != "" || c.IPv6Range != "" {
		errs = append(errs, fmt.Errorf("--ipv4-range and --ipv6-range cannot be used with --ipam=%s: the CiliumNode says which addresses pods get", c.IPAM))
	}
	if c.NodeUpdate < time.Second {
		errs = append(errs, fmt.Errorf("--ipam-cilium-node-update-rate: %s is below a second", c.NodeUpdate))
	}
	return errors.Join(errs...)
}

// addressing is what this node's addresses follow from.
func (k *kube) addressing() addressing.Config {
	ahead, _ := addressing.ParsePreAllocation(k.cfg.PreAllocation, k.cfg.DefaultPool) // Validate has parsed it
	c := addressing.Config{
		Self: k.self(), ClusterID: k.cfg.ClusterID, Hosts: k.facts.hosts(), Mode: k.cfg.IPAM,
		Given:       addressing.Ranges{V4: k.cfg.IPv4Range, V6: k.cfg.IPv6Range},
		DefaultPool: k.cfg.DefaultPool, Ahead: ahead,
		Dir: filepath.Join(k.cfg.StateDir, "state"), Save: writeState, KindsWait: k.cfg.CRDWait, UpdateInterval: k.cfg.NodeUpdate, Log: k.log.With("part", "ipam"),
	}
	if k.cfg.EnableIPv4 {
		c.Families |= ipam.IPv4
	}
	if k.cfg.EnableIPv6 {
		c.Families |= ipam.IPv6
	}
	return c
}

// awaitAddresses waits until it is known which addresses the node's pods get, and writes the ranges
// into the agent's configuration.
func (k *kube) awaitAddresses(ctx context.Context, facts nodeFacts, cfg *Config) error {
	k.facts = facts
	found, err := addressing.Await(ctx, k.addressing(), k.client)
	cfg.IPv4Range, cfg.IPv6Range, k.pools, k.singles = found.Ranges.V4, found.Ranges.V6, found.Pools, found.Singles
	return err
}

// assigned are the addresses that the operator assigns to this node while it runs.
type assigned interface {
	Families() ipam.Families
	Attach(*ipam.IPAM) error
	Hear(*v2.CiliumNode)
	Fill(o *v2.CiliumNode, made bool)
	Run(context.Context, addressing.Agent) error
}

// assigned returns what the operator assigns to this node while it runs; nil if it does not.
func (k *kube) assigned() assigned {
	switch {
	case k == nil:
	case k.pools != nil:
		return k.pools
	case k.singles != nil:
		return k.singles
	}
	return nil
}

// Named says whether the node's addresses are of pools that have names.
func (k *kube) Named() bool { return k.named() != nil }

// named returns the pools of this node; nil if its addresses are not of pools.
func (k *kube) named() *addressing.Pools {
	if k == nil {
		return nil
	}
	return k.pools
}

// heardOwn is told of this node's object.
func (k *kube) heardOwn(o *v2.CiliumNode) {
	if given := k.assigned(); given != nil {
		given.Hear(o)
		return
	}
	conf := k.addressing()
	says, err := conf.Changed(o, k.a.selfNode(k.facts).PodCIDRs())
	if err != nil {
		k.log.Error("the node's pod CIDRs have changed", "error", err)
	}
	if says {
		k.Report(err)
	}
}

// startAssigned begins to look after what is assigned.
func (k *kube) startAssigned(run *group) {
	if k.pools != nil {
		run.start("ip-pools", k.afterKinds(k.pools.Follow))
	}
	if given := k.assigned(); given != nil {
		run.start("node-addressing", func(ctx context.Context) error { return given.Run(ctx, k) })
	}
}

// Refresh has the node's object written.
func (k *kube) Refresh() { k.nodes.Refresh() }

// Report says how the node's addresses are.
func (k *kube) Report(err error) { k.a.components.Report("pod-cidrs", err, "as assigned") }

// AddressesMoved has the other nodes told of this one's pod CIDRs.
func (k *kube) AddressesMoved() {
	if err := k.a.announceSelf(k.facts); err != nil {
		k.log.Error("cannot tell the other nodes of this one's pod CIDRs", "error", err)
	}
	select {
	case k.a.cidrsMoved <- struct{}{}:
	default: // it is due already
	}
}

// poolsFor returns the pools from which an address is to be given to who asks, and whether it
// leaves the cluster under it.
func (a *api) poolsFor(ctx context.Context, owner, named string) (ipam.Choice, addressing.Plain, error) {
	skip := a.kube.skipsMasquerade(owner)
	plain := addressing.Plain{IPv4: skip, IPv6: skip}
	if a.kube.named() == nil {
		return ipam.Choice{IPv4: named, IPv6: named}, plain, nil
	}
	choice, of, err := a.kube.pools.For(ctx, a.kube.pods, owner, named)
	return choice, plain.Or(of), err
}
