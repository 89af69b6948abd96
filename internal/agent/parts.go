package agent

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"

	healthpb "github.com/hawser-net/hawser/api/health"
	"github.com/hawser-net/hawser/api/rest"
	"github.com/hawser-net/hawser/api/rest/server"
	"github.com/hawser-net/hawser/internal/agent/addressing"
	"github.com/hawser-net/hawser/internal/agent/enforcement"
	"github.com/hawser-net/hawser/internal/agent/health"
	"github.com/hawser-net/hawser/internal/agent/hubble"
	"github.com/hawser-net/hawser/internal/agent/monitor"
	"github.com/hawser-net/hawser/internal/agent/network"
	"github.com/hawser-net/hawser/internal/agent/placement"
	"github.com/hawser-net/hawser/internal/agent/restapi"
	"github.com/hawser-net/hawser/internal/cniconf"
	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/endpoint"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/ipam"
	"github.com/hawser-net/hawser/internal/k8s/services"
	"github.com/hawser-net/hawser/internal/labels"
	"github.com/hawser-net/hawser/internal/policy"
	"github.com/hawser-net/hawser/internal/policydir"
)

// parts fill the tables, reconcile the kernel with them, and show them. None of them knows
// parts: each was given what it uses.
type parts struct {
	cfg     Config
	log     *slog.Logger
	host    network.Host
	kernel  *kernel
	tables  *tables
	cluster *cluster // nil outside of Kubernetes, as the next two
	objects *objects
	kube    *kube
	// services is nil if there is no source of them.
	services *services.Services
	mesh     *mesh // nil without other clusters
	files    *policydir.Dir

	network   *network.Network
	publisher *placement.Publisher
	plain     *placement.Unmasqueraded
	rules     *enforcement.Rules
	lifecycle *endpoint.Lifecycle
	announcer *announcer

	monitor *monitor.Monitor
	hubble  *hubble.Hubble
	health  *health.Health // nil if nodes do not probe each other
	cni     *cniconf.Manager
	rest    *restapi.API
	startup *restapi.StartupGate

	everything *syncGate     // opens when all that policy depends on has been observed
	meshSynced *latch        // opens when other clusters have been observed
	inForce    *latch        // opens when policy is that of everything there was to observe
	stopping   chan struct{} // closed when the agent ends
}

// newParts makes all parts; none of them runs, and nothing on the machine is changed.
func (ag *Agent) newParts(cfg Config, host network.Host, filter *labels.Filter, k *kernel, t *tables, c *cluster) (*parts, error) {
	log := ag.log
	p := &parts{
		cfg: cfg, log: log, host: host, kernel: k, tables: t, cluster: c, monitor: monitor.New(log, k.maps), startup: restapi.NewStartupGate(),
		everything: newSyncGate(), meshSynced: newLatch(), inForce: newLatch(), stopping: make(chan struct{}),
	}
	p.network = p.newNetwork()
	relabels := newPodQueue()
	var err error
	if p.objects, err = newObjects(cfg, host, filter, c, t, relabels.add, log.With("part", "kubernetes")); err != nil {
		return nil, err
	}
	if p.services, err = newServices(cfg, host, c, k, p.network, p.meshSynced, t.metrics, t.components, log.With("part", "services")); err != nil {
		return nil, err
	}
	if err := p.serveAddresses(); err != nil {
		return nil, err
	}
	if p.mesh, err = newMesh(cfg, t, p.services, p.meshSynced, log.With("part", "clustermesh")); err != nil {
		return nil, err
	}
	p.plain = placement.NewUnmasqueraded(k.links.SetUnmasqueraded, log.With("part", "link"))
	p.publisher = p.newPublisher()
	if p.hubble, err = p.newHubble(ag.version); err != nil {
		return nil, err
	}
	if p.rules, err = enforcement.NewRules(enforcement.RulesConfig{
		Log: log.With("part", "policy"), Policy: t.policy, Identities: t.identities, Prefixes: p.publisher, Blocks: k.maps, Addresses: k.maps,
		DualStack: cfg.EnableIPv4 && cfg.EnableIPv6, Checkpoint: filepath.Join(cfg.StateDir, "state", "local_allocator_state.json"), Write: cfg.state.Write,
		Changed: p.hubble.PolicyChanged, Filter: filter, LeftOut: t.reportLeftOut, NamespacePrefixes: cfg.NamespacePrefixes, Beyond: t.reportBeyond,
	}); err != nil {
		return nil, err
	}
	store, err := endpoint.NewStore(filepath.Join(cfg.StateDir, "state"))
	if err != nil {
		return nil, err
	}
	addrs := newAddressAllocator(cfg, t.pool, c, p.stopping)
	p.lifecycle = endpoint.NewLifecycle(endpoint.Config{
		Log: log.With("part", "endpoint"), Registry: t.registry, Store: store, Filter: filter, Identities: t.identities,
		Addresses: addrs.Endpoints(), Publisher: p.publisher, Policy: t.policy, Rows: k.maps, Programs: k.programs, Links: k.links,
		IdentityTimeout: cfg.AllocationTimeout, PropagationDelay: propagationDelay, OrphanGrace: cfg.OrphanGrace, GiveUpUnrecorded: cfg.GiveUpUnrecorded, Step: ag.step,
		StateChanged: p.hubble.EndpointChanged,
	})
	if c != nil {
		if p.kube, err = newKube(kubeConfig{
			cfg: cfg, log: log.With("part", "kubernetes"), cluster: c, objects: p.objects, tables: t, lifecycle: p.lifecycle, rules: p.rules, filter: filter,
			relabels: relabels, everything: p.everything,
			servers: p.newAPIServers(),
		}); err != nil {
			return nil, err
		}
	}
	files := policydir.Defaults()
	files.Path, files.Keep = cfg.StaticCNPPath, filepath.Join(cfg.StateDir, "policies")
	files.Unkept = func(err error) { t.components.Warn("policy-file-copies", err, "the files are kept for a restart") }
	if p.files, err = policydir.New(files, log.With("part", "policy")); err != nil {
		return nil, err
	}
	if p.cni, err = cniconf.New(cfg.cniFile(), log.With("part", "cni")); err != nil {
		return nil, err
	}
	p.announcer = &announcer{cfg: cfg, log: log, host: host, tables: t, network: p.network, objects: p.objects, health: p.healthAddresses}
	if p.health, err = p.newHealth(); err != nil {
		return nil, err
	}
	p.rest = p.newREST(ag.version, ag.flags, addrs)
	t.metrics.registry.MustRegister(newStateCollector(p))
	p.mesh.register(t.metrics.registry)
	return p, nil
}

// newNetwork returns the node's own networking.
func (p *parts) newNetwork() *network.Network {
	cfg := p.cfg
	ofCloud := addressing.OfCloud(cfg.IPAM)
	if ofCloud {
		cfg.DirectRoutes = false // the cloud knows where pods are
	}
	return network.New(network.Config{
		Options: cfg.NetworkOptions, Self: cfg.self(), ClusterID: cfg.ClusterID, MaxClusters: cfg.MaxConnectedClusters, Host: p.host,
		KubeProxyReplacement: cfg.KubeProxyReplacement, CgroupRoot: cfg.CgroupRoot, MasqueradePorts: cfg.snatPorts(),
		HostPorts:   p.cluster != nil && hadHostPorts(p.kernel.maps, p.log.With("part", "kubernetes")),
		Interfaces:  ofCloud,
		NotForPods:  cfg.notForPods(),
		Aggregation: cfg.Flows.MonitorAggregation(),
		CTTimeouts:  datapath.CTTimeouts{TCP: cfg.CTTCP, TCPSyn: cfg.CTTCPSyn, TCPFin: cfg.CTTCPFin, Any: cfg.CTAny},
		Dir:         filepath.Join(cfg.StateDir, "state"), Write: cfg.state.Write,
		Links: p.kernel.links, Programs: p.kernel.programs, Peers: p.kernel.maps, Pool: p.tables.pool, Registry: p.tables.registry,
		Cache: p.tables.cache, Nodes: p.tables.nodes, Components: p.tables.components, Log: p.log,
	})
}

// newPublisher returns what publishes where this node's endpoints are.
func (p *parts) newPublisher() *placement.Publisher {
	c := placement.Config{
		Log: p.log, Cluster: p.cfg.ClusterName, Node: p.cfg.NodeName, Host: p.host.Underlay(), Cache: p.tables.cache, Addresses: p.tables.addresses,
		Shared: p.tables.shared, Wait: p.cfg.KVStore != "", Unmasqueraded: p.plain,
	}
	if p.objects != nil {
		c.Objects = p.objects.endpoints
	}
	return placement.New(c)
}

// newAPIServers returns what claims the addresses at which the API of Kubernetes is served.
func (p *parts) newAPIServers() *placement.APIServers {
	t, log := p.tables, p.log.With("part", "kubernetes")
	return placement.NewAPIServers(placement.APIServersConfig{
		Log: log, Self: p.cfg.self(), Local: func() []netip.Addr { return p.host.All(log) }, PodCIDRs: t.podCIDRs, Nodes: t.nodes.Table(),
		Cache: t.cache, Addresses: t.addresses, Rules: p.rules,
		HostLabels: func() labels.Set {
			set, _ := t.identities.Labels(identity.Host)
			return set
		},
		SetHostLabels: func(set labels.Set) error {
			return t.identities.Apply(t.policy, map[identity.ID]labels.Set{identity.Host: set}, nil)
		},
	})
}

// newHubble returns what records and serves this node's flows, with what it reads of the agent.
func (p *parts) newHubble(version string) (*hubble.Hubble, error) {
	t, log := p.tables, p.log.With("part", "flows")
	n := hubble.Node{
		Self: p.cfg.self(), Version: version, Nodes: t.nodes.Table(), NodesSynced: p.waitNodes,
		Monitor: p.monitor, Links: p.kernel.links.Names,
		Endpoints: t.registry, Addresses: t.cache, Policy: t.policy, Labels: t.identities.Labels,
		InForce: p.inForce.isOpen, PolicyLabels: p.policyLabels,
		Shares: func(changes []policy.Change) (beyond, back []policy.Owner) { return p.rules.Shares(changes) },
		Listen: func(path, option string) (net.Listener, error) { return restapi.Listen(path, option, log, nil) },
		ServeMetrics: func(ctx context.Context, l net.Listener, registry *prometheus.Registry) error {
			return serveMetrics(ctx, l, registry, metricsTimeout)
		},
		Report:   t.components.Set,
		RuleLine: func(o policy.Owner, path string) (string, int) { return p.files.RuleLine(o, path) }, // they are made later
		Services: func(s grpc.ServiceRegistrar) { healthpb.RegisterNodeHealthServer(s, p.rest.HealthService()) },
	}
	if p.objects != nil {
		n.Workload, n.RemoteWorkload = p.objects.workload, p.objects.remoteWorkload
	}
	if p.services != nil {
		n.Frontends = p.services.Table()
	}
	return hubble.New(p.cfg.Flows, n, log)
}

// policyLabels returns the keys of the labels by which rules are evaluated.
func (p *parts) policyLabels() labels.Keys {
	if p.kube == nil {
		return labels.AllKeys()
	}
	return p.kube.labels.policyLabels()
}

// newHealth returns what answers other nodes' probes and probes them; nil if nodes do not.
func (p *parts) newHealth() (*health.Health, error) {
	if !p.cfg.HealthChecking {
		return nil, nil
	}
	log := p.log.With("part", "health")
	saved := network.AddressFile{Path: filepath.Join(p.cfg.StateDir, "state", "health.json"), Write: p.cfg.state.Write}
	return health.New(health.Config{
		Self: p.cfg.self(), Nodes: p.tables.nodes.Table(), Local: p.host.Addresses(),
		IPv4: p.cfg.EnableIPv4, IPv6: p.cfg.EnableIPv6, Port: p.cfg.ClusterHealthPort, Interval: p.cfg.HealthInterval, Endpoint: p.cfg.HealthEndpoint,
		Links: p.kernel.links, Pool: p.tables.pool, Registry: p.tables.registry, Lifecycle: p.lifecycle, Devices: p.network.Devices, InForce: p.inForce.isOpen,
		Routers: p.network.Routers, Before: saved.Load(log), Save: saved.Save, Announce: p.announcer.announce, Log: log,
	})
}

// healthAddresses are those of this node's health endpoint.
func (p *parts) healthAddresses() []netip.Addr {
	if p.health == nil {
		return nil
	}
	return p.health.Addresses()
}

// waitNodes waits until the table of nodes has those that this cluster had when the agent started.
func (p *parts) waitNodes(ctx context.Context) error {
	if err := p.tables.nodes.WaitSynced(ctx); err != nil {
		return err
	}
	return p.objects.waitNodes(ctx)
}

// newREST returns the API, with what its operations show and change of the agent.
func (p *parts) newREST(version string, flags map[string]string, addrs *addressing.Allocator) *restapi.API {
	cfg, t := &p.cfg, p.tables
	c := restapi.Config{
		Log: p.log, Version: version, Flags: flags,
		Options: restapi.Options{
			ClusterName: cfg.ClusterName, NodeName: cfg.NodeName, IPAM: cfg.IPAM, DatapathMode: cfg.DatapathMode,
			RoutingMode: cfg.RoutingMode, TunnelProtocol: cfg.TunnelProtocol, EnableIPv4: cfg.EnableIPv4, EnableIPv6: cfg.EnableIPv6,
			MasqueradeIPv4: cfg.MasqueradeIPv4, MasqueradeIPv6: cfg.MasqueradeIPv6, KubeProxyReplacement: cfg.KubeProxyReplacement,
			KVStore: cfg.KVStore, KVStoreOpts: cfg.KVStoreOpts, StaticCNPPath: cfg.StaticCNPPath,
			MapDirectory: cfg.Maps.Dir, APIAccess: cfg.APIAccess, Management: cfg.management(),
		},
		Registry: t.registry, Lifecycle: p.lifecycle, Policy: t.policy, Identities: t.identities, FirstID: t.idMin, LastID: t.idMax,
		Pool: t.pool, Allocator: addrs, Maps: p.kernel.maps, Programs: p.kernel.programs, Addresses: t.cache, Nodes: t.nodes, Store: t.store, Mesh: p.mesh,
		Files: p.files, CNI: p.cni, Events: p.monitor, Hubble: p.hubble, Components: t.components, Health: p.health, Metrics: t.metrics.registry,
		Routers: p.network.Routers, Devices: p.network.Devices, Outside: cfg.outside,
		PodSettings: func(st *rest.DaemonConfigurationStatus) { cfg.podSettings(st, p.network.Devices()) },
		PoolsFor:    p.poolsFor,
		Sync:        p.syncPart, AwaitPrograms: p.awaitPrograms, AwaitRules: p.awaitRules, DropDeletions: p.dropDeletions, Stopping: p.stopping,
	}
	if p.kube != nil {
		c.Kubernetes = p.kube
	}
	if p.services != nil {
		c.Services = p.services.Table()
	}
	return restapi.New(c)
}

// poolsFor returns the pools for a requested address, and whether its owner leaves the cluster
// under it.
func (p *parts) poolsFor(ctx context.Context, owner, named string) (ipam.Choice, addressing.Plain, error) {
	if err := p.kube.awaitRanges(ctx); err != nil {
		return ipam.Choice{}, addressing.Plain{}, err
	}
	skip := p.objects.skipsMasquerade(owner)
	plain := addressing.Plain{IPv4: skip, IPv6: skip}
	if p.cluster == nil || p.cluster.pools == nil {
		return ipam.Choice{IPv4: named, IPv6: named}, plain, nil
	}
	choice, of, err := p.cluster.pools.For(ctx, p.objects.pods, owner, named)
	return choice, plain.Or(of), err
}

// awaitPrograms has a new endpoint wait until its neighbours are evaluated by the same maps: the
// others would not know it.
func (p *parts) awaitPrograms(ctx context.Context) error {
	if !p.network.Keeping() {
		return nil
	}
	within, cancel := context.WithTimeout(ctx, admitWait)
	defer cancel()
	if p.inForce.wait(within) == nil {
		return nil
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return server.Errorf(http.StatusServiceUnavailable, "the agent has new maps and has not observed all that belongs there yet; try again in a moment")
}

// awaitRules waits for as long as a new endpoint may wait until the rules and identities have been
// observed.
func (p *parts) awaitRules(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, admitWait)
	defer cancel()
	return p.tables.policy.WaitObserved(ctx)
}
