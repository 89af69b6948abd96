package agent

import (
	"context"
	"log/slog"
	"path/filepath"

	"k8s.io/apimachinery/pkg/runtime/schema"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/api/v2alpha1"
	"github.com/hawser-net/hawser/internal/agent/addressing"
	"github.com/hawser-net/hawser/internal/agent/network"
	"github.com/hawser-net/hawser/internal/ipam"
	"github.com/hawser-net/hawser/internal/k8s"
)

// cluster is the connection to a cluster of Kubernetes, with this node's addresses there. Nil
// stands for a node outside of Kubernetes.
type cluster struct {
	client *k8s.Client
	// addressing is what this node's addresses follow from.
	addressing addressing.Config
	pools      *addressing.Pools   // nil if this node's CIDRs are not of pools
	singles    *addressing.Singles // nil if this node has no single addresses
	// kinds opens when the custom resources are known to be defined.
	kinds *latch
}

// connect connects to Kubernetes and waits until it is known which addresses this node's pods get:
// it writes the ranges into cfg. Outside of Kubernetes it returns nil.
func connect(ctx context.Context, cfg *Config, host network.Host, log *slog.Logger) (*cluster, error) {
	if !cfg.EnableK8s {
		return nil, nil
	}
	rc, err := cfg.K8s.REST()
	if err != nil {
		return nil, err
	}
	client, err := k8s.New(rc)
	if err != nil {
		return nil, err
	}
	c := &cluster{client: client, kinds: newLatch(), addressing: newAddressing(cfg, host, log.With("part", "ipam"))}
	if cfg.lbOnly() {
		return c, nil
	}
	if c.addressing.Describe, err = cfg.describe(ctx, log.With("part", "ipam")); err != nil {
		return nil, err
	}
	found, err := addressing.Await(ctx, c.addressing, client)
	cfg.IPv4Range, cfg.IPv6Range, c.pools, c.singles = found.Ranges.V4, found.Ranges.V6, found.Pools, found.Singles
	return c, err
}

// newAddressing is what this node's addresses follow from.
func newAddressing(cfg *Config, host network.Host, log *slog.Logger) addressing.Config {
	ahead, _ := addressing.ParsePreAllocation(cfg.PreAllocation, cfg.DefaultPool) // Validate has parsed it
	c := addressing.Config{
		Self: cfg.self(), ClusterID: cfg.ClusterID, Hosts: host.Addresses(), Mode: cfg.IPAM,
		Given:       addressing.Ranges{V4: cfg.IPv4Range, V6: cfg.IPv6Range},
		DefaultPool: cfg.DefaultPool, Ahead: ahead,
		Dir: filepath.Join(cfg.StateDir, "state"), Save: cfg.state.Write, KindsWait: cfg.CRDWait, UpdateInterval: cfg.NodeUpdate, Log: log,
	}
	if cfg.EnableIPv4 {
		c.Families |= ipam.IPv4
	}
	if cfg.EnableIPv6 {
		c.Families |= ipam.IPv6
	}
	return c
}

// assigned are the addresses that the operator assigns to this node while it runs.
type assigned interface {
	Families() ipam.Families
	Attach(*ipam.IPAM) error
	Observe(*v2.CiliumNode)
	Fill(o *v2.CiliumNode, made bool)
	Run(context.Context, addressing.Agent) error
}

// assigned returns what the operator assigns to this node while it runs; nil if it does not.
func (c *cluster) assigned() assigned {
	switch {
	case c == nil:
	case c.pools != nil:
		return c.pools
	case c.singles != nil:
		return c.singles
	}
	return nil
}

// followKinds waits until the custom resources are defined without which this node cannot be one of
// the cluster.
func (c *cluster) followKinds(ctx context.Context, cfg Config, log *slog.Logger) error {
	needs := []schema.GroupVersionResource{
		v2.Resource(v2.ResourceNodes), v2.Resource(v2.ResourceEndpoints), v2.Resource(v2.ResourceIdentities),
		v2.Resource(v2.ResourceNetworkPolicies), v2.Resource(v2.ResourceClusterwideNetworkPolicies),
	}
	if cfg.IPAM == addressing.MultiPool {
		needs = append(needs, v2alpha1.Resource(v2alpha1.ResourcePodIPPools))
	}
	if cfg.EndpointSlices {
		needs = append(needs, v2alpha1.Resource(v2alpha1.ResourceEndpointSlices))
	}
	if err := c.client.WaitForKinds(ctx, cfg.CRDWait, log, needs...); err != nil {
		return err
	}
	c.kinds.open()
	return nil
}

// afterKinds has a part begin when the custom resources are defined.
func (c *cluster) afterKinds(f func(context.Context) error) func(context.Context) error {
	if c == nil {
		return f
	}
	return func(ctx context.Context) error {
		if c.kinds.wait(ctx) != nil {
			return nil
		}
		return f(ctx)
	}
}
