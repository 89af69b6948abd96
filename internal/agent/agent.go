package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-net/hawser/api/rest"
	"github.com/hawser-net/hawser/api/rest/server"
	"github.com/hawser-net/hawser/internal/agent/addressing"
	"github.com/hawser-net/hawser/internal/agent/component"
	"github.com/hawser-net/hawser/internal/agent/enforcement"
	"github.com/hawser-net/hawser/internal/agent/health"
	"github.com/hawser-net/hawser/internal/agent/hubble"
	"github.com/hawser-net/hawser/internal/agent/identities"
	"github.com/hawser-net/hawser/internal/agent/monitor"
	"github.com/hawser-net/hawser/internal/agent/restapi"
	"github.com/hawser-net/hawser/internal/announce"
	"github.com/hawser-net/hawser/internal/cniconf"
	"github.com/hawser-net/hawser/internal/daemon"
	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/datapath/link"
	"github.com/hawser-net/hawser/internal/datapath/loader"
	"github.com/hawser-net/hawser/internal/datapath/maps"
	"github.com/hawser-net/hawser/internal/deletequeue"
	"github.com/hawser-net/hawser/internal/doublewrite"
	"github.com/hawser-net/hawser/internal/endpoint"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/ipam"
	"github.com/hawser-net/hawser/internal/ipcache"
	k8sids "github.com/hawser-net/hawser/internal/k8s/identities"
	"github.com/hawser-net/hawser/internal/labels"
	"github.com/hawser-net/hawser/internal/node"
	"github.com/hawser-net/hawser/internal/policy"
	"github.com/hawser-net/hawser/internal/policydir"
	"github.com/hawser-net/hawser/internal/storedial"
	"github.com/hawser-net/hawser/internal/storekeys"
	"github.com/hawser-net/hawser/internal/table"
	"github.com/hawser-net/hawser/pkg/allocator"
	"github.com/hawser-net/hawser/pkg/kvstore"
)

// Agent is one node's agent. Make it with New, run it once with Run.
type Agent struct {
	cfg     Config
	log     *slog.Logger
	version string
	flags   map[string]string
	// step is called before each step of a creation or deletion of an endpoint; nil but in tests.
	step func(string)
}

// New returns an agent for a valid configuration. It touches nothing.
func New(cfg Config, log *slog.Logger, version string, flags map[string]string) (*Agent, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Agent{cfg: cfg, log: log, version: version, flags: flags, step: faultStep()}, nil
}

// api is the running agent: everything that the operations of the REST API and the metrics need.
type api struct {
	cfg              Config
	log              *slog.Logger
	version          string
	flagValues       map[string]string
	registry         *endpoint.Registry
	lifecycle        *endpoint.Lifecycle
	policy           *endpoint.Policy
	pool             *ipam.IPAM
	book             *addressing.Book // of pool, for those who ask for addresses
	router4, router6 netip.Addr
	identities       *identities.Identities
	idMin, idMax     identity.ID
	maps             *maps.Maps
	programs         *loader.Loader
	cache            *ipcache.Cache
	addresses        *table.Reconciler[netip.Prefix, ipcache.Entry] // brings the kernel to cache
	namedPorts       *enforcement.NamedPorts
	nodes            *announce.Nodes
	store            kvstore.Backend // nil on a node on its own
	kube             *kube           // nil outside of Kubernetes
	mesh             *mesh           // nil without other clusters
	files            *policydir.Dir
	cni              *cniconf.Manager
	monitor          *monitor.Monitor
	hubble           *hubble.Hubble
	components       *component.Statuses
	routeFaults      routeFaults
	health           *health.Health // nil if nodes do not probe each other
	metrics          *metricsSet
	rest             *restapi.API
	stopping         chan struct{} // closed when the agent ends
	inForce          chan struct{} // closed when policy is that of everything there was to hear

	// moved says that the node's addresses have changed, or what is served there.
	moved chan struct{}
	// cidrsMoved says that the node's pod CIDRs have changed, and the other nodes have been told.
	cidrsMoved chan struct{}

	mu      sync.Mutex
	devices datapath.Devices
	// outsideLed says whether the programs were told to lead clients outside to services.
	outsideLed bool
	// heldPeers are the other nodes as last told to the kernel, at first by the agent before;
	// peersHeard says that this one has heard of all.
	heldPeers  []datapath.Peer
	peersHeard bool
	judging    sync.Mutex // of addresses that the kernel has no room for: the last look counts
	announcing sync.Mutex // of this node to the others: what is newest is told last
	// keeping: the pods' packets are still judged by the programs and maps of an agent before.
	keeping bool
}

func (a *api) deviceFacts() datapath.Devices {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.devices
}

// Run brings the node up and keeps it so until ctx ends. It returns nil after a clean stop, which
// leaves everything in the kernel as it is, or the error that makes it impossible to go on.
func (ag *Agent) Run(ctx context.Context) error {
	cfg, log := ag.cfg, ag.log
	started := time.Now()
	facts, err := findNode(cfg)
	if err != nil {
		return err
	}
	filter, err := newFilter(cfg)
	if err != nil {
		return err
	}
	unlock, err := lockState(ctx, cfg.StateDir)
	if err != nil {
		return err
	}
	defer unlock()
	var cluster *kube
	if cfg.EnableK8s {
		if cluster, err = newKube(cfg, log.With("part", "kubernetes")); err != nil {
			return err
		}
		if err = cluster.awaitAddresses(ctx, facts, &cfg); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
	}

	// ---- what the kernel holds ----------------------------------------------------------------
	cfg.Maps.Dir = filepath.Join(cfg.BPFRoot, "hawser")
	kernel, err := maps.Open(cfg.Maps)
	if err != nil {
		return err
	}
	defer kernel.Close()
	if !cfg.EnableK8s {
		if err := forgetServices(ctx, kernel); err != nil {
			return err
		}
	}
	links, err := link.New(link.Config{}, log.With("part", "link"))
	if err != nil {
		return err
	}
	defer links.Close()
	programs := loader.New(kernel, links, log.With("part", "loader"))
	defer programs.Close()

	// ---- pure parts and tables ------------------------------------------------------------------
	a := &api{
		cfg: cfg, log: log, version: ag.version, flagValues: ag.flags, maps: kernel, programs: programs,
		registry: endpoint.NewRegistry(), cache: ipcache.New(), components: component.New(), inForce: make(chan struct{}),
		metrics: newMetrics(), monitor: monitor.New(log, kernel), stopping: make(chan struct{}), moved: make(chan struct{}, 1),
		cidrsMoved: make(chan struct{}, 1),
	}
	engine, err := newEngine(cfg)
	if err != nil {
		return err
	}
	if a.policy, err = endpoint.NewPolicy(log.With("part", "policy"), engine, kernel); err != nil {
		return err
	}
	if err := a.policy.SetAudit(cfg.PolicyAudit); err != nil {
		return err
	}
	if a.pool, err = newPool(cfg, cluster.assigned(), a.registry, links, log.With("part", "ipam")); err != nil {
		return err
	}
	a.book = &addressing.Book{IPAM: a.pool, Delegated: a.delegated(), Stopping: a.stopping}
	if cluster.assigned() != nil {
		a.book.Node = cfg.NodeName
	}
	if a.idMin, a.idMax, err = identity.Range(cfg.ClusterID, cfg.MaxConnectedClusters); err != nil {
		return err
	}

	// ---- the key-value store: it may come and go, nothing below waits for it --------------------
	var backend kvstore.Backend
	if cfg.KVStore == "" {
		backend = kvstore.NewMemory().Client()
	} else {
		if backend, err = storedial.Open(ctx, cfg.store(), log.With("part", "kvstore")); err != nil {
			return err
		}
		a.store = backend
	}
	defer backend.Close()
	run := newGroup(ctx, log)
	defer func() {
		if a.identities != nil {
			a.identities.Close()
		}
	}()
	defer run.abort()
	numbers, err := numberStore(cfg, facts, backend, cluster, a.idMin, a.idMax, log.With("part", "identity"))
	if err != nil {
		return err
	}
	if a.identities, err = identities.New(a.identitiesConfig(numbers, cluster)); err != nil {
		return err
	}
	if a.nodes, err = announce.NewNodes(announce.NodesConfig{Config: node.Config{
		Self: node.Key{Cluster: cfg.ClusterName, Name: cfg.NodeName}, MaxClusterID: cfg.MaxConnectedClusters,
		DeleteDelay: cfg.NodeDelay, Log: log.With("part", "node"),
	}}, backend); err != nil {
		return err
	}
	addrTable, err := table.NewReconciler(table.ReconcilerConfig{Name: "ipcache", Log: log.With("part", "ipcache"), Failing: a.judgeAddresses},
		a.cache.Table(), ipcache.NewMaps(kernel, cfg.RoutingMode == "tunnel"))
	if err != nil {
		return err
	}
	a.addresses = addrTable
	sharing := announce.AddressesConfig{Hosts: facts.hosts(), Log: log.With("part", "ipcache")}
	if cluster != nil && cfg.KVStore != "" && cfg.PodReadiness == readinessStrict {
		sharing.Observed = cluster.storeEchoed
	}
	shared, err := announce.NewAddresses(sharing, backend, a.cache)
	if err != nil {
		return err
	}
	a.namedPorts = enforcement.NewNamedPorts(log.With("part", "policy"), a.policy, a.cache)
	if cluster != nil {
		cluster.shared = shared
		if err := cluster.join(a, facts, links, filter); err != nil {
			return err
		}
		if err := a.serveAddresses(facts, links); err != nil {
			return err
		}
	}
	if a.mesh, err = newMesh(a, log.With("part", "clustermesh")); err != nil {
		return err
	}
	placer := &placer{
		cfg: cfg, cluster: cluster, facts: facts, cache: a.cache, kernel: addrTable, shared: shared, unplaced: a.judgeAddresses,
		plain: newUnmasqueraded(links.SetUnmasqueraded, log.With("part", "link")), log: log,
	}
	if a.hubble, err = newHubble(a, log.With("part", "flows")); err != nil {
		return err
	}
	rules, err := enforcement.NewRules(enforcement.RulesConfig{
		Log: log.With("part", "policy"), Policy: a.policy, Identities: a.identities, Prefixes: placer, Blocks: kernel,
		DualStack: cfg.EnableIPv4 && cfg.EnableIPv6, Checkpoint: filepath.Join(cfg.StateDir, "state", "local_allocator_state.json"), Write: writeState,
		Changed: a.hubble.PolicyChanged,
	})
	if err != nil {
		return err
	}
	store, err := endpoint.NewStore(filepath.Join(cfg.StateDir, "state"))
	if err != nil {
		return err
	}
	a.lifecycle = endpoint.NewLifecycle(endpoint.Config{
		Log: log.With("part", "endpoint"), Registry: a.registry, Store: store, Filter: filter, Identities: a.identities,
		Addresses: a.book.Endpoints(), Placer: placer, Policy: a.policy, Maps: kernel, Programs: programs, Links: links,
		IdentityTimeout: cfg.AllocationTimeout, SettleDelay: settleDelay, OrphanGrace: cfg.OrphanGrace, Step: ag.step,
		StateChanged: a.hubble.EndpointChanged,
	})
	filesCfg := policydir.Defaults()
	filesCfg.Path, filesCfg.Keep = cfg.StaticCNPPath, filepath.Join(cfg.StateDir, "policies")
	if a.files, err = policydir.New(filesCfg, log.With("part", "policy")); err != nil {
		return err
	}
	cni := cfg.CNI
	cni.Debug = cfg.Debug
	if def := Defaults(); cfg.SocketPath != def.SocketPath {
		cni.SocketPath = cfg.SocketPath
	}
	if a.cni, err = cniconf.New(cni, log.With("part", "cni")); err != nil {
		return err
	}

	// ==== from here on the machine is changed ====================================================

	// The node itself: addresses, devices, programs. Restored endpoints come first, because the
	// router must not take one of their addresses.
	run.start("link", links.Run)
	run.start("ipcache", addrTable.Run)
	run.start("named-ports", a.namedPorts.Run)
	routers := routerState{path: filepath.Join(cfg.StateDir, "state", "router.json")}
	preferred := routers.load(log)
	if err := health.RemoveEndpoint(links); err != nil {
		return err
	}
	if a.health, err = a.newHealth(facts, links, log.With("part", "health")); err != nil {
		return err
	}
	a.rest = a.newREST()
	if err := a.lifecycle.Load(ctx); err != nil {
		return err
	}
	if err := placer.plain.restore(a.registry.List()); err != nil {
		return err
	}
	if a.health != nil {
		a.health.Reserve()
	}
	if err := a.takeRouter(preferred); err != nil {
		return err
	}
	if err := routers.save(a.router4, a.router6); err != nil {
		return err
	}
	peerFile := peerState{path: filepath.Join(cfg.StateDir, "state", "peers.json")}
	a.heldPeers = peerFile.load(log)
	if err := a.keepPrograms(log); err != nil {
		return err
	}
	if err := a.configure(facts, links, log); err != nil {
		return err
	}
	a.placeSelf(facts, log)
	// The rules come before the pods: an endpoint that is new to the kernel must not be open for as
	// long as the files take to be read.
	gate := newSyncGate()
	filesHeard := make(chan struct{})
	filesSynced := gate.expect()
	heard := sync.OnceFunc(func() { filesSynced(); close(filesHeard) })
	run.start("policy-files", func(ctx context.Context) error {
		return a.files.Run(ctx, func(changes []policy.Change) {
			err := rules.Apply(changes)
			if err != nil {
				log.Error("policy is not in force in full", "error", err)
			}
			a.components.Report("rules", err, "all rules are in force")
			a.metrics.policyUp.Add(float64(len(changes)))
			heard()
		})
	})
	select {
	case <-filesHeard:
	case <-run.ctx.Done():
		return run.wait()
	}
	a.rest.NoteUserLabels()
	forgo := a.identities.Restore(a.registry.List())
	restored, err := a.lifecycle.Resume(ctx)
	if err != nil {
		return err
	}
	a.pool.Open()
	log.Info("the node's network is up", "restored", restored, "took", time.Since(started).Round(time.Millisecond))

	// ---- sources --------------------------------------------------------------------------------
	idsSynced := gate.expect()
	if cluster == nil {
		a.policy.RulesHeard() // from the files
		heard := idsSynced
		idsSynced = func() { a.policy.Heard(); heard() }
	}
	nodesSynced := gate.expect()
	addrsSynced := gate.expect()
	if cluster != nil {
		if idsSynced, err = cluster.start(run, gate, rules, idsSynced); err != nil {
			return err
		}
	}
	run.start("identities", func(ctx context.Context) error {
		return a.identities.Run(ctx, a.policy, idsSynced, func(set labels.Set, id identity.ID) {
			a.lifecycle.Renumber(ctx, set, id)
		})
	})
	run.start("allocator", cluster.afterKinds(a.identities.RunAllocator))
	if err := a.announceSelf(facts); err != nil {
		return err
	}
	run.start("nodes", a.nodes.Run)
	run.start("filters", func(ctx context.Context) error { return a.guardFilters(ctx, links, log) })
	damaged := make(chan struct{}, 1)
	run.start("damage", func(ctx context.Context) error {
		return links.Watch(ctx, func(reason string) {
			log.Warn("somebody changed the node's network; repairing it", "what", reason)
			select {
			case damaged <- struct{}{}:
			default: // a repair is due already
			}
		})
	})
	run.start("node-addresses", func(ctx context.Context) error { return links.WatchAddresses(ctx, a.noteMoved) })
	run.start("routes", func(ctx context.Context) error {
		return a.followNodes(ctx, facts, links, damaged, peerFile, nodesSynced, log)
	})
	run.start("addresses", shared.Run)
	run.start("addresses-synced", func(ctx context.Context) error {
		if shared.WaitSynced(ctx) == nil {
			addrsSynced()
		}
		return nil
	})
	run.start("temporary-identities", a.settleIdentities)
	a.mesh.start(run, gate, log.With("part", "clustermesh"))
	run.start("synced", func(ctx context.Context) error { return a.whenSynced(ctx, gate, addrTable, shared, rules, log) })
	run.start("restored", func(ctx context.Context) error {
		if cluster != nil {
			cluster.labels.await(ctx)
		}
		err := a.lifecycle.Reacquire(ctx)
		if ctx.Err() == nil {
			forgo(ctx)
		}
		return err
	})
	run.start("identities-ended", identities.NewConfirmer(a.confirmation()).Run)
	run.start("ipam", a.pool.Run)
	run.start("events", func(ctx context.Context) error { return a.monitor.Run(ctx, kernel) })
	if err := a.hubble.Start(run.start); err != nil {
		return err
	}
	if a.health != nil {
		run.start("cluster-health", a.health.Probe)
		run.start("health-answers", a.health.Answer)
		run.start("health-api", func(ctx context.Context) error { return a.serveHealthAPI(ctx, log.With("part", "health")) })
	}
	run.start("housekeeping", func(ctx context.Context) error { return a.housekeeping(ctx, rules, log) })
	run.start("recovery", func(ctx context.Context) error { return a.recover(ctx, log) })

	// ---- the API --------------------------------------------------------------------------------
	startup := restapi.NewStartupGate()
	handler := server.NewHandler(a.rest, log.With("part", "api"), startup.Guard, restapi.GuardAccess(cfg.APIAccess), a.metrics.observe)
	listener, err := restapi.Listen(cfg.SocketPath, "--socket-path", log)
	if err != nil {
		return err
	}
	defer os.Remove(cfg.SocketPath)
	run.start("api", func(ctx context.Context) error {
		defer close(a.stopping)
		return daemon.Serve(ctx, listener, handler)
	})
	run.start("delete-queue", func(ctx context.Context) error {
		return a.replayDeletions(ctx, startup, log)
	})
	a.metrics.registry.MustRegister(newStateCollector(a))
	a.mesh.register(a.metrics.registry)
	if cfg.PrometheusAddr != "" {
		run.start("metrics", func(ctx context.Context) error {
			l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", cfg.PrometheusAddr)
			if err != nil {
				return err
			}
			return serveMetrics(ctx, l, a.metrics.registry, metricsTimeout)
		})
	}
	if cfg.HealthPort != 0 {
		run.start("health", func(ctx context.Context) error { return serveLocal(ctx, cfg.HealthPort, a.healthHandler()) })
	}
	if cfg.ProxyHealthzAddr != "" && cfg.KubeProxyReplacement {
		h := health.ProxyHandler(func() bool { return a.isInForce() && a.rest.Status().Cilium.State != rest.StateFailure })
		run.start("kube-proxy-healthz", func(ctx context.Context) error { return health.ServeProxy(ctx, cfg.ProxyHealthzAddr, h, log) })
	}
	if err := startup.Wait(run.ctx); err == nil { // not if a part failed before
		if err := a.cni.Install(); err != nil {
			log.Error("cannot write the CNI configuration", "error", err)
		}
		run.start("cni", a.cni.Run)
		log.Info("ready", "took", time.Since(started).Round(time.Millisecond))
	}
	return run.wait()
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

func newPool(cfg Config, assigned assigned, registry *endpoint.Registry, links *link.Links, log *slog.Logger) (*ipam.IPAM, error) {
	pc := ipam.Config{Expiration: cfg.IPAMExpiration, Log: log, Local: links.IsLocal, InUse: func(ip netip.Addr) (string, bool) {
		row, ok := registry.ByAddr(ip)
		return fmt.Sprintf("endpoint %d", row.ID), ok
	}}
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

// numberStore opens what keeps the cluster's identities. Where the operator alone makes them it can
// only be read.
func numberStore(cfg Config, facts nodeFacts, backend kvstore.Backend, cluster *kube, first, last identity.ID, log *slog.Logger) (allocator.Backend, error) {
	store, err := openNumberStore(cfg, facts, backend, cluster, first, last, log)
	if err != nil || cfg.management().Agent() {
		return store, err
	}
	return allocator.ReadOnly(store), nil
}

func openNumberStore(cfg Config, facts nodeFacts, backend kvstore.Backend, cluster *kube, first, last identity.ID, log *slog.Logger) (allocator.Backend, error) {
	newObjects := func() (allocator.Backend, error) {
		b, err := k8sids.New(k8sids.Config{
			Client: cluster.client, First: allocator.ID(first), Last: allocator.ID(last), KeyType: k8sids.Key{},
			Node: cfg.NodeName, Namespace: cfg.inNamespace(), Log: log,
		})
		if err == nil {
			cluster.numbers = b
		}
		return b, err
	}
	newKeys := func() (allocator.Backend, error) {
		return allocator.NewKVStoreBackend(allocator.KVStoreConfig{
			Store: backend, BasePath: storekeys.IdentitiesPrefix, Suffix: facts.suffix(), KeyType: k8sids.Key{}, Logger: log,
		})
	}
	switch cfg.identityMode() {
	case identityCRD:
		return newObjects()
	case identityKVStore:
		return newKeys()
	}
	objects, err := newObjects()
	if err != nil {
		return nil, err
	}
	keys, err := newKeys()
	if err != nil {
		return nil, err
	}
	return doublewrite.New(doublewrite.Config{Objects: objects, Keys: keys, ReadObjects: cfg.identityMode() == identityBothCRD, Log: log})
}

// identitiesConfig says how this node's identities are made and found.
func (a *api) identitiesConfig(numbers allocator.Backend, cluster *kube) identities.Config {
	c := identities.Config{
		Log: a.log.With("part", "identity"), Store: numbers, First: a.idMin, Last: a.idMax, Fixed: a.cfg.FixedIdentities,
		Management: a.cfg.management(), Timeout: a.cfg.AllocationTimeout, SyncInterval: a.cfg.AllocationSync, Temporary: a.metrics.temporary,
		Referenced: func() map[identity.ID]bool {
			used := map[identity.ID]bool{}
			for _, e := range a.cache.All() {
				used[e.Identity] = true
			}
			return used
		},
	}
	if a.cfg.WellKnown {
		c.WellKnown = identity.WellKnownIdentities(a.cfg.ClusterName, "kube-system")
	}
	if cluster != nil && cluster.numbers != nil {
		c.Expect = cluster.numbers.Expect
	}
	return c
}

// confirmation is what says whether this node goes by identities that have ended.
func (a *api) confirmation() identities.ConfirmerConfig {
	return identities.ConfirmerConfig{
		Identities: a.identities, InForce: a.inForce, Addresses: a.cache, Kernel: a.addresses, Endpoints: a.registry, Policy: a.policy,
		Nodes: func() int { return a.nodes.Table().Len() }, Log: a.log.With("part", "identity"),
	}
}

// lockWait is how long the state directory's last owner may take to be gone: a process that was
// killed holds its locks until the kernel has taken it apart.
const lockWait = 5 * time.Second

// lockName is the file in the state directory that its agent holds.
const lockName = "agent.lock"

// lockState keeps a second agent from working on the same state.
func lockState(ctx context.Context, dir string) (unlock func(), err error) {
	path := filepath.Join(dir, lockName)
	for deadline := time.Now().Add(lockWait); ; {
		f, err := tryLock(path)
		if err != nil {
			return nil, fmt.Errorf("--state-dir: %w", err)
		}
		if f != nil {
			return func() { f.Close() }, nil
		}
		if time.Now().After(deadline) || ctx.Err() != nil {
			return nil, fmt.Errorf("another agent works on %s (it holds %s); stop it first or choose another --state-dir", dir, path)
		}
		select {
		case <-ctx.Done():
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// tryLock returns the locked file, nil if somebody else holds it or has just removed it.
func tryLock(path string) (*os.File, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
		mine, mineErr := f.Stat()
		there, thereErr := os.Stat(path)
		if mineErr == nil && thereErr == nil && os.SameFile(mine, there) {
			return f, nil
		}
	}
	return nil, f.Close()
}

// healthHandler answers the node's own health checks with the agent's state and what it is about.
//
//   - GET /healthz and /livez: 200 as long as the process works. The state is read behind the locks
//     of every part, so a part that holds its lock for ever keeps it from answering. What fails in
//     the kernel, or is away, a new process would find as it is, and pods could not start
//     meanwhile.
//   - GET /readyz: 503 while pods cannot be attached or policy is not in force.
func (a *api) healthHandler() http.Handler {
	mux := http.NewServeMux()
	answer := func(code func(rest.State) int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			st := a.rest.Status()
			w.Header().Set("Content-Type", "text/plain; charset=utf-8")
			w.WriteHeader(code(st.Cilium.State))
			fmt.Fprintln(w, st.Cilium.State, st.Cilium.Msg)
		}
	}
	live := answer(func(rest.State) int { return http.StatusOK })
	mux.HandleFunc("GET /healthz", live)
	mux.HandleFunc("GET /livez", live)
	mux.HandleFunc("GET /readyz", answer(func(s rest.State) int {
		if s == rest.StateFailure {
			return http.StatusServiceUnavailable
		}
		return http.StatusOK
	}))
	return mux
}

// replayDeletions does what plugins asked for while no agent answered, then lets endpoint requests
// in. It waits for plugins that hold the queue.
func (a *api) replayDeletions(ctx context.Context, f *restapi.StartupGate, log *slog.Logger) error {
	n, err := deletequeue.Replay(ctx, deletequeue.Dir(a.cfg.SocketPath), func(ctx context.Context, e deletequeue.Entry) error {
		if e.ContainerID != "" {
			a.lifecycle.DeleteContainer(ctx, e.ContainerID)
			return nil
		}
		ref, err := endpoint.ParseRef(e.EndpointID)
		if err != nil {
			return nil // nobody can delete it: the file must not come back for ever
		}
		row, err := a.registry.Find(ref)
		if err != nil {
			return nil // gone already
		}
		_, err = a.lifecycle.Delete(ctx, row.ID)
		if errors.Is(err, endpoint.ErrNotFound) {
			return nil
		}
		return err
	}, f.Open)
	if err != nil && ctx.Err() == nil {
		log.Error("some queued deletions could not be done", "error", err)
		f.Open() // the queue is kept; serving nobody would not make it shorter
	}
	if n > 0 {
		log.Info("did what was queued while no agent ran", "deletions", n)
	}
	return nil
}

// housekeeping does what has no event of its own to wait for.
func (a *api) housekeeping(ctx context.Context, rules *enforcement.Rules, log *slog.Logger) error {
	flows := time.NewTicker(a.cfg.CTInterval)
	defer flows.Stop()
	sweep := time.NewTicker(max(a.cfg.OrphanGrace/2, time.Second))
	defer sweep.Stop()
	retry := time.NewTicker(5 * time.Second)
	defer retry.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-flows.C:
			alive, removed, err := a.maps.CollectCT(ctx)
			if ctx.Err() != nil {
				return nil
			}
			shares, failed := a.maps.FlowShares()
			a.components.Report("conntrack", errors.Join(err, failed), fmt.Sprintf("%d flows, %d expired ones removed%s", alive, removed, beyondShares(shares)))
		case <-sweep.C:
			a.components.Report("orphans", a.lifecycle.Sweep(), "no interface without an endpoint stays")
		case <-retry.C:
			if a.isInForce() {
				a.replacePrograms(log)
			}
			err := errors.Join(rules.Retry(), a.policy.Retry())
			if err != nil {
				log.Error("policy is not in force in full", "error", err)
			}
			a.components.Report("policy", err, "all endpoints have their rule sets")
			a.reportEdited()
		}
	}
}

// recoverPause is the time between two attempts to undo what is left of failed changes.
const recoverPause = 5 * time.Second

// recover undoes what is left of failed changes of endpoints. It waits for the kernel, and so for
// nobody else's work.
func (a *api) recover(ctx context.Context, log *slog.Logger) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(recoverPause):
		}
		if err := a.lifecycle.Recover(ctx); err != nil && ctx.Err() == nil {
			log.Error("what is left of a failed change could not be undone", "error", err)
		}
	}
}
