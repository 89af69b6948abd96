package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"

	"github.com/hawser-net/hawser/internal/agent/addressing"
	"github.com/hawser-net/hawser/internal/agent/component"
	"github.com/hawser-net/hawser/internal/agent/enforcement"
	"github.com/hawser-net/hawser/internal/agent/identities"
	"github.com/hawser-net/hawser/internal/agent/network"
	"github.com/hawser-net/hawser/internal/agent/placement"
	"github.com/hawser-net/hawser/internal/announce"
	"github.com/hawser-net/hawser/internal/datapath/link"
	"github.com/hawser-net/hawser/internal/doublewrite"
	"github.com/hawser-net/hawser/internal/endpoint"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/ipam"
	"github.com/hawser-net/hawser/internal/ipcache"
	k8sids "github.com/hawser-net/hawser/internal/k8s/identities"
	"github.com/hawser-net/hawser/internal/labels"
	"github.com/hawser-net/hawser/internal/node"
	"github.com/hawser-net/hawser/internal/policy"
	"github.com/hawser-net/hawser/internal/storedial"
	"github.com/hawser-net/hawser/internal/storekeys"
	"github.com/hawser-net/hawser/pkg/allocator"
	"github.com/hawser-net/hawser/pkg/kvstore"
)

// tables are the agent's state of its node and of the cluster, with the policy computed from it.
// They do not depend on their sources, and of their readers only on the kernel.
type tables struct {
	components *component.Statuses
	metrics    *metricsSet
	namesakes  *namesakes
	registry   *endpoint.Registry
	pool       *ipam.IPAM
	cache      *ipcache.Cache
	addresses  *placement.Addresses // reconciles the kernel with cache
	nodes      *announce.Nodes
	shared     *announce.Addresses
	policy     *enforcement.Policy
	namedPorts *enforcement.NamedPorts
	gates      *gates // nil if pods do not wait for others to know them

	identities   *identities.Identities
	objects      *k8sids.Backend // nil if identities are not objects
	idMin, idMax identity.ID

	backend kvstore.Backend // of this process alone, if there is no store
	store   kvstore.Backend // nil on a node on its own
}

// newTables returns tables of which the kernel holds what the agent before has left there. They
// must be closed.
func newTables(ctx context.Context, cfg Config, host network.Host, k *kernel, c *cluster, log *slog.Logger) (_ *tables, err error) {
	t := &tables{components: component.New(), metrics: newMetrics(), registry: endpoint.NewRegistry(), cache: ipcache.New()}
	t.namesakes = &namesakes{components: t.components, log: log.With("part", "node")}
	defer func() {
		if err != nil {
			t.close()
		}
	}()
	if t.policy, err = newPolicy(cfg, k, log.With("part", "policy")); err != nil {
		return nil, err
	}
	if t.pool, err = newPool(cfg, c.assigned(), t.registry, k.links, log.With("part", "ipam")); err != nil {
		return nil, err
	}
	if t.idMin, t.idMax, err = identity.Range(cfg.ClusterID, cfg.MaxConnectedClusters); err != nil {
		return nil, err
	}
	// The key-value store may come and go, nothing waits for it.
	if cfg.KVStore == "" {
		t.backend = kvstore.NewMemory().Client()
	} else if t.store, err = storedial.Open(ctx, cfg.store(), log.With("part", "kvstore")); err != nil {
		return nil, err
	} else {
		t.backend = t.store
	}
	if err := t.openIdentities(cfg, host, c, log.With("part", "identity")); err != nil {
		return nil, err
	}
	if t.nodes, err = announce.NewNodes(announce.NodesConfig{Config: node.Config{
		Self: cfg.self(), MaxClusterID: cfg.MaxConnectedClusters, DeleteDelay: cfg.NodeDelay, Log: log.With("part", "node"),
	}, Namesake: t.namesakes.observe}, t.backend); err != nil {
		return nil, err
	}
	if t.addresses, err = placement.NewAddresses(placement.AddressesConfig{
		Log: log.With("part", "ipcache"), Cache: t.cache, Kernel: k.maps, Tunnel: cfg.Tunnel(), Outside: cfg.outside, Policy: t.policy, Components: t.components,
		CheckInterval: network.RepairInterval, Edited: t.metrics.countEdited(mapAddresses),
	}); err != nil {
		return nil, err
	}
	sharing := announce.AddressesConfig{Hosts: host.Addresses(), Log: log.With("part", "ipcache")}
	if c != nil && cfg.PodReadiness == readinessStrict {
		t.gates = newGates(t.registry)
		if cfg.KVStore != "" {
			sharing.Observed = t.gates.storeObserved
		}
	}
	if t.shared, err = announce.NewAddresses(sharing, t.backend, t.cache); err != nil {
		return nil, err
	}
	t.namedPorts = enforcement.NewNamedPorts(log.With("part", "policy"), t.policy, t.cache)
	return t, nil
}

// close ends background work.
func (t *tables) close() {
	if t.identities != nil {
		t.identities.Close()
	}
	if t.backend != nil {
		t.backend.Close()
	}
}

// newPolicy returns the owner of the policy engine and of the kernel's rule sets.
func newPolicy(cfg Config, k *kernel, log *slog.Logger) (*enforcement.Policy, error) {
	engine, err := newEngine(cfg)
	if err != nil {
		return nil, err
	}
	p, err := enforcement.NewPolicy(log, engine, k.maps)
	if err != nil {
		return nil, err
	}
	return p, errors.Join(p.SetAudit(cfg.PolicyAudit), p.SetCluster(cfg.ClusterID, cfg.MaxConnectedClusters))
}

func newEngine(cfg Config) (*policy.Engine, error) {
	mode, err := policy.ParseMode(cfg.EnablePolicy)
	if err != nil {
		return nil, err
	}
	return policy.New(policy.Config{
		Mode: mode, ClusterName: cfg.ClusterName, AllowLocalhost: cfg.AllowLocalhost != "policy",
		DefaultLocalCluster: cfg.PolicyDefaultLocalCluster, DualStack: cfg.EnableIPv4 && cfg.EnableIPv6,
		IPv6Only: !cfg.EnableIPv4, AllowNonDefaultDeny: cfg.NonDefaultDeny,
	})
}

// newFilter makes the identity-label filter from the flags.
func newFilter(cfg Config) (*labels.Filter, error) {
	var file []byte
	if cfg.LabelPrefixFile != "" {
		var err error
		if file, err = os.ReadFile(cfg.LabelPrefixFile); err != nil {
			return nil, fmt.Errorf("--label-prefix-file: %w", err)
		}
	}
	return labels.NewFilter(cfg.Labels, file)
}

func newPool(cfg Config, assigned assigned, registry *endpoint.Registry, links *link.Links, log *slog.Logger) (*ipam.IPAM, error) {
	pc := ipam.Config{Expiration: cfg.IPAMExpiration, Log: log, Local: links.IsLocal, InUse: func(ip netip.Addr) (string, bool) {
		row, ok := registry.ByAddr(ip)
		return fmt.Sprintf("endpoint %d", row.ID), ok
	}}
	if cfg.lbOnly() {
		pc.None = true
		return ipam.New(pc)
	}
	if assigned != nil {
		pc.Assigned, pc.DefaultPool = assigned.Families(), cfg.DefaultPool
		pool, err := ipam.New(pc)
		if err == nil {
			err = assigned.Attach(pool)
		}
		return pool, err
	}
	if cfg.EnableIPv4 {
		pc.IPv4CIDR = netip.MustParsePrefix(cfg.IPv4Range)
	}
	if cfg.EnableIPv6 {
		pc.IPv6CIDR = netip.MustParsePrefix(cfg.IPv6Range)
	}
	return ipam.New(pc)
}

// newAddressAllocator returns the pool as those see it who ask for addresses.
func newAddressAllocator(cfg Config, pool *ipam.IPAM, c *cluster, stopping <-chan struct{}) *addressing.Allocator {
	b := &addressing.Allocator{IPAM: pool, Delegated: cfg.IPAM == addressing.Delegated, Stopping: stopping}
	if c.assigned() != nil {
		b.Node = cfg.NodeName
	}
	if addressing.OfCloud(cfg.IPAM) {
		b.InterfaceOf, b.NativeCIDRs = c.singles.InterfaceOf, cfg.NativeCIDRs()
	}
	return b
}

// openIdentities opens what keeps the cluster's identities, and finds this node's in it.
func (t *tables) openIdentities(cfg Config, host network.Host, c *cluster, log *slog.Logger) error {
	store, err := t.openIdentityStore(cfg, host, c, log)
	if err != nil {
		return err
	}
	if !cfg.management().Agent() { // the operator alone makes them
		store = allocator.ReadOnly(store)
	}
	ic := identities.Config{
		Log: log, Store: store, First: t.idMin, Last: t.idMax, Fixed: cfg.FixedIdentities,
		Management: cfg.management(), Timeout: cfg.AllocationTimeout, SyncInterval: cfg.AllocationSync, Temporary: t.metrics.temporary,
		Referenced: func() map[identity.ID]bool {
			used := map[identity.ID]bool{}
			for _, e := range t.cache.All() {
				used[e.Identity] = true
			}
			return used
		},
	}
	if cfg.WellKnown {
		ic.WellKnown = identity.WellKnownIdentities(cfg.ClusterName, "kube-system")
	}
	if t.objects != nil {
		ic.Expect = t.objects.Expect
	}
	t.identities, err = identities.New(ic)
	return err
}

// openIdentityStore opens what keeps the cluster's identities: objects, keys, or both.
func (t *tables) openIdentityStore(cfg Config, host network.Host, c *cluster, log *slog.Logger) (allocator.Backend, error) {
	mode := cfg.identityMode()
	var err error
	if mode != identityKVStore {
		if t.objects, err = k8sids.New(k8sids.Config{
			Client: c.client, First: allocator.ID(t.idMin), Last: allocator.ID(t.idMax), KeyType: k8sids.Key{},
			Node: cfg.NodeName, Namespace: cfg.inNamespace(), Log: log,
		}); err != nil || mode == identityCRD {
			return t.objects, err
		}
	}
	keys, err := allocator.NewKVStoreBackend(allocator.KVStoreConfig{
		Store: t.backend, BasePath: storekeys.IdentitiesPrefix, Suffix: host.Suffix(), KeyType: k8sids.Key{}, Logger: log,
	})
	if err != nil || mode == identityKVStore {
		return keys, err
	}
	return doublewrite.New(doublewrite.Config{Objects: t.objects, Keys: keys, ReadObjects: mode == identityBothCRD, Log: log})
}

// outside is the identity of an address without a claim.
func (c *Config) outside(ip netip.Addr) identity.ID {
	return identity.WorldOf(ip.Unmap(), c.EnableIPv4 && c.EnableIPv6)
}

// self is this node's key.
func (c *Config) self() node.Key { return node.Key{Cluster: c.ClusterName, Name: c.NodeName} }
