package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/hawser-net/hawser/api/rest"
	"github.com/hawser-net/hawser/api/rest/server"
	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/api/v2alpha1"
	"github.com/hawser-net/hawser/internal/agent/addressing"
	"github.com/hawser-net/hawser/internal/agent/enforcement"
	"github.com/hawser-net/hawser/internal/agent/health"
	"github.com/hawser-net/hawser/internal/announce"
	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/datapath/link"
	"github.com/hawser-net/hawser/internal/endpoint"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/ipcache"
	"github.com/hawser-net/hawser/internal/k8s"
	"github.com/hawser-net/hawser/internal/k8s/apiserver"
	"github.com/hawser-net/hawser/internal/k8s/endpoints"
	k8sids "github.com/hawser-net/hawser/internal/k8s/identities"
	"github.com/hawser-net/hawser/internal/k8s/nodes"
	"github.com/hawser-net/hawser/internal/k8s/pods"
	"github.com/hawser-net/hawser/internal/k8s/policies"
	"github.com/hawser-net/hawser/internal/k8s/services"
	"github.com/hawser-net/hawser/internal/labels"
	"github.com/hawser-net/hawser/internal/node"
	"github.com/hawser-net/hawser/internal/policy"
	"github.com/hawser-net/hawser/internal/service"
	"github.com/hawser-net/hawser/internal/table"
)

// kube is the agent's part that speaks with Kubernetes: what it hears goes into the tables that
// other sources fill too, and what others must know of this node and its pods it writes. Nil stands
// for a node outside of Kubernetes.
type kube struct {
	cfg    Config
	log    *slog.Logger
	client *k8s.Client
	facts  nodeFacts
	a      *api

	pods      *pods.Pods
	nodes     *nodes.Nodes
	endpoints *endpoints.Endpoints
	services  *services.Services
	policies  *policies.Policies
	numbers   *k8sids.Backend // nil if identities are not objects
	shared    *announce.Addresses
	pools     *addressing.Pools   // nil if this node's CIDRs are not of pools
	singles   *addressing.Singles // nil if this node has no single addresses
	labels    *identityLabels     // nil if all labels make identities, whatever the operator says

	// hostPorts says whether a pod of this node has host ports.
	hostPorts atomic.Bool

	// kinds is closed when the custom resources are known to be defined.
	kinds chan struct{}
	// creation opens when new pods can be judged; open is closed then.
	creation *syncGate
	open     chan struct{}

	mu      sync.Mutex
	gates   *gates
	changed map[k8s.Key]bool // pods whose labels may have changed
	wake    chan struct{}
	servers []netip.Addr                   // where the API is served
	claimed map[netip.Prefix]ipcache.Claim // for these
	state   rest.K8SStatus
}

// newKube connects to nobody yet.
func newKube(cfg Config, log *slog.Logger) (*kube, error) {
	rc, err := cfg.K8s.REST()
	if err != nil {
		return nil, err
	}
	client, err := k8s.New(rc)
	if err != nil {
		return nil, err
	}
	return &kube{
		cfg: cfg, log: log, client: client, kinds: make(chan struct{}), creation: newSyncGate(), open: make(chan struct{}),
		gates: newGates(), changed: map[k8s.Key]bool{}, wake: make(chan struct{}, 1), claimed: map[netip.Prefix]ipcache.Claim{},
		state: rest.K8SStatus{State: rest.StateWarning, Msg: client.Host() + " has not answered yet"},
	}, nil
}

// needs are the custom resources without which this node cannot be one of the cluster.
func (k *kube) needs() []schema.GroupVersionResource {
	out := []schema.GroupVersionResource{
		v2.Resource(v2.ResourceNodes), v2.Resource(v2.ResourceEndpoints), v2.Resource(v2.ResourceIdentities),
		v2.Resource(v2.ResourceNetworkPolicies), v2.Resource(v2.ResourceClusterwideNetworkPolicies),
	}
	if k.cfg.IPAM == addressing.MultiPool {
		out = append(out, v2alpha1.Resource(v2alpha1.ResourcePodIPPools))
	}
	if k.cfg.EndpointSlices {
		out = append(out, v2alpha1.Resource(v2alpha1.ResourceEndpointSlices))
	}
	return out
}

// self is this node's key.
func (k *kube) self() node.Key { return node.Key{Cluster: k.cfg.ClusterName, Name: k.cfg.NodeName} }

// join makes the parts that follow and write objects, once the tables exist.
func (k *kube) join(a *api, facts nodeFacts, links *link.Links, filter *labels.Filter) error {
	k.a, k.facts = a, facts
	a.kube = k
	var err error
	if k.labels, err = newIdentityLabels(a, k, filter, k.log); err != nil {
		return err
	}
	pc := pods.Config{Client: k.client, NodeName: k.cfg.NodeName, Cluster: k.cfg.ClusterName, Changed: k.Relabel, Log: k.log}
	ec := endpoints.Config{
		Hosts: facts.hosts(), Slices: k.cfg.EndpointSlices, Silent: k.cfg.NoEndpointObjects, Shared: k.cfg.management().Operator(), Accept: k.acceptable,
		Learned: func(wait time.Duration) { a.metrics.known.Observe(wait.Seconds()) }, Log: k.log,
	}
	k.gateConfig(&pc, &ec)
	if k.pods, err = pods.New(pc); err != nil {
		return err
	}
	// With a key-value store the other nodes are heard of there: two sources would take turns.
	var learned nodes.Sink = a.nodes
	var cache endpoints.Cache = a.cache
	if k.cfg.KVStore != "" {
		learned, cache = nodes.Deaf{}, deafCache{}
	}
	ranges := k.addressing()
	var fill func(*v2.CiliumNode, bool)
	if given := k.assigned(); given != nil {
		fill = given.Fill
	}
	if k.nodes, err = nodes.New(nodes.Config{
		Self: k.self(), ClusterID: k.cfg.ClusterID, WritePodCIDRs: k.cfg.IPAM == addressing.Kubernetes || k.cfg.IPAM == addressing.Delegated || ranges.Fixed(),
		Own: k.heardOwn, Fill: fill, Log: k.log,
		LabelFilter: filter.Fingerprint(), Management: string(k.cfg.management()),
	}, k.client, learned); err != nil {
		return err
	}
	k.endpoints, err = endpoints.New(ec, k.client, cache)
	if err != nil {
		return err
	}
	pol := k.cfg.Policies
	pol.Keep = filepath.Join(k.cfg.StateDir, "policies-k8s")
	if k.policies, err = policies.New(pol, k.client, k.log); err != nil {
		return err
	}
	k.hostPorts.Store(hadHostPorts(a.maps, k.log))
	var healthListen func(uint16) (net.Listener, error)
	var sockets service.Sockets
	if k.cfg.KubeProxyReplacement {
		healthListen, sockets = health.ListenForBalancers, nodeSockets{a.maps, links}
	}
	k.services, err = services.New(services.Config{
		NodeName: k.cfg.NodeName, NodeAddrs: facts.hosts(), Announced: facts.hosts(), Within: k.cfg.nodePortRanges(), KubeProxy: !k.cfg.KubeProxyReplacement,
		HostPorts: func(some bool) {
			k.hostPorts.Store(some)
			a.noteMoved()
		},
		// The part that follows other clusters is made later.
		Heard:      func(ctx context.Context) error { return a.mesh.waitHeard(ctx) },
		Consistent: k.cfg.LBAlgorithm == lbMaglev,
		Forwarding: service.Forwarding(k.cfg.LBMode), PerService: k.cfg.LBModeAnnotation, HealthListen: healthListen, Sockets: sockets, Kernel: a.maps, Log: k.log,
	}, k.client)
	return err
}

// firstWellKnown is the first of the numbers below the allocated ones that pods can have:
// well-known and fixed ones.
const firstWellKnown = 100

// acceptable tells why a pod of another node cannot have an identity.
func (k *kube) acceptable(id identity.ID) error {
	switch {
	case id >= k.a.idMin && id <= k.a.idMax, id == identity.Health, id == identity.Init, id == identity.Unmanaged:
		return nil
	case id >= firstWellKnown && id < identity.MinGlobal:
		return nil
	}
	return fmt.Errorf("identity %s is not one that a pod can have", id)
}

// start begins to follow and to write. It must be called before gate is waited for. heard is called
// when identities are known; what it returns is to be called instead.
func (k *kube) start(run *group, gate *syncGate, rules *enforcement.Rules, heard func()) (func(), error) {
	run.start("kubernetes", func(ctx context.Context) error {
		if err := k.client.WaitForKinds(ctx, k.cfg.CRDWait, k.log, k.needs()...); err != nil {
			return err
		}
		close(k.kinds)
		return nil
	})
	run.start("kubernetes-status", k.watchStatus)
	run.start("pods", k.pods.Run)
	run.start("pod-labels", k.followLabels)
	if k.cfg.PodReadiness == readinessStrict {
		run.start("pod-readiness", k.keepGates)
	}
	if err := k.nodes.Announce(k.a.selfNode(k.facts)); err != nil {
		return nil, err
	}
	run.start("cilium-nodes", k.afterKinds(k.nodes.Run))
	k.startAssigned(run)
	addressesHeard, serversHeard, podsHeard := gate.expect(), gate.expect(), gate.expect()
	run.start("cilium-endpoints", k.afterKinds(k.endpoints.Run))
	placed := k.creation.expect()
	run.start("cilium-endpoints-synced", func(ctx context.Context) error {
		if k.endpoints.WaitSynced(ctx) != nil {
			return nil
		}
		addressesHeard()
		// A deny of a peer whose address the kernel does not know yet would let it through.
		if k.a.addresses.WaitTried(ctx, k.a.cache.Table().Revision()) == nil {
			placed()
		}
		return nil
	})
	run.start("pods-synced", func(ctx context.Context) error {
		select {
		case <-k.pods.Synced():
			k.forgetGone()
			podsHeard()
		case <-ctx.Done():
		}
		return nil
	})
	known := make(chan struct{})
	run.start("api-servers", func(ctx context.Context) error {
		// The labels of this node's own identity are among those that come first.
		select {
		case <-known:
		case <-ctx.Done():
			return nil
		}
		return apiserver.Run(ctx, k.client, k.log, func(list []netip.Addr) {
			k.mu.Lock()
			k.servers = list
			k.mu.Unlock()
			k.placeServers()
			serversHeard()
		})
	})
	k.startRules(run, gate, rules)
	ids := k.creation.expect()
	run.start("pods-admitted", func(ctx context.Context) error {
		if k.creation.wait(ctx) == nil {
			k.a.policy.Heard()
			close(k.open)
		}
		return nil
	})
	identitiesHeard := sync.OnceFunc(func() {
		heard()
		ids()
		close(known)
	})
	return identitiesHeard, nil
}

// forgetServices removes services that the kernel has from when the node was one of a cluster:
// nobody would keep them.
func forgetServices(ctx context.Context, kernel datapath.Services) error {
	have, err := kernel.Services()
	if err != nil || len(have) == 0 {
		return err
	}
	none := service.New(service.Local{}).Table()
	if err := service.NewMaps(kernel, func() {}).Prune(ctx, none.All()); err != nil {
		return fmt.Errorf("remove the services of a former cluster: %w", err)
	}
	if err := service.NewFlows(kernel, none).Settle(ctx); err != nil {
		return fmt.Errorf("end flows to the services of a former cluster: %w", err)
	}
	return nil
}

// recallAfter is how long the API server may be away before policies are those of before the
// restart. With one that answers they are heard once.
const recallAfter = 3 * time.Second

// startRules begins to follow the rules and the services of the cluster.
func (k *kube) startRules(run *group, gate *syncGate, rules *enforcement.Rules) {
	inForce, admit := gate.expect(), k.creation.expect()
	heard := sync.OnceFunc(func() { inForce(); admit() })
	changed := k.labels.rules(func(changes []policy.Change) {
		err := rules.Apply(changes)
		if err != nil {
			k.log.Error("policy is not in force in full", "error", err)
		}
		k.a.components.Report("cluster-rules", err, "all rules of the cluster are in force")
		k.a.metrics.policyUp.Add(float64(len(changes)))
		heard()
	})
	k.labels.start(run, k.creation.expect())
	follow := k.afterKinds(func(ctx context.Context) error {
		return k.policies.Run(ctx, func(changes []policy.Change) { changed(ctx, changes) })
	})
	run.start("policies", func(ctx context.Context) error {
		kept := k.policies.Recall()
		select {
		case <-k.kinds:
		case <-time.After(recallAfter):
			// Nobody is judged by them before all has been heard; they are for people to see, and
			// keep their prefixes and blocks of addresses in the kernel.
			if len(kept) > 0 {
				k.log.Info("the API server is away; its policies of before stay in force", "policies", len(kept))
			}
			if err := rules.Apply(kept); err != nil {
				k.log.Error("policies of before are not known in full", "error", err)
			}
		case <-ctx.Done():
			return nil
		}
		return follow(ctx)
	})
	servicesHeard := gate.expect()
	run.start("services", func(ctx context.Context) error { return k.services.Run(ctx, servicesHeard) })
}

// afterKinds has a part begin when the custom resources are defined.
func (k *kube) afterKinds(f func(context.Context) error) func(context.Context) error {
	if k == nil {
		return f
	}
	return func(ctx context.Context) error {
		select {
		case <-k.kinds:
			return f(ctx)
		case <-ctx.Done():
			return nil
		}
	}
}

// PolicyObjects shows the policies of the cluster as if each were a file.
func (k *kube) PolicyObjects(describe func(policy.Owner) string) []rest.PolicyFile {
	var out []rest.PolicyFile
	for _, s := range k.policies.Status() {
		f := rest.PolicyFile{Path: string(s.Owner), State: rest.PolicyFileStateOk, InForce: s.InForce, Loaded: s.Loaded}
		if s.Err != nil {
			f.State, f.Error = rest.PolicyFileStateFaulty, s.Err.Error()
		}
		if k.labels.waits(s.Owner) {
			f.InForce, f.Error = false, "waits until the identities of all pods have the labels that it selects; its last version, if there was one, is in force"
		}
		if s.InForce {
			f.Policies = []rest.PolicyFilePolicy{{Kind: s.Kind, Namespace: s.Namespace, Name: s.Name, Rules: s.Rules, Description: describe(s.Owner)}}
		}
		out = append(out, f)
	}
	return out
}

// PolicyCounts counts the policies of the cluster.
func (k *kube) PolicyCounts() (ok, faulty int) { return k.policies.Counts() }

// Services is the table of frontends.
func (k *kube) Services() *table.Table[datapath.ServiceFrontend, service.Frontend] {
	return k.services.Table()
}

// ---- pods ---------------------------------------------------------------------------------------

// admitWait is how long a new pod waits for the rules to be heard before the runtime is asked to
// try again.
const admitWait = 20 * time.Second

// Complete fills in what Kubernetes says of the pod of a new endpoint. A pod must not begin before
// the rules have been heard that may isolate it. Labels that the runtime gives (CNI convention
// args.cni.labels) would be gone with the pod's next change, and no operator would know them: they
// are refused.
func (k *kube) Complete(ctx context.Context, req *endpoint.CreateRequest, given []string) error {
	if len(given) > 0 {
		return server.Errorf(http.StatusBadRequest, "labels (args.cni.labels of the CNI configuration) are not supported for pods of Kubernetes: "+
			"label the pod itself and leave them out: %s", strings.Join(given, ", "))
	}
	select {
	case <-k.open:
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(admitWait):
		return server.Errorf(http.StatusServiceUnavailable, "the agent has not heard all rules and identities from Kubernetes yet; try again in a moment")
	}
	info, err := k.pods.Get(ctx, k8s.Key{Namespace: req.Namespace, Name: req.PodName}, req.PodUID)
	switch {
	case errors.Is(err, pods.ErrNotFound):
		return server.Errorf(http.StatusNotFound, "%w", err)
	case err != nil:
		return err
	}
	plain, err := k.pools.Check(info, req)
	if err != nil {
		return err
	}
	k.endpoints.Mirror(info.Runtime, info.UID)
	req.Labels, req.NamedPorts, req.PodUID, req.PodCreated = info.Labels, info.Ports, info.Runtime, info.Created
	if info.SkipMasquerade {
		req.PlainIPv4, req.PlainIPv6 = true, true
	}
	req.PlainIPv4, req.PlainIPv6 = req.PlainIPv4 || plain.IPv4, req.PlainIPv6 || plain.IPv6
	return nil
}

// Relabel has a pod's endpoints compared with what Kubernetes says of it.
func (k *kube) Relabel(key k8s.Key) {
	k.mu.Lock()
	k.changed[key] = true
	k.mu.Unlock()
	select {
	case k.wake <- struct{}{}:
	default: // it is awake
	}
}

// relabelRetry is the pause before labels are tried again that could not be changed.
const relabelRetry = 2 * time.Second

// relabelWorkers is how many pods' labels are changed at once: each may wait for an identity.
const relabelWorkers = 16

// followLabels gives endpoints the labels that their pods have now, until ctx ends. It begins when
// new pods can be judged: an endpoint of before a restart would get rules that were heard in part.
func (k *kube) followLabels(ctx context.Context) error {
	select {
	case <-k.open:
	case <-ctx.Done():
		return nil
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	slots := make(chan struct{}, relabelWorkers)
	for {
		select {
		case <-k.wake:
		case <-ctx.Done():
			return nil
		}
		k.mu.Lock()
		keys := k.changed
		k.changed = map[k8s.Key]bool{}
		k.mu.Unlock()
		for key := range keys {
			select {
			case slots <- struct{}{}:
			case <-ctx.Done():
				return nil
			}
			wg.Go(func() {
				defer func() { <-slots }()
				if err := k.bringLabels(ctx, key); err != nil && ctx.Err() == nil {
					k.log.Warn("a pod's endpoint keeps its old labels for now", "pod", key, "error", err)
					select {
					case <-time.After(relabelRetry):
						k.Relabel(key)
					case <-ctx.Done():
					}
				}
			})
		}
	}
}

func (k *kube) bringLabels(ctx context.Context, key k8s.Key) error {
	var errs []error
	for _, row := range k.a.registry.List() {
		if row.Namespace != key.Namespace || row.PodName != key.Name {
			continue
		}
		info, ok, err := k.pods.Known(key, row.PodUID)
		if err == nil && ok {
			k.endpoints.Mirror(info.Runtime, info.UID)
			_, err = k.a.lifecycle.SetWorkload(ctx, row.ID, info.Labels, info.Ports)
		}
		if !errors.Is(err, endpoint.ErrNotFound) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// forgetGone logs endpoints of pods that Kubernetes no longer has: their deletion is the runtime's
// to ask for.
func (k *kube) forgetGone() {
	for _, row := range k.a.registry.List() {
		key := k8s.Key{Namespace: row.Namespace, Name: row.PodName}
		if _, ok, _ := k.pods.Known(key, row.PodUID); row.PodName != "" && !ok {
			k.log.Info("an endpoint's pod is not in Kubernetes; it stays until the runtime deletes it", "endpoint", row.ID, "pod", key)
		}
	}
}

// localEndpoint is what other nodes are told of an endpoint.
func localEndpoint(row endpoint.Endpoint, ports []ipcache.NamedPort) endpoints.Local {
	id := row.Identity
	if id.IsTemporary() {
		id = 0 // what the object says of it stays
	}
	return endpoints.Local{
		PodCreated: row.PodCreated, Number: row.ID, Attachment: row.AttachmentID(), Namespace: row.Namespace, Pod: row.PodName, UID: row.PodUID, IPv4: row.IPv4, IPv6: row.IPv6,
		Identity: id, IdentityLabels: row.IdentityLabels, Labels: row.Labels, NamedPorts: ports, State: string(row.State),
	}
}

// ---- where the API is served --------------------------------------------------------------------

// apiServers is the owner of the claims on the addresses of API servers.
const apiServers = "kube-apiserver"

// placeServers claims the addresses at which the API is served, and all addresses of the nodes that
// have one of them: pods see a node by any of these.
func (k *kube) placeServers() {
	k.mu.Lock()
	defer k.mu.Unlock()
	want := map[netip.Prefix]ipcache.Claim{}
	claim := func(ip, host netip.Addr) {
		want[ipcache.Single(ip)] = ipcache.Claim{Source: ipcache.APIServer, Owner: apiServers, Identity: identity.KubeAPIServer, Host: host}
	}
	for _, ip := range k.servers {
		claim(ip, netip.Addr{})
	}
	for key, n := range k.a.nodes.Table().All() {
		ips := n.NodeIPs()
		if key == k.self() || !slices.ContainsFunc(ips, func(ip netip.Addr) bool { return slices.Contains(k.servers, ip) }) {
			continue
		}
		host := n.UnderlayIPv4()
		if !host.IsValid() {
			host = n.UnderlayIPv6()
		}
		for _, ip := range ips {
			claim(ip, netip.Addr{})
		}
		for _, ip := range n.RouterIPs() {
			claim(ip, host)
		}
	}
	for p := range k.claimed {
		if _, still := want[p]; !still {
			k.a.cache.Delete(p, ipcache.APIServer, apiServers)
		}
	}
	for p, c := range want {
		if old, had := k.claimed[p]; had && old.Host == c.Host {
			continue
		}
		if _, err := k.a.cache.Upsert(p, c); err != nil {
			k.log.Warn("an address of the API server makes no sense", "address", p, "error", err)
		}
	}
	k.claimed = want
	// This node itself may serve it: then its own identity is that of an API server too.
	set := labels.NewSet(labels.Reserved("host"))
	local := k.facts.hostAddresses(k.log)
	if slices.ContainsFunc(k.servers, func(ip netip.Addr) bool { return slices.Contains(local, ip) }) {
		set = set.With(labels.Reserved("kube-apiserver"))
	}
	if known, _ := k.a.identities.Labels(identity.Host); !known.Equal(set) {
		if err := k.a.identities.Apply(k.a.policy, map[identity.ID]labels.Set{identity.Host: set}, nil); err != nil {
			k.log.Error("policy is not in force in full", "error", err)
		}
	}
}

// ---- status -------------------------------------------------------------------------------------

// statusInterval is how often the API server is asked whether it answers.
const statusInterval = 10 * time.Second

func (k *kube) watchStatus(ctx context.Context) error {
	tick := time.NewTicker(statusInterval)
	defer tick.Stop()
	for {
		version, err := k.client.Version(ctx)
		now := rest.K8SStatus{State: rest.StateOk, Msg: strings.TrimPrefix(version, "v") + " at " + k.client.Host()}
		if err != nil {
			now = rest.K8SStatus{State: rest.StateFailure, Msg: err.Error() + "; what was heard before stays in force"}
		}
		if ctx.Err() != nil {
			return nil
		}
		k.mu.Lock()
		k.state = now
		k.mu.Unlock()
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// Status is what `hawser status` shows of Kubernetes.
func (k *kube) Status() rest.K8SStatus {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.state
}

// deafCache is what the sources of Kubernetes tell where a key-value store is listened to.
type deafCache struct{}

func (deafCache) Upsert(netip.Prefix, ipcache.Claim) (uint64, error)            { return 0, nil }
func (deafCache) Delete(netip.Prefix, ipcache.Source, string) (revision uint64) { return 0 }
